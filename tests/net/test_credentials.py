"""Where a credential comes from, and the login file both SDKs share."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from tinker.lib import credentials as official

from tinkex.config import Config, Secret
from tinkex.errors import TinkerError
from tinkex.net import credentials
from tinkex.net.credentials import CredentialStore, StoredKey, find_credential, is_jwt, run_command

JWT = "eyJhbGciOiJub25lIn0.e30."
DETAILS = {"org_details": {"name": "Org"}, "user_details": {"email": "me@example.com"}}


def printing(text: str, code: int = 0) -> str:
    """A shell command that prints this."""
    return f'"{sys.executable}" -c "import sys; sys.stdout.write({text!r}); sys.exit({code})"'


def config(**settings: Any) -> Config:
    return Config.resolve(environ={}, **settings)


# ---- the order


def test_a_key_comes_first_then_a_command_then_the_login(tmp_path: Path) -> None:
    store = CredentialStore(tmp_path / "credentials.json")
    store.save(StoredKey("a", Secret("tml-stored")))
    command = printing("tml-printed")
    assert find_credential(config(api_key="tml-k", credential_command=command), store).reveal() == "tml-k"
    assert find_credential(config(api_key=JWT, credential_command=command), store).reveal() == JWT
    assert find_credential(config(credential_command=command), store).reveal() == "tml-printed"
    # A key that cannot be one gives way to the command, if there is one.
    assert (
        find_credential(config(api_key="odd", credential_command=command), store).reveal() == "tml-printed"
    )
    assert find_credential(config(), store).reveal() == "tml-stored"


def test_a_key_that_cannot_be_one_is_refused_and_not_quoted(tmp_path: Path) -> None:
    store = CredentialStore(tmp_path / "credentials.json")
    with pytest.raises(TinkerError, match="tml-") as caught:
        find_credential(config(api_key="sk-hush-hush"), store)
    assert "hush" not in str(caught.value)
    store.save(StoredKey("a", Secret("sk-hush-hush")))
    with pytest.raises(TinkerError, match="tml-") as caught:
        find_credential(config(), store)
    assert "hush" not in str(caught.value)


def test_without_any_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TinkerError, match=r"TINKER_API_KEY.*auth login"):
        find_credential(config(), CredentialStore(tmp_path / "credentials.json"))


def test_tokens_are_told_from_keys() -> None:
    assert is_jwt(JWT)
    assert not is_jwt("tml-eyJ")


# ---- commands


def test_what_a_command_prints_is_trimmed() -> None:
    assert run_command(printing("\n  tml-printed \n")).reveal() == "tml-printed"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (printing("tml-hush-hush", 3), "exit code 3"),
        (printing(""), "exit code 0"),
        (printing("   \n"), "exit code 0"),
        ("exit 5", "exit code 5"),
        ("no-such-program-4711", "exit code"),
    ],
)
def test_a_command_that_fails_is_reported_without_its_output(command: str, reason: str) -> None:
    with pytest.raises(TinkerError, match=reason) as caught:
        run_command(command)
    assert "hush" not in str(caught.value)


def test_a_command_that_prints_no_text_is_no_crash() -> None:
    code = "import sys; sys.stdout.buffer.write(bytes([255, 254]))"
    assert run_command(f'"{sys.executable}" -c "{code}"').reveal()


def test_a_command_cannot_read_from_the_terminal() -> None:
    code = "import sys; print('tml-' + str(len(sys.stdin.read())))"
    assert run_command(f'"{sys.executable}" -c "{code}"').reveal() == "tml-0"


def test_a_command_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_COMMAND_SECONDS", 0.2)
    with pytest.raises(TinkerError, match="took more than"):
        run_command(f'exec "{sys.executable}" -c "import time; time.sleep(30)"')


# ---- the login file


@pytest.mark.skipif(os.name != "posix", reason="modes are a matter of POSIX")
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_file_and_its_folder_are_for_their_owner_alone(tmp_path: Path, umask: int) -> None:
    store = CredentialStore(tmp_path / "new" / "credentials.json")
    before = os.umask(umask)
    try:
        store.save(StoredKey("a", Secret("tml-a")))
        store.save(StoredKey("b", Secret("tml-b")))
    finally:
        os.umask(before)
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700
    assert list(store.path.parent.iterdir()) == [store.path], "nothing is left beside it"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CredentialStore(tmp_path / "credentials.json")
    store.save(StoredKey("a", Secret("tml-a")))
    before = store.path.read_bytes()

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(credentials.json, "dump", fails)
    with pytest.raises(OSError, match="no space"):
        store.save(StoredKey("b", Secret("tml-b")))
    assert store.path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [store.path]


def test_the_latest_key_is_the_default_and_removing_it_promotes_no_other(tmp_path: Path) -> None:
    store = CredentialStore(tmp_path / "credentials.json")
    assert store.default() is None
    assert store.remove_default() is None
    store.save(StoredKey("a", Secret("tml-a"), name="first"))
    store.save(StoredKey("b", Secret("tml-b"), name="second", note="work", details=DETAILS))
    held = store.default()
    assert held == StoredKey("b", Secret("tml-b"), "second", "manual", "work", DETAILS)
    removed = store.remove_default()
    assert removed == held
    assert store.default() is None
    assert set(json.loads(store.path.read_text())["keys"]) == {"a"}


@pytest.mark.parametrize("content", ["{", "\0", '"text'])
def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path, content: str) -> None:
    store = CredentialStore(tmp_path / "credentials.json")
    store.path.write_text(content)
    with pytest.raises(TinkerError, match=r"credentials\.json"):
        store.default()


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        {"default": "a"},
        {"default": "a", "keys": []},
        {"default": "b", "keys": {"a": {"key": "tml-a"}}},
        {"default": "a", "keys": {"a": "tml-a"}},
        {"default": "a", "keys": {"a": {"key": 4711}}},
        {"default": None, "keys": {"a": {"key": "tml-a"}}},
    ],
)
def test_a_file_without_a_usable_key_counts_as_none(tmp_path: Path, content: Any) -> None:
    store = CredentialStore(tmp_path / "credentials.json")
    store.path.write_text(json.dumps(content))
    assert store.default() is None


def test_a_stored_key_does_not_show_itself() -> None:
    assert "hush" not in repr(StoredKey("a", Secret("tml-hush")))


def test_a_machine_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(TinkerError, match="home directory"):
        find_credential(config())


# ---- the official SDK reads what we write, and the reverse


def test_the_official_sdk_reads_what_we_write(tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    ours = CredentialStore(path)
    ours.save(StoredKey("a", Secret("tml-a"), name="plain"))
    ours.save(StoredKey("b", Secret("tml-b"), name="full", note="work — ü", details=DETAILS))
    theirs = official.JsonCredentialStore(path)
    assert theirs.get_default_key_id() == "b"
    default = theirs.get_default_key()
    assert isinstance(default, official.ManualKey)
    assert (default.key, default.name, default.note) == ("tml-b", "full", "work — ü")
    assert default.details is not None
    assert default.details.model_dump() == DETAILS
    plain = theirs.get_key("a")
    assert plain is not None
    assert plain.key == "tml-a"
    ours.remove_default()
    assert theirs.get_default_key() is None
    assert theirs.get_key("a") is not None


def test_we_read_what_the_official_sdk_writes(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "credentials.json"
    theirs = official.JsonCredentialStore(path)
    details = official.ApiKeyDetails.model_validate(DETAILS)
    theirs.add_key("m", official.ManualKey(key="tml-m", name="mine", note="n", details=details))
    theirs.add_key("g", official.GeneratedKey(key="tml-g", name="made", details=details))
    ours = CredentialStore(path)
    assert ours.default() is None
    theirs.set_default("m")
    assert ours.default() == StoredKey("m", Secret("tml-m"), "mine", "manual", "n", DETAILS)
    theirs.set_default("g")
    assert ours.default() == StoredKey("g", Secret("tml-g"), "made", "generated", None, DETAILS)
    ours.save(StoredKey("x", Secret("tml-x"), name="new"))
    assert theirs.get_default_key_id() == "x"
    kept = theirs.get_key("g")
    assert isinstance(kept, official.GeneratedKey)
    assert kept.details == details
    assert sorted(json.loads(path.read_text())) == ["default", "keys", "version"]
