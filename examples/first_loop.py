"""A whole training loop — passes, steps, a sampler, a checkpoint — on the shipped stand-in service.

Set TINKER_BASE_URL and TINKER_API_KEY to run the same loop on a real one.
"""

from __future__ import annotations

import contextlib
import os
import time

import numpy as np

import tinkex
from tinkex import types

MODEL = os.environ.get("TINKEX_EXAMPLE_MODEL", "Qwen/Qwen3-8B")


def example(rng: np.random.Generator, length: int = 32) -> types.Datum:
    """One made-up training example: predict each next token."""
    tokens = rng.integers(1, 1000, length + 1)
    weights = np.ones(length, np.float32)
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": weights},
    )


def train(client: tinkex.ServiceClient) -> None:
    """Train for a few steps, then sample and save."""
    trainer = client.create_lora_training_client(MODEL, rank=8)
    rng = np.random.default_rng(0)
    for step in range(5):
        started = time.perf_counter()
        passed = trainer.forward_backward([example(rng) for _ in range(8)], "cross_entropy")
        stepped = trainer.optim_step(types.AdamParams(learning_rate=2e-4))
        loss = passed.result().metrics["loss:sum"]
        stepped.result()
        print(f"step {step}: loss:sum {loss:.2f} in {(time.perf_counter() - started) * 1e3:.0f} ms")
    sampler = trainer.save_weights_and_get_sampling_client()
    answer = sampler.sample(
        types.ModelInput.from_ints([1, 2, 3]), 2, types.SamplingParams(max_tokens=8, seed=1)
    ).result()
    for sequence in answer.sequences:
        print("sampled", sequence.tokens, f"({sequence.stop_reason})")
    print("saved", trainer.save_state("final").result().path)


def main() -> None:
    """Run on the configured service, or on a stand-in in this process."""
    with contextlib.ExitStack() as stack:
        if os.environ.get("TINKER_BASE_URL"):
            client = tinkex.ServiceClient()
        else:
            from tinkex.testing.http_server import FakeServer

            server = stack.enter_context(FakeServer())
            print(f"no TINKER_BASE_URL: using the stand-in service at {server.base_url}")
            client = tinkex.ServiceClient(base_url=server.base_url, api_key="tml-example")
        with client:
            train(client)


if __name__ == "__main__":
    main()
