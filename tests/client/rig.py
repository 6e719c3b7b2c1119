"""A service client on an in-memory service with virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinkex import ServiceClient, types
from tinkex.client.training import TrainingClient
from tinkex.config import Config
from tinkex.testing.fake_clock import FakeClock
from tinkex.testing.fake_service import FakeService
from tinkex.testing.transports import HandlerTransport

WAIT = 20.0  # real seconds after which a test is taken to hang


class Rig:
    """A service, a clock, and clients that reach it in process."""

    def __init__(self, *, config: types.ClientConfigResponse | None = None, **settings: Any) -> None:
        self.clock = FakeClock(auto=True)
        self.service = FakeService(
            clock=self.clock, config=config or types.ClientConfigResponse(), **settings
        )
        self.transports: list[HandlerTransport] = []

    def transport(self, _: Config) -> HandlerTransport:
        made = HandlerTransport(self.service.handle, clock=self.clock)
        self.transports.append(made)
        return made

    def client(self, api_key: str = "tml-test", **settings: Any) -> ServiceClient:
        return ServiceClient(
            base_url="http://fake.test", api_key=api_key, clock=self.clock, transport=self.transport,
            telemetry=settings.pop("telemetry", False), **settings,
        )  # fmt: skip

    def trainer(self, **settings: Any) -> TrainingClient:
        return self.client(**settings).create_lora_training_client("Qwen/Qwen3-8B", rank=8)

    def offline(self, gone: bool = True) -> None:
        for transport in self.transports:
            transport.online = not gone


def datum(length: int = 4, start: int = 0) -> types.Datum:
    tokens = np.arange(start, start + length)
    return types.Datum(
        types.ModelInput.from_ints(tokens),
        {"target_tokens": tokens, "weights": np.ones(length, np.float32)},
    )


def data(count: int = 1, length: int = 4) -> list[types.Datum]:
    return [datum(length, index) for index in range(count)]


def eventually(check: Callable[[], bool], clock: FakeClock | None = None, seconds: float = WAIT) -> bool:
    """Wait in real time for something another thread does."""
    import time

    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if check():
            return True
        time.sleep(0.002)
    return check()
