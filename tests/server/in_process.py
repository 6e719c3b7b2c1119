"""Our own client on the real server, in one process and without sockets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tinkex
from tinkex.client.portal import portal
from tinkex.server.app import App
from tinkex.server.assembly import pages
from tinkex.server.keys import KeyRing
from tinkex.server.options import ModelSpec, ServerOptions
from tinkex.server.service import Service
from tinkex.server.state_folder import StateFolder
from tinkex.testing import AsgiTransport, DirectLink, MemoryStore, NoopEngine, make_tiny_model

MODEL = "org/tiny"
WAIT = 30.0
"""Real seconds after which a test is taken to hang."""


class _Held(AsgiTransport):
    """One application for all lanes of all clients: closing one of them closes nothing."""

    async def close(self) -> None:
        pass

    async def end(self) -> None:
        await super().close()


class InProcess:
    """A server and clients of it."""

    def __init__(self, tmp_path: Path, **options: Any) -> None:
        self.state = StateFolder(tmp_path / "state")
        self.folder = make_tiny_model(tmp_path / "model", context=512)
        self.ring = KeyRing(self.state.path / "keys.json")
        self.key = self.ring.add("first", "ann")[1].reveal()
        settings = ServerOptions((ModelSpec(MODEL, self.folder),), self.state.path, **options)

        def link(folder: Path, epoch: int, deliver: Any, lost: Any) -> DirectLink:
            return DirectLink(lambda: NoopEngine(epoch, context=512), epoch, deliver, lost)

        self.service = Service(settings, MemoryStore(), self.ring, self.state, link)
        self.transport = _Held(App(self.service, pages()), client=("192.0.2.7", 5000))

    def client(self, key: str | None = None, **settings: Any) -> tinkex.ServiceClient:
        return tinkex.ServiceClient(
            base_url=self.service.url,
            api_key=key or self.key,
            transport=lambda config: self.transport,
            telemetry=False,
            **settings,
        )

    def rest(self, key: str | None = None) -> tinkex.RestClient:
        return tinkex.RestClient(**self._reach(key))

    def admin(self, key: str | None = None) -> tinkex.AdminClient:
        return tinkex.AdminClient(**self._reach(key))

    def _reach(self, key: str | None) -> dict[str, Any]:
        return {
            "base_url": self.service.url,
            "api_key": key or self.key,
            "transport": lambda config: self.transport,
        }


@contextmanager
def in_process(tmp_path: Path, **options: Any) -> Iterator[InProcess]:
    """A server for as long as the block lasts."""
    server = InProcess(tmp_path, **options)
    try:
        yield server
    finally:
        portal().run(server.transport.end())
        server.state.close()
