"""Answers about models: creating them, passes, steps, saving and loading weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import InvalidArgumentError
from ..types import (
    CreateCustomLossRequest,
    CreateCustomLossResponse,
    CreateModelRequest,
    CreateModelResponse,
    GetInfoResponse,
    LoadWeightsRequest,
    LoadWeightsResponse,
    LoraConfig,
    ModelData,
    OptimizerConfig,
    OptimStepRequest,
    OptimStepResponse,
    SaveWeightsExternalResponseInternal,
    SaveWeightsForSamplerRequest,
    SaveWeightsForSamplerResponseInternal,
    SaveWeightsResponse,
    UnloadModelResponse,
)
from ..types.losses import check_loss
from ..wire import paths
from ..wire.bodies import ForwardBackwardBody, ForwardBody
from ..wire.passes import PassRequest
from .answers_sampling import open_sampler
from .exchange import Problem
from .fake_model import run_pass
from .handlers import Answer, Ask, answers, ticket_reply
from .state import Model, SavedCheckpoint, Session
from .tickets import Ticket, WorkFailed
from .training_line import TrainingLine

_DEFAULT_RANK = 32


# ---- models


@answers("create_model")
def _create_model(ask: Ask) -> Answer:
    body = ask.body
    assert isinstance(body, CreateModelRequest)
    session = ask.service.world.session(body.session_id, ask.owner)
    id = paths.model_id(session.id, body.model_seq_id)
    known = ask.service.tickets.get(f"{id}:0")
    if known is not None:
        return ticket_reply(known)
    ask.service.check_base_model(body.base_model)
    lora = body.lora_config or LoraConfig(rank=_DEFAULT_RANK)
    model = _new_model(ask, session, id, body.base_model, lora, body.optimizer_config, body.user_metadata)
    ticket = _enter(ask, model, 0, lambda: CreateModelResponse(model_id=model.id))
    return ticket_reply(ticket)


def _new_model(
    ask: Ask,
    session: Session,
    id: str,
    base_model: str,
    lora: LoraConfig,
    optimizer_config: OptimizerConfig,
    user_metadata: dict[str, Any] | None,
) -> Model:
    service = ask.service
    line = TrainingLine(lambda action: service.later(service.skip_after, action))
    now = service.clock.now()
    model = Model(id, session.id, ask.owner, base_model, lora, optimizer_config, user_metadata, line, now)
    service.world.models[id] = model
    session.models.append(id)
    service.note_event("model.created", model_id=id)
    return model


@answers("get_info")
def _get_info(ask: Ask) -> Answer:
    model = ask.service.world.model(ask.body.model_id, ask.owner)
    return GetInfoResponse(
        type="get_info",
        model_data=ModelData(arch="fake", model_name=model.base_model, tokenizer_id=model.base_model),
        model_id=model.id,
        optimizer_config=model.optimizer_config,
        is_lora=True,
        lora_rank=model.lora.rank,
        model_name=model.base_model,
    )


@answers("unload_model")
def _unload(ask: Ask) -> Answer:
    model = ask.service.world.model(ask.body.model_id, ask.owner)
    ticket = ask.service.open_ticket(f"{model.id}:unload", "unload_model", ask)

    def work() -> UnloadModelResponse:
        model.unloaded = True
        return UnloadModelResponse(model_id=model.id, type="unload_model")

    ask.service.run(ticket, work)
    return ticket_reply(ticket)


# ---- a place in the line


def _enter(ask: Ask, model: Model, number: int, work: Callable[[], Any]) -> Ticket:
    ticket = ask.service.open_ticket(f"{model.id}:{number}", ask.route.name, ask)
    ticket.model_id = model.id
    if model.line.too_late(number):
        ticket.fail(f"operation {number} came too late: {model.id} has gone on without it", "user")
    else:
        model.line.enter(number, lambda ended: ask.service.run(ticket, work, ended))
    return ticket


def _accept(ask: Ask, model_id: str, seq_id: int | None, work: Callable[[Model], Any]) -> Answer:
    """Put an operation into its model's line, or find the one with the same number there."""
    service = ask.service
    model = service.world.model(model_id, ask.owner)
    number = seq_id or model.line.free_number()
    model.line.arrived.append(number)
    known = service.tickets.get(f"{model.id}:{number}")
    if known is not None:
        return ticket_reply(known)
    service.world.session(model.session_id, ask.owner)
    model.last_request = service.clock.now()

    def ready() -> Any:
        if model.unloaded:
            raise WorkFailed(f"model {model.id!r} is not loaded")
        return work(model)

    return ticket_reply(_enter(ask, model, number, ready))


