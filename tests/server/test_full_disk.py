"""A disk that is full or fails: work waits and says why, and goes on by itself; nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import shutil
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tinkex.engine.messages import Export, ExportSaved, LoadState, OptimStep, SaveSampler, SaveState
from tinkex.server.readiness import READY_PAGE, ready_page
from tinkex.server.records import CheckpointRow, ModelRow, OperationRow
from tinkex.server.sample_journal import SampleJournal
from tinkex.server.store import Change, Finish, Put, StoreFailed
from tinkex.testing import noop_operations

from .client import Answer, Client, datum
from .machine import Machine, running
from .test_recovery import expected, journey, state_of, told

FULL = "the server's disk cannot be written: No space left on device"
PAGES = {"pages": {READY_PAGE: ready_page}}
Usage = namedtuple("Usage", "total used free")


async def readiness(server: Machine) -> tuple[int, str, str]:
    """Status, word and reason of /readyz."""
    server.allowed_5xx.add(503)
    answer = await server.send("GET", "/readyz")
    return answer.status, answer.json["status"], answer.json.get("reason", "")


async def why(server: Machine, ticket: str) -> str:
    """What a client that waits is told."""
    poll = server.ann.begin_poll(ticket)
    await server.settle()
    server.clock.advance(36)
    await server.settle()
    answer = poll.result()
    assert (answer.status, answer.json["queue_state"]) == (408, "paused_capacity"), str(answer)
    return str(answer.json["queue_state_reason"])


# ---- saves


def saved_state(server: Machine, row: CheckpointRow) -> str:
    """The weights in a checkpoint."""
    return (server.state / row.folder / "adapter.json").read_text()


@pytest.mark.parametrize("kind", [SaveState, SaveSampler, Export])
def test_a_save_waits_for_room_and_saves_what_it_was_to_save(kind: type, tmp_path: Path):
    @running(**PAGES)
    async def scenario(server: Machine) -> None:
        ann, bob = server.ann, server.bob
        model, other = await ann.model(lora_config={"rank": 8, "seed": 3}), await bob.model()
        await ann.done(await ann.train(model, 1, datum([1, 2])))
        await ann.done(await ann.step(model, 2))
        then = server.engine.models[model]
        for _ in range(3):
            server.engine.fail_next(kind, FULL, "disk")
        if kind is SaveState:
            save = await ann.save(model, 3, "a")
        elif kind is SaveSampler:
            save = await ann.freeze(model, 3, name="a")
        else:
            body = {"model_id": model, "seq_id": 3, "path": "a"}
            save = ann.ticket(await ann("save_weights_external", body))
        behind = [await ann.train(model, 4, datum([3, 4])), await ann.step(model, 5)]
        await server.settle()
        assert server.engine.models[model] == then  # what comes after it waits
        await bob.done(await bob.train(other, 1, datum([1, 2])))  # and others do not
        assert await readiness(server) == (503, "paused", FULL)
        assert FULL in server.service.scheduler_of(server.service.world.models[model]).queue_reason(
            server.service.world.models[model]
        )
        server.clock.advance(1.0)
        await server.settle()
        assert told(server.engine, kind) == 2
        await server.wait(2)
        assert told(server.engine, kind) == 3
        assert await server.store.get(CheckpointRow, f"tinker://{model}/weights/a") is None
        await server.wait(4)
        path = (await ann.done(save))["path"]
        for each in behind:
            await ann.done(each)
        row = await server.store.get(CheckpointRow, path)
        if kind is not Export:
            assert then.weights in saved_state(server, row)
        assert (await readiness(server))[:2] == (200, "ready")
        assert server.service.world.models[model].pauses == 0

    scenario(tmp_path=tmp_path)


@running(**PAGES)
async def test_a_client_that_waits_for_a_save_is_told_why(server: Machine):
    ann = server.ann
    model = await ann.model()
    for _ in range(7):
        server.engine.fail_next(SaveState, FULL, "disk")
    save = await ann.save(model, 1, "a")
    assert await why(server, save) == FULL
    for _ in range(7):
        await server.wait(31)
    await ann.done(save)


@running()
async def test_a_save_that_waits_when_the_server_dies_is_done_by_the_next(server: Machine):
    ann = server.ann
    model = await ann.model()
    await ann.done(await ann.train(model, 1))
    server.engine.fail_next(SaveState, FULL, "disk")
    save = await ann.save(model, 2, "a")
    behind = await ann.step(model, 3)
    await server.restart()
    await ann.done(save)
    await ann.done(behind)
    assert state_of(server.engine).steps == 1


@running()
async def test_a_session_that_ends_takes_a_waiting_save_with_it(server: Machine):
    ann = server.ann
    session = await ann.session()
    model = await ann.model(session)
    server.engine.fail_next(SaveState, FULL, "disk")
    save = await ann.save(model, 1, "a")
    await server.settle()
    await ann.ok("finish_session", {"reason": {"type": "success"}}, session_id=session)
    assert (await ann.result(save))["category"] == "user"
    await server.wait(40)
    assert server.service.trouble.text == ""


# ---- little room


def test_what_was_accepted_waits_for_room_and_what_is_new_is_put_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    free = [10 << 30]
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(100 << 30, 0, free[0]))

    @running(options={"min_free_bytes": 1 << 30}, **PAGES)
    async def scenario(server: Machine) -> None:
        ann = server.ann
        server.allowed_5xx.add(503)
        model = await ann.model()
        server.engine.hold(SaveState)
        first = await ann.save(model, 1, "a")
        second = await ann.save(model, 2, "b")
        await ann.train(model, 3)
        free[0] = 5
        server.engine.release()
        await ann.done(first)
        await server.settle()
        assert "5 bytes are free, 1073741824 are kept" in (await readiness(server))[2]
        text = await ann.refused("save_weights", {"model_id": model, "seq_id": 4, "path": "c"}, 503)
        assert "all but full" in text
        free[0] = 2 << 30
        await server.wait(31)
        await ann.done(second)
        await ann.done(await ann.save(model, 4, "c"))

    scenario(tmp_path=tmp_path)


# ---- the store


@running(**PAGES)
async def test_a_store_that_cannot_write_says_so_and_goes_on_by_itself(server: Machine):
    ann = server.ann
    server.allowed_5xx.add(503)
    model = await ann.model()
    server.engine.hold(SaveState)
    save = await ann.save(model, 1, "a")
    server.store.failing = "database or disk is full"
    server.engine.release()
    assert "database or disk is full" in await why(server, save)
    assert (await readiness(server))[:2] == (503, "paused")
    answer = await ann("create_session", {"sdk_version": "0.36.0", "tags": []})
    assert (answer.status, answer.headers["retry-after"]) == (503, "5")
    server.store.failing = None
    await server.wait(20)
    await ann.done(save)
    assert (await readiness(server))[:2] == (200, "ready")


@running(**PAGES)
async def test_a_store_is_looked_at_though_nobody_writes(server: Machine):
    server.allowed_5xx.add(503)
    server.store.failing = "no room"
    await server.ann("create_session", {"sdk_version": "0.36.0", "tags": []})
    assert (await readiness(server))[1] == "paused"
    server.store.failing = None
    await server.wait(11)
    assert (await readiness(server))[1] == "ready"


@running()
async def test_no_end_is_known_while_one_before_it_could_not_be_written(
    server: Machine, monkeypatch: pytest.MonkeyPatch
):
    ann = server.ann
    model = await ann.model()
    write = server.store.write

    async def broken(*changes: Change) -> None:
        if any(isinstance(each, Finish) and each.form == "pass" for each in changes):
            raise StoreFailed("no room for a large result")
        await write(*changes)

    monkeypatch.setattr(server.store, "write", broken)
    server.engine.hold(OptimStep)
    tickets = [await ann.train(model, 1), await ann.step(model, 2)]
    await server.settle()
    server.engine.release()
    await server.settle()
    before = state_of(server.engine)
    assert before.steps == 1
    await server.restart()
    for ticket in tickets:
        await ann.done(ticket)
    assert state_of(server.engine) == before


@running(options={"snapshot_steps": 1})
async def test_no_snapshot_is_known_before_its_last_operation_though_its_model_is_written(
    server: Machine, monkeypatch: pytest.MonkeyPatch
):
    ann = server.ann
    model = await ann.model()
    path = (await ann.done(await ann.save(model, 1, "a")))["path"]
    write, full = server.store.write, [True]

    async def broken(*changes: Change) -> None:
        ends = [each.id for each in changes if isinstance(each, Finish)]
        if ends and (full or ends != [f"{model}:2"]):
            raise StoreFailed("no room")
        await write(*changes)

    monkeypatch.setattr(server.store, "write", broken)
    tickets = [await ann.load(model, 2, path), await ann.train(model, 3), await ann.step(model, 4)]
    await server.settle()
    before = server.engine.models[model]
    assert before.steps == 1
    full.clear()
    await server.wait(1)
    assert (await server.store.get(ModelRow, model)).watermark == 2
    await server.restart()
    for ticket in tickets:
        await ann.done(ticket)
    assert server.engine.models[model] == before


@pytest.mark.parametrize("soon", [True, False])
def test_work_that_could_not_be_written_down_when_the_server_died_is_done_when_it_comes_again(
    soon: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Whether the store says so before the engine has done it or after."""

    @running()
    async def scenario(server: Machine) -> None:
        ann, bob = server.ann, server.bob
        model, other = await ann.model(), await bob.model()
        write, gate = server.store.write, asyncio.Event()
        if soon:
            gate.set()

        async def broken(*changes: Change) -> None:
            rows = [each.row for each in changes if isinstance(each, Put)]
            if any(isinstance(row, OperationRow) and row.id == f"{model}:1" for row in rows):
                await gate.wait()
                raise StoreFailed("no room for a large body")
            await write(*changes)

        monkeypatch.setattr(server.store, "write", broken)
        asking = asyncio.ensure_future(ann.train(model, 1))
        await server.settle()
        gate.set()
        await server.settle()
        behind = await ann.step(model, 2)
        await server.settle()
        before = server.engine.models[model]
        assert before.steps == 1
        await bob.done(await bob.step(other, 1))
        asking.cancel()
        await server.restart()
        for ticket in (await ann.train(model, 1), behind):
            await ann.done(ticket)
        assert server.engine.models[model] == before

    scenario(tmp_path=tmp_path)


