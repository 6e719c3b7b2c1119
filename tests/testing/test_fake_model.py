from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinkex import types
from tinkex.testing.fake_model import VOCABULARY, logprobs, run_pass, run_sample, tokens_of
from tinkex.testing.tickets import WorkFailed
from tinkex.wire.passes import PassRequest

TOKENS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20)


def request(tokens: list[int], count: int = 1, **more: object) -> types.SampleRequest:
    known = {"num_samples": count, "sampling_params": types.SamplingParams(max_tokens=6), "seq_id": 3}
    return types.SampleRequest(prompt=types.ModelInput.from_ints(tokens), **{**known, **more})


def names(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def datum(tokens: list[int], **inputs: object) -> types.Datum:
    return types.Datum(types.ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:], **inputs})


@settings(max_examples=50, deadline=None)
@given(TOKENS, st.integers(0, 2**63), st.integers(0, 20))
def test_what_is_sampled_is_on_policy(prompt: list[int], seed: int, steps: int) -> None:
    params = types.SamplingParams(max_tokens=6, seed=seed)
    (sequence,) = run_sample(request(prompt, sampling_params=params), steps, names(1)).sequences
    whole = [*prompt, *sequence.tokens]
    scored = run_sample(request(whole, prompt_logprobs=True), steps, names(1)).prompt_logprobs_np
    assert scored is not None
    assert math.isnan(scored[0])
    output = run_pass(PassRequest("m", 1, [datum(whole)], "cross_entropy"), steps)
    trained = output.loss_fn_outputs[0]["logprobs"].to_numpy()
    sampled = sequence.logprobs_np
    assert np.array_equal(scored[len(prompt) :], sampled)
    assert np.array_equal(trained, scored[1:])
    assert (trained < 0).all()
    assert np.isfinite(trained).all()


def test_samples_depend_on_seed_and_number_and_stop_where_told() -> None:
    made = run_sample(request([1, 2], 3), 0, names(3)).sequences
    assert len({tuple(sequence.tokens) for sequence in made}) == 3
    assert [sequence.stop_reason for sequence in made] == ["length"] * 3
    assert all(0 <= token < VOCABULARY for sequence in made for token in sequence.tokens)
    again = run_sample(request([1, 2], 3), 5, names(3)).sequences
    assert [one.tokens for one in again] == [one.tokens for one in made]
    other = run_sample(request([1, 2], 3, seq_id=4), 0, names(3)).sequences
    assert [one.tokens for one in other] != [one.tokens for one in made]
    greedy = types.SamplingParams(max_tokens=6, temperature=0.0)
    same = run_sample(request([1, 2], 2, sampling_params=greedy), 0, names(2)).sequences
    assert same[0].tokens == same[1].tokens
    stop = types.SamplingParams(max_tokens=6, stop=[made[0].tokens[2]])
    (ended,) = run_sample(request([1, 2], sampling_params=stop), 0, names(1)).sequences
    assert (ended.tokens, ended.stop_reason) == (made[0].tokens[:3], "stop")
    (free,) = run_sample(request([1, 2], sampling_params=types.SamplingParams()), 0, names(1)).sequences
    assert free.stop_reason == "stop"


def test_every_loss_is_a_sum_over_targets() -> None:
    tokens = [3, 1, 4, 1, 5]
    made = logprobs(np.array(tokens[:-1]), np.array(tokens[1:]))
    weights = [0.0, 1.0, 2.0, -1.0]
    old, advantages = [-1.0] * 4, [1.0, -1.0, 0.5, 0.0]
    ratio = np.exp(made - np.array(old))
    expected = {
        "cross_entropy": -(made * weights).sum(),
        "importance_sampling": -(ratio * advantages).sum(),
        "ppo": -np.minimum(ratio * advantages, ratio.clip(0.8, 1.2) * advantages).sum(),
        "cispo": -(ratio.clip(0, 4) * made * advantages).sum(),
        "dro": -(made * advantages - 0.005 * (made - np.array(old)) ** 2).sum(),
        "custom": -made.sum(),
    }
    for name, value in expected.items():
        one = datum(tokens, weights=weights, logprobs=old, advantages=advantages)
        output = run_pass(PassRequest("m", 1, [one, one], name), 0)
        assert output.metrics["loss:sum"] == pytest.approx(2 * float(value), rel=1e-5)
        assert output.metrics["tokens:sum"] == 8
        assert all(key.count(":") == 1 for key in output.metrics)
    assert run_pass(PassRequest("m", 1, [], "cross_entropy"), 0).loss_fn_outputs == []


