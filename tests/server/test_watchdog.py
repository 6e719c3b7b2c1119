"""An engine that hangs is killed and the next does its work; one that is slow, or waits, is left alone."""

from __future__ import annotations

import asyncio
import heapq
import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tinkex.engine.codec import Frames, encode
from tinkex.engine.host import Loop
from tinkex.engine.messages import AskStats, CreateAdapter, Pulse, Stats, Train
from tinkex.engine.pulse import Heart
from tinkex.server import engine_link
from tinkex.server.clock import SystemClock
from tinkex.server.engine_link import EngineSpec, ProcessLink
from tinkex.server.engine_room import EngineRoom
from tinkex.server.options import Times
from tinkex.server.watchdog import FIRST_STEPS, Watchdog
from tinkex.testing import DirectLink, NoopEngine

from .machine import Machine, SteadyClock, running

STALL, LOADING = 600.0, 3600.0


class Watched:
    """A watchdog over a clock set by hand, and what it said."""

    def __init__(self) -> None:
        self.clock, self.hung = SteadyClock(), []
        self.dog = Watchdog(self.clock, STALL, LOADING, self.hung.append)
        self.dog.begin()

    def beat(self, steps: int = 0, taken: int = 0, busy: bool = True, doing: str = "") -> None:
        self.dog.beat(Pulse(0, doing, steps, taken, busy))


def test_an_engine_that_stops_in_a_step_is_told_after_its_time():
    watched = Watched()
    watched.beat(FIRST_STEPS, 1, doing="Train x")
    watched.clock.advance(STALL * 0.9)
    assert watched.hung == []
    watched.clock.advance(STALL * 0.2)
    (text,) = watched.hung
    assert "Train x" in text
    assert "600 s" in text
    watched.clock.advance(STALL * 9)
    assert len(watched.hung) == 1


def test_an_engine_that_is_slow_but_goes_on_is_left_alone():
    watched = Watched()
    for steps in range(FIRST_STEPS, FIRST_STEPS + 50):
        watched.beat(steps, 1)
        watched.clock.advance(STALL * 0.9)
    for _ in range(50):
        watched.dog.answered()
        watched.clock.advance(STALL * 0.9)
    assert watched.hung == []


def test_an_engine_that_waits_for_work_may_be_silent():
    watched = Watched()
    watched.dog.told()
    watched.beat(FIRST_STEPS, 1, busy=False)
    watched.clock.advance(STALL * 50)
    assert watched.hung == []
    watched.dog.told()  # and does not take it
    watched.clock.advance(STALL * 1.2)
    assert len(watched.hung) == 1


def test_loading_and_the_first_steps_have_more_time():
    watched = Watched()
    watched.clock.advance(LOADING * 0.9)
    watched.beat(0, 0)
    watched.clock.advance(LOADING * 0.9)
    watched.beat(FIRST_STEPS - 1, 1)
    watched.clock.advance(LOADING * 0.9)
    assert watched.hung == []
    watched.clock.advance(LOADING * 0.2)
    assert len(watched.hung) == 1


def test_time_in_which_the_server_itself_did_not_run_is_not_counted():
    watched = Watched()
    watched.beat(FIRST_STEPS, 1)
    for _ in range(5):
        watched.clock.passed += STALL * 3  # nothing was called meanwhile: one look is late
        _, _, look = heapq.heappop(watched.clock._waiting)
        look()
    assert watched.hung == []


def test_an_engine_that_is_gone_is_not_watched():
    watched = Watched()
    watched.beat(FIRST_STEPS, 1)
    watched.dog.end()
    watched.clock.advance(LOADING * 3)
    assert watched.hung == []


# ---- what an engine tells


def test_a_heart_tells_what_is_new_and_nothing_else():
    sent: list[Pulse] = []
    news = threading.Event()
    looked = threading.Semaphore(0)

    def send(pulse: Pulse) -> None:
        sent.append(pulse)
        news.set()

    heart = Heart(3, 0.001, send)
    find = heart.now
    heart.now = lambda: (looked.release(), find())[1]  # type: ignore[method-assign]
    heart.start()
    assert news.wait(10)
    assert (sent[0].busy, sent[0].doing) == (True, "loading the model")
    engine, answers = NoopEngine(3), []
    loop = Loop(engine, answers.extend)
    heart.watch(loop)
    thread = threading.Thread(target=loop.run)
    thread.start()
    loop.put(CreateAdapter(3, "c", "m", 4))
    while not (sent[-1].taken == 1 and not sent[-1].busy):
        news.clear()
        assert news.wait(10)
    assert sent[-1].steps == 1
    for _ in range(looked._value + 5):
        looked.acquire()
    count = len(sent)
    for _ in range(5):
        assert looked.acquire(timeout=10)
    assert len(sent) == count
    loop.stop()
    thread.join()
    heart.stop()


