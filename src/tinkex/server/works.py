"""From a request to the work it asks for: checked against what is served, owned and saved.

The same functions read a request when it arrives and its stored body after a restart.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError
from ..types import (
    AdamParams,
    LoadWeightsRequest,
    LoraConfig,
    OptimizerConfig,
    OptimStepRequest,
    SaveWeightsExternalRequest,
    SaveWeightsForSamplerRequest,
    SaveWeightsRequest,
)
from ..wire import paths
from ..wire.bodies import ForwardBackwardBody, ForwardBody
from ..wire.jsonbody import decode, encode
from ..wire.passes import PassRequest, decode_request
from ..wire.routes import route
from .admission import admit_pass
from .disk import check_room
from .operations import (
    CreateWork,
    LoadWork,
    PassWork,
    SaveSamplerWork,
    SaveWork,
    StepWork,
    UnloadWork,
    Work,
)
from .options import NO_LIMITS, Limits
from .problems import NotFound, Problem
from .records import CheckpointKind, CheckpointRow, OperationRow, SamplerRow
from .world import LiveModel, LiveSession

if TYPE_CHECKING:
    from .service import Service

OPTIMIZERS = ("adamw",)
HIGHEST_NUMBER = (1 << 31) - 1
"""Of a client's models, sampling sessions and losses."""
OFF_LOOP = 64 << 10
"""Passes from this size on are checked in a thread."""


def read_operation(row: OperationRow) -> Any:
    """A stored operation's request."""
    if row.content == "protobuf":
        return decode_request(row.body)
    return decode(route(row.kind).server_request, row.body)


async def make_work(
    service: Service, model: LiveModel, kind: str, body: Any, row: OperationRow, *, again: bool = False
) -> Work | PassWork:
    """What an operation does; what is wrong with it is a `Problem`.

    One that was let in before (`again`) is not held against limits and room: those of its time held for it.
    """
    if kind in ("forward_backward", "forward"):
        if len(row.body) < OFF_LOOP:
            return _pass(service, model, body, again)
        return await asyncio.to_thread(_pass, service, model, body, again)
    if kind == "optim_step":
        return _step(body)
    if kind == "create_model":
        return CreateWork(check_lora(body.lora_config, _limits(service, again).rank))
    if kind == "load_weights":
        source = await find_checkpoint(service, body.path, row.owner)
        return _load(service, model, body, source, again)
    if kind == "save_weights_for_sampler":
        return await _save_sampler(service, model, body, row, again)
    if kind in ("save_weights", "save_weights_external"):
        return await _save(service, model, body, row, again)
    if kind == "unload_model":
        return UnloadWork()
    raise AssertionError(f"{kind} is no operation")


def _limits(service: Service, again: bool) -> Limits:
    return NO_LIMITS if again else service.options.limits


# ---- passes and steps


def pass_of(body: Any) -> PassRequest:
    """A pass in whichever form it came."""
    if isinstance(body, PassRequest):
        return body
    forward = isinstance(body, ForwardBody)
    assert isinstance(body, ForwardBackwardBody | ForwardBody)
    given = body.forward_input if isinstance(body, ForwardBody) else body.forward_backward_input
    return PassRequest(
        body.model_id, body.seq_id or 0, given.data, given.loss_fn, given.loss_fn_config, forward
    )


def _pass(service: Service, model: LiveModel, body: Any, again: bool) -> PassWork:
    facts, limits = service.facts_of(model.row.base_model), _limits(service, again)
    return PassWork(admit_pass(pass_of(body), model.id, facts, limits, model.session.losses))


def _step(body: Any) -> StepWork:
    assert isinstance(body, OptimStepRequest)
    params = body.optim_params
    if not isinstance(params, AdamParams):
        kind = getattr(params, "type", "?")
        raise Problem(400, f"optimizer_params.type: {kind!r} is not supported here; use AdamParams (adamw)")
    values = {name: float(getattr(params, name)) for name in params.__struct_fields__}
    for name in ("learning_rate", "eps", "weight_decay", "grad_clip_norm"):
        if values[name] < 0:
            raise Problem(400, f"adam_params.{name}: {values[name]} is below 0")
    for name in ("beta1", "beta2"):
        if not 0 <= values[name] < 1:
            raise Problem(400, f"adam_params.{name}: {values[name]} is not at least 0 and below 1")
    return StepWork(values)