# ---- passes and steps


@answers("forward_backward", "forward")
def _pass(ask: Ask) -> Answer:
    body = ask.body
    if isinstance(body, ForwardBackwardBody):
        held = body.forward_backward_input
    elif isinstance(body, ForwardBody):
        held = body.forward_input
    else:
        held = None
    if held is not None:
        config = held.loss_fn_config
        only = isinstance(body, ForwardBody)
        body = PassRequest(body.model_id, body.seq_id or 0, held.data, held.loss_fn, config, only)
    assert isinstance(body, PassRequest)
    try:
        check_loss(body.loss_fn, body.loss_fn_config)
    except InvalidArgumentError as problem:
        raise Problem(400, str(problem)) from None
    if body.loss_fn == "custom":
        _check_custom_loss(ask, body)

    def work(model: Model) -> Any:
        made = run_pass(body, model.steps)
        if not body.forward_only:
            model.passes += 1
            model.tokens += int(made.metrics["tokens:sum"])
        return made

    return _accept(ask, body.model_id, body.seq_id, work)


def _check_custom_loss(ask: Ask, body: PassRequest) -> None:
    loss_id = (body.loss_fn_config or {}).get("loss_id")
    model = ask.service.world.model(body.model_id, ask.owner)
    if loss_id not in ask.service.world.sessions[model.session_id].losses:
        raise Problem(400, f"loss_fn_config['loss_id']: no custom loss {loss_id!r} in this session")


@answers("optim_step")
def _optim_step(ask: Ask) -> Answer:
    body = ask.body
    assert isinstance(body, OptimStepRequest)

    def work(model: Model) -> OptimStepResponse:
        model.steps += 1
        passes, model.passes = model.passes, 0
        rate = float(getattr(body.optim_params, "learning_rate", 0.0))
        return OptimStepResponse(
            metrics={"step": float(model.steps), "passes": float(passes), "learning_rate": rate}
        )

    return _accept(ask, body.model_id, body.seq_id, work)


@answers("create_custom_loss")
def _create_custom_loss(ask: Ask) -> Answer:
    body = ask.body
    assert isinstance(body, CreateCustomLossRequest)
    session = ask.service.world.session(body.session_id, ask.owner)
    loss_id = f"{session.id}:loss:{body.custom_loss_seq_id}"
    known = ask.service.tickets.get(loss_id)
    if known is not None:
        return ticket_reply(known)
    ticket = ask.service.open_ticket(loss_id, "create_custom_loss", ask)

    def work() -> CreateCustomLossResponse:
        session.losses[loss_id] = body
        return CreateCustomLossResponse(loss_id=loss_id)

    ask.service.run(ticket, work)
    return ticket_reply(ticket)


# ---- weights


def _save(ask: Ask, model: Model, kind: Any, name: str, *, overwrite: bool = True) -> SavedCheckpoint:
    try:
        path = paths.tinker_path(model.id, kind, name)
    except InvalidArgumentError as problem:
        raise WorkFailed(str(problem)) from None
    world, now = ask.service.world, ask.service.clock.now()
    if path in world.checkpoints and not overwrite:
        raise WorkFailed(f"checkpoint {path!r} exists; save with overwrite=True to replace it")
    saved = SavedCheckpoint(
        model.id, kind, name, model.owner, model.base_model, model.lora, model.optimizer_config,
        model.steps, now, getattr(ask.body, "user_metadata", None),
        project_id=world.sessions[model.session_id].project_id,
    )  # fmt: skip
    saved.expire_after(ask.body.ttl_seconds, now)
    world.checkpoints.pop(path, None)
    world.checkpoints[path] = saved
    ask.service.note_event("checkpoint.created", model_id=model.id, tinker_path=path)
    return saved


