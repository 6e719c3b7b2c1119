"""What owners do to a server, each with what must come of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from tests.server.client import Answer, Client, datum
from tests.server.live_requests import GRAPH
from tests.server.machine import BASE
from tinkex.engine.messages import CreateAdapter, LoadState, OptimStep, Sample, SaveState, Train

from .api_books import CheckpointBook, ModelBook, Owner, Ticket, marks_in
from .api_machine import ApiMachine, Whose

Operation: TypeAlias = Callable[[ApiMachine, Owner], Awaitable[None]]
SEGMENTS = {"weights": "training", "sampler_weights": "sampler", "external_weights": "external"}


def refused(m: ApiMachine, answer: Answer, what: str) -> None:
    """What is somebody else's, or nobody's, is refused."""
    m.checked["refusals of what is not one's own"] += 1
    m.agree(answer.status == 0 or 400 <= answer.status < 500, f"{what} was not refused: {answer}")


def of(m: ApiMachine, answer: Answer, whose: Whose, sure: bool, what: str) -> bool:
    """Whether a call succeeded; it must where it is sure to be right, and must not on others' things."""
    if whose != "own":
        refused(m, answer, f"{what} on a thing of {whose}")
    elif sure and not m.engine_down and answer.status:
        m.agree(answer.status == 200, f"{what} failed: {answer}")
    return answer.status == 200


# ---- sessions


async def open_session(m: ApiMachine, me: Owner) -> None:
    """A new session."""
    body = {"sdk_version": "0.36.0", "tags": [me.word()], "user_metadata": {"w": me.word()}}
    if m.rng.random() < 0.5:
        body |= {"display_name": me.word(), "project_id": me.word()}
    answer = await m.call(me, "create_session", body, leave=m.rng.random() < 0.02)
    if of(m, answer, "own", True, "create_session"):
        me.sessions[answer.json["session_id"]] = m.server.clock.passed


def forget_session(me: Owner, session: str) -> None:
    """A session has ended, and with it what is in it."""
    me.sessions.pop(session, None)
    me.finished.add(session)
    for model in me.models.values():
        model.ended |= model.session == session
    for sampler in [each for each in me.samplers if each.startswith(f"{session}:")]:
        del me.samplers[sampler]


async def beat(m: ApiMachine, me: Owner, session: str, whose: Whose = "own") -> None:
    """A heartbeat."""
    began, sure = m.server.clock.passed, m.alive(me, session)
    answer = await m.call(me, "session_heartbeat", {"session_id": session})
    if of(m, answer, whose, sure, "heartbeat"):
        me.sessions[session] = began
    elif whose == "own":
        forget_session(me, session)


async def heartbeat(m: ApiMachine, me: Owner) -> None:
    """A heartbeat of some session, or of all."""
    if m.rng.random() < 0.5:
        for session in list(me.sessions):
            await beat(m, me, session)
        return
    await beat(m, me, *m.pick(me, "sessions"))


async def finish_session(m: ApiMachine, me: Owner) -> None:
    """The end of a session."""
    session, whose = m.pick(me, "sessions", 0.3)
    reason = {"type": m.rng.choice(("success", "errored", "interrupted"))}
    sure = m.alive(me, session)
    body = {"reason": reason, "detail": me.word()}
    answer = await m.call(me, "finish_session", body, session_id=session)
    of(m, answer, whose, sure, "finish_session")
    if whose == "own":
        forget_session(me, session)


async def look_at_sessions(m: ApiMachine, me: Owner) -> None:
    """Sessions in all the ways there are."""
    session, whose = m.pick(me, "sessions")
    query = m.rng.choice(("", "access_scope=owned", "access_scope=accessible"))
    of(m, await m.call(me, "get_session", query=query, session_id=session), whose, True, "get_session")
    listed = (await m.call(me, "list_sessions", query="limit=10000")).json["sessions"]
    missing = {*me.sessions, *me.finished} - set(listed)
    m.agree(not missing, f"sessions that are not listed: {missing}")
    if m.rng.random() < 0.5:
        await m.call(me, "search_sessions", {"limit": 20, "query": m.rng.choice(("mk", session))})
    body = {"project_id": me.word()}
    answer = await m.call(me, "assign_session_project", body, session_id=session)
    of(m, answer, whose, True, "assign_session_project")
    await m.call(me, "session_trace_export", session_id=session)


