"""Copies of checkpoints: where to, from whom, and once for one request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tinkex.server import checkpoint_files
from tinkex.server.records import AnswerRow, CheckpointRow

from .rig import START, Rig, served, settle

KEY = {"X-Idempotency-Key": "5b2f"}


async def _copy(rig: Rig, source: CheckpointRow, key: str = "ann", **more: Any) -> Any:
    headers = more.pop("headers", None)
    body = {"source_path": source.path, "destination_project_id": "p", **more}
    body = {name: value for name, value in body.items() if value is not None}
    return await rig.post("copy_weights", body, key=key, headers=headers)


@served
async def test_a_copy_in_a_project_stands_on_its_own(rig: Rig):
    source = await rig.checkpoint(files={"a": b"1", "deep/b": b"22"}, public=True, user_metadata={"k": "v"})
    got = await _copy(rig, source, ttl_seconds=3600)
    assert got.status == 200
    made = await rig.store.get(CheckpointRow, got.json["tinker_path"])
    assert made.path.startswith("tinker://copy-")
    assert made.path.endswith("/weights/ck")
    assert (made.owner, made.project_id, made.public, made.expires) == ("ann", "p", False, START + 3600)
    assert (made.size, made.user_metadata) == (3, {"k": "v"})
    assert made.folder != source.folder
    await rig.ask("DELETE", "training_runs/s-1:train:0/checkpoints/weights/ck")
    await settle()
    assert rig.files(made) == {"a": b"1", "deep/b": b"22"}
    assert not (rig.state / source.folder).exists()


@served
async def test_a_copy_in_a_session_has_the_name_of_its_run(rig: Rig):
    source = await rig.checkpoint(run="old:train:3", kind="sampler", version="v7")
    await rig.session("s-2", project_id="q")
    got = await _copy(rig, source, destination_project_id=None, session_id="s-2", model_seq_id=5)
    assert got.json == {"tinker_path": "tinker://s-2:train:5/sampler_weights/ck"}
    made = await rig.store.get(CheckpointRow, got.json["tinker_path"])
    assert (made.run_id, made.session_id, made.project_id, made.version) == (
        "s-2:train:5",
        "s-2",
        "q",
        "v7",
    )
    again = await _copy(rig, source, destination_project_id=None, session_id="s-2", model_seq_id=5)
    assert again.status == 400
    assert "model_seq_id" in again.detail


@served
async def test_the_same_request_again_is_one_copy(rig: Rig):
    source = await rig.checkpoint()
    answers = await asyncio.gather(*(_copy(rig, source, headers=KEY) for _ in range(3)))
    assert len({answer.json["tinker_path"] for answer in answers}) == 1
    assert (await rig.get("checkpoints")).json["cursor"]["total_count"] == 2
    other = await _copy(rig, source, headers={"X-Idempotency-Key": "another"})
    assert other.json != answers[0].json
    await rig.ask("POST", "training_runs/s-1:train:0/checkpoints/weights/ck/publish")
    bobs = await _copy(rig, source, "bob", headers=KEY)
    assert bobs.json != answers[0].json


@served
async def test_whose_checkpoints_can_be_copied(rig: Rig):
    source = await rig.checkpoint()
    assert (await _copy(rig, source, "bob")).status == 404
    lent = {"X-Tinker-Weights-Access-Token": rig.keys["ann"]}
    by_header = await _copy(rig, source, "bob", headers=lent)
    by_body = await _copy(rig, source, "bob", weights_access_token=rig.keys["ann"])
    for got in (by_header, by_body):
        assert got.status == 200
        assert (await rig.store.get(CheckpointRow, got.json["tinker_path"])).owner == "bob"
    refused = await _copy(rig, source, "bob", weights_access_token="tml-nothing")
    assert refused.status == 403
    assert "tml-nothing" not in refused.detail
    await rig.post("training_runs/s-1:train:0/checkpoints/weights/ck/publish")
    assert (await _copy(rig, source, "bob")).status == 200


@served
async def test_lent_tokens_are_kept_nowhere(rig: Rig):
    source = await rig.checkpoint()
    lent = {"X-Tinker-Weights-Access-Token": rig.keys["ann"], **KEY}
    assert (await _copy(rig, source, "bob", headers=lent)).status == 200
    for table in rig.store._tables.values():
        assert rig.keys["ann"] not in repr(table)
    assert rig.store._tables[AnswerRow]
    assert rig.keys["ann"] not in repr(await rig.store.audit("bob", 0, 1e12, ()))


@pytest.mark.parametrize(
    ("more", "status", "said"),
    [
        ({"destination_project_id": None}, 400, "destination_project_id"),
        ({"destination_project_id": None, "session_id": "s-1"}, 400, "model_seq_id"),
        ({"destination_project_id": None, "session_id": "s-9", "model_seq_id": 0}, 404, "s-9"),
        ({"ttl_seconds": 5}, 400, "ttl_seconds: 5 is not between 60 and"),
        ({"source_path": "nowhere"}, 400, "source_path"),
        ({"source_path": "tinker://no/weights/no"}, 404, "no/weights/no"),
        ({"source_path": None}, 422, "source_path"),
    ],
)
@served
async def test_copies_that_cannot_be(rig: Rig, more: dict[str, Any], status: int, said: str):
    got = await _copy(rig, await rig.checkpoint(), **more)
    assert got.status == status
    assert said in got.detail
    assert (await rig.get("checkpoints")).json["cursor"]["total_count"] == 1


@served
async def test_copies_count_against_the_owners_storage(rig: Rig):
    source = await rig.checkpoint(size=(1 << 40) - 10)
    got = await _copy(rig, source)
    assert got.status == 400
    assert str((1 << 40) - 10) in got.detail
    assert str(1 << 40) in got.detail


@served
async def test_a_copy_that_cannot_be_written_leaves_no_files(rig: Rig):
    source = await rig.checkpoint()
    rig.store.failing = "the disk is full"
    assert (await _copy(rig, source)).status == 503
    await settle()
    rig.store.failing = None
    assert [path.name for path in (rig.state / "checkpoints").iterdir() if any(path.rglob("*-*/*"))] == [
        "s-1%3Atrain%3A0"
    ]


@served
async def test_a_checkpoint_whose_files_have_gone_cannot_be_copied(rig: Rig):
    source = await rig.checkpoint(files={})
    got = await _copy(rig, source)
    assert got.status == 404
    assert source.path in got.detail


def _inode(rig: Rig, row: CheckpointRow) -> int:
    return (rig.state / row.folder / "a").stat().st_ino


@served
async def test_where_files_cannot_be_linked_they_are_copied(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    def no_links(*_: Any, **__: Any) -> None:
        raise OSError("operation not permitted")

    monkeypatch.setattr(checkpoint_files.os, "link", no_links)
    source = await rig.checkpoint(files={"a": b"1", "deep/b": b"22"})
    got = await _copy(rig, source)
    made = await rig.store.get(CheckpointRow, got.json["tinker_path"])
    assert rig.files(made) == rig.files(source)
    assert _inode(rig, made) != _inode(rig, source)
