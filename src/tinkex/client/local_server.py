"""A server of one's own: started when first wanted, shared by all who want the same, gone with the last.

Whoever uses it holds a lock on a file in its state folder, shared with the others; a forked process holds
its parent's. The system lets go of locks with the process, however that ends, and the server stops by
itself once nobody holds this one: nothing has to be counted, and a crash leaves nothing behind.

What a server does is not known here: it is a process of its own, and one talks to it as to any other.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from .. import models
from ..config import LOCAL, Config, Secret
from ..errors import InvalidArgumentError, TinkerError
from ..net.locks import new_lock
from .local_files import LocalFiles, own_state

__all__ = ["NEEDED", "LocalServer", "LocalServerError", "join_again", "local_server", "reached"]

NEEDED = ("uvicorn", "torch", "transformers", "safetensors", "tokenizers")
"""What a server needs beyond a client; looked for, not imported: a server is a process of its own."""
START_SECONDS = 900.0
"""For how long a server is waited for; large models take minutes to load."""
_EVERY = 0.05
_STOP_SECONDS = 10.0
_DRAIN_SECONDS = 2  # a server nobody uses has nobody to finish its work for
_LINES = 12  # of the log, in an error
# What must not come from the environment: the server would be somewhere else, or somebody else's.
_NOT_PASSED_ON = re.compile(
    r"TINKER_.*|TINKEX_(HOST|PORT|PUBLIC_URL|TLS_.*|STATE|MODEL|OWNER|WHILE_LOCKED)"
)

Waiting: TypeAlias = Callable[[], None]
"""Called again and again while something is waited for."""


class LocalServerError(TinkerError):
    """A server of one's own could not be started; the text says why, with the end of its log."""


class _Gone(Exception):
    """The server that was waited for has ended."""


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A running server of one's own."""

    url: str
    key: Secret
    pid: int
    state: Path


def reached(config: Config) -> Config:
    """The same config; where it asks for `local`, with the address and key of that server.  Blocks."""
    if config.base_url != LOCAL:
        return config
    server = local_server(config.local_models, state=config.local_state, options=config.local_options)
    return _at(config, server.url, server.key, server.state)


def join_again(config: Config, state: str) -> Config:
    """A config with the key of a server that another process of this user has told of."""
    return _at(config, config.base_url, LocalFiles(Path(state)).key(), Path(state))


def _at(config: Config, url: str, key: Secret, state: Path) -> Config:
    # Whatever proxy and credentials there are, they are for other servers.
    return config.with_(
        base_url=url, api_key=key, credential_command=None, proxy=None, local_state=str(state)
    )


_lock = new_lock()
_used: dict[Path, int] = {}  # state folder -> the file whose lock says that this process uses its server
_started: dict[Path, subprocess.Popen[bytes]] = {}


def local_server(
    names: str | Sequence[str] = "nano",
    *,
    state: str | Path | None = None,
    options: Sequence[str] = (),
    timeout: float = START_SECONDS,
) -> LocalServer:
    """The server of these models on this machine, started if it does not run; blocks until it is ready.

    A model is a name or a folder, or `NAME=FOLDER`. Without a state folder each set of models has its own,
    which stays: checkpoints are there the next time. `options` are more arguments of `tinkex serve`.
    """
    _check_installed()
    folders = _folders([names] if isinstance(names, str) else names)
    files = LocalFiles(_own_state(folders) if state is None else models.expanded(state).absolute())
    arguments = [word for name, folder in folders.items() for word in ("--model", f"{name}={folder}")]
    with _lock, _telling(", ".join(folders)) as waiting:
        _make(files)
        fresh = files.state not in _used
        if fresh:
            _used[files.state] = files.use(waiting)
        try:
            with files.starting(waiting):
                return _ensured(files, [*arguments, *options], timeout, waiting)
        except BaseException:
            if fresh:
                os.close(_used.pop(files.state))
            raise


def _check_installed() -> None:
    if sys.platform == "win32":
        raise LocalServerError("a local server needs Linux or macOS; on Windows use it inside WSL")
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise LocalServerError(
            f"a local server needs what is not installed here ({', '.join(missing)}): "
            'pip install "tinkex[server]"'
        )


def _folders(names: Sequence[str]) -> dict[str, Path]:
    """Every model's folder by the name it is served under."""
    found: dict[str, Path] = {}
    for each in names:
        name, equals, folder = each.partition("=")
        place = models.check(models.expanded(folder), name) if equals else models.resolve(name)
        found[place.name if not equals and models.is_path(name) else name] = place
    if not found:
        raise InvalidArgumentError("a local server needs a model: give its name or folder")
    return found


def _own_state(folders: dict[str, Path]) -> Path:
    try:
        return own_state(folders)
    except RuntimeError:  # whoever runs this has no home
        raise LocalServerError(
            "there is no home folder to keep a local server's things in: pass state=…"
        ) from None