# ---- restoring


@running()
async def test_a_model_whose_snapshot_cannot_be_read_for_now_waits_and_others_do_not(server: Machine):
    ann, bob = server.ann, server.bob
    server.options = {"snapshot_steps": 1}
    await server.reopen()
    model, other = await ann.model(), await bob.model()
    await ann.done(await ann.step(model, 1))
    await server.settle()
    before = server.engine.models[model]
    make = server._link

    def failing(*given: Any) -> Any:
        link = make(*given)
        build = link._make_engine

        def engine() -> Any:
            made = build()
            for _ in range(2):
                made.fail_next(LoadState, "the server's disk cannot be read: Input/output error", "disk")
            return made

        link._make_engine = engine
        return link

    server.service.rooms[next(iter(server.service.rooms))]._make_link = failing
    await server.replace_engine()
    await bob.done(await bob.step(other, 1))
    ticket = await ann.step(model, 2)
    await server.settle()
    live = server.service.world.models[model]
    assert "Input/output error" in server.service.scheduler_of(live).queue_reason(live)
    assert not live.open
    await server.wait(1)
    await server.wait(2)
    assert live.row.state == "live"
    await ann.done(ticket)
    assert server.engine.models[model].steps == before.steps + 1


@running()
async def test_a_store_that_cannot_be_read_for_one_model_keeps_nobody_else(
    server: Machine, monkeypatch: pytest.MonkeyPatch
):
    ann, bob = server.ann, server.bob
    model, other = await ann.model(), await bob.model()
    replay, failing = server.store.replay, [True]

    async def broken(id: str, after: int) -> Any:
        if id == model and failing:
            raise StoreFailed("the store could not read: disk I/O error")
        return await replay(id, after)

    monkeypatch.setattr(server.store, "replay", broken)
    await server.replace_engine()
    await bob.done(await bob.step(other, 1))
    ticket = await ann.step(model, 1)
    await server.wait(5)
    failing.clear()
    await server.wait(31)
    await ann.done(ticket)