# ---- a whole server


class Telling(DirectLink):
    """A link whose engine can be made to say that it hangs."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.pulse: Callable[[Pulse], None] = lambda pulse: None


@running(times={"stall": 60.0, "loading": 60.0})
async def test_work_of_a_hung_engine_is_done_by_the_next(
    server: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("tests.server.machine.DirectLink", Telling)
    await server.replace_engine()
    ann = server.ann
    link = server.links[-1]
    link.pulse(Pulse(0, "", FIRST_STEPS, 1 << 30, False))
    model = await ann.model()
    server.engine.hold(Train)
    ticket = await ann.train(model, 1)
    await server.settle()
    link.pulse(Pulse(0, "Train server-1", FIRST_STEPS + 1, 1 << 30, True))
    with caplog.at_level(logging.ERROR):
        server.clock.advance(61)
        await server.settle()
    assert "made no progress for 60 s" in caplog.text
    assert len(server.engines) == 3
    await ann.done(ticket)


# ---- a real process

CHILD = """
import socket, sys, threading
from tinkex.engine import child
from tinkex.engine.messages import CreateAdapter, Start
from tinkex.engine.pulse import Heart
from tinkex.testing import NoopEngine

class Hangs(NoopEngine):
    doing = "a step that never ends"
    def step(self):
        if any(isinstance(each, CreateAdapter) for each in self.seen):
            threading.Event().wait()
        return super().step()

wire = child.Wire(socket.socket(fileno=int(sys.argv[1])))
start = next(wire.arriving())
assert isinstance(start, Start)
heart = Heart(start.epoch, start.pulse, lambda pulse: wire.send([pulse]))
heart.start()
sys.exit(child.serve(Hangs(start.epoch), wire, heart))
"""


@pytest.mark.parametrize("how", ["a step", "the process"])
def test_a_process_that_hangs_is_killed_and_another_started(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "hanging_child.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(engine_link, "CHILD", "hanging_child")
    monkeypatch.setattr("tinkex.server.watchdog.FIRST_STEPS", 0)
    links: list[ProcessLink] = []

    def make(folder: Path, epoch: int, deliver: Any, lost: Any) -> ProcessLink:
        links.append(ProcessLink(EngineSpec(tmp_path, pulse=0.02), epoch, deliver, lost))
        return links[-1]

    class Notes:
        def __init__(self) -> None:
            self.lost: list[str] = []
            self.up, self.down = asyncio.Event(), asyncio.Event()

        def engine_up(self) -> None:
            self.up.set()

        def engine_lost(self, reason: str) -> None:
            self.lost.append(reason)
            self.up.clear()
            self.down.set()

    async def main() -> None:
        times = Times(stall=1.0, loading=60.0)
        room = EngineRoom(tmp_path, make, SystemClock(), 1, times)
        notes = Notes()
        room.listeners.append(notes)
        room.start()
        async with asyncio.timeout(60):
            await notes.up.wait()
            beat = links[0].pulse
            assert isinstance(await room.call(AskStats(room.epoch, "s")), Stats)
            if how == "a step":
                room.tell(CreateAdapter(room.epoch, "c", "m"))
            else:
                loaded = asyncio.Event()  # before that it is waited for as long as loading may take
                links[0].pulse = lambda pulse: (beat(pulse), loaded.set())
                room.tell(AskStats(room.epoch, "again"))
                await loaded.wait()
                os.kill(links[0].pid or 0, signal.SIGSTOP)
                room.tell(AskStats(room.epoch, "t"))
            await notes.down.wait()
            await notes.up.wait()
            assert isinstance(await room.call(AskStats(room.epoch, "u")), Stats)
        await room.close()
        assert len(links) == 2
        assert "made no progress" in notes.lost[0]
        assert ("a step that never ends" in notes.lost[0]) == (how == "a step")

    uvloop.run(main())


def test_a_pulse_travels():
    pulse = Pulse(4, "Train x", 12, 3, True)
    frames = Frames()
    data = encode(pulse)
    frames.space()[: len(data)] = data
    assert list(frames.filled(len(data))) == [pulse]
