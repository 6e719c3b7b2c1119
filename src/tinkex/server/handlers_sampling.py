"""Answers about sampling: sessions to sample in, samples, and samples as a stream of events."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import msgspec

from ..engine.kill_points import reach
from ..types import (
    CreateSamplingSessionRequest,
    CreateSamplingSessionResponse,
    GetSamplerResponse,
    JoinSamplingSessionResponse,
    SampleRequest,
)
from ..wire import paths
from ..wire.bodies import ErrorEvent, TokensEvent
from ..wire.headers import EVENT_STREAM
from ..wire.jsonbody import encode
from .admission import admit_sample
from .asks import Answer, Ask, Reply, answers
from .completions import Completions
from .handlers_training import open_session
from .problems import NotFound, Problem
from .records import SamplerRow
from .sampling import RunningSample
from .store import Put
from .works import check_number, check_samplers, find_checkpoint
from .world import LiveSampler, loose_name

KEEP_ALIVE = 15.0
"""Seconds between two signs of life on a stream that waits."""


# ---- sampling sessions


@answers("create_sampling_session")
async def _create(ask: Ask) -> Answer:
    body, service = ask.body, ask.service
    assert isinstance(body, CreateSamplingSessionRequest)
    session = open_session(ask, body.session_id)
    check_number("sampling_session_seq_id", body.sampling_session_seq_id)
    id = paths.sampling_session_id(session.row.id, body.sampling_session_seq_id)
    if id in service.world.samplers:
        return CreateSamplingSessionResponse(sampling_session_id=id)
    check_samplers(service, ask.owner)
    row = await _row(ask, id, session.row.id, body.base_model, body.model_path)
    if id in session.freezing:
        raise Problem(
            400, f"sampling_session_seq_id: {body.sampling_session_seq_id} is in use; take another number"
        )
    session.opening.add(id)
    try:
        await service.write(Put(row))
    finally:
        session.opening.discard(id)
    if session.row.id not in service.world.sessions:  # it has ended meanwhile
        raise NotFound("open session", session.row.id)
    if id not in service.world.samplers:
        service.open_sampler(row, session)
    return CreateSamplingSessionResponse(sampling_session_id=id)


async def _row(
    ask: Ask, id: str, session_id: str, base_model: str | None, model_path: str | None
) -> SamplerRow:
    """A sampling session on a base model or on saved weights."""
    service = ask.service
    version = folder = ""
    if model_path is not None:
        saved = await find_checkpoint(service, model_path, ask.owner, "model_path")
        if saved.kind != "sampler":
            raise Problem(
                400,
                f"model_path: {model_path!r} is a {saved.kind} checkpoint; sample from one saved with "
                "save_weights_for_sampler",
            )
        if (
            base_model is not None
            and service.catalogue.get(base_model).folder != service.facts_of(saved.base_model).folder
        ):
            raise Problem(
                400, f"base_model: {model_path!r} was trained from {saved.base_model!r}, not {base_model!r}"
            )
        base_model, version, folder = saved.base_model, saved.version, saved.folder
    if base_model is None:
        raise Problem(400, "base_model: give it, or model_path")
    service.catalogue.get(base_model)
    return SamplerRow(
        id,
        session_id,
        ask.owner,
        base_model,
        service.clock.time(),
        model_path,
        version=version,
        folder=folder,
    )


@answers("join_sampling_session")
async def _join(ask: Ask) -> Answer:
    sampler = ask.service.world.sampler(ask.body.sampling_session_id, ask.owner)
    sampler.row.joined += 1
    counter = sampler.row.joined
    await ask.service.write(Put(sampler.row))
    return JoinSamplingSessionResponse(client_counter=counter)


@answers("get_sampler")
async def _get(ask: Ask) -> Answer:
    id = ask.params["sampler_id"]
    live = ask.service.world.samplers.get(id)
    row = live.row if live is not None else await ask.service.store.get(SamplerRow, id)
    if row is None or row.owner != ask.owner:
        raise NotFound("sampler", id)
    return GetSamplerResponse(sampler_id=row.id, base_model=row.base_model, model_path=row.model_path)


# ---- samples


@answers("asample")
async def _sample(ask: Ask) -> Answer:
    id, number, _ = await _begin(ask)
    await ask.service.samples.on_disk()
    names = [f"{id}:{index}" for index in range(number)]
    # Written straight, without a record in between: this is the most frequent answer of all.
    return Reply(200, msgspec.json.encode({"request_id": id, "sample_sequence_ids": names}))


async def _begin(ask: Ask) -> tuple[str, int, RunningSample | None]:
    """Start a sample, or find the one with its number: its id, its sequences, and itself if it runs."""
    body, service = ask.body, ask.service
    assert isinstance(body, SampleRequest)
    sampler = await _sampler(ask, body)
    number = secrets.randbits(53) if body.seq_id is None else body.seq_id
    if not 0 <= number < 1 << 63:
        raise Problem(400, f"seq_id: {number} is not between 0 and {(1 << 63) - 1}")
    id = paths.sample_id(sampler.row.id, number)
    desk = service.desk_of(sampler.row.base_model)
    if service.tickets.get(id) is not None:
        return id, body.num_samples, desk.running(id)
    facts = service.facts_of(sampler.row.base_model)
    prompt, params, scores = admit_sample(body, facts, service.options.limits)
    if service.draining:
        raise Problem(503, "the server is stopping", headers={"retry-after": "5"})
    held, limit = service.sampling_rows.get(ask.owner, 0), service.options.limits.samples
    if held and held + body.num_samples > limit:
        raise Problem(429, f"{held} of your samples are under way, the limit is {limit}; slow down")
    service.sampling_rows[ask.owner] = held + body.num_samples
    sampler.used = service.clock.monotonic()
    if sampler.session is not None:
        service.heard(sampler.session)
    completions = sampler.clone(paths.clone_of(number))
    sample = RunningSample(
        service.tickets.open(id, "asample", ask.owner),
        sampler.row.version,
        prompt,
        body.num_samples,
        params,
        scores,
        ask.owner,
        lambda: _weights(ask, sampler),
        lambda each: _ended(ask, sampler, completions, each),
    )
    reach("sample: before it is noted")
    service.samples.add(id)
    desk.start(sample)
    reach("sample: after it is noted")
    return id, body.num_samples, sample


async def _sampler(ask: Ask, body: SampleRequest) -> LiveSampler:
    if body.sampling_session_id is not None:
        return ask.service.world.sampler(body.sampling_session_id, ask.owner)
    # Without a session, each base model or path has one of its owner's own, which is not stored.
    id = loose_name(ask.owner, body.model_path or body.base_model or "")
    known = ask.service.world.samplers.get(id)
    if known is None or body.model_path is not None:
        row = await _row(ask, id, "", body.base_model, body.model_path)
        known = ask.service.open_sampler(row, None)
    return known


def _weights(ask: Ask, sampler: LiveSampler) -> tuple[str, str | None] | None:
    """Where the engine can load a sampler's weights from."""
    row, service = sampler.row, ask.service
    if row.folder:
        return str(service.options.state / row.folder), None
    if row.model_id is not None:
        facts = service.facts_of(row.base_model)
        return str(service.folders.engine(facts.folder) / "sampler" / row.version), row.model_id
    return None


