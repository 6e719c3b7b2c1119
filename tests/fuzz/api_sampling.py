"""What owners do with sampling sessions, samples, and everything that is not of one model."""

from __future__ import annotations

from typing import Any

from tests.server.client import Client
from tests.server.machine import BASE

from .api_books import Owner, Ticket
from .api_machine import ApiMachine


async def create_sampler(m: ApiMachine, me: Owner) -> None:
    """A sampling session on a base model, or on saved weights."""
    from .api_operations import of
    from .api_storage import pick_checkpoint

    session, whose = m.pick(me, "sessions")
    number = me.number() if m.rng.random() < 0.8 else m.rng.choice((0, 1, -1, 2**40))
    body: dict[str, Any] = {"session_id": session, "sampling_session_seq_id": number, "base_model": BASE}
    sure = m.alive(me, session) and number >= 10 and number < 2**31
    if m.rng.random() < 0.4:
        path, right = pick_checkpoint(m, me, ("sampler",))
        body |= {"model_path": path, "base_model": None}
        sure = False
        whose = whose if right != "no" or number < 10 else "none"
    answer = await m.call(me, "create_sampling_session", body)
    if answer.status == 200 and number < 10:
        return
    if of(m, answer, whose, sure, "create_sampling_session"):
        me.samplers.setdefault(answer.json["sampling_session_id"], 0)


async def sample(m: ApiMachine, me: Owner) -> None:
    """Samples: plain, streamed, without a session, again."""
    from .api_operations import of

    id, whose = m.pick(me, "samplers")
    alive = m.alive(me, id.split(":")[0])
    number = me.samplers.get(id, 0)
    if whose == "own" and number and m.rng.random() < 0.15:
        number = m.rng.randrange(number)
    body = Client.sample_body(id, number, num_samples=m.rng.choice((1, 1, 3)))
    if m.rng.random() < 0.1:
        body["sampling_params"]["max_tokens"] = m.rng.choice((-1, 0, 10**6, None))
        alive = False
    if m.rng.random() < 0.1:
        body |= {"sampling_session_id": None, "base_model": BASE}
        await m.call(me, "asample", body)
        return
    name = "sample_stream" if m.rng.random() < 0.25 else "asample"
    if name == "sample_stream" and m.engine_down:
        return  # it goes on until there is an engine
    answer = await m.call(me, name, body, leave=m.rng.random() < 0.05)
    if of(m, answer, whose, alive, name):
        me.samplers[id] = max(me.samplers.get(id, 0), number + 1)
        if name == "asample":
            ticket = me.tickets.setdefault(f"{id}:{number}", Ticket(f"{id}:{number}", "asample"))
            if m.rng.random() < 0.7:
                found = await m.result(me, ticket)
                m.agree(found is None or found == {} or "error" in found or found["sequences"], str(found))
    elif answer.status == 0 and whose == "own":
        me.samplers[id] = max(me.samplers.get(id, 0), number + 1)


async def poll_many(m: ApiMachine, me: Owner) -> None:
    """All results of a sampling session that are new."""
    from .api_operations import of

    id, whose = m.pick(me, "samplers")
    target = {"type": "sampling_session", "sampling_session_id": id, "cloned_sampler_id": 0}
    body = {"target": target, "prev_cursor": m.rng.choice((0, 0, 1, 10**9)), "timeout": 1.0}
    answer = await m.call(me, "retrieve_futures", body)
    if of(m, answer, whose, m.alive(me, id.split(":")[0]), "retrieve_futures"):
        named = [each["request_id"] for each in answer.json["completions"]]
        m.agree(all(each.startswith(f"{id}:") for each in named), f"others' results: {named}")


async def look_at_samplers(m: ApiMachine, me: Owner) -> None:
    """A sampling session, looked at and joined."""
    from .api_operations import of

    id, whose = m.pick(me, "samplers", 0.3)
    of(m, await m.call(me, "get_sampler", sampler_id=id), whose, True, "get_sampler")
    answer = await m.call(me, "join_sampling_session", {"sampling_session_id": id})
    of(m, answer, whose, m.alive(me, id.split(":")[0]), "join_sampling_session")


PLAIN = (
    ("client_config", {"sdk_version": "0.36.0"}, ""),
    ("client_dynamic_config", {"sdk_version": "0.36.0"}, ""),
    ("get_server_capabilities", None, ""),
    ("health", None, ""),
    ("get_api_key", None, ""),
    ("list_sessions", None, "limit=3&offset=1"),
    ("list_training_runs", None, "limit=2&offset=1"),
    ("list_user_checkpoints", None, "limit=2&offset=1"),
    ("list_training_runs", None, "access_scope=accessible"),
    ("audit_log", None, ""),
    ("billing_usage", None, "starting_on=2026-01-01T00:00:00Z&ending_before=2026-01-02T00:00:00Z"),
    ("checkpoint_storage_usage", None, ""),
)


async def look_around(m: ApiMachine, me: Owner) -> None:
    """What needs no id: everybody sees their own part."""
    name, body, query = m.rng.choice(PLAIN)
    await m.call(me, name, body, query=query)


async def wrong_key(m: ApiMachine, me: Owner) -> None:
    """Somebody without a right key, who knows an id."""
    session, _ = m.pick(me, "sessions", 0)
    headers = {"x-api-key": m.rng.choice(("", "tml-no", me.client.key[:-1], me.client.key.upper()))}
    stranger = Owner("nobody", me.client)
    answer = await m.call(stranger, "session_heartbeat", {"session_id": session}, headers=headers)
    m.agree(answer.status == 401, f"let in without a key: {answer}")


async def report(m: ApiMachine, me: Owner) -> None:
    """Telemetry, whatever is in it."""
    body = {"events": [], "platform": me.word(), "sdk_version": "0.36.0", "session_id": "x"}
    await m.call(me, "telemetry", m.rng.choice((body, {}, b"\x00\xff")))


OPERATIONS = [
    (create_sampler, 4), (sample, 12), (poll_many, 2), (look_at_samplers, 2), (look_around, 4),
    (wrong_key, 0.5), (report, 0.5),
]  # fmt: skip
