"""Logging of a server: one line a record on stderr; credentials are struck out wherever they turn up."""

from __future__ import annotations

import logging
import re
import sys
import time
from typing import TextIO

__all__ = ["LineFormatter", "set_up"]

_CREDENTIAL = re.compile(r"\btml-[\w-]{6,}|\beyJ[\w-]+\.[\w-]+\.[\w-]*")
# What a terminal obeys or some readers take for the end of a line: names in records are not ours.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class LineFormatter(logging.Formatter):
    """Time, level, part of the server, text; what would take several lines is folded into one."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        if record.stack_info:
            text += "\n" + record.stack_info
        text = _CREDENTIAL.sub("[credential]", text).strip().replace("\r", "").replace("\n", "\\n")
        text = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        name = record.name.removeprefix("tinkex.")
        return f"{when}.{int(record.msecs):03d}Z {record.levelname.lower()} {name}: {text}"


def set_up(level: str, stream: TextIO | None = None) -> None:
    """Send all records of this process from a level on to stderr."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    quiet = logging.INFO if level == "debug" else logging.WARNING
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        logging.getLogger(name).setLevel(quiet)
