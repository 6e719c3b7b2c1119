"""The engine on a GPU against transformers and PEFT on the CPU; skipped where there is no GPU.

Tolerances are relative to the largest value: 2e-4 in float32 (other kernels, other order of sums), 8e-2 in
bfloat16 against a float32 reference with the same rounded weights.
"""

import copy

import numpy as np
import pytest
import torch

from tinkex.engine.base_model import BaseModel
from tinkex.engine.trainer import Trainer, TrainState

from .sampling_models import FAMILIES as SAMPLED
from .sampling_models import merged, prompts, request, sample, trained_adapter
from .sampling_models import plain_model as plain_sampled
from .test_gradients import LOSSES, SETTINGS, reference_gradients
from .test_sampler_reference import all_logprobs, greedy_reference
from .training_models import (
    ALL_FAMILIES,
    assert_close,
    filled_adapter,
    gradient,
    make_data,
    part,
    plain_model,
    run_one,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 8e-2}
LENGTHS = [9, 1, 14, 5]


def on_gpu(plain, dtype=torch.float32):
    return BaseModel(copy.deepcopy(plain).to("cuda", dtype))


def rounded(plain, dtype):
    """The model with its weights rounded to a dtype, computing in float32."""
    return copy.deepcopy(plain).to(dtype).float()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_losses_and_gradients(family, dtype):
    plain = plain_model(family)
    losses = LOSSES if family == "qwen3" and dtype == torch.float32 else ["cross_entropy"]
    for loss in losses:
        config = SETTINGS.get(loss, {})
        base = on_gpu(plain, dtype)
        adapter = filled_adapter(base, 4)
        data = make_data(LENGTHS, loss=loss)
        state, result = run_one(base, adapter, data, loss, config)
        adapter.move("cpu")
        value, wanted = reference_gradients(rounded(plain, dtype), adapter, data, loss, config)
        assert result.metrics["loss:sum"] == pytest.approx(value, rel=TOLERANCE[dtype] * 3, abs=0.05)
        for name, found in gradient(state).items():
            assert_close(found.cpu(), wanted[name], TOLERANCE[dtype], f"{loss} {name}")


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_mixed_ranks_joined_are_each_alone(family):
    plain = plain_model(family)
    base = on_gpu(plain)
    states = [TrainState(filled_adapter(base, rank, seed=rank)) for rank in (2, 4, 8)]
    data = [make_data([5, 11], seed=i) for i in range(3)]
    joined = Trainer(base).run([(s, part(d)) for s, d in zip(states, data, strict=True)])
    for state, datums, result in zip(states, data, joined, strict=True):
        alone, one = run_one(base, state.adapter, datums)
        for found, wanted in zip(result.outputs, one.outputs, strict=True):
            assert np.allclose(found["logprobs"], wanted["logprobs"], atol=2e-4)
        for name, found in gradient(state).items():
            assert_close(found, gradient(alone)[name], 2e-4, name)


@pytest.mark.parametrize("deterministic", [False, True], ids=["fast", "exact"])
@pytest.mark.parametrize("family", SAMPLED)
def test_greedy_equals_generate(family, deterministic):
    plain = plain_sampled(family)
    base = on_gpu(plain)
    asked = prompts(5)
    requests = [request(f"r{i}", p, temperature=0.0, max_tokens=30) for i, p in enumerate(asked)]
    got = sample(base, *requests, deterministic=deterministic)
    for i, prompt in enumerate(asked):
        assert got.of(f"r{i}") == greedy_reference(plain, prompt, 30)


@pytest.mark.parametrize("family", SAMPLED)
def test_one_adapter_through_graphs_equals_the_merged_model(family):
    plain = plain_sampled(family)
    base = on_gpu(plain)
    adapter = trained_adapter(base, 8, seed=3)
    asked = prompts(4)
    requests = [
        request(f"r{i}", p, version="v", temperature=0.0, max_tokens=40) for i, p in enumerate(asked)
    ]
    got = sample(base, *requests, adapters={"v": adapter})
    adapter.move("cpu")
    whole = merged(plain, adapter)
    for i, prompt in enumerate(asked):
        tokens = got.of(f"r{i}")
        assert tokens == greedy_reference(whole, prompt, 40)
        scored = all_logprobs(whole, [*prompt.tolist(), *tokens])
        wanted = [float(scored[len(prompt) - 1 + j, token]) for j, token in enumerate(tokens)]
        assert np.allclose(got.logprobs_of(f"r{i}"), wanted, atol=2e-4)