@running()
async def test_a_model_given_up_while_the_store_cannot_be_read_keeps_nobody_else(
    server: Machine, monkeypatch: pytest.MonkeyPatch
):
    ann, bob = server.ann, server.bob
    model, other = await ann.model(), await bob.model()
    found = await server.store.get(OperationRow, f"{model}:0")
    found.body = b"damaged"
    await server.store.write(Put(found))

    async def broken(*given: Any, **more: Any) -> Any:
        raise StoreFailed("the store could not read: disk I/O error")

    monkeypatch.setattr(server.store, "checkpoints", broken)
    await server.replace_engine()
    await bob.done(await bob.step(other, 1))
    assert "corrupted" in await ann.refused(
        "optim_step", {"model_id": model, "seq_id": 1, "adam_params": {}}
    )


# ---- snapshots


@running(options={"snapshot_steps": 1})
async def test_a_snapshot_that_could_not_be_written_is_tried_again(server: Machine):
    ann = server.ann
    model = await ann.model()
    for _ in range(2):
        server.engine.fail_next(SaveState, FULL, "disk")
    await ann.done(await ann.step(model, 1))
    await ann.done(await ann.train(model, 2, datum([3, 4])))
    await server.settle()
    row = server.service.world.models[model].row
    assert row.snapshot == -1
    await server.wait(31)
    assert row.snapshot == -1
    await server.wait(31)
    assert row.snapshot == 2
    before = state_of(server.engine)
    await server.restart()
    assert state_of(server.engine) == before


