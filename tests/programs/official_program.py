"""A program as one writes it for the official SDK: trains a step, samples, prints what it got."""

from __future__ import annotations

import asyncio
import importlib.metadata
import sys

import numpy as np
import tinker
from tinker import types
from tinker.lib.public_interfaces import APIFuture
from tinker.lib.public_interfaces.rest_client import RestClient
from tinker.lib.retry_handler import RetryConfig
from tinker.types.checkpoint import ParsedCheckpointTinkerPath
from tinker.types.tensor_data import TensorData


def batch() -> list[types.Datum]:
    tokens = np.arange(8)
    return [
        types.Datum(
            model_input=types.ModelInput.from_ints(tokens.tolist()),
            loss_fn_inputs={
                "target_tokens": TensorData.from_numpy(tokens),
                "weights": TensorData.from_numpy(np.ones(8, np.float32)),
            },
        )
    ]


async def main() -> None:
    service = tinker.ServiceClient(user_metadata={"recipe": "test"})
    trainer = await service.create_lora_training_client_async(base_model="Qwen/Qwen3-8B", rank=8)
    passed = await trainer.forward_backward_async(batch(), "cross_entropy")
    stepped = await trainer.optim_step_async(types.AdamParams(learning_rate=1e-4))
    assert isinstance(passed, APIFuture)
    result = await passed
    await stepped.result_async()
    sampler = await trainer.save_weights_and_get_sampling_client_async()
    response = await sampler.sample_async(
        prompt=types.ModelInput.from_ints([1, 2]),
        num_samples=2,
        sampling_params=tinker.SamplingParams(max_tokens=5),
    )
    saved = trainer.save_state("done").result()
    assert ParsedCheckpointTinkerPath.from_tinker_path(saved.path).checkpoint_type == "training"
    assert RetryConfig().max_connections == 1000
    assert issubclass(tinker.BadRequestError, tinker.APIStatusError)
    assert tinker.lib.public_interfaces.rest_client.RestClient is RestClient
    print("tokens", [len(sequence.tokens) for sequence in response.sequences])
    print("loss", "loss:sum" in result.metrics)
    print("version", tinker.__version__, importlib.metadata.version("tinker"))
    print("arguments", sys.argv[1:], __name__)
    await service.close("success")


if __name__ == "__main__":
    asyncio.run(main())
