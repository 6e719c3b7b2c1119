"""`tinkex conformance`: what it prints, in which form, and what it exits with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tinkex.cli import conformance
from tinkex.cli.main import Parser
from tinkex.conformance.suite import all_checks
from tinkex.testing import FakeServer, FakeService

from .running import run, spawn

KEY = "tml-somebody"
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(FakeService(models=["a/model", "b/model"], api_keys=[KEY])) as running:
        yield running


def check(capsys: pytest.CaptureFixture[str], server: FakeServer, *words: str):
    return run(capsys, "conformance", "--base-url", server.base_url, "--api-key", KEY, *words)


def test_a_table_with_a_row_for_each_check(capsys: pytest.CaptureFixture[str], server: FakeServer):
    done = check(capsys, server, "--only", "wire/0.2", "--only", "wire/2.1/capabilities")
    assert done.code == 0
    assert done.err == ""
    head, *rows, _, summary = done.out.splitlines()
    assert head.split() == ["CHECK", "RESULT", "WHAT", "WAS", "SEEN"]
    assert [row.split()[:2] for row in rows] == [
        ["wire/0.2/client-config", "pass"],
        ["wire/0.2/dynamic-config", "pass"],
        ["wire/2.1/capabilities", "pass"],
    ]
    assert rows[2].endswith("a/model, b/model")
    assert summary.startswith("3 passed, 0 failed, 0 skipped in ")
    assert summary.endswith(f"{server.base_url} with a/model")


def test_a_failure_is_a_row_in_capitals_and_exit_code_1(
    capsys: pytest.CaptureFixture[str], server: FakeServer
):
    server.service.faults.add("health", status=500)
    done = check(capsys, server, "--only", "wire/2.1/health")
    assert done.code == 1
    row = done.out.splitlines()[1]
    assert row.split()[:2] == ["wire/2.1/health", "FAIL"]
    assert "HTTP 500" in row


def test_json_is_one_document(capsys: pytest.CaptureFixture[str], server: FakeServer):
    done = check(capsys, server, "--json", "--model", "b/model", "--only", "token-sum")
    assert done.code == 0
    assert done.data["model"] == "b/model"
    assert (done.data["passed"], done.data["failed"], done.data["skipped"]) == (0, 0, 1)
    (one,) = done.data["checks"]
    assert one["check"] == "numerics/6.4/token-sum"
    assert one["result"] == "skip"
    assert "no grad_norm is reported" in one["seen"]
    assert one["title"].startswith("Losses are sums over tokens")


def test_quietly_only_failures_are_named(capsys: pytest.CaptureFixture[str], server: FakeServer):
    server.service.faults.add("health", status=500)
    done = check(capsys, server, "--quiet", "--only", "wire/2.1/*")
    assert done.code == 1
    assert [line.partition(":")[0] for line in done.out.splitlines()] == ["wire/2.1/health"]
    assert check(capsys, server, "--quiet", "--only", "wire/2.1/capabilities").out == ""


def test_the_list_needs_no_server(capsys: pytest.CaptureFixture[str]):
    done = run(capsys, "conformance", "--list", "--json")
    assert done.code == 0
    assert [each["check"] for each in done.data["checks"]] == [each.name for each in all_checks()]
    assert {each["check"] for each in done.data["checks"] if each["slow"]} >= {"wire/5.1/pending"}


def test_a_pattern_that_fits_nothing_is_a_mistake(capsys: pytest.CaptureFixture[str], server: FakeServer):
    done = check(capsys, server, "--only", "nothing")
    assert done.code == 2
    assert "no check has nothing in its name" in done.err


def test_a_wrong_key_is_told_in_one_line(capsys: pytest.CaptureFixture[str], server: FakeServer):
    done = run(capsys, "conformance", "--base-url", server.base_url, "--api-key", "tml-wrong")
    assert done.code == 1
    assert len(done.err.splitlines()) == 1
    assert "does not accept the API key" in done.err
    assert "tml-wrong" not in done.err


def test_a_server_that_is_not_there_is_told_in_one_line():
    done = spawn("conformance", "--base-url", "http://127.0.0.1:1", "--api-key", "tml-x")
    assert done.code == 1
    assert len(done.err.splitlines()) == 1
    assert "127.0.0.1:1" in done.err


def test_a_server_without_models_wants_one_named(capsys: pytest.CaptureFixture[str]):
    with FakeServer(FakeService(models=[], api_keys=[KEY])) as server:
        done = check(capsys, server)
    assert done.code == 1
    assert "say which with --model" in done.err


def test_address_and_key_may_come_from_the_environment(
    capsys: pytest.CaptureFixture[str], server: FakeServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TINKER_BASE_URL", server.base_url)
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    done = run(capsys, "conformance", "--only", "wire/1.3/key")
    assert (done.code, done.err) == (0, "")


def test_every_option_on_the_page_exists():
    page = (ROOT / "docs" / "conformance.md").read_text()
    parser = Parser()
    conformance.register(parser)
    known = {word for action in parser._actions for word in action.option_strings}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page))
    assert len(named) > 6
    assert named <= known


def test_the_checks_shown_on_the_page_exist():
    page = (ROOT / "docs" / "conformance.md").read_text()
    shown = re.findall(r"^((?:journey|wire|numerics)/\S+)", page, re.MULTILINE)
    assert len(shown) == 4
    assert {*shown} <= {each.name for each in all_checks()}
