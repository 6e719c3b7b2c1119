"""Lists that come in pages: how many are wanted, fetching them, and what was left out."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TypeVar

from .main import Parser
from .output import Output
from .progress import ProgressLine

__all__ = ["add_limit", "count", "fetch", "more"]

T = TypeVar("T")


def count(text: str) -> int:
    """A whole number from 0."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return number


def add_limit(parser: Parser, what: str) -> None:
    """The option that bounds a list."""
    parser.add_argument(
        "--limit", metavar="N", type=count, default=20, help=f"at most N {what}, 0 for all [20]"
    )


def fetch(
    page: Callable[[int, int], tuple[Sequence[T], int]], limit: int, most: int, out: Output, what: str
) -> tuple[list[T], int]:
    """The first `limit` things (0: all), `most` a page, and how many there are altogether."""
    found: list[T] = []
    with ProgressLine(out) as line:
        while True:
            wanted = min(most, limit - len(found)) if limit else most
            some, total = page(wanted, len(found))
            found.extend(some)
            if not some or len(found) >= (limit or total) or len(found) >= total:
                return found, max(total, len(found))
            line.show(f"{len(found):,} of {min(limit or total, total):,} {what}")


def more(shown: int, total: int) -> str:
    """What a title says about those that are not shown."""
    return f" ({total - shown:,} more not shown, use --limit to see more)" if total > shown else ""
