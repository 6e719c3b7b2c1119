"""One suite over every store: the real one, the same with its bodies in files, and the twin in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tinkex.server.records import (
    AnswerRow,
    CheckpointRow,
    LossRow,
    ModelRow,
    OperationRow,
    SamplerRow,
    SessionRow,
)
from tinkex.server.sqlite_store import SqliteStore
from tinkex.server.store import (
    Count,
    Delete,
    Finish,
    ForgetBodies,
    ForgetResults,
    Note,
    Page,
    Put,
    Seen,
    SessionFilter,
    Store,
    StoreFailed,
)
from tinkex.testing import MemoryStore

from .rows import checkpoint, loss, model, noted, operation, sampler, session, used

Run: TypeAlias = Callable[[Callable[[Store], Awaitable[None]]], None]

ALL = Page(100)
M = "s:train:0"


@pytest.fixture(params=["sqlite", "sqlite-files", "memory"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs a test against a new store."""

    async def opened() -> Store:
        if request.param == "memory":
            return MemoryStore()
        inside = 128 << 10 if request.param == "sqlite" else 3
        return await SqliteStore.open(tmp_path / "store", largest_inside=inside)

    def runner(test: Callable[[Store], Awaitable[None]]) -> None:
        async def main() -> None:
            store = await opened()
            try:
                await test(store)
            finally:
                await store.close()

        asyncio.run(main())

    return runner


# ---- rows by name

FULL: list[Any] = [
    session(
        tags=["a", "ü"],
        user_metadata={"n": 1, "deep": {"x": [1.5, None, True]}, "": "empty"},
        sdk_version="0.36.0",
        project_id="p",
        display_name="My \x00 'run'; --",
        status="finished",
        reason="success",
        detail="all \N{GRINNING FACE} done",
        ended=9.25,
    ),
    model(
        train_attn=False,
        train_unembed=False,
        optimizer={"type": "muon", "beta": 0.9},
        user_metadata={"k": "v"},
        state="corrupted",
        note="why",
        watermark=12,
        snapshot=8,
        skipped=[3, 5],
        seed=2**63 - 1,
    ),
    sampler(model_path="tinker://x", model_id=M, version="v1", joined=2),
    checkpoint(
        public=True, expires=7.5, user_metadata={"a": "b"}, project_id="p", session_id="s", size=1 << 40
    ),
    operation(
        0,
        body=bytes(range(256)),
        content="protobuf",
        state="failed",
        result=b"\x00r",
        form="pass",
        error="boom",
        category="user",
        ended=3.0,
    ),
    loss(name="mine"),
]
PLAIN: list[Any] = [session(), model(), sampler(), checkpoint(), operation(body=b""), loss()]


def identity(row: Any) -> str:
    return row.path if isinstance(row, CheckpointRow) else row.id


@pytest.mark.parametrize("row", [*FULL, *PLAIN], ids=lambda row: type(row).__name__)
def test_a_row_comes_back_as_it_went_in_and_goes(run: Run, row: Any):
    async def test(store: Store) -> None:
        assert await store.get(type(row), identity(row)) is None
        await store.write(Put(row))
        found = await store.get(type(row), identity(row))
        assert found == row
        assert found is not row
        await store.write(Delete(type(row), "another"))
        assert await store.get(type(row), identity(row)) == row
        await store.write(Delete(type(row), identity(row)))
        assert await store.get(type(row), identity(row)) is None
        await store.write(Delete(type(row), identity(row)))

    run(test)


@pytest.mark.parametrize(("old", "new"), [*zip(FULL, PLAIN, strict=True), *zip(PLAIN, FULL, strict=True)])
def test_put_takes_the_place_of_the_row_before(run: Run, old: Any, new: Any):
    new = replace(new, path=old.path) if isinstance(new, CheckpointRow) else replace(new, id=old.id)

    async def test(store: Store) -> None:
        await store.write(Put(old))
        await store.write(Put(new))
        assert await store.get(type(new), identity(new)) == new

    run(test)


def test_kinds_of_rows_do_not_see_each_other(run: Run):
    async def test(store: Store) -> None:
        await store.write(Put(session("x")), Put(model("x")))
        assert await store.get(SamplerRow, "x") is None
        assert await store.get(LossRow, "x") is None
        await store.write(Delete(SessionRow, "x"))
        assert await store.get(ModelRow, "x") == model("x")

    run(test)


