"""Logprobs of samples and prompts, as the official SDK reads them."""

from __future__ import annotations

import numpy as np

from .client import TEXT
from .machine import Machine, running
from .test_sampling import PROMPT, read, sampling


@running()
async def test_every_kind_of_logprob_comes_through_in_its_shape(server: Machine):
    ann = server.ann
    sampler = await sampling(ann)
    targets = {"data": [1, -1, 3, 4], "dtype": "int64", "shape": [2, 2]}
    ticket = await ann.sample(
        sampler, 0, num_samples=2, prompt_logprobs=True, topk_prompt_logprobs=2, topk_sample_logprobs=3,
        target_prompt_logprobs=targets, prompt_alt_tokens_k=2,
    )  # fmt: skip
    result = await read(ann, ticket)
    assert list(result.prompt_logprobs) == [None, -0.5, -0.5]
    top = result.topk_prompt_logprobs
    assert top[0] is None
    assert [len(row) for row in top[1:]] == [2, 2]
    for sequence in result.sequences:
        assert len(sequence.tokens) == len(sequence.logprobs) == 3
        assert [len(row) for row in sequence.topk_logprobs] == [3, 3, 3]
        assert [row[0][0] for row in sequence.topk_logprobs] == list(sequence.tokens)
    assert list(result.target_prompt_logprobs.shape) == [2, 2]
    assert list(result.target_prompt_logprobs.data) == [-0.5, 0.0, -0.5, -0.5]
    assert list(result.prompt_alt_tokens.tokens.shape) == [2, 2]
    assert list(result.prompt_alt_tokens.logprobs.data) == [-0.5] * 4


@running()
async def test_the_last_prompt_logprobs_alone(server: Machine):
    ann = server.ann
    sampler = await sampling(ann)
    prompt = {"chunks": [{"tokens": list(range(10)), "type": "encoded_text"}]}
    ticket = await ann.sample(sampler, 0, prompt=prompt, prompt_logprobs=True, prompt_logprobs_last_n=3)
    found = (await read(ann, ticket)).prompt_logprobs
    assert [each is not None for each in found] == [False] * 7 + [True] * 3


@running()
async def test_sparse_targets_come_back_sparse(server: Machine):
    ann = server.ann
    sampler = await sampling(ann)
    targets = {
        "data": [3, 4], "dtype": "int64", "shape": [2, 9], "sparse_crow_indices": [0, 1, 2],
        "sparse_col_indices": [0, 8],
    }  # fmt: skip
    ticket = await ann.sample(sampler, 0, target_prompt_logprobs=targets)
    found = (await read(ann, ticket)).target_prompt_logprobs
    assert list(found.shape) == [2, 9]
    assert list(found.sparse_crow_indices) == [0, 1, 2]
    np.testing.assert_allclose(found.data, [-0.5, -0.5])


@running()
async def test_logprobs_nobody_asked_for_are_not_there(server: Machine):
    ann = server.ann
    result = await read(ann, await ann.sample(await sampling(ann), 0))
    assert result.prompt_logprobs is None
    assert result.topk_prompt_logprobs is None
    assert result.target_prompt_logprobs is None
    assert result.prompt_alt_tokens is None
    assert result.sequences[0].topk_logprobs is None


@running()
async def test_computing_logprobs_is_a_sample_of_one_token(server: Machine):
    ann = server.ann
    ticket = await ann.sample(await sampling(ann), 0, prompt_logprobs=True, params={"max_tokens": 1})
    result = await ann.done(ticket)
    assert result["prompt_logprobs"] == [None, -0.5, -0.5]
    assert len(result["sequences"][0]["tokens"]) == 1


@running()
async def test_a_sample_of_no_tokens_scores_the_prompt(server: Machine):
    ann = server.ann
    ticket = await ann.sample(await sampling(ann), 0, prompt_logprobs=True, params={"max_tokens": 0})
    result = await read(ann, ticket)
    assert [list(each.tokens) for each in result.sequences] == [[]]
    assert result.sequences[0].stop_reason == "length"


@running()
async def test_a_sample_without_a_length_ends_at_a_stop_token(server: Machine):
    ann = server.ann
    body = ann.sample_body(await sampling(ann), 0)
    body["sampling_params"] = {"temperature": 0.7}
    result = await ann.done(ann.ticket(await ann("asample", body)))
    assert result["sequences"][0]["stop_reason"] == "stop"
    assert TEXT["chunks"][0]["tokens"] == PROMPT
