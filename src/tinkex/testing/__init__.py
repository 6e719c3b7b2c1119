"""Fakes good enough to ship: what tests of code built on tinkex need.

Over real HTTP, in any process and for any client::

    with FakeServer() as server:
        client = tinkex.ServiceClient(base_url=server.base_url, api_key="tml-test")

In process and in virtual time, with something going wrong::

    clock = FakeClock(auto=True)
    service = FakeService(clock=clock)
    service.faults.add("asample", status=503, times=3)
    client = tinkex.ServiceClient(
        base_url="http://fake", api_key="tml-test", clock=clock,
        transport=lambda config: HandlerTransport(service.handle, clock=clock),
    )
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazy_exports

if TYPE_CHECKING:
    from .asgi_transport import AsgiTransport
    from .calls import Call
    from .direct_link import DirectLink
    from .exchange import FakeRequest, FakeResponse, reply
    from .fake_clock import FakeClock
    from .fake_service import FakeService
    from .faults import Fault
    from .http_server import FakeServer
    from .memory_store import MemoryStore
    from .noop_engine import NoopEngine
    from .tiny_models import make_tiny_model
    from .transports import HandlerTransport, ScriptedTransport

_TABLE = {
    "AsgiTransport": ".asgi_transport",
    "Call": ".calls",
    "DirectLink": ".direct_link",
    "FakeClock": ".fake_clock",
    "FakeRequest": ".exchange",
    "FakeResponse": ".exchange",
    "FakeServer": ".http_server",
    "FakeService": ".fake_service",
    "Fault": ".faults",
    "HandlerTransport": ".transports",
    "MemoryStore": ".memory_store",
    "NoopEngine": ".noop_engine",
    "ScriptedTransport": ".transports",
    "make_tiny_model": ".tiny_models",
    "reply": ".exchange",
}

__all__ = [
    "AsgiTransport",
    "Call",
    "DirectLink",
    "FakeClock",
    "FakeRequest",
    "FakeResponse",
    "FakeServer",
    "FakeService",
    "Fault",
    "HandlerTransport",
    "MemoryStore",
    "NoopEngine",
    "ScriptedTransport",
    "make_tiny_model",
    "reply",
]
if not TYPE_CHECKING:  # type checkers know the names, and find those that do not exist
    __getattr__, __dir__ = lazy_exports(__name__, _TABLE)
