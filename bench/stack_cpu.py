"""The whole stack on a CPU: official SDK, server, engine, beside a bare transformers + PEFT loop.

    python bench/stack_cpu.py [--rounds 3] [--threads 1] [--client tinker] [--check]

A 205-thousand-parameter Qwen3, rank 8 (attention, MLP and unembedding), batches of 8 x 64 tokens. The
server and its engine run in processes of their own, clients in another; the bare loop and HF `generate` run
in a third with the engine's thread count. Nothing else runs while one is measured; rounds take turns and
medians are compared. Steps are pipelined two deep.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROWS, LENGTH, VOCAB, RANK = 8, 64, 1024, 8
STEPS = 60
SAMPLED = 64
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]
GOALS = {
    "one tenant, steps/s": ("bare loop, steps/s", 0.8),
    "4 tenants, steps/s in all": ("bare loop, steps/s", 1.5),
    "n=16 x 64, tokens/s": ("generate 16 rows, tokens/s", 1.0),
    "32 at once, tokens/s": ("generate 32 rows, tokens/s", 0.9),
}
FIRST_STEP = 0.5


def rows() -> list[list[int]]:
    return [[(7 * i + 13 * row * i + row) % VOCAB for i in range(LENGTH + 1)] for row in range(ROWS)]


# ---- the bare loop, in a process of its own: answers a line for a line


def bare(folder: str) -> None:
    import warnings

    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = get_peft_model(base, LoraConfig(r=RANK, lora_alpha=32, target_modules=MODULES))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    tokens = torch.tensor(rows())
    ids, targets = tokens[:, :-1], tokens[:, 1:]

    def step() -> None:
        logits = model(input_ids=ids).logits
        logprobs = torch.log_softmax(logits.float(), -1).gather(-1, targets[..., None])[..., 0]
        (-logprobs.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()

    def generate(count: int) -> None:
        prompt = torch.arange(3)[None].expand(count, 3)
        model.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=0,
            max_new_tokens=SAMPLED, min_new_tokens=SAMPLED, pad_token_id=0,
        )  # fmt: skip

    for _ in range(5):
        step()
    generate(16)
    for _ in sys.stdin:
        found = {}
        started = time.perf_counter()
        for _ in range(STEPS):
            step()
        found["bare loop, steps/s"] = STEPS / (time.perf_counter() - started)
        for count in (16, 32):
            started = time.perf_counter()
            for _ in range(3):
                generate(count)
            taken = time.perf_counter() - started
            found[f"generate {count} rows, tokens/s"] = 3 * count * SAMPLED / taken
        print(json.dumps(found), flush=True)


# ---- the clients, in a process of their own


def clients(name: str) -> None:
    sdk: Any = importlib.import_module(name)
    types = sdk.types
    data = [
        types.Datum(
            model_input=types.ModelInput.from_ints(row[:-1]),
            loss_fn_inputs={"target_tokens": row[1:], "weights": [1.0] * LENGTH},
        )
        for row in rows()
    ]
    adam = types.AdamParams(learning_rate=1e-4)
    services = [sdk.ServiceClient() for _ in range(4)]

    async def train(trainer: Any, steps: int) -> None:
        """Steps pipelined two deep."""
        waiting: list[Any] = []
        for _ in range(steps):
            waiting.append(
                (
                    await trainer.forward_backward_async(data, "cross_entropy"),
                    await trainer.optim_step_async(adam),
                )
            )
            if len(waiting) == 2:
                for future in waiting.pop(0):
                    await future
        for pair in waiting:
            for future in pair:
                await future

    async def tenants(count: int, steps: int) -> float:
        started = time.perf_counter()
        await asyncio.gather(*(train(trainer, steps) for trainer in trainers[:count]))
        return count * steps / (time.perf_counter() - started)

    params = types.SamplingParams(max_tokens=SAMPLED, temperature=1.0, stop=[])
    prompt = types.ModelInput.from_ints([0, 1, 2])

    async def sample(requests: int, each: int) -> float:
        started = time.perf_counter()
        answers = await asyncio.gather(
            *(
                sampler.sample_async(prompt, num_samples=each, sampling_params=params)
                for _ in range(requests)
            )
        )
        taken = time.perf_counter() - started
        return sum(len(s.tokens) for answer in answers for s in answer.sequences) / taken

    trainers = [service.create_lora_training_client("tiny", rank=RANK) for service in services]
    asyncio.run(tenants(4, 5))
    sampler = trainers[0].save_weights_and_get_sampling_client()
    asyncio.run(sample(1, 16))
    for _ in sys.stdin:
        found = {}
        started = time.perf_counter()
        fresh = services[0].create_lora_training_client("tiny", rank=RANK)
        passed, stepped = fresh.forward_backward(data, "cross_entropy"), fresh.optim_step(adam)
        passed.result()
        stepped.result()
        found["create and first step, s"] = time.perf_counter() - started
        found["one tenant, steps/s"] = asyncio.run(tenants(1, STEPS))
        found["4 tenants, steps/s in all"] = asyncio.run(tenants(4, STEPS))
        found["n=16 x 64, tokens/s"] = statistics.median(asyncio.run(sample(1, 16)) for _ in range(5))
        found["32 at once, tokens/s"] = statistics.median(asyncio.run(sample(32, 1)) for _ in range(5))
        print(json.dumps(found), flush=True)


# ---- the run


class Worker:
    """A process that measures when asked."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def measure(self) -> dict[str, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found: dict[str, float] = json.loads(self.process.stdout.readline())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--client", default="tinker", help="the SDK to use: tinker or tinkex")
    parser.add_argument("--check", action="store_true", help="exit 1 if a goal is missed")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "bare":
        return bare(options.folder)
    if options.role == "clients":
        return clients(options.client)
    from tinkex.testing import make_tiny_model

    threads = {"OMP_NUM_THREADS": str(options.threads), "MKL_NUM_THREADS": str(options.threads)}
    with tempfile.TemporaryDirectory() as place:
        folder = make_tiny_model(Path(place) / "tiny")
        server = subprocess.Popen(
            [
                sys.executable, "-m", "tinkex", "serve", "--json", "--model", f"tiny={folder}",
                "--port", "0", "--state", f"{place}/state", "--threads", str(options.threads),
                "--device", "cpu", "--log-level", "warning",
            ],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "TINKER_API_KEY": "tml-bench"},
        )  # fmt: skip
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            tenants = Worker(
                "--role", "clients", "--client", options.client,
                TINKER_API_KEY="tml-bench", TINKER_BASE_URL=url, TINKER_TELEMETRY="0",
            )  # fmt: skip
            loop = Worker("--role", "bare", "--folder", str(folder), **threads)
            taken = [{**loop.measure(), **tenants.measure()} for _ in range(options.rounds)]
        finally:
            server.terminate()
            server.wait()
    good = report({name: statistics.median(each[name] for each in taken) for name in taken[0]})
    if options.check and not good:
        raise SystemExit(1)
    return None


def report(figures: dict[str, float]) -> bool:
    good = True
    for name, value in figures.items():
        line = f"{name:>30} {value:10.2f}"
        if name in GOALS:
            other, goal = GOALS[name]
            ratio = value / figures[other]
            good &= ratio >= goal
            line += f" {ratio:7.2f} x of {other.partition(',')[0]} (goal {goal})"
        elif name.startswith("create"):
            good &= value <= FIRST_STEP
            line += f" (goal {FIRST_STEP})"
        print(line)
    return good


if __name__ == "__main__":
    main()