def _make(files: LocalFiles) -> None:
    try:
        files.make()
    except OSError as problem:
        raise LocalServerError(f"state folder {files.state}: {problem.strerror}") from None


def _ensured(files: LocalFiles, arguments: list[str], timeout: float, waiting: Waiting) -> LocalServer:
    """The server that runs, or a new one."""
    latest = time.monotonic() + timeout
    if files.running() is not None:
        if files.remembered() != arguments:
            raise InvalidArgumentError(
                f"the server in {files.state} was started with {' '.join(files.remembered())}: "
                "while it runs, others can have no other; give a state folder of its own (state=…)"
            )
        with contextlib.suppress(_Gone):  # somebody ended it in this very moment
            return _when_ready(files, None, latest, waiting)
    process = _launch(files, arguments)
    try:
        return _when_ready(files, process, latest, waiting)
    except BaseException:
        _end(process)
        raise


def _launch(files: LocalFiles, arguments: list[str]) -> subprocess.Popen[bytes]:
    files.remember(arguments)
    command = [
        *(sys.executable, "-P", "-m", "tinkex", "serve", "--json", "--host", "127.0.0.1", "--port", "0"),
        *("--state", str(files.state), "--while-locked", str(files.users), "--owner", "local"),
        *("--time", f"drain={_DRAIN_SECONDS}", *arguments),
    ]
    with files.said.open("wb") as said, files.log.open("wb") as log:
        try:
            process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=log,
                cwd=files.state,
                env={**_environment(), "TINKER_API_KEY": files.key().reveal()},
                start_new_session=True,  # Ctrl-C is for the program, not for its server
            )
        except OSError as problem:
            raise LocalServerError(f"{sys.executable} cannot be started: {problem.strerror}") from None
    if files.state in _started:  # it has died; the system waits for somebody to take note
        _started[files.state].poll()
    _started[files.state] = process
    return process


def _environment() -> dict[str, str]:
    """This process's environment, in which a child finds this package from any folder."""
    kept = {name: value for name, value in os.environ.items() if not _NOT_PASSED_ON.fullmatch(name)}
    paths = [str(Path(path).absolute()) for path in kept.get("PYTHONPATH", "").split(os.pathsep) if path]
    ours = str(Path(__file__).absolute().parents[2])
    if ours not in (*paths, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        paths.append(ours)
    return {**kept, **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})}


def _when_ready(
    files: LocalFiles, process: subprocess.Popen[bytes] | None, latest: float, waiting: Waiting
) -> LocalServer:
    while True:
        code = None if process is None else process.poll()
        facts = files.running()
        status = "" if facts is None else _status(facts["url"])
        if facts is not None and status == "ready":
            return LocalServer(facts["url"], files.key(), facts["pid"], files.state)
        if process is None and facts is None:
            raise _Gone
        if code is not None:
            raise _failure(files, f"exit code {code}")
        if status == "failing":
            raise _failure(files, "its engine does not start")
        if time.monotonic() > latest:
            raise _failure(files, "it took too long")
        waiting()
        time.sleep(_EVERY)


def _status(url: str) -> str:
    """What the server says of itself: starting, ready, failing, stopping; nothing if it is silent."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=10)
    try:
        connection.request("GET", "/readyz")
        return str(json.loads(connection.getresponse().read())["status"])
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return ""
    finally:
        connection.close()


def _failure(files: LocalFiles, what: str) -> LocalServerError:
    """Why there is no server: its own last word if it had one, and the end of its log."""
    lines = files.last_lines(_LINES)
    try:
        said = json.loads(lines[-1])
        return LocalServerError(
            f"the local server could not start: {said['error']}"
            + (f" ({said['hint']})" if said["hint"] else "")
        )
    except (IndexError, KeyError, TypeError, ValueError):
        shown = "".join(f"\n  {line}" for line in lines)
        return LocalServerError(
            f"the local server could not start{f': {what}' if what else ''}; the end of {files.log}:{shown}"
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _in_notebook() -> bool:
    return type(sys.stderr).__module__.startswith("ipykernel.")


@contextlib.contextmanager
def _telling(names: str) -> Iterator[Waiting]:
    """Show on a terminal or in a notebook how long it has been taking; nothing if there was no wait."""
    watched = sys.stderr is not None and (sys.stderr.isatty() or _in_notebook())
    began, shown = time.monotonic(), ""

    def waiting() -> None:
        nonlocal shown
        now = f"\rloading {names}… {time.monotonic() - began:.0f} s "
        if watched and now != shown:
            shown = now
            sys.stderr.write(now)
            sys.stderr.flush()

    def last(text: str) -> None:
        if shown:
            sys.stderr.write(f"\rloading {names}… {text}\n")
            sys.stderr.flush()

    try:
        yield waiting
    except BaseException:
        last("not started")
        raise
    last(f"ready in {time.monotonic() - began:.1f} s")
