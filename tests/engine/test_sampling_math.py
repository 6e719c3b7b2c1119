"""Drawing tokens: right frequencies, HF's support sets, randomness from its three numbers alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tinkex.engine import sampling_math
from tinkex.engine.sampling_math import PROMPT, DrawParams, draw, narrow, pick, uniforms

torch.set_num_threads(1)


def u64(*values):
    return np.array(values, np.uint64)


def numbers(count, seed=7, index=0, purpose=1):
    ones = np.ones(count, np.uint64)
    return uniforms(
        ones * np.uint64(seed), ones * np.uint64(index), np.arange(count, dtype=np.uint64), purpose
    )


def chi_square(counts, probabilities):
    """The statistic's distance from its mean in standard deviations, rare cells taken together."""
    expected = counts.sum() * probabilities
    big = expected >= 10
    counts = np.append(counts[big], counts[~big].sum())
    expected = np.append(expected[big], expected[~big].sum())
    keep = expected > 0
    assert counts[~keep].sum() == 0
    statistic = ((counts[keep] - expected[keep]) ** 2 / expected[keep]).sum()
    degrees = keep.sum() - 1
    return (statistic - degrees) / np.sqrt(2 * degrees)


def test_numbers_are_uniform_and_independent():
    u = numbers(1 << 17)
    assert abs(chi_square(np.bincount((u * 256).astype(int), minlength=256), np.full(256, 1 / 256))) < 5
    pairs = (u[:-1] * 16).astype(int) * 16 + (u[1:] * 16).astype(int)
    assert abs(chi_square(np.bincount(pairs, minlength=256), np.full(256, 1 / 256))) < 5
    for other in (numbers(1 << 17, seed=8), numbers(1 << 17, index=1), numbers(1 << 17, purpose=PROMPT)):
        assert abs(np.corrcoef(u, other)[0, 1]) < 0.02


def test_numbers_depend_on_seed_index_and_position_alone():
    alone = uniforms(u64(5), u64(2), u64(9))
    among = uniforms(u64(1, 5, 3), u64(0, 2, 4), u64(7, 9, 2))
    assert alone[0] == among[1]
    seen = {
        float(uniforms(u64(s), u64(i), u64(p))[0])
        for s in (0, 1, 2**64 - 1)
        for i in range(5)
        for p in range(5)
    }
    assert len(seen) == 75


def drawn_counts(logits, count, **params):
    row = torch.as_tensor(logits)[None].expand(count, -1)
    full = {"temperature": 1.0, "top_k": -1, "top_p": 1.0} | params
    laid_out = DrawParams.of(*([value] * count for value in full.values()), vocab=row.shape[1])
    out = draw(row, laid_out, torch.from_numpy(numbers(count)))
    return np.bincount(out.tokens_r.numpy(), minlength=row.shape[1]), out


@pytest.fixture(params=[0, 1 << 30], ids=["two levels", "one level"])
def levels(request, monkeypatch):
    monkeypatch.setattr(sampling_math, "_SMALL", request.param)


@pytest.mark.usefixtures("levels")
@pytest.mark.parametrize("vocab", [3, 97, 1024])
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.9])
def test_frequencies_follow_the_tempered_softmax(vocab, temperature):
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(vocab)) * 2
    counts, out = drawn_counts(logits, 20_000, temperature=temperature)
    logprobs = torch.log_softmax(logits.double() / temperature, -1)
    assert abs(chi_square(counts, logprobs.exp().numpy())) < 5
    assert torch.allclose(out.logprobs_r.double(), logprobs[out.tokens_r], atol=1e-5)


@pytest.mark.parametrize(("top_k", "top_p"), [(5, 1.0), (-1, 0.6), (20, 0.8), (1, 1.0), (-1, 1e-9)])
def test_narrowed_frequencies_are_renormalised_and_logprobs_are_not(top_k, top_p):
    logits = torch.randn(200, generator=torch.Generator().manual_seed(3)) * 2
    counts, out = drawn_counts(logits, 20_000, temperature=0.8, top_k=top_k, top_p=top_p)
    scores = hf_scores(logits[None], 0.8, top_k, top_p)
    kept = torch.softmax(scores[0].double(), -1).numpy()
    assert np.flatnonzero(counts).tolist() == np.flatnonzero(counts * (kept > 0)).tolist()
    if (kept > 0).sum() > 1:
        assert abs(chi_square(counts, kept)) < 5
    whole = torch.log_softmax(logits.double() / 0.8, -1)
    assert torch.allclose(out.logprobs_r.double(), whole[out.tokens_r], atol=1e-5)


def hf_scores(logits, temperature, top_k, top_p):
    scores = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k > 0:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    return scores


@settings(max_examples=120, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(2, 60),
    st.floats(0.2, 3.0),
    st.integers(-1, 70),
    st.integers(10, 1000).map(lambda thousandths: thousandths / 1000),
)
def test_support_equals_the_warpers(seed, vocab, temperature, top_k, top_p):
    top_k = top_k if top_k > 0 else -1
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    expected = set(torch.isfinite(hf_scores(logits, temperature, top_k, top_p))[0].nonzero()[:, 0].tolist())
    mass = torch.exp((logits - logits.max()) / temperature)
    width = vocab if top_k < 0 else min(top_k, vocab)
    kept, ids = narrow(mass, width, torch.tensor([width]), torch.tensor([top_p], dtype=torch.float64))
    assert set(ids[kept > 0].tolist()) == expected


