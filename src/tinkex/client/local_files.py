"""What lies in the state folder of a server of one's own: who may start it, who uses it, where it is."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..config import Secret

__all__ = ["LocalFiles", "own_state"]

_EVERY = 0.05


def own_state(folders: Mapping[str, Path]) -> Path:
    """The state folder of a server for these models: always the same one."""
    root = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    if sys.platform == "darwin":
        root = Path.home() / "Library" / "Application Support"
    if os.environ.get("TINKEX_STATE"):
        place = Path(os.environ["TINKEX_STATE"]).expanduser()
    else:
        place = Path(root) / "tinkex"
    text = "\n".join(sorted(f"{name}={folder}" for name, folder in folders.items()))
    mark = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:10]
    readable = re.sub(r"[^A-Za-z0-9_.-]", "_", "+".join(sorted(folders)))[:60].lstrip(".")
    return place.absolute() / "local" / f"{readable}-{mark}"


class LocalFiles:
    """The files in one state folder by which those who share a server find each other."""

    log: Path
    said: Path
    users: Path

    def __init__(self, state: Path) -> None:
        self.state = state
        self._own = state / "local"
        self.users, self.log, self.said = (
            self._own / name for name in ("users", "server.log", "server.json")
        )

    def make(self) -> None:
        """Make the folders, for this user alone."""
        # Those above too: mkdir would make them as everybody's umask has it.
        above = [each for each in self.state.parents if not each.exists()]
        for folder in (*reversed(above), self.state, self._own):
            folder.mkdir(mode=0o700, exist_ok=True)
            # Who owns the folder can put another key or another server's address in the place of ours.
            if hasattr(os, "geteuid") and os.geteuid() not in (0, folder.stat().st_uid):
                raise PermissionError(errno.EACCES, "it belongs to somebody else")

    # ---- locks

    def use(self, waiting: Callable[[], None]) -> int:
        """Say that this process uses the server, until the answered file is closed everywhere.

        A server that is about to end has the file for itself until it has ended.
        """
        file = os.open(self.users, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _take(file, waiting, shared=True)
        except BaseException:
            os.close(file)
            raise
        return file

    @contextlib.contextmanager
    def starting(self, waiting: Callable[[], None]) -> Iterator[None]:
        """Be the only one who looks for a server and starts it."""
        import fcntl

        file = os.open(self._own / "starting", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _take(file, waiting, shared=False)
            yield
        finally:
            # Unlocked, not only closed: a process forked meanwhile by another thread has the file open too.
            fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)

    # ---- the server

    def running(self) -> dict[str, Any] | None:
        """What the running server said of itself, `url` and `pid` at least; None if none has."""
        try:
            facts = json.loads(self.said.read_text("utf-8"))
        except (OSError, ValueError):
            return None
        right = isinstance(facts, dict) and isinstance(facts.get("url"), str)
        return facts if right and facts.get("pid") == self.holder() else None

    def holder(self) -> int | None:
        """The process whose server has the state folder, whoever started it."""
        import fcntl

        try:
            file = os.open(self.state / "lock", os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(file, 32, 0).decode("ascii", "replace").strip()
            return int(text) if text.isdecimal() else -1
        finally:
            os.close(file)
        return None

    def key(self) -> Secret:
        """The key of the server, made once; only its owner can read the file."""
        path = self._own / "key"
        with contextlib.suppress(FileNotFoundError):
            return Secret(path.read_text("ascii").strip())
        key = f"tml-{secrets.token_urlsafe(24)}"
        aside = path.with_name(f"key.{os.getpid()}")
        file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(file, "w") as writing:
            writing.write(f"{key}\n")
        aside.replace(path)
        return Secret(key)

    # ---- how it was started

    def remember(self, how: list[str]) -> None:
        """Keep the arguments a server is about to be started with."""
        (self._own / "arguments.json").write_text(json.dumps(how), "utf-8")

    def remembered(self) -> list[str]:
        """The arguments the server was started with."""
        try:
            how: list[str] = json.loads((self._own / "arguments.json").read_text("utf-8"))
        except (OSError, ValueError):
            return []
        return how

    def last_lines(self, count: int) -> list[str]:
        """The end of the server's log."""
        try:
            return self.log.read_text("utf-8", "replace").splitlines()[-count:]
        except OSError:
            return []


def _take(file: int, waiting: Callable[[], None], *, shared: bool) -> None:
    """Lock a file; asked again and again, so that a signal gets through in the meantime."""
    import fcntl

    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            time.sleep(_EVERY)
        else:
            return