# ---- exports and copies


@running()
async def test_an_export_that_finds_no_room_may_be_asked_for_again(server: Machine):
    ann = server.ann
    server.allowed_5xx.add(503)
    model = await ann.model()
    await ann.done(await ann.save(model, 1, "a"))
    server.engine.fail_next(ExportSaved, FULL, "disk")
    where = {"training_run_id": model, "checkpoint_id": "weights/a"}
    asked = await ann("checkpoint_archive", **where)
    assert (asked.status, asked.detail) == (503, FULL)
    assert (await ann("checkpoint_archive", **where)).status in (200, 302)


# ---- the journal of samples


def test_a_journal_on_a_full_disk_is_whole_again_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write, room = os.write, [1 << 30]

    def little(file: int, data: bytes) -> int:
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = write(file, data[: room[0]])
        room[0] -= taken
        return taken

    monkeypatch.setattr("tinkex.server.sample_journal.os.write", little)
    journal = SampleJournal(tmp_path / "samples.log")
    assert journal.open() == []
    journal.add("s:0")
    room[0] = 3  # the next line is cut off in the middle
    for number in range(1, 5):
        journal.add(f"s:{number}")
    journal.remove(["s:2"])
    room[0] = 1 << 30
    journal.add("s:9")
    assert SampleJournal(tmp_path / "samples.log").open() == ["s:0", "s:1", "s:3", "s:4", "s:9"]
    journal.close()


