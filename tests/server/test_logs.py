"""One line a record, and no credential in it."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkex.server import logs


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    stream = io.StringIO()
    logs.set_up("info", stream)
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
