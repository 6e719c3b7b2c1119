"""Sampling against transformers: greedy tokens, logprobs, mixed adapters, windows, prompt scores."""

import numpy as np
import pytest
import torch

from tinkex.engine.base_model import BaseModel
from tinkex.engine.messages import LENGTH, STOP, Datum, ScoreOptions, SparseRows, TrainPart
from tinkex.engine.trainer import Trainer, TrainState

from .sampling_models import (
    FAMILIES,
    base_model,
    merged,
    plain_model,
    prompts,
    request,
    sample,
    trained_adapter,
)


@pytest.fixture(scope="module", params=FAMILIES)
def models(request):
    return base_model(request.param)


def greedy_reference(model, prompt, count):
    ids = torch.from_numpy(prompt)[None]
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()


def all_logprobs(model, tokens):
    with torch.no_grad():
        return torch.log_softmax(model(input_ids=torch.tensor(tokens)[None]).logits[0].float(), -1)


@pytest.mark.parametrize("deterministic", [False, True], ids=["fast", "exact"])
def test_greedy_equals_generate(models, deterministic):
    base, plain = models
    asked = prompts(5)
    got = sample(
        base,
        *(request(f"r{i}", p, temperature=0.0, max_tokens=30) for i, p in enumerate(asked)),
        deterministic=deterministic,
    )
    for i, prompt in enumerate(asked):
        expected = greedy_reference(plain, prompt, 30)
        assert got.of(f"r{i}") == expected
        assert got.reason(f"r{i}") == (STOP if expected[-1] == 1 else LENGTH)


@pytest.mark.parametrize("deterministic", [False, True], ids=["fast", "exact"])
def test_mixed_adapters_in_one_batch_equal_merged_models(models, deterministic):
    base, plain = models
    adapters = {
        "a": trained_adapter(base, 4, seed=1),
        "b": trained_adapter(base, 8, seed=2, unembed=False),
        "c": trained_adapter(base, 3, seed=3, mlp=False),
        "": None,
    }
    asked = prompts(8, seed=9)
    names = ["a", "b", "", "c", "a", "c", "b", ""]
    got = sample(
        base,
        *(
            request(f"r{i}", p, version=v, temperature=0.0, max_tokens=20, stop=())
            for i, (p, v) in enumerate(zip(asked, names, strict=True))
        ),
        adapters=adapters,
        deterministic=deterministic,
    )
    for i, (prompt, version) in enumerate(zip(asked, names, strict=True)):
        model = plain if adapters[version] is None else merged(plain, adapters[version])
        scores = all_logprobs(model, [*prompt, *got.of(f"r{i}")])[len(prompt) - 1 : -1]
        assert got.of(f"r{i}") == scores.argmax(-1).tolist()
        assert np.allclose(got.logprobs_of(f"r{i}"), scores.max(-1).values, atol=1e-4)


def test_sampled_logprobs_are_those_of_the_tempered_model(models):
    base, plain = models
    adapter = trained_adapter(base, 4, seed=4)
    model = merged(plain, adapter)
    prompt = prompts(1, 20, 21)[0]
    got = sample(
        base,
        request("t1", prompt, version="a", seed=3, max_tokens=40, stop=()),
        request("t2", prompt, version="a", seed=3, max_tokens=40, stop=(), temperature=0.6, top_p=0.9),
        request(
            "raw",
            prompt,
            version="a",
            seed=3,
            max_tokens=40,
            stop=(),
            temperature=0.6,
            scores=ScoreOptions(raw=True),
        ),
        adapters={"a": adapter},
    )
    for name, temperature in (("t1", 1.0), ("t2", 0.6), ("raw", 1.0)):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([*prompt, *got.of(name)])[None]).logits[0] / temperature
        scores = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
        expected = scores.gather(1, torch.tensor(got.of(name))[:, None])[:, 0]
        assert np.allclose(got.logprobs_of(name), expected, atol=1e-4)


