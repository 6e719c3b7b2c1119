"""Answers about models: creating them, passes, steps, saving and loading weights."""

from __future__ import annotations

import asyncio
import ipaddress
import logging

from ..engine.kill_points import reach
from ..types import (
    CreateCustomLossRequest,
    CreateCustomLossResponse,
    CreateModelRequest,
    GetInfoResponse,
    LoadWeightsRequest,
    ModelData,
    UntypedAPIFuture,
)
from ..wire import paths
from ..wire.headers import PROTOBUF
from ..wire.jsonbody import encode
from .asks import Answer, Ask, Reply, answers
from .door import lender
from .line import FARTHEST
from .operations import CreateWork, Work
from .problems import NotFound, Problem
from .records import AuditRow, LossRow, ModelRow, OperationRow
from .store import Note, Put
from .works import check_lora, check_metadata, check_number, check_optimizer, find_checkpoint, make_work
from .world import LiveModel, LiveSession

log = logging.getLogger(__name__)
TICKET = b'{"request_id":"%b","model_id":"%b"}'
LARGEST_LOSS = 1 << 20
"""Bytes of a custom loss: it is held for as long as its session lives."""


def ticket_reply(id: str, model_id: str) -> Answer:
    """What a client gets for accepted work; ids need no escaping when they are ours."""
    if id.isascii() and '"' not in id and "\\" not in id:
        return Reply(200, TICKET % (id.encode(), model_id.encode()))
    return UntypedAPIFuture(request_id=id, model_id=model_id)


# ---- models


@answers("create_model")
async def _create_model(ask: Ask) -> Answer:
    body, service = ask.body, ask.service
    assert isinstance(body, CreateModelRequest)
    check_number("model_seq_id", body.model_seq_id)
    id = paths.model_id(body.session_id, body.model_seq_id)
    if await known(ask, f"{id}:0"):
        return ticket_reply(f"{id}:0", id)
    session = open_session(ask, body.session_id)
    if id in session.models:  # the same came twice, and the first is being written
        return ticket_reply(f"{id}:0", id)
    facts = service.catalogue.get(body.base_model)
    lora = check_lora(body.lora_config, service.options.limits.rank)
    optimizer = check_optimizer(body.optimizer_config)
    check_models(ask)
    check_metadata(ask.service, body.user_metadata)
    now = service.clock.time()
    row = ModelRow(
        id, session.row.id, ask.owner, facts.name, now, now, lora.rank, lora.seed or 0, lora.train_attn,
        lora.train_mlp, lora.train_unembed, optimizer, body.user_metadata,
    )  # fmt: skip
    return await create(ask, session, row, "create_model", CreateWork(lora), now)


async def create(
    ask: Ask, session: LiveSession, row: ModelRow, kind: str, given: Work | None, now: float
) -> Answer:
    """Open a model and put its creation in line as operation 0."""
    service = ask.service
    operation = OperationRow(f"{row.id}:0", row.id, 0, kind, ask.owner, now, stored(ask), "json")
    note = Note(AuditRow(now, ask.owner, "model.created", row.id))
    model = service.open_model(row, session, fresh=True)

    async def write_down() -> None:
        try:
            work = given or await make_work(service, model, kind, ask.body, operation)
            reach("model: before its row")
            await service.write(Put(row), Put(operation), note)
        except BaseException:
            service.world.models.pop(row.id, None)
            session.models.pop(row.id, None)
            service.scheduler_of(model).models.pop(row.id, None)
            raise
        reach("model: after its row")
        service.accept(model, operation, work)
        if service.world.models.get(row.id) is not model:  # its session has ended meanwhile
            service.scheduler_of(model).remove(model, f"model {row.id} was unloaded: {row.note}")

    # Seen through even if whoever asked is gone: a row without its model would be taken for a model.
    await asyncio.shield(asyncio.ensure_future(write_down()))
    log.info("model %s of %s opened: %s, rank %d", row.id, row.owner, row.base_model, row.rank)
    return ticket_reply(operation.id, row.id)


