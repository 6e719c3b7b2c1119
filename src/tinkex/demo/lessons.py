"""The two lessons of the demo from beginning to end: measured, taught, measured again."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import tinkex

from . import pirate, rl_loop, sft_loop
from .measuring import Change, answers, fall_of_nll, nll, replies, rewards, rise_of_reward

__all__ = ["Lesson", "Plan", "Shown", "Watcher", "teach"]

Task: TypeAlias = Literal["sft", "rl"]
LARGEST = 20
"""The largest number in a sum."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is taught, and for how long."""

    model: str = "nano"
    seed: int = 0
    rank: int = 16
    sft_steps: int = 60
    sft_held_out: int = 32
    rl_steps: int = 40
    rl_held_out: int = 64
    """Pairs of numbers; each is asked in both orders."""
    rl_samples: int = 4
    """How often each of these sums is asked before and after."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A question the model was not trained on, and what it said to it."""

    question: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Lesson:
    """What came of one task."""

    task: Task
    title: str
    measure: str
    """What the curve shows."""
    curve: list[float]
    change: Change
    shown: list[Shown]
    checkpoint: str
    seconds: float


class Watcher(Protocol):
    """Who is told how it goes."""

    def note(self, text: str) -> None:
        """What is done now, where nothing else is to be seen."""

    def begin(self, title: str, measure: str, steps: int, top: float | None) -> None:
        """A loop begins; its values lie between 0 and `top`, or the first of them."""

    def point(self, value: float) -> None:
        """The next value of the loop."""

    def end(self) -> None:
        """The loop has ended."""


def teach(client: tinkex.ServiceClient, task: Task, plan: Plan, watcher: Watcher) -> Lesson:
    """Run one task."""
    began = time.monotonic()
    base = client.create_sampling_client(base_model=plan.model)
    trainer = client.create_lora_training_client(plan.model, rank=plan.rank, seed=plan.seed)
    run = _sft if task == "sft" else _rl
    return run(base, trainer, plan, watcher, began)


def _sft(
    base: tinkex.SamplingClient,
    trainer: tinkex.TrainingClient,
    plan: Plan,
    watcher: Watcher,
    began: float,
) -> Lesson:
    title, measure = "Supervised: a pirate's manner", "loss per token"
    chats = pirate.chats(plan.seed)
    held_out, chats = chats[: plan.sft_held_out], chats[plan.sft_held_out :]
    questions = [question for question, _ in held_out[:6]]
    watcher.note("asking it before …")
    before, said = nll(trainer, held_out), answers(base, questions)
    watcher.begin(title, measure, plan.sft_steps, None)
    curve = _followed(sft_loop.train(trainer, chats, steps=plan.sft_steps, seed=plan.seed), watcher)
    watcher.note("asking it again …")
    change = fall_of_nll(before, nll(trainer, held_out))
    saved = trainer.save_weights_for_sampler("pirate").result().path
    assert saved is not None
    now = answers(trainer.create_sampling_client(saved), questions)
    shown = [Shown(*each) for each in zip(questions, said, now, strict=True)]
    return Lesson("sft", title, measure, curve, change, shown, saved, time.monotonic() - began)


def _rl(
    base: tinkex.SamplingClient,
    trainer: tinkex.TrainingClient,
    plan: Plan,
    watcher: Watcher,
    began: float,
) -> Lesson:
    title, measure = "Reinforcement: sums that come out right", "mean reward"
    held_out, sums = _sums(plan)
    watcher.note("asking it before …")
    said = replies(base, held_out, plan.rl_samples)
    watcher.begin(title, measure, plan.rl_steps, 1.0)
    curve = _followed(rl_loop.train(trainer, sums, steps=plan.rl_steps, seed=plan.seed), watcher)
    watcher.note("asking it again …")
    saved = trainer.save_weights_for_sampler("sums").result().path
    assert saved is not None
    now = replies(trainer.create_sampling_client(saved), held_out, plan.rl_samples)
    change = rise_of_reward(rewards(said, held_out), rewards(now, held_out))
    rows = list(zip(held_out, said, now, strict=True))[:6]
    shown = [
        Shown(f"What is {a} + {b}?", _marked(old, a, b), _marked(new, a, b)) for (a, b), old, new in rows
    ]
    return Lesson("rl", title, measure, curve, change, shown, saved, time.monotonic() - began)


def _marked(said: Sequence[str], a: int, b: int) -> str:
    """Answers to a sum with a mark at the right ones."""
    return ", ".join(f"{answer} ✓" if rl_loop.reward(answer, a, b) else answer for answer in said)


def _sums(plan: Plan) -> tuple[list[rl_loop.Sum], list[rl_loop.Sum]]:
    """Sums to be asked about, and sums to learn from; no pair of numbers is in both."""
    pairs = [(a, b) for a in range(LARGEST + 1) for b in range(a, LARGEST + 1)]
    rng = random.Random(plan.seed)
    rng.shuffle(pairs)
    held_out, rest = (_both_ways(part) for part in (pairs[: plan.rl_held_out], pairs[plan.rl_held_out :]))
    rng.shuffle(held_out)
    return held_out, rest


def _both_ways(pairs: Sequence[rl_loop.Sum]) -> list[rl_loop.Sum]:
    return [each for a, b in pairs for each in dict.fromkeys([(a, b), (b, a)])]


def _followed(values: Iterator[float], watcher: Watcher) -> list[float]:
    curve = []
    for value in values:
        curve.append(value)
        watcher.point(value)
    watcher.end()
    return curve