# ---- models


def usable(m: ApiMachine, me: Owner, id: str) -> ModelBook | None:
    """A model of one's own of which everything is known."""
    model = me.models.get(id)
    return model if model and model.sure and not model.ended and m.alive(me, model.session) else None


async def create_model(m: ApiMachine, me: Owner) -> None:
    """A model, new or with a number that is taken."""
    session, whose = m.pick(me, "sessions")
    taken = [each for each in me.models.values() if each.session == session]
    number = len(taken) if m.rng.random() < 0.9 else m.rng.choice((0, -1, 2**31, 7))
    id = f"{session}:train:{number}"
    mark, sure = me.word(), m.alive(me, session) and 0 <= number < 2**31
    body: dict[str, Any] = {"session_id": session, "model_seq_id": number, "base_model": BASE}
    body |= {"lora_config": {"rank": m.rng.choice((1, 8, 32))}, "user_metadata": {"w": mark}}
    if m.rng.random() < 0.05:
        body["base_model"], sure = "no-such-model", id in me.models
    leave = m.rng.random() < 0.03
    answer = await m.call(me, "create_model", body, leave=leave)
    if leave:
        me.maybe.add(id)
    elif of(m, answer, whose, sure, "create_model"):
        m.agree(answer.json["model_id"] == id, f"another model: {answer}")
        if id not in me.models:
            me.models[id] = ModelBook(id, session, mark)
            me.tickets[f"{id}:0"] = Ticket(f"{id}:0", "create_model", me.models[id])


async def look_at_models(m: ApiMachine, me: Owner) -> None:
    """Models and runs in all the ways there are."""
    id, whose = m.pick(me, "models")
    of(m, await m.call(me, "get_info", {"model_id": id}), whose, True, "get_info")
    scope = m.rng.choice(("owned", "accessible"))
    answer = await m.call(me, "get_training_run", query=f"access_scope={scope}", training_run_id=id)
    open_to_all = scope == "accessible" and id in m.words.public
    if whose == "own" or not open_to_all:
        of(m, answer, whose, True, "get_training_run")
    listed = await m.call(me, "list_training_runs", query="limit=10000")
    found = {each["training_run_id"] for each in listed.json["training_runs"]}
    m.agree(set(me.models) <= found, f"runs that are not listed: {set(me.models) - found}")
    strange = found - set(me.models) - me.maybe
    m.agree(not strange, f"runs nobody made: {strange}")


async def unload(m: ApiMachine, me: Owner) -> None:
    """A model that is no longer needed."""
    id, whose = m.pick(me, "models", 0.4)
    answer = await m.call(me, "unload_model", {"model_id": id})
    if of(m, answer, whose, usable(m, me, id) is not None, "unload_model"):
        me.models[id].ended = True


async def operate(
    m: ApiMachine, me: Owner, name: str, model: str, whose: Whose, body: Any, number: int, **more: Any
) -> Ticket | None:
    """Send one numbered operation; its ticket, if it was accepted."""
    book = me.models.get(model) if whose == "own" else None
    before = usable(m, me, model)
    answer = await m.call(me, name, body, **more)
    if not answer.status and book is not None:
        book.sure = False
    accepted = of(m, answer, whose, before is not None and number == before.next, name)
    if book is not None and number == book.next:
        book.next += 1  # refused ones are used up
        if accepted and usable(m, me, model) is not before:
            book.sure = False
    if not accepted:
        return None
    id = answer.json["request_id"]
    return me.tickets.setdefault(id, Ticket(id, name, book, route=name))


