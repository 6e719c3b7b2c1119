"""`tinkex doctor`: is everything there that is needed, and if not, what to do."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from .diagnosis import Check, disk, installed, machine, models, server
from .main import Parser
from .output import CommandError, Output
from .reaching import add_server, config_of

_SHAPE = {"ok": "bool", "checks": [{"name": "text", "status": "text", "message": "text", "hint": "text"}]}


def register(parser: Parser) -> None:
    """Fill the command's parser."""
    parser.add_argument("--offline", action="store_true", help="do not ask the server")
    add_server(parser)
    parser.command(
        _doctor, _SHAPE, examples="tinkex doctor\ntinkex doctor --base-url http://gpu.example:8000"
    )


def _doctor(arguments: argparse.Namespace, out: Output) -> int:
    config = config_of(arguments, out)
    parts: list[Callable[[], Iterator[Check]]] = [
        installed.checks,
        machine.checks,
        disk.checks,
        models.checks,
    ]
    if not arguments.offline:
        parts.append(lambda: server.checks(config, asked_for=arguments.base_url is not None))
    found: list[Check] = []
    for part in parts:
        for check in part():
            found.append(check)
            if out.mode == "table":
                _show(check, out)
    failed = [check for check in found if check.status == "fail"]
    if out.mode == "json":
        out.document({"ok": not failed, "checks": [check._asdict() for check in found]})
    elif out.mode == "quiet":
        for check in failed:
            out.line(check.name)
    if failed:
        raise CommandError(
            f"{len(failed)} of {len(found)} checks failed: {', '.join(c.name for c in failed)}"
        )
    return 0


def _show(check: Check, out: Output) -> None:
    out.line(f"{check.status.ljust(4)}  {check.name.ljust(12)}  {check.message}")
    if check.hint:
        out.line(f"{' ' * 20}→ {check.hint}")
    out.stdout.flush()
