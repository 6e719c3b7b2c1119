"""Writes the table of HTTP statuses in docs/behaviour.md from the rules in `tinkex.errors`.

python tools/make_tables.py
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from tinkex.errors import APIStatusError, ResponseInfo, is_user_error, status_class, status_rule

PAGE = Path(__file__).parent.parent / "docs" / "behaviour.md"
BEGIN, END = "<!-- statuses -->\n", "<!-- end of statuses -->\n"


def row(status: int) -> tuple[str, str, str, str]:
    """What one status means: its class, whose fault it is, whether it is tried again, how it counts."""
    rule = status_rule(status)
    kind = status_class(status)
    error = APIStatusError("", ResponseInfo(status), None)
    return (
        f"`{kind.__name__}`",
        rule.fault.value,
        "yes" if rule.retryable else "no",
        "yes" if is_user_error(error) else "no",
    )


def table() -> str:
    """All statuses from 400 to 599; neighbours that mean the same share a line."""
    lines = ["| status | error | whose fault | sent again | `is_user_error` |", "|---|---|---|---|---|"]
    for cells, group in groupby(range(400, 600), row):
        statuses = list(group)
        span = f"{statuses[0]}" if len(statuses) == 1 else f"{statuses[0]}–{statuses[-1]}"
        lines.append(f"| {span} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def filled(page: str) -> str:
    """A page with its table made anew."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
