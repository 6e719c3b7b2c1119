"""The server's date: what a system clock that jumps does to it."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest

from tinkex.server.assembly import assemble
from tinkex.server.clock import TRUSTED_AFTER, SystemClock
from tinkex.server.keys import KeyRing
from tinkex.server.options import ModelSpec, ServerOptions
from tinkex.server.state_folder import StateFolder
from tinkex.server.tokens import Tokens
from tinkex.testing import make_tiny_model

from .rig import NoEngine

DAY = 1_800_000_000.0


class Times:
    """A system's date and the seconds since its start, set by hand."""

    def __init__(self) -> None:
        self.passed, self.shift = 1000.0, 0.0

    def date(self) -> float:
        return DAY + self.passed + self.shift

    def clock(self) -> SystemClock:
        return SystemClock(self.date, lambda: self.passed)


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 90 * 86400.0])
def test_a_jump_and_back_changes_nothing(jump: float):
    times = Times()
    clock = times.clock()
    before = clock.time()
    for number in range(1, 41):
        times.passed += 20.0
        times.shift = jump if number % 2 else 0.0
        assert clock.time() == pytest.approx(before + 20.0 * number)


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_date_that_stays_is_believed_in_the_end(jump: float, caplog: pytest.LogCaptureFixture):
    times = Times()
    clock = times.clock()
    before = clock.time()
    times.shift = jump
    assert clock.time() == pytest.approx(before)
    times.passed += TRUSTED_AFTER - 1
    assert clock.time() == pytest.approx(before + TRUSTED_AFTER - 1)
    times.passed += 2
    with caplog.at_level(logging.WARNING):
        assert clock.time() == pytest.approx(before + TRUSTED_AFTER + 1 + jump)
    assert "3600" in caplog.text


def test_a_second_jump_is_waited_for_anew():
    times = Times()
    clock = times.clock()
    before = clock.time()
    times.shift = 3600.0
    clock.time()
    times.passed += TRUSTED_AFTER / 2
    times.shift = 7200.0
    clock.time()
    times.passed += TRUSTED_AFTER / 2 + 1
    assert clock.time() == pytest.approx(before + TRUSTED_AFTER + 1)


def test_small_corrections_are_followed_at_once():
    times = Times()
    clock = times.clock()
    for _ in range(100):
        times.passed += 1.0
        times.shift -= 0.5
        assert clock.time() == pytest.approx(times.date())


def test_a_jump_is_told_once(caplog: pytest.LogCaptureFixture):
    times = Times()
    clock = times.clock()
    times.shift = -3600.0
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            times.passed += 1
            clock.time()
    assert len(caplog.records) == 1
    assert "-3600 s" in caplog.text


def test_without_jumps_it_is_the_system_s():
    clock = SystemClock()
    assert clock.time() == pytest.approx(time.time(), abs=5.0)


def test_tokens_are_read_by_the_clock_they_were_written_by(tmp_path: Path):
    times = Times()

    async def scenario() -> None:
        folders = StateFolder(tmp_path / "state")
        keys = KeyRing(folders.path / "keys.json")
        keys.tokens = tokens = Tokens(folders.path / "token-secret", keys)
        info, _ = keys.add("first", "ann")
        model = ModelSpec("org/tiny", make_tiny_model(tmp_path / "model"))
        options = ServerOptions((model,), folders.path)
        app = await assemble(
            options, keys, "http://x", lambda *_: None, folders, clock=times.clock(), make_link=NoEngine
        )
        times.shift = 3600.0  # the system's date jumps; the server's does not
        token = tokens.issue(info, 600.0, app.service.clock.time())
        assert token is not None
        assert keys.owner_of(token) == info
        times.passed += 601.0
        assert keys.owner_of(token) is None
        await app.service.store.close()

    asyncio.run(scenario())
