"""The fused decoder on a GPU against transformers and PEFT in float32; skipped where there is no GPU.

Shapes are the smallest the kernels take. Tolerances are relative to the largest value: 8e-2 for bfloat16
against a float32 reference with the same rounded weights, 6e-2 against the plain decoder in bfloat16.
"""

import copy

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from tinkex.engine import gpu
from tinkex.engine.base_model import BaseModel
from tinkex.engine.trainer import Trainer, TrainState

from .sampling_models import request, sample
from .test_gradients import reference_gradients
from .training_models import assert_close, filled_adapter, gradient, make_data, part, run_one

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": None,
}
CONFIGS = {
    "llama": lambda: LlamaConfig(**SHAPE, tie_word_embeddings=False),
    "qwen2": lambda: Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen3": lambda: Qwen3Config(**SHAPE, tie_word_embeddings=False),
    "qwen3_tied": lambda: Qwen3Config(**SHAPE | {"num_key_value_heads": 1}, tie_word_embeddings=True),
    "mistral": lambda: MistralConfig(**SHAPE, sliding_window=40),
}
LENGTHS = [90, 1, 140, 33, 400]


def plain_model(family):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        CONFIGS[family](), dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.1)
            else:
                parameter.mul_(1 + 0.2 * torch.randn_like(parameter))
    return model.bfloat16().float().eval()


def on_gpu(plain, monkeypatch=None):
    """The engine's model; with a monkeypatch, by the plain decoder."""
    if monkeypatch is not None:
        monkeypatch.setattr("tinkex.engine.base_model.room_beside", lambda model: 0)
    base = BaseModel(copy.deepcopy(plain).to("cuda", torch.bfloat16))
    assert (base.decoder.border is None) == (monkeypatch is not None)
    return base


@pytest.mark.parametrize("checkpoint", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("family", CONFIGS)
def test_loss_and_gradients(family, checkpoint):
    plain = plain_model(family)
    base = on_gpu(plain)
    adapter = filled_adapter(base, 8)
    data = make_data(LENGTHS)
    state = TrainState(adapter)
    trainer = Trainer(base, checkpoint_activations=checkpoint)
    (result,) = trainer.run([(state, part(data))])
    adapter.move("cpu")
    value, wanted = reference_gradients(plain, adapter, data, "cross_entropy", {})
    assert result.metrics["loss:sum"] == pytest.approx(value, rel=2e-2)
    for name, found in gradient(state).items():
        assert_close(found.cpu(), wanted[name], 8e-2, f"{family} {name}")


@pytest.mark.parametrize("family", CONFIGS)
def test_the_fused_decoder_is_the_plain_one(family, monkeypatch):
    plain = plain_model(family)
    found = []
    for base in (on_gpu(plain), on_gpu(plain, monkeypatch)):
        for lengths in ([20, 7], LENGTHS):
            state, result = run_one(base, filled_adapter(base, 24), make_data(lengths))
            found.append((state, result))
    for (state, result), (plain_state, wanted) in zip(found[:2], found[2:], strict=True):
        for mine, theirs in zip(result.outputs, wanted.outputs, strict=True):
            assert np.abs(mine["logprobs"] - theirs["logprobs"]).max() < 0.15
        for name, each in gradient(state).items():
            assert_close(each, gradient(plain_state)[name], 6e-2, name)


@pytest.mark.parametrize("family", CONFIGS)
def test_mixed_ranks_joined_are_each_alone(family):
    base = on_gpu(plain_model(family))
    states = [TrainState(filled_adapter(base, rank, seed=rank)) for rank in (2, 40, 8, 32)]
    data = [make_data([5, 300], seed=i) for i in range(4)]
    joined = Trainer(base).run([(s, part(d)) for s, d in zip(states, data, strict=True)])
    for state, datums, result in zip(states, data, joined, strict=True):
        alone, one = run_one(base, state.adapter, datums)
        for found, wanted in zip(result.outputs, one.outputs, strict=True):
            assert np.allclose(found["logprobs"], wanted["logprobs"], atol=0.15)
        for name, found in gradient(state).items():
            assert_close(found, gradient(alone)[name], 6e-2, name)


def test_too_many_ranks_are_computed_another_way():
    base = on_gpu(plain_model("qwen3"))
    ranks = (gpu.CAPACITY // 2, gpu.CAPACITY // 2, 8)
    states = [TrainState(filled_adapter(base, rank, seed=rank)) for rank in ranks]
    data = [make_data([5, 30], seed=i) for i in range(3)]
    joined = Trainer(base).run([(s, part(d)) for s, d in zip(states, data, strict=True)])
    for state, datums, result in zip(states, data, joined, strict=True):
        alone, one = run_one(base, state.adapter, datums)
        for found, wanted in zip(result.outputs, one.outputs, strict=True):
            assert np.allclose(found["logprobs"], wanted["logprobs"], atol=0.15)
        for name, found in gradient(state).items():
            assert_close(found, gradient(alone)[name], 6e-2, name)


@pytest.mark.parametrize("family", CONFIGS)
def test_samples_of_many_adapters_have_the_logprobs_training_gives(family):
    base = on_gpu(plain_model(family))
    adapters = {f"v{rank}": filled_adapter(base, rank, seed=rank) for rank in (4, 32, 17)}
    random = np.random.default_rng(0)
    asked = {}
    requests = []
    for i, length in enumerate((3, 70, 16, 300, 15, 33, 128, 9)):
        version = [None, *adapters][i % 4]
        prompt = random.integers(2, 97, length).astype(np.int32)
        asked[f"r{i}"] = (version, prompt)
        given = {} if version is None else {"version": version}
        requests.append(request(f"r{i}", prompt, max_tokens=40, stop=(), seed=i, **given))
    got = sample(base, *requests, adapters=adapters)
    for name, (version, prompt) in asked.items():
        tokens = got.of(name)
        assert len(tokens) == 40
        whole = np.concatenate([prompt, tokens])
        data = make_data([len(whole) - 1])
        data[0].tokens[:] = whole[:-1]
        data[0].inputs["target_tokens"][:] = whole[1:]
        adapter = adapters.get(version) or base.new_adapter(1, seed=0)
        _, result = run_one(base, adapter, data)
        wanted = result.outputs[0]["logprobs"][len(prompt) - 1 :]
        assert np.abs(np.asarray(got.logprobs_of(name)) - wanted).max() < 0.2, name
