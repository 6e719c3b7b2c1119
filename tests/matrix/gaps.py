"""A training operation that never came: waited for, given up, and too late when it comes after all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .raw_client import Answer, Wire


@dataclass(frozen=True)
class Gap:
    """What was seen of a model whose first operation came after the second had been done."""

    model: str
    step: str
    """The ticket of operation 2, an optimizer step."""
    polls: list[Answer]
    """Every answer to polls for it, the last one final."""
    late: str
    """The ticket of operation 1, sent when 2 had ended."""
    late_outcome: Any
    before: list[list[float]]
    after: list[list[float]]
    """Logprobs with the weights before and after the late operation and one more step."""


def make_gap(wire: Wire) -> Gap:
    """Let a server wait for an operation until it gives up; takes as long as the server waits."""
    model = wire.model()
    step = wire.submit_step(model, 2)
    polls = wire.polls(step)
    before = wire.look(model, 3)
    late = wire.submit_pass(model, 1)
    outcome = wire.outcome(late)
    wire.result(wire.submit_step(model, 4))
    return Gap(model, step, polls, late, outcome, before, wire.look(model, 5))
