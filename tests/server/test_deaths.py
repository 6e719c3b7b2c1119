"""An engine that dies again and again of the same work is spared it in the end; everything else goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tinkex.engine.messages import LoadSampler, Sample, Train
from tinkex.server import sampling, scheduler
from tinkex.testing import NoopEngine

from .client import datum
from .machine import Machine, running

BAD = 99


@contextmanager
def allergic() -> Iterator[None]:
    """Engines break down when they are told to train on one token."""
    take = NoopEngine.submit

    def submit(engine: NoopEngine, message: Any) -> list[Any]:
        parts = message.parts if isinstance(message, Train) else ()
        if any(BAD in each.tokens for part in parts for each in part.data):
            engine.break_down("of a bad example")
        return take(engine, message)

    NoopEngine.submit = submit  # type: ignore[method-assign]
    try:
        yield
    finally:
        NoopEngine.submit = take  # type: ignore[method-assign]


@running()
async def test_an_operation_the_engine_always_dies_of_fails_and_others_do_not(server: Machine):
    ann, bob = server.ann, server.bob
    bad, good = await ann.model(), await bob.model()
    with allergic():
        fatal = await ann.train(bad, 1, datum([BAD, 1]))
        beside = await bob.train(good, 1, datum([1, 2]))
        after = await ann.train(bad, 2, datum([3, 4]))
        failure = await ann.result(fatal)
    assert "the engine died" in failure["error"]
    assert failure["category"] == "server"
    assert len(server.engines) == scheduler.MOST_DEATHS + 2  # the first death had two suspects
    await bob.done(beside)
    await ann.done(after)
    assert (await ann.result(fatal))["error"] == failure["error"]


@running()
async def test_a_model_whose_restoring_always_kills_the_engine_is_given_up_and_others_are_not(
    server: Machine,
):
    ann, bob = server.ann, server.bob
    bad, good = await ann.model(), await bob.model()
    await ann.done(await ann.train(bad, 1, datum([BAD, 1])))
    await bob.done(await bob.train(good, 1, datum([1, 2])))
    with allergic():
        server.kill_engine("once")
        waiting = await ann.step(bad, 2)
        failure = await ann.result(waiting)
        assert failure["category"] == "server"
        assert "while it was restored" in failure["error"]
        await bob.done(await bob.step(good, 2))
    text = await ann.refused("optim_step", {"model_id": bad, "seq_id": 3, "adam_params": {}})
    assert "corrupted" in text
    assert set(server.engine.models) == {good}


@running()
async def test_a_model_restored_in_the_end_is_as_good_as_before(server: Machine):
    ann = server.ann
    model = await ann.model()
    await ann.done(await ann.train(model, 1, datum([BAD, 1])))
    with allergic():
        server.kill_engine("once")
        await server.until(lambda: len(server.engines) == scheduler.MOST_DEATHS)
    await ann.done(await ann.step(model, 2))


def test_an_engine_that_dies_of_whatever_it_does_costs_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    @running()
    async def scenario(server: Machine) -> None:
        ann, bob = server.ann, server.bob
        models = [await ann.model(), await bob.model()]
        for who, model in zip((ann, bob), models, strict=True):
            await who.done(await who.train(model, 1, datum([1, 2])))
        take, before = NoopEngine.submit, len(server.engines)

        def submit(engine: NoopEngine, message: Any) -> list[Any]:
            if len(server.engines) - before <= 3 * scheduler.MOST_DEATHS:
                engine.break_down("of a broken device")
            return take(engine, message)

        with monkeypatch.context() as patch:
            patch.setattr(NoopEngine, "submit", submit)
            server.kill_engine("once")
            steps = [await who.step(model, 2) for who, model in zip((ann, bob), models, strict=True)]
            enough = before + 3 * scheduler.MOST_DEATHS
            await server.until(
                lambda: len(server.engines) > enough, each_turn=lambda: server.clock.advance(1.0)
            )
            for who, step in zip((ann, bob), steps, strict=True):
                await who.done(step)
        assert set(server.engine.models) == set(models), "nothing of the trials is left"
        assert "dies of whatever it does" in caplog.text

    scenario(tmp_path=tmp_path)


@pytest.mark.parametrize("kind", [LoadSampler, Sample])
def test_a_sample_the_engine_always_dies_of_fails_and_no_model_is_given_up_for_it(
    kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    @running()
    async def scenario(server: Machine) -> None:
        ann = server.ann
        session = await ann.session()
        model = await ann.model(session)
        path = (await ann.done(await ann.freeze(model, 1, name="a")))["path"]
        bad = await ann.sampler(session, 0, base=None, model_path=path)
        good = await ann.sampler(session, 1)
        await server.replace_engine()
        take, before = NoopEngine.submit, len(server.engines)

        def submit(engine: NoopEngine, message: Any) -> list[Any]:
            if isinstance(message, kind) and len(server.engines) - before <= sampling.MOST_DEATHS + 3:
                engine.break_down("of bad weights")
            return take(engine, message)

        with monkeypatch.context() as patch:
            patch.setattr(NoopEngine, "submit", submit)
            failure = await ann.result(await ann.sample(bad, 0))
        assert "the engine died" in failure["error"]
        assert failure["category"] == "server"
        await ann.done(await ann.sample(good, 0))
        await ann.done(await ann.step(model, 2))

    scenario(tmp_path=tmp_path)


def test_an_engine_that_cannot_even_be_made_is_tried_again_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async def scenario() -> None:
        machine = Machine(tmp_path)
        make, broken = machine._link, [AttributeError("no such option"), OSError("no room")]

        def link(*words: Any) -> Any:
            if broken:
                raise broken.pop(0)
            return make(*words)

        machine._link = link  # type: ignore[method-assign]
        async with machine:
            assert not machine.service.ready
            assert "no such option" in next(iter(machine.service.rooms.values())).reason
            await machine.wait(2)
            await machine.wait(4)
            assert machine.service.ready
            await machine.ann.model()

    asyncio.run(scenario())
    assert "no such option" in caplog.text
    assert "no room" in caplog.text
