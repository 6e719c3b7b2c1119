"""`tinkex doctor`: what it finds, and what it says where something is wrong."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.matrix.serving import Served
from tinkex.cli.diagnosis import disk, installed, machine, models
from tinkex.testing import make_tiny_model

from .conftest import MISSING, Command, Fake

PROJECT = tomllib.loads((Path(__file__).parent.parent.parent / "pyproject.toml").read_text())["project"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: None)  # PyTorch takes its time; one test waits


def statuses(data) -> dict[str, str]:
    return {check["name"]: check["status"] for check in data["checks"]}


def test_all_is_well(real: Command, served: Served):
    done = real("doctor", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.data["ok"] is True
    found = statuses(done.data)
    assert {name for name, status in found.items() if status == "ok"} >= {
        "python", "tinkex", "client", "tokenizers", "disk", "models", "key", "server", "base models"
    }  # fmt: skip
    table = real("doctor").out
    assert f"{served.url} answers" in table
    assert re.search(r"^ok    base models   tiny/model$", table, re.MULTILINE)
    assert real("doctor", "-q").out == ""


def test_a_device_is_found(real: Command, monkeypatch: pytest.MonkeyPatch):
    if MISSING:
        pytest.skip("there is no PyTorch here")
    monkeypatch.undo()
    check = next(iter(machine.checks()))
    assert check.status == "ok"
    assert "torch" in check.message


def test_without_pytorch(cli: Command):
    check = next(iter(machine.checks()))
    assert check.status == "warn"
    assert "tinkex[server]" in check.hint


def test_a_broken_pytorch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "find_spec", lambda name: object())
    monkeypatch.setattr(machine, "_PROGRAM", "raise ImportError('libcuda is missing')")
    check = next(iter(machine.checks()))
    assert check.status == "fail"
    assert "libcuda is missing" in check.message


def test_nobody_needs_a_server(cli: Command):
    done = cli("doctor", "--json")
    assert done.code == 0
    assert statuses(done.data)["key"] == "warn"
    assert "server" not in statuses(done.data)
    assert "key" not in statuses(cli("doctor", "--offline", "--json").data)


def test_a_server_that_is_not_there(cli: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    done = cli("doctor", "--base-url", "http://127.0.0.1:9")
    assert done.code == 1
    assert re.search(r"^fail  server .*no answer from http://127.0.0.1:9", done.out, re.MULTILINE)
    assert "`tinkex serve` starts one" in done.out
    assert done.err == "tinkex: 1 of " + done.err.partition("1 of ")[2]
    done = cli("doctor", "--base-url", "http://127.0.0.1:9", "--json")
    assert (done.code, done.data["ok"]) == (1, False)
    assert done.problem["exit_code"] == 1
    assert cli("doctor", "--base-url", "http://127.0.0.1:9", "-q").out == "server\n"


def test_a_key_that_is_not_taken(real: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-wrong")
    done = real("doctor", "--json")
    assert done.code == 1
    assert (statuses(done.data)["server"], statuses(done.data)["access"]) == ("ok", "fail")
    monkeypatch.delenv("TINKER_API_KEY")
    assert statuses(real("doctor", "--json").data)["key"] == "fail"


def test_a_server_that_fails(fake: Fake):
    with fake.service.faults.add("get_server_capabilities", status=500):
        assert statuses(fake("doctor", "--json").data)["server"] == "fail"


@pytest.mark.parametrize(("free", "status"), [(1 << 20, "fail"), (1 << 30, "warn"), (1 << 40, "ok")])
def test_room_on_disk(home: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: str):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=free))
    (check,) = disk.checks()
    assert check.status == status
    assert bool(check.hint) is (status != "ok")


def test_models_on_the_shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TINKEX_MODELS", f"{tmp_path / 'shelf'}:{tmp_path / 'nowhere'}")
    make_tiny_model(tmp_path / "shelf" / "good")
    bare = tmp_path / "shelf" / "bare"
    bare.mkdir()
    (bare / "config.json").write_text("{}")
    broken = make_tiny_model(tmp_path / "shelf" / "broken")
    (broken / "model.safetensors.index.json").write_text('{"weight_map": {"a": "part-2.safetensors"}}')
    damaged = make_tiny_model(tmp_path / "shelf" / "damaged")
    (damaged / "config.json").write_text("{")
    found = {check.message.split()[0].rstrip(":"): check for check in models.checks()}
    assert found["good"].status == "ok"
    assert found["bare"].message == "bare lacks weights (*.safetensors), a tokenizer"
    assert "part-2.safetensors" in found["broken"].message
    assert found["damaged"].status == "fail"
    assert found[str(tmp_path / "nowhere")].status == "warn"


@pytest.mark.parametrize(
    ("version", "status"), [((3, 10, 1), "fail"), ((3, 11, 0), "ok"), ((3, 99, 0), "warn")]
)
def test_pythons(monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], status: str):
    monkeypatch.setattr(sys, "version_info", version)
    assert installed._python().status == status


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(installed, "_version", lambda name: None if name in ("numpy", "torch") else "1.0")
    found = {check.name: check for check in installed.checks()}
    assert (found["client"].status, found["client"].message) == ("fail", "numpy is not installed")
    assert (found["server extra"].status, found["tokenizers"].status) == ("warn", "ok")


def names(requirements: list[str]) -> set[str]:
    found = set()
    for each in requirements:
        name = re.match(r"[\w-]+", each)
        assert name is not None
        if ";" not in each:  # not on every platform
            found.add(name[0])
    return found


def test_the_lists_are_those_of_the_project():
    assert set(installed.CLIENT) == names(PROJECT["dependencies"])
    extras = PROJECT["optional-dependencies"]
    assert set(installed.TOKENIZERS) == names(extras["tokenizers"])
    assert set(installed.SERVER) == names(extras["server"])
    lowest, _, highest = PROJECT["requires-python"].partition(",<")
    assert lowest == f">={'.'.join(map(str, installed.OLDEST))}"
    assert highest == f"{installed.NEWEST[0]}.{installed.NEWEST[1] + 1}"
