"""Sampling passes that lack memory: made again in smaller ones with equal results, or given up by name."""

import numpy as np
import pytest
import torch

from tinkex.engine.messages import ScoreOptions
from tinkex.engine.sampler import Sampler, SamplerOptions

from .sampling_models import Collected, base_model, drain, prompts, request, sample, trained_adapter


@pytest.fixture(scope="module")
def base():
    return base_model("qwen3")[0]


@pytest.fixture(scope="module")
def adapters(base):
    return {"a": trained_adapter(base, 4, 1), "b": trained_adapter(base, 8, 2)}


def requests():
    """Prompts of 3 to 40 tokens, some with several samples, some scored, of two adapters and none."""
    scores = ScoreOptions(prompt_logprobs=True)
    found = []
    for i, prompt in enumerate(prompts(14)):
        version = ("base", "a", "b")[i % 3]
        extra = {"scores": scores} if i % 4 == 0 else {}
        n = 5 if i % 5 == 0 else 1
        found.append(request(f"r{i}", prompt, n, version=version, seed=i, max_tokens=4 + i, **extra))
    return found


class Shortage:
    """Memory for so many tokens in a pass and so many rows of logits."""

    def __init__(self, base, monkeypatch, *, tokens=1 << 30, rows=1 << 30):
        self.tokens, self.rows, self.met = tokens, rows, 0
        hidden_states, logits = base.hidden_states, base.logits

        def tight_hidden(ids, positions, plan):
            self.check(ids.numel(), self.tokens)
            return hidden_states(ids, positions, plan)

        def tight_logits(hidden, segments):
            self.check(len(hidden), self.rows)
            return logits(hidden, segments)

        monkeypatch.setattr(base, "hidden_states", tight_hidden)
        monkeypatch.setattr(base, "logits", tight_logits)

    def check(self, wanted, there):
        if wanted > there:
            self.met += 1
            raise torch.OutOfMemoryError(f"tried to allocate {wanted} GiB\nmore about it")


@pytest.mark.parametrize("limits", [{"tokens": 60}, {"tokens": 16}, {"rows": 3}, {"tokens": 17, "rows": 1}])
@pytest.mark.parametrize("kv_bytes", [8 << 20, 60 << 10], ids=["many blocks", "few blocks"])
def test_smaller_passes_give_the_same(base, adapters, monkeypatch, limits, kv_bytes):
    if "rows" in limits:  # scores of prompts ask for many rows of logits at once
        monkeypatch.setattr("tinkex.engine.prompt_scores.ROWS", 1)
    wanted = sample(base, *requests(), adapters=adapters)
    short = Shortage(base, monkeypatch, **limits)
    got = sample(base, *requests(), adapters=adapters, kv_bytes=kv_bytes)
    assert short.met
    assert not got.failed
    assert got.tokens == wanted.tokens
    assert got.reasons == wanted.reasons
    for stream, logprobs in wanted.logprobs.items():
        np.testing.assert_allclose(got.logprobs[stream], logprobs, atol=2e-5)
    for name, done in wanted.done.items():
        if done.prompt_logprobs is not None:
            np.testing.assert_allclose(got.done[name].prompt_logprobs, done.prompt_logprobs, atol=2e-5)


def test_what_fits_no_pass_is_failed_and_the_rest_goes_on(base, monkeypatch):
    sampler = Sampler(base, options=SamplerOptions(kv_bytes=8 << 20))
    got = Collected()
    short = Shortage(base, monkeypatch, tokens=0)
    sampler.submit(request("hopeless", np.arange(2, 30), 3, seed=1), None)
    drain(sampler, got)
    assert got.failed["hopeless"].category == "server"
    assert "does not fit the device's memory" in got.failed["hopeless"].text
    assert "tried to allocate" in got.failed["hopeless"].text
    assert "more about it" not in got.failed["hopeless"].text
    assert sampler.pool.free == sampler.pool.count
    short.tokens = 1 << 30
    sampler.submit(request("later", np.arange(2, 30), 3, seed=1, max_tokens=5), None)
    drain(sampler, got)
    assert "later" in got.done


def test_passes_grow_again(base, monkeypatch):
    monkeypatch.setattr("tinkex.engine.scheduler._CALM", 8)
    sampler = Sampler(base, options=SamplerOptions(kv_bytes=8 << 20, max_rows=16))
    got = Collected()
    scheduler = sampler.scheduler
    before = scheduler.max_rows, scheduler.pass_tokens
    short = Shortage(base, monkeypatch, rows=4)
    sampler.submit(request("first", np.arange(2, 30), 12, seed=1, max_tokens=3), None)
    drain(sampler, got)
    assert scheduler.max_rows <= 4
    short.rows = 1 << 30
    for i in range(12):
        sampler.submit(request(f"more {i}", np.arange(2, 5), seed=1, max_tokens=120), None)
        drain(sampler, got)
    assert (scheduler.max_rows, scheduler.pass_tokens) == before
    assert not got.failed


def test_an_exact_pass_that_lacks_memory_fails_its_requests(base, monkeypatch):
    sampler = Sampler(base, options=SamplerOptions(kv_bytes=8 << 20, deterministic=True))
    got = Collected()
    short = Shortage(base, monkeypatch, tokens=0)
    sampler.submit(request("one", np.arange(2, 30), seed=1, max_tokens=3), None)
    drain(sampler, got)
    assert "does not fit the device's memory" in got.failed["one"].text
    short.tokens = 1 << 30
    sampler.submit(request("two", np.arange(2, 30), seed=1, max_tokens=3), None)
    drain(sampler, got)
    assert "two" in got.done
