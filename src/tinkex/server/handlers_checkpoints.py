"""Answers about one checkpoint: deleting it, who may see it, when it expires, what it was trained from."""

from __future__ import annotations

from dataclasses import replace

from ..types import WeightsInfoResponse
from .asks import Answer, Ask, answers
from .checkpoint_files import discard
from .operations import forget_checkpoint
from .records import AuditRow, CheckpointRow
from .store import Note, Put
from .works import check_ttl, find_checkpoint


async def addressed(ask: Ask, *, own: bool = True) -> CheckpointRow:
    """The checkpoint a request's path names."""
    path = f"tinker://{ask.params['training_run_id']}/{ask.params['checkpoint_id']}"
    return await find_checkpoint(ask.service, path, ask.owner, "checkpoint_id", own=own)


@answers("delete_checkpoint")
async def _delete(ask: Ask) -> Answer:
    service = ask.service
    async with service.turns.of(ask.owner):
        row = await addressed(ask)
        await service.write(*forget_checkpoint(row, service.clock.time(), "checkpoint.deleted"))
    service.spawn(discard(service, row.folder, row.version))
    return {}


@answers("publish_checkpoint", "unpublish_checkpoint")
async def _publish(ask: Ask) -> Answer:
    service, public = ask.service, ask.route.name == "publish_checkpoint"
    async with service.turns.of(ask.owner):
        row = await addressed(ask)
        # Being so already is no conflict: SDKs retry a 409 for minutes.
        if row.public is not public:
            event = "checkpoint.published" if public else "checkpoint.unpublished"
            note = AuditRow(service.clock.time(), ask.owner, event, row.run_id, row.path)
            await service.write(Put(replace(row, public=public)), Note(note))
    return {}


@answers("set_checkpoint_ttl")
async def _set_ttl(ask: Ask) -> Answer:
    service, seconds = ask.service, ask.body.ttl_seconds
    async with service.turns.of(ask.owner):
        row = await addressed(ask)
        expires, now = check_ttl(service, seconds), service.clock.time()
        note = AuditRow(
            now, ask.owner, "checkpoint.ttl_set", row.run_id, row.path, {"ttl_seconds": seconds}
        )
        await service.write(Put(replace(row, expires=expires)), Note(note))
    return {}


@answers("weights_info")
async def _info(ask: Ask) -> Answer:
    row = await find_checkpoint(ask.service, ask.body.tinker_path, ask.owner, "tinker_path")
    return WeightsInfoResponse.model_validate(
        {
            "base_model": row.base_model,
            "optimizer_config": row.optimizer,
            "is_lora": True,
            "lora_rank": row.rank,
            "train_unembed": row.train_unembed,
            "train_mlp": row.train_mlp,
            "train_attn": row.train_attn,
        }
    )
