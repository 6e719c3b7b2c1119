"""One name for each request, by which all that is said about it can be found: in answers and in the log."""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Mapping
from contextvars import ContextVar

__all__ = ["HEADER", "REQUEST", "name_request"]

HEADER = b"x-request-id"
REQUEST: ContextVar[str] = ContextVar("request", default="")
"""The request being answered; background work that one begins carries its name too."""

_SANE = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_START = secrets.token_hex(4)
_numbers = itertools.count(1)


def name_request(headers: Mapping[bytes, bytes]) -> str:
    """The name the client or a proxy gave it, if it can be one; else a new one."""
    given = headers.get(HEADER)
    if given is not None and _SANE.fullmatch(given):
        name = given.decode()
    else:
        name = f"{_START}-{next(_numbers):x}"
    REQUEST.set(name)
    return name
