"""The fused decoder on a CPU: its kernels interpreted, all the rest as on a GPU, in float32.

`test_kernels_without_gpu.py` starts it where Triton's interpreter is.
"""

import copy

import numpy as np
import pytest

from tinkex.engine import gpu
from tinkex.engine.base_model import BaseModel
from tinkex.engine.trainer import Trainer, TrainState

from .cpu_stand_ins import Arrived, DoneAgain, install
from .kernel_modes import MODE
from .sampling_models import request, sample
from .test_gpu_fused import CONFIGS, plain_model
from .test_gradients import reference_gradients
from .training_models import assert_close, filled_adapter, gradient, make_data, part, run_one

pytestmark = pytest.mark.skipif(MODE != "interpreted", reason="needs Triton's interpreter")
if MODE == "interpreted":
    install()


@pytest.fixture(params=CONFIGS)
def family(request):
    return request.param


@pytest.fixture
def fused(family, monkeypatch):
    """A model and the engine's, whose weights have a border as on a GPU."""
    monkeypatch.setattr("tinkex.engine.base_model.room_beside", lambda model: gpu.CAPACITY)
    monkeypatch.setattr("tinkex.engine.base_model.FOLDABLE", 0)
    monkeypatch.setattr("tinkex.engine.gpu.fused_decoder.FEW", 2)
    monkeypatch.setattr("tinkex.engine.gpu.fused_decoder.HALVED", 15)
    monkeypatch.setattr("tinkex.engine.gpu.fused_decoder.BORDERED", 24)
    monkeypatch.setattr("tinkex.engine.gpu.border.MANY", 60)
    monkeypatch.setattr("tinkex.engine.runner.AdapterStacks.segment", lambda stacks, adapters: None)
    monkeypatch.setattr("tinkex.engine.runner.Slots.hold", lambda slots, rows, longest: None)
    plain = plain_model(family)
    base = BaseModel(copy.deepcopy(plain))
    assert base.decoder.border is not None
    base.decoder.rotary.heads = 1  # tables as on a GPU
    return plain, base


def check(plain, state, data, result):
    """A pass's loss and gradients are those of transformers and PEFT."""
    value, wanted = reference_gradients(plain, state.adapter, data, "cross_entropy", {})
    assert result.metrics["loss:sum"] == pytest.approx(value, rel=1e-5)
    for name, found in gradient(state).items():
        assert_close(found, wanted[name], 2e-4, name)


@pytest.mark.parametrize(
    ("lengths", "checkpoint"),
    [([9, 1, 7], False), ([17, 1, 45], False), ([17, 1, 45], True)],
    ids=["few", "many", "recomputed"],
)
def test_loss_and_gradients(fused, lengths, checkpoint):
    plain, base = fused
    state = TrainState(filled_adapter(base, 8))
    data = make_data(lengths)
    (result,) = Trainer(base, checkpoint_activations=checkpoint).run([(state, part(data))])
    check(plain, state, data, result)


def test_mixed_ranks_joined_are_each_alone(fused):
    plain, base = fused
    states = [TrainState(filled_adapter(base, rank, seed=rank)) for rank in (2, 40, 8)]
    data = [make_data([5, 20], seed=i) for i in range(3)]
    joined = Trainer(base).run([(s, part(d)) for s, d in zip(states, data, strict=True)])
    for state, datums, result in zip(states, data, joined, strict=True):
        check(plain, state, datums, result)


@pytest.mark.parametrize(
    ("recorded", "few"), [(False, 8), (True, 2)], ids=["launched, few", "recorded, halves"]
)
def test_samples_of_many_adapters_have_the_logprobs_training_gives(fused, recorded, few, monkeypatch):
    _, base = fused
    monkeypatch.setattr("tinkex.engine.gpu.fused_decoder.FEW", few)
    if recorded:
        monkeypatch.setattr("tinkex.engine.runner.Recorder", DoneAgain)
        monkeypatch.setattr("tinkex.engine.runner._OnTheWay", Arrived)
        DoneAgain.replays = 0
    adapters = {f"v{rank}": filled_adapter(base, rank, seed=rank) for rank in (4, 17)}
    random = np.random.default_rng(0)
    asked, requests = {}, []
    for i, length in enumerate((3, 40, 16, 15)):
        version = [None, *adapters][i % 3]
        prompt = random.integers(2, 97, length).astype(np.int32)
        asked[f"r{i}"] = (version, prompt)
        given = {} if version is None else {"version": version}
        given |= {"temperature": 0.0} if i == 3 else {}
        requests.append(request(f"r{i}", prompt, max_tokens=6, stop=(), seed=i, **given))
    got = sample(base, *requests, adapters=adapters, ahead=recorded)
    assert not recorded or DoneAgain.replays >= 6
    for name, (version, prompt) in asked.items():
        whole = np.concatenate([prompt, got.of(name)])
        assert len(whole) == len(prompt) + 6
        data = make_data([len(whole) - 1])
        data[0].tokens[:], data[0].inputs["target_tokens"][:] = whole[:-1], whole[1:]
        adapter = adapters.get(version) or base.new_adapter(1, seed=0)
        _, result = run_one(base, adapter, data)
        wanted = result.outputs[0]["logprobs"][len(prompt) - 1 :]
        assert np.abs(np.asarray(got.logprobs_of(name)) - wanted).max() < 2e-4, name
