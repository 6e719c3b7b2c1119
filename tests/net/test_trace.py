"""Trace context: ours, the caller's, or OpenTelemetry's where that is in use."""

from __future__ import annotations

import re
import sys
import types

import pytest

from tinkex.net.trace import trace, trace_headers

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_outside_a_trace_nothing_is_added() -> None:
    assert trace_headers() == {}


def test_inside_a_trace_its_parent_goes_out() -> None:
    with trace() as parent:
        assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", parent)
        assert trace_headers() == {"traceparent": parent}
        with trace(GIVEN) as inner:
            assert inner == GIVEN
            assert trace_headers() == {"traceparent": GIVEN}
        assert trace_headers() == {"traceparent": parent}
    assert trace_headers() == {}


def test_each_trace_is_another() -> None:
    with trace() as one, trace() as two:
        assert one[3:35] != two[3:35]


@pytest.mark.parametrize(
    "text", ["", "00-abc", GIVEN.upper(), GIVEN + "x", "01" + GIVEN[2:], GIVEN + "\r\nX: 1"]
)
def test_what_is_no_trace_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="traceparent"), trace(text):
        pass


def test_a_half_loaded_open_telemetry_is_none_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    # Another thread is importing it: the module is there, its functions are not.
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", types.ModuleType("opentelemetry.trace"))
    assert trace_headers() == {}


def test_open_telemetrys_span_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Span:
        is_valid, trace_id, span_id, trace_flags = True, 0xAF, 0xB7, 1

        def get_span_context(self) -> Span:
            return self

    span = Span()
    api = types.ModuleType("opentelemetry.trace")
    vars(api)["get_current_span"] = lambda: span
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", api)
    assert trace_headers() == {"traceparent": f"00-{0xAF:032x}-{0xB7:016x}-01"}
    with trace(GIVEN):
        assert trace_headers() == {"traceparent": GIVEN}, "an explicit trace wins"
    span.is_valid = False
    assert trace_headers() == {}