def stored(ask: Ask) -> bytes:
    """The body as it is kept: without credentials of other accounts."""
    if isinstance(ask.body, LoadWeightsRequest) and ask.body.weights_access_token:
        return encode(ask.body.model_copy(update={"weights_access_token": None}))
    return ask.raw


def open_session(ask: Ask, id: str) -> LiveSession:
    """An open session to work in."""
    if ask.service.draining:
        raise Problem(503, "the server is stopping", headers={"retry-after": "5"})
    return ask.service.world.session(id, ask.owner)


def check_models(ask: Ask) -> None:
    """Refuse one more loaded model than an owner may have."""
    limit = ask.service.options.limits.models
    number = sum(model.row.owner == ask.owner for model in ask.service.world.models.values())
    if number >= limit:
        raise Problem(
            400, f"{number} models are loaded, the limit is {limit}; finish sessions you do not need"
        )


@answers("get_info")
async def _get_info(ask: Ask) -> Answer:
    row = await model_row(ask, ask.body.model_id)
    facts = ask.service.catalogue.by_name.get(row.base_model)
    return GetInfoResponse.model_validate(
        {
            "type": "get_info",
            "model_data": ModelData(
                arch=facts.arch if facts else None,
                model_name=row.base_model,
                tokenizer_id=tokenizer_id(ask, row.base_model),
            ),
            "model_id": row.id,
            "optimizer_config": row.optimizer,
            "is_lora": True,
            "lora_rank": row.rank,
            "model_name": row.base_model,
        }
    )


def tokenizer_id(ask: Ask, base_model: str) -> str:
    """Where a client finds the tokenizer: on this machine the model's own folder, else its name.

    Behind a proxy everybody seems to be on this machine: then nobody is taken to be.
    """
    facts = ask.service.catalogue.by_name.get(base_model)
    try:
        near = ipaddress.ip_address(ask.peer).is_loopback and ask.service.options.public_url is None
    except ValueError:
        near = False
    if facts is None or not near or not (facts.folder / "tokenizer.json").is_file():
        return base_model
    return str(facts.folder)


async def model_row(ask: Ask, id: str) -> ModelRow:
    """A model of this owner, alive or not."""
    live = ask.service.world.models.get(id)
    row = live.row if live is not None else await ask.service.store.get(ModelRow, id)
    if row is None or row.owner != ask.owner:
        raise NotFound("model", id)
    return row


# ---- operations


async def known(ask: Ask, id: str) -> str:
    """What kind of operation was accepted before under this id, by the same owner; empty: none."""
    found = ask.service.tickets.get(id) or await ask.service.store.get(OperationRow, id)
    if found is not None and found.owner != ask.owner:
        raise NotFound("request", id)
    return "" if found is None else found.kind


def check_same(ask: Ask, id: str, kind: str) -> None:
    """Refuse a number that another kind of operation has: its result is not what is asked for."""
    if kind != ask.route.name:
        raise Problem(
            400, f"seq_id: {id!r} is a {kind} already; every operation of a model has a number of its own"
        )


async def accept(ask: Ask, model_id: str, seq_id: int | None) -> Answer:
    """Put an operation into its model's line, or find the one with the same number there."""
    service = ask.service
    model = service.world.models.get(model_id)
    if model is None or model.row.owner != ask.owner:
        return await _not_alive(ask, model_id, seq_id)
    number = seq_id or model.line.free_number()
    if number < 0:
        raise Problem(400, f"seq_id: {number} is below 1, the first number of a model")
    if model.line.too_far(number):
        raise Problem(
            400, f"seq_id: {number} is more than {FARTHEST} ahead of {model.line.next}, the next in line"
        )
    id = f"{model.id}:{number}"
    if service.tickets.get(id) is not None:
        return await _again(ask, id, model.id)
    if model.line.too_late(number):
        if kind := await known(ask, id):
            check_same(ask, id, kind)
            return ticket_reply(id, model.id)
        return await _too_late(ask, model, number)
    if service.draining:
        raise Problem(503, "the server is stopping", headers={"retry-after": "5"})
    check_queue(ask)
    now = service.clock.time()
    binary = ask.route.name == "forward_backward" and PROTOBUF.encode() in ask.headers.get(
        b"content-type", b""
    )
    row = OperationRow(
        id, model.id, number, ask.route.name, ask.owner, now, stored(ask), "protobuf" if binary else "json"
    )
    trouble = None
    try:
        work = await make_work(service, model, ask.route.name, ask.body, row)
    except Problem as problem:
        trouble = problem
    # While the work was made, the same may have come twice, the line gone on, the model been unloaded.
    if service.tickets.get(id) is not None:
        return await _again(ask, id, model.id)
    if trouble is not None:
        raise trouble
    if service.world.models.get(model.id) is not model:
        return await _not_alive(ask, model_id, seq_id)
    if model.line.too_late(number):
        return await _too_late(ask, model, number)
    model.row.last_request = now
    service.heard(model.session)
    reach("operation: before its row")
    # In line first, so that what is read while this is written finds it; it is answered when it is written.
    await service.put_down(service.accept(model, row, work), row)
    reach("operation: after its row")
    return ticket_reply(id, model.id)


