"""Answers about training runs and lists of checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ..types import Checkpoint, CheckpointsListResponse, Cursor, TrainingRun, TrainingRunsResponse
from ..wire import paths
from ..wire.jsonbody import wire_form
from .asks import Answer, Ask, answers
from .dates import moment
from .problems import NotFound
from .records import CheckpointRow, ModelRow
from .store import Page

EVERYTHING = 1 << 62
"""As many rows as there are."""
KNOWS_EXTERNAL = (0, 28)
"""The first SDK that can read a list with external checkpoints in it."""
_VERSION_HEADER = "X-Stainless-Package-Version"
_VERSION = re.compile(r"(\d{1,6})\.(\d{1,6})(\D.*)?")


# ---- training runs


@answers("list_training_runs")
async def _list_runs(ask: Ask) -> Answer:
    query, service = ask.query, ask.service
    page = Page(query.limit, query.offset)
    rows, total = await service.store.models(ask.owner, page, project_id=query.project_id)
    sessions = list(dict.fromkeys(row.session_id for row in rows))
    saved = await service.store.checkpoints_of(sessions, now=service.clock.time())
    mine = [each for each in saved if each.owner == ask.owner]
    cursor = Cursor(offset=query.offset, limit=query.limit, total_count=total)
    described = [_run(ask, row, mine) for row in rows]
    # Written by hand: a run's note is a key of our own.
    return {**wire_form(TrainingRunsResponse(training_runs=[], cursor=cursor)), "training_runs": described}


@answers("get_training_run")
async def _get_run(ask: Ask) -> Answer:
    row, saved = await _visible_run(ask, ask.query.access_scope == "accessible")
    if row is None:
        raise NotFound("training run", ask.params["training_run_id"])
    return _run(ask, row, saved)


async def _visible_run(ask: Ask, others: bool) -> tuple[ModelRow | None, list[CheckpointRow]]:
    """A run and its checkpoints (newest first); of somebody else's only what is published."""
    service, id = ask.service, ask.params["training_run_id"]
    row = await service.store.get(ModelRow, id)
    owner = ask.owner if row is None else row.owner
    everything, now = Page(EVERYTHING), service.clock.time()
    saved, _ = await service.store.checkpoints(owner, everything, now=now, run_id=id)
    if owner == ask.owner:
        return row, saved
    published = [each for each in saved if each.public]
    return (row, published) if others and published else (None, [])


def _run(ask: Ask, row: ModelRow, saved: Iterable[CheckpointRow]) -> dict[str, Any]:
    live = ask.service.world.models.get(row.id)
    row = row if live is None else live.row
    last: dict[str, Checkpoint] = {}
    for each in saved:
        if each.run_id == row.id:
            last.setdefault(each.kind, listed(each))
    run = TrainingRun(
        training_run_id=row.id,
        base_model=row.base_model,
        model_owner=row.owner,
        is_lora=True,
        corrupted=row.state == "corrupted",
        lora_rank=row.rank,
        last_request_time=moment(row.last_request),
        last_checkpoint=last.get("training"),
        last_sampler_checkpoint=last.get("sampler"),
        user_metadata=texts(row.user_metadata),
    )
    described: dict[str, Any] = wire_form(run)
    return {**described, "note": row.note} if row.note else described


def texts(metadata: dict[str, Any] | None) -> dict[str, str] | None:
    """Metadata as the lists have it: every value a text."""
    return None if metadata is None else {key: str(value) for key, value in metadata.items()}


# ---- lists of checkpoints


@answers("list_checkpoints", "list_model_checkpoints")
async def _list(ask: Ask) -> Answer:
    row, saved = await _visible_run(ask, True)
    if row is None and not saved:
        raise NotFound("training run", ask.params["training_run_id"])
    return CheckpointsListResponse(checkpoints=[listed(each) for each in _readable(ask, saved)])


@answers("list_user_checkpoints")
async def _list_all(ask: Ask) -> Answer:
    query, service = ask.query, ask.service
    whole = _knows_external(ask)
    page = Page(query.limit, query.offset) if whole else Page(EVERYTHING)
    rows, total = await service.store.checkpoints(ask.owner, page, now=service.clock.time())
    if not whole:
        rows = _readable(ask, rows)
        total = len(rows)
        rows = rows[query.offset :][: query.limit]
    return CheckpointsListResponse(
        checkpoints=[listed(each) for each in rows],
        cursor=Cursor(offset=query.offset, limit=query.limit, total_count=total),
    )


def listed(row: CheckpointRow) -> Checkpoint:
    """A checkpoint as lists show it."""
    return Checkpoint(
        checkpoint_id=f"{paths.SEGMENTS[row.kind]}/{row.name}",
        checkpoint_type=row.kind,
        time=moment(row.created),
        tinker_path=row.path,
        size_bytes=row.size,
        public=row.public,
        user_metadata=row.user_metadata,
        expires_at=None if row.expires is None else moment(row.expires),
    )


def _readable(ask: Ask, rows: list[CheckpointRow]) -> list[CheckpointRow]:
    """The checkpoints whose kind this client knows."""
    return rows if _knows_external(ask) else [row for row in rows if row.kind != "external"]


def _knows_external(ask: Ask) -> bool:
    """Older SDKs fail to read a whole list over one external checkpoint in it."""
    found = _VERSION.fullmatch(ask.header(_VERSION_HEADER) or "")
    return found is None or (int(found[1]), int(found[2])) >= KNOWS_EXTERNAL