def test_steps_make_targets_likelier() -> None:
    losses = [
        run_pass(PassRequest("m", 1, [datum([1, 2, 3])], "cross_entropy"), steps).metrics["loss:sum"]
        for steps in range(4)
    ]
    assert losses == sorted(losses, reverse=True)
    assert len(set(losses)) == 4


def test_two_dimensional_targets_and_sparse_ones() -> None:
    dense = types.TensorData.from_numpy(np.array([[1, 2], [0, 3]]))
    indices = {"sparse_crow_indices": [0, 2, 3], "sparse_col_indices": [0, 1, 1]}
    sparse = types.TensorData(data=[1, 2, 3], dtype="int64", shape=[2, 2], **indices)
    outputs = []
    for targets in (dense, sparse):
        one = types.Datum(types.ModelInput.from_ints([7, 8]), {"target_tokens": targets})
        made = run_pass(PassRequest("m", 1, [one], "cross_entropy"), 0)
        outputs.append(made.loss_fn_outputs[0]["logprobs"])
    assert outputs[0].shape == [2, 2]
    assert outputs[0].equals(outputs[1])


@pytest.mark.parametrize(
    ("inputs", "loss", "text"),
    [
        ({}, "cross_entropy", "target_tokens is missing"),
        ({"target_tokens": [1, 2, 3]}, "cross_entropy", "do not fit an input of 2 tokens"),
        ({"target_tokens": [1, 2], "logprobs": [0.0, 0.0]}, "ppo", "advantages is missing"),
    ],
)
def test_data_that_cannot_be_trained_on_fails(inputs: dict[str, object], loss: str, text: str) -> None:
    one = types.Datum(types.ModelInput.from_ints([1, 2]), inputs)
    with pytest.raises(WorkFailed, match=text) as failed:
        run_pass(PassRequest("m", 1, [one], loss), 0)
    assert failed.value.category == "user"


def test_prompts_are_scored_as_asked() -> None:
    prompt = [5, 6, 7, 8]
    full = run_sample(
        request(
            prompt,
            prompt_logprobs=True,
            prompt_logprobs_last_n=2,
            topk_prompt_logprobs=3,
            topk_sample_logprobs=2,
            target_prompt_logprobs=types.TensorData(data=[6, -1, -1, 7, 8, 9], dtype="int64", shape=[3, 2]),
            prompt_alt_tokens_k=4,
        ),
        0,
        names(1),
    )
    scored = full.prompt_logprobs
    assert scored is not None
    assert [value is None for value in scored] == [True, True, False, False]
    rows = full.topk_prompt_logprobs
    assert rows is not None
    assert [row is None for row in rows] == [True, True, False, False]
    assert all(row is None or row == sorted(row, key=lambda cell: -cell[1]) for row in rows)
    assert [len(row or ()) for row in full.sequences[0].topk_logprobs or ()] == [2] * 6
    assert full.target_prompt_logprobs is not None
    targets = full.target_prompt_logprobs.to_numpy()
    assert (targets[0, 1], targets[1, 0]) == (0, 0)
    assert targets[1, 1] == pytest.approx(scored[2])
    assert full.prompt_alt_tokens is not None
    assert full.prompt_alt_tokens.tokens.shape == full.prompt_alt_tokens.logprobs.shape == [3, 4]
    sparse = types.TensorData(
        data=[6], dtype="int64", shape=[3, 2], sparse_crow_indices=[0, 1, 1, 1], sparse_col_indices=[0]
    )
    only = run_sample(request(prompt, target_prompt_logprobs=sparse), 0, names(1)).target_prompt_logprobs
    assert only is not None
    assert only.sparse_crow_indices == [0, 1, 1, 1]
    assert only.data == pytest.approx([targets[0, 0]])
    wrong = types.TensorData(data=[1, 2], dtype="int64", shape=[1, 2])
    with pytest.raises(WorkFailed, match="does not fit a prompt of 4 tokens"):
        run_sample(request(prompt, target_prompt_logprobs=wrong), 0, names(1))


def test_images_take_the_place_they_say() -> None:
    image = types.ImageChunk(data=b"png", format="png", expected_tokens=3)
    unsized = types.ImageChunk(data=b"png", format="png")
    text = types.EncodedTextChunk(tokens=[1, 2])
    read = tokens_of(types.ModelInput(chunks=[text, image, unsized]))
    assert read.shape == (6,)
    assert read[2] == read[5]
    assert tokens_of(types.ModelInput.empty()).size == 0
