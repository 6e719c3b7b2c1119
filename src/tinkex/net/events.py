"""What happens underneath, told to whoever wants to know.

Hooks are user code: they run on a thread of their own, in order, never on the event loop.  Tags set
with `context(...)` in the calling thread travel with every request of that call.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from .locks import new_lock

__all__ = ["Event", "Hooks", "context", "current_tags"]

logger: Final = logging.getLogger(__name__)

MOST_WAITING = 10_000
_IDLE_SECONDS = 2.0

_TAGS: contextvars.ContextVar[Mapping[str, str]] = contextvars.ContextVar(
    "tinkex_tags", default=MappingProxyType({})
)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: a request, retry, throttle, queue_state, poll, chunk or pause."""

    kind: str
    name: str
    data: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


Hook = Callable[[Event], None]


@contextlib.contextmanager
def context(**tags: str) -> Iterator[None]:
    """Attach tags to all that is started inside the `with` block."""
    token = _TAGS.set({**_TAGS.get(), **tags})
    try:
        yield
    finally:
        _TAGS.reset(token)


def current_tags() -> Mapping[str, str]:
    """The tags of the call that is running."""
    return _TAGS.get()


class Hooks:
    """A list of hooks and the thread that calls them, which lives while there is something to tell.

    A hook that is too slow loses events, which `dropped` counts; nobody waits for it.
    """

    def __init__(self) -> None:
        self._hooks: tuple[Hook, ...] = ()
        self._lock = new_lock()
        self._queue: queue.SimpleQueue[tuple[Hook, Event] | threading.Event] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.dropped: int = 0

    def add(self, hook: Hook) -> Callable[[], None]:
        """Call `hook` with every event from now on; returns how to stop that."""
        with self._lock:
            self._hooks = (*self._hooks, hook)

        def remove() -> None:
            with self._lock:
                self._hooks = tuple(each for each in self._hooks if each is not hook)

        return remove

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def emit(self, kind: str, name: str, **data: Any) -> None:
        """Tell the hooks; costs nothing when there are none, and never raises."""
        if not self._hooks:
            return
        event = Event(kind, name, data, current_tags())
        for hook in self._hooks:
            if self._queue.qsize() < MOST_WAITING:
                self._queue.put((hook, event))
            else:
                self.dropped += 1
                if self.dropped == 1:
                    logger.warning("an event hook is too slow: events are dropped")
        self._wake()

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until every event told so far has reached its hooks."""
        reached = threading.Event()
        self._queue.put(reached)
        self._wake()
        return reached.wait(timeout)

    def _wake(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="tinkex-hooks", daemon=True)
                with contextlib.suppress(RuntimeError):  # the interpreter is ending
                    self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                item = self._queue.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:  # whoever puts something in looks for the thread under the same lock
                    if self._queue.empty():
                        self._thread = None
                        return
                continue
            if isinstance(item, threading.Event):
                item.set()
                continue
            hook, event = item
            try:
                hook(event)
            except Exception:
                logger.exception("an event hook failed on %s %s", event.kind, event.name)
            del item, hook, event
