"""The background loop: one thread runs all traffic of a process, however many clients there are.

User code never runs here.  Whatever is started is finished: a coroutine that fails in any way ends
its future with that error.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import contextvars
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from ..errors import ClientClosedError
from .future import Future, forget_threads

__all__ = ["Portal", "portal"]

T = TypeVar("T")
logger: Final = logging.getLogger(__name__)

_EXIT_SECONDS = 3.0


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class Portal:
    """A thread with an event loop, and a way in from other threads."""

    def __init__(self, generation: int = 0) -> None:
        self.generation = generation
        self._inbox: deque[Callable[[], None]] = deque()
        self._lock = threading.RLock()  # a finalizer may interrupt whoever holds it
        self._woken = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self.at_exit: list[Callable[[], Coroutine[Any, Any, None]]] = []

    # ---- from any thread

    def start(
        self, work: Coroutine[Any, Any, T], *, future: Future[T] | None = None,
        cleanup: Callable[[], None] | None = None,
        on_error: Callable[[BaseException], object] | None = None,
    ) -> Future[T]:  # fmt: skip
        """Run a coroutine; `cleanup` is called on the loop's thread whatever becomes of it.

        `on_error` is called there too, after the future has its error.
        """
        future = Future[T]() if future is None else future
        held = contextvars.copy_context()
        try:
            self.call(lambda: self._begin(work, future, held, cleanup, on_error))
        except ClientClosedError:
            work.close()
            if cleanup is not None:
                cleanup()
            raise
        if self._thread is not None:
            future._own_thread = self._thread.ident  # which must never block on it
        return future

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and block until it is done."""
        return self.start(work).result()

    def call(self, function: Callable[[], None]) -> None:
        """Call a quick function on the loop's thread, in order; never waits."""
        with self._lock:
            if self._closed:
                raise ClientClosedError("the process is shutting down")
            if self._thread is None:
                self._launch()
            self._inbox.append(function)
            if not self._woken:
                assert self._loop is not None
                # In this order: an interrupt in between costs a wake-up too many, not one too few.
                self._loop.call_soon_threadsafe(self._drain)
                self._woken = True

    def here(self) -> bool:
        """Whether this is the loop's own thread."""
        return self._thread is not None and threading.get_ident() == self._thread.ident

    @property
    def task_count(self) -> int:
        """How many coroutines are under way."""
        return len(self._tasks)

    # ---- inside

    def _launch(self) -> None:
        loop = self._loop = _new_loop()

        def work() -> None:
            asyncio.set_event_loop(loop)
            while not self._closed:
                try:
                    loop.run_forever()
                except BaseException:  # a SystemExit in a task comes through to here
                    logger.exception("the background loop was interrupted; it goes on")

        thread = threading.Thread(target=work, name="tinkex-portal", daemon=True)
        thread.start()
        self._thread = thread

    def _drain(self) -> None:
        with self._lock:
            self._woken = False
            functions = list(self._inbox)
            self._inbox.clear()
        for function in functions:
            try:
                function()
            except Exception:
                logger.exception("a callback of the background loop failed")

    def _begin(
        self, work: Coroutine[Any, Any, T], future: Future[T], held: contextvars.Context,
        cleanup: Callable[[], None] | None, on_error: Callable[[BaseException], object] | None,
    ) -> None:  # fmt: skip
        assert self._loop is not None
        if future.cancelled():
            work.close()
            if cleanup is not None:
                cleanup()
            return
        task = self._loop.create_task(work, context=held)
        self._tasks.add(task)
        future._stop = lambda: self._cancel(task)
        if future.cancelled():  # in the moment between the look above and the line above
            task.cancel()

        def ended(done: asyncio.Task[T]) -> None:
            self._tasks.discard(done)
            future._stop = None
            try:
                if cleanup is not None:
                    cleanup()
            finally:
                error = _settle(future, done)
            if error is not None and on_error is not None:
                on_error(error)

        task.add_done_callback(ended)

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        def cancel() -> None:
            task.cancel()

        if portal() is not self:
            return  # the task is the parent's
        with contextlib.suppress(ClientClosedError):
            self.call(cancel)

    def spawn(self, work: Coroutine[Any, Any, None]) -> Callable[[], object]:
        """Run a background coroutine nobody waits for; returns how to stop it."""
        return self.start(work).cancel

    def shut_down(self) -> None:
        """Let sessions say goodbye for a moment, then stop."""
        if self._thread is None or self._closed or not self._thread.is_alive():
            return
        goodbyes = [make() for make in self.at_exit]
        if goodbyes:
            with contextlib.suppress(TimeoutError, concurrent.futures.CancelledError):
                self.start(_all(goodbyes)).exception(_EXIT_SECONDS)
        loop = self._loop
        with self._lock:
            self._closed = True
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join(1.0)


async def _all(works: list[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*works, return_exceptions=True)


def _settle(future: Future[T], done: asyncio.Task[T]) -> BaseException | None:
    """Hand over the outcome; returns the error the future's owner will see, if any."""
    if future.done():
        if not done.cancelled():
            done.exception()  # mark it as seen
        return None
    if done.cancelled():
        future.cancel()
        return None
    error = done.exception()
    try:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(done.result())
    except concurrent.futures.InvalidStateError:  # cancelled by its owner in this very moment
        return None
    return error


_portal = Portal()
# Of the processes this one was forked from; freeing a loop that seems to run is an error.
_left_behind: list[Portal] = []


def portal() -> Portal:
    """The process's background loop."""
    return _portal


def _after_fork() -> None:
    global _portal
    forget_threads()
    _left_behind.append(_portal)
    _portal = Portal(_portal.generation + 1)


def _at_exit() -> None:
    _portal.shut_down()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
