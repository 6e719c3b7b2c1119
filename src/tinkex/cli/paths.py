"""`tinker://` paths as arguments."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .main import Parser
from .output import UsageError

if TYPE_CHECKING:
    from ..types.checkpoint import ParsedCheckpointTinkerPath

__all__ = ["add_path", "checkpoint_path", "parse_path"]


def add_path(parser: Parser) -> Parser:
    """The argument that names a checkpoint."""
    parser.add_argument(
        "checkpoint_path",
        metavar="CHECKPOINT_PATH",
        help="tinker://<run>/<weights|sampler_weights|…>/<name>",
    )
    return parser


def checkpoint_path(arguments: argparse.Namespace) -> ParsedCheckpointTinkerPath:
    """The checkpoint that was named."""
    return parse_path(arguments.checkpoint_path)


def parse_path(text: str) -> ParsedCheckpointTinkerPath:
    """A path in its parts; what is none was not understood."""
    from ..errors import InvalidArgumentError
    from ..wire.paths import parse

    try:
        return parse(text)
    except InvalidArgumentError as error:
        raise UsageError(str(error), "`tinkex checkpoint list` shows the paths") from None