def test_later_edits_of_a_row_change_nothing(run: Run):
    async def test(store: Store) -> None:
        row, line = session(tags=["a"]), model(skipped=[1])
        waiting = asyncio.ensure_future(store.write(Put(row), Put(line)))
        await asyncio.sleep(0)
        row.tags.append("b")
        line.skipped.clear()
        line.watermark = 99
        await waiting
        found = await store.get(SessionRow, "s")
        assert found is not None
        assert found.tags == ["a"]
        found.tags.append("c")
        assert await store.get(SessionRow, "s") == session(tags=["a"])
        assert await store.get(ModelRow, M) == model(skipped=[1])

    run(test)


def test_kept_answers(run: Run):
    async def test(store: Store) -> None:
        assert await store.answer("k") is None
        await store.write(Put(AnswerRow("k", '{"a":1}', 5.0)))
        await store.write(Put(AnswerRow("j", "", 6.0)))
        assert await store.answer("k") == '{"a":1}'
        assert await store.answer("j") == ""
        await store.write(Delete(AnswerRow, "k"))
        assert await store.answer("k") is None

    run(test)


def test_a_write_of_nothing_is_fine(run: Run):
    async def test(store: Store) -> None:
        await store.write()

    run(test)


def test_the_changes_of_a_write_are_made_in_order(run: Run):
    async def test(store: Store) -> None:
        await store.write(Put(operation(1)), Finish(f"{M}:1", "done", 3.0, M, 1, b"r"), Put(model()))
        assert await store.get(OperationRow, f"{M}:1") == operation(1, state="done", ended=3.0, result=b"r")
        assert await store.get(ModelRow, M) == model()
        await store.write(Delete(ModelRow, M), Put(model(rank=16)), Put(model(rank=32)))
        assert await store.get(ModelRow, M) == model(rank=32)

    run(test)


def test_writes_take_effect_in_the_order_of_their_calls(run: Run):
    async def test(store: Store) -> None:
        await asyncio.gather(
            store.write(Put(model())),
            store.write(Put(operation(1, body=b"x" * 300_000))),
            store.write(Finish(f"{M}:1", "done", 3.0, M, 1)),
            *(store.write(Put(session(display_name=str(n)))) for n in range(50)),
        )
        found = await store.get(OperationRow, f"{M}:1")
        assert found is not None
        assert found.state == "done"
        assert await store.get(SessionRow, "s") == session(display_name="49")

    run(test)


# ---- sessions


def test_sessions_come_newest_first_and_ties_by_id(run: Run):
    async def test(store: Store) -> None:
        times = {"a": 3.0, "b": 1.0, "c": 3.0, "d": 2.0, "e": 3.0}
        await store.write(*(Put(session(id, created=at)) for id, at in times.items()))
        await store.write(Put(session("z", owner="bob", created=9.0)))
        assert [row.id for row in await store.sessions("ann", ALL)] == ["e", "c", "a", "d", "b"]
        pages = [await store.sessions("ann", Page(2, offset)) for offset in range(0, 8, 2)]
        assert [[row.id for row in page] for page in pages] == [["e", "c"], ["a", "d"], ["b"], []]
        assert await store.sessions("ann", Page(0)) == []
        assert await store.sessions("nobody", ALL) == []

    run(test)


def test_live_sessions_are_those_that_have_not_ended(run: Run):
    async def test(store: Store) -> None:
        await store.write(
            Put(session("a", created=2.0)),
            Put(session("b", created=1.0, owner="bob")),
            Put(session("c", status="expired")),
            Put(session("d", status="finished")),
        )
        assert [row.id for row in await store.live_sessions()] == ["b", "a"]
        await store.write(Put(session("a", status="finished")))
        assert [row.id for row in await store.live_sessions()] == ["b"]

    run(test)


def test_hearing_of_a_session_moves_its_time_forward_only(run: Run):
    async def test(store: Store) -> None:
        await store.write(Put(session(last_seen=5.0)))
        for heard, stands in [(7.5, 7.5), (6.0, 7.5), (8.0, 8.0)]:
            await store.write(Seen("s", heard), Seen("unknown", heard))
            assert await store.get(SessionRow, "s") == session(last_seen=stands)
        assert await store.get(SessionRow, "unknown") is None

    run(test)