def check_number(field: str, number: int) -> None:
    """Refuse a client's number of a model, sampling session or loss that no client counts to."""
    if not 0 <= number <= HIGHEST_NUMBER:
        raise Problem(400, f"{field}: {number} is not between 0 and {HIGHEST_NUMBER}")


def check_free(service: Service, session: LiveSession, id: str, number: int) -> None:
    """Refuse a number that a sampling session of this session has, or will have."""
    if id in service.world.samplers or id in session.freezing or id in session.opening:
        raise Problem(400, f"sampling_session_seq_id: {number} is in use; take another number")


def check_metadata(service: Service, *given: object) -> None:
    """Refuse tags, metadata and names that together are no longer a few words about something."""
    size, limit = len(encode(given)), service.options.limits.metadata_bytes
    if size > limit:
        raise Problem(400, f"user_metadata: {size} bytes with tags and names, the limit is {limit}")


def check_samplers(service: Service, owner: str) -> None:
    """Refuse one more sampling session than an owner may have open."""
    limit = service.options.limits.samplers
    number = sum(
        len(session.samplers) for session in service.world.sessions.values() if session.row.owner == owner
    )
    if number >= limit:
        raise Problem(
            400,
            f"{number} sampling sessions are open, the limit is {limit}; finish sessions you do not need",
        )


def check_optimizer(config: OptimizerConfig) -> dict[str, Any]:
    """An optimizer that is offered here."""
    if config.type not in OPTIMIZERS:
        raise Problem(
            400,
            f"optimizer_config.type: {config.type!r} is not supported here; use {', '.join(OPTIMIZERS)}",
        )
    return {"type": config.type}


def check_lora(config: LoraConfig | None, most: int) -> LoraConfig:
    """A LoRA configuration with a rank that is allowed and a seed of its own."""
    config = config or LoraConfig(rank=32)
    if not 1 <= config.rank <= most:
        raise Problem(400, f"lora_config.rank: {config.rank} is not between 1 and {most}")
    if not (config.train_attn or config.train_mlp or config.train_unembed):
        raise Problem(
            400, "lora_config: train_attn, train_mlp and train_unembed are all off: nothing to train"
        )
    seed = secrets.randbits(31) if config.seed is None else config.seed % (1 << 63)
    return config.model_copy(update={"seed": seed})


# ---- weights


async def find_checkpoint(
    service: Service, path: str, owner: str, field: str = "path", *, own: bool = False
) -> CheckpointRow:
    """A checkpoint this owner may read (or, with `own`, change); expired ones are gone."""
    try:
        known = paths.parse(path)
    except (InvalidArgumentError, ValueError) as problem:
        raise Problem(400, f"{field}: {problem}") from None
    found = await service.store.get(CheckpointRow, known.tinker_path)
    expired = found is not None and found.expires is not None and found.expires <= service.clock.time()
    if found is None or expired or (found.owner != owner and (own or not found.public)):
        raise NotFound("checkpoint", path)
    return found


def _load(
    service: Service, model: LiveModel, body: LoadWeightsRequest, source: CheckpointRow, again: bool
) -> LoadWork:
    if source.kind != "training":
        raise Problem(
            400,
            f"path: {source.path!r} is a {source.kind} checkpoint; only training checkpoints can be loaded",
        )
    facts, wanted = service.facts_of(model.row.base_model), service.facts_of(source.base_model)
    if facts.folder != wanted.folder:
        raise Problem(
            400,
            f"path: {source.path!r} was trained from {source.base_model!r}, the model is {facts.name!r}",
        )
    limit = _limits(service, again).rank
    if source.rank > limit:
        raise Problem(400, f"path: {source.path!r} has rank {source.rank}, the limit is {limit}")
    folder = service.options.state / source.folder
    return LoadWork(body.path, source, str(folder), bool(body.optimizer))


