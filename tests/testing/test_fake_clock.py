from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from tinkex.net.clock import Clock
from tinkex.testing import FakeClock


def test_it_is_a_clock_that_stands_still() -> None:
    clock: Clock = FakeClock()
    assert clock.monotonic() == clock.monotonic()
    assert clock.now() == clock.now()
    assert clock.now().tzinfo is not None


def test_chance_repeats_with_the_seed() -> None:
    first, second, other = FakeClock(seed=1), FakeClock(seed=1), FakeClock(seed=2)
    drawn = [first.random() for _ in range(5)]
    assert drawn == [second.random() for _ in range(5)]
    assert drawn != [other.random() for _ in range(5)]
    assert all(0 <= each < 1 for each in drawn)


def test_advance_wakes_sleepers_in_order_and_lets_them_go_on() -> None:
    async def main() -> None:
        clock = FakeClock()
        seen: list[tuple[str, float]] = []

        async def sleeper(name: str, *times: float) -> None:
            for each in times:
                await clock.sleep(each)
                seen.append((name, clock.elapsed))

        tasks = [asyncio.ensure_future(sleeper("a", 1, 1, 1)), asyncio.ensure_future(sleeper("b", 2.5))]
        before = clock.now()
        await clock.advance(0.5)
        assert seen == []
        await clock.advance(2.2)
        assert seen == [("a", 1.0), ("a", 2.0), ("b", 2.5)]
        assert clock.sleeping == 1
        assert clock.next_wake == pytest.approx(0.3)
        await clock.advance(10)
        assert seen[-1] == ("a", 3.0)
        assert clock.elapsed == pytest.approx(12.7)
        assert clock.now() - before == timedelta(seconds=12.7)
        assert clock.sleeps == [1, 2.5, 1, 1]
        await asyncio.gather(*tasks)

    asyncio.run(main())


def test_a_cancelled_sleeper_is_forgotten() -> None:
    async def main() -> None:
        clock = FakeClock()
        tasks = [asyncio.ensure_future(clock.sleep(5)) for _ in range(200)]
        await clock.advance(0)
        for task in tasks[:199]:
            task.cancel()
        await clock.advance(0)
        assert clock.sleeping == 1
        await clock.advance(5)
        assert tasks[199].done()
        assert clock.sleeping == 0
        assert clock.next_wake is None

    asyncio.run(main())


def test_a_sleep_of_nothing_only_yields() -> None:
    async def main() -> None:
        clock = FakeClock()
        await clock.sleep(0)
        await clock.sleep(-1)
        assert clock.elapsed == 0
        assert clock.sleeps == [0, -1]

    asyncio.run(main())


def test_an_automatic_clock_jumps_when_all_is_quiet() -> None:
    async def main() -> None:
        clock = FakeClock(auto=True)
        order: list[str] = []

        async def work(name: str, seconds: float) -> None:
            for _ in range(3):
                await clock.sleep(seconds)
                for _ in range(10):  # busy without sleeping: the clock must wait for it
                    await asyncio.sleep(0)
                order.append(f"{name}@{clock.elapsed:g}")

        await asyncio.gather(work("a", 100), work("b", 150))
        assert order == ["a@100", "b@150", "a@200", "b@300", "a@300", "b@450"]

    asyncio.run(main())


def test_a_frozen_clock_does_not_jump() -> None:
    async def main() -> None:
        clock = FakeClock(auto=True, grace=0)
        with clock.frozen():
            task = asyncio.ensure_future(clock.sleep(1))
            for _ in range(500):
                await asyncio.sleep(0)
            assert clock.elapsed == 0
        await task
        assert clock.elapsed == 1

    asyncio.run(main())


def test_advance_until_stops_at_the_condition() -> None:
    async def main() -> None:
        clock = FakeClock()
        ticks: list[float] = []

        async def tick() -> None:
            while True:
                await clock.sleep(10)
                ticks.append(clock.elapsed)

        task = asyncio.ensure_future(tick())
        await clock.advance_until(lambda: len(ticks) == 4)
        assert clock.elapsed == 40
        with pytest.raises(TimeoutError, match="still did not hold"):
            await clock.advance_until(lambda: False, limit=100)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with pytest.raises(TimeoutError, match="nobody sleeps"):
            await clock.advance_until(lambda: False, patience=0.01)

    asyncio.run(main())


def test_a_thread_can_move_the_clock_of_a_loop_elsewhere() -> None:
    clock = FakeClock()
    seen: list[float] = []
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def sleeper() -> None:
        for _ in range(3):
            await clock.sleep(2)
            seen.append(clock.elapsed)

    done = asyncio.run_coroutine_threadsafe(sleeper(), loop)
    clock.advance_until_from_thread(lambda: clock.sleeping == 1)
    clock.advance_from_thread(4)
    assert seen == [2, 4]
    clock.advance_until_from_thread(done.done)
    assert seen == [2, 4, 6]
    with pytest.raises(TimeoutError):
        clock.advance_until_from_thread(lambda: False, patience=0.01)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_an_automatic_clock_serves_one_loop_after_another() -> None:
    clock = FakeClock(auto=True)
    asyncio.run(clock.sleep(5))
    asyncio.run(clock.sleep(5))
    assert clock.elapsed == 10
