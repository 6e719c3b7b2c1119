"""Answers about training runs and checkpoints: listing, changing, copying, downloading."""

from __future__ import annotations

from datetime import timedelta
from email.utils import format_datetime

from ..errors import InvalidArgumentError
from ..types import (
    Checkpoint,
    CheckpointsListResponse,
    CopyWeightsRequest,
    CopyWeightsResponse,
    Cursor,
    ExternalWeightsUrlsResponse,
    TrainingRun,
    TrainingRunsResponse,
    WeightsInfoResponse,
)
from ..wire import paths
from ..wire.headers import IDEMPOTENCY_KEY, WEIGHTS_ACCESS_TOKEN
from .downloads import ARCHIVE, FILES, file_url
from .exchange import FakeResponse, Problem
from .handlers import Answer, Ask, answers
from .state import Model, SavedCheckpoint

_URL_LIFE = timedelta(minutes=15)
_SHORTEST_TTL = 3600
_LONGEST_TTL = 10 * 366 * 24 * 3600


# ---- training runs


@answers("list_training_runs")
def _list_runs(ask: Ask) -> Answer:
    query, world = ask.query, ask.service.world
    runs = [
        model
        for model in world.models.values()
        if model.owner == ask.owner
        and query.project_id in (None, world.sessions[model.session_id].project_id)
    ][::-1]
    page = runs[query.offset :][: query.limit]
    return TrainingRunsResponse(
        training_runs=[_run(ask, model) for model in page],
        cursor=Cursor(offset=query.offset, limit=query.limit, total_count=len(runs)),
    )


@answers("get_training_run")
def _get_run(ask: Ask) -> Answer:
    return _run(ask, ask.service.world.model(ask.params["training_run_id"], ask.owner))


def _run(ask: Ask, model: Model) -> TrainingRun:
    saved = _saved_of(ask, model.id)
    last = {
        kind: next((one for one in saved if one.kind == kind), None) for kind in ("training", "sampler")
    }
    metadata = model.user_metadata
    return TrainingRun(
        training_run_id=model.id,
        base_model=model.base_model,
        model_owner=model.owner,
        is_lora=True,
        lora_rank=model.lora.rank,
        last_request_time=model.last_request,
        last_checkpoint=_listed(last["training"]),
        last_sampler_checkpoint=_listed(last["sampler"]),
        user_metadata=None if metadata is None else {key: str(value) for key, value in metadata.items()},
    )


def _listed(saved: SavedCheckpoint | None) -> Checkpoint | None:
    return None if saved is None else saved.listed()


def _saved_of(ask: Ask, run: str) -> list[SavedCheckpoint]:
    owned = ask.service.world.checkpoints_of(ask.owner, ask.service.clock.now())
    return [each for each in owned if each.run == run]


# ---- lists of checkpoints


@answers("list_checkpoints", "list_model_checkpoints")
def _list(ask: Ask) -> Answer:
    run = ask.params["training_run_id"]
    saved = _saved_of(ask, run)
    if not saved:
        ask.service.world.model(run, ask.owner)
    return CheckpointsListResponse(checkpoints=[each.listed() for each in saved])


@answers("list_user_checkpoints")
def _list_all(ask: Ask) -> Answer:
    saved = ask.service.world.checkpoints_of(ask.owner, ask.service.clock.now())
    page = saved[ask.query.offset :][: ask.query.limit]
    return CheckpointsListResponse(
        checkpoints=[each.listed() for each in page],
        cursor=Cursor(offset=ask.query.offset, limit=ask.query.limit, total_count=len(saved)),
    )


# ---- one checkpoint


def _path(ask: Ask) -> str:
    path = f"tinker://{ask.params['training_run_id']}/{ask.params['checkpoint_id']}"
    try:
        return paths.parse(path).tinker_path
    except InvalidArgumentError as problem:
        raise Problem(400, str(problem)) from None


def _checkpoint(ask: Ask, *, own: bool = True) -> SavedCheckpoint:
    return ask.service.world.checkpoint(_path(ask), ask.owner, ask.service.clock.now(), own=own)


@answers("delete_checkpoint")
def _delete(ask: Ask) -> Answer:
    saved = _checkpoint(ask)
    del ask.service.world.checkpoints[saved.path]
    ask.service.note_event("checkpoint.deleted", model_id=saved.run, tinker_path=saved.path)
    return {}


