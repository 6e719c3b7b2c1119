"""Reinforcement learning with a reward that can be checked: sums that come out right.

Each step asks some sums several times with the current weights. An answer's advantage is its reward minus
the mean of its group, so answers better than the model's usual ones become more likely.
"""

from __future__ import annotations

import random

import tinkex
from tinkex import types

STEPS, SUMS, GROUP = 16, 16, 12
PARAMS = types.SamplingParams(max_tokens=8, temperature=1.0)


def reward(answer: str, a: int, b: int) -> float:
    """1 for the right number and nothing else."""
    return float(answer.strip() == str(a + b))


def example(prompt: types.ModelInput, reply: types.SampledSequence, advantage: float) -> types.Datum:
    """An answer, the logprobs it was sampled with, and how good it was; the prompt does not count."""
    before = [0.0] * (prompt.length - 1)
    tokens = prompt.to_ints() + reply.tokens
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tokens[1:],
            "logprobs": before + (reply.logprobs or []),
            "advantages": before + [advantage] * len(reply.tokens),
        },
    )


def rollouts(
    sampler: tinkex.SamplingClient, sums: list[tuple[int, int]], count: int
) -> tuple[list[types.Datum], float]:
    """Ask every sum `count` times: what to learn from the answers, and their mean reward."""
    chats = [[{"role": "user", "content": f"What is {a} + {b}?"}] for a, b in sums]
    prompts = [sampler.apply_chat_template(chat, add_generation_prompt=True) for chat in chats]
    asked = [sampler.sample(prompt, count, PARAMS) for prompt in prompts]  # all at once
    data, total = [], 0.0
    for (a, b), prompt, future in zip(sums, prompts, asked, strict=True):
        replies = future.result().sequences
        rewards = [reward(sampler.decode(each, skip_special_tokens=True), a, b) for each in replies]
        mean = sum(rewards) / count
        total += mean
        if 0 < mean < 1:  # a group that is all right or all wrong says nothing
            data += [
                example(prompt, *each) for each in zip(replies, (r - mean for r in rewards), strict=True)
            ]
    return data, total / len(sums)


def main() -> None:
    """Sample, reward, train; again and again."""
    rng = random.Random(0)
    exam = [(rng.randint(0, 20), rng.randint(0, 20)) for _ in range(64)]
    with tinkex.ServiceClient.local(model="nano") as client:
        trainer = client.create_lora_training_client("nano", rank=16, seed=0)
        _, before = rollouts(client.create_sampling_client(base_model="nano"), exam, 4)
        for step in range(STEPS):
            sampler = trainer.save_weights_and_get_sampling_client()  # the weights of this step
            sums = [(rng.randint(0, 20), rng.randint(0, 20)) for _ in range(SUMS)]
            data, mean = rollouts(sampler, sums, GROUP)
            trainer.forward_backward(data, "importance_sampling")
            trainer.optim_step(types.AdamParams(learning_rate=8e-4)).result()
            print(f"step {step:2}: reward {mean:.2f} {'#' * round(40 * mean)}")
        _, after = rollouts(trainer.save_weights_and_get_sampling_client(), exam, 4)
        print(f"right answers of {4 * len(exam)}, sampled: {before:.0%} before, {after:.0%} after")


if __name__ == "__main__":
    main()
