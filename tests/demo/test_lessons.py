"""The demo on a real server with the embedded model: it learns, and says so in figures that hold."""

from __future__ import annotations

import io
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import tinkex
from tests.cli.fitting import misfits
from tests.cli.running import Ran, run, spawn
from tinkex.cli.main import parser_of
from tinkex.cli.reaching import chat_command
from tinkex.client.local_server import NEEDED
from tinkex.demo.lessons import Plan, teach
from tinkex.demo.measuring import answers
from tinkex.demo.screen import Screen
from tinkex.testing import FakeServer, FakeService

MISSING = [name for name in NEEDED if find_spec(name) is None]
needs_engine = pytest.mark.skipif(bool(MISSING), reason=f"a server needs {', '.join(MISSING)}")
SHORT = Plan(sft_steps=36, sft_held_out=24, rl_steps=12, rl_held_out=34, seed=1)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tinkex.ServiceClient]:
    if MISSING:
        pytest.skip(f"a server needs {', '.join(MISSING)}")
    state = tmp_path_factory.mktemp("state")
    with tinkex.ServiceClient.local("nano", state=state, telemetry=False) as local:
        yield local


def test_a_short_supervised_lesson_is_learned(client: tinkex.ServiceClient):
    stream = io.StringIO()
    lesson = teach(client, "sft", SHORT, Screen(stream, live=False))
    assert len(lesson.curve) == 36
    assert lesson.curve[-1] < lesson.curve[0] / 2
    assert lesson.change.samples == 24
    assert lesson.change.low > 0.6
    assert lesson.change.low <= lesson.change.change <= lesson.change.high
    assert lesson.change.after == pytest.approx(lesson.change.before * (1 - lesson.change.change))
    assert sum("Arr, matey!" in each.after for each in lesson.shown) >= 3
    assert not [each for each in lesson.shown if "Arr" in each.before]
    assert f"step  36/36  loss per token {lesson.curve[-1]:.3f}" in stream.getvalue()
    # What was saved is what was shown.
    sampler = client.create_sampling_client(model_path=lesson.checkpoint)
    asked = [each.question for each in lesson.shown]
    assert answers(sampler, asked) == [each.after for each in lesson.shown]


@pytest.mark.slow
def test_a_short_reinforcement_lesson_is_learned(client: tinkex.ServiceClient):
    lesson = teach(client, "rl", SHORT, Screen(io.StringIO(), live=False))
    assert len(lesson.curve) == 12
    assert all(0 <= value <= 1 for value in lesson.curve)
    assert lesson.change.samples >= 256
    assert lesson.change.change > 0
    assert lesson.change.low > 0
    for each in lesson.shown:
        a, b = map(int, each.question.removeprefix("What is ").removesuffix("?").split(" + "))
        for answer in f"{each.before}, {each.after}".split(", "):
            assert answer.endswith(" ✓") == (answer.removesuffix(" ✓") == str(a + b))
    assert lesson.change.change == pytest.approx(lesson.change.after - lesson.change.before)
    assert all(len(each.before.split(", ")) == 4 for each in lesson.shown)


# ---- the command


def test_the_code_is_shown_without_a_server(capsys: pytest.CaptureFixture[str]):
    both = run(capsys, "demo", "--show-code")
    assert (both.code, both.err) == (0, "")
    assert both.out.count("def train(") == 2
    only = run(capsys, "demo", "--show-code", "--task", "rl", "--json")
    assert list(only.data["code"]) == ["rl"]
    assert misfits(only.data, parser_of("demo").shape) == []
    compile(only.data["code"]["rl"], "rl_loop.py", "exec")


@pytest.mark.parametrize("out", [".", "no-such-folder/report.html"])
def test_a_report_that_cannot_be_written_is_said_first(capsys: pytest.CaptureFixture[str], out: str):
    done = run(capsys, "demo", "--out", out)
    assert (done.code, done.out) == (1, "")
    assert "cannot be written" in done.err


def test_another_task_is_not_understood(capsys: pytest.CaptureFixture[str]):
    assert run(capsys, "demo", "--task", "dpo").code == 2


@needs_engine
def test_a_model_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    done = run(capsys, "demo", "--model", "nope", "--out", str(tmp_path / "x.html"), "--json")
    assert done.code == 1
    assert "'nope'" in done.problem["error"]
    assert "nano" in done.problem["error"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("local", "nano"), "tinkex chat --base-url local --checkpoint tinker://x"),
        (("local", "/my models/a"), "TINKEX_MODEL='/my models/a' tinkex chat --base-url local"),
        (("http://a:1", "big"), "tinkex chat --base-url http://a:1 --checkpoint tinker://x"),
        ((None, "big"), "tinkex chat --checkpoint tinker://x"),
    ],
)
def test_the_result_is_talked_to_where_it_is(
    words: tuple[str | None, str], said: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("TINKEX_MODEL", raising=False)
    monkeypatch.setenv("TINKER_BASE_URL", "http://b:1")
    assert chat_command(*words, "tinker://x").startswith(said)
    monkeypatch.setenv("TINKER_BASE_URL", "local")
    monkeypatch.setenv("TINKEX_MODEL", "big,small")
    assert chat_command(None, "small", "tinker://x") == "tinkex chat --checkpoint tinker://x"
    assert chat_command(None, "nano", "tinker://x").startswith("TINKEX_MODEL=nano tinkex chat --ch")


def test_a_server_that_does_not_answer_is_told_at_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
    with FakeServer(FakeService()) as server:
        where = server.base_url
    done = run(capsys, "demo", "--base-url", where, "--out", str(tmp_path / "x.html"), "--json")
    assert (done.code, done.out) == (1, "")
    assert f"no answer from {where}" in done.problem["error"]


@pytest.mark.slow
@needs_engine
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_demo_as_it_is_keeps_its_promise(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    report = tmp_path / "report.html"
    done: Ran = spawn("demo", "--seed", str(seed), "--out", str(report), "--json")
    assert (done.code, done.err) == (0, "")
    assert misfits(done.data, parser_of("demo").shape) == []
    sft, rl = done.data["lessons"]
    assert sft["change"]["change"] >= 0.6
    assert sft["change"]["low"] > 0
    assert rl["change"]["change"] >= 0.2
    assert rl["change"]["low"] > 0
    assert rl["change"]["samples"] >= 256
    page = report.read_text("utf-8")
    for lesson in (sft, rl):
        assert f"{lesson['change']['after']:.2f}" in page or f"{lesson['change']['after']:.0%}" in page
        assert lesson["checkpoint"] in page
