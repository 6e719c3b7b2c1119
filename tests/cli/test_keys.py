"""`tinkex keys` on real files."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tinkex.server.keys import KeyRing

from .running import Ran, run, spawn

DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@pytest.fixture
def keys(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    def command(*words: str) -> Ran:
        return run(capsys, "keys", *words, "--state", str(tmp_path))

    return command


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    return KeyRing(tmp_path / "keys.json")


def test_a_key_is_made_shown_once_and_taken_by_the_server(keys, ring: KeyRing):
    done = keys("add", "laptop", "--owner", "ann", "--note", "the old one")
    assert done.code == 0
    key, told = done.out.splitlines()
    info = ring.owner_of(key)
    assert info is not None
    assert (info.name, info.owner, info.note) == ("laptop", "ann", "the old one")
    assert "not shown again" in told
    assert str(ring.path) in told
    assert key not in told
    assert key not in keys("list").out
    assert key not in keys("list", "--json", "--all").out


def test_the_owner_is_the_name_unless_another_is_named(keys, ring: KeyRing):
    key = keys("add", "ann", "--quiet").out.strip()
    info = ring.owner_of(key)
    assert info is not None
    assert info.owner == "ann"


def test_a_new_key_as_json(keys, ring: KeyRing):
    done = keys("add", "laptop", "--json")
    assert done.code == 0
    assert set(done.data) == {"key", "id", "name", "owner", "hint", "created", "revoked", "note"}
    assert ring.owner_of(done.data["key"]) is not None
    assert DATE.fullmatch(done.data["created"])


def test_a_list_for_people_and_for_programs(keys):
    assert "tinkex keys add" in keys("list").out
    keys("add", "laptop", "--owner", "ann")
    keys("add", "phone", "--owner", "bob")
    keys("revoke", "phone")
    shown = keys("list")
    head, row = shown.out.splitlines()
    assert head.split() == ["ID", "NAME", "OWNER", "HINT", "CREATED", "NOTE"]
    assert row.split()[:3] == ["1", "laptop", "ann"]
    assert keys("list", "--quiet").out == "1\n"
    everything = keys("list", "--all", "--json").data["keys"]
    assert [(each["id"], each["revoked"] is None) for each in everything] == [(1, True), (2, False)]
    assert len(keys("list", "--all").out.splitlines()) == 3
    assert [each["id"] for each in keys("list", "--json").data["keys"]] == [1]


def test_a_revoked_key_is_let_in_no_more(keys, ring: KeyRing):
    key = keys("add", "laptop", "--quiet").out.strip()
    done = keys("revoke", "laptop")
    assert done.code == 0
    assert "#1 'laptop'" in done.out
    assert ring.owner_of(key) is None


def test_what_could_be_revoked_is_though_something_failed(keys, ring: KeyRing):
    for name in ("a", "b", "c"):
        keys("add", name)
    done = keys("revoke", "a", "nobody", "#3", "--json")
    assert done.code == 1
    assert [each["name"] for each in done.data["revoked"]] == ["a", "c"]
    assert [each["key"] for each in done.data["failed"]] == ["nobody"]
    assert "no key in use" in done.problem["error"]
    assert [info.revoked is None for info in ring.list()] == [False, True, False]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add", "two words"], "1 to 64 of the letters"),
        (["add", "7"], "could be taken for a key's id"),
        (["add", "x", "--owner", "a/b"], "owner 'a/b'"),
        (["revoke", "x"], "`tinkex keys list` shows them"),
    ],
)
def test_what_cannot_be_done_is_one_line(keys, words: list[str], said: str):
    done = keys(*words)
    assert (done.code, done.out) == (1, "")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_a_damaged_file_is_told_and_left_alone(keys, ring: KeyRing):
    ring.path.write_text("{")
    for words in (["list"], ["add", "x"], ["revoke", "x"]):
        done = keys(*words)
        assert done.code == 1
        assert f"{ring.path} is damaged" in done.err
    assert ring.path.read_text() == "{"


def test_the_state_folder_comes_from_the_environment(tmp_path: Path):
    done = spawn(
        "keys", "add", "laptop", "--json", environ={**os.environ, "TINKEX_STATE": str(tmp_path / "here")}
    )
    assert done.code == 0
    (entry,) = json.loads((tmp_path / "here" / "keys.json").read_text())["keys"]
    assert entry["name"] == "laptop"
