"""Are the numbers right?  What a loss adds up to, what a gradient is, how far a step goes.

Gradients are seen through the norm a server reports with an optimizer step (any metric with `grad_norm` in
its name); a learning rate of zero makes the step a mere look.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .._lazy import np
from ..client.training import TrainingClient
from ..errors import NotFoundError, UnsupportedByServerError
from ..losses.custom import numpy_loss
from ..types import AdamParams
from .adapter_files import Adapter, read_adapter
from .checks import Failed, Skipped, check, expect, widest
from .examples import ADAM, EXAMPLES, RANK, SEED, datums, logprobs, policy_datums, scaled, weighted_loss
from .surroundings import Surroundings
from .traveller import Traveller

_CLOSE = 2e-3
_RATIO = 0.02  # how far a ratio of norms may be off
_LOOK = AdamParams(learning_rate=0.0)
_ONES = [(tokens, targets, [1.0] * len(targets)) for tokens, targets, _ in EXAMPLES]


def _norm(traveller: Traveller, trainer: TrainingClient, *passes: Any) -> float:
    """The norm of the gradients that these passes (futures) add up to."""
    step = trainer.optim_step(_LOOK)
    for each in passes:
        traveller.wait(each)
    metrics = traveller.wait(step).metrics or {}
    for name, value in metrics.items():
        if "grad_norm" in name.lower():
            return float(value)
    raise Skipped(f"no grad_norm is reported (metrics: {', '.join(metrics) or 'none'})")


def _expect_ratio(name: str, got: float, expected: float, norms: Sequence[float]) -> None:
    shown = " : ".join(f"{norm:.4g}" for norm in norms)
    off = abs(got / expected - 1)
    expect(off <= _RATIO, f"{name}: norms {shown}, a ratio of {got:.4g} instead of {expected:.4g}")


@check("numerics/6.4/token-sum")
def token_sum(here: Surroundings) -> str:
    """Losses are sums over tokens: weights ×10 and a doubled batch give norms of 1 : 10 : 2."""
    traveller = here.traveller
    trainer = traveller.train()
    batches = (EXAMPLES, scaled(EXAMPLES, 10), EXAMPLES * 2)
    norms = [
        _norm(traveller, trainer, trainer.forward_backward(datums(batch), "cross_entropy"))
        for batch in batches
    ]
    expect(norms[0] > 0, f"norms {norms}")
    _expect_ratio("weights ×10", norms[1] / norms[0], 10, norms)
    _expect_ratio("the batch twice", norms[2] / norms[0], 2, norms)
    return " : ".join(f"{norm / norms[0]:.3f}" for norm in norms)


@check("numerics/6.4/accumulation")
def accumulation(here: Surroundings) -> str:
    """Gradients add up over calls until a step takes them all; forward passes add none."""
    traveller = here.traveller
    trainer = traveller.train()
    data = datums()

    def again() -> Any:
        return trainer.forward_backward(data, "cross_entropy")

    norms = [
        _norm(traveller, trainer, again()),
        _norm(traveller, trainer, again(), again(), again()),
        _norm(traveller, trainer, again(), trainer.forward(data, "cross_entropy")),
    ]
    _expect_ratio("three passes", norms[1] / norms[0], 3, norms)
    _expect_ratio("a pass and a forward pass", norms[2] / norms[0], 1, norms)
    return " : ".join(f"{norm / norms[0]:.3f}" for norm in norms)


@check("numerics/6.4/accumulated-step")
def accumulated_step(here: Surroundings) -> str:
    """A step after two calls is the step after one call with both batches."""
    traveller = here.traveller
    whole, halves = traveller.train(), traveller.train()
    traveller.wait(whole.forward_backward(datums(), "cross_entropy"))
    for half in (EXAMPLES[:2], EXAMPLES[2:]):
        traveller.wait(halves.forward_backward(datums(half), "cross_entropy"))
    for each in (whole, halves):
        traveller.wait(each.optim_step(ADAM))
        traveller.step(each)  # a second round shows that the first step took all gradients with it
    apart = widest(traveller.look(whole), traveller.look(halves))
    expect(apart <= _CLOSE, f"weights differ by {apart:.2g}")
    return f"weights within {apart:.1g}"


@numpy_loss
def _push_down(data: Any, rows: Sequence[Any]) -> Any:
    """A loss that grows with every logprob: +0.1 times their sum."""
    return (
        float(0.1 * sum(row.sum() for row in rows)),
        {},
        [np.full(row.shape, 0.1, np.float32) for row in rows],
    )


@check("numerics/3.3/custom-loss")
def custom_loss(here: Surroundings) -> str:
    """A custom loss of +0.1 × Σ logprobs is a tenth of cross-entropy, the other way."""
    traveller = here.traveller
    trainer = traveller.train()
    data = datums(_ONES)
    before = sum(map(sum, traveller.look(trainer, _ONES)))
    traveller.wait(trainer.forward_backward_custom(data, _push_down))
    traveller.wait(trainer.optim_step(ADAM))
    after = sum(map(sum, traveller.look(trainer, _ONES)))
    expect(after < before, f"the logprobs were to fall, but went from {before:.4f} to {after:.4f}")
    other = traveller.train()
    norms = [
        _norm(traveller, other, other.forward_backward(data, "cross_entropy")),
        _norm(traveller, other, other.forward_backward_custom(data, _push_down)),
    ]
    _expect_ratio("the custom loss", norms[1] / norms[0], 0.1, norms)
    return f"Σ logprobs {before:.3f} → {after:.3f}, norms {norms[0]:.3g} and {norms[1]:.3g}"


# An advantage for each target, of either sign.
_GAINS = [
    [(1.0, -0.5, 1.5, -1.0, 2.0)[place] for place in range(len(targets))] for _, targets, _ in EXAMPLES
]


def _policy(
    here: Surroundings, shift: float, loss: str, config: dict[str, float | str] | None
) -> tuple[float, Traveller, TrainingClient, Any]:
    """A loss's value when every logprob has risen by `shift` since sampling."""
    traveller = here.traveller
    trainer = traveller.train()
    old = [[value - shift for value in row] for row in traveller.look(trainer)]
    future: Any = trainer.forward_backward(policy_datums(old, _GAINS), loss, config)  # type: ignore[arg-type]
    value = float(traveller.wait(future).metrics["loss:sum"])
    return value, traveller, trainer, future


