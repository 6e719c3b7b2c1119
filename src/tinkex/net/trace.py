"""W3C trace context: the caller's trace goes out with each request, if there is one."""

from __future__ import annotations

import contextlib
import contextvars
import re
import secrets
import sys
from collections.abc import Iterator, Mapping

__all__ = ["trace", "trace_headers"]

_PARENT: contextvars.ContextVar[str | None] = contextvars.ContextVar("tinkex_traceparent", default=None)
_FORM = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_NONE: Mapping[str, str] = {}


@contextlib.contextmanager
def trace(traceparent: str | None = None) -> Iterator[str]:
    """Put all requests started inside the block into one trace, a new one unless given."""
    if traceparent is None:
        traceparent = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
    if not _FORM.fullmatch(traceparent):
        raise ValueError(f"traceparent: {traceparent!r} is not 00-<32 hex>-<16 hex>-<2 hex>")
    token = _PARENT.set(traceparent)
    try:
        yield traceparent
    finally:
        _PARENT.reset(token)


def trace_headers() -> Mapping[str, str]:
    """The headers of the current trace: ours, or OpenTelemetry's where that is in use."""
    parent = _PARENT.get()
    if parent is not None:
        return {"traceparent": parent}
    # While another thread imports it the module is there and what is in it is not.
    current = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    if current is None:
        return _NONE
    span = current().get_span_context()
    if not span.is_valid:
        return _NONE
    return {"traceparent": f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"}