@answers("save_weights")
def _save_weights(ask: Ask) -> Answer:
    body = ask.body

    def work(model: Model) -> SaveWeightsResponse:
        name = body.path or f"step-{model.steps}-{body.seq_id}"
        saved = _save(ask, model, "training", name, overwrite=body.overwrite)
        return SaveWeightsResponse(path=saved.path, type="save_weights")

    return _accept(ask, body.model_id, body.seq_id, work)


@answers("save_weights_for_sampler")
def _save_for_sampler(ask: Ask) -> Answer:
    body = ask.body
    assert isinstance(body, SaveWeightsForSamplerRequest)
    if body.path is None and body.sampling_session_seq_id is None:
        raise Problem(400, "path: give a name, or sampling_session_seq_id for an unnamed sampler")

    def work(model: Model) -> SaveWeightsForSamplerResponseInternal:
        if body.path is not None:
            saved = _save(ask, model, "sampler", body.path)
            return SaveWeightsForSamplerResponseInternal(path=saved.path, type="save_weights_for_sampler")
        session = ask.service.world.sessions[model.session_id]
        assert body.sampling_session_seq_id is not None
        sampler = open_sampler(
            ask, session, body.sampling_session_seq_id, model.base_model, None, model.steps
        )
        return SaveWeightsForSamplerResponseInternal(
            sampling_session_id=sampler.id, type="save_weights_for_sampler"
        )

    return _accept(ask, body.model_id, body.seq_id, work)


@answers("save_weights_external")
def _save_external(ask: Ask) -> Answer:
    body = ask.body

    def work(model: Model) -> SaveWeightsExternalResponseInternal:
        saved = _save(ask, model, "external", body.path)
        return SaveWeightsExternalResponseInternal(
            path=saved.path, size_bytes=saved.size, type="save_weights_external"
        )

    return _accept(ask, body.model_id, body.seq_id, work)


@answers("load_weights")
def _load_weights(ask: Ask) -> Answer:
    body = ask.body
    assert isinstance(body, LoadWeightsRequest)
    if body.model_id is None:
        return _create_by_loading(ask, body)

    def work(model: Model) -> LoadWeightsResponse:
        return _load(ask, body, model)

    return _accept(ask, body.model_id, body.seq_id, work)


def _create_by_loading(ask: Ask, body: LoadWeightsRequest) -> Answer:
    if body.session_id is None or body.model_seq_id is None:
        raise Problem(400, "model_id: give it, or session_id and model_seq_id to create a model")
    session = ask.service.world.session(body.session_id, ask.owner)
    id = paths.model_id(session.id, body.model_seq_id)
    known = ask.service.tickets.get(f"{id}:0")
    if known is not None:
        return ticket_reply(known)
    saved = _readable(ask, body)
    model = _new_model(
        ask, session, id, body.base_model or saved.base_model, saved.lora,
        body.optimizer_config or saved.optimizer_config, body.user_metadata,
    )  # fmt: skip
    ticket = _enter(ask, model, 0, lambda: _load(ask, body, model))
    return ticket_reply(ticket)


def _readable(ask: Ask, body: LoadWeightsRequest) -> SavedCheckpoint:
    """The checkpoint to load: one's own, a public one, or one whose owner lent a credential."""
    service = ask.service
    owner = ask.owner
    if body.weights_access_token:
        lender = service.owner_of(body.weights_access_token)
        if lender is None:
            raise Problem(403, "weights_access_token: not accepted")
        owner = lender
    return service.world.checkpoint(body.path, owner, service.clock.now())


def _load(ask: Ask, body: LoadWeightsRequest, model: Model) -> LoadWeightsResponse:
    try:
        saved = _readable(ask, body)
    except Problem as problem:
        raise WorkFailed(problem.detail) from None
    if saved.kind != "training":
        raise WorkFailed(f"{body.path}: only training checkpoints can be loaded")
    model.steps, model.passes = saved.steps, 0
    return LoadWeightsResponse(path=body.path, model_id=model.id, type="load_weights")
