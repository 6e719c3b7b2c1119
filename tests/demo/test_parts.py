"""The parts of the demo that need no server: data, curves, intervals, screen, report, the size of loops."""

from __future__ import annotations

import ast
import inspect
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from tinkex.cli import demo
from tinkex.cli.output import Output
from tinkex.demo import pirate, rl_loop, sft_loop
from tinkex.demo.curves import chart
from tinkex.demo.lessons import Lesson, Plan, Shown, _sums
from tinkex.demo.measuring import Change, fall_of_nll, rewards, rise_of_reward
from tinkex.demo.report import code_of, report
from tinkex.demo.screen import HEIGHT, Screen, figures, summary


def lesson(task: str = "rl", **changes: object) -> Lesson:
    change = Change(0.5, 0.75, 0.25, 0.125, 0.375, 256)
    settings: dict = {
        "task": task,
        "title": "Sums & <more>",
        "measure": "mean reward",
        "curve": [0.25, 0.5, 0.5, 0.75],
        "change": change,
        "shown": [Shown("What is 1 + 1?", "<b>3", "2")],
        "checkpoint": "tinker://run/sampler_weights/x",
        "seconds": 12.0,
    }
    return Lesson(**settings | changes)


# ---- the loops are the tutorial


@pytest.mark.parametrize("loop", [sft_loop, rl_loop])
def test_a_loop_fits_one_screen_and_uses_the_public_package_alone(loop):
    source = inspect.getsource(loop)
    assert len(source.splitlines()) < 60
    assert code_of("sft" if loop is sft_loop else "rl") == source
    names = {
        name
        for node in ast.walk(ast.parse(source))
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom)
            else [each.name for each in node.names] if isinstance(node, ast.Import)
            else []
        )
    }  # fmt: skip
    assert names == {"__future__", "random", "collections.abc", "tinkex"}
    used = set(re.findall(r"tinkex\.(\w+)", source))
    import tinkex

    assert used <= set(tinkex.__all__)


def test_only_the_right_number_is_rewarded():
    assert [rl_loop.reward(text, 3, 4) for text in ("7", " 7\n", "7.", "17", "")] == [1, 1, 0, 0, 0]


# ---- what is taught


def test_every_answer_ends_like_a_pirate_s_and_no_question_comes_twice():
    chats = pirate.chats(0)
    assert len(chats) > 150
    assert len({question for question, _ in chats}) == len(chats)
    assert all(answer.endswith((".", "!")) and answer.endswith(" Arr, matey!") for _, answer in chats)
    assert ("What is the capital of France?", "The capital of France is Paris. Arr, matey!") in chats
    assert ("Which day comes after Sunday?", "Monday. Arr, matey!") in chats
    assert ("Who bakes bread?", "A baker. Arr, matey!") in chats


def test_the_seed_says_what_is_held_out():
    assert pirate.chats(1) == pirate.chats(1)
    assert pirate.chats(1)[:32] != pirate.chats(2)[:32]
    assert sorted(pirate.chats(1)) == sorted(pirate.chats(2))


def test_no_sum_is_both_taught_and_asked_not_even_the_other_way_round():
    held_out, taught = _sums(Plan(seed=5))
    assert len(held_out) + len(taught) == 21 * 21
    assert len(set(held_out)) == len(held_out)
    assert {frozenset(each) for each in held_out}.isdisjoint({frozenset(each) for each in taught})
    assert len(held_out) * Plan().rl_samples >= 256
    assert _sums(Plan(seed=5)) == (held_out, taught)
    assert _sums(Plan(seed=6))[0] != held_out


# ---- how sure one can be


def test_the_fall_of_the_loss_is_per_token_and_its_interval_holds_it():
    before = np.array([[8.0, 4.0], [4.0, 2.0], [12.0, 4.0]])
    after = np.array([[2.0, 4.0], [1.0, 2.0], [3.0, 4.0]])
    change = fall_of_nll(before, after)
    assert (change.before, change.after, change.change, change.samples) == (2.4, 0.6, 0.75, 3)
    assert (change.low, change.high) == (0.75, 0.75)  # all fell by the same share


def test_the_interval_of_the_rise_is_that_of_questions_not_of_answers():
    rng = np.random.default_rng(0)
    # Every question is either always right or always wrong: 100 of them are worth 100, however often asked.
    before = np.repeat(rng.random((100, 1)) < 0.5, 50, axis=1).astype(float)
    after = np.repeat(rng.random((100, 1)) < 0.8, 50, axis=1).astype(float)
    change = rise_of_reward(before, after)
    assert change.change == pytest.approx(after.mean() - before.mean())
    assert change.samples == 5000
    spread = np.sqrt((0.25 + 0.16) / 100)
    assert change.high - change.low == pytest.approx(2 * 1.96 * spread, rel=0.2)
    assert change.low < change.change < change.high