@pytest.mark.parametrize("deterministic", [False, True], ids=["fast", "exact"])
@pytest.mark.parametrize("pass_tokens", [7, 512])
def test_prompt_scores(models, deterministic, pass_tokens):
    base, plain = models
    prompt = prompts(1, 45, 46, seed=2)[0]
    size = len(prompt)
    scores = all_logprobs(plain, prompt)
    dense = np.random.default_rng(0).integers(-1, 96, (size - 1, 3))
    crow = np.minimum(np.arange(size) * 2, 30)
    sparse = SparseRows(np.arange(30) % 96, crow, np.arange(30) % 2, (size - 1, 2))
    got = sample(
        base,
        request("all", prompt, max_tokens=1, scores=ScoreOptions(prompt_logprobs=True, topk_prompt=4)),
        request(
            "last", prompt, max_tokens=1, scores=ScoreOptions(prompt_logprobs=True, topk_prompt=2, last_n=5)
        ),
        request(
            "dense",
            prompt,
            max_tokens=1,
            scores=ScoreOptions(prompt_logprobs=True, topk_prompt=2, last_n=5, targets=dense),
        ),
        request("sparse", prompt, max_tokens=0, scores=ScoreOptions(targets=sparse)),
        deterministic=deterministic,
        pass_tokens=pass_tokens,
    )
    own = scores[:-1].gather(1, torch.from_numpy(prompt)[1:, None])[:, 0].numpy()
    whole = got.done["all"]
    assert np.isnan(whole.prompt_logprobs[0])
    assert np.allclose(whole.prompt_logprobs[1:], own, atol=1e-4)
    top = scores[:-1].topk(4)
    assert np.array_equal(whole.topk_prompt_tokens[1:], top.indices)
    assert np.allclose(whole.topk_prompt_logprobs[1:], top.values, atol=1e-4)
    assert np.isnan(whole.topk_prompt_logprobs[0]).all()
    for last in (got.done["last"], got.done["dense"]):
        assert np.isnan(last.prompt_logprobs[:-5]).all()
        assert np.allclose(last.prompt_logprobs[-5:], own[-5:], atol=1e-4)
        assert np.isnan(last.topk_prompt_logprobs[:-5]).all()
        assert np.array_equal(last.topk_prompt_tokens[-5:], top.indices[-5:, :2])
    found = got.done["dense"].target_logprobs
    expected = np.where(dense < 0, 0, scores[:-1].gather(1, torch.from_numpy(dense.clip(0))))
    assert np.allclose(found, expected, atol=1e-4)
    cells = got.done["sparse"].target_logprobs
    rows = np.repeat(np.arange(size - 1), np.diff(crow))
    assert np.allclose(cells.values, scores[rows, sparse.values], atol=1e-4)
    assert got.of("sparse") == []
    assert got.reason("sparse") == LENGTH


def test_alternatives_are_drawn_at_every_position(models):
    base, plain = models
    prompt = prompts(1, 12, 13)[0]
    scores = ScoreOptions(alt_tokens=90)
    ask = {"temperature": 0.7, "max_tokens": 1, "scores": scores}
    names = {"x": 1, "y": 1, "z": 2}
    got = sample(base, *(request(name, prompt, seed=seed, **ask) for name, seed in names.items()))
    x, y, z = (got.done[name] for name in names)
    assert np.array_equal(x.alt_tokens, y.alt_tokens)
    assert not np.array_equal(x.alt_tokens, z.alt_tokens)
    logprobs = all_logprobs(plain, prompt)[:-1]
    assert np.allclose(x.alt_logprobs, logprobs.gather(1, torch.from_numpy(x.alt_tokens)), atol=1e-4)
    tempered = torch.softmax(logprobs / 0.7, -1).numpy()
    counts = np.stack([np.bincount(row, minlength=96) for row in np.hstack([x.alt_tokens, z.alt_tokens])])
    likely = tempered > 0.02
    spread = np.sqrt(tempered * (1 - tempered) * 180)
    assert (abs(counts - tempered * 180)[likely] < 5 * spread[likely]).all()
    assert not counts[tempered < 1e-7].any()


