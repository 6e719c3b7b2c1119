"""Answers to those who wait for results: held until there is one, then 408; never a 5xx for failed work."""

from __future__ import annotations

from ..types import (
    FutureFailed,
    FutureFinished,
    FuturesRetrieveRequest,
    FuturesRetrieveResponse,
    RequestFailedResponse,
    TryAgainResponse,
)
from ..wire.bodies import CompleteMetadataResponse
from ..wire.headers import PROTOBUF
from .asks import JSON_TYPE, Answer, Ask, Reply, answers, json_reply
from .problems import NotFound, Problem
from .records import ModelRow, OperationRow, SamplerRow
from .service import Service
from .store import Finish
from .tickets import Ticket
from .world import loose_name

LARGE = 1_000_000
"""Results of so many bytes are announced before they are sent, to clients that allow it."""
_BINARY = [(b"content-type", PROTOBUF.encode())]
_PLAIN = [JSON_TYPE]
_PROTOBUF = PROTOBUF.encode()


@answers("retrieve_future")
async def _retrieve(ask: Ask) -> Answer:
    service, id = ask.service, ask.body.request_id
    ticket = service.tickets.get(id)
    if ticket is None:
        ticket = await _stored(ask, id)
    if ticket.owner != ask.owner:
        raise NotFound("request", id)
    if ticket.state == "pending":
        await ticket.bell.wait(service.clock, service.options.times.hold)
        if ticket.state == "pending":
            reason = _reason(ask, ticket)
            state = "paused_capacity" if reason else "active"
            again = TryAgainResponse.model_validate(
                {"request_id": id, "queue_state": state, "queue_state_reason": reason or None}
            )
            return json_reply(again, 408)
    return _ended(ask, ticket)


def _reason(ask: Ask, ticket: Ticket) -> str:
    """Why it takes so long, for people."""
    service = ask.service
    if service.trouble.at("store"):
        return service.trouble.at("store")
    model = service.world.models.get(ticket.id.rpartition(":")[0])
    if model is not None:
        return service.scheduler_of(model).queue_reason(model)
    sampler = service.world.samplers.get(ticket.id.rpartition(":")[0])
    if sampler is not None:
        return service.desk_of(sampler.row.base_model).room.reason
    return ""


async def _stored(ask: Ask, id: str) -> Ticket:
    """A ticket from the store; a sample that is not at hand is lost, anything else was never there."""
    row = await ask.service.store.get(OperationRow, id)
    if row is not None:
        if row.state == "queued" and row.owner == ask.owner:
            await _abandon(ask, row)
        ticket = Ticket(id, row.kind, row.owner)
        if row.state == "failed":
            ticket.failed(row.error, row.category, row.ended or 0.0)
        elif row.state == "done":
            ticket.done(row.result, row.form, row.ended or 0.0)
        if row.state == "done" and not row.result:
            raise Problem(410, f"the result of {id!r} is no longer kept")
        return ticket
    session = id.rpartition(":")[0]
    live = ask.service.world.samplers.get(session)
    owner = live.row.owner if live is not None else None
    if owner is None:
        stored = await ask.service.store.get(SamplerRow, session)
        owner = None if stored is None else stored.owner
    if owner == ask.owner or session.startswith(loose_name(ask.owner)):
        ask.service.samples.remove([id])
        raise Problem(410, f"sample {id!r} is no longer known; ask for it again")
    raise NotFound("request", id)


async def _abandon(ask: Ask, row: OperationRow) -> None:
    """Work the server died over after its model was unloaded is begun by no other server: it has failed."""
    model = await ask.service.store.get(ModelRow, row.model_id)
    if model is not None and model.state != "live":
        row.state, row.category, row.ended = "failed", "server", ask.service.clock.time()
        row.error = f"the server ended before this did, and its model is gone: {model.note}"
        await ask.service.write(
            Finish(row.id, "failed", row.ended, model.id, -1, error=row.error, category=row.category)
        )


def _ended(ask: Ask, ticket: Ticket) -> Answer:
    if ticket.state == "lost":
        raise Problem(410, f"request {ticket.id!r} is no longer known")
    if ticket.state == "failed":
        _told(ask.service, ticket)
        return RequestFailedResponse.model_validate({"error": ticket.error, "category": ticket.category})
    binary = ticket.form != "json" and _PROTOBUF in ask.headers.get(b"accept", b"")
    body = ticket.written(binary)
    if len(body) >= LARGE and ask.body.allow_metadata_only:
        return CompleteMetadataResponse(response_payload_size=len(body))
    _told(ask.service, ticket)
    return Reply(200, body, _BINARY if binary else _PLAIN)


def _told(service: Service, ticket: Ticket) -> None:
    """A result is on its way: that of an operation is in the store too, a sample's only here."""
    if ticket.kind != "asample":
        if ticket.id not in service.unwritten:
            service.tickets.drop(ticket.id)
        return
    service.tickets.told(ticket)
    service.samples.remove([ticket.id])


@answers("retrieve_futures")
async def _retrieve_many(ask: Ask) -> Answer:
    body, service = ask.body, ask.service
    assert isinstance(body, FuturesRetrieveRequest)
    id = body.target.sampling_session_id
    sampler = service.world.samplers.get(id)
    if sampler is None or sampler.row.owner != ask.owner:
        raise NotFound("sampling session", id)
    if sampler.session is not None:
        service.heard(sampler.session)
    retrieved = [each for each in body.retrieved_request_ids if each.startswith(f"{id}:")]
    service.samples.remove(retrieved)
    for each in retrieved:
        service.tickets.drop(each)
    completions = sampler.clone(body.target.cloned_sampler_id)
    ended, cursor = completions.after(body.prev_cursor)
    if not ended:
        hold = min(service.options.times.hold, 30.0)
        seconds = hold if body.timeout is None else max(0.0, min(hold, body.timeout))
        await completions.bell.wait(service.clock, seconds)
        ended, cursor = completions.after(body.prev_cursor)
    return FuturesRetrieveResponse.model_construct(
        completions=[
            FutureFailed.model_construct(request_id=name)
            if size is None
            else FutureFinished.model_construct(request_id=name, response_payload_uncompressed_size=size)
            for name, size in ended
        ],
        cursor=cursor,
    )


@answers("cancel_future")
async def _cancel(ask: Ask) -> Answer:
    service, id = ask.service, ask.body.request_id
    ticket = service.tickets.get(id)
    if ticket is None or ticket.owner != ask.owner:
        raise NotFound("request", id)
    if ticket.state == "pending" and ticket.kind == "asample":
        for desk in service.desks.values():
            desk.cancel(id)
    return {}
