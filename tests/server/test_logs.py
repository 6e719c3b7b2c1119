"""One line a record, and no credential in it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkex.server import logs
from tinkex.server.request_ids import REQUEST


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    stream = io.StringIO()
    logs.set_up("info", stream=stream)
    yield stream
    root.handlers[:], level = before
    root.setLevel(level)


def test_a_record_is_a_line(written: io.StringIO):
    log = logging.getLogger("tinkex.server.x")
    log.info("first\nsecond %d", 3)
    log.debug("not at this level")
    try:
        raise ValueError("bad\nthing")
    except ValueError:
        log.exception("it failed")
    first, second = written.getvalue().splitlines()
    assert first.endswith(" info server.x: first\\nsecond 3")
    assert "error server.x: it failed\\nTraceback" in second
    assert second.endswith("ValueError: bad\\nthing")


@pytest.mark.parametrize(
    "text",
    [
        "key tml-abcdefghijklmnop here",
        "header X-API-Key: tml-AbC_dEf-123456",
        "token eyJhbGciOi.eyJzdWIi.c2ln-_x",
        "'tml-abcdefgh'",
    ],
)
def test_a_credential_is_struck_out(written: io.StringIO, text: str):
    logging.getLogger("x").warning("%s", text)
    try:
        raise ValueError(text)
    except ValueError:
        logging.getLogger("x").exception("failed")
    assert "[credential]" in written.getvalue()
    for part in ("abcdefgh", "AbC_dEf", "eyJ", "c2ln"):
        assert part not in written.getvalue()


def test_other_words_are_left_alone(written: io.StringIO):
    logging.getLogger("x").warning("html-escaped tml-… tml- eyJust")
    assert "html-escaped tml-… tml- eyJust" in written.getvalue()


@given(text=st.text())
def test_no_text_makes_two_lines(text: str):
    record = logging.LogRecord("x", logging.INFO, "f", 1, "%s", (text,), None)
    line = logs.LineFormatter().format(record)
    assert "\n" not in line
    assert "\r" not in line


# ---- as JSON


@pytest.fixture
def as_json() -> Iterator[Callable[[], list[dict[str, str]]]]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    stream = io.StringIO()
    logs.set_up("info", "json", stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.handlers[:], level = before
    root.setLevel(level)


def test_a_record_is_an_object_a_line(as_json: Callable[[], list[dict[str, str]]]):
    logging.getLogger("tinkex.server.x").warning("first\nsecond %d", 3)
    token = REQUEST.set("abc-1")
    try:
        raise ValueError("tml-abcdefghijklmnop")
    except ValueError:
        logging.getLogger("y").exception("it failed with tml-abcdefghijklmnop")
    finally:
        REQUEST.reset(token)
    first, second = as_json()
    assert {**first, "time": ""} == {
        "time": "", "level": "warning", "part": "server.x", "message": "first\nsecond 3",
    }  # fmt: skip
    assert (second["level"], second["request"]) == ("error", "abc-1")
    assert second["message"] == "it failed with [credential]"
    assert second["exception"].startswith("Traceback")
    assert second["exception"].endswith("ValueError: [credential]")


@given(text=st.text())
def test_any_text_comes_back_from_json(text: str):
    record = logging.LogRecord("x", logging.INFO, "f", 1, "%s", (text,), None)
    line = logs.JsonFormatter().format(record)
    assert "\n" not in line
    if "tml-" not in text and "eyJ" not in text:
        assert json.loads(line).get("message", "") == text


def test_a_line_says_which_request_it_is_about(written: io.StringIO):
    token = REQUEST.set("abc-1")
    logging.getLogger("x").warning("slow")
    REQUEST.reset(token)
    logging.getLogger("x").warning("idle")
    first, second = written.getvalue().splitlines()
    assert first.endswith("warning x: slow [abc-1]")
    assert second.endswith("warning x: idle")
