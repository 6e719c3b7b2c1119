"""A child process that lives and dies with this one: how it is started, what it logs, how it ended.

What is said to it, and over what, is not known here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import sysconfig
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..engine.durable import make_folders

log = logging.getLogger(__name__)
LINES = 20
"""Last lines of its log that are told when it ends."""
_LINE = 8192
_LOG_WAIT = 1.0
_SECRET = re.compile(r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL)S?(_|$)", re.I)
_LEVEL = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) ")


def child_environment(given: Mapping[str, str]) -> dict[str, str]:
    """An environment without its secrets, in which a child finds this package from any folder."""
    kept = {name: value for name, value in given.items() if not _SECRET.search(name)}
    paths = [str(Path(path).absolute()) for path in kept.get("PYTHONPATH", "").split(os.pathsep) if path]
    ours = str(Path(__file__).absolute().parents[2])
    if ours not in (*paths, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        paths.append(ours)
    if paths:
        kept["PYTHONPATH"] = os.pathsep.join(paths)
    return kept


class ChildProcess:
    """A Python module running in a process of its own."""

    def __init__(self, module: str, arguments: Sequence[str], *, name: str) -> None:
        self.name = name
        self._command = [sys.executable, "-P", "-m", module, *arguments]
        self._lines: deque[str] = deque(maxlen=LINES)
        self._level = logging.INFO
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return None if self._process is None else self._process.pid

    def start(self, *, fds: Sequence[int], folder: Path | None, extra: Mapping[str, str]) -> None:
        """Start it in a folder, made if not there, with these open files; raises OSError.

        On Linux a child that asks to die with its parent dies with the thread that calls this.
        """
        loop = asyncio.get_running_loop()
        self._code: asyncio.Future[int] = loop.create_future()
        self._log_over = asyncio.Event()
        if folder is not None:
            make_folders(folder)
        read, write = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=write,
                pass_fds=tuple(fds),
                cwd=folder,
                env={**extra, **child_environment(os.environ)},
            )
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        self._log = os.fdopen(read, "rb", 0)
        threading.Thread(target=self._wait, args=(loop,), name=f"{self.name}-wait", daemon=True).start()

    async def read_log(self) -> None:
        """Begin to pass on what it writes."""
        try:
            await asyncio.get_running_loop().connect_read_pipe(lambda: _Lines(self), self._log)
        except BaseException:
            self._log.close()
            self._log_over.set()
            raise

    async def ended(self) -> str:
        """Wait until it is gone and its log has been read; how it ended, with the last lines."""
        code = await asyncio.shield(self._code)
        with contextlib.suppress(TimeoutError):  # somebody else may hold its log open
            await asyncio.wait_for(self._log_over.wait(), _LOG_WAIT)
        return "\n".join([f"{self.name} {_how(code)}", *self._lines])

    def kill(self) -> None:
        """End it now."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def heard(self, line: str) -> None:
        """Pass on a line it wrote; one without a level belongs to the line before it."""
        found = _LEVEL.match(line)
        if found:
            self._level = logging.getLevelNamesMapping()[found[1]]
        log.log(self._level, "%s: %s", self.name, line[found.end() :] if found else line)
        self._lines.append(line)

    def log_ended(self) -> None:
        """It writes no more."""
        self._log_over.set()

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._process is not None
        code = self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            loop.call_soon_threadsafe(self._code.set_result, code)


class _Lines(asyncio.Protocol):
    """Cuts a child's log into lines."""

    def __init__(self, child: ChildProcess) -> None:
        self._child, self._rest = child, b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LINE:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._pass_on(line)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pass_on(self._rest)
        self._child.log_ended()

    def _pass_on(self, line: bytes) -> None:
        text = line[:_LINE].decode(errors="replace").rstrip()
        if text:
            self._child.heard(text)


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
