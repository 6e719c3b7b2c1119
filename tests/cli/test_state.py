"""`tinkex state` as it is typed: what it prints, its documents, its exit codes."""

from __future__ import annotations

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


def test_the_default_is_the_server_s_own(cli: Command, state: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TINKEX_STATE", str(state))
    assert cli("state", "check", "--json").data["folder"] == str(state)
    monkeypatch.setenv("TINKEX_STATE", str(state / "nothing"))
    done = cli("state", "check")
    assert done.code == 1
    assert "is no state folder" in done.err
