"""The folder in which a server keeps everything: one server at a time, and no name leads out of it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import stat
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from ..engine.durable import make_folders

ROOMS = ("store", "checkpoints", "snapshots", "engine", "tmp")
"""The folders inside."""
LONGEST_NAME = 200
"""Characters of a file's name, as encoded; file systems take 255."""

_UNSAFE = re.compile(rb"[^A-Za-z0-9_.-]")


class StateInUse(Exception):
    """Another server has this state folder."""


def file_name(name: str) -> str:
    """A name from the network as the name of a file; different names stay different.

    Everything but letters, digits, `_`, `.` and `-` is written as `%` and two hexadecimal digits; what is
    then too long ends in `%%` and a digest of the whole. ValueError for names that are empty, `.` or `..`.
    """
    encoded = _UNSAFE.sub(lambda found: b"%%%02X" % ord(found[0]), name.encode("utf-8", "surrogatepass"))
    if encoded in (b"", b".", b".."):
        raise ValueError(f"{name!r} cannot be the name of a file")
    if len(encoded) > LONGEST_NAME:
        digest = b"%%" + hashlib.sha256(encoded).hexdigest()[:40].encode()
        encoded = encoded[: LONGEST_NAME - len(digest)] + digest
    return encoded.decode()


def is_inside(state: Path, folder: Path) -> bool:
    """Whether a folder that a row names lies below the state folder, by its name."""
    return state in Path(os.path.normpath(folder)).parents


class StateFolder:
    """A state folder, locked for this process until it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        make_folders(self.path, 0o700)
        _check_ours(self.path)
        self._lock: int | None = _take_lock(self.path)
        try:
            for folder in (self.path, *(self.path / room for room in ROOMS)):
                make_folders(folder, 0o700)
                _check_ours(folder)
                folder.chmod(0o700)
            _empty(self.tmp)
        except BaseException:
            self.close()
            raise

    # ---- where things lie

    @property
    def store(self) -> Path:
        """Where the database and the bodies of operations are."""
        return self.path / "store"

    @property
    def tmp(self) -> Path:
        """For files that are needed for a moment; emptied at every start."""
        return self.path / "tmp"

    def snapshot(self, model_id: str, seq: int) -> Path:
        """The folder of a model's snapshot."""
        return self.path / "snapshots" / file_name(model_id) / str(int(seq))

    def checkpoint(self, run_id: str, kind: str, name: str, seq: int) -> Path:
        """The folder of a checkpoint; every save has one of its own."""
        room = self.path / "checkpoints" / file_name(run_id) / file_name(kind)
        return room / f"{file_name(name)}-{int(seq)}"

    def engine(self, folder: Path) -> Path:
        """Where the engine of a base model's folder keeps cold states and ephemeral samplers."""
        whole = str(folder.absolute())
        mark = hashlib.sha256(whole.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        readable = re.sub(r"[^A-Za-z0-9_-]", "_", folder.name)[:40]
        return self.path / "engine" / f"{readable}-{mark}"

    # ---- how full it is

    def usage(self) -> dict[str, int]:
        """Bytes on disk by folder, and under `free` what the device has left for us."""
        used = {room: size_on_disk(self.path / room) for room in ROOMS}
        return {**used, "free": shutil.disk_usage(self.path).free}

    # ---- letting go

    def close(self) -> None:
        """Let another server have the folder."""
        lock, self._lock = self._lock, None
        if lock is not None:
            # Emptied before it is released: a process number there is always that of the holder.
            with contextlib.suppress(OSError):
                os.ftruncate(lock, 0)
            os.close(lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def holder(folder: Path) -> int | None:
    """The process whose server has a folder (-1: one that cannot be told), if one has."""
    try:
        file = os.open(folder / "lock", os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        if _lock_file(file):
            return None
        text = "" if os.name == "nt" else os.pread(file, 32, 0).decode("ascii", "replace").strip()
        return int(text) if text.isdecimal() else -1
    finally:
        os.close(file)


def _check_ours(folder: Path) -> None:
    """Refuse a folder, or a link, of somebody else: they could have us write and delete elsewhere."""
    if not hasattr(os, "geteuid"):
        return
    found, us = os.lstat(folder), os.geteuid()
    # The superuser may be given a folder of another, as containers are, but follows nobody else's links.
    if found.st_uid != us and (us != 0 or stat.S_ISLNK(found.st_mode)):
        raise PermissionError(errno.EACCES, "it belongs to somebody else", str(folder))


def _take_lock(folder: Path) -> int:
    """Lock the folder for as long as the answered file is open; it does not outlive the process."""
    file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        if not _lock_file(file):
            holder = os.pread(file, 32, 0).decode("ascii", "replace").strip() if os.name != "nt" else ""
            who = f"process {holder}" if holder else "another process"
            raise StateInUse(
                f"{folder} is in use by {who}: stop that server or choose another state folder"
            )
        with contextlib.suppress(OSError):  # a full disk: the lock holds without the number
            os.ftruncate(file, 0)
            os.write(file, f"{os.getpid()}\n".encode())
    except BaseException:
        os.close(file)
        raise
    return file


if sys.platform == "win32":
    import msvcrt

    def _lock_file(file: int) -> bool:
        try:
            # Far behind what is written there: a locked byte cannot be written by others or by us.
            os.lseek(file, 1 << 20, os.SEEK_SET)
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
            os.lseek(file, 0, os.SEEK_SET)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _lock_file(file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _empty(folder: Path) -> None:
    for entry in list(os.scandir(folder)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.unlink(entry.path)


def size_on_disk(folder: Path) -> int:
    """Bytes the files below a folder take on disk; what vanishes while it is counted is not counted."""
    total, folders = 0, [str(folder)]
    while folders:
        with contextlib.suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(found.st_mode):
                        folders.append(entry.path)
                    else:
                        # Windows has no blocks; the length is near enough.
                        total += getattr(found, "st_blocks", 0) * 512 or found.st_size
    return total
