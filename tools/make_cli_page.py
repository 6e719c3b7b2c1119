"""Writes the reference in docs/cli.md from the parsers: every command, its options, its JSON and examples.

python tools/make_cli_page.py
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tinkex.cli.main import COMMANDS, Parser
from tinkex.cli.tree import below, walk

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
BEGIN, END = "<!-- reference -->\n", "<!-- end of the reference -->\n"
_EVERYWHERE = {"--json", "--quiet", "--help", "--base-url"}
_WIDTH = 108


def reference() -> str:
    """All commands, one below the other."""
    parts = []
    for words, parser in walk():
        inner = below(parser)
        if not inner:
            parts.append(section(words, parser))
        elif len(words) == 1:
            does = COMMANDS[words[0]][1]
            names = ", ".join(f"`{name}`" for name in inner)
            parts.append(f"### tinkex {words[0]}\n\n{does[0].upper()}{does[1:]}: {names}.\n")
    return "\n".join(parts)


def section(words: tuple[str, ...], parser: Parser) -> str:
    """One command: what it does, how it is called, what it prints."""
    depth = "###" if len(words) == 1 else "####"
    parts = [f"{depth} tinkex {' '.join(words)}\n", f"{parser.description or ''}\n"]
    arguments = [action for action in parser._actions if not action.option_strings]
    options = [a for a in parser._actions if a.option_strings and not _EVERYWHERE & set(a.option_strings)]
    call = " ".join(
        ["tinkex", *words, *map(shown_argument, arguments), *(["[option ...]"] if options else [])]
    )
    parts.append(f"```text\n{call}\n```\n")
    if words != ("serve",):  # its settings are on the server's page
        rows = [
            f"| {spelled(each)} | {meaning(each)} |" for each in (*arguments, *options) if meaning(each)
        ]
        if rows:
            parts.append("\n".join(["| | |", "|---|---|", *rows]) + "\n")
    else:
        parts.append("Its options are the settings on [the server's page](server.md).\n")
    if parser.shape is not None:
        parts.append(f"As JSON:\n\n```text\n{written(parser.shape)}\n```\n")
    if parser.examples:
        ours = all(line.startswith("tinkex ") and ">" not in line for line in parser.examples.splitlines())
        parts.append(f"```{'bash' if ours else 'text'}\n{parser.examples}\n```\n")
    return "\n".join(parts)


def shown_argument(action: argparse.Action) -> str:
    """An argument as usage lines show it."""
    name = str(action.metavar or action.dest)
    return {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} ..."}.get(str(action.nargs), name)


def spelled(action: argparse.Action) -> str:
    """How an argument or option is written."""
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    return ", ".join(f"`{word}{value}`".replace("|", "\\|") for word in action.option_strings)


def meaning(action: argparse.Action) -> str:
    """What it is for."""
    return (action.help or "").replace("%%", "%").replace("|", "\\|").replace("<", "&lt;")


def written(shape: Any, indent: int = 0) -> str:
    """A shape as text: on one line if it fits."""
    if isinstance(shape, str):
        return shape
    flat = _flat(shape)
    if len(flat) + indent <= _WIDTH:
        return flat
    space = " " * (indent + 2)
    if isinstance(shape, list):
        return f"[{written(shape[0], indent)}]"
    lines = [f"{space}{json.dumps(name)}: {written(each, indent + 2)}" for name, each in shape.items()]
    return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"


def _flat(shape: Any) -> str:
    if isinstance(shape, str):
        return shape
    if isinstance(shape, list):
        return f"[{_flat(shape[0])}]"
    return "{" + ", ".join(f"{json.dumps(name)}: {_flat(each)}" for name, each in shape.items()) + "}"


def filled(page: str) -> str:
    """The page with its reference made anew."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n" + reference() + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