SEARCHED = [
    session("a", created=1.0, project_id="p", display_name="First Run", user_metadata={"n": 1, "who": "x"}),
    session("b", created=2.0, project_id="q", display_name="STRASSE", status="finished", reason="success"),
    session("c", created=2.0, display_name="second RUN", status="finished", reason="errored"),
    session("d", created=3.0, status="expired", user_metadata={"n": "1", "none": None}),
    session("e", created=4.0, owner="bob", project_id="p", display_name="run"),
]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, "dcba"),
        ({"session_id": "b"}, "b"),
        ({"session_id": "e"}, ""),
        ({"session_id": "nope"}, ""),
        ({"project_ids": ("p",)}, "a"),
        ({"project_ids": ("p", "q", "r")}, "ba"),
        ({"display_name": "rUn"}, "ca"),
        ({"display_name": "straße"}, "b"),
        ({"display_name": ""}, "dcba"),
        ({"display_name": "%"}, ""),
        ({"statuses": (("active", ()),)}, "a"),
        ({"statuses": (("finished", ()),)}, "cb"),
        ({"statuses": (("finished", ("errored", "interrupted")),)}, "c"),
        ({"statuses": (("finished", ("success",)), ("expired", ()))}, "db"),
        ({"statuses": (("expired", ("success",)),)}, "d"),
        ({"user_metadata": {"n": "1"}}, "da"),
        ({"user_metadata": {"n": "1", "who": "x"}}, "a"),
        ({"user_metadata": {"none": "None"}}, "d"),
        ({"user_metadata": {"missing": ""}}, ""),
        ({"before": (2.0, "c")}, "ba"),
        ({"before": (2.0, "b")}, "a"),
        ({"before": (3.0, "")}, "cba"),
        ({"before": (0.5, "z")}, ""),
        ({"before": (2.0, "c"), "session_id": "d"}, ""),
        ({"before": (2.0, "c"), "project_ids": ("q",), "statuses": (("finished", ()),)}, "b"),
    ],
)
def test_searching_sessions(run: Run, wanted: dict[str, Any], found: str):
    async def test(store: Store) -> None:
        await store.write(*(Put(row) for row in SEARCHED))
        rows = await store.search_sessions(SessionFilter("ann", **wanted), 10)
        assert "".join(row.id for row in rows) == found
        assert rows == [row for id in found for row in SEARCHED if row.id == id]

    run(test)


