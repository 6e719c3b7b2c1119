"""Backups of a state folder, taken while its server runs, and put back into an empty one.

Rows name files; a file is written whole before its row and removed after it, and never changes. So the
database is copied first: all its files are there at that moment. They are held by links to them at once;
should one have gone in between, its row has gone too, and the database is copied again.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from .._version import __version__
from .dates import moment
from .disk import LEAST_FREE
from .key_file import write_private
from .places import KEY_FILE
from .state_archive import LIST, BadArchive, Contents, Listed, members, pack, put_file, read_list, tar_named
from .state_check import NoState, Report, existing, look, remove
from .state_files import is_alive
from .state_folder import ROOMS, StateFolder, StateInUse, holder
from .state_rows import DATABASE, Rows, open_read_only, read_only, read_rows

__all__ = ["Backup", "export_state", "import_state"]

TRIES = 20
_JOURNAL = "samples.log"
_HELD = "export-"


@dataclass(frozen=True, slots=True)
class Backup:
    """What was packed or unpacked."""

    contents: Contents
    rows: Rows

    @property
    def bytes(self) -> int:
        """Of all files together."""
        return sum(each.size for each in self.contents.files.values())


# ---- out


def export_state(folder: Path, archive: Path, now: float) -> Backup:
    """Pack all a server needs to go on; secrets that sign tokens and addresses stay, new ones are made."""
    folder, archive = existing(folder), archive.absolute()
    if archive.exists() and (tar_named(archive) or not archive.is_dir() or any(archive.iterdir())):
        raise NoState(f"{archive} exists")
    if archive.is_relative_to(folder):
        raise NoState(f"{archive} is inside the state folder")
    _forget_killed(folder / "tmp")
    held = folder / "tmp" / f"{_HELD}{os.getpid()}-{secrets.token_hex(4)}"
    held.mkdir(mode=0o700, parents=True)
    try:
        rows = _hold(folder, held)
        names = [path.relative_to(held).as_posix() for path in held.rglob("*") if path.is_file()]
        return Backup(
            pack(held, names, archive, __version__, moment(now).isoformat(timespec="seconds")), rows
        )
    except FileNotFoundError:
        if held.exists():
            raise
        raise NoState("a server was started meanwhile and tidied up; try again") from None
    finally:
        shutil.rmtree(held, ignore_errors=True)


def _forget_killed(place: Path) -> None:
    """Let go of what exports that were killed still hold: their links keep deleted files on the disk."""
    for path in place.glob(f"{_HELD}*-*"):
        maker = path.name.split("-")[1]
        if maker.isdecimal() and not is_alive(int(maker)):
            shutil.rmtree(path, ignore_errors=True)


def _hold(folder: Path, held: Path) -> Rows:
    """Make a folder that is a state folder of one moment."""
    for room in ROOMS:
        (held / room).mkdir(mode=0o700, exist_ok=True)
    (held / "store" / "bodies").mkdir(mode=0o700)
    report: Report | None = None
    in_use = holder(folder) is not None
    for _ in range(TRIES if in_use else 1):
        rows = _hold_once(folder, held, in_use)
        report = look(held, None, quick=True)
        if not report.damaged:
            for each in report.findings:
                remove(held, each.place)
            return rows
    assert report is not None
    first = report.damaged[0]
    raise NoState(f"{folder} is damaged: {first.place}: {first.text}; see `tinkex state check`")


def _hold_once(folder: Path, held: Path, in_use: bool) -> Rows:
    database = held / DATABASE
    database.unlink(missing_ok=True)
    with closing(open_read_only(folder / DATABASE, in_use=in_use)) as source:
        source.execute("VACUUM INTO ?", (str(database),))
    database.chmod(0o600)
    with read_only(database, in_use=False) as copied:
        rows = read_rows(copied)
    if not rows.counts:
        raise NoState(f"{folder} is not of this version of tinkex: start a server on it first")
    for needed in rows.needed:
        _link_folder(folder / needed.folder, held / needed.folder)
    for body in rows.bodies:
        _link(folder / "store" / "bodies" / body.name, held / "store" / "bodies" / body.name)
    for room in (folder / "engine").glob("*/sampler"):
        for version in rows.samplers:
            _link_folder(room / version, held / room.relative_to(folder) / version)
    for name in (KEY_FILE, _JOURNAL):
        with contextlib.suppress(FileNotFoundError):
            write_private(held / name, (folder / name).read_text("utf-8", "replace"))
    return rows


def _link_folder(source: Path, target: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        for path in [path for path in source.rglob("*") if path.is_file() and not path.is_symlink()]:
            _link(path, target / path.relative_to(source))


def _link(source: Path, target: Path) -> None:
    """Hold a file that may be removed in a moment, if it has not been yet."""
    if target.exists():
        return
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        try:
            os.link(source, target, follow_symlinks=False)
        except FileNotFoundError:
            raise
        except (OSError, NotImplementedError):  # this file system has no links
            shutil.copyfile(source, target, follow_symlinks=False)


# ---- in


def import_state(archive: Path, folder: Path) -> Backup:
    """Unpack into a folder that is new or empty; nothing is left there if anything is wrong."""
    archive, folder = archive.absolute(), folder.absolute()
    if not archive.exists():
        raise NoState(f"there is no {archive}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise NoState(f"{folder} is not empty: a backup is unpacked into a new folder")
    new = not folder.exists()
    try:
        with StateFolder(folder):
            backup = _unpack(archive, folder)
    except StateInUse as problem:
        raise NoState(str(problem)) from None
    except BaseException:
        _empty(folder, new)
        raise
    return backup


def _unpack(archive: Path, folder: Path) -> Backup:
    held = folder / "tmp" / f"import-{secrets.token_hex(4)}"
    held.mkdir(mode=0o700)
    for room in ROOMS:
        (held / room).mkdir(mode=0o700)
    (held / "store" / "bodies").mkdir(mode=0o700)
    most = max(0, shutil.disk_usage(folder).free - LEAST_FREE)
    found: dict[str, Listed] = {}
    contents: Contents | None = None
    for name, file in members(archive, most):
        if name == LIST:
            contents = read_list(file)
        else:
            found[name] = put_file(held, name, file)
    assert contents is not None
    for name in sorted({*found, *contents.files}):
        if found.get(name) != contents.files.get(name):
            raise BadArchive(f"{name} in the archive is not what its list says")
    report = look(held, None)
    if report.findings:
        first = report.findings[0]
        raise BadArchive(f"what is in the archive is not whole: {first.place}: {first.text}")
    # The database goes last: without it, nobody takes this for a state folder.
    for name in sorted(os.listdir(held), key=lambda name: name == "store"):
        if name == "tmp":
            continue
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            (folder / name).rmdir()
        (held / name).rename(folder / name)
    shutil.rmtree(held)
    return Backup(contents, report.rows)


def _empty(folder: Path, new: bool) -> None:
    for entry in list(os.scandir(folder)) if folder.is_dir() else []:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            os.unlink(entry.path)
    if new and folder.is_dir():
        folder.rmdir()
