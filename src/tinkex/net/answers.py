"""From an HTTP answer to a value or an error: the one place where statuses become exceptions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from ..errors import APIConnectionError, APIError, APIStatusError, RequestInfo, ResponseInfo, status_class
from ..wire.headers import retry_after
from .transport import Request, Response

__all__ = ["body_of", "error_from"]

_LONGEST_TEXT = 2000


def body_of(response: Response) -> Any:
    """The decoded JSON of an answer, or its text."""
    try:
        return msgspec.json.decode(response.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return response.body.decode("utf-8", "replace")[:_LONGEST_TEXT]


def error_from(request: Request, response: Response, now: datetime, *, result: bool = False) -> APIError:
    """The error an answer of 400 and above stands for."""
    about = RequestInfo.of(request)
    if response.status == 400 and not response.body:
        # The service always explains a 400; an empty one comes from a proxy on the way.
        return APIConnectionError(about, "Connection error: a proxy answered 400 with an empty body.")
    body = body_of(response)
    kind: type[APIStatusError] = status_class(response.status, result=result)
    return kind(
        f"Error code: {response.status} - {body}",
        ResponseInfo(response.status, response.headers, about),
        body,
        retry_after=retry_after(response.headers, now),
    )
