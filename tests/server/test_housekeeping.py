"""What is looked after while a server runs, and what a starting one finds left over."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from tinkex.server.housekeeping import Every
from tinkex.server.records import CheckpointRow, ModelRow, OperationRow, SamplerRow, SessionRow
from tinkex.server.store import Finish, Put
from tinkex.testing import MemoryStore

from .machine import Machine, running
from .rig import MODEL, START, Rig, open_rig, served, settle

RUN = "s-1:train:0"


# ---- sessions


@served(start=True)
async def test_a_session_nobody_keeps_alive_expires(rig: Rig):
    await rig.session("s-1")
    await rig.session("s-2")
    row = await rig.run(RUN)
    rig.service.open_model(row, rig.service.world.sessions["s-1"], fresh=True)
    for _ in range(7):
        await rig.clock.forward(100)
        assert (await rig.post("session_heartbeat", {"session_id": "s-2"})).status == 200
    assert list(rig.service.world.sessions) == ["s-2"]
    expired = await rig.store.get(SessionRow, "s-1")
    assert (expired.status, expired.reason, expired.detail) == (
        "expired",
        None,
        "no heartbeat for 600 seconds",
    )
    assert RUN not in rig.service.world.models
    assert (await rig.store.get(ModelRow, RUN)).state == "unloaded"
    assert "session.expired" in await rig.events()
    gone = await rig.post("session_heartbeat", {"session_id": "s-1"})
    assert gone.status == 410
    found = (await rig.post("sessions/search", {"statuses": [{"type": "cancelled"}]})).json["sessions"]
    assert [each["session_id"] for each in found] == ["s-1"]


def test_time_a_server_was_down_does_not_count(tmp_path: Path):
    import asyncio

    store = MemoryStore()

    async def scenario() -> None:
        async with open_rig(tmp_path, store=store, start=True) as rig:
            await rig.session("s-1")
            rig.store.close = settle  # the store outlives the server
        async with open_rig(tmp_path, store=store) as rig:
            rig.clock.passed = 50_000.0
            await rig.service.start()
            await rig.clock.forward(590)
            assert "s-1" in rig.service.world.sessions
            await rig.clock.forward(20)
            assert "s-1" not in rig.service.world.sessions

    asyncio.run(scenario())


# ---- checkpoints


@served(start=True)
async def test_checkpoints_go_when_their_time_has_come(rig: Rig):
    short = await rig.checkpoint("short", expires=START + 100)
    long = await rig.checkpoint("long", expires=START + 1000)
    never = await rig.checkpoint("never")
    await rig.clock.forward(120)
    assert await rig.store.get(CheckpointRow, short.path) is None
    assert not (rig.state / short.folder).exists()
    assert rig.files(long)
    assert await rig.events() == ["checkpoint.expired"]
    await rig.clock.forward(1000)
    assert not (rig.state / long.folder).exists()
    assert rig.files(never)


@running()
async def test_files_of_a_checkpoint_that_was_saved_over_go(server: Machine):
    ann = server.ann
    model = await ann.model()
    saves = [
        ("save_weights", {"path": "ck", "overwrite": True}),
        ("save_weights_for_sampler", {"path": "ck"}),
        ("save_weights_external", {"path": "ck"}),
    ]
    seq, row = 1, None
    for kind, body in saves:
        segment = {"save_weights": "weights", "save_weights_for_sampler": "sampler_weights"}.get(
            kind, "external_weights"
        )
        folders = []
        for _ in range(3):
            ticket = await ann.ok(kind, {"model_id": model, "seq_id": seq, **body})
            await ann.done(ticket["request_id"])
            seq += 1
            assert server.store is not None
            row = await server.store.get(CheckpointRow, f"tinker://{model}/{segment}/ck")
            assert row is not None
            assert row.size == sum(each.stat().st_size for each in (server.state / row.folder).iterdir())
            folders.append(server.state / row.folder)
        await server.until(lambda folders=folders: not any(each.exists() for each in folders[:-1]))
        assert folders[-1].is_dir()


# ---- results, usage, downloads


@served(start=True)
async def test_results_are_let_go_after_a_day(rig: Rig):
    await rig.session()
    await rig.run(state="unloaded")
    await rig.store.write(Put(OperationRow(f"{RUN}:1", RUN, 1, "optim_step", "ann", START)))
    await rig.store.write(Finish(f"{RUN}:1", "done", START - 22 * 3600, RUN, 1, b"{}"))
    ticket = rig.service.tickets.open("loose", "asample", "ann")
    ticket.done(b"result", "sample", START)
    rig.service.tickets.ended(ticket)
    await rig.clock.forward(3500)
    assert rig.service.tickets.get("loose") is ticket
    await rig.clock.forward(200)
    assert rig.service.tickets.get("loose") is None
    assert await rig.store.get(OperationRow, f"{RUN}:1") is not None
    await rig.clock.forward(3200)
    assert await rig.store.get(OperationRow, f"{RUN}:1") is not None
    await rig.clock.forward(400)
    assert await rig.store.get(OperationRow, f"{RUN}:1") is None


@served(start=True)
async def test_usage_is_written_now_and_then(rig: Rig):
    session = await rig.session()
    rig.service.usage.note(rig.service, session, MODEL, "training", 7)
    assert await rig.store.usage("ann", 0, 1 << 40) == []
    await rig.clock.forward(11)
    (row,) = await rig.store.usage("ann", 0, 1 << 40)
    assert (row.count, row.kind, row.session_id) == (7, "training", "s-1")


@served(start=True)
async def test_traces_go_with_their_addresses(rig: Rig):
    await rig.session()
    await rig.get("sessions/s-1/trace_export")
    (path,) = (rig.state / "traces").iterdir()
    os.utime(path, (START, START))
    await rig.clock.forward(7000)
    assert path.exists()
    await rig.clock.forward(700)
    assert not path.exists()


@served
async def test_a_job_that_fails_does_not_keep_others_from_being_done(
    rig: Rig, caplog: pytest.LogCaptureFixture
):
    await rig.service.start()
    done = []

    async def broken(service: Any) -> None:
        raise RuntimeError("broken")

    async def fine(service: Any) -> None:
        done.append(service.clock.monotonic())

    rig.service.housekeepers += [broken, fine, Every(25, fine)]
    await rig.clock.forward(61)
    assert done == [10, 10, 20, 30, 40, 40, 50, 60]
    assert "housekeeping failed" in caplog.text


# ---- a disk that is full


@served
async def test_nothing_is_saved_on_a_full_disk(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    usage = namedtuple("usage", "total used free")
    source = await rig.checkpoint()
    body = {"source_path": source.path, "destination_project_id": "p"}
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1 << 50, 0, (4 << 30) - 1))
    got = await rig.post("copy_weights", body)
    assert got.status == 503
    assert str((4 << 30) - 1) in got.detail
    assert str(4 << 30) in got.detail
    assert got.headers["retry-after"] == "30"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1 << 30, 0, 256 << 20))
    assert (await rig.post("copy_weights", body)).status == 200


# ---- leftovers


@served
async def test_what_no_row_knows_of_is_taken_away_before_engines_start(rig: Rig):
    session = await rig.session()
    kept = await rig.checkpoint("kept", expires=START - 5)
    sampled = await rig.checkpoint("sampled", kind="sampler", version="v")
    await rig.store.write(
        Put(SamplerRow("s-1:sample:0", "s-1", "ann", MODEL, START, sampled.path, folder=sampled.folder))
    )
    lost = await rig.checkpoint("lost", run="s-9:train:0")
    await rig.run(RUN, snapshot=4)
    await rig.run("s-1:train:1", state="corrupted", snapshot=4)
    folders = rig.service.folders
    snapshots = [
        folders.snapshot(RUN, 4), folders.snapshot(RUN, 3), folders.snapshot("s-1:train:1", 4),
        folders.snapshot("s-8:train:0", 0), folders.snapshot(RUN, 2), folders.snapshot(RUN, 5),
    ]  # fmt: skip
    for each in snapshots:
        each.mkdir(parents=True)
        (each / "file").write_bytes(b"x")
    part = (rig.state / kept.folder).with_name(".kept-7.1234.part")
    part.mkdir()
    unnamed = SamplerRow("s-1:sample:1", "s-1", "ann", MODEL, START, model_id=RUN, version="w")
    await rig.store.write(Put(unnamed))
    samplers = [
        rig.state / "engine" / "some-model" / "sampler" / name for name in ("w", "x", ".w.1234.part")
    ]
    for each in samplers:
        each.mkdir(parents=True)
    from tinkex.server.store import Delete

    for row in (lost, sampled):
        await rig.store.write(Delete(CheckpointRow, row.path))
    await rig.service.start()
    await settle()
    assert rig.files(kept)
    assert rig.files(sampled)
    assert not (rig.state / lost.folder).exists()
    assert not (rig.state / lost.folder).parent.parent.exists()
    assert not part.exists()
    # The one before a model's newest is kept, should that be damaged.
    assert [each.exists() for each in snapshots] == [True, True, False, False, False, False]
    assert [each.exists() for each in samplers] == [True, False, False]
    assert list((rig.state / "tmp").iterdir()) == []
    assert session.id in rig.service.world.sessions
