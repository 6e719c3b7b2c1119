"""Whether a state folder is whole: every row has its files, every file its row, nobody else can read it.

Looking changes nothing and may be done while a server runs. What is moving then is looked at again: only
what is wrong each time is told.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import time
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import TinkerError
from .state_files import Finding, access, damage, leftovers, strangers
from .state_folder import StateFolder, StateInUse, holder
from .state_rows import DATABASE, Rows, read_only, read_rows

__all__ = ["NoState", "Report", "check", "check_and_fix", "existing", "look", "remove"]

LOOKS = 4
PAUSE = 0.5
"""Seconds between two looks at the folder of a running server: longer than a file is without its row."""


class NoState(TinkerError):
    """This is no state folder, or it is not in a state for what was asked."""


@dataclass(slots=True)
class Report:
    """What was found."""

    folder: Path
    server: int | None
    """The process that has the folder."""
    rows: Rows = field(default_factory=Rows)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong, or no longer."""
        return not self.findings

    @property
    def damaged(self) -> list[Finding]:
        """What cannot be put right by removing something."""
        return [each for each in self.findings if each.kind == "damage"]


def check(folder: Path, *, quick: bool = False) -> Report:
    """Look at a state folder, without changing anything; quickly, the numbers of weights are not read."""
    folder = existing(folder)
    server = holder(folder)
    report = look(folder, server, quick=quick)
    for _ in range(LOOKS):
        if server is None or not report.findings:
            break
        time.sleep(PAUSE)
        before = {(each.kind, each.place) for each in report.findings}
        server = holder(folder)
        report = look(folder, server, quick=quick)
        report.findings = [each for each in report.findings if (each.kind, each.place) in before]
    return report


def check_and_fix(folder: Path, *, quick: bool = False) -> Report:
    """Look, and remove what is left over; only where no server has the folder."""
    folder = existing(folder)
    try:
        with StateFolder(folder):
            report = look(folder, None, quick=quick)
            for each in [each for each in report.findings if each.kind == "leftover"]:
                if remove(folder, each.place):
                    report.removed.append(each.place)
                    report.findings.remove(each)
    except StateInUse as problem:
        raise NoState(f"nothing is removed while a server runs: {problem}") from None
    return report


def existing(folder: Path) -> Path:
    """A state folder that is there."""
    if not (folder / "store").is_dir():
        raise NoState(f"{folder} is no state folder: there is no store in it")
    return folder.absolute()


def look(folder: Path, server: int | None, *, quick: bool = False) -> Report:
    """Look once; a server that runs may be in the middle of something."""
    report = Report(folder, server)
    in_use = server is not None
    path = folder / DATABASE
    if path.is_file():
        try:
            with read_only(path, in_use=in_use) as database:
                report.rows = read_rows(database)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as problem:  # its messages may quote any bytes
            report.findings = [*access(folder), Finding("damage", DATABASE, f"SQLite: {problem}")]
            return report
    rows = report.rows
    report.findings += [*access(folder), *damage(folder, rows, quick=quick)]
    if path.is_file() and rows.counts:  # else nobody knows what is needed
        report.findings += leftovers(folder, rows, in_use=in_use)
    elif path.is_file() and not rows.problems:
        report.notes.append("the database is of an earlier version; a server brings it up to date")
    report.notes += [f"run {id} is corrupted: {note}" for id, note in rows.corrupted if note]
    report.notes += [f"{place} is not ours" for place in strangers(folder)]
    report.notes += _lost_samplers(folder, rows)
    return report


def _lost_samplers(folder: Path, rows: Rows) -> list[str]:
    rooms = list((folder / "engine").glob("*/sampler"))
    lost = [
        version
        for version, again in rows.samplers.items()
        if not again and not any((room / version).is_dir() for room in rooms)
    ]
    if not lost:
        return []
    return [f"the unnamed weights of {len(lost)} open sampling sessions are no longer kept"]


def remove(folder: Path, place: str) -> bool:
    """Remove what is left over; whether it is gone."""
    path = folder / place
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
    with contextlib.suppress(OSError):  # a run's folder goes with the last thing in it
        if place.startswith(("checkpoints/", "snapshots/")):
            path.parent.rmdir()
            path.parent.parent.rmdir()
    return not path.exists()
