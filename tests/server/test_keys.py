"""Keys: let in while they are in the file, and from the next request on no more."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinkex.config import Secret
from tinkex.server import keys as keys_module
from tinkex.server.keys import KeyFileError, KeyInfo, KeyRing, KeysError

AD_HOC = Secret("tml-ad-hoc-key-of-this-test")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "keys.json"


@pytest.fixture
def ring(path: Path) -> KeyRing:
    return KeyRing(path)


def on_disk(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


# ---- what a key is


def test_a_key_opens_what_its_owner_has(ring: KeyRing):
    info, key = ring.add("laptop", "ann", "the old one")
    assert re.fullmatch(r"tml-[A-Za-z0-9_-]{32}", key.reveal())
    assert (info.id, info.name, info.owner, info.note) == (1, "laptop", "ann", "the old one")
    assert info.hint == key.reveal()[-4:]
    assert ring.owner_of(key.reveal()) == info
    assert ring.owner_of(key.reveal()) == info  # from memory


@pytest.mark.parametrize("credential", ["", "tml-", "tml-x", "ключ", "\udcff", "a" * 100_000, "first"])
def test_what_is_no_key_opens_nothing(ring: KeyRing, credential: str):
    ring.add("laptop", "ann")
    assert ring.owner_of(credential) is None


def test_neither_a_digest_nor_a_part_of_a_key_opens_anything(ring: KeyRing):
    _, key = ring.add("laptop", "ann")
    for wrong in (
        key.digest,
        key.reveal()[:-1],
        key.reveal() + "x",
        key.reveal().upper(),
        f" {key.reveal()}",
    ):
        assert ring.owner_of(wrong) is None


def test_no_file_lets_nobody_in(ring: KeyRing, path: Path):
    assert ring.owner_of("tml-anything") is None
    assert ring.list() == []
    assert not path.exists()


# ---- at rest


def test_the_file_holds_digests_and_is_for_its_owner_alone(ring: KeyRing, path: Path):
    info, key = ring.add("laptop", "ann", "note")
    (entry,) = on_disk(path)["keys"]
    assert on_disk(path)["version"] == 1
    assert entry == {
        "id": 1,
        "name": "laptop",
        "owner": "ann",
        "note": "note",
        "digest": key.digest,
        "hint": info.hint,
        "created": info.created,
        "revoked": None,
    }
    for file in path.parent.iterdir():
        assert key.reveal() not in file.read_text()
        assert file.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert {file.name for file in path.parent.iterdir()} == {"keys.json", "keys.lock"}


def test_a_key_does_not_show_itself(ring: KeyRing, path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    info, key = ring.add("laptop", "ann")
    ring.owner_of(key.reveal())
    shown = [repr(ring), repr(info), repr(key), str(key), caplog.text, repr(vars(ring)), repr(ring.list())]
    with pytest.raises(KeysError) as clash:
        ring.add("laptop", "ann")
    shown.append(str(clash.value))
    given_at_start = KeyRing(path, extra=AD_HOC)
    with pytest.raises(KeysError) as kept:
        given_at_start.revoke_key(AD_HOC.reveal())
    shown += [repr(given_at_start), repr(vars(given_at_start)), str(kept.value)]
    path.write_text("{" + key.reveal())
    with pytest.raises(KeyFileError) as damaged:
        ring.list()
    path.unlink()  # the suite looks for credentials in what tests leave
    shown.append(str(damaged.value))
    assert not [text for text in shown if key.reveal() in text or AD_HOC.reveal() in text]


def test_a_failed_write_leaves_the_file_as_it_was(
    ring: KeyRing, path: Path, monkeypatch: pytest.MonkeyPatch
):
    _, key = ring.add("laptop", "ann")
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        ring.add("phone", "ann")
    assert path.read_bytes() == before
    assert {file.name for file in path.parent.iterdir()} == {"keys.json", "keys.lock"}
    assert ring.owner_of(key.reveal()) is not None


# ---- changing


def test_a_change_by_another_process_holds_at_once(ring: KeyRing, path: Path):
    _, mine = ring.add("laptop", "ann")
    assert ring.owner_of(mine.reveal()) is not None
    other = KeyRing(path)
    info, new = other.add("phone", "bob")
    assert ring.owner_of(new.reveal()) == info
    other.revoke("laptop")
    assert ring.owner_of(mine.reveal()) is None
    assert ring.owner_of(new.reveal()) == info


def test_a_file_that_rests_is_not_read_again(ring: KeyRing, path: Path, monkeypatch: pytest.MonkeyPatch):
    _, key = ring.add("laptop", "ann")
    os.utime(path, (1_000_000, 1_000_000))
    assert ring.owner_of(key.reveal()) is not None
    monkeypatch.setattr(keys_module.key_file, "read", lambda path: pytest.fail("read again"))
    assert ring.owner_of(key.reveal()) is not None
    assert ring.owner_of("tml-unknown") is None
    assert len(ring.list()) == 1


def test_a_file_that_was_taken_away_lets_nobody_in(ring: KeyRing, path: Path):
    _, key = ring.add("laptop", "ann")
    os.utime(path, (1_000_000, 1_000_000))
    assert ring.owner_of(key.reveal()) is not None
    path.unlink()
    assert ring.owner_of(key.reveal()) is None


def test_numbers_are_not_used_twice_and_names_only_after_they_are_free(ring: KeyRing):
    ring.add("laptop", "ann")
    with pytest.raises(KeysError, match="'laptop'; revoke it first"):
        ring.add("laptop", "bob")
    ring.revoke(1)
    info, _ = ring.add("laptop", "bob")
    assert info.id == 2
    assert [(each.id, each.revoked is None) for each in ring.list()] == [(1, False), (2, True)]


@pytest.mark.parametrize("which", [1, "1", "#1", "laptop", "hint"])
def test_a_key_is_revoked_by_what_it_is_called(ring: KeyRing, which: int | str):
    info, key = ring.add("laptop", "ann")
    revoked = ring.revoke(info.hint if which == "hint" else which)
    assert revoked.id == 1
    assert revoked.revoked is not None
    assert ring.owner_of(key.reveal()) is None
    with pytest.raises(KeysError, match="no key in use"):
        ring.revoke(1)


def test_a_name_that_fits_several_keys_revokes_none(ring: KeyRing):
    hint = ring.add("laptop", "ann")[0].hint
    if hint.isdecimal():
        pytest.skip("the key ends in four digits, which is no name")
    ring.add(hint, "bob")
    with pytest.raises(KeysError, match=r"several keys: #1 \(laptop\), #2"):
        ring.revoke(hint)
    assert [info.revoked for info in ring.list()] == [None, None]
    assert ring.revoke("#2").owner == "bob"


def test_nothing_has_no_name(ring: KeyRing, path: Path):
    ring.add("laptop", "ann")
    data = on_disk(path)
    data["keys"][0]["hint"] = ""
    path.write_text(json.dumps(data))
    with pytest.raises(KeysError, match="no key in use"):
        ring.revoke("")


def test_a_key_can_revoke_itself(ring: KeyRing):
    _, key = ring.add("laptop", "ann")
    _, other = ring.add("phone", "ann")
    gone = ring.revoke_key(key.reveal())
    assert gone is not None
    assert gone.name == "laptop"
    assert ring.revoke_key(key.reveal()) is None
    assert ring.revoke_key("tml-unknown") is None
    assert ring.owner_of(other.reveal()) is not None


@pytest.mark.parametrize(
    ("name", "owner", "note", "said"),
    [
        ("", "ann", "", "name ''"),
        ("a b", "ann", "", "1 to 64 of the letters"),
        ("x" * 65, "ann", "", "1 to 64"),
        ("../up", "ann", "", "name '../up'"),
        ("laptop", "a/b", "", "owner 'a/b'"),
        ("laptop", "", "", "owner ''"),
        ("42", "ann", "", "could be taken for a key's id"),
        ("laptop", "ann", "two\nlines", "one line"),
        ("laptop", "ann", "x" * 501, "500"),
    ],
)
def test_names_that_cannot_be(ring: KeyRing, path: Path, name: str, owner: str, note: str, said: str):
    with pytest.raises(KeysError, match=re.escape(said)):
        ring.add(name, owner, note)
    assert not path.exists()


# ---- the key given at the start


def test_the_key_given_at_the_start_stands_in_no_file(path: Path):
    ring = KeyRing(path, extra=AD_HOC, extra_owner="ann")
    info = ring.owner_of(AD_HOC.reveal())
    assert info == ring.ad_hoc
    assert info is not None
    assert (info.id, info.owner, info.hint) == (0, "ann", "test")
    assert ring.ensure_one() is None
    assert ring.list() == []
    assert not path.exists()
    assert KeyRing(path).owner_of(AD_HOC.reveal()) is None


def test_the_key_given_at_the_start_ends_with_the_server(path: Path):
    ring = KeyRing(path, extra=AD_HOC)
    with pytest.raises(KeysError, match="ends when the server does"):
        ring.revoke_key(AD_HOC.reveal())
    assert ring.owner_of(AD_HOC.reveal()) is not None


def test_a_key_clients_would_refuse_is_refused(path: Path):
    with pytest.raises(KeysError, match="must begin with 'tml-'"):
        KeyRing(path, extra=Secret("sk-1234"))
    with pytest.raises(KeysError, match="owner 'a b'"):
        KeyRing(path, extra=AD_HOC, extra_owner="a b")


def test_a_short_key_is_not_hinted_at(path: Path):
    info = KeyRing(path, extra=Secret("tml-dummy")).ad_hoc
    assert info is not None
    assert info.hint == ""


def test_a_first_key_is_made_only_where_there_is_no_way_in(ring: KeyRing):
    made = ring.ensure_one("ann")
    assert made is not None
    info, key = made
    assert info.owner == "ann"
    assert ring.owner_of(key.reveal()) == info
    assert ring.ensure_one("ann") is None
    ring.revoke(info.id)
    again = ring.ensure_one("ann")
    assert again is not None
    assert again[0].id == 2


# ---- a damaged file

ENTRY = {
    "id": 1,
    "name": "laptop",
    "owner": "ann",
    "note": "",
    "digest": AD_HOC.digest,
    "hint": "test",
    "created": 1.0,
    "revoked": None,
}


def written(**changes: Any) -> str:
    return json.dumps({"version": 1, "keys": [{**ENTRY, **changes}]})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("null", "it is not"),
        ("[]", "it is not"),
        ('{"version": 2, "keys": []}', "it is not"),
        ('{"version": 1}', "it is not"),
        ('{"version": 1, "keys": {}}', "it is not"),
        ('{"version": 1, "keys": [3]}', "key number 1 is not an object"),
        (written(digest="abc"), "cannot be"),
        (written(digest=None), "no proper 'digest'"),
        (written(id=0), "cannot be"),
        (written(id=True), "no proper 'id'"),
        (written(owner="a/b"), "cannot be"),
        (written(revoked="no"), "no proper 'revoked'"),
        (
            json.dumps({"version": 1, "keys": [{k: v for k, v in ENTRY.items() if k != "revoked"}]}),
            "'revoked'",
        ),
        (json.dumps({"version": 1, "keys": [ENTRY, ENTRY]}), "the same id"),
    ],
)
def test_a_damaged_file_lets_nobody_in_and_is_left_alone(ring: KeyRing, path: Path, text: str, said: str):
    path.parent.mkdir()
    path.write_text(text)
    path.chmod(0o600)
    for ask in (lambda: ring.owner_of(AD_HOC.reveal()), ring.list, lambda: ring.add("new", "ann"),
                lambda: ring.revoke("laptop"), ring.ensure_one, lambda: ring.live(1)):  # fmt: skip
        with pytest.raises(KeyFileError, match=re.escape(said)) as problem:
            ask()
        assert str(path) in str(problem.value)
    assert path.read_text() == text
    assert KeyRing(path, extra=AD_HOC).owner_of(AD_HOC.reveal()) is not None  # stands in no file


def test_damage_done_while_a_server_runs_is_noticed_and_mended(ring: KeyRing, path: Path):
    _, key = ring.add("laptop", "ann")
    good = path.read_bytes()
    assert ring.owner_of(key.reveal()) is not None
    path.write_bytes(good[:-10])
    with pytest.raises(KeyFileError):
        ring.owner_of(key.reveal())
    path.write_bytes(good)
    assert ring.owner_of(key.reveal()) is not None


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_file_others_may_write_is_not_believed(ring: KeyRing, path: Path):
    _, key = ring.add("laptop", "ann")
    path.chmod(0o622)
    with pytest.raises(KeyFileError, match="chmod 600"):
        KeyRing(path).owner_of(key.reveal())


def test_a_file_that_is_a_folder_is_an_error(ring: KeyRing, path: Path):
    path.mkdir(parents=True)
    with pytest.raises(KeyFileError, match="cannot be read"):
        ring.owner_of("tml-x")


# ---- many at once


def test_threads_and_processes_lose_no_key(ring: KeyRing, path: Path):
    program = (
        "import sys; from pathlib import Path; from tinkex.server.keys import KeyRing\n"
        "ring = KeyRing(Path(sys.argv[1]))\n"
        "for n in range(5): print(ring.add(f'{sys.argv[2]}-{n}', 'ann')[1].reveal())"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(path), f"p{n}"], stdout=subprocess.PIPE, text=True
        )
        for n in range(3)
    ]
    found: list[Secret] = []
    threads = [
        threading.Thread(target=lambda n=n: found.extend(ring.add(f"t{n}-{m}", "ann")[1] for m in range(5)))
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for child in children:
        found += map(Secret, child.communicate()[0].split())
        assert child.returncode == 0
    assert len(found) == 30
    assert sorted(info.id for info in ring.list()) == list(range(1, 31))
    assert all(ring.owner_of(key.reveal()) is not None for key in found)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 1), st.integers(0, 4)),
        st.tuples(st.just("revoke"), st.integers(0, 1), st.integers(0, 12)),
        st.tuples(st.just("revoke_key"), st.integers(0, 1), st.integers(0, 12)),
        st.tuples(st.just("damage"), st.integers(0, 1), st.integers(0, 200)),
    ),
    max_size=14,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_two_rings_over_one_file_always_agree_with_what_was_done(
    steps: list[tuple[str, int, int]], tmp_path_factory: pytest.TempPathFactory
):
    path = tmp_path_factory.mktemp("ring") / "keys.json"
    rings = KeyRing(path), KeyRing(path)
    made: list[tuple[KeyInfo, Secret]] = []
    live: set[int] = set()
    for action, who, number in steps:
        ring = rings[who]
        if action == "add":
            name = f"name{number}"
            if any(info.name == name and info.id in live for info, _ in made):
                with pytest.raises(KeysError):
                    ring.add(name, "ann")
            else:
                made.append(ring.add(name, f"owner{number}"))
                live.add(made[-1][0].id)
        elif action == "revoke" and number + 1 in live:
            assert ring.revoke(number + 1).id == number + 1
            live.discard(number + 1)
        elif action == "revoke_key" and number < len(made):
            gone = ring.revoke_key(made[number][1].reveal())
            assert (gone is not None) == (made[number][0].id in live)
            live.discard(made[number][0].id)
        elif action == "damage" and path.exists():
            good = path.read_bytes()
            path.write_bytes(good[: min(number, len(good) - 1)])
            for each in rings:
                with pytest.raises(KeyFileError):
                    each.owner_of("tml-x")
            path.write_bytes(good)
        for each in rings:
            for info, key in made:
                assert each.owner_of(key.reveal()) == (info if info.id in live else None)
            assert [info.id for info in each.list()] == [info.id for info, _ in made]


@settings(max_examples=100, deadline=None)
@given(credential=st.text(max_size=60))
def test_no_text_opens_anything_by_chance(credential: str, tmp_path_factory: pytest.TempPathFactory):
    ring = KeyRing(tmp_path_factory.getbasetemp() / "chance" / "keys.json")
    if not ring.list():
        ring.add("only", "ann")
    assert ring.owner_of(credential) is None
    assert ring.owner_of(f"tml-{credential}") is None
