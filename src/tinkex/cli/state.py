"""`tinkex state`: is the state folder of a server whole, how large must it be, and how is it backed up."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..models import expanded
from ..server.places import default_state
from .main import Parser
from .output import CommandError, Output
from .readable import plural

_FINDING = {"kind": "text", "place": "text", "text": "text"}
_CHECKED = {
    "folder": "text",
    "clean": "bool",
    "server": "int?",
    "migrations": ["text"],
    "rows": {"*": "int"},
    "findings": [_FINDING],
    "notes": ["text"],
    "removed": ["text"],
}


def register(parser: Parser) -> None:
    """Fill the command's parser."""
    group = parser.commands()
    checking = group.add_parser("check", help="see whether a state folder is whole")
    _add_folder(checking)
    checking.add_argument(
        "--fix", action="store_true", help="remove what is left over; only while no server runs"
    )
    checking.command(
        _check, _CHECKED, examples="tinkex state check\ntinkex state check /var/lib/tinkex --fix"
    )


def _add_folder(parser: Parser) -> None:
    parser.add_argument(
        "folder", metavar="FOLDER", type=Path, nargs="?",
        help="the server's state folder (default: TINKEX_STATE, or where `tinkex serve` has it)",
    )  # fmt: skip


def _folder(arguments: argparse.Namespace) -> Path:
    return default_state() if arguments.folder is None else expanded(arguments.folder)


def _check(arguments: argparse.Namespace, out: Output) -> int:
    from ..server.state_check import check, check_and_fix

    report = (check_and_fix if arguments.fix else check)(_folder(arguments))
    findings = [each._asdict() for each in report.findings]
    if out.mode == "json":
        out.document(
            {
                "folder": str(report.folder),
                "clean": report.clean,
                "server": report.server,
                "migrations": report.rows.migrations,
                "rows": report.rows.counts,
                "findings": findings,
                "notes": report.notes,
                "removed": report.removed,
            }
        )
    counts = ", ".join(plural(count, name.removesuffix("s")) for name, count in report.rows.counts.items())
    running = "" if report.server is None else " (a server is running)"
    out.say(f"{report.folder}{running}: {counts or 'nothing could be read'}")
    for note in report.notes:
        out.say(f"note: {note}")
    if report.removed:
        out.say(f"removed {plural(len(report.removed), 'leftover')}")
    if findings and out.mode != "json":
        out.table(
            {"kind": "WHAT", "place": "WHERE", "text": "WHY"}, findings, name="findings", essential="place"
        )
    if report.clean:
        out.say("It is whole.")
        return 0
    hint = "" if report.damaged or arguments.fix else "`tinkex state check --fix` removes what is left over"
    out.error(CommandError(f"{plural(len(findings), 'finding')} in {report.folder}", hint))
    return 1