def check_ttl(service: Service, seconds: int | None, *, again: bool = False) -> float | None:
    """When something saved now would expire."""
    if seconds is None:
        return None
    limits = _limits(service, again)
    if not limits.shortest_ttl <= seconds <= limits.longest_ttl:
        raise Problem(
            400, f"ttl_seconds: {seconds} is not between {limits.shortest_ttl} and {limits.longest_ttl}"
        )
    return service.clock.time() + seconds


async def _checkpoint(
    service: Service,
    model: LiveModel,
    row: OperationRow,
    kind: CheckpointKind,
    name: str,
    again: bool,
    *,
    ttl: int | None,
    metadata: dict[str, str] | None = None,
) -> tuple[CheckpointRow, str]:
    """The row of a checkpoint to be, and the folder its files go to."""
    try:
        path = paths.tinker_path(model.id, kind, name)
    except InvalidArgumentError as problem:
        raise Problem(400, f"path: {problem}") from None
    if not again:
        limit = service.options.limits.storage_bytes
        used = sum(size for _, _, _, size in await service.store.storage(row.owner))
        if used >= limit:
            raise Problem(
                400, f"your checkpoints take {used} bytes, the limit is {limit}; delete some first"
            )
        check_room(service.options)
    try:
        folder = service.folders.checkpoint(model.id, kind, name, row.seq)
    except ValueError as problem:
        raise Problem(400, f"path: {problem}") from None
    before = await service.store.get(CheckpointRow, path)
    if before is not None:
        model.saved.setdefault(path, before.folder)
    held, session = model.row, model.session.row
    expires = check_ttl(service, ttl, again=again)
    if not again:
        check_metadata(service, metadata)
    made = CheckpointRow(
        path, model.id, kind, name, row.owner, held.base_model, held.rank, service.clock.time(), 0,
        str(folder.relative_to(service.options.state)), expires=expires, user_metadata=metadata,
        project_id=session.project_id, session_id=session.id,
    )  # fmt: skip
    return made, str(folder)


async def _save(service: Service, model: LiveModel, body: Any, row: OperationRow, again: bool) -> SaveWork:
    if isinstance(body, SaveWeightsExternalRequest):
        if body.age_encryption_recipients:
            raise Problem(
                400, "age_encryption_recipients: this server writes no encrypted exports; leave it out"
            )
        ttl = body.ttl_seconds
        made, folder = await _checkpoint(service, model, row, "external", body.path, again, ttl=ttl)
        return SaveWork(made, folder)
    assert isinstance(body, SaveWeightsRequest)
    name = body.path or f"step-{row.seq}"
    made, folder = await _checkpoint(
        service, model, row, "training", name, again, ttl=body.ttl_seconds, metadata=body.user_metadata
    )
    if not body.overwrite and not again:
        known = await service.store.get(CheckpointRow, made.path)
        if made.path in model.saving or (known is not None and known.folder != made.folder):
            raise Problem(
                400, f"path: {made.path!r} exists; save with overwrite=true, or under another name"
            )
    return SaveWork(made, folder)


async def _save_sampler(
    service: Service, model: LiveModel, body: SaveWeightsForSamplerRequest, row: OperationRow, again: bool
) -> SaveSamplerWork:
    if body.path is not None:
        ttl, metadata = body.ttl_seconds, body.user_metadata
        made, folder = await _checkpoint(
            service, model, row, "sampler", body.path, again, ttl=ttl, metadata=metadata
        )
        return SaveSamplerWork(made, folder)
    if body.sampling_session_seq_id is None:
        raise Problem(400, "path: give a name, or sampling_session_seq_id for an unnamed sampler")
    check_number("sampling_session_seq_id", body.sampling_session_seq_id)
    check_samplers(service, row.owner)
    session = model.session.row
    id = paths.sampling_session_id(session.id, body.sampling_session_seq_id)
    check_free(service, model.session, id, body.sampling_session_seq_id)
    sampler = SamplerRow(
        id, session.id, row.owner, model.row.base_model, service.clock.time(), model_id=model.id
    )
    return SaveSamplerWork(sampler=sampler)