async def _again(ask: Ask, id: str, model_id: str) -> Answer:
    """The first ticket of an operation that came again, once that is written down."""
    service = ask.service
    ticket = service.tickets.get(id)
    if ticket is not None:
        check_same(ask, id, ticket.kind)
    unwritten = service.unwritten.get(id)
    if unwritten is not None and not await unwritten.wait(service.clock, service.options.times.hold):
        raise Problem(503, f"{id} is not written down yet", headers={"retry-after": "1"})
    return ticket_reply(id, model_id)


def check_queue(ask: Ask) -> None:
    """Refuse more waiting operations than an owner may have."""
    limits = ask.service.options.limits
    count, size = ask.service.queued.get(ask.owner, (0, 0))
    if count >= limits.queued_operations:
        raise Problem(
            429,
            f"{count} of your operations wait, the limit is {limits.queued_operations}",
            headers={"retry-after": "1"},
        )
    if size + len(ask.raw) > limits.queued_bytes:
        raise Problem(
            429,
            f"{size} bytes of your operations wait, the limit is {limits.queued_bytes}",
            headers={"retry-after": "1"},
        )


async def _not_alive(ask: Ask, model_id: str, seq_id: int | None) -> Answer:
    row = await model_row(ask, model_id)
    if seq_id and (kind := await known(ask, f"{model_id}:{seq_id}")):
        check_same(ask, f"{model_id}:{seq_id}", kind)
        return ticket_reply(f"{model_id}:{seq_id}", model_id)
    if row.state == "corrupted":
        raise Problem(400, f"model {model_id!r} is corrupted: {row.note}")
    if row.state == "live" and row.base_model not in ask.service.catalogue.by_name:
        raise Problem(400, f"model {model_id!r} waits: {row.base_model!r} is not served here this time")
    why = row.note or "its session has ended"
    raise Problem(400, f"model {model_id!r} is not loaded: {why}; load a checkpoint into a new model")


async def _too_late(ask: Ask, model: LiveModel, number: int) -> Answer:
    """The line has gone on without it: it gets a ticket that has failed, and is never done."""
    service, now = ask.service, ask.service.clock.time()
    id = f"{model.id}:{number}"
    text = (
        f"operation {number} came too late: {model.id} has gone on without it; send it again as a new one"
    )
    row = OperationRow(
        id, model.id, number, ask.route.name, ask.owner, now, state="failed", error=text, category="user",
        ended=now,
    )  # fmt: skip
    await service.write(Put(row))
    return ticket_reply(id, model.id)


@answers("forward_backward", "forward", "optim_step", "save_weights", "save_weights_for_sampler")
async def _operation(ask: Ask) -> Answer:
    return await accept(ask, ask.body.model_id, ask.body.seq_id)


@answers("save_weights_external")
async def _external(ask: Ask) -> Answer:
    return await accept(ask, ask.body.model_id, ask.body.seq_id)


