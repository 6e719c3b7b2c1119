"""Cancelling work at every stage of its life; whatever comes next goes on."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Any

import pytest

from tests.client.rig import WAIT, Rig, data, eventually
from tinkex import types

ADAM = types.AdamParams(learning_rate=1e-4)
PROMPT = types.ModelInput.from_ints([1, 2, 3])
SHORT = types.SamplingParams(max_tokens=2)
MODEL = "Qwen/Qwen3-8B"
STAGES = ["queued", "sending", "waiting", "done"]


@pytest.fixture
def rig() -> Rig:
    return Rig(
        dynamic=types.ClientDynamicConfigResponse(sample_cancel_enabled=True),
        config=types.ClientConfigResponse(fwdbwd_max_chunk_len=2),
        skip_after=5.0,
    )


def reach(rig: Rig, stage: str, route: str, start: Any, before: Any) -> Any:
    """Start work and let it come to a stage of its life; with the clock still."""
    if stage == "queued":
        rig.service.faults.add("save_weights", delay=5.0, times=1)
        before()
    elif stage == "sending":
        rig.service.faults.add(route, delay=5.0, times=3)
    elif stage == "waiting":
        rig.service.latency = {route: 50.0}
    future = start()
    if stage == "done":
        future.result(WAIT)
    assert eventually(lambda: future.progress.stage == stage)
    if stage == "sending":
        assert eventually(lambda: len(rig.service.calls_to(route)) > 0)
    return future


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("operation", ["step", "pass", "pieces"])
def test_training_work_can_be_cancelled_at_every_stage(rig: Rig, operation: str, stage: str) -> None:
    trainer = rig.trainer()
    route = "optim_step" if operation == "step" else "forward_backward"

    def start() -> Any:
        if operation == "step":
            return trainer.optim_step(ADAM)
        return trainer.forward_backward(data(5 if operation == "pieces" else 1), "cross_entropy")

    with rig.clock.frozen():
        future = reach(rig, stage, route, start, lambda: trainer.save_state("before"))
        assert future.cancel() == (stage != "done")
        assert future.cancelled() == (stage != "done")
        later = [trainer.forward(data(1), "cross_entropy"), trainer.optim_step(ADAM)]
    for each in later:
        assert each.result(WAIT) is not None
    if stage == "done":
        assert future.result() is not None
    else:
        with pytest.raises(concurrent.futures.CancelledError):
            future.result()
    numbers = rig.service.executed(trainer.model_id)
    assert numbers == sorted(set(numbers))
    sent = len(rig.service.calls_to(route))
    if stage == "queued":
        # Only what came later was sent: the cancelled operation took no number.
        assert sent == 1
        assert rig.service.seq_ids(trainer.model_id) == [1, 2, 3]
    if stage == "waiting":
        # What the server has it runs to its end; only nobody waits for it.
        assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("how", ["cancel", "task", "timeout"])
@pytest.mark.parametrize("stage", ["sending", "waiting"])
def test_a_sample_can_be_cancelled_at_every_stage(rig: Rig, stage: str, how: str, batched: bool) -> None:
    rig.service.config = types.ClientConfigResponse(sample_use_retrieve_futures=batched)
    sampler = rig.client().create_sampling_client(base_model=MODEL)

    async def cancelled() -> None:
        task = asyncio.ensure_future(sampler.sample_async(PROMPT, 1, SHORT))
        assert await asyncio.to_thread(eventually, _there)
        if how == "task":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(task, 0.01)

    def _there() -> bool:
        polled = rig.service.calls_to("retrieve_future", "retrieve_futures")
        return bool(rig.service.calls_to("asample") if stage == "sending" else polled)

    with rig.clock.frozen():
        if stage == "sending":
            rig.service.faults.add("asample", delay=5.0, times=1)
        else:
            rig.service.pause("asample")
        if how == "cancel":
            future = sampler.sample(PROMPT, 1, SHORT)
            assert eventually(_there)
            assert future.cancel()
        else:
            asyncio.run(cancelled())
        if stage == "waiting":
            assert eventually(lambda: bool(rig.service.calls_to("cancel_future")))
    rig.service.resume()
    assert sampler.sample(PROMPT, 1, SHORT).result(WAIT).sequences
    throttle = sampler.holder.connection.shared.sampling
    assert eventually(lambda: throttle.inside == 0 and throttle.waiting == 0)


def test_samples_waiting_for_their_turn_can_be_cancelled() -> None:
    rig = Rig()
    sampler = rig.client().create_sampling_client(base_model=MODEL)
    rig.service.faults.add("asample", delay=5.0)
    throttle = sampler.holder.connection.shared.sampling
    with rig.clock.frozen():
        futures = [sampler.sample(PROMPT, 1, SHORT) for _ in range(100)]
        assert eventually(lambda: throttle.waiting == 36)
        assert all(future.cancel() for future in futures[64:90])
        assert eventually(lambda: throttle.waiting == 10)
    for future in futures[:64] + futures[90:]:
        assert future.result(WAIT).sequences
    assert len(rig.service.calls_to("asample")) == 74
