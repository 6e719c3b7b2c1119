"""`tinkex version`."""

from __future__ import annotations

import argparse

from .._version import SDK_VERSION, __version__
from .main import Parser
from .output import Output


def register(parser: Parser) -> None:
    """Fill the command's parser."""
    parser.command(_version, {"version": "text", "tinker": "text"})


def _version(arguments: argparse.Namespace, out: Output) -> int:
    out.record(
        {"version": __version__, "tinker": SDK_VERSION}, essential="version", text=f"tinkex {__version__}"
    )
    return 0
