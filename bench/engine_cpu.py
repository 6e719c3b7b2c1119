"""Training on a CPU: the engine beside a bare transformers + PEFT loop, in one run at one thread count.

python bench/engine_cpu.py [--threads 1] [--turns 15] [--clock wall] [--check]

The default adapter is trained: attention, MLP and unembedding, rank 8. Small steps of both are taken in
turns in one process and medians compared, so that noise falls on both alike; the ragged batch runs in a
process of its own for each, where its peak memory is read. Then two curves: what a step costs by tokens,
and by how many adapters are held. On a machine that is busy with other things `--clock cpu` counts the
process's CPU time instead. Sampling has its own file, engine_cpu_sampling.py.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from tinkex.engine.base_model import BaseModel
from tinkex.engine.messages import Datum, TrainPart
from tinkex.engine.trainer import Trainer, TrainState

MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]
SHAPES = {
    "205k": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 1024,
        "tie_word_embeddings": False,
    },
    "3M": {
        "hidden_size": 192,
        "num_hidden_layers": 6,
        "intermediate_size": 512,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 4096,
        "tie_word_embeddings": True,
    },
}
RANK = 8
STEP = {"learning_rate": 1e-4, "eps": 1e-8}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
Step = Callable[[], object]


def model_of(shape: str) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**SHAPES[shape], max_position_embeddings=8192)).eval()


def rows_of(shape: str, lengths: list[int]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(0, SHAPES[shape]["vocab_size"], n + 1) for n in lengths]


def peft_step(shape: str, rows: list[np.ndarray]) -> Step:
    """One optimizer step of the bare loop: padded batch, full logits, AdamW."""
    from peft import LoraConfig, get_peft_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = LoraConfig(r=RANK, lora_alpha=32, target_modules=MODULES)
        model = get_peft_model(model_of(shape), config)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    longest = max(map(len, rows)) - 1
    ids, targets = torch.zeros(2, len(rows), longest, dtype=torch.int64)
    mask = torch.zeros(len(rows), longest)
    for i, row in enumerate(rows):
        n = len(row) - 1
        ids[i, :n], targets[i, :n], mask[i, :n] = torch.from_numpy(row[:-1]), torch.from_numpy(row[1:]), 1
    padding = None if bool(mask.all()) else mask.long()

    def step() -> None:
        logits = model(input_ids=ids, attention_mask=padding).logits
        logprobs = torch.log_softmax(logits.float(), -1).gather(-1, targets[..., None])[..., 0]
        (-(logprobs * mask).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def part_of(rows: list[np.ndarray]) -> TrainPart:
    data = [
        Datum(row[:-1], {"target_tokens": row[1:], "weights": np.ones(len(row) - 1, np.float32)})
        for row in rows
    ]
    return TrainPart("m", tuple(data), "cross_entropy")


def engine_step(trainer: Trainer, states: list[TrainState], rows: list[np.ndarray]) -> Step:
    """One joined pass of all states and their optimizer steps."""
    part = part_of(rows)

    def step() -> None:
        trainer.run([(state, part) for state in states])
        for state in states:
            trainer.optim_step(state, STEP)

    return step


def seconds(step: Step, clock: str) -> float:
    now = CLOCKS[clock]
    started = now()
    step()
    return now() - started


def medians(turns: int, clock: str, *steps: Step) -> list[float]:
    """The median time of each, taken in turns."""
    for step in steps:
        step()
        step()
    found = [[seconds(step, clock) for step in steps] for _ in range(turns)]
    return [statistics.median(column) for column in zip(*found, strict=True)]


def small(turns: int, clock: str) -> list[tuple[str, float, float]]:
    """205k parameters, 8 rows of 64: one adapter, then four joined; (name, ratio, target)."""
    rows = rows_of("205k", [64] * 8)
    base = BaseModel(model_of("205k"))
    trainer = Trainer(base)
    states = [TrainState(base.new_adapter(RANK, seed=i)) for i in range(5)]
    theirs, one, four = medians(
        turns,
        clock,
        peft_step("205k", rows),
        engine_step(trainer, states[:1], rows),
        engine_step(trainer, states[1:], rows),
    )
    print("205k parameters, 8 x 64 tokens")
    print(f"{'PEFT':>24} {1 / theirs:8.1f} steps/s")
    print(f"{'engine':>24} {1 / one:8.1f} steps/s {theirs / one:6.2f} x")
    print(f"{'engine, 4 joined':>24} {4 / four:8.1f} steps/s {4 * theirs / four:6.2f} x")
    return [("one adapter", theirs / one, 1.3), ("four joined", 4 * theirs / four, 2.5)]


def ragged_rows() -> list[np.ndarray]:
    return rows_of("3M", np.random.default_rng(1).integers(32, 513, 32).tolist())


def ragged_child(kind: str, turns: int, clock: str) -> None:
    """Steps on the ragged batch in a fresh process: seconds a step and peak megabytes above the start."""
    rows = ragged_rows()
    if kind == "peft":
        step = peft_step("3M", rows)
    else:
        base = BaseModel(model_of("3M"))
        step = engine_step(Trainer(base), [TrainState(base.new_adapter(RANK, seed=0))], rows)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step()
    times = [seconds(step, clock) for _ in range(turns)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"seconds": statistics.median(times), "peak": peak / 1024}))


def ragged(turns: int, threads: int, clock: str) -> list[tuple[str, float, float]]:
    """3M parameters, 32 rows of 32 to 512 tokens; real tokens a second and peak memory."""
    tokens = sum(len(row) - 1 for row in ragged_rows())
    found: dict[str, list[dict[str, float]]] = {"peft": [], "engine": []}
    for _ in range(turns):
        for kind, answers in found.items():
            command = [
                sys.executable,
                __file__,
                "--ragged",
                kind,
                "--threads",
                str(threads),
                "--turns",
                "2",
                "--clock",
                clock,
            ]
            out = subprocess.run(command, capture_output=True, text=True, check=True)
            answers.append(json.loads(out.stdout.splitlines()[-1]))
    took = {kind: statistics.median(x["seconds"] for x in answers) for kind, answers in found.items()}
    peak = {kind: statistics.median(x["peak"] for x in answers) for kind, answers in found.items()}
    print(f"3M parameters, 32 ragged rows, {tokens} tokens")
    for kind, name in (("peft", "PEFT, padded"), ("engine", "engine, packed")):
        print(f"{name:>24} {tokens / took[kind]:8.0f} tokens/s, peak {peak[kind]:7.0f} MB")
    ratio = took["peft"] / took["engine"]
    memory = peak["peft"] / max(peak["engine"], 1.0)
    print(f"{'':>24} {ratio:8.2f} x, memory {memory:.1f} x less")
    return [("ragged", ratio, 3.5), ("ragged memory", memory, 1.0)]


def curves(turns: int, clock: str) -> None:
    """What a step costs by its tokens, and by how many adapters are held."""
    base = BaseModel(model_of("205k"))
    trainer = Trainer(base)
    state = TrainState(base.new_adapter(RANK, seed=0))
    print("milliseconds a step by tokens (205k parameters, rows of 64)")
    for count in (4, 8, 16, 32, 64, 128):
        (took,) = medians(turns, clock, engine_step(trainer, [state], rows_of("205k", [64] * count)))
        print(f"{count * 64:>24} {took * 1e3:8.2f} ms, {took / count / 64 * 1e6:6.2f} us a token")
    print("milliseconds a step by adapters held (512 tokens, one of them trained)")
    held: list[TrainState] = []
    step = engine_step(trainer, [state], rows_of("205k", [64] * 8))
    for count in (1, 16, 64, 256):
        held += [TrainState(base.new_adapter(RANK, seed=i)) for i in range(len(held) + 1, count)]
        (took,) = medians(turns, clock, step)
        print(f"{count:>24} {took * 1e3:8.2f} ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall")
    parser.add_argument("--check", action="store_true", help="fail below the target ratios")
    parser.add_argument("--ragged", choices=("peft", "engine"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    transformers_logging.set_verbosity_error()
    if asked.ragged:
        ragged_child(asked.ragged, asked.turns, asked.clock)
        return 0
    print(f"torch {torch.__version__}, {asked.threads} thread(s) of {os.cpu_count()}", end=", ")
    print(f"medians of {asked.clock} time")
    results = small(asked.turns, asked.clock) + ragged(3, asked.threads, asked.clock)
    curves(max(3, asked.turns // 3), asked.clock)
    missed = [name for name, ratio, target in results if ratio < target]
    print("below target: " + ", ".join(missed) if missed else "all targets met")
    return 1 if asked.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
