"""Doing again what was done: as it was done then, whatever the limits and the model's shape are now."""

from __future__ import annotations

from dataclasses import replace

from tinkex.engine.messages import CreateAdapter, SaveState, Train
from tinkex.server.assembly import engine_spec
from tinkex.server.options import Limits, ModelSpec, ServerOptions

from .client import datum
from .machine import Machine, running


@running()
async def test_a_model_is_made_again_in_the_shape_it_was_made_in(server: Machine):
    ann = server.ann
    small = await ann.model(lora_config={"rank": 4, "seed": 3, "train_mlp": False})
    await ann.done(await ann.step(small, 1))
    saved = (await ann.done(await ann.save(small, 2, "small")))["path"]
    model = await ann.model(lora_config={"rank": 16, "seed": 5})
    await ann.done(await ann.train(model, 1, datum([1, 2])))
    await ann.done(await ann.step(model, 2))
    await ann.done(await ann.train(model, 3, datum([3, 4])))
    server.engine.hold(SaveState)  # the snapshot that is due after loading does not come to its end
    await ann.done(await ann.load(model, 4, saved))
    before = server.engine.models[model]
    for kill in (server.replace_engine, server.restart):
        server.hold = (SaveState,)
        await kill()
        assert server.service.world.models[model].row.state == "live"
        assert server.engine.models[model] == before
        made = next(
            each for each in server.engine.seen if isinstance(each, CreateAdapter) and each.model == model
        )
        assert (made.rank, made.train_mlp) == (16, True)
    server.engine.release()
    await ann.done(await ann.train(model, 5))


SMALLER = {
    "tokens": 3,
    "datums": 2,
    "rank": 4,
    "models": 1,
    "storage_bytes": 0,
    "shortest_ttl": 7000,
}


@running(kind="sqlite")
async def test_smaller_limits_are_for_what_comes_and_not_for_what_came(server: Machine):
    ann = server.ann
    session = await ann.session()
    model, other = [await ann.model(session, n, lora_config={"rank": 8, "seed": 3}) for n in (0, 1)]
    long = [datum([1, 2, 3, 4, 5]), datum([1, 2])]
    first = await ann.loss(await ann.train(model, 1, *long))
    await ann.done(await ann.step(model, 2))
    before = dict(server.engine.models)
    server.engine.hold(Train)
    waiting = [await ann.train(model, 3, *long)]
    waiting.append(await ann.save(model, 4, "late", ttl_seconds=100))
    waiting.append(await ann.freeze(model, 5, name="late"))
    await server.crash()
    server.limits = SMALLER
    await server.start()
    for each in waiting:
        await ann.done(each)
    assert await ann.loss(f"{model}:1") == first
    assert (await ann.done(f"{model}:5"))["path"].endswith("late")
    assert server.engine.models[other] == before[other]
    assert server.engine.models[model].weights == before[model].weights
    assert "limit" in await ann.refused(
        "forward_backward",
        *ann.train_body(model, 6, *long),
        headers={"content-type": "application/x-protobuf"},
    )
    assert "limit" in await ann.refused("save_weights", {"model_id": model, "seq_id": 7, "path": "x"})


@running(options={"snapshot_steps": 1})
async def test_a_load_that_waits_is_done_under_a_smaller_rank(server: Machine):
    ann = server.ann
    big = await ann.model(lora_config={"rank": 64, "seed": 3})
    saved = (await ann.done(await ann.save(big, 1, "big")))["path"]
    model = await ann.model(lora_config={"rank": 4, "seed": 3})
    server.engine.hold(Train)
    await ann.train(model, 1)
    load = await ann.load(model, 2, saved)
    await server.crash()
    server.limits = {"rank": 8}
    await server.start()
    await ann.done(load)
    assert server.engine.models[model].rank == 64
    body = {"model_id": model, "seq_id": 3, "path": saved}
    assert "rank 64" in await ann.refused("load_weights", body)


def test_an_engine_is_not_told_the_limit_of_new_ranks(tmp_path):
    limits = replace(Limits(), rank=8)
    options = ServerOptions((ModelSpec("a", tmp_path),), tmp_path, limits=limits)
    assert engine_spec(options, tmp_path, tmp_path).training.get("max_rank", 1 << 30) >= 4096
