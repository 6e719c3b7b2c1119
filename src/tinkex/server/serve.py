"""One server from its start to its end: state folder, socket, keys, application, and a tidy stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol, TextIO, TypeAlias

from ..config import Secret
from . import banner, logs
from .keys import KeyInfo, KeyRing
from .listening import CannotStart, address, allow_many_connections, check_tls, is_loopback, listen
from .options import ServerOptions
from .places import KEY_FILE, TOKEN_SECRET
from .state_folder import StateFolder, StateInUse
from .tokens import Tokens
from .users import Users

__all__ = ["Application", "CannotStart", "MakeApplication", "run"]

log = logging.getLogger(__name__)
LOOK_EVERY = 0.05
"""Seconds between two looks at whether the state folder is free."""
FEW_FILES = 4096
"""Fewer connections than this are soon used up by clients that wait for results."""

Mode: TypeAlias = Literal["table", "json", "quiet"]


class Application(Protocol):
    """An ASGI application with a lifespan that can be asked to come to an end."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or live from start to stop."""

    async def drain(self) -> None:
        """Take no new work, and return when running work has ended or had its time."""

    def release(self) -> None:
        """Have those who wait for results ask again, of the server that comes next."""


Ready: TypeAlias = Callable[[str, str, str], None]
"""Told the name, device and dtype of a model that can be used."""
MakeApplication: TypeAlias = Callable[
    [ServerOptions, KeyRing, str, Ready, StateFolder], Awaitable[Application]
]


def run(
    options: ServerOptions,
    *,
    mode: Mode = "table",
    stdout: TextIO | None = None,
    make: MakeApplication | None = None,
) -> int:
    """Serve until told to stop, then 0; a `TinkerError` says why it could not start."""
    logs.set_up(options.log_level, options.log_format)
    check_tls(options)
    files = allow_many_connections()
    if files is not None and files < FEW_FILES:
        log.warning("only %d files and connections may be open; raise it with ulimit -n", files)
    with contextlib.ExitStack() as stack:
        # Whatever is written, by engines too, is for whoever runs the server alone.
        stack.callback(os.umask, os.umask(0o077))
        # Let go of after the state folder: who waits for it can have that at once.
        users = None if options.while_locked is None else stack.enter_context(Users(options.while_locked))
        folder = stack.enter_context(_state_folder(options))
        keys = KeyRing(options.state / KEY_FILE, extra=options.api_key, extra_owner=options.owner)
        keys.tokens = Tokens(options.state / TOKEN_SECRET, keys)
        made = keys.ensure_one(options.owner)
        listener = stack.enter_context(contextlib.closing(listen(options.host, options.port)))
        front = _Front(
            options, keys, listener, None if made is None else made[1], mode, stdout or sys.stdout
        )
        runner = stack.enter_context(asyncio.Runner(loop_factory=_new_loop))
        return runner.run(_serve(front, make or _assembled, folder, users))


async def _assembled(
    options: ServerOptions, keys: KeyRing, url: str, ready: Ready, folder: StateFolder
) -> Application:
    from .assembly import assemble

    return await assemble(options, keys, url, ready, folder)


def _state_folder(options: ServerOptions) -> StateFolder:
    until = time.monotonic() + options.wait_for_lock
    waiting = False
    while True:
        try:
            return StateFolder(options.state)
        except StateInUse as problem:
            if time.monotonic() >= until:
                raise CannotStart(f"{problem} with --state") from None
            if not waiting:
                waiting = True
                log.info("waiting up to %.0f s: %s", options.wait_for_lock, problem)
            time.sleep(LOOK_EVERY)
        except OSError as problem:
            raise CannotStart(f"state folder {options.state}: {problem.strerror}") from None


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # there is none for this platform
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class _Front:
    """What is said to whoever started the server."""

    def __init__(
        self,
        options: ServerOptions,
        keys: KeyRing,
        listener: socket.socket,
        new_key: Secret | None,
        mode: Mode,
        stdout: TextIO,
    ) -> None:
        self.options, self.keys, self.listener = options, keys, listener
        self.url = address(listener, tls=options.tls_cert is not None)
        self._new_key, self._mode, self._stdout = new_key, mode, stdout
        self._began = time.monotonic()
        self._announced: set[str] = set()

    def listening(self) -> None:
        if self._mode == "json":
            self._say(banner.first_line(self.options, self.url, self._new_key))
        elif self._mode == "quiet":
            self._say(self.options.public_url or self.url)
            if self._new_key is not None:
                self._say(self._new_key.reveal())
        else:
            self._say(banner.banner(self.options, self.url, self._open_keys(), self._new_key))
        self._new_key = None
        for warning in banner.warnings(self.options, loopback=is_loopback(self.listener)):
            log.warning("%s", warning)

    def ready(self, name: str, device: str, dtype: str) -> None:
        if self._mode == "table" and name not in self._announced:
            self._announced.add(name)
            self._say(banner.ready_line(name, device, dtype, time.monotonic() - self._began))

    def _open_keys(self) -> list[KeyInfo]:
        given = [] if self.keys.ad_hoc is None else [self.keys.ad_hoc]
        return given + [info for info in self.keys.list() if info.revoked is None]

    def _say(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # whoever read it has gone; the server stays
            self._stdout.write(f"{text}\n")
            self._stdout.flush()


async def _serve(front: _Front, make: MakeApplication, folder: StateFolder, users: Users | None) -> int:
    from .http_server import HttpServer, configure

    app = await make(front.options, front.keys, front.url, front.ready, folder)
    config = configure(front.options, app)
    server = HttpServer(config, listening=front.listening, drain=app.drain, release=app.release)
    leaving = None if users is None else asyncio.create_task(_leave_with(users, server.leave))
    # An application that does not start has told the log why; some uvicorns leave the process then.
    with contextlib.suppress(SystemExit):
        await server.serve(sockets=[front.listener])
    if leaving is not None:
        leaving.cancel()
    return 0 if server.started else 1


async def _leave_with(users: Users, leave: Callable[[], None]) -> None:
    await users.gone()
    log.info("nobody uses this server any more")
    leave()
