"""Sizes and times as people read them, lines that are written over, and warnings that come from below."""

from __future__ import annotations

import argparse
import io
import json
import logging
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tinkex import errors
from tinkex.cli.advice import reason, told
from tinkex.cli.conversation import harmless
from tinkex.cli.output import CommandError, Output
from tinkex.cli.progress import ProgressLine
from tinkex.cli.reaching import config_of
from tinkex.cli.readable import ago, duration, plural, size

NOW = datetime(2026, 7, 13, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("count", "shown"),
    [(None, None), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KB"), (1536, "1.5 KB"), (5 << 30, "5.0 GB"),
     (3 << 60, "3.0 EB"), (5000 << 60, "5000.0 EB")],
)  # fmt: skip
def test_sizes(count: int | None, shown: str | None):
    assert size(count) == shown


@pytest.mark.parametrize(
    ("past", "shown"),
    [
        (timedelta(seconds=5), "just now"),
        (timedelta(seconds=61), "1 minute ago"),
        (timedelta(minutes=59), "59 minutes ago"),
        (timedelta(hours=2), "2 hours ago"),
        (timedelta(days=29), "29 days ago"),
        (timedelta(days=40), "2026-06-03"),
        (timedelta(seconds=-5), "in less than a minute"),
        (timedelta(hours=-3), "in 3 hours"),
    ],
)
def test_moments(past: timedelta, shown: str):
    assert ago(NOW - past, NOW) == shown
    assert ago(None) is None


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.04, "0.0 s"), (9.94, "9.9 s"), (42, "42 s"), (125, "2:05"), (3723, "1:02:03")]
)
def test_durations(seconds: float, shown: str):
    assert duration(seconds) == shown


def test_counts():
    assert (plural(0, "step"), plural(1, "step"), plural(1200, "step")) == (
        "0 steps",
        "1 step",
        "1,200 steps",
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_is_written_over_and_leaves_nothing():
    screen = Terminal()
    with ProgressLine(Output(stderr=screen)) as line:
        line.show("a long one", now=True)
        line.show("left out")  # too soon after the last
        line.show("short", now=True)
    assert screen.getvalue() == "\ra long one\rshort     \r     \r"


@pytest.mark.parametrize(
    "write",
    [
        lambda out: out.line("said"),
        lambda out: out.aside("said"),
        lambda out: out.warn("said"),
        lambda out: out.error(CommandError("said")),
    ],
)
def test_other_lines_are_not_written_behind_it(write: Callable[[Output], None]):
    screen = Terminal()
    out = Output("table", screen, screen)
    with ProgressLine(out) as line:
        line.show("half way", now=True)
        write(out)
        line.show("done", now=True)
    write(out)
    shown = [each.rpartition("\r")[2] for each in screen.getvalue().split("\n")]
    assert [each.rpartition(" ")[2] for each in shown] == ["said", "said", ""]


@pytest.mark.parametrize(
    ("mode", "stream"), [("json", Terminal()), ("quiet", Terminal()), ("table", io.StringIO())]
)
def test_where_nobody_watches_nothing_is_written(mode, stream: io.StringIO):
    with ProgressLine(Output(mode, stderr=stream)) as line:
        line.show("something", now=True)
    assert stream.getvalue() == ""


def test_what_clients_warn_of_is_the_command_s_and_only_while_it_runs():
    screen = io.StringIO()
    out, logger = Output("json", stderr=screen), logging.getLogger("tinkex.client.x")
    before = logging.getLogger("tinkex").handlers, warnings.showwarning
    config_of(argparse.Namespace(base_url="http://127.0.0.1:9"), out)
    logger.warning("trying again in %d s", 3)
    warnings.showwarning(UserWarning("old"), UserWarning, "file", 1)
    out.end()
    logger.debug("not for the command")
    assert [json.loads(line) for line in screen.getvalue().splitlines()] == [
        {"warning": "trying again in 3 s"}, {"warning": "old"}
    ]  # fmt: skip
    assert (logging.getLogger("tinkex").handlers, warnings.showwarning) == before


def test_a_server_s_own_words_are_told():
    response = errors.ResponseInfo(404)
    refused = errors.NotFoundError("Error code: 404", response, {"detail": "no run\n'x'"})
    assert reason(refused) == "no run 'x'"
    assert "tinkex run list" in told(refused).hint
    assert reason(errors.NotFoundError("plain", response, None)) == "plain"
    refused.add_note("And a note.")
    assert reason(refused) == "no run 'x' And a note."


def test_a_model_cannot_move_the_cursor():
    assert harmless("fine\n\tü\x1b[2J\x07") == "fine\n\tü\ufffd[2J\ufffd"
