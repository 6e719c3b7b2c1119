"""Everything belongs to the owner of the key it was made with; to others it is not there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from tinkex.wire.routes import ROUTES

from .client import TEXT, Client
from .machine import Machine, running

FINISH = {"reason": {"type": "success"}, "detail": None}
RUN_PARAMS = ("training_run_id", "checkpoint_id")


@dataclass
class Things:
    """What one owner has."""

    session: str
    model: str
    sampler: str
    operation: str
    sample: str
    training: str
    sampler_path: str
    external: str


async def things_of(client: Client) -> Things:
    session = await client.session(project_id="secret-project", display_name="secret-name")
    model = await client.model(session)
    sampler = await client.sampler(session, 0)
    operation = await client.train(model, 1)
    await client.done(operation)
    sample = await client.sample(sampler, 0)
    await client.done(sample)
    training = (await client.done(await client.save(model, 2, "a")))["path"]
    frozen = (await client.done(await client.freeze(model, 3, name="b")))["path"]
    body = {"model_id": model, "seq_id": 4, "path": "c"}
    external = (await client.done(client.ticket(await client("save_weights_external", body))))["path"]
    return Things(session, model, sampler, operation, sample, training, frozen, external)


def asks(things: Things, own: Things) -> dict[str, tuple[Any, dict[str, str]]]:
    """For every route that names a thing: how another owner would ask for it."""
    t = things
    target = {"type": "sampling_session", "sampling_session_id": t.sampler, "cloned_sampler_id": 0}
    weights = {"training_run_id": t.model, "checkpoint_id": "weights/a"}
    given = {"data": [{"model_input": TEXT, "loss_fn_inputs": {}}], "loss_fn": "cross_entropy"}
    return {
        "session_heartbeat": ({"session_id": t.session}, {}),
        "finish_session": (FINISH, {"session_id": t.session}),
        "create_model": ({"session_id": t.session, "model_seq_id": 9, "base_model": "tiny"}, {}),
        "get_info": ({"model_id": t.model}, {}),
        "unload_model": ({"model_id": t.model}, {}),
        "forward": ({"forward_input": given, "model_id": t.model, "seq_id": 9}, {}),
        "forward_backward": ({"forward_backward_input": given, "model_id": t.model, "seq_id": 9}, {}),
        "optim_step": ({"model_id": t.model, "seq_id": 9, "adam_params": {}}, {}),
        "save_weights": ({"model_id": t.model, "seq_id": 9, "path": "z"}, {}),
        "save_weights_for_sampler": ({"model_id": t.model, "seq_id": 9, "path": "z"}, {}),
        "save_weights_external": ({"model_id": t.model, "seq_id": 9, "path": "z"}, {}),
        "load_weights": ({"model_id": own.model, "seq_id": 9, "path": t.training, "optimizer": True}, {}),
        "weights_info": ({"tinker_path": t.training}, {}),
        "copy_weights": ({"source_path": t.training, "destination_project_id": "mine"}, {}),
        "create_custom_loss": (
            {
                "session_id": t.session, "custom_loss_seq_id": 0, "name": "x",
                "inputs": [{"name": "logprobs", "rank": 1}], "graph": {"format": 1, "nodes": []},
            },
            {},
        ),
        "create_sampling_session": (
            {"session_id": own.session, "sampling_session_seq_id": 9, "model_path": t.sampler_path}, {},
        ),
        "join_sampling_session": ({"sampling_session_id": t.sampler}, {}),
        "asample": (Client.sample_body(t.sampler, 9), {}),
        "sample_stream": (Client.sample_body(t.sampler, 9), {}),
        "retrieve_future": ({"request_id": t.operation}, {}),
        "retrieve_futures": ({"target": target, "prev_cursor": 0}, {}),
        "cancel_future": ({"request_id": t.sample}, {}),
        "get_training_run": (None, {"training_run_id": t.model}),
        "list_checkpoints": (None, {"training_run_id": t.model}),
        "list_model_checkpoints": (None, {"training_run_id": t.model}),
        "delete_checkpoint": (None, weights),
        "publish_checkpoint": (None, weights),
        "unpublish_checkpoint": (None, weights),
        "set_checkpoint_ttl": ({"ttl_seconds": 7200}, weights),
        "checkpoint_archive": (None, weights),
        "external_weights_urls": (None, {**weights, "checkpoint_id": "external_weights/c"}),
        "get_session": (None, {"session_id": t.session}),
        "assign_session_project": ({"project_id": "mine"}, {"session_id": t.session}),
        "session_trace_export": (None, {"session_id": t.session}),
        "get_sampler": (None, {"sampler_id": t.sampler}),
    }  # fmt: skip


MORE_ASKS = {
    "create_sampling_session": lambda t, own: {
        "session_id": t.session, "sampling_session_seq_id": 9, "base_model": "tiny",
    },
    "load_weights": lambda t, own: {
        "session_id": t.session, "model_seq_id": 9, "path": own.training, "optimizer": True,
    },
    "retrieve_future": lambda t, own: {"request_id": t.sample},
    "asample": lambda t, own: {
        "model_path": t.sampler_path, "prompt": TEXT, "num_samples": 1,
        "sampling_params": {"max_tokens": 1},
    },
    "cancel_future": lambda t, own: {"request_id": t.operation},
}  # fmt: skip
"""The other ways to name somebody else's thing."""
LISTS = {
    "list_training_runs": "training_runs",
    "list_user_checkpoints": "checkpoints",
    "list_sessions": "sessions",
    "search_sessions": "sessions",
    "audit_log": "entries",
    "checkpoint_storage_usage": "data",
    "billing_usage": "data",
}
NAMES_NOTHING = {
    "health", "get_server_capabilities", "client_config", "client_dynamic_config", "auth_token",
    "get_api_key", "delete_api_key", "create_session", "telemetry",
    "list_tokenizer_files", "get_tokenizer_file",
}  # fmt: skip
LIST_QUERIES = {"billing_usage": "starting_on=2027-01-15T00:00:00Z&ending_before=2027-01-16T00:00:00Z"}
LIST_BODIES = {"search_sessions": {"user_metadata": {}, "owner": {"type": "accessible"}, "limit": 50}}