def test_a_search_goes_on_where_its_last_page_ended(run: Run):
    async def test(store: Store) -> None:
        rows = [session(f"{n:02}", created=float(n // 4)) for n in range(23)]
        await store.write(*(Put(row) for row in rows))
        seen: list[SessionRow] = []
        before = None
        while page := await store.search_sessions(SessionFilter("ann", before=before), 5):
            assert len(page) <= 5
            seen += page
            before = (page[-1].created, page[-1].id)
        assert seen == rows[::-1]

    run(test)


# ---- what belongs to sessions


def test_models_of_an_owner_and_of_a_project(run: Run):
    async def test(store: Store) -> None:
        await store.write(
            Put(session("s", project_id="p")),
            Put(session("t")),
            Put(model("a", "s", 1.0)),
            Put(model("b", "t", 2.0)),
            Put(model("c", "s", 2.0)),
            Put(model("d", "gone", 3.0)),
            Put(model("e", "s", 9.0, owner="bob")),
        )
        rows, total = await store.models("ann", Page(2))
        assert ([row.id for row in rows], total) == (["d", "c"], 4)
        rows, total = await store.models("ann", Page(2, 2))
        assert ([row.id for row in rows], total) == (["b", "a"], 4)
        assert await store.models("ann", Page(2, 9)) == ([], 4)
        rows, total = await store.models("ann", Page(1), project_id="p")
        assert ([row.id for row in rows], total) == (["c"], 2)
        assert await store.models("ann", ALL, project_id="none") == ([], 0)
        assert await store.models("nobody", ALL) == ([], 0)

    run(test)


def test_what_sessions_hold_comes_oldest_first(run: Run):
    async def test(store: Store) -> None:
        for made in (model, sampler, loss):
            rows = [made("c", "s", 1.0), made("a", "t", 2.0), made("b", "s", 2.0), made("x", "u", 0.5)]
            await store.write(*(Put(row) for row in rows))
        for ask in (store.models_of, store.samplers_of, store.losses_of):
            assert [row.id for row in await ask(["s", "t"])] == ["c", "a", "b"]
            assert [row.id for row in await ask(["s"])] == ["c", "b"]
            assert [row.id for row in await ask([f"many-{n}" for n in range(5000)] + ["u"])] == ["x"]
            assert await ask([]) == []

    run(test)


# ---- checkpoints


def test_checkpoints_newest_first_without_the_expired(run: Run):
    async def test(store: Store) -> None:
        await store.write(
            Put(checkpoint("a", 1.0, session_id="s")),
            Put(checkpoint("b", 2.0, expires=10.0, session_id="t")),
            Put(checkpoint("c", 2.0, expires=20.0, run_id="other", session_id="s")),
            Put(checkpoint("d", 3.0, owner="bob", expires=5.0, session_id="s")),
        )

        async def paths(now: float, page: Page = ALL, **more: Any) -> tuple[list[str], int]:
            rows, total = await store.checkpoints("ann", page, now=now, **more)
            return [row.path for row in rows], total

        assert await paths(9.9) == (["c", "b", "a"], 3)
        assert await paths(10.0) == (["c", "a"], 2)
        assert await paths(9.9, Page(1, 1)) == (["b"], 3)
        assert await paths(9.9, run_id="other") == (["c"], 1)
        assert await paths(20.0, run_id="other") == ([], 0)
        assert await paths(9.9, run_id="none") == ([], 0)
        assert [row.path for row in await store.checkpoints_of(["s"], now=4.0)] == ["d", "c", "a"]
        assert [row.path for row in await store.checkpoints_of(["s", "t"], now=10.0)] == ["c", "a"]
        assert await store.checkpoints_of([], now=0.0) == []
        assert await store.expired_checkpoints(4.9) == []
        assert [row.path for row in await store.expired_checkpoints(10.0)] == ["d", "b"]
        assert [row.path for row in await store.expired_checkpoints(1e9)] == ["d", "b", "c"]

    run(test)


def test_storage_is_summed_by_owner_and_project(run: Run):
    async def test(store: Store) -> None:
        assert await store.storage() == []
        await store.write(
            Put(checkpoint("a", size=1)),
            Put(checkpoint("b", size=10, expires=0.0)),
            Put(checkpoint("c", size=100, project_id="p")),
            Put(checkpoint("d", size=1 << 50, owner="bob", project_id="p")),
        )
        hers = [("ann", None, 2, 11), ("ann", "p", 1, 100)]
        assert await store.storage("ann") == hers
        assert await store.storage() == [*hers, ("bob", "p", 1, 1 << 50)]
        assert await store.storage("nobody") == []

    run(test)


# ---- operations


def test_an_operation_waits_ends_and_is_replayed(run: Run):
    async def test(store: Store) -> None:
        await store.write(Put(model()))
        for seq in (10, 2, 1):
            await store.write(Put(operation(seq, body=b"body %d" % seq)))
        await store.write(Put(operation(1, "other")))
        assert [row.seq for row in await store.queued(M)] == [1, 2, 10]
        assert (await store.queued(M))[2] == operation(10, body=b"body 10")
        assert await store.replay(M, -1) == []
        await store.write(Finish(f"{M}:1", "done", 5.0, M, 1, b"result", form="pass"))
        await store.write(Finish(f"{M}:2", "failed", 6.0, M, 2, error="no", category="user"))
        assert [row.seq for row in await store.queued(M)] == [10]
        first = operation(1, body=b"body 1", state="done", ended=5.0, result=b"result", form="pass")
        second = operation(2, body=b"body 2", state="failed", ended=6.0, error="no", category="user")
        assert await store.replay(M, 0) == [first, second]
        assert await store.replay(M, 1) == [second]
        assert await store.replay(M, 2) == []
        assert await store.get(OperationRow, f"{M}:1") == first
        bare = [replace(each, body=b"", result=b"") for each in (first, second, operation(10))]
        assert await store.history([M]) == bare
        assert [row.model_id for row in await store.history([M, "other"])] == ["other", M, M, M]
        assert await store.get(ModelRow, M) == model(watermark=2)
        assert await store.queued("unknown") == []

    run(test)


def test_a_watermark_never_goes_back(run: Run):
    async def test(store: Store) -> None:
        await store.write(Put(model(watermark=5)))
        await store.write(Put(operation(6)), Put(operation(7)))
        await store.write(Finish(f"{M}:7", "done", 5.0, M, 7))
        await store.write(Finish(f"{M}:6", "failed", 6.0, M, 6))
        assert await store.get(ModelRow, M) == model(watermark=7)
        await store.write(Put(model(watermark=3)))
        assert await store.get(ModelRow, M) == model(watermark=3)

    run(test)


def test_the_end_of_an_operation_that_is_not_there_is_no_end(run: Run):
    async def test(store: Store) -> None:
        await store.write(Put(model(watermark=5)))
        await store.write(Finish(f"{M}:6", "done", 5.0, M, 6, b"result"))
        assert await store.get(ModelRow, M) == model(watermark=5)
        assert await store.get(OperationRow, f"{M}:6") is None

    run(test)


def test_ending_what_is_not_there_leaves_no_trace(run: Run):
    async def test(store: Store) -> None:
        await store.write(Finish(f"{M}:1", "done", 5.0, M, 1, b"x" * 300_000))
        assert await store.get(OperationRow, f"{M}:1") is None
        assert await store.get(ModelRow, M) is None
        await store.write(Put(operation(1)))
        assert await store.queued(M) == [operation(1)]

    run(test)


def test_the_last_outcome_of_an_operation_stays(run: Run):
    async def test(store: Store) -> None:
        await store.write(Put(operation(1)))
        for result in (b"first result", b"x" * 200_000, b"last result"):
            await store.write(Finish(f"{M}:1", "done", 5.0, M, 1, result))
            found = await store.get(OperationRow, f"{M}:1")
            assert found is not None
            assert found.result == result

    run(test)


def test_bodies_are_forgotten_up_to_a_snapshot(run: Run):
    async def test(store: Store) -> None:
        rows = [operation(n, body=b"body %d" % n) for n in range(1, 5)]
        await store.write(*(Put(row) for row in rows), Put(operation(1, "other")))
        for id in (f"{M}:1", f"{M}:3", f"{M}:4", "other:1"):
            await store.write(Finish(id, "done", 5.0, M, 0, b"some result"))
        await store.write(ForgetBodies(M, 3))
        replayed = await store.replay(M, -1)
        assert [(row.seq, row.body) for row in replayed] == [(1, b""), (3, b""), (4, b"body 4")]
        assert {row.result for row in replayed} == {b"some result"}
        assert await store.queued(M) == [rows[1]]
        assert [row.body for row in await store.replay("other", -1)] == [b"asked"]
        await store.write(Finish(f"{M}:2", "done", 5.0, M, 0))
        assert [row.body for row in await store.replay(M, -1)] == [b"", b"body 2", b"", b"body 4"]
        await store.write(ForgetBodies(M, 99), ForgetBodies("unknown", 5))
        assert [row.body for row in await store.replay(M, -1)] == [b""] * 4

    run(test)


def test_results_are_forgotten_unless_a_replay_may_need_them(run: Run):
    async def test(store: Store) -> None:
        models = {"live": "live", "ended": "unloaded", "broken": "corrupted"}
        for name, state in models.items():
            await store.write(Put(model(name, snapshot=2, state=state)))
        for name in (*models, "no-model"):
            for seq in (1, 2, 3, 4):
                await store.write(Put(operation(seq, name)))
                if seq < 4:
                    await store.write(Finish(f"{name}:{seq}", "done", 10.0 + seq, name, 0, b"result"))
        await store.write(Put(AnswerRow("old", "x", 12.9)), Put(AnswerRow("new", "y", 13.0)))

        async def left(name: str) -> list[int]:
            rows = await store.replay(name, -1) + await store.queued(name)
            return [row.seq for row in rows]

        await store.write(ForgetResults(11.0))
        assert await left("live") == [1, 2, 3, 4]
        await store.write(ForgetResults(13.0))
        assert await left("live") == [1, 2, 3, 4]  # a damaged snapshot is made anew from those
        assert await left("ended") == [3, 4]
        await store.write(ForgetBodies("live", 1), ForgetResults(13.0))
        assert await left("live") == [2, 3, 4]
        await store.write(ForgetBodies("live", 2), ForgetResults(13.0))
        assert await left("live") == [3, 4]
        assert await left("no-model") == [3, 4]
        assert (await store.answer("old"), await store.answer("new")) == (None, "y")
        await store.write(ForgetResults(99.0))
        assert await left("live") == [3, 4]
        for name in ("ended", "broken", "no-model"):
            assert await left(name) == [4]
        assert (await store.replay("live", -1))[0].body == b"asked"
        await store.write(Put(model("live", snapshot=3)), ForgetBodies("live", 3), ForgetResults(99.0))
        assert await left("live") == [4]
        assert await store.answer("new") is None

    run(test)


def test_an_operation_that_asked_for_nothing_is_forgotten_like_one_whose_body_was(run: Run):
    async def test(store: Store) -> None:
        await store.write(Put(session("s")), Put(model(snapshot=1)), Put(operation(1, body=b"")))
        await store.write(Put(operation(2, body=b"")), Put(operation(0, body=b"asked")))
        assert [row.seq for row in await store.queued(M)] == [0, 1, 2]
        for seq in (0, 1, 2):
            await store.write(Finish(f"{M}:{seq}", "done", 1.0, M, seq))
        await store.write(ForgetResults(2.0))
        assert [row.seq for row in await store.replay(M, -1)] == [0, 2]

    run(test)


def test_a_starting_server_finds_what_it_needs(run: Run):
    async def test(store: Store) -> None:
        await store.write(Put(session("s")), Put(session("old", status="expired")))
        await store.write(
            Put(model(snapshot=1, watermark=2)), Put(model("o", "old")), Put(sampler()), Put(loss())
        )
        for seq in (1, 2, 3):
            await store.write(Put(operation(seq)))
        await store.write(Finish(f"{M}:1", "done", 1.0, M, 1), Finish(f"{M}:2", "done", 2.0, M, 2))
        names = [row.id for row in await store.live_sessions()]
        (found,) = await store.models_of(names)
        assert [row.seq for row in await store.replay(found.id, found.snapshot)] == [2]
        assert [row.seq for row in await store.queued(found.id)] == [3]
        assert await store.samplers_of(names) == [sampler()]
        assert await store.losses_of(names) == [loss()]

    run(test)


# ---- usage and audit


def test_usage_adds_up_on_the_same_key(run: Run):
    async def test(store: Store) -> None:
        await store.write(Count(used(5, 10)), Count(used(5, 5)))
        await store.write(Count(used(5, 1)), Count(used(5, 1 << 40, kind="sampling_sample")))
        await store.write(Count(used(4, 2)), Count(used(7, 3)), Count(used(5, 9, owner="bob")))
        await store.write(Count(used(5, 4, session_id="t")), Count(used(5, 6, project_id="p")))
        assert await store.usage("ann", 4, 7) == [
            used(4, 2),
            used(5, 1 << 40, kind="sampling_sample"),
            used(5, 16),
            used(5, 6, project_id="p"),
            used(5, 4, session_id="t"),
        ]
        assert await store.usage("ann", 7, 8) == [used(7, 3)]
        assert await store.usage("ann", 8, 99) == []
        assert await store.usage("bob", 0, 99) == [used(5, 9, owner="bob")]

    run(test)


def test_audit_entries_of_a_span_by_the_beginning_of_their_event(run: Run):
    async def test(store: Store) -> None:
        entries = [
            noted(3.0, "checkpoint.created", model_id=M, tinker_path="tinker://x", details={"a": [1]}),
            noted(1.0, "project.created"),
            noted(2.0, "checkpoint.deleted"),
            noted(2.0, "checkpoint.created"),
            noted(2.0, "checkpoint.deleted", owner="bob"),
        ]
        await store.write(*(Note(entry) for entry in entries))

        async def events(start: float, end: float, *prefixes: str) -> list[Any]:
            return await store.audit("ann", start, end, prefixes)

        assert await events(0, 9) == [entries[1], entries[2], entries[3], entries[0]]
        assert await events(2.0, 3.0) == [entries[2], entries[3]]
        assert await events(1.0, 9, "checkpoint.c", "project") == [entries[1], entries[3], entries[0]]
        assert await events(0, 9, "nothing") == []
        assert await store.audit("nobody", 0, 9, []) == []

    run(test)


# ---- the end


def test_a_closed_store_says_so(run: Run):
    async def test(store: Store) -> None:
        await store.write(Put(session()))
        await store.close()
        await store.close()
        with pytest.raises(StoreFailed, match="closed"):
            await store.write(Put(session()))
        with pytest.raises(StoreFailed, match="closed"):
            await store.get(SessionRow, "s")
        with pytest.raises(StoreFailed, match="closed"):
            await store.sessions("ann", ALL)

    run(test)


def test_the_twin_fails_when_told_to_and_changes_nothing():
    async def test() -> None:
        store = MemoryStore()
        store.failing = "disk full"
        with pytest.raises(StoreFailed, match="disk full"):
            await store.write(Put(session()))
        store.failing = None
        assert await store.get(SessionRow, "s") is None
        with pytest.raises(KeyError):
            await store.write(Put(session()), object())  # type: ignore[arg-type]
        assert await store.get(SessionRow, "s") is None
        await store.write(Put(session()))
        assert store.writes == 1

    asyncio.run(test())