def _ended(ask: Ask, sampler: LiveSampler, completions: Completions, sample: RunningSample) -> None:
    service, ticket = ask.service, sample.ticket
    left = service.sampling_rows.get(ask.owner, 0) - sample.num_samples
    service.sampling_rows[ask.owner] = max(left, 0)
    service.tickets.ended(ticket)
    completions.add(ticket.id, len(ticket.result) if ticket.state == "done" else None)
    if ticket.state == "done":
        session = None if sampler.session is None else sampler.session.row
        for kind, count in (
            ("sampling_prefill", len(sample.prompt) - sample.cache_hits),
            ("sampling_prefill_cached", sample.cache_hits),
            ("sampling_sample", sample.seen_tokens),
        ):
            service.usage.note(service, session, sampler.row.base_model, kind, count, ask.owner)  # type: ignore[arg-type]


# ---- streams


@answers("sample_stream")
async def _stream(ask: Ask) -> Answer:
    id, number, sample = await _begin(ask)
    return Reply(200, b"", [(b"content-type", EVENT_STREAM.encode()), (b"cache-control", b"no-store")],
                 _events(ask, id, number, sample))  # fmt: skip


async def _events(ask: Ask, id: str, number: int, sample: RunningSample | None) -> AsyncIterator[bytes]:
    """A sample as events: tokens as they come, then the whole; a comment now and then while it waits."""
    service = ask.service
    if sample is not None:
        number = sample.num_samples
        sent = [0] * number
        sample.watched = True
        while sample.ticket.state == "pending":
            for piece in _news(sample, sent):
                yield piece
            if sample.ticket.state == "pending" and not await sample.bell.wait(service.clock, KEEP_ALIVE):
                yield b": waiting\n\n"
        for piece in _news(sample, sent):
            yield piece
    ticket = service.tickets.get(id)
    if ticket is None or ticket.state != "done":
        error = ticket.error if ticket is not None and ticket.error else f"sample {id!r} is no longer known"
        yield _event("error", ErrorEvent(error=error, category=ticket.category if ticket else "server"))
        return
    names = encode([f"{id}:{index}" for index in range(number)])
    whole = ticket.written(False)
    yield b'event: done\ndata: %b,"sample_sequence_ids":%b}\n\n' % (whole.rstrip()[:-1], names)


def _news(sample: RunningSample, sent: list[int]) -> list[bytes]:
    """What listeners have not heard yet."""
    pieces = []
    for index, sequence in enumerate(sample.sequences):
        new = len(sequence.tokens)
        if new > sent[index]:
            event = TokensEvent(
                sequence=index,
                tokens=sequence.tokens[sent[index] : new],
                logprobs=sequence.logprobs[sent[index] : new],
                stop_reason=sequence.stop_reason,
            )
            pieces.append(_event("tokens", event))
            sent[index] = new
    return pieces


def _event(name: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(data))
