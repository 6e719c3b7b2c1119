"""`tinkex state`: is the state folder of a server whole, how large must it be, and how is it backed up."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..models import expanded
from ..server.places import default_state
from .main import Parser
from .output import CommandError, Output
from .readable import plural, size
from .training_settings import at_least

if TYPE_CHECKING:
    from ..server.state_backup import Backup
    from ..server.state_rows import Rows

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
_BACKUP = {"archive": "text", "folder": "text", "files": "int", "bytes": "int", "rows": {"*": "int"}}
_COMPACTED = {
    "folder": "text",
    "bytes_before": "int",
    "bytes_after": "int",
    "rows": {"*": "int"},
    "leftovers": "int",
}
_DAY = 86400.0


def register(parser: Parser) -> None:
    """Fill the command's parser."""
    group = parser.commands()
    checking = group.add_parser("check", help="see whether a state folder is whole")
    _add_folder(checking)
    checking.add_argument(
        "--fix", action="store_true", help="remove what is left over; only while no server runs"
    )
    checking.add_argument(
        "--quick",
        action="store_true",
        help="look at sizes, do not read all weights to hold them against checksums",
    )
    checking.command(
        _check, _CHECKED, examples="tinkex state check\ntinkex state check /var/lib/tinkex --fix"
    )
    compacting = group.add_parser(
        "compact", help="drop what is no longer needed; only while no server runs"
    )
    _add_folder(compacting)
    compacting.add_argument(
        "--older-than", metavar="DAYS", type=at_least(0, float), default=30.0,
        help="forget sessions without a checkpoint that ended so many days ago [30]",
    )  # fmt: skip
    compacting.command(_compact, _COMPACTED)
    exporting = group.add_parser("export", help="back a state folder up, also while its server runs")
    _add_folder(exporting, optional=False)
    exporting.add_argument(
        "archive", metavar="ARCHIVE", type=Path, help="a file that is to be: NAME.tar; or a folder"
    )
    exporting.command(_export, _BACKUP, examples="tinkex state export /var/lib/tinkex monday.tar")
    importing = group.add_parser(
        "import", help="put a backup into a new folder, for a server to go on with"
    )
    importing.add_argument("archive", metavar="ARCHIVE", type=Path, help="what `tinkex state export` made")
    _add_folder(importing, optional=False, what="the state folder that is to be")
    importing.command(_import, _BACKUP, examples="tinkex state import monday.tar /var/lib/tinkex-again")


def _add_folder(parser: Parser, *, optional: bool = True, what: str = "the server's state folder") -> None:
    if optional:
        default = f"{what} (default: TINKEX_STATE, or where `tinkex serve` has it)"
        parser.add_argument("folder", metavar="FOLDER", type=Path, nargs="?", help=default)
    else:
        parser.add_argument("folder", metavar="FOLDER", type=Path, help=what)


def _folder(arguments: argparse.Namespace) -> Path:
    return default_state() if arguments.folder is None else expanded(arguments.folder)


def _counts(rows: Rows) -> str:
    return ", ".join(plural(count, name.removesuffix("s")) for name, count in rows.counts.items())


def _check(arguments: argparse.Namespace, out: Output) -> int:
    from ..server.state_check import check, check_and_fix

    report = (check_and_fix if arguments.fix else check)(_folder(arguments), quick=arguments.quick)
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
    running = "" if report.server is None else " (a server is running)"
    out.say(f"{report.folder}{running}: {_counts(report.rows) or 'nothing could be read'}")
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
    left = any(each["kind"] == "leftover" for each in findings) and not (report.damaged or arguments.fix)
    hint = "`tinkex state check --fix` removes what is left over" if left else ""
    out.error(CommandError(f"{plural(len(findings), 'finding')} in {report.folder}", hint))
    return 1


def _compact(arguments: argparse.Namespace, out: Output) -> int:
    from ..server.state_compact import compact

    folder = _folder(arguments)
    done = compact(folder, time.time(), older_than=arguments.older_than * _DAY)
    fields = {
        "folder": str(folder),
        "bytes_before": done.before,
        "bytes_after": done.after,
        "rows": done.rows,
        "leftovers": done.leftovers,
    }
    rows = ", ".join(f"{count:,} {name}" for name, count in done.rows.items() if count) or "no rows"
    text = f"{folder}: {size(done.before)} before, {size(done.after)} after"
    out.record(fields, essential="bytes_after", text=text)
    out.say(f"dropped {rows}, removed {plural(done.leftovers, 'leftover')}")
    return 0


def _export(arguments: argparse.Namespace, out: Output) -> int:
    from ..server.state_backup import export_state

    folder, archive = _folder(arguments), expanded(arguments.archive)
    _told(out, archive, folder, export_state(folder, archive, time.time()))
    out.say("It holds weights, training data and keys as digests: keep it as private as the folder itself.")
    return 0


def _import(arguments: argparse.Namespace, out: Output) -> int:
    from ..server.state_backup import import_state

    folder, archive = _folder(arguments), expanded(arguments.archive)
    _told(out, archive, folder, import_state(archive, folder))
    out.say(f"`tinkex serve --state {folder}` goes on from there; keys that are in it are let in.")
    return 0


def _told(out: Output, archive: Path, folder: Path, done: Backup) -> None:
    fields = {
        "archive": str(archive),
        "folder": str(folder),
        "files": len(done.contents.files),
        "bytes": done.bytes,
        "rows": done.rows.counts,
    }
    files = plural(len(done.contents.files), "file")
    text = f"{archive}: {files}, {size(done.bytes)}, of {_counts(done.rows)}"
    out.record(fields, essential="archive", text=text)
