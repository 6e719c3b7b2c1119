"""The built-in losses: pure functions from logprobs and per-token inputs to values and derivatives.

Everything is a sum over tokens; nothing is divided by a count. Names follow the formulas: lp the target's
logprob, q the logprob given with the data (`logprobs`), A the advantage, rho = exp(lp - q). Each function
returns the value of every token and its derivative by lp; the caller sums and backpropagates. Clip bounds
are bounds of the ratio itself, from the loss's settings or token by token from the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .faults import UserFault

Inputs = Mapping[str, torch.Tensor]
Settings = Mapping[str, float]
Values = tuple[torch.Tensor, torch.Tensor]

_CLIPS = ("clip_low_threshold", "clip_high_threshold")


@dataclass(frozen=True, slots=True)
class Loss:
    """A built-in loss: what it reads, its settings, and how it is computed."""

    name: str
    needs: tuple[str, ...]
    run: Callable[[torch.Tensor, Inputs, Settings], Values]
    live: str | None = None
    """The input without which a token adds nothing: where it is zero there is no gradient."""
    allows: tuple[str, ...] = ()
    settings: Mapping[str, float] = field(default_factory=dict)
    defaults: dict[str, float] = field(default_factory=dict)
    """Values of inputs the data may leave out."""
    by_sequence: bool = False
    """Whether a token's value depends on the other tokens of its sequence."""

    def with_settings(self, config: Mapping[str, Any]) -> dict[str, float]:
        """The loss's settings, the given ones in place of the defaults; unknown or non-numeric ones are
        refused.
        """
        known = dict(self.settings)
        for key, value in config.items():
            if key not in known:
                has = f"it has {', '.join(known)}" if known else "it has none"
                raise UserFault(f"loss {self.name} has no setting {key!r}; {has}")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
                raise UserFault(f"loss {self.name}: setting {key} must be a number, got {value!r}")
            known[key] = float(value)
        return known


def cross_entropy(lp: torch.Tensor, inputs: Inputs, _: Settings) -> Values:
    """`-lp * w`; weights may be negative."""
    slope = -inputs["weights"]
    return slope * lp, slope


def importance_sampling(lp: torch.Tensor, inputs: Inputs, _: Settings) -> Values:
    """`-rho * A`."""
    value = -(_ratio(lp, inputs) * inputs["advantages"])
    return value, value


def ppo(lp: torch.Tensor, inputs: Inputs, settings: Settings) -> Values:
    """`-min(rho * A, clip(rho) * A)`."""
    return _clipped(_ratio(lp, inputs), inputs, settings)


def cispo(lp: torch.Tensor, inputs: Inputs, settings: Settings) -> Values:
    """`-sg(clip(rho)) * lp * A`, sg meaning that no gradient flows through the ratio."""
    slope = -(_clip(_ratio(lp, inputs), inputs, settings) * inputs["advantages"])
    return slope * lp, slope


def dro(lp: torch.Tensor, inputs: Inputs, settings: Settings) -> Values:
    """`-(lp * A - beta / 2 * (lp - q)^2)` on every token, those with q = 0 and A = 0 too."""
    apart = lp - inputs["logprobs"]
    advantage, beta = inputs["advantages"], settings["beta"]
    return -(lp * advantage - 0.5 * beta * apart * apart), beta * apart - advantage


def gspo(lp: torch.Tensor, inputs: Inputs, settings: Settings) -> Values:
    """PPO's formula with one ratio a sequence: exp of the mean of lp - q over `sequence_ratio_mask`."""
    mask = inputs["sequence_ratio_mask"]
    mean = ((lp - inputs["logprobs"]) * mask).sum() / mask.sum().clamp_min(1)
    return _clipped(torch.exp(mean).expand_as(lp), inputs, settings)


def _ratio(lp: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    # A token without advantage adds nothing, whatever stands in its place for q: inf times 0 would.
    return torch.exp((lp - inputs["logprobs"]).masked_fill_(inputs["advantages"] == 0, 0.0))


def _clip(ratio: torch.Tensor, inputs: Inputs, settings: Settings) -> torch.Tensor:
    low, high = (inputs.get(name, settings[name]) for name in _CLIPS)
    if isinstance(low, torch.Tensor) or isinstance(high, torch.Tensor):
        low, high = (torch.as_tensor(x, dtype=ratio.dtype, device=ratio.device) for x in (low, high))
    return torch.clamp(ratio, low, high)


def _clipped(ratio: torch.Tensor, inputs: Inputs, settings: Settings) -> Values:
    advantage = inputs["advantages"]
    free = ratio * advantage
    bound = _clip(ratio, inputs, settings) * advantage
    # Inside the bounds both are equal; outside, only the free one has a slope, and it counts when smaller.
    slope = torch.where(free <= bound, -free, torch.zeros_like(free))
    return -torch.minimum(free, bound), slope


# The API documents no default for dro's beta (its example has 0.05) nor for gspo's bounds (taken from ppo).
_RATIO = ("logprobs", "advantages")
LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        Loss("cross_entropy", ("weights",), cross_entropy, "weights", defaults={"weights": 1.0}),
        Loss("importance_sampling", _RATIO, importance_sampling, "advantages"),
        Loss("ppo", _RATIO, ppo, "advantages", _CLIPS, {_CLIPS[0]: 0.8, _CLIPS[1]: 1.2}),
        Loss("cispo", _RATIO, cispo, "advantages", _CLIPS, {_CLIPS[0]: 0.0, _CLIPS[1]: 4.0}),
        Loss("dro", _RATIO, dro, settings={"beta": 0.05}),
        Loss(
            "gspo",
            (*_RATIO, "sequence_ratio_mask"),
            gspo,
            "advantages",
            _CLIPS,
            {_CLIPS[0]: 0.8, _CLIPS[1]: 1.2},
            by_sequence=True,
        ),
    )
}


ANY_LOSS = Loss("custom", (), cross_entropy)
"""What is asked of the data of a loss that reads its own inputs: targets alone."""


def find_loss(name: str) -> Loss:
    """The built-in loss of this name; an unknown or undefined one is refused with what to use."""
    if name == "stable_reinforce":
        raise UserFault("loss stable_reinforce has no public definition and is not offered here")
    if name not in LOSSES:
        raise UserFault(f"unknown loss {name!r}; use one of {', '.join([*LOSSES, 'custom'])}")
    return LOSSES[name]


def by_sequence(
    loss: Loss, lp: torch.Tensor, inputs: Inputs, settings: Settings, lengths: Sequence[int]
) -> Values:
    """A loss over rows that are several sequences, one after the other."""
    values, slopes, start = [], [], 0
    for length in lengths:
        rows = slice(start, start + length)
        value, slope = loss.run(lp[rows], {key: x[rows] for key, x in inputs.items()}, settings)
        values.append(value)
        slopes.append(slope)
        start += length
    return torch.cat(values), torch.cat(slopes)
