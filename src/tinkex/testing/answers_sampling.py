"""Answers about sampling, and about results in general."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from ..types import (
    CreateSamplingSessionRequest,
    CreateSamplingSessionResponse,
    FuturesRetrieveRequest,
    FuturesRetrieveResponse,
    GetSamplerResponse,
    JoinSamplingSessionResponse,
    RequestFailedResponse,
    SampleRequest,
    TryAgainResponse,
)
from ..types.sample_response import SampledSequence, SampleResponse
from ..wire import paths
from ..wire.bodies import CompleteMetadataResponse, ErrorEvent, TokensEvent
from ..wire.headers import EVENT_STREAM, PROTOBUF
from ..wire.jsonbody import encode
from ..wire.results import samples_form
from .exchange import JSON_HEADERS, FakeResponse, Problem, json_response
from .fake_model import run_sample
from .handlers import Answer, Ask, answers, ticket_reply
from .state import Sampler, Session
from .tickets import Completions, Ticket

_BINARY_HEADERS = {"content-type": PROTOBUF}


# ---- sampling sessions


def open_sampler(
    ask: Ask, session: Session, number: int, base_model: str, model_path: str | None, steps: int
) -> Sampler:
    """A sampling session of that number; asking twice gives the same one."""
    id = paths.sampling_session_id(session.id, number)
    known = ask.service.world.samplers.get(id)
    if known is None:
        known = Sampler(id, session.id, session.owner, base_model, model_path, steps)
        ask.service.world.samplers[id] = known
        session.samplers.append(id)
    return known


@answers("create_sampling_session")
def _create(ask: Ask) -> Answer:
    body, world = ask.body, ask.service.world
    assert isinstance(body, CreateSamplingSessionRequest)
    session = world.session(body.session_id, ask.owner)
    base_model, steps = body.base_model, 0
    if body.model_path is not None:
        saved = world.checkpoint(body.model_path, ask.owner, ask.service.clock.now())
        if saved.kind != "sampler":
            raise Problem(400, f"model_path: {body.model_path!r} was not saved for a sampler")
        base_model, steps = saved.base_model, saved.steps
    if base_model is None:
        raise Problem(400, "base_model: give it, or model_path")
    ask.service.check_base_model(base_model)
    sampler = open_sampler(ask, session, body.sampling_session_seq_id, base_model, body.model_path, steps)
    return CreateSamplingSessionResponse(sampling_session_id=sampler.id)


@answers("join_sampling_session")
def _join(ask: Ask) -> Answer:
    sampler = ask.service.world.sampler(ask.body.sampling_session_id, ask.owner)
    sampler.joined += 1
    return JoinSamplingSessionResponse(client_counter=sampler.joined)


@answers("get_sampler")
def _get_sampler(ask: Ask) -> Answer:
    sampler = ask.service.world.sampler(ask.params["sampler_id"], ask.owner)
    return GetSamplerResponse(
        sampler_id=sampler.id, base_model=sampler.base_model, model_path=sampler.model_path
    )


# ---- samples


@answers("asample")
def _sample(ask: Ask) -> Answer:
    return ticket_reply(_sample_ticket(ask))


def _sample_ticket(ask: Ask) -> Ticket:
    body, service = ask.body, ask.service
    assert isinstance(body, SampleRequest)
    sampler = _sampler_for(ask, body)
    number = body.seq_id
    if number is None:
        number = service.next_number()
        id = paths.sample_id(f"{sampler.id}:loose", number)
    else:
        id = paths.sample_id(sampler.id, number)
    known = service.tickets.get(id)
    if known is not None:
        return known
    if body.num_samples < 1:
        raise Problem(400, f"num_samples: {body.num_samples} is below 1")
    service.check_context(sampler.base_model, body)
    ticket = service.open_ticket(id, "asample", ask)
    ticket.completions = sampler.clone(paths.clone_of(number))
    names = [f"{id}:{index}" for index in range(body.num_samples)]
    if service.sample_sequence_ids:
        ticket.sequence_ids = names
    service.run(ticket, lambda: _sampled(sampler, body, names))
    return ticket


@answers("sample_stream")
def _stream(ask: Ask) -> Answer:
    ticket = _sample_ticket(ask)
    return FakeResponse(
        200, {"content-type": EVENT_STREAM}, chunks=_events(ask, ticket), pace=ask.service.stream_pace
    )


async def _events(ask: Ask, ticket: Ticket) -> AsyncIterator[bytes]:
    """A sample as events: each token in turn, then the whole; a comment now and then while it waits."""
    service = ask.service
    while ticket.state == "pending":
        if not await ticket.bell.listen(service.clock, service.hold):
            yield b": waiting\n\n"
    if ticket.state != "done":
        error = ticket.error or f"request {ticket.id!r} is no longer known"
        yield _event("error", ErrorEvent(error=error, category=ticket.category))
        return
    made: SampleResponse = ticket.result
    for place in range(max(_count(sequence) for sequence in made.sequences)):
        for number, sequence in enumerate(made.sequences):
            if place < _count(sequence):
                yield _event("tokens", _token(number, sequence, place))
    yield _event("done", {**samples_form(made), "sample_sequence_ids": ticket.sequence_ids})


def _token(number: int, sequence: SampledSequence, place: int) -> TokensEvent:
    last = place == _count(sequence) - 1
    return TokensEvent(
        sequence=number,
        tokens=sequence.tokens[place : place + 1],
        logprobs=None if sequence.logprobs is None else sequence.logprobs[place : place + 1],
        stop_reason=sequence.stop_reason if last else None,
    )


def _event(name: str, data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(data))


def _sampled(sampler: Sampler, body: SampleRequest, names: list[str]) -> Any:
    made = run_sample(body, sampler.steps, names)
    sampler.prompt_tokens += sum(getattr(chunk, "length", 0) for chunk in body.prompt.chunks)
    sampler.sampled_tokens += sum(_count(sequence) for sequence in made.sequences)
    return made


def _count(sequence: SampledSequence) -> int:
    return 0 if sequence.tokens_np is None else int(sequence.tokens_np.size)


def _sampler_for(ask: Ask, body: SampleRequest) -> Sampler:
    world = ask.service.world
    if body.sampling_session_id is not None:
        sampler = world.sampler(body.sampling_session_id, ask.owner)
        world.session(sampler.session_id, ask.owner)
        return sampler
    if body.model_path is not None:
        saved = world.checkpoint(body.model_path, ask.owner, ask.service.clock.now())
        return Sampler(body.model_path, "", ask.owner, saved.base_model, body.model_path, saved.steps)
    if body.base_model is None:
        raise Problem(400, "sampling_session_id: give it, or base_model, or model_path")
    return Sampler(body.base_model, "", ask.owner, body.base_model, None, 0)


@answers("cancel_future")
def _cancel(ask: Ask) -> Answer:
    ticket = _find(ask, ask.body.request_id)
    if ticket.state == "pending":
        ticket.fail("cancelled by its client", "user")
    return {}


# ---- results


def _find(ask: Ask, id: str) -> Ticket:
    ticket = ask.service.tickets.get(id)
    if ticket is None or ticket.owner != ask.owner:
        raise Problem(404, f"request {id!r} not found")
    return ticket


@answers("retrieve_future")
def _retrieve(ask: Ask) -> Answer:
    ticket = _find(ask, ask.body.request_id)
    if ticket.state == "pending":
        service = ask.service
        return _held(ask, ticket, ticket.bell.listen(service.clock, service.hold))
    return _ended(ask, ticket)


async def _held(ask: Ask, ticket: Ticket, rung: Any) -> FakeResponse:
    await rung
    if ticket.state != "pending":
        return _ended(ask, ticket)
    state, reason = ask.service.queue_state
    again = TryAgainResponse.model_construct(
        request_id=ticket.id, queue_state=state, queue_state_reason=reason
    )
    return json_response(again, 408)


def _ended(ask: Ask, ticket: Ticket) -> FakeResponse:
    service = ask.service
    if ticket.state == "lost":
        return Problem(410, f"request {ticket.id!r} is no longer known").response()
    if ticket.state == "failed":
        service.tickets.delivered(ticket)
        return json_response(
            RequestFailedResponse.model_validate({"error": ticket.error, "category": ticket.category})
        )
    binary = ticket.binary and not service.json_only and PROTOBUF in (ask.header("accept") or "")
    body = ticket.form(binary)
    if ask.body.allow_metadata_only and len(body) >= service.large_result:
        return json_response(CompleteMetadataResponse(response_payload_size=len(body)))
    service.tickets.delivered(ticket)
    return FakeResponse(200, _BINARY_HEADERS if binary else JSON_HEADERS, body)


@answers("retrieve_futures")
def _retrieve_many(ask: Ask) -> Answer:
    body, service = ask.body, ask.service
    assert isinstance(body, FuturesRetrieveRequest)
    sampler = service.world.sampler(body.target.sampling_session_id, ask.owner)
    completions = sampler.clone(body.target.cloned_sampler_id)
    for id in body.retrieved_request_ids:
        service.tickets.drop(id)
    ended, cursor = completions.after(body.prev_cursor)
    if ended:
        return FuturesRetrieveResponse.model_construct(completions=ended, cursor=cursor)
    seconds = service.hold if body.timeout is None else min(service.hold, body.timeout)
    return _held_many(body.prev_cursor, completions, completions.bell.listen(service.clock, seconds))


async def _held_many(cursor: int, completions: Completions, rung: Any) -> FakeResponse:
    await rung
    ended, cursor = completions.after(cursor)
    return json_response(FuturesRetrieveResponse.model_construct(completions=ended, cursor=cursor))