@answers("publish_checkpoint", "unpublish_checkpoint")
def _publish(ask: Ask) -> Answer:
    saved = _checkpoint(ask)
    public = ask.route.name == "publish_checkpoint"
    if saved.public is public:
        raise Problem(409, f"{saved.path} is already {'public' if public else 'private'}")
    saved.public = public
    event = "checkpoint.published" if public else "checkpoint.unpublished"
    ask.service.note_event(event, model_id=saved.run, tinker_path=saved.path)
    return {}


@answers("set_checkpoint_ttl")
def _set_ttl(ask: Ask) -> Answer:
    seconds = ask.body.ttl_seconds
    if seconds is not None and not _SHORTEST_TTL <= seconds <= _LONGEST_TTL:
        raise Problem(400, f"ttl_seconds: {seconds} is outside {_SHORTEST_TTL} to {_LONGEST_TTL}")
    _checkpoint(ask).expire_after(seconds, ask.service.clock.now())
    return {}


@answers("weights_info")
def _info(ask: Ask) -> Answer:
    try:
        path = paths.parse(ask.body.tinker_path).tinker_path
    except InvalidArgumentError as problem:
        raise Problem(400, str(problem)) from None
    saved = ask.service.world.checkpoint(path, ask.owner, ask.service.clock.now())
    return WeightsInfoResponse(
        base_model=saved.base_model,
        optimizer_config=saved.optimizer_config,
        is_lora=True,
        lora_rank=saved.lora.rank,
        train_unembed=saved.lora.train_unembed,
        train_mlp=saved.lora.train_mlp,
        train_attn=saved.lora.train_attn,
    )


@answers("copy_weights")
def _copy(ask: Ask) -> Answer:
    body, service = ask.body, ask.service
    assert isinstance(body, CopyWeightsRequest)
    key = (ask.owner, ask.header(IDEMPOTENCY_KEY) or "")
    known = service.copy_keys.get(key) if key[1] else None
    if known is not None:
        return CopyWeightsResponse(tinker_path=known)
    lent = ask.header(WEIGHTS_ACCESS_TOKEN) or body.weights_access_token
    owner = service.owner_of(lent) if lent else ask.owner
    if owner is None:
        raise Problem(403, f"{WEIGHTS_ACCESS_TOKEN}: not accepted")
    now = service.clock.now()
    source = service.world.checkpoint(body.source_path, owner, now)
    copied = SavedCheckpoint(
        _destination(ask, body), source.kind, source.name, ask.owner, source.base_model, source.lora,
        source.optimizer_config, source.steps, now, source.user_metadata,
        project_id=body.destination_project_id,
    )  # fmt: skip
    copied.expire_after(body.ttl_seconds, now)
    service.world.checkpoints[copied.path] = copied
    service.copy_keys[key] = copied.path
    service.note_event("checkpoint.copied", tinker_path=copied.path, source=source.path)
    return CopyWeightsResponse(tinker_path=copied.path)


def _destination(ask: Ask, body: CopyWeightsRequest) -> str:
    if body.session_id is not None and body.model_seq_id is not None:
        session = ask.service.world.session(body.session_id, ask.owner)
        return paths.model_id(session.id, body.model_seq_id)
    if body.destination_project_id is None:
        raise Problem(400, "destination_project_id: give it, or session_id and model_seq_id")
    return f"copy-{ask.service.next_number()}"


# ---- downloads


@answers("external_weights_urls")
def _urls(ask: Ask) -> Answer:
    saved = _checkpoint(ask, own=False)
    if saved.kind != "external":
        raise Problem(400, f"{saved.path} is not an external checkpoint")
    host = ask.header("host") or "localhost"
    return ExternalWeightsUrlsResponse(
        urls={name: file_url(host, saved, name) for name in FILES},
        expires=ask.service.clock.now() + _URL_LIFE,
    )


@answers("checkpoint_archive")
def _archive(ask: Ask) -> Answer:
    saved = _checkpoint(ask, own=False)
    expires = format_datetime(ask.service.clock.now() + _URL_LIFE, usegmt=True)
    location = file_url(ask.header("host") or "localhost", saved, ARCHIVE)
    return FakeResponse(302, {"location": location, "expires": expires})