def test_a_journal_that_cannot_be_opened_for_writing_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "samples.log").write_text("+s:0\n+s:1\n")
    rename = os.replace

    def full(*given: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("tinkex.server.sample_journal.os.replace", full)
    journal = SampleJournal(tmp_path / "samples.log")
    assert journal.open() == ["s:0", "s:1"]
    journal.remove(["s:0"])
    monkeypatch.setattr("tinkex.server.sample_journal.os.replace", rename)
    journal.remove(["s:1"])
    journal.add("s:2")
    assert SampleJournal(tmp_path / "samples.log").open() == ["s:2"]
    journal.close()


# ---- every system call, in turn


class Faults:
    """Makes calls on files of a state folder fail: so many, from the n-th on."""

    def __init__(self, at: int, count: int, number: int) -> None:
        self.at, self.count, self.number, self.calls = at, count, number, 0

    def __call__(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            self.calls += 1
            if self.at <= self.calls < self.at + self.count:
                raise OSError(self.number, os.strerror(self.number))
            return real(*given, **more)

        return call


@contextlib.contextmanager
def failing_calls(faults: Faults) -> Iterator[None]:
    """While it lasts, writing of bodies, journal and checkpoints goes through the faults."""
    with pytest.MonkeyPatch.context() as patch:
        for place in ("tinkex.server.body_files", "tinkex.server.sample_journal"):
            for name in ("open", "write", "fsync", "replace"):
                if place.endswith("body_files") and name == "replace":
                    continue
                module = sys.modules[place]
                shim: Any = module.os
                if shim is os:
                    shim = _Copy(os)
                    patch.setattr(module, "os", shim)
                setattr(shim, name, faults(getattr(os, name)))
        for name in ("_write", "_write_peft"):
            patch.setattr(noop_operations, name, faults(getattr(noop_operations, name)))
        yield


class Patient(Client):
    """Asks again where it is told to, as every SDK does."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine, machine.key["ann"])
        machine.allowed_5xx.add(503)

    async def __call__(self, *given: Any, **more: Any) -> Answer:
        while (answer := await super().__call__(*given, **more)).status == 503:
            await self.machine.clock.sleep(float(answer.headers["retry-after"]))
        return answer

    async def result(self, id: str) -> Any:
        while (answer := await self.poll(id)).status == 408:
            pass
        assert answer.status == 200, str(answer)
        return answer.json


class _Copy:
    """A module's names, to be replaced one by one."""

    def __init__(self, module: Any) -> None:
        self.__dict__.update(vars(module))


@pytest.mark.parametrize(("count", "number"), [(1, errno.EIO), (5, errno.ENOSPC)])
def test_a_disk_that_fails_at_any_call_changes_no_result(count: int, number: int, tmp_path: Path):
    wanted = expected(tmp_path / "undisturbed")

    async def main(at: int) -> bool:
        faults = Faults(at, count, number)
        with failing_calls(faults):
            async with Machine(tmp_path / str(at), kind="sqlite", options={"snapshot_steps": 1}) as server:
                server.store._files.largest_inside = 16  # bodies are files
                session = await Patient(server).session()
                going = asyncio.ensure_future(journey(Patient(server), session))
                # Time passes while the journey waits for the disk.
                await server.until(going.done, each_turn=lambda: server.clock.advance(0.05))
                assert going.result() == wanted[0]
                await server.settle()
                # What was told is there, and so it is after a restart.
                await server.restart()
                assert (await journey(Patient(server), session), state_of(server.engine)) == wanted
                row = await server.store.get(OperationRow, f"{session}:train:0:8")
                assert row is not None
        return faults.calls >= at

    at, reached = 1, True
    while reached:
        reached = asyncio.run(main(at))
        at += 7 if at > 4 else 1
    assert at > 15


# ---- a real limit


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the size of files")
@pytest.mark.parametrize("size", [0, 4096, 20_000, 60_000])
def test_files_that_cannot_grow_delay_work_and_lose_nothing(size: int, tmp_path: Path):
    wanted = expected(tmp_path / "undisturbed")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def main() -> None:
        async with Machine(tmp_path / "limited", kind="sqlite", options={"snapshot_steps": 1}) as server:
            server.store._files.largest_inside = 16
            session = await Patient(server).session()
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
            try:
                going = asyncio.ensure_future(journey(Patient(server), session))
                for _ in range(200):
                    server.clock.advance(0.05)
                    await asyncio.sleep(0)
                await asyncio.sleep(0.05)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            await server.until(going.done, each_turn=lambda: server.clock.advance(0.05))
            assert going.result() == wanted[0]
            await server.restart()
            assert (await journey(Patient(server), session), state_of(server.engine)) == wanted

    asyncio.run(main())


@running(options={"snapshot_steps": 1})
async def test_a_snapshot_tried_again_is_of_the_last_operation_that_was_done(server: Machine):
    ann = server.ann
    model = await ann.model()
    server.engine.fail_next(SaveState, FULL, "disk")
    await ann.done(await ann.step(model, 1))
    await ann.refused("optim_step", {"model_id": model, "seq_id": 2, "adam_params": {"eps": -1}})
    await server.settle()
    await server.wait(31)
    row = server.service.world.models[model].row
    assert row.snapshot == row.watermark == 1
    await ann.done(await ann.step(model, 3))
    before = state_of(server.engine)
    await server.restart()
    assert state_of(server.engine) == before
