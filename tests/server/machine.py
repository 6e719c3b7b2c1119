"""A whole server in process: an engine that computes nothing, time moved by hand, kills and restarts.

`@running()` turns `async def test_x(server)` into a test: the server is up when it begins and is stopped
when it ends. Everything goes through the ASGI application as bytes.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import inspect
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from tinkex.server import handlers
from tinkex.server.app import App
from tinkex.server.keys import KeyRing
from tinkex.server.options import Limits, ModelSpec, ServerOptions, Times
from tinkex.server.service import Service
from tinkex.server.sqlite_store import SqliteStore
from tinkex.server.state_folder import StateFolder
from tinkex.server.store import Store
from tinkex.testing import DirectLink, MemoryStore, NoopEngine, make_tiny_model

from .client import Answer, Client, Stream
from .rig import HandClock

BASE = "tiny"
OTHER = "other"
CONTEXT, VOCAB = 512, 1024
_TURNS = 40
"""Turns of the loop after which everything that could happen in memory has happened."""
assert handlers.ROOMS


@functools.cache
def base_folder(name: str) -> Path:
    """A tiny model's folder, made once."""
    place = tempfile.TemporaryDirectory(prefix="tinkex-")
    _kept.append(place)
    return make_tiny_model(Path(place.name) / name, context=CONTEXT, vocab=VOCAB)


_kept: list[tempfile.TemporaryDirectory[str]] = []


class SteadyClock(HandClock):
    """The same, moved without letting anything else happen; what is due at once comes by itself."""

    def call_later(self, seconds: float, action: Callable[[], None]) -> Callable[[], None]:
        """Call back once time has been moved that far."""
        if seconds <= 0:
            return asyncio.get_running_loop().call_soon(action).cancel
        return super().call_later(seconds, action)

    def advance(self, seconds: float) -> None:
        """Let time pass, calling what is due on the way, in order."""
        until = self.passed + seconds
        while self._waiting and self._waiting[0][0] <= until:
            self.passed, _, action = heapq.heappop(self._waiting)
            action()
        self.passed = until