def test_top_sample_logprobs(models):
    base, plain = models
    prompt = prompts(1, 9, 10)[0]
    got = sample(
        base,
        request(
            "k3", prompt, seed=1, max_tokens=6, temperature=0.5, stop=(), scores=ScoreOptions(topk_sample=3)
        ),
        request("k5", prompt, seed=2, max_tokens=6, stop=(), scores=ScoreOptions(topk_sample=5)),
        request("none", prompt, seed=3, max_tokens=6, stop=()),
    )
    assert got.first["none"] not in got.top
    for name, k, temperature in (("k3", 3, 0.5), ("k5", 5, 1.0)):
        with torch.no_grad():
            logits = plain(input_ids=torch.tensor([*prompt, *got.of(name)])[None]).logits[
                0, len(prompt) - 1 : -1
            ]
        expected = torch.log_softmax(logits / temperature, -1).topk(k)
        tokens = np.array([top[0] for top in got.top[got.first[name]]])
        logprobs = np.array([top[1] for top in got.top[got.first[name]]])
        assert np.array_equal(tokens[:, :k], expected.indices)
        assert np.allclose(logprobs[:, :k], expected.values, atol=1e-4)
        assert (tokens[:, k:] == -1).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_own_layers_give_the_same(family):
    base, plain = base_model(family)
    base.decoder = None
    adapters = {"a": trained_adapter(base, 4, seed=1), "": None}
    asked = prompts(4, seed=6)
    got = sample(
        base,
        *(
            request(f"r{i}", p, version=v, temperature=0.0, max_tokens=12, stop=())
            for i, (p, v) in enumerate(zip(asked, ["a", "", "a", ""], strict=True))
        ),
        adapters=adapters,
        pass_tokens=16,
    )
    models = {"a": merged(plain, adapters["a"]), "": plain}
    for i, (prompt, version) in enumerate(zip(asked, ["a", "", "a", ""], strict=True)):
        scores = all_logprobs(models[version], [*prompt, *got.of(f"r{i}")])[len(prompt) - 1 : -1]
        assert got.of(f"r{i}") == scores.argmax(-1).tolist()
        assert np.allclose(got.logprobs_of(f"r{i}"), scores.max(-1).values, atol=1e-4)


@pytest.mark.parametrize("deterministic", [False, True], ids=["fast", "exact"])
@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_logprobs_are_near_those_of_the_same_weights_in_float32(family, deterministic):
    base = BaseModel(plain_model(family, dtype=torch.bfloat16))
    wide = plain_model(family, dtype=torch.bfloat16).float()
    adapter = trained_adapter(base, 4, seed=1)
    model = merged(wide, adapter)
    prompt = prompts(1, 30, 31)[0]
    got = sample(
        base,
        request("x", prompt, 3, version="a", seed=1, max_tokens=20, stop=()),
        adapters={"a": adapter},
        deterministic=deterministic,
    )
    for i in range(3):
        scores = all_logprobs(model, [*prompt, *got.of("x", i)])[len(prompt) - 1 : -1]
        expected = scores.gather(1, torch.tensor(got.of("x", i))[:, None])[:, 0]
        error = np.abs(np.array(got.logprobs_of("x", i)) - expected.numpy())
        assert error.mean() < 0.02, "bfloat16 has 8 bits: a few thousandths over two layers"
        assert error.max() < 0.1


def test_sampled_logprobs_equal_the_training_path(models):
    base, _ = models
    adapter = trained_adapter(base, 4, seed=2)
    prompt = prompts(1, 18, 19)[0]
    got = sample(
        base,
        request("x", prompt, 2, version="a", seed=5, max_tokens=30, stop=()),
        adapters={"a": adapter},
    )
    data = []
    for i in range(2):
        whole = np.concatenate([prompt, got.of("x", i)])
        weights = np.ones(len(whole) - 1, np.float32)
        data.append(Datum(whole[:-1], {"target_tokens": whole[1:], "weights": weights}))
    part = TrainPart("m", tuple(data), "cross_entropy", forward_only=True)
    (found,) = Trainer(base).run([(TrainState(adapter), part)])
    for i in range(2):
        trained = found.outputs[i]["logprobs"][len(prompt) - 1 :]
        assert np.allclose(trained, got.logprobs_of("x", i), atol=1e-4)


@pytest.mark.parametrize("deterministic", [False, True], ids=["fast", "exact"])
def test_first_tokens_follow_the_models_softmax(deterministic):
    base, plain = base_model("llama")
    prompt = prompts(1, 11, 12)[0]
    count = 3000
    got = sample(
        base,
        request("x", prompt, count, seed=8, max_tokens=1, temperature=0.8),
        deterministic=deterministic,
        max_rows=128,
    )
    with torch.no_grad():
        logits = plain(input_ids=torch.from_numpy(prompt)[None]).logits[0, -1]
    expected = torch.softmax(logits.double() / 0.8, -1).numpy() * count
    counts = np.bincount([got.of("x", i)[0] for i in range(count)], minlength=96)
    big = expected >= 8
    statistic = ((counts - expected)[big] ** 2 / expected[big]).sum()
    assert abs(statistic - big.sum()) < 5 * np.sqrt(2 * big.sum())
