"""A clock whose time passes only when a test says so, or when nothing else is left to do."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

__all__ = ["FakeClock"]

_SPINS = 25  # loop passes after which tasks that could run have run
_LONGEST_SPIN = 5.0  # real seconds; a loop may be stopped while it is waited for
_BEGIN = 1000.0  # not 0, so that code which takes 0 for "never" shows itself


class _Sleeper:
    """Someone waiting for a moment, on a loop of their own."""

    __slots__ = ("future", "gone", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.future: asyncio.Future[None] = loop.create_future()
        self.gone = False

    def wake(self) -> None:
        def set_result() -> None:
            if not self.future.done():
                self.future.set_result(None)

        try:
            self.loop.call_soon_threadsafe(set_result)
        except RuntimeError:  # its loop was closed
            self.gone = True


class FakeClock:
    """Virtual time: `sleep` parks its caller until the clock is moved.

    `await clock.advance(3)` moves it by hand, waking every sleeper in order; with `auto=True` it
    jumps to the next sleeper by itself whenever the loop has nothing else to do.  It may be moved
    from another thread than the loop's: `advance_from_thread`.  `sleeps` lists what was asked for.

    What other threads do cannot be seen: an automatic clock gives them `grace` real seconds before
    each jump, and `with clock.frozen()` keeps it still for as long as a test needs.
    """

    def __init__(
        self,
        start: datetime = datetime(2026, 1, 1, tzinfo=UTC),
        *,
        auto: bool = False,
        seed: int = 0,
        grace: float = 0.001,
    ) -> None:
        self.sleeps: list[float] = []
        self.auto = auto
        self._start = start
        self._now = _BEGIN
        self._random = random.Random(seed)  # noqa: S311 - meant to be foreseeable
        self._grace = grace  # real seconds other threads get before an automatic jump
        self._lock = threading.RLock()
        self._order = itertools.count()
        self._heap: list[tuple[float, int, _Sleeper]] = []
        self._cancelled = 0
        self._loops: dict[int, asyncio.AbstractEventLoop] = {}
        self._activity = 0
        self._frozen = 0
        self._prober: asyncio.AbstractEventLoop | None = None

    # ---- what a Clock does

    def monotonic(self) -> float:
        """Seconds that only go forward."""
        return self._now

    def now(self) -> datetime:
        """The date and time, in UTC."""
        return self._start + timedelta(seconds=self.elapsed)

    def random(self) -> float:
        """A number from 0 up to 1, the same ones each time."""
        with self._lock:
            return self._random.random()

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was moved that far, and note it in `sleeps`."""
        self.sleeps.append(seconds)
        await self.wait(seconds)

    async def wait(self, seconds: float) -> None:
        """The same without a note; the fakes use it for their own timeouts."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        sleeper = _Sleeper(asyncio.get_running_loop())
        with self._lock:
            heapq.heappush(self._heap, (self._now + seconds, next(self._order), sleeper))
            self._loops[id(sleeper.loop)] = sleeper.loop
            self._activity += 1
        self._watch(sleeper.loop)
        try:
            await sleeper.future
        except asyncio.CancelledError:
            self._forget(sleeper)
            raise

    # ---- what a test sees

    @property
    def elapsed(self) -> float:
        """Seconds since the clock was made."""
        return self._now - _BEGIN

    @property
    def sleeping(self) -> int:
        """How many are waiting for this clock now."""
        with self._lock:
            return sum(not sleeper.gone for _, _, sleeper in self._heap)

    @property
    def next_wake(self) -> float | None:
        """Seconds until the next sleeper is due, or None if nobody sleeps."""
        with self._lock:
            self._drop_gone()
            return self._heap[0][0] - self._now if self._heap else None

    async def advance(self, seconds: float) -> None:
        """Move on, waking sleepers in order and letting what they do next happen."""
        target = self._now + seconds
        await self._settle()
        while self._step(target):
            await self._settle()
        self._move(target)
        await self._settle()

    def advance_from_thread(self, seconds: float) -> None:
        """The same for a thread without a loop, while the sleepers' loops run elsewhere."""
        target = self._now + seconds
        self._settle_from_thread()
        while self._step(target):
            self._settle_from_thread()
        self._move(target)
        self._settle_from_thread()

    async def advance_until(
        self, predicate: Callable[[], object], *, limit: float = 3600.0, patience: float = 5.0
    ) -> None:
        """Jump from sleeper to sleeper until `predicate()` holds.

        Gives up with `TimeoutError` after `limit` virtual seconds, or after `patience` real ones
        in which nobody slept and nothing changed.
        """
        target = self._now + limit
        give_up = time.monotonic() + patience
        await self._settle()
        while not predicate():
            if self._step(target):
                give_up = time.monotonic() + patience
            else:
                self._check_patience(target, give_up)
                await asyncio.sleep(0.001)
            await self._settle()

    def advance_until_from_thread(
        self, predicate: Callable[[], object], *, limit: float = 3600.0, patience: float = 5.0
    ) -> None:
        """The same for a thread without a loop."""
        target = self._now + limit
        give_up = time.monotonic() + patience
        self._settle_from_thread()
        while not predicate():
            if self._step(target):
                give_up = time.monotonic() + patience
            else:
                self._check_patience(target, give_up)
                time.sleep(0.001)
            self._settle_from_thread()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Keep an automatic clock from jumping while a test prepares something."""
        with self._lock:
            self._frozen += 1
        try:
            yield
        finally:
            with self._lock:
                self._frozen -= 1
                loops = [sleeper.loop for _, _, sleeper in self._heap[:1]]
            for loop in loops:
                self._watch(loop)

    # ---- underneath

    def _check_patience(self, target: float, give_up: float) -> None:
        if self.next_wake is not None:
            raise TimeoutError(f"the condition still did not hold {target - _BEGIN:g} s after the start")
        if time.monotonic() > give_up:
            raise TimeoutError(f"nobody sleeps at {self.elapsed:g} s, and the condition does not hold")

    def _forget(self, sleeper: _Sleeper) -> None:
        with self._lock:
            sleeper.gone = True
            self._cancelled += 1
            if self._cancelled > 64 and self._cancelled > len(self._heap) // 2:
                self._heap = [entry for entry in self._heap if not entry[2].gone]
                heapq.heapify(self._heap)
                self._cancelled = 0

    def _drop_gone(self) -> None:
        while self._heap and self._heap[0][2].gone:
            heapq.heappop(self._heap)
            self._cancelled -= 1

    def _step(self, target: float) -> bool:
        """Move to the earliest sleeper that is due by `target` and wake all of that moment."""
        with self._lock:
            self._drop_gone()
            if not self._heap or self._heap[0][0] > target:
                return False
            moment = self._heap[0][0]
            self._now = max(self._now, moment)
            woken = []
            while self._heap and self._heap[0][0] <= moment:
                woken.append(heapq.heappop(self._heap)[2])
            self._activity += 1
        for sleeper in woken:
            sleeper.wake()
        return True

    def _move(self, target: float) -> None:
        with self._lock:
            self._now = max(self._now, target)

    def _other_loops(self, own: asyncio.AbstractEventLoop | None) -> list[asyncio.AbstractEventLoop]:
        with self._lock:
            self._loops = {key: loop for key, loop in self._loops.items() if not loop.is_closed()}
            return [loop for loop in self._loops.values() if loop is not own and loop.is_running()]

    async def _settle(self) -> None:
        for loop in self._other_loops(asyncio.get_running_loop()):
            with contextlib.suppress(TimeoutError):
                spun = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_spin(), loop))
                await asyncio.wait_for(spun, _LONGEST_SPIN)
        await _spin()

    def _settle_from_thread(self) -> None:
        for loop in self._other_loops(None):
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(_spin(), loop).result(_LONGEST_SPIN)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start looking for the moment when nothing but this clock is waited for."""
        if not self.auto:
            return
        with self._lock:
            if self._prober is not None and not self._prober.is_closed():
                return
            self._prober = loop
        loop.call_soon_threadsafe(self._probe, loop, self._activity, 0)

    def _probe(self, loop: asyncio.AbstractEventLoop, seen: int, quiet: int) -> None:
        if self._frozen:
            self._prober = None
        elif self._activity != seen:
            loop.call_soon(self._probe, loop, self._activity, 0)
        elif quiet < _SPINS:
            loop.call_soon(self._probe, loop, seen, quiet + 1)
        elif self._grace:
            loop.call_later(self._grace, self._jump, loop, seen)
        else:
            self._jump(loop, seen)

    def _jump(self, loop: asyncio.AbstractEventLoop, seen: int) -> None:
        if self._activity != seen or self._frozen:
            self._probe(loop, seen, 0)
        elif self._step(float("inf")):
            loop.call_soon(self._probe, loop, self._activity, 0)
        else:
            with self._lock:
                self._prober = None
                left = bool(self._heap)
            if left:
                self._watch(loop)


async def _spin() -> None:
    for _ in range(_SPINS):
        await asyncio.sleep(0)
