"""Limits on what is under way: never too much, first come first served, nothing lost on the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinkex.net.limits import Gate, Throttle
from tinkex.testing.fake_clock import FakeClock


class Crowd:
    """Tasks that enter through something, stay until told to go, and note in which order they got in."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self.exits: list[asyncio.Event] = []
        self.entered: list[int] = []
        self.inside: set[int] = set()

    def come(self, visit: Any) -> None:
        number = len(self.tasks)
        self.exits.append(asyncio.Event())
        self.tasks.append(asyncio.ensure_future(visit(number)))

    def note(self, number: int) -> None:
        self.entered.append(number)
        self.inside.add(number)

    def gone(self, number: int) -> None:
        self.inside.discard(number)

    def cancel(self, pick: int) -> None:
        running = [task for task in self.tasks if not task.done()]
        if running:
            running[pick % len(running)].cancel()

    def send_away(self, pick: int) -> None:
        inside = sorted(self.inside)
        if inside:
            self.exits[inside[pick % len(inside)]].set()

    async def settle(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)

    async def end(self) -> None:
        for exit in self.exits:
            exit.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)


picks = st.integers(0, 20)

# ---- the gate


async def play_gate(capacity: int, actions: list[tuple[str, int]], *, settle_between: bool) -> None:
    gate, crowd, needs = Gate(capacity), Crowd(), []

    async def visit(number: int) -> None:
        async with gate.hold(needs[number]):
            crowd.note(number)
            try:
                await crowd.exits[number].wait()
            finally:
                crowd.gone(number)

    largest = capacity
    for action, value in actions:
        if action == "enter":
            needs.append(value)
            crowd.come(visit)
        elif action == "leave":
            crowd.send_away(value)
        elif action == "cancel":
            crowd.cancel(value)
        else:
            gate.capacity = value + 1
            largest = max(largest, gate.capacity)
        assert 0 <= gate.inside <= largest
        if settle_between:
            await crowd.settle()
            held = sum(min(needs[number], largest) for number in crowd.inside)
            assert gate.inside <= held, "nobody's room is lost"
            if gate.waiting:
                assert gate.inside > 0, "nobody waits at an empty gate"
    assert crowd.entered == sorted(crowd.entered), "first come, first served"
    await crowd.end()
    assert gate.inside == 0
    assert gate.waiting == 0
    assert crowd.entered == sorted(crowd.entered)
    cancelled = {number for number, task in enumerate(crowd.tasks) if task.cancelled()}
    assert set(crowd.entered) | cancelled == set(range(len(crowd.tasks))), "everybody gets in"


gate_actions = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.integers(0, 12)),
        st.tuples(st.sampled_from(["leave", "cancel"]), picks),
        st.tuples(st.just("resize"), st.integers(0, 9)),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(capacity=st.integers(1, 8), actions=gate_actions, settle_between=st.booleans())
def test_a_gate_holds_its_promises_whatever_happens(
    capacity: int, actions: list[tuple[str, int]], settle_between: bool
) -> None:
    asyncio.run(play_gate(capacity, actions, settle_between=settle_between))


def test_many_small_ones_do_not_starve_a_large_one() -> None:
    async def main() -> list[str]:
        gate, order = Gate(10), []

        async def visit(name: str, units: int) -> None:
            async with gate.hold(units):
                order.append(name)
                await asyncio.sleep(0)

        await asyncio.gather(
            *(visit(f"before {n}", 2) for n in range(5)),
            visit("large", 10),
            *(visit(f"after {n}", 1) for n in range(50)),
        )
        return order

    assert asyncio.run(main()).index("large") == 5


def test_something_larger_than_the_gate_goes_in_alone() -> None:
    async def main() -> None:
        gate = Gate(10)
        async with gate.hold(1000):
            assert gate.inside == gate.capacity
            waiting = asyncio.ensure_future(gate.hold(1).__aenter__())
            await asyncio.sleep(0)
            assert not waiting.done()
            waiting.cancel()
        assert gate.inside == 0

    asyncio.run(main())


def test_a_gate_that_shrinks_does_not_shut_out_who_was_counted_before() -> None:
    async def main() -> None:
        gate, crowd = Gate(10), Crowd()

        async def visit(number: int) -> None:
            async with gate.hold(10 - number):
                crowd.note(number)
                await crowd.exits[number].wait()

        crowd.come(visit)
        crowd.come(visit)
        await crowd.settle()
        gate.capacity = 3
        crowd.exits[0].set()
        await crowd.settle()
        assert crowd.entered == [0, 1]
        await crowd.end()
        assert gate.inside == 0

    asyncio.run(main())


@pytest.mark.parametrize("granted", [False, True])
def test_room_granted_in_the_moment_of_a_cancel_is_passed_on(granted: bool) -> None:
    async def main() -> None:
        gate, crowd = Gate(1), Crowd()

        async def visit(number: int) -> None:
            async with gate.hold():
                crowd.note(number)
                await crowd.exits[number].wait()

        for _ in range(3):
            crowd.come(visit)
        await crowd.settle()
        if not granted:
            crowd.tasks[1].cancel()
        crowd.exits[0].set()
        for _ in range(20):
            if granted and gate.waiting == 2:
                await asyncio.sleep(0)
        crowd.tasks[1].cancel()  # its room was granted, but it has not woken up yet
        await crowd.settle()
        assert crowd.entered == [0, 2]
        assert gate.inside == 1
        await crowd.end()

    asyncio.run(main())


