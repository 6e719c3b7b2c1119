"""One checkpoint: deleted, published, given a time to live, described."""

from __future__ import annotations

from typing import Any

import pytest

from tinkex.server.records import CheckpointRow

from .rig import MODEL, START, Rig, served, settle

RUN = "s-1:train:0"
WHERE = f"training_runs/{RUN}/checkpoints/weights/ck"


@served
async def test_deleting_takes_the_row_the_files_and_the_export(rig: Rig):
    row = await rig.checkpoint()
    export = rig.service.exports._place(row.folder)
    export.mkdir(parents=True)
    got = await rig.ask("DELETE", WHERE)
    assert (got.status, got.json) == (200, {})
    await settle()
    assert await rig.store.get(CheckpointRow, row.path) is None
    assert not (rig.state / row.folder).exists()
    assert not export.exists()
    assert await rig.events() == ["checkpoint.deleted"]
    assert (await rig.ask("DELETE", WHERE)).status == 404


@served
async def test_files_stay_for_as_long_as_somebody_samples_from_them(rig: Rig):
    session = await rig.session()
    row = await rig.checkpoint(kind="sampler", version="v1")
    await rig.sampler(row, session)
    await rig.sampler(row, session, 1)
    where = f"training_runs/{RUN}/checkpoints/sampler_weights/ck"
    assert (await rig.ask("DELETE", where)).status == 200
    await settle()
    assert rig.files(row)
    assert (await rig.get(f"training_runs/{RUN}/checkpoints")).status == 404
    assert (await rig.post("sessions/s-1/finish", {"reason": {"type": "success"}})).status == 200
    await settle()
    assert not (rig.state / row.folder).exists()


@served
async def test_the_end_of_a_session_leaves_the_files_of_checkpoints_that_are_there(rig: Rig):
    session = await rig.session()
    row = await rig.checkpoint(kind="sampler", version="v1")
    await rig.sampler(row, session)
    await rig.post("sessions/s-1/finish", {"reason": {"type": "success"}})
    await settle()
    assert rig.files(row)


@served
async def test_publishing_twice_is_fine_both_times(rig: Rig):
    await rig.checkpoint()
    assert (
        await rig.post("weights_info", {"tinker_path": f"tinker://{RUN}/weights/ck"}, key="bob")
    ).status == 404
    for _ in range(2):
        assert (await rig.post(f"{WHERE}/publish")).status == 200
    info = await rig.post("weights_info", {"tinker_path": f"tinker://{RUN}/weights/ck"}, key="bob")
    assert info.status == 200
    for _ in range(2):
        assert (await rig.ask("DELETE", f"{WHERE}/publish")).status == 200
    assert (
        await rig.post("weights_info", {"tinker_path": f"tinker://{RUN}/weights/ck"}, key="bob")
    ).status == 404
    assert await rig.events() == ["checkpoint.published", "checkpoint.unpublished"]


@served
async def test_what_is_published_is_still_its_owners_alone_to_change(rig: Rig):
    row = await rig.checkpoint(public=True)
    for method, path, body in (
        ("DELETE", WHERE, None),
        ("DELETE", f"{WHERE}/publish", None),
        ("POST", f"{WHERE}/publish", None),
        ("PUT", f"{WHERE}/ttl", {"ttl_seconds": 3600}),
    ):
        assert (await rig.ask(method, path, body, key="bob")).status == 404
    assert await rig.store.get(CheckpointRow, row.path) == row


@served
async def test_a_time_to_live_counts_from_now_and_null_means_never(rig: Rig):
    row = await rig.checkpoint()
    await rig.clock.forward(100)
    assert (await rig.ask("PUT", f"{WHERE}/ttl", {"ttl_seconds": 7200})).status == 200
    assert (await rig.store.get(CheckpointRow, row.path)).expires == START + 7300
    assert (await rig.ask("PUT", f"{WHERE}/ttl", {"ttl_seconds": None})).status == 200
    assert (await rig.store.get(CheckpointRow, row.path)).expires is None
    await rig.ask("PUT", f"{WHERE}/ttl", {"ttl_seconds": 60})
    await rig.clock.forward(61)
    assert (await rig.post("weights_info", {"tinker_path": row.path})).status == 404


@pytest.mark.parametrize("seconds", [0, -5, 59, 10 * 366 * 24 * 3600 + 1])
@served
async def test_a_time_to_live_outside_the_limits_is_refused_with_them(rig: Rig, seconds: int):
    await rig.checkpoint()
    got = await rig.ask("PUT", f"{WHERE}/ttl", {"ttl_seconds": seconds})
    assert got.status == 400
    assert got.detail == f"ttl_seconds: {seconds} is not between 60 and 316224000"


@pytest.mark.parametrize("body", [{"ttl_seconds": "soon"}, {"ttl_seconds": 1.5}, {"ttl_seconds": [1]}])
@served
async def test_a_time_to_live_that_is_no_number(rig: Rig, body: Any):
    await rig.checkpoint()
    got = await rig.ask("PUT", f"{WHERE}/ttl", body)
    assert got.status == 422
    assert "ttl_seconds" in got.detail


@served
async def test_what_a_checkpoint_was_trained_from(rig: Rig):
    row = await rig.checkpoint(train_mlp=False, rank=16)
    assert (await rig.post("weights_info", {"tinker_path": row.path})).json == {
        "base_model": MODEL,
        "optimizer_config": {"type": "adamw"},
        "is_lora": True,
        "lora_rank": 16,
        "train_unembed": True,
        "train_mlp": False,
        "train_attn": True,
    }


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("POST", "weights_info", {"tinker_path": "weights/ck"}, 400, "tinker_path"),
        ("POST", "weights_info", {"tinker_path": "tinker://a/b"}, 400, "tinker_path"),
        ("POST", "weights_info", {}, 422, "tinker_path"),
        ("POST", "weights_info", {"tinker_path": "tinker://a:train:0/weights/b"}, 404, "a:train:0"),
        ("DELETE", f"training_runs/{RUN}/checkpoints/nonsense/ck", None, 400, "checkpoint_id"),
        ("DELETE", f"training_runs/{RUN}/checkpoints/weights/a/b", None, 400, "checkpoint_id"),
        ("DELETE", f"training_runs/{RUN}/checkpoints/weights/..", None, 404, "checkpoint"),
        ("POST", f"training_runs/{RUN}/checkpoints/weights/no/publish", None, 404, "weights/no"),
    ],
)
@served
async def test_names_that_lead_nowhere(rig: Rig, method: str, path: str, body: Any, status: int, said: str):
    got = await rig.ask(method, path, body)
    assert got.status == status
    assert said in got.detail


@served
async def test_a_store_that_cannot_write_is_said_and_nothing_is_lost(rig: Rig):
    row = await rig.checkpoint()
    rig.store.failing = "the disk is full"
    got = await rig.ask("DELETE", WHERE)
    assert (got.status, got.headers["retry-after"]) == (503, "5")
    rig.store.failing = None
    await settle()
    assert rig.files(row)
    assert await rig.store.get(CheckpointRow, row.path) == row
