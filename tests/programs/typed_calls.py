"""What a type checker sees: checked, never run."""

from __future__ import annotations

from typing import assert_type

import tinkex
from tinkex import types


def blocking(client: tinkex.ServiceClient, data: list[types.Datum], prompt: types.ModelInput) -> None:
    """Calls as in a script."""
    trainer = client.create_lora_training_client("a", rank=8)
    assert_type(trainer, tinkex.TrainingClient)
    types.Datum(prompt, {"target_tokens": [1, 2], "weights": [0.5, 1.0]})  # lists and arrays, too
    passed = trainer.forward_backward(data, "cross_entropy")
    assert_type(passed, tinkex.APIFuture[types.ForwardBackwardOutput])
    assert_type(passed.result(), types.ForwardBackwardOutput)
    assert_type(passed.exception(1.0), BaseException | None)
    assert_type(passed.cancel(), bool)
    assert_type(passed.request_id, str | None)
    assert_type(trainer.optim_step(types.AdamParams()).result(1.0), types.OptimStepResponse)
    assert_type(trainer.save_state("a").result().path, str)
    sampler = trainer.save_weights_and_get_sampling_client()
    assert_type(sampler, tinkex.SamplingClient)
    sampled = sampler.sample(prompt, 1, types.SamplingParams(max_tokens=1))
    assert_type(sampled, tinkex.APIFuture[types.SampleResponse])
    assert_type(sampler.compute_logprobs(prompt).result(), list[float | None])
    rest = tinkex.RestClient()
    assert_type(rest.list_sessions().result(), types.ListSessionsResponse)
    assert_type(rest.get_training_run("a").result(), types.TrainingRun)
    assert_type(client.get_server_capabilities(), types.GetServerCapabilitiesResponse)
    assert_type(client.close("success"), tinkex.APIFuture[None])


async def awaited(client: tinkex.ServiceClient, data: list[types.Datum], prompt: types.ModelInput) -> None:
    """Calls as in a coroutine."""
    trainer = await client.create_lora_training_client_async("a")
    assert_type(trainer, tinkex.TrainingClient)
    passed = await trainer.forward_backward_async(data, "ppo", {"clip_low_threshold": 0.8})
    assert_type(passed, tinkex.APIFuture[types.ForwardBackwardOutput])
    assert_type(await passed, types.ForwardBackwardOutput)
    assert_type(await passed.result_async(timeout=1.0), types.ForwardBackwardOutput)
    sampler = await client.create_sampling_client_async(base_model="a")
    assert_type(await sampler.sample_async(prompt, 1, types.SamplingParams()), types.SampleResponse)
    assert_type(await tinkex.RestClient().list_sessions_async(), types.ListSessionsResponse)


def mistakes(trainer: tinkex.TrainingClient, data: list[types.Datum]) -> None:
    """What a type checker must find fault with."""
    _ = tinkex.ServiceCleint  # type: ignore[attr-defined]
    trainer.forward_backward(data, "bogus")  # type: ignore[arg-type]
    trainer.optim_step(1e-4)  # type: ignore[arg-type]
    _ = trainer.forward_backward(data, "ppo").result().nothing  # type: ignore[attr-defined]
