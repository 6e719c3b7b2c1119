"""`tinkex model`: the base models a server offers."""

from __future__ import annotations

import argparse

from .main import Parser
from .output import CommandError, Output
from .reaching import add_server, service

_COLUMNS = {
    "model_name": "Model",
    "max_context_length": "Max Context",
    "trainable": "Trainable",
    "sampleable": "Sampleable",
}
_MODEL = {"model_name": "text?", "max_context_length": "int?", "trainable": "bool?", "sampleable": "bool?"}


def register(parser: Parser) -> None:
    """Fill the command's parser."""
    group = parser.commands()
    listing = group.add_parser("list", help="show the base models the server offers")
    listing.add_argument("substring", metavar="SUBSTRING", nargs="?", help="only names that contain this")
    add_server(listing)
    listing.command(_list, {"models": [_MODEL]})


def _list(arguments: argparse.Namespace, out: Output) -> int:
    with service(arguments, out) as client:
        models = client.get_server_capabilities().supported_models
    wanted = arguments.substring
    if wanted is not None:
        models = [one for one in models if wanted.lower() in (one.model_name or "").lower()]
        if not models:
            raise CommandError(
                f"no model's name contains {wanted!r}", "`tinkex model list` shows all of this server's"
            )
    out.table(_COLUMNS, [one.model_dump() for one in models], name="models")
    return 0
