"""Several owners use the API at once, in every order, while time passes and engines and servers die."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tinkex.server.app import App
from tinkex.server.asks import HANDLERS
from tinkex.testing import MemoryStore
from tinkex.testing.noop_operations import NoopOperations

from .api_machine import ApiMachine, Failed


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def played(tmp_path: Path, calls: int, seed: int, kind: str = "memory") -> ApiMachine:
    machine = ApiMachine(tmp_path, seed, kind)
    asyncio.run(machine.run(calls))
    assert machine.calls >= calls
    return machine


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_breaks_hangs_or_leaks(tmp_path: Path, seed: int):
    machine = played(tmp_path, 500, seed)
    assert machine.statuses["200"] > 250
    assert machine.statuses["404"] > 30
    for what in ("steps counted", "checkpoints listed", "refusals of what is not one's own"):
        assert machine.checked[what] > 10, machine.checked


def test_nothing_breaks_hangs_or_leaks_on_disk(tmp_path: Path):
    played(tmp_path, 250, 3, "sqlite")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [101, 102])
def test_nothing_breaks_hangs_or_leaks_in_many_calls(tmp_path: Path, seed: int):
    machine = played(tmp_path, 2000, seed)
    assert machine.checked["results asked for again"] > 10
    assert machine.checked["checkpoints expired"] > 0


@pytest.mark.slow
def test_nothing_breaks_hangs_or_leaks_on_disk_in_many_calls(tmp_path: Path):
    played(tmp_path, 1000, 103, "sqlite")


# ---- a server with a fault is found out

Plant = Callable[[pytest.MonkeyPatch], None]
draws = Random(5)


def mistaken_owner(patch: pytest.MonkeyPatch) -> None:
    right = App._authenticate

    def wrong(self: App, *arguments: Any) -> Any:
        owner, key, *rest = right(self, *arguments)
        return ("ann" if owner == "bob" else owner, key, *rest)

    patch.setattr(App, "_authenticate", wrong)


def lists_of_everybody(patch: pytest.MonkeyPatch) -> None:
    right = MemoryStore.checkpoints

    async def wrong(self: MemoryStore, owner: str, page: Any, **more: Any) -> Any:
        return await right(self, "ann", page, **more)

    patch.setattr(MemoryStore, "checkpoints", wrong)


def doubled_steps(patch: pytest.MonkeyPatch) -> None:
    right = NoopOperations._optim_step

    def wrong(self: NoopOperations, message: Any) -> Any:
        if draws.random() < 0.1:
            model = self.models[message.model]
            self.models[message.model] = replace(model, steps=model.steps + 1)
        return right(self, message)

    patch.setattr(NoopOperations, "_optim_step", wrong)


def lost_rows(patch: pytest.MonkeyPatch) -> None:
    right = MemoryStore.checkpoints

    async def wrong(self: MemoryStore, *arguments: Any, **more: Any) -> Any:
        rows, total = await right(self, *arguments, **more)
        return rows[1:], total

    patch.setattr(MemoryStore, "checkpoints", wrong)


def a_mistake(patch: pytest.MonkeyPatch) -> None:
    async def wrong(ask: Any) -> Any:
        raise KeyError("a mistake")

    patch.setitem(HANDLERS, "get_info", wrong)


def an_endless_answer(patch: pytest.MonkeyPatch) -> None:
    async def wrong(ask: Any) -> Any:
        await asyncio.Event().wait()

    patch.setitem(HANDLERS, "get_session", wrong)


PLANTS: dict[Plant, str] = {
    mistaken_owner: r"not refused|told|nobody|not listed|failed|is not",
    lists_of_everybody: r"told (bob|cat)|not listed|nobody saved",
    doubled_steps: r"is step \d",
    lost_rows: "not listed",
    a_mistake: "was answered 500",
    an_endless_answer: "not answered within",
}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda each: each.__name__)
def test_a_planted_fault_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant):
    plant(monkeypatch)
    with pytest.raises(Failed, match=PLANTS[plant]):
        played(tmp_path, 1500, 7)