@answers("unload_model")
async def _unload(ask: Ask) -> Answer:
    model = ask.service.world.models.get(ask.body.model_id)
    if model is None or model.row.owner != ask.owner:
        row = await model_row(ask, ask.body.model_id)
        for each in await ask.service.store.history([row.id]):
            if each.kind == "unload_model" and each.state == "done":
                return ticket_reply(each.id, row.id)
        raise Problem(400, f"model {row.id!r} is not loaded")
    if model.unloading is not None:
        return await _again(ask, model.unloading, model.id)
    return await accept(ask, model.id, None)


# ---- loading


@answers("load_weights")
async def _load(ask: Ask) -> Answer:
    body = ask.body
    assert isinstance(body, LoadWeightsRequest)
    if body.weights_access_token:
        await _lend(ask, body.path, body.weights_access_token)
    if body.model_id is not None:
        return await accept(ask, body.model_id, body.seq_id)
    if body.session_id is None or body.model_seq_id is None:
        raise Problem(400, "model_id: give it, or session_id and model_seq_id to create a model")
    check_number("model_seq_id", body.model_seq_id)
    id = paths.model_id(body.session_id, body.model_seq_id)
    if await known(ask, f"{id}:0"):
        return ticket_reply(f"{id}:0", id)
    session = open_session(ask, body.session_id)
    source = await find_checkpoint(ask.service, body.path, ask.owner)
    if id in session.models:
        return ticket_reply(f"{id}:0", id)
    check_models(ask)
    check_metadata(ask.service, body.user_metadata)
    base = ask.service.catalogue.get(body.base_model or source.base_model)
    optimizer = (
        dict(source.optimizer) if body.optimizer_config is None else check_optimizer(body.optimizer_config)
    )
    now = ask.service.clock.time()
    row = ModelRow(
        id, session.row.id, ask.owner, base.name, now, now, source.rank, 0, source.train_attn,
        source.train_mlp, source.train_unembed, optimizer, body.user_metadata,
    )  # fmt: skip
    return await create(ask, session, row, "load_weights", None, now)


async def _lend(ask: Ask, path: str, token: str) -> None:
    """Another account's credential opens its checkpoint for this one request; it is kept nowhere."""
    owner = lender(ask.service, token, ask.peer, "weights_access_token")
    source = await find_checkpoint(ask.service, path, owner)
    if source.owner != ask.owner and not source.public:
        raise Problem(
            400,
            "weights_access_token: copy the checkpoint into this account first, by copy_weights with it",
        )


# ---- custom losses


@answers("create_custom_loss")
async def _custom_loss(ask: Ask) -> Answer:
    body, service = ask.body, ask.service
    assert isinstance(body, CreateCustomLossRequest)
    check_number("custom_loss_seq_id", body.custom_loss_seq_id)
    id = f"{body.session_id}:loss:{body.custom_loss_seq_id}"
    if await known(ask, id):
        return UntypedAPIFuture(request_id=id)
    session = open_session(ask, body.session_id)
    limits = service.options.limits
    if not service.options.server_losses:
        raise Problem(400, "custom losses run on the client here: this server was started without them")
    if len(session.losses) >= limits.custom_losses:
        raise Problem(
            400,
            f"this session has {len(session.losses)} custom losses, the limit is {limits.custom_losses}",
        )
    if len(ask.raw) > LARGEST_LOSS:
        raise Problem(400, f"graph: a custom loss of {len(ask.raw)} bytes, the limit is {LARGEST_LOSS}")
    if not 1 <= len(body.inputs) <= 16:
        raise Problem(400, f"inputs: {len(body.inputs)} given, between 1 and 16 are allowed")
    now = service.clock.time()
    result = encode(CreateCustomLossResponse(loss_id=id))
    row = OperationRow(
        id,
        "",
        body.custom_loss_seq_id,
        "create_custom_loss",
        ask.owner,
        now,
        state="done",
        result=result,
        ended=now,
    )
    # Known first: whoever asked may leave while it is written, and it is there all the same.
    session.losses[id] = body
    try:
        await service.write(
            Put(LossRow(id, session.row.id, ask.owner, now, body.name, ask.raw.decode())), Put(row)
        )
    except Problem:
        session.losses.pop(id, None)
        raise
    return UntypedAPIFuture(request_id=id)
