"""Tokens a second on a CPU: the engine's continuous batching beside transformers' `generate` with PEFT.

Both run in this process at the same thread count, in turns, and the best of the turns counts for each.
Then, how often a token of the fast mode differs when its row shares the batch with others.

    python bench/engine_cpu_sampling.py [--threads 1] [--turns 3] [--check]
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from engine_cpu import MODULES, SHAPES
from peft import LoraConfig, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM

from tinkex.engine.base_model import BaseModel
from tinkex.engine.engine import Engine, EngineOptions
from tinkex.engine.messages import (
    Answer,
    CreateAdapter,
    Done,
    Sample,
    SamplingParams,
    SaveSampler,
    TokenStep,
)

PROMPT = 32
COMMON = {"max_position_embeddings": 2048, "bos_token_id": None, "eos_token_id": None}


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    shape: str
    rows: int
    tokens: int
    target: float


CASES = (Case("205k", 32, 96, 1.5), Case("205k", 1, 192, 1.5), Case("3M", 128, 48, 1.4))


def make(shape: str) -> tuple[Qwen3ForCausalLM, BaseModel]:
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**SHAPES[shape], **COMMON)).eval()
    return model, BaseModel(copy.deepcopy(model))


def with_peft(model: Qwen3ForCausalLM) -> torch.nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return get_peft_model(model, LoraConfig(r=8, lora_alpha=32, target_modules=MODULES)).eval()


def generate(model: torch.nn.Module, prompts: torch.Tensor, tokens: int) -> float:
    started = time.perf_counter()
    model.generate(
        input_ids=prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=True,
        top_k=0,
        pad_token_id=0,
    )
    return prompts.numel() // PROMPT * tokens / (time.perf_counter() - started)


class Engined:
    """An engine with frozen adapters, all of one rank."""

    def __init__(self, base: BaseModel, *, adapters: int = 1, exact: bool = False) -> None:
        self.engine = Engine(base, options=EngineOptions(deterministic=exact))
        for number in range(adapters):
            self.engine.submit(CreateAdapter(0, f"c{number}", f"m{number}", 8, number))
            self.engine.submit(SaveSampler(0, f"s{number}", f"m{number}"))
        made = [answer.facts for answer in self.drain() if isinstance(answer, Done)]
        self.versions = [str(facts["version"]) for facts in made if "version" in facts]
        self.count = 0

    def drain(self) -> list[Answer]:
        found: list[Answer] = []
        while self.engine.busy:
            found += self.engine.step()
        return found

    def sample(
        self, prompts: np.ndarray, tokens: int, seeds: Iterable[int] | None = None, **params: float
    ) -> list[list[int]]:
        """Each prompt's tokens, all prompts in one batch; no prompt finds another's prefix."""
        streams: dict[int, list[int]] = {}
        for seed, prompt in zip(seeds or range(len(prompts)), prompts, strict=True):
            self.count += 1
            name, version = str(self.count), self.versions[seed % len(self.versions)]
            settings = SamplingParams(max_tokens=tokens, stop=(), seed=seed, **params)
            (answer,) = self.engine.submit(Sample(0, name, version, prompt, 1, settings, owner=name))
            streams[answer.first_stream] = []
        for answer in self.drain():
            if isinstance(answer, TokenStep):
                for stream, token in zip(answer.streams.tolist(), answer.tokens.tolist(), strict=True):
                    streams[stream].append(token)
        return list(streams.values())

    def rate(self, prompts: np.ndarray, tokens: int) -> float:
        started = time.perf_counter()
        drawn = self.sample(prompts, tokens)
        return sum(map(len, drawn)) / (time.perf_counter() - started)


def best(turns: int, *runs: Callable[[], float]) -> list[float]:
    """The best of some turns of each, taken alternately so that noise falls on all alike."""
    for run in runs:
        run()
    found = [[run() for run in runs] for _ in range(turns)]
    return [max(column) for column in zip(*found, strict=True)]


def flips(base: BaseModel, rows: int, tokens: int, **params: float) -> tuple[int, int]:
    """How many rows part from what they draw alone, and how many tokens were compared until then."""
    prompts = np.random.default_rng(1).integers(5, 1000, (rows, PROMPT))
    engined = Engined(base)
    together = engined.sample(prompts, tokens, **params)
    parted = compared = 0
    for row in range(rows):
        alone = engined.sample(prompts[row : row + 1], tokens, seeds=[row], **params)[0]
        same = next((i for i in range(tokens) if alone[i] != together[row][i]), tokens)
        parted += same < tokens
        compared += min(same + 1, tokens)
    return parted, compared


def compare(case: Case, turns: int) -> bool:
    """Print one row of the table; whether it reaches its target."""
    model, base = make(case.shape)
    reference = with_peft(model)
    prompts = np.random.default_rng(0).integers(5, 1000, (case.rows, PROMPT))
    ids = torch.from_numpy(prompts)
    engined, exact = Engined(base), Engined(base, exact=True)
    theirs, ours, slow = best(
        turns,
        lambda: generate(reference, ids, case.tokens),
        lambda: engined.rate(prompts, case.tokens),
        lambda: exact.rate(prompts, case.tokens // 4),
    )
    print(
        f"{case.shape:>6} {case.rows:>5} {theirs:>10.0f} {ours:>10.0f} {ours / theirs:>6.2f}"
        f" {case.target:>6.1f} {slow:>10.0f}"
    )
    return ours >= case.target * theirs


def report(turns: int) -> bool:
    """Print everything; whether all targets were reached."""
    print(
        f"{'model':>6} {'rows':>5} {'generate':>10} {'engine':>10} {'ratio':>6} {'target':>6} {'exact':>10}"
    )
    reached = [compare(case, turns) for case in CASES]
    _, base = make("205k")
    prompts = np.random.default_rng(0).integers(5, 1000, (32, PROMPT))
    curve = []
    for adapters in (1, 2, 4, 8, 16, 32):
        engined = Engined(base, adapters=adapters)
        (rate,) = best(turns, lambda: engined.rate(prompts, 64))  # noqa: B023
        curve.append(f"{adapters}: {rate:.0f}")
    print("205k, 32 rows, by the number of adapters among them:", ", ".join(curve))
    for name, params in (("temperature 1", {}), ("greedy", {"temperature": 0.0})):
        parted, compared = flips(base, 32, 64, **params)
        print(f"fast mode, {name}: {parted} of {compared} tokens differ when the row shares its batch")
    return all(reached)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--check", action="store_true", help="fail below the target ratios")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    print(f"torch {torch.__version__}, {asked.threads} thread(s); tokens/s, best of {asked.turns}")
    reached = report(asked.turns)
    return 0 if reached or not asked.check else 1


if __name__ == "__main__":
    sys.exit(main())