def test_rows_of_mixed_parameters_equal_each_row_alone():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 300, generator=generator) * 2
    columns = {
        "temperature": [0.0, 1.0, 0.5, 2.0, 1.0, 0.0],
        "top_k": [-1, 4, -1, 9, -1, 3],
        "top_p": [1.0, 1.0, 0.5, 0.9, 1.0, 0.2],
    }
    raw = [False, False, True, True, False, True]
    u = torch.from_numpy(numbers(6))
    together = draw(logits, DrawParams.of(*columns.values(), vocab=300, raw=raw, top=4), u)
    for row in range(6):
        one = DrawParams.of(*([v[row]] for v in columns.values()), vocab=300, raw=[raw[row]], top=4)
        alone = draw(logits[row : row + 1], one, u[row : row + 1])
        assert alone.tokens_r[0] == together.tokens_r[row]
        assert torch.allclose(alone.logprobs_r[0], together.logprobs_r[row], atol=1e-6)
        assert torch.equal(alone.top_tokens_rk[0], together.top_tokens_rk[row])
        assert torch.allclose(alone.top_logprobs_rk[0], together.top_logprobs_rk[row], atol=1e-6)
        temperature = 1.0 if raw[row] or columns["temperature"][row] == 0 else columns["temperature"][row]
        expected = torch.log_softmax(logits[row] / temperature, -1)
        assert torch.allclose(together.logprobs_r[row], expected[together.tokens_r[row]], atol=1e-5)
        assert torch.allclose(together.top_logprobs_rk[row], expected.topk(4).values, atol=1e-5)
    assert together.tokens_r[0] == logits[0].argmax()
    assert together.tokens_r[5] == logits[5].argmax()


def test_all_greedy_needs_no_randomness():
    logits = torch.randn(3, 50)
    out = draw(logits, DrawParams.of([0.0] * 3, [-1] * 3, [1.0] * 3, vocab=50), None)
    assert torch.equal(out.tokens_r, logits.argmax(-1))
    assert torch.allclose(out.logprobs_r, torch.log_softmax(logits, -1).max(-1).values, atol=1e-6)


@pytest.mark.parametrize("temperature", [1e-20, 1e-39, 5e-324])
def test_the_coldest_temperatures_draw_the_likeliest_token(temperature):
    logits = torch.randn(3, 50) * 20
    params = DrawParams.of([temperature] * 3, [-1, 5, -1], [1.0, 1.0, 0.9], vocab=50, top=2)
    out = draw(logits, params, torch.tensor([0.0, 0.5, 0.999], dtype=torch.float64))
    assert torch.equal(out.tokens_r, logits.argmax(-1))
    assert torch.equal(out.logprobs_r, torch.zeros(3))
    assert torch.isfinite(out.top_logprobs_rk).all()


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**32), st.sampled_from([0.0, 1 - 2**-53, 0.5, 0.999999]))
def test_tokens_without_mass_are_never_drawn(vocab, seed, u):
    generator = torch.Generator().manual_seed(seed)
    mass = torch.rand(4, vocab, generator=generator) * (torch.rand(4, vocab, generator=generator) < 0.2)
    mass[:, int(seed) % vocab] = 1e-6
    draws = torch.full((4, 3), u, dtype=torch.float64)
    assert (mass.gather(1, pick(mass, draws)) > 0).all()
    usual = sampling_math._SMALL
    try:
        sampling_math._SMALL = 0
        assert (mass.gather(1, pick(mass, draws)) > 0).all()
    finally:
        sampling_math._SMALL = usual


@pytest.mark.parametrize("sharpness", [0.1, 6.0], ids=["flat", "sharp"])
def test_top_p_over_a_large_vocabulary_keeps_the_smallest_set(sharpness):
    logits = torch.randn(2000, generator=torch.Generator().manual_seed(1)) * sharpness
    counts, _ = drawn_counts(logits, 20_000, top_p=0.7)
    kept = torch.softmax(hf_scores(logits[None], 1.0, -1, 0.7)[0].double(), -1).numpy()
    assert not counts[kept == 0].any()
    assert abs(chi_square(counts, kept)) < 5


def test_top_p_is_right_when_only_some_rows_reach_it_early():
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(8, 1500, generator=generator) * torch.tensor([0.1, 8.0] * 4)[:, None]
    params = DrawParams.of([1.0] * 8, [-1] * 8, [0.8] * 8, vocab=1500)
    u = torch.from_numpy(numbers(8))
    together = draw(logits, params, u).tokens_r
    for row in range(8):
        kept = torch.isfinite(hf_scores(logits[row : row + 1], 1.0, -1, 0.8)[0])
        assert kept[together[row]]
        one = DrawParams.of([1.0], [-1], [0.8], vocab=1500)
        assert draw(logits[row : row + 1], one, u[row : row + 1]).tokens_r[0] == together[row]
