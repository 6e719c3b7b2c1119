"""Supervised fine-tuning: show the model answers, and make them likely.

This is the whole loop. `tinkex demo --task sft` runs it and draws what it yields.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import tinkex

Chat = tuple[str, str]


def example(trainer: tinkex.TrainingClient, question: str, answer: str) -> tinkex.Datum:
    """One chat to learn from: at every position the token that comes next, and whether it counts."""
    tokenizer = trainer.get_tokenizer()
    prompt = trainer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True
    )
    reply = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
    tokens = [*prompt.to_ints(), *reply]
    weights = [0.0] * (prompt.length - 1) + [1.0] * len(reply)  # only the answer is learned
    inputs = {"target_tokens": tokens[1:], "weights": weights}
    return tinkex.Datum(tinkex.ModelInput.from_ints(tokens[:-1]), inputs)


def train(
    trainer: tinkex.TrainingClient,
    chats: Sequence[Chat],
    *,
    steps: int = 60,
    batch: int = 8,
    learning_rate: float = 7e-4,
    seed: int = 0,
) -> Iterator[float]:
    """Train on random batches of chats; yields the loss per answer token, step by step."""
    rng = random.Random(seed)
    data = [example(trainer, *chat) for chat in chats]
    for step in range(steps):
        chosen = rng.sample(data, min(batch, len(data)))
        # Both are sent before either is waited for, so the server never waits for us.
        passed = trainer.forward_backward(chosen, "cross_entropy")
        stepped = trainer.optim_step(tinkex.AdamParams(learning_rate=learning_rate * (1 - step / steps)))
        tokens = sum(sum(datum.loss_fn_inputs["weights"].tolist()) for datum in chosen)
        yield passed.result().metrics["loss:sum"] / tokens  # the server's losses are sums
        stepped.result()
