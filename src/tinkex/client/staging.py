"""The folder in which a download grows until it is whole, beside the one it will become.

A second attempt, by this process or a later one, goes on from what is there.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import DownloadError, InvalidArgumentError
from .archives import OWN_PREFIX
from .file_fetch import Mark

__all__ = ["Staging"]

_STATE = f"{OWN_PREFIX}download.json"
_LOCK = f"{OWN_PREFIX}lock"
_LAST = "checkpoint_complete"  # by this file others know that the rest is there


class Staging:
    """The unfinished form of a folder, for one checkpoint at a time."""

    def __init__(self, destination: str | os.PathLike[str], source: str, *, overwrite: bool) -> None:
        self.destination: Path = Path(os.path.abspath(Path(destination).expanduser()))
        if not self.destination.name:
            raise InvalidArgumentError(f"folder: {self.destination} cannot be a download's folder")
        self.folder: Path = self.destination.with_name(f"{self.destination.name}.part")
        self.marks: dict[str, Mark] = {}
        self._source = source
        self._lock: int | None = None
        self._saving = threading.Lock()
        if self.destination.exists():
            if not self.destination.is_dir():
                raise InvalidArgumentError(f"folder: {self.destination} is not a folder")
            if not overwrite and any(self.destination.iterdir()):
                raise InvalidArgumentError(
                    f"folder: {self.destination} is not empty; choose another or pass overwrite=True"
                )

    def open(self) -> None:
        """Take the folder for oneself; what was gathered for another checkpoint is thrown away."""
        if self.folder.is_symlink():
            raise DownloadError(f"{self.folder} is a link: remove it")
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._read() is None and any(path.name != _LOCK for path in self.folder.iterdir()):
            raise DownloadError(f"{self.folder} was not made by a download: move it away")
        self._lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        _take(self._lock, self.folder)
        state = self._read()
        if state is not None and state.get("source") == self._source:
            self.marks = {name: Mark(*mark) for name, mark in state["files"].items()}
        else:
            self.keep(())
        self.save()

    def close(self) -> None:
        """Let others have the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _read(self) -> dict[str, Any] | None:
        try:
            state = json.loads((self.folder / _STATE).read_text())
        except (OSError, ValueError):
            return None
        return state if isinstance(state, dict) and isinstance(state.get("files"), dict) else None

    def save(self) -> None:
        """Note what is known of the files, for the next attempt."""
        with self._saving:
            files = {name: [mark.size, mark.tag] for name, mark in list(self.marks.items())}
            handle, name = tempfile.mkstemp(dir=self.folder, prefix=OWN_PREFIX)
            with os.fdopen(handle, "w") as file:
                json.dump({"source": self._source, "files": files}, file)
            Path(name).replace(self.folder / _STATE)

    def mark(self, name: str) -> Mark:
        """What is known of a file."""
        return self.marks.setdefault(name, Mark())

    def path(self, name: str) -> Path:
        """Where a file grows."""
        return self.folder / name

    def keep(self, names: Iterable[str]) -> None:
        """Throw away every file but these."""
        kept = {self.folder / name for name in (*names, _STATE, _LOCK)}
        for path in sorted(self.folder.rglob("*"), reverse=True):  # what is inside a folder comes first
            if path.is_dir() and not path.is_symlink():
                if not any(path.iterdir()):
                    path.rmdir()
            elif path not in kept:
                path.unlink()

    def finish(self, names: Iterable[str]) -> None:
        """Put the files where they belong; a new folder appears with all of them at once."""
        names = sorted(names, key=lambda name: (name == _LAST, name))
        self.keep(names)
        if os.name == "nt":  # there, an open file can be neither removed nor moved
            self.close()
        if not self.destination.exists():
            (self.folder / _STATE).unlink()
            (self.folder / _LOCK).unlink()
            self.folder.rename(self.destination)
            return
        for name in names:
            self._move(name)
        shutil.rmtree(self.folder)

    def _move(self, name: str) -> None:
        target = self.destination / name
        for above in target.relative_to(self.destination).parents:
            if (self.destination / above).is_symlink() and above != Path("."):
                raise DownloadError(f"{self.destination / above} is a link: it is not written through")
        target.parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).replace(target)


def _take(file: int, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # no such locks here: two downloads into one folder are not told apart
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise DownloadError(f"another download into {folder} is under way") from None
