"""The server's end of an engine: one in a process of its own, or one in a thread of this process.

A link moves messages and tells when the engine is gone; what to do then, and what the messages mean, is not
known here. Everything happens on the loop that started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias, cast, runtime_checkable

from ..engine.codec import CodecError, Frames, packed
from ..engine.messages import Answer, Failed, Message, Pulse, Ready, Request, Scalar, Start
from .child_process import ChildProcess

log = logging.getLogger(__name__)
CHILD = "tinkex.engine.child"
"""The module an engine's process runs."""
GRACE = 10.0
"""Seconds an engine has to end by itself."""
_QUIET = {"OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
Deliver: TypeAlias = Callable[[Answer], None]
Lost: TypeAlias = Callable[[str], None]
"""Told why an engine is gone; the first line is for everybody, the engine's last words follow it."""


class EngineStartFailed(Exception):
    """An engine could not be started; the text says why."""


class LinkClosed(Exception):
    """The engine is gone, was closed, or has not been started yet."""


class EngineLink(Protocol):
    """One engine, from its start to its end."""

    epoch: int
    facts: dict[str, Scalar]
    eos: tuple[int, ...]

    async def start(self) -> None:
        """Wait until the engine takes messages; raises `EngineStartFailed`."""

    def submit(self, message: Request) -> None:
        """Send a message without waiting, from the loop's thread; raises `LinkClosed`.

        Its arrays may be read later, when there is room on the way: they must not be changed afterwards.
        """

    def kill(self, reason: str) -> None:
        """End the engine at once; it is told as an engine that ended by itself is."""

    async def close(self) -> None:
        """End the engine; nothing is delivered from now on."""


@runtime_checkable
class PulsingLink(Protocol):
    """A link whose engine tells by itself what it is at."""

    pulse: Callable[[Pulse], None]


class EngineHost(Protocol):
    """What a `ThreadLink` needs of what runs an engine in a thread."""

    def ready(self) -> Ready:
        """The engine's facts."""

    def submit(self, message: Request) -> None:
        """Hand over a message."""

    def close(self) -> None:
        """Stop the engine and wait for its thread."""


class ThreadLink:
    """An engine in a thread of this process.

    `open_host` makes it, in a thread, given where answers go and whom to tell when the engine ends by
    itself: `lambda deliver, ended: Host(Engine(…), deliver, ended=ended)`.
    """

    def __init__(
        self, open_host: Callable[[Deliver, Lost], EngineHost], epoch: int, deliver: Deliver, lost: Lost
    ) -> None:
        self.epoch = epoch
        self.facts: dict[str, Scalar] = {}
        self.eos: tuple[int, ...] = ()
        self._open_host, self._deliver, self._lost = open_host, deliver, lost
        self._host: EngineHost | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answers: deque[Answer] = deque()
        self._coming = False
        self._closed = False

    async def start(self) -> None:
        """Make the engine; raises `EngineStartFailed`."""
        self._loop = asyncio.get_running_loop()
        try:
            host = await asyncio.to_thread(self._open_host, self._take, self._ended)
        except Exception as error:
            raise EngineStartFailed(f"{type(error).__name__}: {error}") from error
        if self._closed:
            await asyncio.to_thread(host.close)
            raise EngineStartFailed("the engine was closed while it started")
        ready = host.ready()
        self.epoch, self.facts, self.eos = ready.epoch, ready.facts, tuple(ready.eos.tolist())
        self._host = host

    def submit(self, message: Request) -> None:
        """Send a message; raises `LinkClosed`."""
        if self._host is None or self._closed:
            raise LinkClosed("the engine is closed" if self._closed else "the engine is not started")
        try:
            self._host.submit(message)
        except CodecError:
            raise
        except Exception as problem:
            raise LinkClosed(f"the engine is gone: {problem}") from problem

    def kill(self, reason: str) -> None:
        """Let go of the engine; a thread cannot be ended, but nothing comes from it any more."""
        self._end(reason)

    async def close(self) -> None:
        """Stop the engine after the step it is in."""
        self._closed = True
        if self._host is not None:
            await asyncio.to_thread(self._host.close)

    def _take(self, answer: Answer) -> None:
        """Called in the engine's thread: the loop is woken once for all that waits."""
        # Appended before the flag is read, and the flag is cleared before the queue is emptied.
        self._answers.append(answer)
        if not self._coming:
            self._coming = True
            self._call(self._give)

    def _give(self) -> None:
        self._coming = False
        while self._answers:
            answer = self._answers.popleft()
            if not self._closed:
                self._deliver(answer)

    def _ended(self, reason: str) -> None:
        self._call(self._end, reason)

    def _end(self, reason: str) -> None:
        if not self._closed:
            self._closed = True
            self._lost(reason)

    def _call(self, action: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(action, *arguments)


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What an engine's process is to load and how it is to run."""

    folder: Path
    """The base model's files."""
    state: Path | None = None
    """The engine's own folder, made if not there; the process works in it."""
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    deterministic: bool = False
    trust_remote_code: bool = False
    log_level: str = "info"
    training: dict[str, Scalar] = field(default_factory=dict)
    """Options of the engine by name, where they differ from its defaults."""
    sampling: dict[str, Scalar] = field(default_factory=dict)
    """The same for its sampler."""
    pulse: float = 5.0
    """Seconds between two looks at whether there is anything new to tell of what the engine does."""

    def message(self, epoch: int) -> Start:
        """The first message to the process; paths are made absolute, for it works elsewhere."""
        return Start(
            epoch,
            str(Path(self.folder).absolute()),
            None if self.state is None else str(Path(self.state).absolute()),
            self.device,
            self.dtype,
            self.threads,
            self.deterministic,
            self.trust_remote_code,
            self.log_level,
            self.training,
            self.sampling,
            self.pulse,
        )


class ProcessLink:
    """An engine in a child process, which dies with this one.

    `deliver` gets every answer in order, on the loop; `lost` is told why, once, if it ends by itself;
    `pulse` is told now and then what the child is at, from its first moment on.
    """

    def __init__(self, spec: EngineSpec, epoch: int, deliver: Deliver, lost: Lost) -> None:
        self.spec, self.epoch = spec, epoch
        self.pulse: Callable[[Pulse], None] = lambda pulse: None
        self.facts: dict[str, Scalar] = {}
        self.eos: tuple[int, ...] = ()
        self._deliver, self._lost = deliver, lost
        self._child: ChildProcess | None = None
        self._transport: asyncio.Transport | None = None
        self._last_call: asyncio.TimerHandle | None = None
        self._fault = ""
        self._open = self._asked = self._closed = False

    @property
    def pid(self) -> int | None:
        """The child's process id, once it has one."""
        return None if self._child is None else self._child.pid

    async def start(self) -> None:
        """Start the child and wait until its model is loaded; raises `EngineStartFailed`."""
        if self._child is not None or self._closed:
            raise EngineStartFailed("a link starts one engine, once")
        if sys.platform == "win32":
            raise EngineStartFailed("engines in a process of their own need Linux or macOS")
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._wire_over = asyncio.Event()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        words = [str(theirs.fileno()), str(os.getpid())]
        child = ChildProcess(CHILD, words, name=f"engine {self.epoch}")
        try:
            child.start(fds=[theirs.fileno()], folder=self.spec.state, extra=_QUIET)
        except OSError as error:
            ours.close()
            raise EngineStartFailed(f"the engine's process could not be started: {error}") from error
        finally:
            theirs.close()
        self._child = child
        self._gone = loop.create_task(self._until_gone())
        try:
            await child.read_log()
            await loop.create_unix_connection(lambda: _Wire(self), sock=ours)
            self._send(self.spec.message(self.epoch))
            await self._ready
        except BaseException:
            self._ready.cancel()
            if self._transport is None:
                ours.close()
                self._wire_over.set()
            await self.close()
            raise

    def submit(self, message: Request) -> None:
        """Send a message without waiting; raises `LinkClosed`."""
        if not self._open:
            raise LinkClosed("the engine is gone" if self._child else "the engine is not started")
        self._send(message)

    def kill(self, reason: str) -> None:
        """Kill the child; it is told as one that died."""
        self._fault = f"{reason}; "
        self._open = False
        if self._child is not None:
            self._child.kill()

    async def close(self) -> None:
        """Let the child end the step it is in, kill it if that takes long; no process is left."""
        self._closed = True
        if self._child is None:
            return
        try:
            if self._open and self._transport is not None:
                self._open, self._asked = False, True
                self._transport.write_eof()
            if self._asked:
                await asyncio.wait([self._gone], timeout=GRACE)
        finally:
            self._child.kill()
            await asyncio.shield(self._gone)
            if self._transport is not None:
                self._transport.abort()

    def connected(self, transport: asyncio.Transport) -> None:
        """The socket is open."""
        self._transport = transport

    def take(self, message: Message) -> None:
        """A message came from the child."""
        if isinstance(message, Pulse):
            self.pulse(message)
        elif self._open:
            try:
                self._deliver(cast("Answer", message))
            except Exception:
                log.exception("an answer of engine %s was not taken", self.epoch)
        elif self._ready.done():
            return
        elif isinstance(message, Ready):
            self.facts, self.eos = message.facts, tuple(message.eos.tolist())
            self._open = True
            self._ready.set_result(None)
        elif isinstance(message, Failed):
            self._ready.set_exception(EngineStartFailed(message.text))

    def broken(self, problem: str) -> None:
        """Bytes came from the child that are no message."""
        self._fault = f"the engine sent what is no message ({problem}); "
        self._open = False
        assert self._child is not None
        self._child.kill()

    def disconnected(self) -> None:
        """The socket is closed: the child is at its end, or is brought there."""
        self._open = False
        self._wire_over.set()
        assert self._child is not None
        self._last_call = asyncio.get_running_loop().call_later(GRACE, self._child.kill)

    def _send(self, message: Request | Start) -> None:
        assert self._transport is not None
        buffers = packed([message])
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)

    async def _until_gone(self) -> None:
        assert self._child is not None
        reason = await self._child.ended()
        await self._wire_over.wait()  # what it had written before it ended is delivered first
        if self._last_call is not None:
            self._last_call.cancel()
        reason = self._fault + reason
        if not self._ready.done():
            self._ready.set_exception(EngineStartFailed(reason))
        elif not self._closed:
            try:
                self._lost(reason)
            except Exception:
                log.exception("that engine %s is gone could not be told", self.epoch)


class _Wire(asyncio.BufferedProtocol):
    """Cuts what a child sends into messages."""

    def __init__(self, link: ProcessLink) -> None:
        self._link, self._frames = link, Frames()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._link.connected(cast("asyncio.Transport", transport))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.space()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for message in self._frames.filled(nbytes):
                self._link.take(message)
        except CodecError as problem:
            self._link.broken(str(problem))

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.disconnected()