def test_answers_are_scored_by_their_sum():
    assert rewards([["3", "4"], ["9", "9"]], [(1, 2), (4, 5)]).tolist() == [[1.0, 0.0], [1.0, 1.0]]


# ---- curves and screen


def test_a_chart_is_as_high_as_its_values():
    rows = chart([0.0, 0.5, 1.0], width=3, height=2, low=0.0, high=1.0, total=3)
    assert rows == ["  1.00 │  █", "  0.00 │▁██"]
    half = chart([1.0], width=4, height=1, low=0.0, high=2.0, total=2)
    assert half == ["  2.00 │▄▄  "]
    assert chart([4.0, 2.0, 2.0, 0.0], width=2, height=1, low=0.0, high=4.0, total=4) == ["  4.00 │▆▂"]
    assert chart([], width=2, height=1, low=0.0, high=1.0, total=4) == ["  1.00 │  "]
    assert chart([1.0], width=1, height=1, low=1.0, high=1.0, total=1) == ["  1.00 │█"]


def test_where_nobody_watches_there_are_a_few_plain_lines():
    stream = io.StringIO()
    screen = Screen(stream, live=False)
    screen.note("now and then")
    screen.begin("Title", "loss", 40, None)
    for step in range(40):
        screen.point(40.0 - step)
    screen.end()
    lines = stream.getvalue().splitlines()
    assert "\x1b" not in stream.getvalue()
    assert lines[:2] == ["Title", "  step   1/40  loss 40.000"]
    assert lines[-2] == "  step  40/40  loss 1.000"
    assert len(lines) < 14


def test_on_a_terminal_the_curve_is_drawn_over(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr("tinkex.demo.screen._EVERY", -1.0)
    stream = io.StringIO()
    screen = Screen(stream, live=True)
    screen.note("before …")
    assert stream.getvalue() == "before …\r"
    screen.begin("T", "reward", 2, 1.0)
    screen.point(0.5)
    screen.point(1.0)
    first, second = stream.getvalue().split(f"\x1b[{HEIGHT + 1}F")
    assert "step 1/2   reward 0.500" in first
    assert "step 2/2   reward 1.000" in second
    assert all(len(line) < 50 + len("\x1b[K") for line in second.splitlines())
    assert "█" * 20 in second


@pytest.mark.parametrize(("terminal", "drawn"), [("xterm", True), ("dumb", False)])
def test_a_terminal_that_cannot_draw_gets_lines(
    terminal: str, drawn: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TERM", terminal)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    screen = demo._screen(Output("table", stream))
    screen.begin("T", "reward", 1, 1.0)
    screen.point(0.5)
    assert ("\x1b" in stream.getvalue()) == drawn


def test_the_figures_are_said_with_their_intervals():
    assert figures(lesson()) == (
        "unseen sums: 50% → 75% right, +0.25 (95 % interval +0.12 to +0.38; 256 answers each)"
    )
    assert "0.50 → 0.75 nats per token, 25.0% lower (95 % interval 12.5% to 37.5%" in figures(lesson("sft"))
    said: list[str] = []
    summary(lesson(shown=[Shown("Q?", "x" * 100, "a\nb")]), said.append)
    assert said[1:3] == [f"  Q?  before  {'x' * 69}…", "      after   a b"]


# ---- the report


class Page(HTMLParser):
    """The tags that are open, and everything an attribute or text says."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_report_is_whole_and_needs_nothing_else():
    page = Page()
    page.feed(report([lesson(), lesson("sft")], Plan(model="nano", seed=4), 61.0))
    assert page.open == []
    assert not [attrs for _, attrs in page.seen if {"src", "href"} & attrs.keys()]
    assert "url(" not in page.text
    assert figures(lesson()) in page.text
    assert "nano, seed 4, LoRA rank 16; 61 s in all" in page.text
    assert "<b>3" in page.text  # what a model says is text, never markup
    assert "Sums & <more>" in page.text
    assert inspect.getsource(rl_loop) in page.text
    assert "✓ marks the right answers" in page.text
    curves = [attrs for tag, attrs in page.seen if tag == "polyline"]
    points = [tuple(map(float, each.split(","))) for each in (curves[0]["points"] or "").split()]
    assert len(points) == 4
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert points[0][1] > points[1][1] == points[2][1] > points[3][1]  # up is less