def pass_body(m: ApiMachine, model: str, number: int, me: Owner) -> tuple[bytes, dict[str, str]]:
    """A pass in protobuf."""
    data = [datum([m.rng.randrange(1000) for _ in range(m.rng.randrange(2, 6))])]
    forward = m.rng.random() < 0.2
    loss, config = "cross_entropy", None
    own = [each for each, session in me.losses.items() if model.startswith(f"{session}:")]
    if own and m.rng.random() < 0.3:
        loss, config = "custom", {"loss_id": m.rng.choice(own)}
    (raw,) = Client.train_body(model, number, *data, loss=loss, config=config, forward_only=forward)
    return raw, {"content-type": "application/x-protobuf"}


async def train(m: ApiMachine, me: Owner) -> None:
    """Passes and steps: in order, again, two swapped, or of somebody else's model."""
    id, whose = m.pick(me, "models")
    book = me.models.get(id) if whose == "own" else None
    number = book.next if book else m.rng.randrange(1, 9)
    draw = m.rng.random()
    if book and draw < 0.1 and book.next > 1:
        number = m.rng.randrange(1, book.next)  # again: it is the first one's ticket
        await repeat(m, me, book, number)
    elif book and draw < 0.17 and usable(m, me, id):
        second = await _send_pass(m, me, id, whose, book.next + 1)
        first = await _send_step(m, me, book, book.next)
        book.next += 1  # the one that came first
        for ticket in (second, first):
            if ticket:
                await settle(m, me, ticket)
    elif draw < 0.55:
        ticket = await _send_pass(m, me, id, whose, number)
        if ticket and m.rng.random() < 0.5:
            await settle(m, me, ticket)
    elif book:
        ticket = await _send_step(m, me, book, number)
        if ticket and m.rng.random() < 0.6:
            await settle(m, me, ticket)
    else:
        await operate(m, me, "optim_step", id, whose, _step(m, id, number), number)


async def repeat(m: ApiMachine, me: Owner, book: ModelBook, number: int) -> None:
    """A number again: the first one's ticket if it is the same kind of work, else a refusal."""
    id = f"{book.id}:{number}"
    first = me.tickets.get(id)
    answer = await m.call(me, "optim_step", _step(m, book.id, number))
    if first is not None and book.sure and not book.ended:
        if first.route == "optim_step":
            m.agree(answer.status == 200 and answer.json["request_id"] == id, f"{id} again: {answer}")
        else:
            refused(m, answer, f"{id}, a {first.route}, as a step")


def _step(m: ApiMachine, model: str, number: int) -> dict[str, Any]:
    return {"model_id": model, "seq_id": number, "adam_params": {"learning_rate": m.rng.random()}}


async def _send_pass(m: ApiMachine, me: Owner, id: str, whose: Whose, number: int) -> Ticket | None:
    raw, headers = pass_body(m, id, number, me)
    return await operate(m, me, "forward_backward", id, whose, raw, number, headers=headers)


async def _send_step(m: ApiMachine, me: Owner, book: ModelBook, number: int) -> Ticket | None:
    leave = m.rng.random() < 0.02
    ticket = await operate(
        m, me, "optim_step", book.id, "own", _step(m, book.id, number), number, leave=leave
    )
    if ticket:
        book.steps += 1
        ticket.steps = book.steps if book.sure else None
    return ticket


