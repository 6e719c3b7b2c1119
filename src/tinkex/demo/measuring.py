"""How good a model is on what it was not trained on, and how sure one can be that it became better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tinkex

from .rl_loop import Sum, prompt_of, reward
from .sft_loop import Chat, example

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

__all__ = ["Change", "answers", "fall_of_nll", "nll", "replies", "rewards", "rise_of_reward"]

RESAMPLES = 4000
SEED = 20


@dataclass(frozen=True, slots=True)
class Change:
    """A figure before and after training; `change` with the middle 95 % of its bootstrap."""

    before: float
    after: float
    change: float
    low: float
    high: float
    samples: int
    """How many chats or sampled answers each side was measured on."""


def nll(trainer: tinkex.TrainingClient, chats: Sequence[Chat]) -> Array:
    """Every answer's negative log-likelihood, and how many tokens it has: shape (chats, 2)."""
    import numpy as np

    data = [example(trainer, *chat) for chat in chats]
    outputs = trainer.forward(data, "cross_entropy").result().loss_fn_outputs
    rows = []
    for datum, output in zip(data, outputs, strict=True):
        weights = datum.loss_fn_inputs["weights"].to_numpy()
        rows.append((-float(output["logprobs"].to_numpy() @ weights), float(weights.sum())))
    return np.array(rows)


def replies(sampler: tinkex.SamplingClient, sums: Sequence[Sum], count: int) -> list[list[str]]:
    """What the model says to every sum, each asked `count` times."""
    asked = []
    for number, each in enumerate(sums):  # a seed for each: equal ones would draw alike
        params = tinkex.SamplingParams(max_tokens=8, temperature=1.0, seed=SEED + number)
        asked.append(sampler.sample(prompt_of(sampler, *each), count, params))
    answered = (future.result().sequences for future in asked)
    return [[sampler.decode(x, skip_special_tokens=True).strip() for x in each] for each in answered]


def rewards(said: Sequence[Sequence[str]], sums: Sequence[Sum]) -> Array:
    """The reward of every answer to every sum: shape (sums, answers)."""
    import numpy as np

    pairs = zip(said, sums, strict=True)
    return np.array([[reward(answer, *each) for answer in answers] for answers, each in pairs])


def answers(sampler: tinkex.SamplingClient, questions: Sequence[str], most: int = 48) -> list[str]:
    """The likeliest answers."""
    params = tinkex.SamplingParams(max_tokens=most, temperature=0.0)
    chats = [[{"role": "user", "content": question}] for question in questions]
    asked = [
        sampler.sample(sampler.apply_chat_template(chat, add_generation_prompt=True), 1, params)
        for chat in chats
    ]
    replies = [future.result().sequences[0] for future in asked]
    return [sampler.decode(reply, skip_special_tokens=True).strip() for reply in replies]


def fall_of_nll(before: Array, after: Array) -> Change:
    """By which share the loss per token fell; chats are what is drawn anew."""

    def share(chosen: Any) -> Any:
        return 1 - after[chosen, 0].sum(-1) / before[chosen, 0].sum(-1)

    tokens = before[:, 1].sum()
    return _change(
        float(before[:, 0].sum() / tokens),
        float(after[:, 0].sum() / tokens),
        share,
        len(before),
        len(before),
    )


def rise_of_reward(before: Array, after: Array) -> Change:
    """By how much the mean reward rose; sums are what is drawn anew, each with all its answers."""

    def difference(chosen: Any) -> Any:
        return after[chosen].mean((-2, -1)) - before[chosen].mean((-2, -1))

    return _change(float(before.mean()), float(after.mean()), difference, len(before), before.size)


def _change(before: float, after: float, figure: Callable[[Any], Any], count: int, samples: int) -> Change:
    import numpy as np

    drawn = np.random.default_rng(SEED).integers(count, size=(RESAMPLES, count))
    low, high = np.quantile(figure(drawn), (0.025, 0.975))
    return Change(before, after, float(figure(np.arange(count))), float(low), float(high), samples)
