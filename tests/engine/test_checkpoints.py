"""Saved states go on bit for bit, sampler weights stay as they were, damage and strangers are refused."""

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tinkex.engine.checkpoints import (
    FILE,
    load_sampler,
    load_state,
    save_sampler,
    save_state,
)
from tinkex.engine.faults import ServerFault, UserFault
from tinkex.engine.trainer import Trainer, TrainState

from .training_models import engine_model, filled_adapter, make_data, part, plain_model

PARAMS = {"learning_rate": 3e-3, "weight_decay": 0.01, "grad_clip_norm": 1.0}


def train(trainer, state, steps):
    losses = []
    for step in steps:
        (result,) = trainer.run([(state, part(make_data([6, 9], seed=step)))])
        losses.append(result.metrics["loss:sum"])
        trainer.optim_step(state, PARAMS)
    return losses


@pytest.fixture(scope="module")
def base():
    return engine_model(plain_model("qwen3"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_resuming_is_never_having_stopped(tmp_path, family, dtype):
    base = engine_model(plain_model(family, dtype))
    trainer = Trainer(base)
    straight = TrainState(filled_adapter(base, 4))
    stopped = TrainState(filled_adapter(base, 4))
    losses = train(trainer, straight, range(8))
    first = train(trainer, stopped, range(4))
    save_state(tmp_path / "four", stopped)
    resumed = load_state(tmp_path / "four", base)
    assert resumed.steps == 4
    assert first + train(Trainer(base), resumed, range(4, 8)) == losses
    assert torch.equal(resumed.adapter.master.flat, straight.adapter.master.flat)
    assert torch.equal(resumed.moments.exp_avg_sq, straight.moments.exp_avg_sq)


def test_a_gradient_half_collected_survives(base, tmp_path):
    trainer = Trainer(base)
    state = TrainState(filled_adapter(base, 4))
    trainer.run([(state, part(make_data([6])))])
    save_state(tmp_path / "a", state, with_gradient=True)
    back = load_state(tmp_path / "a", base)
    assert torch.equal(back.grads.flat, state.grads.flat)
    save_state(tmp_path / "b", state)
    assert load_state(tmp_path / "b", base).grads is None


def test_weights_alone_start_a_new_optimizer(base, tmp_path):
    trainer = Trainer(base)
    state = TrainState(filled_adapter(base, 4))
    train(trainer, state, range(3))
    save_state(tmp_path / "s", state)
    fresh = load_state(tmp_path / "s", base, with_optimizer=False)
    assert fresh.steps == 0
    assert fresh.moments is None
    assert torch.equal(fresh.adapter.master.flat, state.adapter.master.flat)


def test_sampler_weights_keep_everything_that_matters(base, tmp_path):
    adapter = filled_adapter(base, 6, mlp=False)
    size = save_sampler(tmp_path / "w", adapter)
    assert size > adapter.master.flat.nbytes
    back = load_sampler(tmp_path / "w", base)
    assert torch.equal(back.master.flat, adapter.master.flat)
    assert (back.rank, back.alpha, back.scale, back.parts) == (6, 32.0, 32 / 6, {"attn", "unembed"})


def test_a_folder_is_replaced_whole(base, tmp_path):
    one, two = (TrainState(filled_adapter(base, 4, seed=seed)) for seed in (1, 2))
    save_state(tmp_path / "s", one)
    save_state(tmp_path / "s", two)
    assert torch.equal(load_state(tmp_path / "s", base).adapter.master.flat, two.adapter.master.flat)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_failed_write_leaves_the_old_one(base, tmp_path, monkeypatch):
    state = TrainState(filled_adapter(base, 4))
    save_state(tmp_path / "s", state)

    def full(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr("tinkex.engine.tensor_files.save_file", full)
    with pytest.raises(OSError, match="no space"):
        save_state(tmp_path / "s", TrainState(filled_adapter(base, 4, seed=9)))
    assert torch.equal(load_state(tmp_path / "s", base).adapter.master.flat, state.adapter.master.flat)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_absent_damaged_and_foreign_ones_are_told_apart(base, tmp_path):
    with pytest.raises(UserFault, match="no checkpoint"):
        load_state(tmp_path / "nothing", base)
    save_state(tmp_path / "s", TrainState(filled_adapter(base, 4)))
    other = engine_model(plain_model("llama"))
    with pytest.raises(UserFault, match="another base model"):
        load_state(tmp_path / "s", other)
    path = tmp_path / "s" / FILE
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ServerFault, match="cannot be read"):
        load_state(tmp_path / "s", base)


def test_one_wrong_bit_anywhere_is_found(base, tmp_path):
    state = TrainState(filled_adapter(base, 4, seed=1))
    Trainer(base).optim_step(state, PARAMS)
    save_state(tmp_path / "a", state)
    path = tmp_path / "a" / FILE
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    step = whole.index(b'"step":"1"') + len(b'"step":"')
    places = [step, *np.random.default_rng(0).integers(header, len(whole), 12).tolist(), len(whole) - 1]
    for place in places:
        harmed = bytearray(whole)
        harmed[place] ^= 1 << (place % 4)
        path.write_bytes(harmed)
        with pytest.raises(ServerFault, match="damaged"):
            load_state(tmp_path / "a", base)
        with pytest.raises(ServerFault, match="damaged"):
            load_sampler(tmp_path / "a", base)
    for length in (0, 5, header - 1, header + 1, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ServerFault, match="cannot be read"):
            load_state(tmp_path / "a", base)
    path.write_bytes(whole)
    assert load_state(tmp_path / "a", base).steps == 1


def test_a_state_saved_without_a_checksum_is_read(base, tmp_path):
    save_state(tmp_path / "a", TrainState(filled_adapter(base, 4, seed=1)))
    path = tmp_path / "a" / FILE
    with safe_open(path, framework="pt") as file:
        facts = {key: value for key, value in file.metadata().items() if key != "checksum"}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, metadata=facts)
    assert load_state(tmp_path / "a", base).adapter.rank == 4


def test_a_seed_means_the_same_adapter_everywhere():
    first = engine_model(plain_model("qwen3")).new_adapter(8, seed=7)
    second = engine_model(plain_model("qwen3", torch.bfloat16, seed=5)).new_adapter(8, seed=7)
    assert torch.equal(first.master.flat, second.master.flat)
    other = engine_model(plain_model("qwen3")).new_adapter(8, seed=8)
    assert not torch.equal(first.master.flat, other.master.flat)
    a = first.master.a["model.layers.0.self_attn.q_proj"]
    assert float(a.abs().max()) <= 32**-0.5
    assert np.isclose(float(a.std()), 32**-0.5 / 3**0.5, rtol=0.1)
    assert not first.master.bt["lm_head"].any()


def test_adapter_sizes_are_the_published_ones():
    base = engine_model(plain_model("llama"))
    layers, hidden, inner, kv = 2, 32, 48, 16
    attn = layers * ((hidden + hidden) * 2 + (hidden + kv) * 2)
    mlp = layers * 3 * (hidden + inner)
    assert base.layout(mlp=False, unembed=False).per_rank == attn
    assert base.layout(attn=False, unembed=False).per_rank == mlp
    assert base.layout(attn=False, mlp=False).per_rank == hidden + 97
    moe = engine_model(plain_model("qwen3_moe"))
    assert moe.layout(attn=False, unembed=False).per_rank == 2 * 3 * (32 + 6 * 16)
