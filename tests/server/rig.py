"""A server in process for tests: the real application over a store in memory and a clock set by hand."""

from __future__ import annotations

import asyncio
import functools
import heapq
import inspect
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tinkex.server import handlers
from tinkex.server.app import App
from tinkex.server.assembly import pages
from tinkex.server.engine_link import EngineStartFailed
from tinkex.server.keys import KeyRing
from tinkex.server.options import ModelSpec, ServerOptions
from tinkex.server.records import CheckpointRow, ModelRow, SamplerRow, SessionRow
from tinkex.server.service import Service
from tinkex.server.state_folder import StateFolder
from tinkex.server.store import Put
from tinkex.testing import MemoryStore

assert handlers.ROOMS
START = 1_800_000_000.0
MODEL = "org/tiny"


class HandClock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.passed = 0.0
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def monotonic(self) -> float:
        return self.passed

    def time(self) -> float:
        return START + self.passed

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        call_off = self.call_later(seconds, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            call_off()

    def call_later(self, seconds: float, action: Callable[[], None]) -> Callable[[], None]:
        entry = [action]
        heapq.heappush(
            self._waiting,
            (self.passed + seconds, next(self._numbers), lambda: entry[0]() if entry else None),
        )
        return entry.clear

    async def forward(self, seconds: float) -> None:
        """Let time pass, and those who waited for it do what they waited for."""
        await settle()
        until = self.passed + seconds
        while self._waiting and self._waiting[0][0] <= until:
            self.passed, _, action = heapq.heappop(self._waiting)
            action()
            await settle()
        self.passed = until
        await settle()


async def settle() -> None:
    """Let everything that is ready run, work in threads too (a rig has one thread for it)."""
    for _ in range(8):
        for _ in range(12):
            await asyncio.sleep(0)
        await asyncio.to_thread(int)


class NoEngine:
    """A link to an engine that does not start."""

    epoch = 0
    facts: dict[str, Any] = {}
    eos = ()

    def __init__(self, *_: Any) -> None:
        pass

    async def start(self) -> None:
        raise EngineStartFailed("there is none in this test")

    def submit(self, message: Any) -> None:
        raise AssertionError("it never started")

    async def close(self) -> None:
        pass


@dataclass
class Got:
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def detail(self) -> str:
        return str(self.json["detail"])


@dataclass
class Rig:
    """A server, and what tests do to it."""

    app: App
    service: Service
    store: Any
    clock: Any
    keys: dict[str, str]
    state: Path
    ring: KeyRing
    made: int = field(default=0)

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = "ann",
        headers: Mapping[str, str] | None = None,
    ) -> Got:
        """One request; a path without a leading segment of its own is below the API."""
        where, _, query = path.partition("?")
        raw = b"" if body is None else json.dumps(body).encode()
        sent = {"content-type": "application/json", **(headers or {})}
        if key is not None:
            sent["x-api-key"] = self.keys.get(key, key)
        scope = {
            "type": "http",
            "method": method,
            "path": where if where.startswith("/") else f"/api/v1/{where}",
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
            "client": ("127.0.0.1", 5000),
        }
        answer, pieces = Got(0, {}, b""), []
        inbox = [{"type": "http.request", "body": raw, "more_body": False}]

        async def receive() -> dict[str, Any]:
            return inbox.pop() if inbox else await asyncio.get_running_loop().create_future()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                pieces.append(message["body"])

        await self.app(scope, receive, send)
        answer.body = b"".join(pieces)
        return answer

    async def get(self, path: str, **more: Any) -> Got:
        return await self.ask("GET", path, **more)

    async def post(self, path: str, body: Any = None, **more: Any) -> Got:
        return await self.ask("POST", path, {} if body is None else body, **more)

    async def fetch(
        self, url: str, *, method: str = "GET", headers: Mapping[str, str] | None = None
    ) -> Got:
        """Ask for a download address as anybody could."""
        assert url.startswith(self.service.url + "/")
        return await self.ask(
            method,
            url.removeprefix(self.service.url.removesuffix(self.service.prefix)),
            key=None,
            headers=headers,
        )

    # ---- things that are there

    async def session(
        self, id: str = "s-1", owner: str = "ann", *, live: bool = True, **facts: Any
    ) -> SessionRow:
        now = self.clock.time()
        row = SessionRow(id, owner, now, now, **facts)
        await self.store.write(Put(row))
        if live:
            self.service.open_session(row)
        return row

    async def run(self, id: str = "s-1:train:0", owner: str = "ann", **facts: Any) -> ModelRow:
        now = self.clock.time()
        row = ModelRow(id, id.partition(":")[0], owner, MODEL, now, now, 8, 1, **facts)
        await self.store.write(Put(row))
        return row

    async def checkpoint(
        self,
        name: str = "ck",
        run: str = "s-1:train:0",
        owner: str = "ann",
        kind: str = "training",
        files: Mapping[str, bytes] | None = None,
        **facts: Any,
    ) -> CheckpointRow:
        """A checkpoint with files."""
        segment = {"training": "weights", "sampler": "sampler_weights", "external": "external_weights"}[
            kind
        ]
        self.made += 1
        folder = self.service.folders.checkpoint(run, kind, name, self.made)
        files = {"adapter.safetensors": b"weights of " + name.encode()} if files is None else files
        for file, data in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(data)
        row = CheckpointRow(
            f"tinker://{run}/{segment}/{name}", run, kind, name, owner, MODEL, 8, self.clock.time(),  # type: ignore[arg-type]
            sum(map(len, files.values())), str(folder.relative_to(self.state)),
            session_id=run.partition(":")[0],
        )  # fmt: skip
        row = replace(row, **facts)
        await self.store.write(Put(row))
        return row

    async def sampler(self, of: CheckpointRow, session: SessionRow, number: int = 0) -> SamplerRow:
        """A live sampling session on a checkpoint."""
        row = SamplerRow(
            f"{session.id}:sample:{number}", session.id, session.owner, MODEL, self.clock.time(), of.path,
            version=of.version or "v", folder=of.folder,
        )  # fmt: skip
        await self.store.write(Put(row))
        self.service.open_sampler(row, self.service.world.sessions[session.id])
        return row

    def files(self, row: CheckpointRow) -> dict[str, bytes]:
        """What lies in a checkpoint's folder."""
        folder = self.state / row.folder
        return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    async def events(self, owner: str = "ann") -> list[str]:
        """The audit log, by event."""
        return [row.event for row in await self.store.audit(owner, 0.0, 1e12, ())]


