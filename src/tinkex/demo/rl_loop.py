"""Reinforcement learning with a reward that can be checked: sums that come out right.

This is the whole loop. `tinkex demo --task rl` runs it and draws what it yields.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import tinkex

Sum = tuple[int, int]


def prompt_of(client: tinkex.TrainingClient | tinkex.SamplingClient, a: int, b: int) -> tinkex.ModelInput:
    """A sum as a chat, up to where the answer begins."""
    messages = [{"role": "user", "content": f"What is {a} + {b}?"}]
    return client.apply_chat_template(messages, add_generation_prompt=True)


def reward(answer: str, a: int, b: int) -> float:
    """1 for the right number and nothing else."""
    return float(answer.strip() == str(a + b))


def example(prompt: tinkex.ModelInput, reply: tinkex.SampledSequence, advantage: float) -> tinkex.Datum:
    """An answer, the logprobs it was sampled with, and how much better it was than others."""
    before, tokens = prompt.length - 1, [*prompt.to_ints(), *reply.tokens]
    inputs = {
        "target_tokens": tokens[1:],
        "logprobs": [0.0] * before + list(reply.logprobs or []),
        "advantages": [0.0] * before + [advantage] * len(reply.tokens),
    }
    return tinkex.Datum(tinkex.ModelInput.from_ints(tokens[:-1]), inputs)


def train(
    trainer: tinkex.TrainingClient, sums: Sequence[Sum], *, steps: int = 40, ask: int = 64, group: int = 6,
    learning_rate: float = 6e-4, seed: int = 0,
) -> Iterator[float]:  # fmt: skip
    """Answer sums, reward the answers, learn from them; yields the mean reward, step by step."""
    rng = random.Random(seed)
    for _ in range(steps):
        sampler, asked = trainer.save_weights_and_get_sampling_client(), []  # the weights as they are now
        for each in rng.sample(sums, min(ask, len(sums))):
            params = tinkex.SamplingParams(max_tokens=8, temperature=1.0, seed=rng.randrange(2**31))
            asked.append((each, prompt := prompt_of(trainer, *each), sampler.sample(prompt, group, params)))
        data, rewards = [], []
        for each, prompt, future in asked:
            replies = future.result().sequences
            got = [reward(trainer.decode(reply, skip_special_tokens=True), *each) for reply in replies]
            rewards += got
            mean = sum(got) / len(got)  # answers above their group's mean become likelier, others less so
            data += [example(prompt, r, x - mean) for r, x in zip(replies, got, strict=True) if x != mean]
        if data:
            trainer.forward_backward(data, "importance_sampling")
            trainer.optim_step(tinkex.AdamParams(learning_rate=learning_rate)).result()
        yield sum(rewards) / len(rewards)
