"""Page iterators: lazy, one page ahead, without repeats or gaps however the list changes meanwhile."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.rig import WAIT, Rig, eventually
from tinkex import types
from tinkex.client.pages import ByCursor, ByOffset, Pages
from tinkex.client.rest import RestClient
from tinkex.errors import InternalServerError, InvalidArgumentError

COUNT = 250


class Library:
    """A service with many of one kind of thing, the last made first in every list."""

    def __init__(self, kind: str, count: int = COUNT) -> None:
        self.rig = Rig()
        trainer = self.rig.trainer()
        trainer.save_state("first").result(WAIT)
        self.world, self.kind = self.rig.service.world, kind
        self.table: dict[str, Any] = getattr(self.world, kind)
        (self.pattern,) = self.table.values()
        self.table.clear()
        for number in range(count):
            self.add(number)
        self.rest = RestClient(
            base_url="http://fake.test", api_key="tml-test",
            clock=self.rig.clock, transport=self.rig.transport,
        )  # fmt: skip
        self.rig.service.calls.clear()

    def add(self, number: int) -> None:
        name = f"{number:05d}"
        if self.kind == "checkpoints":
            made = dataclasses.replace(self.pattern, name=name)
            self.table[made.path] = made
        elif self.kind == "sessions":
            created = self.pattern.created + timedelta(seconds=number)
            self.table[name] = dataclasses.replace(self.pattern, id=name, created=created)
        else:
            self.table[name] = dataclasses.replace(self.pattern, id=name)

    def pages(self, **options: Any) -> Pages[Any]:
        return {
            "models": self.rest.iter_training_runs,
            "checkpoints": self.rest.iter_user_checkpoints,
            "sessions": self.rest.iter_sessions,
        }[self.kind](**options)

    def names(self, items: list[Any]) -> list[int]:
        return [int(_name(item)[-5:]) for item in items]

    def on_page(self, number: int, action: Callable[[], object]) -> None:
        """Do something just before the n-th page is answered."""
        route = {"models": "list_training_runs", "checkpoints": "list_user_checkpoints"}.get(
            self.kind, "list_sessions"
        )
        seen = 0

        def strike(call: Any) -> bool:
            nonlocal seen
            seen += 1
            if seen == number:
                action()
            return False

        self.rig.service.faults.add(route, when=strike, status=500)

    def asked(self) -> list[str]:
        return [call.query["offset"] for call in self.rig.service.calls if "offset" in call.query]


def _name(item: Any) -> str:
    if isinstance(item, str):
        return item
    return item.tinker_path if isinstance(item, types.Checkpoint) else item.training_run_id


def gather(pages: Pages[Any], form: str) -> list[Any]:
    if form == "sync":
        return list(pages)

    async def walk() -> list[Any]:
        return [item async for item in pages]

    return asyncio.run(walk())


KINDS = pytest.mark.parametrize("kind", ["models", "checkpoints", "sessions"])
FORMS = pytest.mark.parametrize("form", ["sync", "async"])


@KINDS
@FORMS
def test_everything_comes_once_newest_first(kind: str, form: str) -> None:
    library = Library(kind)
    pages = library.pages()
    assert library.rig.service.calls == []
    assert library.names(gather(pages, form)) == list(range(COUNT))[::-1]
    # The list of sessions has no total, so its end shows only by looking there.
    assert library.asked() == ["0", "99", "198"] + ["249"] * (kind == "sessions")
    assert {call.query["limit"] for call in library.rig.service.calls if call.query} == {"100"}
    assert library.names(gather(pages, form)) == list(range(COUNT))[::-1]


@KINDS
@FORMS
def test_an_item_added_meanwhile_neither_repeats_nor_hides_another(kind: str, form: str) -> None:
    library = Library(kind)
    library.on_page(2, lambda: library.add(COUNT))
    library.on_page(3, lambda: [library.add(COUNT + 1 + extra) for extra in range(5)])
    assert library.names(gather(library.pages(), form)) == list(range(COUNT))[::-1]


@KINDS
def test_deleting_what_was_read_skips_nothing(kind: str) -> None:
    library = Library(kind)
    found = []
    for item in library.pages():
        found.append(item)
        del library.table[_name(item)]
    assert library.names(found) == list(range(COUNT))[::-1]


@pytest.mark.parametrize("count", [0, 1, 2, 99, 100, 101, 199, 200])
@KINDS
def test_any_length_ends(kind: str, count: int) -> None:
    library = Library(kind, count)
    assert library.names(list(library.pages())) == list(range(count))[::-1]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_any_page_size_works(size: int) -> None:
    library = Library("sessions", 20)
    assert len(list(library.pages(page_size=size))) == 20


def test_one_page_is_fetched_ahead_and_no_more() -> None:
    library = Library("models")
    walk = iter(library.pages())
    assert library.asked() == []
    for count in range(1, 101):
        assert library.names([next(walk)]) == [COUNT - count]
    assert eventually(lambda: library.asked() == ["0", "99"])
    next(walk)
    assert eventually(lambda: library.asked() == ["0", "99", "198"])


def test_one_page_is_fetched_ahead_of_an_async_loop() -> None:
    library = Library("models")

    async def walk() -> None:
        async for item in library.pages():
            if library.names([item]) == [COUNT - 100]:
                assert eventually(lambda: library.asked() == ["0", "99"])
                return

    asyncio.run(walk())
    assert library.asked() == ["0", "99"]


def test_a_page_that_fails_is_told_after_the_items_before_it() -> None:
    library = Library("models")
    library.rest.holder.connection.config = library.rest.holder.connection.config.with_(retry_seconds=0.0)
    library.rig.service.faults.add("list_training_runs", when=2, status=500)
    walk = iter(library.pages())
    assert library.names([next(walk) for _ in range(100)]) == list(range(150, 250))[::-1]
    with pytest.raises(InternalServerError):
        next(walk)


def test_scope_and_project_are_passed_on() -> None:
    library = Library("models", 3)
    assert list(library.rest.iter_training_runs(access_scope="accessible", project_id="none")) == []
    query = library.rig.service.calls_to("list_training_runs")[0].query
    assert query == {"limit": "100", "offset": "0", "access_scope": "accessible", "project_id": "none"}


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "9"])
def test_bad_page_sizes_are_refused(size: Any) -> None:
    rest = RestClient(api_key="tml-test", base_url="http://fake.test")
    for make in (rest.iter_training_runs, rest.iter_user_checkpoints, rest.iter_sessions):
        with pytest.raises(InvalidArgumentError, match="page_size"):
            make(page_size=size)


# ---- searching


@FORMS
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_search_is_read_by_its_cursor(form: str) -> None:
    library = Library("sessions")
    wanted = types.SessionSearchRequest(limit=100)
    pages = library.rest.iter_search_sessions(wanted)
    assert library.rig.service.calls == []
    found = gather(pages, form)
    assert [session.session_id for session in found] == [f"{n:05d}" for n in range(COUNT)][::-1]
    asked = [call.json for call in library.rig.service.calls_to("search_sessions")]
    assert [(one.get("cursor") or {}).get("last_session_id") for one in asked] == [None, "00150", "00050"]
    assert wanted.cursor is None
    assert [s.session_id for s in library.rest.iter_search_sessions()] == [s.session_id for s in found]


def test_a_cursor_that_stands_still_ends_the_list() -> None:
    asked = []

    async def fetch(cursor: Any) -> tuple[list[str], Any]:
        asked.append(cursor)
        return ["a", "b"], "same"

    assert list(Pages(lambda: ByCursor(fetch, str))) == ["a", "b"]
    assert asked == [None, "same"]


def test_a_server_that_ignores_the_offset_ends_the_list() -> None:
    async def fetch(limit: int, offset: int) -> tuple[list[str], int | None]:
        return ["a", "b", "c"], None

    assert list(Pages(lambda: ByOffset(fetch, str, 3))) == ["a", "b", "c"]


def test_a_server_that_gives_smaller_pages_is_read_to_the_end() -> None:
    things = [str(number) for number in range(30)]

    async def fetch(limit: int, offset: int) -> tuple[list[str], int | None]:
        return things[offset : offset + min(limit, 4)], None

    assert list(Pages(lambda: ByOffset(fetch, str, 10))) == things


# ---- any change at any time

change = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 6)), st.tuples(st.just("delete"), st.integers(0, 60))
)


@settings(max_examples=150, deadline=None)
@given(
    length=st.integers(0, 40),
    size=st.integers(1, 7),
    changes=st.lists(st.lists(change, max_size=3), max_size=12),
    total_told=st.booleans(),
)
def test_whatever_happens_to_the_list_what_stays_in_it_is_read_once(
    length: int, size: int, changes: list[list[tuple[str, int]]], total_told: bool
) -> None:
    things = list(range(length))  # larger numbers are older
    stay = set(things)
    steps = iter(changes)
    newest = 0

    async def fetch(limit: int, offset: int) -> tuple[list[int], int | None]:
        nonlocal newest
        for what, number in next(steps, []):
            if what == "add":
                for _ in range(number):
                    newest -= 1
                    things.insert(0, newest)
            elif number < len(things):
                stay.discard(things.pop(number))
        return things[offset : offset + limit], len(things) if total_told else None

    async def walk() -> list[int]:
        source, found = ByOffset(fetch, lambda thing: thing, size), []
        while (items := await source.next()) is not None:
            found += items
        return found

    found = asyncio.run(walk())
    assert len(found) == len(set(found))
    assert stay <= set(found)
