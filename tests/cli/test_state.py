"""`tinkex state` as it is typed: what it prints, its documents, its exit codes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.server.made_states import CHECKPOINT, make_state, put_weights

from .conftest import Command


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return make_state(tmp_path / "state")


def test_a_whole_folder_is_said_to_be_whole(cli: Command, state: Path):
    done = cli("state", "check", str(state))
    assert (done.code, done.err) == (0, "")
    assert "2 sessions, 2 models, 1 sampler, 1 checkpoint, 3 operations" in done.out
    assert done.out.endswith("It is whole.\n")
    found = cli("state", "check", str(state), "--json").data
    assert (found["clean"], found["server"], found["findings"]) == (True, None, [])


def test_leftovers_are_listed_and_removed_on_demand(cli: Command, state: Path):
    put_weights(state / "snapshots" / "x%3Atrain%3A0" / "7")
    done = cli("state", "check", str(state))
    assert done.code == 1
    assert "snapshots/x%3Atrain%3A0/7" in done.out
    assert "1 finding in" in done.err
    assert "--fix" in done.err
    assert cli("state", "check", str(state), "--quiet").out == "snapshots/x%3Atrain%3A0/7\n"
    fixed = cli("state", "check", str(state), "--fix", "--json")
    assert fixed.code == 0
    assert fixed.data["removed"] == ["snapshots/x%3Atrain%3A0/7"]
    assert cli("state", "check", str(state)).code == 0


def test_damage_is_an_exit_code_of_1(cli: Command, state: Path):
    shutil.rmtree(state / CHECKPOINT)
    done = cli("state", "check", str(state), "--json")
    assert done.code == 1
    assert [(each["kind"], each["place"]) for each in done.data["findings"]] == [("damage", CHECKPOINT)]
    assert done.problem["exit_code"] == 1
    assert done.problem["hint"] == ""


@pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")
def test_what_others_may_read_is_not_said_to_be_left_over(cli: Command, state: Path):
    state.chmod(0o755)
    done = cli("state", "check", str(state), "--json")
    assert (done.code, [each["kind"] for each in done.data["findings"]]) == (1, ["access"])
    assert done.problem["hint"] == ""


def test_the_default_is_the_server_s_own(cli: Command, state: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TINKEX_STATE", str(state))
    assert cli("state", "check", "--json").data["folder"] == str(state)
    monkeypatch.setenv("TINKEX_STATE", str(state / "nothing"))
    done = cli("state", "check")
    assert done.code == 1
    assert "is no state folder" in done.err


@pytest.mark.parametrize("name", ["b.tar", "b"])
def test_a_backup_is_made_and_put_back(cli: Command, state: Path, tmp_path: Path, name: str):
    archive, back = tmp_path / name, tmp_path / "back"
    done = cli("state", "export", str(state), str(archive), "--json")
    assert done.code == 0
    assert done.data["files"] == 7
    again = cli("state", "import", str(archive), str(back), "--json")
    assert again.code == 0
    assert {**again.data, "folder": str(state)} == done.data
    assert cli("state", "check", str(back)).code == 0
    refused = cli("state", "import", str(archive), str(back))
    assert refused.code == 1
    assert "is not empty" in refused.err


def test_a_backup_is_told_to_be_private(cli: Command, state: Path, tmp_path: Path):
    done = cli("state", "export", str(state), str(tmp_path / "b.tar"))
    assert "7 files" in done.out
    assert "private" in done.out
    assert "are let in" in cli("state", "import", str(tmp_path / "b.tar"), str(tmp_path / "back")).out
    bad = tmp_path / "bad.tar"
    bad.write_bytes((tmp_path / "b.tar").read_bytes()[:5000])
    refused = cli("state", "import", str(bad), str(tmp_path / "other"))
    assert refused.code == 1
    assert "archive" in refused.err
    assert not (tmp_path / "other").exists()


def test_a_folder_is_compacted(cli: Command, state: Path):
    done = cli("state", "compact", str(state), "--json")
    assert done.code == 0
    assert done.data["rows"]["sessions"] == 1
    assert done.data["bytes_after"] <= done.data["bytes_before"]
    shown = cli("state", "compact", str(state), "--older-than", "0")
    assert "before" in shown.out
    assert "dropped no rows, removed 0 leftovers" in shown.out
    assert cli("state", "compact", str(state), "--older-than", "-1").code == 2
    assert cli("state", "compact", str(state), "--older-than", "nan").code == 2