# ---- the throttle


async def play_throttle(start: int, actions: list[tuple[str, float]]) -> None:
    clock, crowd = FakeClock(), Crowd()
    throttle = Throttle(clock, start=start, most=12)
    accepted: dict[int, bool] = {}

    async def visit(number: int) -> None:
        await throttle.enter()
        crowd.note(number)
        try:
            await crowd.exits[number].wait()
        finally:
            crowd.gone(number)
            throttle.leave(accepted=accepted.get(number, True))

    for action, value in actions:
        before, limit, pause = len(crowd.entered), throttle.limit, throttle.paused_until
        if action == "enter":
            crowd.come(visit)
        elif action in ("accepted", "refused"):
            accepted.update(dict.fromkeys(crowd.inside, action == "accepted"))
            crowd.send_away(int(value))
        elif action == "cancel":
            crowd.cancel(int(value))
        elif action == "slow":
            throttle.slow_down(value)
        else:
            await clock.advance(value)
        await crowd.settle()
        assert throttle.paused_until >= pause, "a longer pause is never shortened"
        assert 1.0 <= throttle.limit <= 12.0
        assert throttle.inside >= len(crowd.inside)
        if len(crowd.entered) > before:
            assert clock.monotonic() >= pause, "nobody starts in a pause"
            assert throttle.inside <= int(max(limit, throttle.limit)), "nor beyond the limit"
        if throttle.waiting:
            paused = clock.monotonic() < throttle.paused_until
            assert paused or throttle.inside >= int(throttle.limit), "nobody waits for nothing"
    assert crowd.entered == sorted(crowd.entered), "first come, first served"
    for exit in crowd.exits:
        exit.set()
    await clock.advance(throttle.paused_until - clock.monotonic() + 1)
    await crowd.end()
    assert throttle.inside == 0
    assert throttle.waiting == 0
    cancelled = {number for number, task in enumerate(crowd.tasks) if task.cancelled()}
    assert set(crowd.entered) | cancelled == set(range(len(crowd.tasks)))


throttle_actions = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.just(0.0)),
        st.tuples(st.sampled_from(["accepted", "refused", "cancel"]), picks.map(float)),
        st.tuples(st.sampled_from(["slow", "advance"]), st.sampled_from([0.0, 0.3, 2.0, 30.0])),
    ),
    max_size=30,
)


@settings(max_examples=100, deadline=None)
@given(start=st.integers(1, 6), actions=throttle_actions)
def test_a_throttle_holds_its_promises_whatever_happens(
    start: int, actions: list[tuple[str, float]]
) -> None:
    asyncio.run(play_throttle(start, actions))


def test_a_shorter_pause_or_a_success_does_not_shorten_a_longer_one() -> None:
    async def main() -> None:
        clock = FakeClock()
        throttle = Throttle(clock)
        await throttle.enter()
        throttle.slow_down(30.0)
        throttle.slow_down(1.0)
        throttle.leave(accepted=True)
        waiting = asyncio.ensure_future(throttle.enter())
        await clock.advance(29.0)
        assert not waiting.done()
        await clock.advance(1.0)
        assert waiting.done()

    asyncio.run(main())


def test_refusals_of_requests_that_were_under_way_together_count_once() -> None:
    clock = FakeClock()
    throttle = Throttle(clock, start=64)

    async def main() -> None:
        for _ in range(64):
            throttle.slow_down(1.0)
        assert throttle.limit == 32
        await clock.advance(1.0)
        throttle.slow_down(1.0)
        assert throttle.limit == 16

    asyncio.run(main())


@pytest.mark.parametrize("capacity", [3, 20, 100])
@pytest.mark.parametrize("start", [1, 64])
def test_concurrency_settles_around_what_the_server_takes(capacity: int, start: int) -> None:
    clock = FakeClock(auto=True, grace=0)
    throttle = Throttle(clock, start=start)
    seen: list[float] = []
    refused = 0

    async def client(requests: int) -> None:
        nonlocal refused
        for _ in range(requests):
            while True:
                await throttle.enter()
                if throttle.inside > capacity:
                    refused += 1
                    throttle.slow_down(0.2)
                    throttle.leave(accepted=False)
                    continue
                await clock.wait(0.1)
                throttle.leave(accepted=True)
                seen.append(throttle.limit)
                break

    async def main() -> None:
        await asyncio.gather(*(client(20) for _ in range(150)))

    asyncio.run(main())
    late = seen[len(seen) // 2 :]
    assert len(seen) == 3000
    assert capacity * 0.4 <= sum(late) / len(late) <= capacity * 1.1 + 1
    assert max(late) <= capacity + 2
    assert refused <= len(seen) * 0.5