def test_every_route_is_looked_at():
    known = {*asks(*[Things(*"abcdefgh")] * 2), *LISTS, *NAMES_NOTHING}
    unseen = {name for name in ROUTES if name not in known and "tokenizer" not in name}
    assert unseen == set()


@running()
async def test_what_is_somebody_elses_is_not_there(server: Machine):
    ann, bob = server.ann, server.bob
    theirs, own = await things_of(ann), await things_of(bob)
    seen = len(server.engine.seen)
    for name, (body, params) in asks(theirs, own).items():
        await check_hidden(bob, theirs, name, body, params)
    for name, make in MORE_ASKS.items():
        await check_hidden(bob, theirs, name, make(theirs, own), {})
    assert len(server.engine.seen) == seen
    # The same for things that are only in the store.
    await ann.ok("finish_session", FINISH, session_id=theirs.session)
    await server.restart()
    for name, (body, params) in asks(theirs, own).items():
        await check_hidden(bob, theirs, name, body, params)


async def check_hidden(
    client: Client, theirs: Things, name: str, body: Any, params: dict[str, str]
) -> None:
    answer = await client(name, body, **params)
    assert answer.status == 404, (name, str(answer))
    for secret in ("secret-", "ann"):
        assert secret not in answer.body.decode().replace(theirs.session, ""), (name, str(answer))
    # Nor can it be told from what never was.
    unknown = json.loads(json.dumps([body, params]).replace(theirs.session, "s-0000000000000000"))
    never = await client(name, unknown[0], **unknown[1])
    assert never.status == 404, (name, str(never))
    assert never.detail.replace("s-0000000000000000", theirs.session) == answer.detail


@running()
async def test_lists_hold_only_ones_own(server: Machine):
    ann, bob = server.ann, server.bob
    theirs = await things_of(ann)
    server.clock.advance(1)
    for name, key in LISTS.items():
        query = LIST_QUERIES.get(name, "")
        if ROUTES[name].query is not None and "access_scope" in str(ROUTES[name].query.__struct_fields__):
            query = "access_scope=accessible"
        answer = await bob(name, LIST_BODIES.get(name), query=query)
        assert answer.status == 200, (name, str(answer))
        assert [each for each in answer.json[key] if theirs.session in str(each)] == [], name
        assert "secret" not in answer.body.decode()
        mine = (await ann(name, LIST_BODIES.get(name), query=query)).json[key]
        if name != "billing_usage":
            assert mine, name


@running()
async def test_a_published_checkpoint_can_be_read_by_everybody(server: Machine):
    ann, bob = server.ann, server.bob
    theirs, own = await things_of(ann), await things_of(bob)
    for id in ("weights/a", "sampler_weights/b"):
        await ann.ok("publish_checkpoint", training_run_id=theirs.model, checkpoint_id=id)
    assert (await bob.ok("weights_info", {"tinker_path": theirs.training}))["base_model"] == "tiny"
    loaded = await bob.done(await bob.load(own.model, 5, theirs.training))
    assert loaded["path"] == theirs.training
    made = bob.ticket(
        await bob(
            "load_weights",
            {"session_id": own.session, "model_seq_id": 4, "path": theirs.training, "optimizer": False},
        )
    )
    await bob.done(made)
    sampler = await bob.sampler(own.session, 6, base=None, model_path=theirs.sampler_path)
    await bob.done(await bob.sample(sampler, 0))
    # Reading is all: it stays ann's.
    for name, body in (
        ("delete_checkpoint", None),
        ("unpublish_checkpoint", None),
        ("set_checkpoint_ttl", {"ttl_seconds": 3600}),
    ):
        params = {"training_run_id": theirs.model, "checkpoint_id": "weights/a"}
        await bob.refused(name, body, 404, **params)
    await ann.ok("unpublish_checkpoint", training_run_id=theirs.model, checkpoint_id="weights/a")
    await bob.refused("weights_info", {"tinker_path": theirs.training}, 404)


@pytest.mark.parametrize("key", ["ann", "bob"])
def test_two_keys_of_one_owner_see_the_same(key: str, tmp_path):
    @running()
    async def scenario(server: Machine) -> None:
        first = server.ann if key == "ann" else server.bob
        second = Client(server, server.keys.add("second", key)[1].reveal())
        model = await first.model()
        await second.done(await second.train(model, 1))
        assert (await first.done(f"{model}:1")) == (await second.done(f"{model}:1"))

    scenario(tmp_path=tmp_path)
