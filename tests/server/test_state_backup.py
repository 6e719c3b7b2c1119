"""Backups of a state folder: consistent while it changes, whole when they come back, and nothing else."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sqlite3
import tarfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinkex.server import state_archive
from tinkex.server.keys import KeyRing
from tinkex.server.records import CheckpointRow
from tinkex.server.state_archive import LIST, BadArchive
from tinkex.server.state_backup import export_state, import_state
from tinkex.server.state_check import NoState, check
from tinkex.server.state_compact import compact
from tinkex.server.state_folder import StateFolder
from tinkex.server.store import Delete, Put

from .made_states import CHECKPOINT, RUN, SNAPSHOT, add_checkpoints, changed, make_state, put_weights
from .rows import checkpoint, model, session

NOW = 1_800_000_000.0
posix = pytest.mark.skipif(os.name == "nt", reason="modes and locks of POSIX")
FORMS = pytest.mark.parametrize("name", ["backup.tar", "backup"])


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return make_state(tmp_path / "state")


def dump(state: Path) -> list[str]:
    database = sqlite3.connect(state / "store" / "store.db")
    try:
        return list(database.iterdump())
    finally:
        database.close()


def files(state: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(state)): path.read_bytes()
        for path in state.rglob("*")
        if path.is_file() and not path.name.endswith("lock") and not path.name.startswith("store.db")
    }


# ---- there and back


@FORMS
def test_what_comes_back_is_what_was_there(state: Path, tmp_path: Path, name: str):
    before = dump(state), files(state)
    done = export_state(state, tmp_path / name, NOW)
    assert (dump(state), files(state)) == before
    back = tmp_path / "back"
    again = import_state(tmp_path / name, back)
    assert (dump(back), files(back)) == before
    assert again.contents == done.contents
    assert check(back).findings == []
    assert list((state / "tmp").iterdir()) == []


@FORMS
def test_checkpoints_of_every_name_come_back(state: Path, tmp_path: Path, name: str):
    folders = add_checkpoints(state, [f"{first}best" for first in "aZ0_.:=@+,~-"])
    export_state(state, tmp_path / name, NOW)
    import_state(tmp_path / name, tmp_path / "back")
    assert all((tmp_path / "back" / folder / "adapter.safetensors").is_file() for folder in folders)


@posix
@FORMS
def test_nobody_else_can_read_a_backup(state: Path, tmp_path: Path, name: str):
    export_state(state, tmp_path / name, NOW)
    assert (tmp_path / name).stat().st_mode & 0o077 == 0


def test_a_plain_tar_unpacks_it_too(state: Path, tmp_path: Path):
    export_state(state, tmp_path / "b.tar", NOW)
    with tarfile.open(tmp_path / "b.tar") as tar:
        assert tar.getnames()[-1] == LIST
        tar.extractall(tmp_path / "by-hand", filter="data")
    listed = json.loads((tmp_path / "by-hand" / LIST).read_bytes())["files"]
    assert CHECKPOINT + "/adapter.safetensors" in listed
    for name, facts in listed.items():
        data = (tmp_path / "by-hand" / name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (facts["size"], facts["sha256"])


def test_secrets_leftovers_and_caches_stay_behind(state: Path, tmp_path: Path):
    for place in ("token-secret", "download-secret", "exports/x/y", "traces/t.json", "local/key"):
        (state / place).parent.mkdir(parents=True, exist_ok=True)
        (state / place).write_text("not for others")
    put_weights(state / "snapshots" / "x%3Atrain%3A0" / "7")
    _, key = KeyRing(state / "keys.json").add("bob", "bob")
    contents = export_state(state, tmp_path / "b.tar", NOW).contents
    rooms = {name.partition("/")[0] for name in contents.files}
    assert rooms == {"keys.json", "samples.log", "store", "checkpoints", "snapshots", "engine"}
    assert not any("x%3A" in name for name in contents.files)
    whole = (tmp_path / "b.tar").read_bytes()
    assert b"not for others" not in whole
    assert key.reveal().encode() not in whole
    import_state(tmp_path / "b.tar", tmp_path / "back")
    assert KeyRing(tmp_path / "back" / "keys.json").owner_of(key.reveal()) is not None


def test_nothing_is_written_over(state: Path, tmp_path: Path):
    (tmp_path / "b.tar").write_text("mine")
    with pytest.raises(NoState, match="exists"):
        export_state(state, tmp_path / "b.tar", NOW)
    assert (tmp_path / "b.tar").read_text() == "mine"
    with pytest.raises(NoState, match="inside the state folder"):
        export_state(state, state / "b.tar", NOW)
    export_state(state, tmp_path / "c.tar", NOW)
    with pytest.raises(NoState, match="is not empty"):
        import_state(tmp_path / "c.tar", state)
    with pytest.raises(NoState, match="there is no"):
        import_state(tmp_path / "d.tar", tmp_path / "back")
    assert check(state).clean


def test_a_damaged_folder_is_not_backed_up_as_if_it_were_whole(state: Path, tmp_path: Path):
    shutil.rmtree(state / SNAPSHOT)
    with pytest.raises(NoState, match="is damaged: snapshots/"):
        export_state(state, tmp_path / "b.tar", NOW)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state"]


@posix
def test_what_a_killed_export_held_is_let_go_of_by_the_next(state: Path, tmp_path: Path):
    with StateFolder(state):
        put_weights(state / "tmp" / "export-99999999-ab" / CHECKPOINT)
        put_weights(state / "tmp" / f"export-{os.getpid()}-cd" / CHECKPOINT)
        export_state(state, tmp_path / "b.tar", NOW)
        assert [path.name for path in (state / "tmp").iterdir()] == [f"export-{os.getpid()}-cd"]


@posix
def test_a_backup_of_a_folder_that_never_rests_is_of_one_moment(state: Path, tmp_path: Path):
    """Checkpoints come and go all the while: every backup has exactly the files its rows know."""
    going, made = threading.Event(), threading.Semaphore(0)

    def write() -> None:
        number = 10
        while not going.is_set():
            folder = f"checkpoints/{RUN.replace(':', '%3A')}/training/c-{number}"
            path = f"tinker://{RUN}/weights/c-{number}"
            size = put_weights(state / folder, number)
            changed(state, Put(checkpoint(path, folder=folder, size=size)))
            made.release()
            if number > 12:
                old = number - 3
                changed(state, Delete(CheckpointRow, f"tinker://{RUN}/weights/c-{old}"))
                shutil.rmtree(state / f"checkpoints/{RUN.replace(':', '%3A')}/training/c-{old}")
            number += 1

    with StateFolder(state):
        writer = threading.Thread(target=write)
        writer.start()
        try:
            for number in range(4):
                made.acquire()
                made.acquire()
                done = export_state(state, tmp_path / f"{number}.tar", NOW)
                assert done.rows.counts["checkpoints"] >= 2
        finally:
            going.set()
            writer.join()
    for number in range(4):
        import_state(tmp_path / f"{number}.tar", tmp_path / str(number))
        report = check(tmp_path / str(number))
        assert report.findings == []
        assert report.rows.counts["checkpoints"] >= 2


# ---- archives that are none


def rewritten(archive: Path, change: Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]) -> Path:
    """An archive with other entries, and the list as it was unless it is changed too."""
    with tarfile.open(archive) as tar:
        entries = [(entry, (tar.extractfile(entry) or io.BytesIO()).read()) for entry in tar]
    change(entries)
    target = archive.with_name(f"changed-{archive.name}")
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
        for entry, data in entries:
            if entry.isreg():
                entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return target


def listed_anew(entries: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    """Give entries a list that fits them."""
    entry, data = entries.pop()
    contents = json.loads(data)
    contents["files"] = {
        each.name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for each, data in entries
    }
    entries.append((entry, json.dumps(contents).encode()))


def renamed(name: str) -> Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]:
    def change(entries: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        entries[0][0].name = name
        listed_anew(entries)

    return change


def of_kind(kind: bytes, target: str = "") -> Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]:
    def change(entries: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        entry = tarfile.TarInfo(CHECKPOINT + "/x")
        entry.type, entry.linkname = kind, target
        entries.insert(0, (entry, b""))

    return change


def other_rows(*statements: str) -> Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]:
    def change(entries: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        (place,) = (at for at, (entry, _) in enumerate(entries) if entry.name == "store/store.db")
        database = sqlite3.connect(":memory:")
        database.deserialize(entries[place][1])
        for statement in statements:
            database.execute(statement)
        database.commit()
        entries[place] = entries[place][0], database.serialize()
        listed_anew(entries)

    return change


def flipped(entries: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    entry, data = entries[0]
    entries[0] = entry, data[:-1] + bytes([data[-1] ^ 1])


def twice(entries: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    entries.insert(0, entries[0])


def goes_on(entries: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    entries.append(entries[0])


def without_list(entries: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    del entries[-1]


def without_one(entries: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    del entries[0]


def without_one_and_its_line(entries: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    del entries[0]
    listed_anew(entries)


BAD: dict[str, tuple[Callable[[list[tuple[tarfile.TarInfo, bytes]]], None], str]] = {
    "up and out": (renamed("../out"), "no file of a state folder"),
    "up and out inside": (renamed("checkpoints/a/b/../../../../out"), "no file of a state folder"),
    "an absolute name": (renamed("/etc/passwd"), "no file of a state folder"),
    "a secret of one's own": (renamed("token-secret"), "no file of a state folder"),
    "a name with a zero": (renamed("store/bodies/a\0b"), "not what its list says"),
    "a link": (of_kind(tarfile.SYMTYPE, "/etc"), "no plain file"),
    "a hard link": (of_kind(tarfile.LNKTYPE, "../../keys.json"), "no plain file"),
    "a device": (of_kind(tarfile.CHRTYPE), "no plain file"),
    "a pipe": (of_kind(tarfile.FIFOTYPE), "no plain file"),
    "a folder": (of_kind(tarfile.DIRTYPE), "no plain file"),
    "a file that is not what it was": (flipped, "not what its list says"),
    "a file twice": (twice, "twice"),
    "something behind the list": (goes_on, "goes on after its list"),
    "no list": (without_list, "no list of its files"),
    "a file too few": (without_one, "not what its list says"),
    "a row too many": (without_one_and_its_line, "is not whole"),
    "a row that leads out": (other_rows("UPDATE checkpoints SET folder = '../../etc'"), "not one of ours"),
    "a body that leads out": (
        other_rows("UPDATE operations SET body_file = '../../x' WHERE body_file IS NOT NULL"), "is called",
    ),
    "a trigger": (
        other_rows("CREATE TRIGGER t AFTER INSERT ON models BEGIN DELETE FROM models; END"), "is not ours",
    ),
    "a newer version": (other_rows("INSERT INTO migrations VALUES ('later', 9)"), "newer version"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_bad_archive_is_refused_and_leaves_nothing(state: Path, tmp_path: Path, what: str):
    export_state(state, tmp_path / "b.tar", NOW)
    change, said = BAD[what]
    bad = rewritten(tmp_path / "b.tar", change)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(BadArchive, match=said):
        import_state(bad, tmp_path / "back")
    assert sorted(os.listdir(tmp_path)) == before


def test_a_bad_folder_is_refused_too(state: Path, tmp_path: Path):
    export_state(state, tmp_path / "backup", NOW)
    link = tmp_path / "backup" / CHECKPOINT / "linked"
    link.symlink_to("/etc/passwd")
    with pytest.raises(BadArchive, match="no plain file"):
        import_state(tmp_path / "backup", tmp_path / "back")
    link.unlink()
    (tmp_path / "backup" / CHECKPOINT / "more").write_text("x")
    with pytest.raises(BadArchive, match="not what its list says"):
        import_state(tmp_path / "backup", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_sizes_and_counts_are_bounded(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    export_state(state, tmp_path / "b.tar", NOW)
    monkeypatch.setattr(state_archive, "MOST_FILES", 3)
    with pytest.raises(BadArchive, match="larger than"):
        import_state(tmp_path / "b.tar", tmp_path / "back")
    monkeypatch.undo()
    with pytest.raises(BadArchive, match="larger than 100 bytes"):
        list(state_archive.members(tmp_path / "b.tar", 100))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    export_state(make_state(folder / "state"), folder / "b.tar", NOW)
    return folder / "b.tar"


def damaged(data: bytes, edits: Iterable[tuple[float, bytes]], keep: float) -> bytes:
    out = bytearray(data)
    for where, what in edits:
        at = int(where * len(out))
        out[at : at + len(what)] = what
    return bytes(out[: int(keep * len(out))])


@settings(max_examples=30, deadline=None)
@given(
    edits=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=24)), min_size=1, max_size=6),
    keep=st.floats(0, 1) | st.just(1.0),
)
def test_whatever_is_done_to_an_archive_it_comes_back_right_or_not_at_all(
    packed: Path, edits: list[tuple[float, bytes]], keep: float
):
    bad, back = packed.with_name("bad.tar"), packed.with_name("back")
    shutil.rmtree(back, ignore_errors=True)
    bad.write_bytes(damaged(packed.read_bytes(), edits, keep))
    try:
        import_state(bad, back)
    except BadArchive:
        assert not back.exists()
    else:
        assert files(back) == files(packed.with_name("state"))
        assert dump(back) == dump(packed.with_name("state"))


# ---- compact


def test_what_ended_long_ago_goes_and_what_is_needed_stays(state: Path):
    changed(
        state,
        Put(session("kept", status="finished", ended=2.0)),
        Put(model("kept:train:0", "kept", state="unloaded")),
        Put(checkpoint(f"tinker://{RUN}/weights/z", run_id="kept:train:0", folder=CHECKPOINT, size=0)),
    )
    put_weights(state / "snapshots" / "x%3Atrain%3A0" / "7")
    done = compact(state, NOW, older_than=30 * 86400.0)
    assert (done.rows["sessions"], done.rows["models"]) == (1, 1)
    assert done.rows["operations"] == 2  # those up to the snapshot
    assert done.leftovers == 1
    assert done.after < done.before
    report = check(state)
    assert report.findings == []
    assert report.rows.counts == {
        "sessions": 2, "models": 2, "samplers": 1, "checkpoints": 2, "operations": 1,
    }  # fmt: skip
    assert compact(state, NOW, older_than=30 * 86400.0).rows["sessions"] == 0


def test_what_ended_lately_stays(state: Path):
    changed(state, Put(session("old", status="finished", ended=NOW - 86400.0)))
    assert compact(state, NOW, older_than=30 * 86400.0).rows["sessions"] == 0
    assert compact(state, NOW, older_than=3600.0).rows["sessions"] == 1


@posix
def test_nothing_is_compacted_under_a_server_or_where_there_is_damage(state: Path):
    with StateFolder(state), pytest.raises(NoState, match="stop it"):
        compact(state, NOW, older_than=0.0)
    shutil.rmtree(state / SNAPSHOT)
    with pytest.raises(NoState, match="is damaged"):
        compact(state, NOW, older_than=0.0)
