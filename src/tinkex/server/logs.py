"""Logging of a server: one line a record on stderr; credentials are struck out wherever they turn up."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import TextIO

from .request_ids import REQUEST

__all__ = ["JsonFormatter", "LineFormatter", "set_up"]

_CREDENTIAL = re.compile(r"\btml-[\w-]{6,}|\beyJ[\w-]+\.[\w-]+\.[\w-]*")
# What a terminal obeys or some readers take for the end of a line: names in records are not ours.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class LineFormatter(logging.Formatter):
    """Time, level, part of the server, text; what would take several lines is folded into one."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        text, trace = _said(self, record)
        text = "\n".join(filter(None, (text, trace))).strip().replace("\r", "").replace("\n", "\\n")
        text = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
        request = REQUEST.get()
        about = f" [{_without_credentials(request)}]" if request else ""
        return f"{_when(record)} {record.levelname.lower()} {_part(record)}: {text}{about}"


class JsonFormatter(logging.Formatter):
    """An object a line: time, level, part, message, and where there are such, request and exception."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        text, trace = _said(self, record)
        said = {
            "time": _when(record),
            "level": record.levelname.lower(),
            "part": _part(record),
            "message": text,
            "request": _without_credentials(REQUEST.get()),
            "exception": trace,
        }
        return json.dumps({name: value for name, value in said.items() if value})


def _said(formatter: logging.Formatter, record: logging.LogRecord) -> tuple[str, str]:
    """What a record says, and the trace that came with it."""
    trace = formatter.formatException(record.exc_info) if record.exc_info else ""
    trace = "\n".join(filter(None, (trace, record.stack_info)))
    return _without_credentials(record.getMessage()), _without_credentials(trace)


def _without_credentials(text: str) -> str:
    return _CREDENTIAL.sub("[credential]", text)


def _when(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


def _part(record: logging.LogRecord) -> str:
    return record.name.removeprefix("tinkex.")


def set_up(level: str, form: str = "text", stream: TextIO | None = None) -> None:
    """Send all records of this process from a level on to stderr, as text or json."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    quiet = logging.INFO if level == "debug" else logging.WARNING
    for name in ("uvicorn", "asyncio"):
        logging.getLogger(name).setLevel(quiet)
    # It warns of every request that is not HTTP: a stranger could fill the disk with that.
    logging.getLogger("uvicorn.error").setLevel(logging.INFO if level == "debug" else logging.ERROR)
