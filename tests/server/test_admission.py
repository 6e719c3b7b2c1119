"""What the server lets in is what the engine takes."""

from __future__ import annotations

import numpy as np
import pytest

from tinkex.server.admission import LOSS_INPUTS, LOSS_SETTINGS
from tinkex.server.records import OperationRow
from tinkex.testing.noop_operations import LOSSES as NOOP_LOSSES
from tinkex.types import TensorData

from .client import datum
from .machine import Machine, running


def test_the_servers_losses_are_the_engines():
    pytest.importorskip("torch", reason="the engine's losses are written with torch")
    from tinkex.engine.losses import LOSSES

    assert {*LOSSES, "custom"} == set(LOSS_INPUTS) == set(LOSS_SETTINGS)
    for name, loss in LOSSES.items():
        assert LOSS_INPUTS[name] == tuple(each for each in loss.needs if each not in loss.defaults), name
        assert LOSS_SETTINGS[name] == tuple(loss.settings), name


def test_the_noop_engine_has_the_same_losses():
    assert set(NOOP_LOSSES) == set(LOSS_INPUTS)


def inputs_of(loss: str, length: int = 3) -> dict[str, TensorData]:
    return {name: TensorData([0.5] * length, "float32", [length]) for name in LOSS_INPUTS[loss]}


@pytest.mark.parametrize("loss", sorted(set(LOSS_INPUTS) - {"custom"}))
def test_every_loss_runs_with_what_it_needs_and_all_its_settings(loss: str, tmp_path):
    @running()
    async def scenario(server: Machine) -> None:
        ann = server.ann
        model = await ann.model()
        data = datum(**inputs_of(loss))
        await ann.done(await ann.train(model, 1, data, loss=loss))
        config = dict.fromkeys(LOSS_SETTINGS[loss], 0.25)
        await ann.done(await ann.train(model, 2, data, loss=loss, config=config))
        part = server.engine.seen[-1].parts[0]
        assert (part.loss, part.config) == (loss, config)
        assert set(part.data[0].inputs) == {"target_tokens", "weights", *LOSS_INPUTS[loss]}
        assert [part.data[0].inputs[name].dtype for name in LOSS_INPUTS[loss]] == [np.float32] * len(
            LOSS_INPUTS[loss]
        )

    scenario(tmp_path=tmp_path)


@running()
async def test_bounds_given_for_each_token_must_fit_the_tokens(server: Machine):
    ann = server.ann
    model = await ann.model()
    bounds = {"clip_low_threshold": TensorData([0.5] * 2, "float32", [2])}
    body = ann.train_body(model, 1, datum(**inputs_of("ppo"), **bounds), loss="ppo")
    text = await ann.refused("forward_backward", *body, headers={"content-type": "application/x-protobuf"})
    assert "2 rows for 3" in text


@running()
async def test_targets_and_weights_may_be_matrices_dense_or_sparse(server: Machine):
    ann = server.ann
    model = await ann.model()
    wide = datum(
        target_tokens=TensorData([1, 2, 3, 4, 5, 6], "int64", [3, 2]),
        weights=TensorData([1.0] * 6, "float32", [3, 2]),
    )
    sparse = datum(
        target_tokens=TensorData([4, 5], "int64", [3, 4], [0, 1, 1, 2], [0, 3]),
        weights=TensorData([1.0, 0.5], "float32", [3, 4], [0, 1, 1, 2], [0, 3]),
    )
    result = await ann.done(await ann.train(model, 1, wide, sparse))
    assert [each["logprobs"]["shape"] for each in result["loss_fn_outputs"]] == [[3, 2], [3, 4]]


@running()
async def test_a_custom_loss_is_made_once_and_used_by_its_session(server: Machine):
    ann, bob = server.ann, server.bob
    session = await ann.session()
    model = await ann.model(session)
    graph = {"format": 1, "nodes": [{"op": "placeholder", "name": "logprobs", "target": "logprobs"}]}
    body = {
        "session_id": session, "custom_loss_seq_id": 0, "name": "mine", "graph": graph,
        "inputs": [{"name": "logprobs", "rank": 1}],
    }  # fmt: skip
    ticket = ann.ticket(await ann("create_custom_loss", body))
    assert ann.ticket(await ann("create_custom_loss", body)) == ticket
    loss = (await ann.done(ticket))["loss_id"]
    await bob.refused("create_custom_loss", body, 404)
    await ann.done(await ann.train(model, 1, loss="custom", config={"loss_id": loss}))
    assert "placeholder" in server.engine.seen[-1].parts[0].config["graph"]
    theirs = await bob.model()
    made = bob.train_body(theirs, 1, loss="custom", config={"loss_id": loss})
    text = await bob.refused("forward_backward", *made, headers={"content-type": "application/x-protobuf"})
    assert loss in text
    await server.restart()
    await ann.done(await ann.train(model, 2, loss="custom", config={"loss_id": loss}))
    await ann.done(ticket)


@running(limits={"datums": 3, "tokens": 20})
async def test_a_pass_may_have_so_many_examples_and_tokens(server: Machine):
    ann = server.ann
    model = await ann.model()
    await ann.done(await ann.train(model, 1, *[datum(range(1, 7))] * 3))
    headers = {"content-type": "application/x-protobuf"}
    text = await ann.refused("forward_backward", *ann.train_body(model, 2, *[datum()] * 4), headers=headers)
    assert "4 examples" in text
    assert "3" in text
    body = ann.train_body(model, 3, *[datum(range(1, 9))] * 3)
    text = await ann.refused("forward_backward", *body, headers=headers)
    assert "24 tokens" in text
    assert "20" in text


@running(limits={"models": 2, "sessions": 2})
async def test_an_owner_may_have_so_many_models_and_sessions(server: Machine):
    ann, bob = server.ann, server.bob
    session = await ann.session()
    await ann.model(session, 0)
    await ann.model(session, 1)
    text = await ann.refused(
        "create_model", {"session_id": session, "model_seq_id": 2, "base_model": "tiny"}
    )
    assert "2 models" in text
    assert await server.store.get(OperationRow, f"{session}:train:2:0") is None
    await bob.model()
    other = await ann.session()
    text = await ann.refused("create_session", {"tags": [], "sdk_version": "1"}, 429)
    assert "2 sessions" in text
    await ann.ok("finish_session", {"reason": {"type": "success"}}, session_id=session)
    await ann.session()
    await ann.model(other, 0)


@running(limits={"storage_bytes": 100})
async def test_an_owner_may_have_so_many_bytes_of_checkpoints(server: Machine):
    ann = server.ann
    model = await ann.model()
    await ann.done(await ann.save(model, 1, "a"))
    text = await ann.refused("save_weights", {"model_id": model, "seq_id": 2, "path": "b"})
    assert "the limit is 100" in text
    await ann.ok("delete_checkpoint", training_run_id=model, checkpoint_id="weights/a")
    await ann.done(await ann.save(model, 3, "b"))


@running()
async def test_a_name_is_saved_over_only_when_asked(server: Machine):
    ann = server.ann
    model = await ann.model()
    await ann.done(await ann.save(model, 1, "a"))
    text = await ann.refused("save_weights", {"model_id": model, "seq_id": 2, "path": "a"})
    assert "overwrite" in text
    await ann.done(await ann.save(model, 3, "a", overwrite=True))
    # Two in line at once are as good as one that is there.
    first = await ann.save(model, 5, "b")
    assert "overwrite" in await ann.refused("save_weights", {"model_id": model, "seq_id": 6, "path": "b"})
    await ann.done(await ann.step(model, 4))
    await ann.done(first)
