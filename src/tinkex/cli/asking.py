"""Questions to the person at the terminal; where there is none, nothing is asked."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .main import Parser
from .output import CommandError, Output, UsageError

__all__ = ["add_yes", "confirm"]

_SHOWN = 20


def add_yes(parser: Parser) -> None:
    """The option that answers the question beforehand."""
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def confirm(out: Output, what: str, things: Sequence[str], *, yes: bool) -> None:
    """Return if it may be done: it was said beforehand, or is said now."""
    if yes:
        return
    if out.mode == "json" or not sys.stdin.isatty():
        raise UsageError(f"{what} cannot be undone, and nobody is here to ask", "pass --yes")
    for each in things[:_SHOWN]:
        out.aside(f"  {each}")
    if len(things) > _SHOWN:
        out.aside(f"  … and {len(things) - _SHOWN:,} more")
    out.aside(f"{what[0].upper()}{what[1:]} cannot be undone. Go ahead? [y/N] ", end="")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was done")
