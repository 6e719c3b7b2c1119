"""How commands reach a server: which one, with how much patience, and where its clients' warnings go."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import warnings
from typing import TYPE_CHECKING, Any

from ..config import LOCAL, Config
from ..models import is_path
from .main import Parser
from .output import Output

if TYPE_CHECKING:
    from ..client.admin import AdminClient
    from ..client.rest import RestClient
    from ..client.service import ServiceClient

__all__ = ["add_server", "admin", "chat_command", "config_of", "rest", "service", "where"]

_QUICK = 10.0
"""For how many seconds a look at a list is tried; longer work keeps the client's own patience."""


def add_server(parser: Parser) -> None:
    """The option that names the server."""
    parser.add_argument(
        "--base-url",
        metavar="URL",
        help="the server to use (default: TINKER_BASE_URL, else the hosted one)",
    )


def config_of(arguments: argparse.Namespace, out: Output, **settings: Any) -> Config:
    """The settings of a command's clients; from here on they warn through the command's output."""
    _warn_through(out)
    return Config.resolve(base_url=arguments.base_url, plain_tokenizers=True, **settings)


def rest(arguments: argparse.Namespace, out: Output) -> RestClient:
    """A client for runs, checkpoints and sessions."""
    from ..client.rest import RestClient

    return RestClient(config=_answering(arguments, out))


def admin(arguments: argparse.Namespace, out: Output) -> AdminClient:
    """A client for usage and storage."""
    from ..client.admin import AdminClient

    return AdminClient(config=_answering(arguments, out))


def _answering(arguments: argparse.Namespace, out: Output) -> Config:
    """The settings of a client of lists; a server that does not answer is told at once."""
    from ..client.access import check_answers

    config = config_of(arguments, out, retry_seconds=_QUICK)
    check_answers(config)
    return config


def service(
    arguments: argparse.Namespace, out: Output, *, model: str | None = None, **settings: Any
) -> ServiceClient:
    """A client that trains and samples with a model; a server that does not answer is told at once."""
    from ..client.access import check_access
    from ..client.service import ServiceClient

    wanted = model or getattr(arguments, "model", None)
    config = _with_model(config_of(arguments, out, **settings), wanted)
    check_access(config)
    return ServiceClient(config=config)


def _with_model(config: Config, model: str | None) -> Config:
    """The same settings; a server of one's own is to have the model the command is for."""
    if config.base_url != LOCAL or model is None or model in config.local_models or is_path(model):
        return config
    return config.with_(local_models=(model,))


def where(base_url: str | None) -> str:
    """The words by which another command uses the server this one was given."""
    return "" if base_url is None else f" --base-url {base_url}"


def chat_command(base_url: str | None, model: str, checkpoint: str) -> str:
    """The command that talks to a checkpoint, on the server it is on."""
    config = Config.resolve(base_url=base_url)
    local = config.base_url == LOCAL and model not in config.local_models
    begin = f"TINKEX_MODEL={shlex.quote(model)} " if local else ""
    return f"{begin}tinkex chat{where(base_url)} --checkpoint {checkpoint}"


def _warn_through(out: Output) -> None:
    """Log lines and warnings of the clients as the command's own: one line each, JSON in JSON mode."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            out.warn(record.getMessage())

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        out.warn(str(message))

    def undo() -> None:
        logger.handlers, logger.propagate, warnings.showwarning = before
        tokenizers.setLevel(level)

    logger, tokenizers = logging.getLogger("tinkex"), logging.getLogger("transformers")
    before = logger.handlers, logger.propagate, warnings.showwarning
    level = tokenizers.level
    out.at_end(undo)
    logger.handlers, logger.propagate, warnings.showwarning = [Handler(logging.WARNING)], False, show
    # Tokenizers need no PyTorch, and how long a prompt may be the server knows best.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # read when it is loaded
    tokenizers.setLevel(logging.ERROR)
