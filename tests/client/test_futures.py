"""The one future and the loop behind it: every way to wait, to give up, to interrupt."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.client.rig import WAIT, eventually
from tinkex.client import future as module
from tinkex.client.future import _Outbox
from tinkex.client.portal import Portal, portal
from tinkex.errors import ClientClosedError


async def value(result: Any = 1) -> Any:
    await asyncio.sleep(0)
    return result


async def never() -> None:
    await asyncio.Event().wait()


def in_time(step: Callable[[], Any]) -> bool:
    """Whether something ends at all, tried in a thread that may be left behind."""
    thread = threading.Thread(target=step, daemon=True)
    thread.start()
    thread.join(WAIT / 4)
    return not thread.is_alive()


# ---- as a concurrent.futures.Future


def test_a_cancelled_future_ends_every_wait_of_the_standard_library() -> None:
    stopped, fine = portal().start(never()), portal().start(value())
    assert stopped.cancel()
    assert stopped.cancel(), "again is harmless"
    done, waiting = concurrent.futures.wait([stopped, fine], timeout=WAIT)
    assert (done, waiting) == ({stopped, fine}, set())
    assert set(concurrent.futures.as_completed([stopped, fine], timeout=WAIT)) == {stopped, fine}
    with pytest.raises(concurrent.futures.CancelledError):
        stopped.result(WAIT)
    assert not fine.cancel()


def test_whoever_waits_already_is_told_of_a_cancel() -> None:
    future = portal().start(never())
    ended: list[Any] = []
    waiter = threading.Thread(
        target=lambda: ended.append(concurrent.futures.wait([future], timeout=WAIT)), daemon=True
    )
    waiter.start()
    assert eventually(lambda: bool(future._waiters))  # type: ignore[attr-defined]
    future.cancel()
    waiter.join(WAIT)
    assert ended[0].done == {future}


def test_awaiting_a_cancelled_future_is_like_awaiting_any_other() -> None:
    future = portal().start(never())

    async def main() -> None:
        waiting = asyncio.ensure_future(future.result_async())
        await asyncio.sleep(0.01)
        future.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert waiting.cancelled()
        with pytest.raises(asyncio.CancelledError):
            await future

    asyncio.run(main())


def test_standard_wrappers_work() -> None:
    async def main() -> Any:
        return await asyncio.gather(
            asyncio.wrap_future(portal().start(value(1))), portal().start(value(2)), value(3)
        )

    assert asyncio.run(main()) == [1, 2, 3]


def test_a_callback_that_hangs_does_not_keep_other_loops_waiting() -> None:
    release = threading.Event()
    hung = portal().start(value())
    hung.result(WAIT)
    module._callbacks.run(lambda _: release.wait(WAIT), hung)

    async def main() -> Any:
        return await asyncio.wait_for(asyncio.wrap_future(portal().start(value(4))), WAIT / 2)

    try:
        assert asyncio.run(main()) == 4
    finally:
        release.set()


def test_a_wait_cannot_block_the_thread_that_has_to_produce_the_result() -> None:
    pending = portal().start(never())

    async def inside(method: str) -> Any:
        return getattr(pending, method)(0.01)

    for method in ("result", "exception"):
        with pytest.raises(RuntimeError, match=method):
            portal().start(inside(method)).result(WAIT)
    pending.cancel()


def test_errors_of_any_kind_reach_the_owner() -> None:
    async def fails(error: BaseException) -> None:
        raise error

    for error in (ValueError("x"), KeyError("y"), GeneratorExit(), SystemExit(3)):
        future = portal().start(fails(error))
        assert future.exception(WAIT) is error
    assert portal().run(value(7)) == 7


def test_a_cancel_in_the_moment_of_the_result_is_nobodys_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        for _ in range(300):
            future = portal().start(value())
            future.cancel()
            concurrent.futures.wait([future], timeout=WAIT)
        portal().run(value())
    assert not caplog.records


def test_giving_up_an_await_in_the_moment_of_the_result_is_no_error() -> None:
    async def main() -> int:
        ended = 0
        for _ in range(200):
            future = portal().start(value())
            with contextlib.suppress(TimeoutError):
                await future.result_async(timeout=0)
            waiting = asyncio.ensure_future(future.result_async())
            await asyncio.sleep(0)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
            ended += 1
        return ended

    assert asyncio.run(main()) == 200


def test_cleaning_up_never_keeps_a_result_back(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> None:
        raise ValueError("while cleaning up")

    assert portal().start(value(5), cleanup=fails).result(WAIT) == 5


# ---- waking up other loops


def test_loops_that_are_gone_are_not_kept() -> None:
    outbox = _Outbox()
    loops = [asyncio.new_event_loop() for _ in range(3)]
    for loop in loops:
        outbox.wake(loop, loop.create_future())
    assert len(outbox._waiting) == 3
    for loop in loops:
        loop.close()
    fresh = asyncio.new_event_loop()
    waiter = fresh.create_future()
    outbox.wake(fresh, waiter)
    assert list(outbox._waiting) == [fresh]
    outbox.wake(loops[0], fresh.create_future())  # nobody waits there any more
    assert list(outbox._waiting) == [fresh]
    fresh.run_until_complete(waiter)
    assert not outbox._waiting
    fresh.close()


def test_programs_that_end_in_the_middle_leave_nothing_behind() -> None:
    futures = []

    async def main() -> None:
        future = portal().start(never())
        futures.append(future)
        waiting = asyncio.ensure_future(future.result_async())
        await asyncio.sleep(0)
        future.cancel()  # wakes this loop, which is closed before it gets round to it
        waiting.cancel()

    for _ in range(5):
        asyncio.run(main())
    assert portal().start(value(1)).result(WAIT) == 1

    async def last() -> Any:
        return await portal().start(value(2))

    assert asyncio.run(last()) == 2
    assert len(module._outbox._waiting) == 0
    assert all(not future._bridges for future in futures)


# ---- interrupts


@pytest.mark.parametrize("before", [True, False])
def test_an_interrupt_while_work_is_handed_over_does_not_silence_the_loop(
    before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Portal()
    assert own.run(value()) == 1
    loop = own._loop
    assert loop is not None

    class Interrupted:
        def __init__(self) -> None:
            self.times = 1

        def call_soon_threadsafe(self, *args: Any) -> None:
            if self.times and before:
                self.times -= 1
                raise KeyboardInterrupt
            loop.call_soon_threadsafe(*args)
            if self.times:
                self.times -= 1
                raise KeyboardInterrupt

    monkeypatch.setattr(own, "_loop", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        own.call(lambda: None)
    done = threading.Event()
    own.call(done.set)
    assert done.wait(WAIT)
    monkeypatch.undo()
    own.shut_down()


def test_an_interrupt_while_a_loop_is_woken_does_not_silence_it() -> None:
    outbox, loop = _Outbox(), asyncio.new_event_loop()
    real = loop.call_soon_threadsafe
    interrupts = [KeyboardInterrupt]

    def interrupted(*args: Any) -> Any:
        if interrupts:
            raise interrupts.pop()
        return real(*args)

    loop.call_soon_threadsafe = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        outbox.wake(loop, loop.create_future())
    waiter = loop.create_future()
    outbox.wake(loop, waiter)
    loop.run_until_complete(asyncio.wait_for(waiter, WAIT))
    loop.close()


def test_a_finalizer_may_interrupt_whoever_holds_the_lock() -> None:
    def nested() -> None:
        with portal()._lock:
            portal().call(lambda: None)
        with module._outbox._lock:
            loop = asyncio.new_event_loop()
            module._outbox.wake(loop, loop.create_future())
            loop.close()

    assert in_time(nested)


def test_objects_freed_by_the_collector_in_any_thread_deadlock_nobody() -> None:
    class Owner:
        def __init__(self) -> None:
            self.me = self
            self.work = portal().start(never())

        def __del__(self) -> None:
            self.work.cancel()

    threshold = gc.get_threshold()
    gc.set_threshold(5, 2, 2)
    try:

        def churn() -> None:
            for _ in range(150):
                Owner()
                portal().start(value()).result(WAIT)

        assert in_time(churn)
    finally:
        gc.set_threshold(*threshold)
    gc.collect()


# ---- the loop


def test_a_portal_that_is_closed_says_so_and_leaves_nothing_open() -> None:
    own, cleaned = Portal(), []
    assert own.run(value()) == 1
    own.shut_down()
    work = value()
    with pytest.raises(ClientClosedError):
        own.start(work, cleanup=lambda: cleaned.append(True))
    assert cleaned == [True]
    assert work.cr_frame is None, "the coroutine is closed"
    own.shut_down()


def test_shutting_down_does_not_wait_for_what_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    from tinkex.client import portal as home

    monkeypatch.setattr(home, "_EXIT_SECONDS", 0.05)
    own = Portal()
    own.run(value())

    async def goodbye() -> None:
        await asyncio.Event().wait()

    own.at_exit.append(goodbye)
    assert in_time(own.shut_down)
    assert own._thread is not None
    assert not own._thread.is_alive()


def test_work_from_many_threads_all_comes_through() -> None:
    results: list[int] = []

    def work(number: int) -> None:
        results.extend(portal().start(value(number)).result(WAIT) for _ in range(50))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert len(results) == 800


def test_callbacks_are_called_in_order_and_their_errors_logged(caplog: pytest.LogCaptureFixture) -> None:
    called: list[int] = []
    gate = threading.Event()

    async def wait() -> None:
        while not gate.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.001)

    future = portal().start(wait())

    def bad(_: Any) -> None:
        raise ValueError("in a callback")

    future.add_done_callback(lambda _: called.append(1))
    future.add_done_callback(bad)
    future.add_done_callback(lambda _: called.append(2))
    gate.set()
    assert eventually(lambda: called == [1, 2])
    assert eventually(lambda: "in a callback" in caplog.text)
