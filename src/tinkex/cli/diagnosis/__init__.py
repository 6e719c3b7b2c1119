"""What `tinkex doctor` looks at: one file a part, each with `checks()`."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["Check"]


class Check(NamedTuple):
    """One thing looked at: how it is, and what to do if it is not as it should be."""

    name: str
    status: Literal["ok", "warn", "fail"]
    message: str
    hint: str = ""
