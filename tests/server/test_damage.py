"""Damage on the disk: the run it hits is marked and its owner told what to do, everybody else goes on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tinkex.engine.messages import LoadState, Train
from tinkex.server.body_files import BodyFiles
from tinkex.server.records import ModelRow, OperationRow
from tinkex.server.sqlite_store import SqliteStore
from tinkex.server.store import ForgetBodies, ForgetResults, Put

from .client import datum
from .machine import Machine, running
from .test_recovery import state_of, told

LONG = [datum(range(1, 400))]
"""A pass whose body is a file of its own (see `small_rows`)."""


@pytest.fixture
def small_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies from a kilobyte on are files."""
    opened = SqliteStore._opened.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        SqliteStore, "_opened", classmethod(lambda cls, folder, kind, size: opened(cls, folder, kind, 1024))
    )


def bodies(server: Machine) -> list[Path]:
    """The files of bodies, oldest first."""
    found = (server.state / "store" / "bodies").iterdir()
    return sorted(found, key=lambda each: int(each.name.split("-")[1], 16))


def harm(path: Path, how: str) -> None:
    """Damage a file."""
    data = bytearray(path.read_bytes())
    if how == "gone":
        path.unlink()
        return
    if how == "cut off":
        data = data[: len(data) // 2]
    else:
        data[len(data) // 2] ^= 4
    path.write_bytes(data)


HOW = pytest.mark.parametrize("how", ["gone", "cut off", "one bit"])


# ---- bodies


@HOW
def test_a_body_that_is_not_what_was_written_is_not_read(how: str, tmp_path: Path):
    files = BodyFiles(tmp_path / "bodies", sync=False)
    data = bytes(range(256)) * 9
    name = files.new_name(data)
    files.write([(name, data)])
    assert files.read(name) == data
    harm(tmp_path / "bodies" / name, how)
    with pytest.raises(FileNotFoundError if how == "gone" else ValueError, match=name):
        files.read(name)


def test_a_body_of_an_earlier_version_is_read(tmp_path: Path):
    files = BodyFiles(tmp_path / "bodies", sync=False)
    (tmp_path / "bodies" / "0123456789ab-1f").write_bytes(b"as it was")
    assert files.read("0123456789ab-1f") == b"as it was"


@HOW
def test_a_run_that_lost_a_body_is_marked_and_others_go_on(how: str, tmp_path: Path, small_rows: None):
    @running(kind="sqlite")
    async def scenario(server: Machine) -> None:
        ann, bob = server.ann, server.bob
        model, other = await ann.model(), await bob.model()
        await ann.done(await ann.train(model, 1, *LONG))
        lost = bodies(server)[0]  # its result is another
        await ann.done(await ann.step(model, 2))
        saved = (await ann.done(await ann.save(model, 3, "good")))["path"]
        await bob.done(await bob.train(other, 1, *LONG))
        harm(lost, how)
        await server.restart()
        await server.until(lambda: model not in server.service.world.models)
        await bob.done(await bob.step(other, 2))
        text = await ann.refused("optim_step", {"model_id": model, "seq_id": 4, "adam_params": {}})
        assert "corrupted" in text
        assert f"{model}:1" in text
        assert f"load {saved} (saved at operation 3)" in text
        again = await ann.model(await ann.session())
        await ann.done(await ann.load(again, 1, saved))

    scenario(tmp_path=tmp_path)


@HOW
def test_work_that_waits_and_lost_its_body_fails_alone(how: str, tmp_path: Path, small_rows: None):
    @running(kind="sqlite")
    async def scenario(server: Machine) -> None:
        ann = server.ann
        model = await ann.model()
        server.engine.hold(Train)
        first = await ann.train(model, 1, *LONG)
        (lost,) = bodies(server)
        second = await ann.train(model, 2, datum([1, 2]))
        await server.crash()
        harm(lost, how)
        await server.start()
        failed = await ann.result(first)
        assert failed["category"] == "server"
        assert "damaged or lost" in failed["error"]
        await ann.done(second)

    scenario(tmp_path=tmp_path)


@HOW
def test_a_result_that_is_damaged_is_no_longer_kept(how: str, tmp_path: Path, small_rows: None):
    @running(kind="sqlite")
    async def scenario(server: Machine) -> None:
        ann = server.ann
        model = await ann.model()
        await ann.done(await ann.train(model, 1, *LONG, forward_only=True))
        await server.restart()
        harm(bodies(server)[-1], how)
        answer = await ann.poll(f"{model}:1")
        assert (answer.status, "no longer kept" in answer.detail) == (410, True)
        await ann.done(await ann.step(model, 2))

    scenario(tmp_path=tmp_path)


# ---- snapshots


async def trained(server: Machine, steps: int) -> str:
    """A model with a checkpoint, and so many steps after it."""
    ann = server.ann
    model = await ann.model(lora_config={"rank": 8, "seed": 3})
    await ann.done(await ann.train(model, 1, datum([1, 2])))
    await ann.done(await ann.step(model, 2))
    await ann.done(await ann.save(model, 3, "good"))
    for number in range(4, 4 + 2 * steps, 2):
        await ann.done(await ann.train(model, number, datum([number, 2])))
        await ann.done(await ann.step(model, number + 1))
    await server.settle()
    return model


def snapshot_file(server: Machine, model: str, seq: int) -> Path:
    """What is in a snapshot."""
    return server.folders.snapshot(model, seq) / "adapter.json"


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_snapshot_before_a_damaged_one_is_used(kind: str, steps: int, tmp_path: Path):
    @running(kind=kind, options={"snapshot_steps": 2})
    async def scenario(server: Machine) -> None:
        ann = server.ann
        model = await trained(server, steps)
        before, row = state_of(server.engine), server.service.world.models[model].row
        newest = row.snapshot
        assert newest > 0
        # A day later results are forgotten, and yet everything can be done again.
        await server.store.write(ForgetResults(server.clock.time() + 1))
        harm(snapshot_file(server, model, newest), "cut off")
        await server.restart()
        await server.until(lambda: server.service.world.models[model].open)
        assert state_of(server.engine) == before
        assert server.service.world.models[model].row.snapshot < newest
        assert not server.folders.snapshot(model, newest).exists()
        await ann.done(await ann.step(model, 4 + 2 * steps))
        await server.restart()
        assert state_of(server.engine).steps == before.steps + 1

    scenario(tmp_path=tmp_path)


@running(options={"snapshot_steps": 2})
async def test_a_run_all_of_whose_snapshots_are_damaged_is_marked_and_explained(server: Machine):
    ann, bob = server.ann, server.bob
    healthy = await bob.model()
    model = await trained(server, 5)
    newest = server.service.world.models[model].row.snapshot
    for seq in (newest, newest - 4):
        harm(snapshot_file(server, model, seq), "cut off")
    await server.replace_engine()
    await server.until(lambda: model not in server.service.world.models)
    text = await ann.refused("optim_step", {"model_id": model, "seq_id": 20, "adam_params": {}})
    assert "could not be restored" in text
    assert f"load tinker://{model}/weights/good (saved at operation 3) into a new model" in text
    await bob.done(await bob.step(healthy, 1))
    assert (await server.store.get(ModelRow, model)).state == "corrupted"


@running(options={"snapshot_steps": 1})
async def test_a_run_without_a_checkpoint_is_told_to_begin_anew(server: Machine):
    ann = server.ann
    model = await ann.model()
    for number in (1, 2, 3):
        await ann.done(await ann.step(model, number))
    await server.settle()
    for seq in (2, 3):
        harm(snapshot_file(server, model, seq), "cut off")
    await server.replace_engine()
    await server.until(lambda: model not in server.service.world.models)
    text = await ann.refused("optim_step", {"model_id": model, "seq_id": 20, "adam_params": {}})
    assert "train it anew" in text


@running()
async def test_an_older_snapshot_without_all_that_came_after_it_is_not_used(server: Machine):
    ann = server.ann
    model = await trained(server, 1)
    row = server.service.world.models[model].row
    # As an earlier version left it: an old snapshot, and no bodies up to the newest.
    old, new = server.folders.snapshot(model, 2), server.folders.snapshot(model, 4)
    for place in (old, new):
        await asyncio.to_thread(place.mkdir, parents=True)
    good = json.dumps(
        {"rank": 8, "seed": 3, "parts": [True] * 3, "steps": 1, "weights": "aa", "gradient": ""}
    )
    (old / "adapter.json").write_text(good)
    row.snapshot = 4
    await server.store.write(Put(row), ForgetBodies(model, 4))
    await server.restart()
    await server.until(lambda: model not in server.service.world.models)
    text = await ann.refused("optim_step", {"model_id": model, "seq_id": 20, "adam_params": {}})
    assert "no checkpoint at" in text
    assert told(server.engine, LoadState) == 1
    assert (await server.store.get(OperationRow, f"{model}:5")).state == "done"
