"""Writes the tables in docs that repeat code: HTTP statuses (behaviour.md, from `tinkex.errors`), limits
and times (server.md, from `tinkex.server.options`).

python tools/make_tables.py
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from tinkex.errors import APIStatusError, ResponseInfo, is_user_error, status_class, status_rule
from tinkex.server.settings import SETTINGS, Setting, meanings

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "behaviour.md"
SERVER_PAGE = DOCS / "server.md"
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


# ---- the server's settings


def settings_table(group: str, what: str) -> str:
    """The settings of a group, their defaults and what they are for."""
    said = meanings()
    rows = [setting for setting in SETTINGS.values() if setting.group == group]
    lines = [f"| `{setting.short}` | {shown(setting)} | {said[setting.name]} |" for setting in rows]
    return "\n".join([f"| {what} | default | |", "|---|---|---|", *lines]) + "\n"


def shown(setting: Setting) -> str:
    """A default as people write it."""
    value = setting.default
    if setting.name.endswith("_bytes"):
        for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
            if value % (1 << power) == 0:
                return f"{value >> power} {unit}"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def server_page(page: str) -> str:
    """The server's page with its tables made anew."""
    for group, what in (("limits", "limit"), ("times", "time")):
        begin, end = f"<!-- {group} -->\n", f"<!-- end of {group} -->\n"
        before, rest = page.split(begin)
        page = before + begin + settings_table(group, what) + end + rest.split(end)[1]
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
    SERVER_PAGE.write_text(server_page(SERVER_PAGE.read_text()))
