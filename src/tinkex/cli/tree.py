"""All commands with their parsers, for completion scripts and the page about them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from .main import COMMANDS, Parser, parser_of

__all__ = ["below", "walk"]


def walk() -> Iterator[tuple[tuple[str, ...], Parser]]:
    """Every command and group of commands with its parser, in the order of the help."""
    for name in COMMANDS:
        yield from _walk((name,), parser_of(name))


def _walk(words: tuple[str, ...], parser: Parser) -> Iterator[tuple[tuple[str, ...], Parser]]:
    yield words, parser
    for name, inner in below(parser).items():
        yield from _walk((*words, name), inner)


def below(parser: Parser) -> dict[str, Parser]:
    """The commands below a group."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}