@dataclass
class Machine:
    """One server and the means to ask, hold, kill and restart it."""

    folder: Path
    kind: str = "memory"
    """Which store: memory, or sqlite."""
    limits: dict[str, Any] = field(default_factory=dict)
    times: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    bases: Sequence[str] = (BASE,)
    hold: Sequence[type] = ()
    """Kinds of messages the next new engine holds back from its start."""
    pages: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = SteadyClock()
        self.engines: list[NoopEngine] = []
        """Every engine there ever was, oldest first."""
        self.links: list[DirectLink] = []
        self.refuse_engines = ""
        """While set, engines cannot start, for this reason."""
        self.answers: list[Answer] = []
        self.allowed_5xx: set[int] = set()
        self.state = self.folder / "state"
        self.keys = KeyRing(self.folder / "keys.json")
        self.key = {name: self.keys.add(f"{name}-key", name)[1].reveal() for name in ("ann", "bob")}
        self.ann, self.bob = Client(self, self.key["ann"]), Client(self, self.key["bob"])
        self.store: Store | None = None

    # ---- life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open a server on the state folder; engines are up when this returns, if they can be."""
        self.folders = StateFolder(self.state)
        if self.store is None:
            self.store = (
                MemoryStore() if self.kind == "memory" else await SqliteStore.open(self.folders.store)
            )
        options = ServerOptions(
            tuple(ModelSpec(name, base_folder(name)) for name in self.bases),
            self.folders.path,
            limits=replace(Limits(), **self.limits),
            times=replace(Times(), **self.times),
            **{"snapshot_seconds": 0.0, **self.options},
        )
        self.service = Service(
            options, self.store, self.keys, self.folders, self._link, clock=self.clock, url="http://here"
        )
        self.app = App(self.service, self.pages)
        await self.service.start()
        await self.settle()

    def _link(self, folder: Path, epoch: int, deliver: Any, lost: Any) -> DirectLink:
        def engine() -> NoopEngine:
            if self.refuse_engines:
                raise RuntimeError(self.refuse_engines)
            made = NoopEngine(
                epoch,
                vocab=VOCAB,
                context=CONTEXT,
                folder=self.folders.engine(folder),
                hold=self.hold,
            )
            self.hold = ()
            self.engines.append(made)
            return made

        self.links.append(DirectLink(engine, epoch, deliver, lost, as_bytes=True))
        return self.links[-1]

    async def stop(self) -> None:
        """Stop the server as Ctrl-C does; nothing it is waiting for takes real time."""
        self.refuse_engines = ""
        for engine in self.engines:
            engine.release()
        stopping = asyncio.ensure_future(self.service.stop())
        await self.until(stopping.done, each_turn=lambda: self.clock.advance(0.05))
        stopping.result()
        self.folders.close()
        self.store = None

    async def crash(self) -> None:
        """End the server as `kill -9` does: nothing is drained and nothing more is written."""
        service, store = self.service, self.store
        assert store is not None
        if isinstance(store, MemoryStore):
            # What is under way goes on writing, but to a store that nobody will read.
            self.store = store.copy()
        for task in list(service._tasks):
            task.cancel()
        await asyncio.gather(*service._tasks, return_exceptions=True)
        for room in service.rooms.values():
            await room.close()
        await store.close()
        if not isinstance(store, MemoryStore):
            self.store = None
        self.folders.close()

    async def reopen(self) -> None:
        """Stop as Ctrl-C does, and start again on what was written."""
        kept = self.store
        await self.stop()
        if isinstance(kept, MemoryStore):
            self.store = kept.copy()
        await self.start()

    async def restart(self) -> None:
        """Crash, and start again on what was written; a moment passes meanwhile."""
        await self.crash()
        self.clock.advance(1.0)
        await self.start()

    # ---- the engine

    @property
    def engine(self) -> NoopEngine:
        """The newest engine."""
        return self.engines[-1]

    def kill_engine(self, reason: str = "killed") -> None:
        """End the newest engine at once."""
        self.links[-1].die(reason)

    async def replace_engine(self) -> None:
        """Kill the engine and wait for the next one."""
        before = len(self.engines)
        self.kill_engine()
        await self.until(lambda: len(self.engines) > before)
        await self.settle()

    # ---- waiting

    async def turns(self, number: int) -> None:
        """Let the loop turn so many times."""
        for _ in range(number):
            await asyncio.sleep(0)

    async def settle(self) -> None:
        """Let everything happen that can happen without time passing."""
        await self.turns(_TURNS)
        if self.kind != "memory":
            await self.until(lambda: len(self.service._tasks) <= 1)
            await self.turns(_TURNS)

    async def until(
        self, condition: Callable[[], object], each_turn: Callable[[], object] = lambda: None
    ) -> None:
        """Wait until something holds; threads of the store get the real time they need."""
        for turn in range(5_000):
            if condition():
                return
            each_turn()
            await asyncio.sleep(0 if turn < 200 else 0.001)
        raise AssertionError("it never happened")

    async def wait(self, seconds: float) -> None:
        """Let happen what can, move time on and let what follows happen."""
        await self.settle()
        self.clock.advance(seconds)
        await self.settle()

    # ---- asking

    async def send(
        self,
        method: str,
        path: str,
        body: bytes | Sequence[bytes] = b"",
        headers: dict[str, str] | None = None,
        query: str = "",
    ) -> Answer:
        """One request through the application, its answer whole."""
        stream = self.open(method, path, body, headers, query)
        answer = await stream.whole()
        self.answers.append(answer)
        assert answer.streamed or "content-length" in answer.headers, answer
        assert answer.status < 500 or answer.status in self.allowed_5xx, answer
        return answer

    def open(
        self,
        method: str,
        path: str,
        body: bytes | Sequence[bytes] = b"",
        headers: dict[str, str] | None = None,
        query: str = "",
    ) -> Stream:
        """One request, its answer piece by piece; a body in pieces travels without a length."""
        whole = isinstance(body, bytes)
        pieces = [body] if isinstance(body, bytes) else list(body)
        sent = {"host": "elsewhere", **(headers or {})}
        if whole and body:
            sent.setdefault("content-length", str(len(body)))
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in sent.items()],
            "client": ("127.0.0.1", 4321),
        }
        return Stream(self.app, scope, pieces)


def running(**options: Any) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Run an async test with a server of these options; its other arguments are fixtures as usual."""

    def wrap(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        others = [each for each in inspect.signature(test).parameters.values() if each.name != "server"]

        def run(*, tmp_path: Path, **given: Any) -> None:
            async def main() -> None:
                async with Machine(tmp_path, **options) as server:
                    await asyncio.wait_for(test(server=server, **given), 60)

            asyncio.run(main())

        wanted = inspect.Parameter("tmp_path", inspect.Parameter.KEYWORD_ONLY)
        run.__signature__ = inspect.Signature([*others, wanted])  # type: ignore[attr-defined]
        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        return run

    return wrap


async def events_of(pieces: AsyncIterator[bytes]) -> list[tuple[str, bytes]]:
    """Server-sent events as (name, data)."""
    text = b"".join([piece async for piece in pieces])
    found = []
    for block in text.split(b"\n\n"):
        lines = dict(line.split(b": ", 1) for line in block.split(b"\n") if line and line[:1] != b":")
        if lines:
            found.append((lines[b"event"].decode(), lines[b"data"]))
    return found
