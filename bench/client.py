"""Client cost, side by side with the official SDK: the same program runs with each against one fake.

    python bench/client.py [--rounds 5] [--json]

The fake service runs in a process of its own; each client in another, whose CPU time is counted.
Both get the same settings from the server.  Figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

TARGETS = {
    "cpu_per_sample_ms": ("CPU per sample, 2,000 at once", "ms", 1 / 7, "lower"),
    "samples_per_second": ("samples per second, 2,000 at once", "1/s", 5.0, "higher"),
    "sample_latency_ms": ("latency of one sample", "ms", 1 / 2.5, "lower"),
    "step_latency_ms": ("latency of a tiny train step", "ms", 1 / 2.5, "lower"),
    "upload_cpu_ms_per_mb": ("CPU per MB of training data", "ms", 1 / 3, "lower"),
    "peak_rss_mb": ("peak memory", "MB", 1.0, "lower"),
}


def child(name: str, url: str) -> dict[str, float]:
    """Run the program with one SDK and measure it."""
    os.environ |= {"TINKER_API_KEY": "tml-bench", "TINKER_BASE_URL": url, "TINKER_TELEMETRY": "0"}
    import numpy as np

    sdk: Any = importlib.import_module(name)
    types = sdk.types
    service = sdk.ServiceClient(base_url=url, api_key="tml-bench")
    trainer = service.create_lora_training_client("Qwen/Qwen3-8B", rank=8)
    sampler = trainer.save_weights_and_get_sampling_client()
    prompt = types.ModelInput.from_ints(list(range(100)))
    params = types.SamplingParams(max_tokens=16, temperature=1.0)
    found: dict[str, float] = {}

    for _ in range(20):
        sampler.sample(prompt, 1, params).result()
    took = []
    for _ in range(200):
        started = time.perf_counter()
        sampler.sample(prompt, 1, params).result()
        took.append(time.perf_counter() - started)
    found["sample_latency_ms"] = statistics.median(took) * 1e3

    async def many(count: int) -> None:
        await asyncio.gather(*(sampler.sample_async(prompt, 1, params) for _ in range(count)))

    asyncio.run(many(200))
    cpu, wall = time.process_time(), time.perf_counter()
    asyncio.run(many(2000))
    found["cpu_per_sample_ms"] = (time.process_time() - cpu) / 2000 * 1e3
    found["samples_per_second"] = 2000 / (time.perf_counter() - wall)

    def datum(length: int) -> Any:
        inputs = {
            "target_tokens": np.arange(length, dtype=np.int64),
            "logprobs": np.zeros(length, np.float32),
            "advantages": np.ones(length, np.float32),
        }
        tokens = types.ModelInput.from_ints(list(range(length)))
        return types.Datum(model_input=tokens, loss_fn_inputs=inputs)

    def step(data: list[Any]) -> None:
        passed = trainer.forward_backward(data, "importance_sampling")
        stepped = trainer.optim_step(types.AdamParams(learning_rate=1e-4))
        passed.result()
        stepped.result()

    tiny = [datum(8)]
    for _ in range(10):
        step(tiny)
    took = []
    for _ in range(100):
        started = time.perf_counter()
        step(tiny)
        took.append(time.perf_counter() - started)
    found["step_latency_ms"] = statistics.median(took) * 1e3

    large = [datum(8192) for _ in range(64)]
    megabytes = 64 * 8192 * (4 + 8 + 4 + 4) / 1e6
    step(large)
    cpu = time.process_time()
    for _ in range(3):
        trainer.forward(large, "importance_sampling").result()
    found["upload_cpu_ms_per_mb"] = (time.process_time() - cpu) / (3 * megabytes) * 1e3
    found["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    service.close("success").result()
    return found


def measure(name: str, url: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--child", name, "--url", url],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode != 0:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child")
    parser.add_argument("--url", default="")
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child, options.url)))
        return
    server = subprocess.Popen(
        [sys.executable, "-m", "tinkex.testing.http_server", "--port", "0", "--no-record"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip().split()[-1]
        rounds: dict[str, list[dict[str, float]]] = {"tinker": [], "tinkex": []}
        for _ in range(options.rounds):
            for name, results in rounds.items():
                results.append(measure(name, url))
    finally:
        server.terminate()
    medians = {
        name: {key: statistics.median(one[key] for one in results) for key in TARGETS}
        for name, results in rounds.items()
    }
    if options.json:
        print(json.dumps(medians, indent=2))
        return
    print(f"{'':40}{'official':>12}{'tinkex':>10}{'ratio':>9}{'goal':>9}")
    missed = []
    for key, (label, unit, goal, better) in TARGETS.items():
        official, ours = medians["tinker"][key], medians["tinkex"][key]
        ratio = ours / official
        met = ratio <= goal if better == "lower" else ratio >= goal
        verdict = "met" if met else "MISSED"
        missed += [] if met else [label]
        name = f"{label} ({unit})"
        print(f"{name:42}{official:>10.2f}{ours:>10.2f}{ratio:>9.3f}{goal:>9.3f}  {verdict}")
    if missed:
        sys.exit(f"goals missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