async def spoil(m: ApiMachine, me: Owner) -> None:
    """Operations that are wrong: they are refused, and the model goes on."""
    id, _ = m.pick(me, "models", 0)
    book = me.models.get(id)
    if book is None:
        return
    wrong = (
        ("optim_step", {"adam_params": {"learning_rate": "much"}}),
        ("optim_step", {}),
        ("save_weights", {"path": "a/b"}),
        ("save_weights", {"path": me.word(), "ttl_seconds": -5}),
        ("load_weights", {"path": "tinker://nobody/weights/x", "optimizer": True}),
        ("load_weights", {"path": "http://127.0.0.1/x", "optimizer": True}),
        ("forward_backward", {"forward_backward_input": {"data": [], "loss_fn": "nonsense"}}),
        ("save_weights_for_sampler", {}),
    )
    name, body = m.rng.choice(wrong)
    answer = await m.call(me, name, {"model_id": id, "seq_id": book.next, **body})
    if answer.status == 200:
        book.sure = False
        m.agree(book.ended or name == "save_weights_for_sampler", f"{name} {body} was accepted")
    book.next += 1


async def skip_a_number(m: ApiMachine, me: Owner) -> None:
    """An operation that never comes: those behind it wait, and then go on."""
    id, _ = m.pick(me, "models", 0)
    book = usable(m, me, id)
    if book is None:
        return
    number = book.next + m.rng.choice((1, 2, 1 << 20))
    answer = await m.call(me, "optim_step", _step(m, id, number))
    if answer.status == 200:
        book.steps, book.next = book.steps + 1, number + 1
        ticket = Ticket(f"{id}:{number}", "optim_step", book, book.steps, route="optim_step")
        me.tickets[ticket.id] = ticket
        await settle(m, me, ticket)
    else:
        refused(m, answer, "a number too far")


async def settle(m: ApiMachine, me: Owner, ticket: Ticket) -> None:
    """Wait for a result and see that it is what it must be."""
    found = await m.result(me, ticket)
    model = ticket.model
    if found is None or found == {} or model is None:
        return
    if "error" in found:
        sure = model.sure and not model.ended and m.alive(me, model.session)
        late = "too late" in found["error"]
        m.agree(not sure or late or ticket.kind == "?", f"{ticket.id} failed: {found}")
        return
    if ticket.kind == "optim_step" and ticket.steps is not None and model.sure:
        m.checked["steps counted"] += 1
        m.agree("metrics" in found, f"{ticket}: {found}")
        said = found["metrics"]["step:max"]
        m.agree(said == ticket.steps, f"{ticket.id} is step {said}, not {ticket.steps}")


async def poll(m: ApiMachine, me: Owner) -> None:
    """A result, of one's own or of somebody else."""
    id, whose = m.pick(me, "tickets", 0.25)
    if whose == "own":
        await settle(m, me, me.tickets[id])
    else:
        refused(m, await m.call(me, "retrieve_future", {"request_id": id}), "a poll")


async def cancel(m: ApiMachine, me: Owner) -> None:
    """A result that is no longer wanted."""
    id, whose = m.pick(me, "tickets", 0.4)
    answer = await m.call(me, "cancel_future", {"request_id": id})
    if whose != "own":
        refused(m, answer, "cancel_future")


async def create_loss(m: ApiMachine, me: Owner) -> None:
    """A custom loss."""
    session, whose = m.pick(me, "sessions")
    number = m.rng.randrange(6)
    body = {"session_id": session, "custom_loss_seq_id": number, "name": me.word(), "graph": GRAPH}
    body["inputs"] = [{"name": "logprobs", "rank": 1}]
    answer = await m.call(me, "create_custom_loss", body)
    if of(m, answer, whose, m.alive(me, session), "create_custom_loss"):
        id = f"{session}:loss:{number}"
        me.losses[id] = session
        me.tickets[id] = Ticket(id, "create_custom_loss")


# ---- time and deaths


async def wait(m: ApiMachine, me: Owner) -> None:
    """Time passes: mostly a little; before much of it, some keep their sessions open."""
    seconds = m.rng.choice((0.1, 1.0, 5.0, 30.0, 120.0, 400.0, 4000.0))
    if seconds > 300 and m.rng.random() < 0.9:
        seconds = 30.0
    if seconds > 300:
        for owner in m.owners:
            for session in list(owner.sessions):
                if m.rng.random() < 0.8:
                    await beat(m, owner, session)
    m.told.append(f"   {seconds} s pass")
    left = seconds
    while left > 0:
        m.advance(min(left, 100.0))
        left -= 100.0
        await m.server.turns(20)