def tiny_folder(path: Path) -> Path:
    """A model folder without weights: all the control plane reads."""
    path.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "qwen3", "vocab_size": 1024, "max_position_embeddings": 512}
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text('{"version": "1.0"}')
    (path / "tokenizer_config.json").write_text("{}")
    return path


@asynccontextmanager
async def open_rig(
    tmp_path: Path,
    *,
    make_link: Any = NoEngine,
    clock: Any = None,
    store: Any = None,
    folder: Path | None = None,
    start: bool = False,
    **options: Any,
) -> AsyncIterator[Rig]:
    """A server over a temporary state folder; with `start` its engines are started too."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    state = tmp_path / "state"
    folders = StateFolder(state)
    ring = KeyRing(state / "keys.json")
    keys = {}
    for owner in ("ann", "bob"):
        known = [info for info in ring.list() if info.owner == owner]
        keys[owner] = ring.add(f"{owner}-{len(known)}", owner)[1].reveal()
    spec = ModelSpec(MODEL, folder or tiny_folder(tmp_path / "model"))
    settings = ServerOptions((spec,), state, **options)
    clock, store = clock or HandClock(), store or MemoryStore()
    service = Service(settings, store, ring, folders, make_link, clock=clock)
    rig = Rig(App(service, pages()), service, store, clock, keys, folders.path, ring)
    if start:
        await service.start()
    try:
        yield rig
    finally:
        await settle()
        await service.stop()
        folders.close()


def served(test: Callable[..., Awaitable[None]] | None = None, **options: Any) -> Any:
    """Make a test of an async function whose first argument is a rig."""
    if test is None:
        return lambda test: served(test, **options)
    signature = inspect.signature(test)
    names = [each for each in list(signature.parameters.values())[1:] if each.name != "tmp_path"]
    path = inspect.Parameter("tmp_path", inspect.Parameter.POSITIONAL_OR_KEYWORD)

    @functools.wraps(test)
    def run(tmp_path: Path, **given: Any) -> None:
        async def scenario() -> None:
            async with open_rig(tmp_path, **options) as rig:
                await test(
                    rig, **given, **({"tmp_path": tmp_path} if "tmp_path" in signature.parameters else {})
                )

        asyncio.run(scenario())

    del run.__wrapped__  # type: ignore[attr-defined]
    run.__signature__ = signature.replace(parameters=[path, *names])  # type: ignore[attr-defined]
    return run