def _expect_value(what: str, got: float, by_token: Callable[[float], float]) -> float:
    expected = -sum(by_token(gain) for row in _GAINS for gain in row)
    expect(
        abs(got - expected) <= 0.01 * max(abs(expected), 1), f"{what}: {got:.4f}, by hand {expected:.4f}"
    )
    return expected


@check("numerics/3.3/importance-sampling")
def importance_sampling(here: Surroundings) -> str:
    """At ratio 1 importance sampling is -Σ A with cross-entropy's gradient, at ratio r so many times it."""
    value, traveller, trainer, passed = _policy(here, 0.0, "importance_sampling", None)
    expected = _expect_value("loss:sum at ratio 1", value, lambda gain: gain)
    risen, _, other, later = _policy(here, 0.5, "importance_sampling", None)
    _expect_value("loss:sum at ratio e^0.5", risen, lambda gain: math.exp(0.5) * gain)
    weighted = [
        (tokens, targets, gains) for (tokens, targets, _), gains in zip(EXAMPLES, _GAINS, strict=True)
    ]
    norms = [
        _norm(traveller, trainer, passed),
        _norm(traveller, trainer, trainer.forward_backward(datums(weighted), "cross_entropy")),
        _norm(traveller, other, later),
    ]
    _expect_ratio("cross-entropy with the advantages as weights", norms[1] / norms[0], 1, norms)
    _expect_ratio("ratio e^0.5", norms[2] / norms[0], math.exp(0.5), norms)
    shown = " : ".join(f"{norm:.4g}" for norm in norms)
    return f"loss:sum {value:.4f}, by hand {expected:.4f}; norms {shown}"


@check("numerics/3.3/ppo")
def ppo(here: Surroundings) -> str:
    """PPO takes the smaller of the ratio's gain and the clipped ratio's, by absolute bounds."""
    bounds: dict[str, float | str] = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}
    seen = []
    for shift in (0.0, 0.5, -0.5):
        ratio = math.exp(shift)
        clipped = min(max(ratio, 0.9), 1.1)
        value, *_ = _policy(here, shift, "ppo", bounds)

        def smaller(gain: float, ratio: float = ratio, clipped: float = clipped) -> float:
            return min(ratio * gain, clipped * gain)

        _expect_value(f"loss:sum at ratio {ratio:.2f}", value, smaller)
        seen.append(f"{value:.3f}")
    return f"loss:sum {', '.join(seen)} at ratios 1, 1.65, 0.61"


@check("numerics/3.5/seed")
def seeds(here: Surroundings) -> str:
    """Models of one seed train alike, models of another seed do not."""
    traveller = here.traveller
    rows = []
    for seed in (SEED, SEED, SEED + 1):
        trainer = traveller.service.create_lora_training_client(here.base_model, rank=RANK, seed=seed)
        traveller.step(trainer)
        rows.append(traveller.look(trainer))
    same, other = widest(rows[0], rows[1]), widest(rows[0], rows[2])
    expect(same <= _CLOSE, f"two models of one seed differ by {same:.2g} after a step")
    expect(other > same, f"a model of another seed differs by {other:.2g} only")
    return f"one seed: {same:.1g}, another: {other:.2g}"