async def kill_engine(m: ApiMachine, me: Owner) -> None:
    """The engine dies; the next one is there at once, or after a while."""
    if m.rng.random() < 0.6:
        m.told.append("   the engine dies")
        await m.server.replace_engine()
        return
    m.told.append("   the engine dies and does not come back yet")
    m.engine_down, m.server.refuse_engines = True, "not now"
    m.server.kill_engine()
    await m.server.turns(30)
    for _ in range(m.rng.randrange(1, 6)):
        await m.rng.choice((train, sample, poll, look_at_models, heartbeat))(m, m.rng.choice(m.owners))
    m.server.refuse_engines = ""
    count = len(m.server.engines)
    await m.server.until(lambda: len(m.server.engines) > count, lambda: m.advance(0.5))
    await m.server.settle()
    m.engine_down = False
    m.told.append("   the engine is back")


async def stall_engine(m: ApiMachine, me: Owner) -> None:
    """The engine takes work and does not do it for a while."""
    m.told.append("   the engine stalls")
    engine = m.server.engine
    engine.hold(*m.rng.choice(((Train, OptimStep), (Sample,), (SaveState, LoadState), (CreateAdapter,))))
    m.engine_down = True
    for _ in range(m.rng.randrange(2, 8)):
        await m.rng.choice(AT_ONCE)(m, m.rng.choice(m.owners))
    engine.release()
    await m.server.settle()
    m.engine_down = False
    m.told.append("   the engine goes on")


async def restart(m: ApiMachine, me: Owner) -> None:
    """The server ends and comes back on what it has written."""
    await m.restart(m.rng.choice(("crash", "reopen")))


async def inspect(m: ApiMachine) -> None:
    """Everything that was accepted has a result, and lists agree with what is known."""
    for owner in m.owners:
        for session in list(owner.sessions):
            await beat(m, owner, session)
        for ticket in list(owner.tickets.values())[-30:]:
            if ticket.answer is None:
                await settle(m, owner, ticket)
        await look_at_models(m, owner)
        await look_at_checkpoints(m, owner)
        for id in [each for each, ticket in list(owner.tickets.items())[:-200] if ticket.answer]:
            del owner.tickets[id]


def remember(me: Owner, path: str, steps: int | None, mark: str, expires: float | None) -> CheckpointBook:
    """Weights that were saved."""
    kind = SEGMENTS[path.removeprefix("tinker://").split("/")[1]]
    book = CheckpointBook(path, kind, marks_in(path, mark), steps, expires=expires)
    me.checkpoints[path] = book
    me.maybe.discard(path)
    return book


def _operations() -> list[tuple[Operation, float]]:
    from . import api_sampling, api_storage

    return [
        (open_session, 3), (heartbeat, 4), (finish_session, 0.6), (look_at_sessions, 2), (create_model, 5),
        (look_at_models, 2), (unload, 0.6), (train, 22), (spoil, 2), (skip_a_number, 0.7), (poll, 6),
        (cancel, 1), (create_loss, 1), (wait, 4), (kill_engine, 0.8), (stall_engine, 0.4), (restart, 0.5),
        *api_sampling.OPERATIONS, *api_storage.OPERATIONS,
    ]  # fmt: skip


from .api_sampling import create_sampler, look_around, poll_many, sample  # noqa: E402 - they need the above
from .api_storage import copy, fetch, freeze, load, look_at_checkpoints, read, save  # noqa: E402

OPERATIONS = _operations()
AT_ONCE: list[Operation] = [
    train, train, train, sample, sample, save, load, poll, read, copy, freeze, fetch, create_sampler,
    open_session, create_model, look_at_models, look_at_checkpoints, look_around, poll_many, create_loss,
]  # fmt: skip
"""What owners do at the same time: nothing of it changes what others may see."""
