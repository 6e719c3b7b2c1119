"""Hooks: told in order, with the tags of the call, on a thread that disturbs nobody."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from typing import Any

import pytest

from tests.client.rig import eventually
from tinkex.net import events
from tinkex.net.events import Event, Hooks, context, current_tags


def hook_threads() -> int:
    return sum(thread.name == "tinkex-hooks" for thread in threading.enumerate())


def test_every_hook_hears_everything_in_order_off_the_callers_thread() -> None:
    hooks, seen, threads = Hooks(), [], set()

    def listen(event: Event) -> None:
        seen.append((event.name, dict(event.data)))
        threads.add(threading.current_thread().name)

    hooks.add(listen)
    for number in range(100):
        hooks.emit("request", f"n{number}", number=number)
    assert hooks.flush()
    assert seen == [(f"n{number}", {"number": number}) for number in range(100)]
    assert threads == {"tinkex-hooks"}


def test_without_hooks_nothing_is_made_and_no_thread_started() -> None:
    hooks, before = Hooks(), hook_threads()
    assert not hooks
    hooks.emit("request", "x")
    assert hooks._thread is None
    assert hook_threads() == before


def test_a_hook_can_be_taken_away() -> None:
    hooks = Hooks()
    one: list[Any] = []
    two: list[Any] = []
    stop = hooks.add(one.append)
    hooks.add(two.append)
    hooks.emit("a", "x")
    hooks.flush()
    stop()
    stop()
    hooks.emit("b", "x")
    hooks.flush()
    assert [event.kind for event in one] == ["a"]
    assert [event.kind for event in two] == ["a", "b"]


def test_a_hook_that_raises_is_logged_and_the_others_still_hear(caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks()
    heard: list[Event] = []

    def bad(event: Event) -> None:
        raise ValueError("my own mistake")

    hooks.add(bad)
    hooks.add(heard.append)
    with caplog.at_level(logging.ERROR, "tinkex"):
        hooks.emit("retry", "x")
        hooks.emit("retry", "y")
        assert hooks.flush()
    assert [event.name for event in heard] == ["x", "y"]
    assert "my own mistake" in caplog.text


def test_a_hook_that_ends_its_thread_gets_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda *_: None)
    hooks = Hooks()
    heard: list[str] = []

    def listen(event: Event) -> None:
        heard.append(event.name)
        if event.name == "last words":
            raise SystemExit

    hooks.add(listen)
    hooks.emit("a", "last words")
    thread = hooks._thread
    assert thread is not None
    thread.join(5)
    hooks.emit("a", "again")
    assert hooks.flush()
    assert heard == ["last words", "again"]


def test_a_hook_that_hangs_costs_a_bounded_number_of_events(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(events, "MOST_WAITING", 50)
    hooks, release, heard = Hooks(), threading.Event(), []

    def slow(event: Event) -> None:
        release.wait(20)
        heard.append(event)

    hooks.add(slow)
    with caplog.at_level(logging.WARNING, "tinkex"):
        for number in range(1000):
            hooks.emit("a", str(number))
    assert hooks.dropped >= 949
    assert len(caplog.records) == 1, "said once"
    release.set()
    assert hooks.flush()
    assert len(heard) + hooks.dropped == 1000


def test_the_thread_ends_when_there_is_nothing_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_IDLE_SECONDS", 0.01)
    hooks, heard = Hooks(), []
    hooks.add(heard.append)
    for round in range(1, 4):
        hooks.emit("a", "x")
        assert eventually(lambda: hooks._thread is None)
        assert len(heard) == round


def test_no_event_is_lost_while_the_thread_comes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_IDLE_SECONDS", 0.0)
    hooks, heard = Hooks(), []
    hooks.add(heard.append)
    for number in range(2000):
        hooks.emit("a", str(number))
    assert hooks.flush()
    assert [event.name for event in heard] == [str(number) for number in range(2000)]


def test_forgotten_hooks_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_IDLE_SECONDS", 0.01)

    class Owner:
        def __init__(self) -> None:
            self.hooks = Hooks()
            self.hooks.add(self.listen)

        def listen(self, event: Event) -> None:
            pass

    owner = Owner()
    owner.hooks.emit("a", "x")
    held = weakref.ref(owner)
    del owner
    assert eventually(lambda: gc.collect() >= 0 and held() is None)


def test_an_interpreter_that_starts_no_more_threads_is_not_bothered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread at interpreter shutdown")

    hooks = Hooks()
    hooks.add(lambda event: None)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    hooks.emit("a", "x")
    assert not hooks.flush(0.01)


# ---- tags


def test_tags_add_up_and_end_with_their_block() -> None:
    assert current_tags() == {}
    with context(run="1", step="a"):
        with context(step="b"):
            assert current_tags() == {"run": "1", "step": "b"}
        assert current_tags() == {"run": "1", "step": "a"}
    assert current_tags() == {}


def test_each_event_carries_the_tags_of_the_moment_it_was_told() -> None:
    hooks, seen = Hooks(), []
    hooks.add(seen.append)
    with context(who="one"):
        hooks.emit("a", "x")
    with context(who="two"):
        hooks.emit("a", "x")
    hooks.emit("a", "x")
    hooks.flush()
    assert [dict(event.tags) for event in seen] == [{"who": "one"}, {"who": "two"}, {}]


def test_tags_of_threads_and_tasks_do_not_mix() -> None:
    seen: dict[str, Any] = {}
    gate = threading.Barrier(2)

    def work(name: str) -> None:
        with context(who=name):
            gate.wait()
            seen[name] = dict(current_tags())
            gate.wait()

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert seen == {"a": {"who": "a"}, "b": {"who": "b"}}

    async def task(name: str) -> dict[str, str]:
        with context(who=name):
            await asyncio.sleep(0)
            return dict(current_tags())

    async def main() -> list[dict[str, str]]:
        return await asyncio.gather(task("c"), task("d"))

    assert asyncio.run(main()) == [{"who": "c"}, {"who": "d"}]


def test_an_event_cannot_be_changed() -> None:
    event = Event("a", "x")
    with pytest.raises(AttributeError):
        event.kind = "b"  # type: ignore[misc]
