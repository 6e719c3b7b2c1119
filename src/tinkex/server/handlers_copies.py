"""Answers about copies of checkpoints: one's own, published ones, and those another account lends."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace

from ..types import CopyWeightsRequest, CopyWeightsResponse
from ..wire import paths
from ..wire.headers import IDEMPOTENCY_KEY, WEIGHTS_ACCESS_TOKEN
from .asks import Answer, Ask, answers
from .checkpoint_files import copy_folder
from .disk import check_room
from .door import lender
from .problems import NotFound, Problem
from .records import AnswerRow, AuditRow, CheckpointRow
from .store import Note, Put
from .works import check_number, check_ttl, find_checkpoint


@answers("copy_weights")
async def _copy(ask: Ask) -> Answer:
    async with ask.service.turns.of(ask.owner):  # a request that is sent again waits for the first
        return CopyWeightsResponse(tinker_path=await _copied(ask))


async def _copied(ask: Ask) -> str:
    body, service = ask.body, ask.service
    assert isinstance(body, CopyWeightsRequest)
    key = ask.header(IDEMPOTENCY_KEY)
    again = f"copy_weights {ask.owner} {key}"
    known = await service.store.answer(again) if key else None
    if known is not None:
        return str(json.loads(known))
    source = await find_checkpoint(service, body.source_path, _lender(ask, body), "source_path")
    made = await _destination(ask, body, source)
    check_room(service.options)
    try:
        await copy_folder(service.options.state / source.folder, service.options.state / made.folder)
    except FileNotFoundError:
        raise NotFound("checkpoint", source.path) from None
    note = AuditRow(
        made.created, ask.owner, "checkpoint.copied", made.run_id, made.path, {"source": source.path}
    )
    kept = [Put(AnswerRow(again, json.dumps(made.path), made.created))] if key else []
    try:
        await service.write(Put(made), Note(note), *kept)
    except Problem:
        service.spawn(service.remove_folder(service.options.state / made.folder))
        raise
    return made.path


def _lender(ask: Ask, body: CopyWeightsRequest) -> str:
    """Whose checkpoints may be read; a lent credential is looked at and forgotten."""
    lent = ask.header(WEIGHTS_ACCESS_TOKEN) or body.weights_access_token
    if not lent:
        return ask.owner
    return lender(ask.service, lent, ask.peer, WEIGHTS_ACCESS_TOKEN)


async def _destination(ask: Ask, body: CopyWeightsRequest, source: CheckpointRow) -> CheckpointRow:
    """The copy to be: in a session's n-th run, or in a run of its own in a project."""
    service = ask.service
    expires = check_ttl(service, body.ttl_seconds)
    limit = service.options.limits.storage_bytes
    used = sum(size for _, _, _, size in await service.store.storage(ask.owner))
    if used + source.size > limit:
        raise Problem(
            400,
            f"your checkpoints take {used} bytes and this copy {source.size} more, the limit is {limit}; "
            "delete some first",
        )
    session_id = ""
    if body.session_id is not None and body.model_seq_id is not None:
        check_number("model_seq_id", body.model_seq_id)
        session = service.world.session(body.session_id, ask.owner)
        session_id, project = session.row.id, session.row.project_id
        run = paths.model_id(session_id, body.model_seq_id)
    elif body.destination_project_id is not None:
        run, project = f"copy-{secrets.token_hex(8)}", body.destination_project_id
    else:
        raise Problem(400, "destination_project_id: give it, or session_id and model_seq_id")
    path = paths.tinker_path(run, source.kind, source.name)
    if await service.store.get(CheckpointRow, path) is not None:
        raise Problem(400, f"model_seq_id: {path!r} exists; choose another number, or delete it first")
    folder = service.folders.checkpoint(run, source.kind, source.name, secrets.randbits(62))
    return replace(
        source, path=path, run_id=run, owner=ask.owner, created=service.clock.time(),
        folder=str(folder.relative_to(service.options.state)), public=False, expires=expires,
        project_id=project, session_id=session_id,
    )  # fmt: skip
