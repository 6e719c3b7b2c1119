"""How far apart the losses of the same work lie, done beside others' and done again alone.

    python bench/replay_spread.py [--device cpu] [--dtype float32 bfloat16] [--rounds 6] [--model FOLDER]

A restored model does the operations since its snapshot again, at most 16 steps, and each loss is compared
with the one recorded. The first time its passes were joined with those of other models, in batches of other
shapes, and what is rounded otherwise adds up from step to step. Told is the largest difference, relative to
the loss (at least 1), beside what a server allows; ten times what is seen should not be more than that.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from tinkex.engine.base_model import BaseModel
from tinkex.engine.desk import Desk
from tinkex.engine.engine import Engine, EngineOptions
from tinkex.engine.messages import (
    CreateAdapter,
    Datum,
    OptimStep,
    PartResult,
    Train,
    TrainDone,
    TrainPart,
    Unload,
)
from tinkex.server.recovery import LOSS, TOLERANCE
from tinkex.testing import make_tiny_model

STEPS = 16
CROWD = 5
RATES = (1e-4, 1e-3, 5e-3)


def data(seed: int, vocab: int) -> tuple[Datum, ...]:
    """A pass of some sequences of some lengths."""
    chance = np.random.default_rng(seed)
    found = []
    for length in chance.integers(4, 120, chance.integers(1, 9)):
        tokens = chance.integers(0, vocab, length + 1)
        inputs = {"target_tokens": tokens[1:], "weights": np.ones(length, np.float32)}
        found.append(Datum(tokens[:-1], inputs, ()))
    return tuple(found)


def losses(desk: Desk, vocab: int, seed: int, rate: float, crowd: int) -> list[float]:
    """The losses of a model that learns, beside so many others."""
    models = [f"m{n}" for n in range(1 + crowd)]
    for n, model in enumerate(models):
        desk.call(CreateAdapter(0, desk.next_id(), model, rank=8, seed=n))
    found = []
    for step in range(STEPS):
        parts = tuple(
            TrainPart(model, data(1000 * seed + 50 * n + step, vocab), "cross_entropy")
            for n, model in enumerate(models)
        )
        answer = desk.call(Train(0, desk.next_id(), parts))
        assert isinstance(answer, TrainDone)
        mine = answer.parts[0]
        assert isinstance(mine, PartResult)
        found.append(mine.metrics[LOSS])
        for model in models:
            desk.call(OptimStep(0, desk.next_id(), model, {"learning_rate": rate}))
    for model in models:
        desk.call(Unload(0, desk.next_id(), model))
    return found


def main() -> int:
    """Measure each; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--model", type=Path)
    chosen = parser.parse_args()
    well = True
    with tempfile.TemporaryDirectory(prefix="tinkex-spread-") as place:
        folder = chosen.model or make_tiny_model(Path(place) / "model")
        for dtype in chosen.dtype:
            base = BaseModel.load(folder, device=chosen.device, dtype=dtype)
            desk = Desk(Engine(base, options=EngineOptions()))
            furthest = 0.0
            for seed in range(chosen.rounds):
                rate = RATES[seed % len(RATES)]
                recorded = losses(desk, base.vocab_size, seed, rate, CROWD)
                again = losses(desk, base.vocab_size, seed, rate, 0)
                apart = [abs(a - b) / max(1.0, abs(a)) for a, b in zip(recorded, again, strict=True)]
                furthest = max(furthest, *apart)
            desk.host.close()
            allowed = TOLERANCE[dtype]
            well &= 10 * furthest <= allowed
            print(f"{chosen.device} {dtype}: largest {furthest:.1e}, allowed {allowed:.0e}", flush=True)
    return not well


if __name__ == "__main__":
    sys.exit(main())