# ---- what other programs read


def _exported(traveller: Traveller, trainer: TrainingClient, name: str) -> Adapter:
    """The weights of now, as files for other programs."""
    try:
        path = traveller.saved(trainer.save_weights_external(name))
    except (NotFoundError, UnsupportedByServerError):
        path = traveller.saved(trainer.save_weights_for_sampler(name))
    with tempfile.TemporaryDirectory() as folder:
        try:
            got = traveller.wait(traveller.rest.download_checkpoint(path, Path(folder) / "adapter"))
        except (NotFoundError, UnsupportedByServerError) as error:
            raise Skipped(f"checkpoints cannot be downloaded: {error}") from None
        return read_adapter(got.folder)


@check("numerics/8/peft-files")
def peft_files(here: Surroundings) -> str:
    """An exported adapter is whole: PEFT's settings name every module, and each has both halves."""
    traveller = here.traveller
    trainer = traveller.train()
    traveller.step(trainer)
    adapter = _exported(traveller, trainer, "conformance-files")
    settings, pairs = adapter.settings, adapter.pairs()
    expect(settings.get("r") == RANK, f"r is {settings.get('r')!r} in adapter_config.json")
    expect(isinstance(settings.get("lora_alpha"), (int, float)), "no lora_alpha in adapter_config.json")
    targets = settings.get("target_modules")
    expect(targets, "no target_modules in adapter_config.json: PEFT would load two of all modules")
    expect(pairs, f"no lora_A or lora_B among {sorted(adapter.tensors)[:4]}")
    halves = [module for module, each in pairs.items() if each != {"A", "B"}]
    expect(not halves, f"only one half of {halves[:4]}")
    if isinstance(targets, list):
        lost = [module for module in pairs if not any(_names(target, module) for target in targets)]
        expect(not lost, f"target_modules {targets} leave out {lost[:4]}")
    moved = [name for name, values in adapter.tensors.items() if ".lora_B" in name and np.any(values)]
    expect(len(moved) == len(pairs), f"{len(moved)} of {len(pairs)} modules have moved in a step")
    return f"{len(adapter.tensors)} tensors of {len(pairs)} modules"


def _names(target: str, module: str) -> bool:
    return module == target or module.endswith(f".{target}")


@check("numerics/3.4/adam-first-step")
def adam_first_step(here: Surroundings) -> str:
    """Adam's first step moves every weight that has a gradient by the learning rate."""
    traveller = here.traveller
    trainer = traveller.train()
    before = _exported(traveller, trainer, "conformance-before")
    rate = 0.01
    traveller.wait(trainer.forward_backward(datums(), "cross_entropy"))
    traveller.wait(trainer.optim_step(AdamParams(learning_rate=rate)))
    after = _exported(traveller, trainer, "conformance-after")
    if before.tensors.keys() != after.tensors.keys():
        raise Failed("the exports before and after a step have different tensors")
    moves = np.concatenate(
        [np.abs(after.tensors[name] - before.tensors[name]).ravel() for name in after.tensors]
    )
    moves = moves[moves > 0]
    expect(moves.size > 0, "no weight moved")
    middle = float(np.median(moves))
    right = float(np.mean(np.abs(moves / rate - 1) <= _RATIO))
    expect(
        right >= 0.95,
        f"at a rate of {rate} weights moved by {middle:.4g} (median); {right:.0%} by the rate",
    )
    return f"{moves.size} weights moved by {middle:.5f}, {right:.1%} of them by {rate}"


@check("numerics/3.3/loss-sum")
def loss_sum(here: Surroundings) -> str:
    """Weights of any sign and size count as they are: loss:sum is minus Σ weight × logprob."""
    traveller = here.traveller
    trainer = traveller.train()
    seen = []
    for factor in (1.0, -0.5, 0.0, 100.0):
        examples = scaled(EXAMPLES, factor)
        output = traveller.wait(trainer.forward(datums(examples), "cross_entropy"))
        value, expected = output.metrics["loss:sum"], weighted_loss(logprobs(output), examples)
        expect(
            abs(value - expected) <= _CLOSE * max(abs(expected), 1),
            f"weights ×{factor}: loss:sum {value}, by hand {expected}",
        )
        seen.append(f"{value:.3f}")
    return f"{', '.join(seen)} at weights × 1, -0.5, 0, 100"
