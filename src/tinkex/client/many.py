"""Many samples at a bounded concurrency: `for sampled in client.sample_many(prompts, params)`.

The input is read only as far as there is room for more work, in the thread or task of whoever reads
the results; so it may be endless, and a slow reader slows it down.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..errors import InvalidArgumentError
from ..types.model_input import ModelInput
from ..types.rules import shown
from ..types.sample_response import SampleResponse
from ..types.sampling import SampleRequest
from .channel import Channel, warn_if_in_loop
from .future import Future, Progress
from .reader import Reader
from .session import Session

__all__ = ["ManySamples", "SampleInput", "Sampled"]

SampleInput: TypeAlias = ModelInput | SampleRequest
Run: TypeAlias = Callable[[Progress], Coroutine[Any, Any, SampleResponse]]

_END: Any = object()
_AT_LEAST = 2  # inputs taken per result, so that reading quickly does not drain what is under way


@dataclass(frozen=True, slots=True)
class Sampled:
    """How one item of the input ended: with a response, or with an error."""

    index: int  # its place in the input, from 0
    item: SampleInput
    response: SampleResponse | None = None
    error: Exception | None = None

    def result(self) -> SampleResponse:
        """The response; raises the error if there is one."""
        if self.error is not None:
            raise self.error
        assert self.response is not None
        return self.response


class ManySamples(Reader):
    """The results of many samples, as they complete or in the order of the input.

    At most `concurrency` items are under way or wait to be read.  Leaving early — `close()`, the end of
    a `with` block, an error, dropping the object — cancels what is under way.
    """

    def __init__(
        self,
        session: Session,
        prepare: Callable[[SampleInput], Run],
        items: Iterable[SampleInput] | AsyncIterable[SampleInput],
        *,
        concurrency: int,
        ordered: bool,
        return_exceptions: bool,
    ) -> None:
        if not isinstance(concurrency, int) or concurrency < 1:
            raise InvalidArgumentError(f"concurrency: must be 1 or more, got {concurrency!r}")
        self._session, self._prepare = session, prepare
        self._concurrency, self._ordered = concurrency, ordered
        self._return_exceptions = return_exceptions
        self._inputs: Iterator[SampleInput] | None = None
        self._async_inputs: AsyncIterator[SampleInput] | None = None
        if isinstance(items, Iterable) and not isinstance(items, (ModelInput, SampleRequest)):
            self._inputs = iter(items)
        elif isinstance(items, AsyncIterable):
            self._async_inputs = aiter(items)
        else:
            raise InvalidArgumentError(f"items: expected many prompts or requests, got {shown(items)}")
        self._taken = self._read = 0  # items so far
        self._exhausted = False
        self._held: dict[int, Sampled] = {}  # ended, and not read yet
        self._ended: Channel[Sampled] = Channel(concurrency)
        self._running: dict[int, Future[None]] = {}
        self._tasks: dict[str, asyncio.Task[Any]] = {}  # of the reader's own loop
        self._stop = weakref.finalize(self, _stop, self._ended, self._running, self._tasks)
        self._stop.atexit = False

    def __repr__(self) -> str:
        return f"ManySamples(under_way={len(self._running)}, read={self._read})"

    # ---- reading from a thread

    def __next__(self) -> Sampled:
        if self._inputs is None:
            raise InvalidArgumentError("items: an async iterable is read with `async for`")
        self._fill()
        while (ready := self._ready()) is None:
            if self._over():
                raise StopIteration
            if not self._ended.ready():
                warn_if_in_loop("`async for`")
            try:
                self._hold(self._ended.get())
            except EOFError:
                raise StopIteration from None
        return self._hand_over(ready)

    def _fill(self) -> None:
        """Start more work: some in any case, and as much as fits while there is nothing to read."""
        assert self._inputs is not None
        started = 0
        while self._has_room() and (started < _AT_LEAST or not (self._held or self._ended.ready())):
            try:
                item = next(self._inputs, _END)
            except BaseException:
                self.close()
                raise
            self._begin(item)
            started += 1

    # ---- reading from a task

    async def __anext__(self) -> Sampled:
        if self._inputs is not None:
            self._fill()
        else:
            self._take_input()
        while (ready := self._ready()) is None:
            if self._over():
                raise StopAsyncIteration
            try:
                await self._wait()
            except EOFError:
                raise StopAsyncIteration from None
        return self._hand_over(ready)

    def _take_input(self) -> None:
        """Begin what came in, and ask for more if there is room."""
        pull = self._tasks.get("input")
        if pull is not None and pull.done():
            del self._tasks["input"]
            try:
                item = pull.result()
            except BaseException:
                self.close()
                raise
            self._begin(item)
        if self._has_room() and "input" not in self._tasks:
            assert self._async_inputs is not None
            self._tasks["input"] = asyncio.ensure_future(anext(self._async_inputs, _END))

    async def _wait(self) -> None:
        """Wait for a result or an input; both waits outlive a cancelled reader, so nothing is lost."""
        if self._async_inputs is None:
            self._hold(await self._ended.get_async())
            return
        if "result" not in self._tasks:
            self._tasks["result"] = asyncio.ensure_future(self._ended.get_async())
        await asyncio.wait(set(self._tasks.values()), return_when=asyncio.FIRST_COMPLETED)
        if not self._stop.alive:  # closed meanwhile, by somebody else
            raise EOFError
        if self._tasks["result"].done():
            self._hold(self._tasks.pop("result").result())
        self._take_input()

    # ---- both

    def _has_room(self) -> bool:
        return not self._exhausted and self._stop.alive and self._taken - self._read < self._concurrency

    def _over(self) -> bool:
        return not self._stop.alive or (self._exhausted and self._taken == self._read)

    def _begin(self, item: SampleInput) -> None:
        if item is _END:
            self._exhausted = True
            return
        index = self._taken
        self._taken += 1
        try:
            run = self._prepare(item)
        except Exception as error:
            self._held[index] = Sampled(index, item, error=error)
            return
        future: Future[None] = Future()
        self._running[index] = future
        self._session.start(_one(run, index, item, self._ended, future.progress), future=future)

    def _hold(self, sampled: Sampled) -> None:
        self._running.pop(sampled.index, None)
        self._held[sampled.index] = sampled

    def _ready(self) -> Sampled | None:
        if self._ordered:
            return self._held.pop(self._read, None)
        return self._held.pop(next(iter(self._held))) if self._held else None

    def _hand_over(self, sampled: Sampled) -> Sampled:
        self._read += 1
        if sampled.error is not None and not self._return_exceptions:
            self.close()
            raise sampled.error
        return sampled


async def _one(
    run: Run, index: int, item: SampleInput, ended: Channel[Sampled], progress: Progress
) -> None:
    try:
        response = await run(progress)
    except Exception as error:
        await ended.put(Sampled(index, item, error=error))
        raise
    await ended.put(Sampled(index, item, response))


def _stop(
    ended: Channel[Any], running: dict[int, Future[None]], tasks: dict[str, asyncio.Task[Any]]
) -> None:
    ended.close()
    for future in list(running.values()):
        future.cancel()
    running.clear()
    for task in list(tasks.values()):
        with contextlib.suppress(RuntimeError):  # its loop is closed, and the task with it
            task.get_loop().call_soon_threadsafe(task.cancel)
    tasks.clear()
