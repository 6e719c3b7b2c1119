"""Opening an engine from its first message; how it is spoken to is tested with the server's links."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from tinkex.engine import child
from tinkex.engine.base_model import BaseModel
from tinkex.engine.desk import CallFailed, Desk
from tinkex.engine.detokenise import _by_transformers, detokeniser
from tinkex.engine.messages import AskStats, Sample, SamplingParams, Start
from tinkex.testing import make_tiny_model


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", *child.WAITING):
        monkeypatch.setenv(name, "1")
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "m", hidden=32, vocab=300, context=128)


def start(folder, **fields):
    return Start(2, str(folder), device="cpu", **({"sampling": {"kv_bytes": 4 << 20}} | fields))


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_tiny_models_of_every_family_load_whole(family, tmp_path):
    place = make_tiny_model(tmp_path / family, name=family, hidden=32, vocab=300, tied=family == "llama")
    base = BaseModel.load(place, device="cpu")
    assert base.config.model_type == family
    assert (base.vocab_size, base.hidden_size, base.tied) == (300, 32, family == "llama")
    stored = child.stored_parameters(place)
    assert sum(parameter.numel() for parameter in base.model.parameters()) == stored


def test_options_reach_the_engine(folder, tmp_path):
    (tmp_path / "states").mkdir()
    engine = child.open_engine(
        start(
            folder,
            state=str(tmp_path),
            threads=2,
            dtype="bfloat16",
            deterministic=True,
            training={"max_rank": 9, "keep_ephemeral": 3},
            sampling={"kv_bytes": 2 << 20, "max_rows": 5},
        )
    )
    assert (engine.options.max_rank, engine.options.keep_ephemeral, engine.options.folder) == (
        9,
        3,
        tmp_path,
    )
    assert (engine.sampler.options.max_rows, engine.sampler.options.deterministic) == (5, True)
    facts = engine.ready().facts
    assert (facts["dtype"], facts["threads"], facts["deterministic"]) == ("bfloat16", 2, True)
    assert os.environ["OMP_NUM_THREADS"] == os.environ["MKL_NUM_THREADS"] == "2"
    assert not (tmp_path / "states").exists(), "states of an engine that is gone mean nothing"
    with pytest.raises(TypeError, match="no_such_option"):
        child.open_engine(start(folder, training={"no_such_option": 1}))


def test_small_models_run_on_one_thread(folder, monkeypatch):
    assert child.open_engine(start(folder)).ready().facts["threads"] == 1
    monkeypatch.setattr(child, "SMALL", 1000)
    monkeypatch.setattr(child, "_cores", lambda: 3)
    assert child.open_engine(start(folder)).ready().facts["threads"] == 3


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch brings another OpenMP")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "GOMP_SPINCOUNT = '2000'"),
        pytest.param({"GOMP_SPINCOUNT": "77"}, "GOMP_SPINCOUNT = '77'", marks=pytest.mark.slow),
        pytest.param({"OMP_WAIT_POLICY": "ACTIVE"}, "OMP_WAIT_POLICY = 'ACTIVE'", marks=pytest.mark.slow),
    ],
)
def test_threads_that_wait_leave_the_core_to_others(folder, given, said):
    program = (
        "from tinkex.engine import child; from tinkex.engine.messages import Start\n"
        f"child.open_engine(Start(2, {str(folder)!r}, device='cpu', threads=2))"
    )
    kept = {name: value for name, value in os.environ.items() if name not in child.WAITING}
    environ = {**kept, "OMP_DISPLAY_ENV": "VERBOSE", **given}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environ, check=True
    )
    assert said in done.stderr, "what OpenMP itself has read"
    assert ("GOMP_SPINCOUNT = '2000'" in done.stderr) == (not given)


def test_without_a_tokenizer_stop_strings_are_refused(folder, tmp_path, caplog):
    place = make_tiny_model(tmp_path / "bare", hidden=32, vocab=300)
    for path in place.glob("tokenizer*"):
        path.unlink()
    with Desk(child.open_engine(start(place))) as desk:
        assert desk.host.ready().facts["stop_strings"] is False
        params = SamplingParams(max_tokens=2, stop=("x",))
        with pytest.raises(CallFailed, match="stop strings need a tokenizer"):
            desk.sample(Sample(2, "s", "", np.arange(3), 1, params)).result()
        assert desk.call(AskStats(2, "a"), timeout=30).figures["rows"] == 0
    assert "no tokenizer, so stop strings will be refused" in caplog.text


def test_both_ways_to_text_agree(folder):
    ids = [*"zwölf 🙂".encode(), 258, 299]
    assert detokeniser(folder)(ids) == _by_transformers(folder, False)(ids) == "zwölf 🙂<|im_end|>"
