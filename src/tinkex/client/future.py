"""The one kind of future: block on it, await it, cancel it, ask how it is doing."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from ..errors import ClientClosedError
from ..notices import called, notice
from .loops import blocks_a_loop

__all__ = ["APIFuture", "Future", "Progress"]

T = TypeVar("T")
logger: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class Progress:
    """What is known about work under way."""

    stage: str = "queued"  # queued, sending, waiting, done
    request_id: str | None = None
    queue_state: str | None = None
    queue_reason: str | None = None


class _Outbox:
    """Wakes tasks of other event loops; many at once cost one wake-up."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may interrupt whoever holds it
        self._waiting: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}

    def wake(self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
        with self._lock:
            known = self._waiting.get(loop)
            if known is not None:
                known.append(waiter)
                return
            for gone in [each for each in self._waiting if each.is_closed()]:
                del self._waiting[gone]  # it was closed before it could run `_flush`
            # In this order: an interrupt in between costs a wake-up too many, not one too few.
            with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._flush, loop)
                self._waiting[loop] = [waiter]

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            waiters = self._waiting.pop(loop, [])
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class _Callbacks:
    """A thread for done-callbacks, which are user code and must not run on the event loop."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Callable[[Any], Any], Any]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def run(self, callback: Callable[[Any], Any], future: Any) -> None:
        self._queue.put((callback, future))
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="tinkex-callbacks", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            callback, future = self._queue.get()
            try:
                callback(future)
            except Exception:
                logger.exception("exception calling callback for %r", future)
            del callback, future


_outbox = _Outbox()
_callbacks = _Callbacks()
_generation = 0  # counts forks


def run_user_code(callback: Callable[[T], object], subject: T) -> None:
    """Call something of the user's, off the event loop, after what was to be called before."""
    _callbacks.run(callback, subject)


def forget_threads() -> None:
    """After a fork the helper threads are gone; start afresh."""
    global _outbox, _callbacks, _generation
    _outbox, _callbacks = _Outbox(), _Callbacks()
    _generation += 1


class Future(concurrent.futures.Future[T], Generic[T]):
    """The result of work that was started.

    `result(timeout)` blocks, `await` waits; both raise what went wrong.  A timeout or a cancelled
    `await` leaves the work running; `cancel()` stops it: work still in line is taken out, a running
    sample is cancelled on the server, a running training operation goes on unobserved.
    """

    def __init__(self) -> None:
        super().__init__()
        self.progress: Progress = Progress()
        self._bridges: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._stop: Callable[[], None] | None = None
        self._own_thread: int | None = None
        self._held_up: Callable[[], bool] | None = None  # whether it waits for who would wait for it
        self._made_in = _generation

    @property
    def request_id(self) -> str | None:
        """The server's id of the work, once it has one."""
        return self.progress.request_id

    def future(self) -> Future[T]:
        """The future itself, which is also a `concurrent.futures.Future`."""
        return self

    def done(self) -> bool:
        """Whether the work has ended, in whatever way."""
        self._after_fork()
        return super().done()

    def result(self, timeout: float | None = None) -> T:
        """Block until the result is there; `TimeoutError` leaves the work running."""
        if not self.done():
            self._about_to_block("result")
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Block until the work has ended; the error it ended with, or None."""
        if not self.done():
            self._about_to_block("exception")
        return super().exception(timeout)

    def _about_to_block(self, method: str) -> None:
        if self._own_thread == threading.get_ident():
            raise RuntimeError(f"{method}() would block the thread that has to produce the result")
        if self._held_up is not None and self._held_up():
            raise RuntimeError(
                f"{method}() inside a custom loss would wait for that loss: the client sends what the loss "
                "starts after the loss's own backward pass; wait for it outside"
            )
        _warn_if_in_loop()

    async def result_async(self, timeout: float | None = None) -> T:
        """Wait until the result is there; `TimeoutError` leaves the work running."""
        if not self.done():
            loop = asyncio.get_running_loop()
            waiter = loop.create_future()
            bridge = (loop, waiter)
            with self._condition:
                waits = self._state not in _ENDED
                if waits:
                    self._bridges.append(bridge)
            if waits:
                try:
                    if timeout is None:
                        await waiter
                    else:
                        async with asyncio.timeout(timeout):
                            await waiter
                finally:
                    with contextlib.suppress(ValueError):  # taken over by `_invoke_callbacks`
                        self._bridges.remove(bridge)
        try:
            return super().result()
        except concurrent.futures.CancelledError:
            raise asyncio.CancelledError from None  # as awaiting any cancelled future does

    def __await__(self) -> Generator[Any, None, T]:
        return self.result_async().__await__()

    def cancel(self) -> bool:
        """Stop the work if it can be stopped; False if it was done already."""
        self._after_fork()
        if not super().cancel():
            return False
        with self._condition:
            first = self._state == concurrent.futures._base.CANCELLED
            if first:
                self.set_running_or_notify_cancel()  # tells `concurrent.futures.wait` and its like
        if first and self._stop is not None:
            self._stop()
        return True

    def _after_fork(self) -> None:
        """Work begun before a fork goes on in the parent: here its future has failed."""
        if self._made_in == _generation:
            return
        self._made_in = _generation
        self._condition = threading.Condition()  # a thread of the parent may have held it
        self._stop, self._bridges = None, []
        self._done_callbacks: list[Callable[[Any], Any]] = []
        if self._state not in _ENDED:
            self.set_exception(
                ClientClosedError("this future was made before a fork; its result is the parent's")
            )

    def _invoke_callbacks(self) -> None:
        # Called by the base class with the state final, from whichever thread set it.
        self.progress.stage = "done"
        bridges, self._bridges = self._bridges, []
        for loop, waiter in bridges:
            _outbox.wake(loop, waiter)
        for callback in self._done_callbacks:
            if getattr(callback, "__module__", None) == "asyncio.futures":
                callback(
                    self
                )  # of `asyncio.wrap_future`: it only wakes a loop, and must not wait for others
            else:
                _callbacks.run(callback, self)


_ENDED = (
    concurrent.futures._base.CANCELLED,
    concurrent.futures._base.CANCELLED_AND_NOTIFIED,
    concurrent.futures._base.FINISHED,
)

APIFuture = Future


async def owned(future: Future[T]) -> T:
    """Wait for a future nobody else holds: if the wait is cancelled, so is the work."""
    try:
        return await future
    except asyncio.CancelledError:
        future.cancel()
        raise


def _warn_if_in_loop() -> None:
    if blocks_a_loop():
        notice(
            "blocking-call",
            f"{called()}() waits inside a running event loop and blocks it; use `await` on a future, "
            "or the `_async` form of the method.",
        )
