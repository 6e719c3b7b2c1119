"""The engine on a GPU beside transformers + PEFT, random weights at Qwen3's shapes, in one run.

    python bench/engine_gpu.py [--shape 8b|1.7b|0.6b] [--no-baseline] [--only train sample loop] [--json F]
    python bench/engine_gpu.py --profile    where the time goes in training and decoding

Everything of ours goes through the engine's messages; LoRA is on attention, MLP and unembedding, rank 32
unless said. Training is forward + backward + optimizer step; times are medians of wall time around a device
synchronisation, memory is the peak of allocated bytes with the key/value pool in it. Decode rates are rows
by the median time of a step; `whole` counts prompts and every step too. Useful arithmetic is 4 N a trained
and 2 N a decoded token, N the weights that are multiplied with; the chip's limits are measured in the same
run. The baseline is a bare loop with the same tokens, rank and modules, padded where ours is ragged, and
once compiled. Where nothing can be installed, put `src` and an unpacked peft wheel on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from tinkex.engine.base_model import BaseModel
from tinkex.engine.engine import Engine, EngineOptions
from tinkex.engine.messages import (
    CreateAdapter,
    Datum,
    OptimStep,
    Sample,
    SamplingParams,
    SaveSampler,
    TokenStep,
    Train,
    TrainPart,
)
from tinkex.engine.sampler import SamplerOptions

SHAPES = {
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
    },
    "1.7b": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
    },
    "0.6b": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
    },
}
ROWS, LENGTH, RANK = 8, 1024, 32
MIXED_RANKS = (8, 16, 32, 32, 32, 32, 64, 40)
PROMPT, NEW = 128, 128
TARGETS = {
    "train tok/s": 16_000,
    "train ragged / equal": 0.9,
    "train 8 adapters / 1": 0.92,
    "train 64 resident / 1": 0.98,
    "train recomputed tok/s": 11_500,
    "decode 1 tok/s": 170,
    "decode 64 tok/s": 10_000,
    "decode 256 tok/s": 26_000,
    "decode 64, 8 adapters / 1": 0.9,
    "512 arriving / 256 whole": 0.85,
}
MOST = {
    "train GB": 60,
    "train recomputed GB": 25,
    "new weights to first token ms": 50,
    "loop idle %": 10,
}
Figures = dict[str, float]


def random_model(shape: str) -> Any:
    """A model with random weights, made on the device."""
    config = Qwen3Config(
        **SHAPES[shape], num_key_value_heads=8, head_dim=128, vocab_size=151_936,
        max_position_embeddings=40_960, tie_word_embeddings=shape != "8b", eos_token_id=None,
    )  # fmt: skip
    kept = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    finally:
        torch.set_default_dtype(kept)


@contextlib.contextmanager
def measured() -> Iterator[Figures]:
    """Wall time around synchronised work."""
    found: Figures = {}
    torch.cuda.synchronize()
    started = time.perf_counter()
    yield found
    torch.cuda.synchronize()
    found["seconds"] = time.perf_counter() - started


def repeated(work: Callable[[], object], warm: int = 2, rounds: int = 5) -> float:
    """The median time of some work."""
    for _ in range(warm):
        work()
    times = []
    for _ in range(rounds):
        with measured() as found:
            work()
        times.append(found["seconds"])
    return statistics.median(times)


def peak_gb() -> float:
    return torch.cuda.max_memory_allocated() / 1e9


def fresh() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def limits() -> tuple[float, float]:
    """What the chip does at best here: TFLOP/s of a large product, TB/s of a large copy."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    flops = 2 * 8192**3 / repeated(lambda: a @ b, 5, 20) / 1e12
    x = torch.empty(1 << 32, device="cuda", dtype=torch.uint8)
    y = torch.empty_like(x)
    return flops, 2 * len(x) / repeated(lambda: y.copy_(x), 2, 5) / 1e12


def drain(engine: Engine) -> list[Any]:
    """Step until nothing is left to do; answers but those with tokens."""
    answers: list[Any] = []
    while engine.busy:
        answers += (answer for answer in engine.step() if not isinstance(answer, TokenStep))
    for answer in answers:
        if type(answer).__name__ == "Failed":
            raise RuntimeError(answer.text)
    return answers


def data_of(lengths: Sequence[int], vocab: int, seed: int = 0) -> tuple[Datum, ...]:
    rng = np.random.default_rng(seed)
    found = []
    for length in lengths:
        tokens = rng.integers(0, vocab, length + 1)
        weights = np.ones(length, np.float32)
        found.append(Datum(tokens[:-1].astype(np.int32), {"target_tokens": tokens[1:], "weights": weights}))
    return tuple(found)


def ragged_lengths() -> list[int]:
    """Rows of 64 to 2,048 tokens, about 8,192 in all."""
    rng = np.random.default_rng(7)
    lengths: list[int] = []
    while sum(lengths) < ROWS * LENGTH:
        lengths.append(int(rng.integers(64, 2049)))
    lengths[-1] -= sum(lengths) - ROWS * LENGTH
    return [length for length in lengths if length > 0]


class Ours:
    """An engine and what is asked of it here."""

    def __init__(self, base: BaseModel, kv_gb: float, **options: Any) -> None:
        self.base = base
        sampler = SamplerOptions(kv_bytes=int(kv_gb * 2**30))
        self.engine = Engine(base, options=EngineOptions(sampler=sampler, **options))
        self.rng = np.random.default_rng(1)
        self.made = 0

    def create(self, name: str, rank: int = RANK) -> None:
        self.engine.submit(CreateAdapter(0, f"create {name}", name, rank=rank, seed=0))
        drain(self.engine)

    def train(self, parts: dict[str, tuple[Datum, ...]]) -> None:
        """One joined pass and an optimizer step of each model."""
        given = tuple(TrainPart(name, data, "cross_entropy") for name, data in parts.items())
        self.engine.submit(Train(0, "pass", given))
        for name in parts:
            self.engine.submit(OptimStep(0, f"step {name}", name, {"learning_rate": 1e-4}))
        drain(self.engine)

    def freeze(self, name: str) -> str:
        self.engine.submit(SaveSampler(0, f"save {name}", name))
        return str(drain(self.engine)[-1].facts["version"])

    def ask(self, version: str, prompt: int = PROMPT, new: int = NEW, samples: int = 1) -> None:
        self.made += 1
        tokens = self.rng.integers(0, self.base.vocab_size, prompt).astype(np.int32)
        params = SamplingParams(max_tokens=new, stop=(), seed=self.made)
        request = Sample(0, f"sample {self.made}", version, tokens, num_samples=samples, params=params)
        self.engine.submit(request)

    def decode(self, versions: Sequence[str], rows: int) -> tuple[float, float]:
        """Tokens a second of the median step, and of the whole."""
        for row in range(rows):
            self.ask(versions[row % len(versions)])
        times = []
        with measured() as whole:
            while self.engine.busy:
                started = time.perf_counter()
                self.engine.step()
                times.append(time.perf_counter() - started)
        return rows / statistics.median(times), rows * NEW / whole["seconds"]


def training(base: BaseModel) -> Figures:
    found: Figures = {}
    equal = data_of([LENGTH] * ROWS, base.vocab_size)
    ours = Ours(base, 12)
    ours.create("one")
    fresh()
    seconds = repeated(lambda: ours.train({"one": equal}))
    found["train tok/s"] = ROWS * LENGTH / seconds
    found["train GB"] = peak_gb()
    ragged = data_of(ragged_lengths(), base.vocab_size)
    found["train ragged tok/s"] = ROWS * LENGTH / repeated(lambda: ours.train({"one": ragged}))
    found["train ragged / equal"] = found["train ragged tok/s"] / found["train tok/s"]
    parts = {}
    for i, rank in enumerate(MIXED_RANKS):
        ours.create(f"mixed {i}", rank)
        parts[f"mixed {i}"] = equal[i : i + 1]
    found["train 8 adapters / 1"] = seconds / repeated(lambda: ours.train(parts))
    for i in range(64 - 9):
        ours.create(f"idle {i}", 8)
        ours.train({f"idle {i}": data_of([8], base.vocab_size)})
    found["train 64 resident / 1"] = seconds / repeated(lambda: ours.train({"one": equal}))
    del ours
    fresh()
    ours = Ours(base, 0.5, checkpoint_activations=True, token_budget=6 * LENGTH)
    ours.create("one")
    fresh()
    double = data_of([LENGTH] * 2 * ROWS, base.vocab_size)
    seconds = repeated(lambda: ours.train({"one": double}), 1, 3)
    found["train recomputed tok/s"] = 2 * ROWS * LENGTH / seconds
    found["train recomputed GB"] = peak_gb()
    return found


def sampling(base: BaseModel) -> Figures:
    found: Figures = {}
    ours = Ours(base, 16)
    versions = []
    for i in range(8):
        ours.create(f"m{i}")
        ours.train({f"m{i}": data_of([64], base.vocab_size)})
        versions.append(ours.freeze(f"m{i}"))
    one = versions[:1]
    for rows in (1, 64, 256):
        ours.decode(one, rows)
        runs = [ours.decode(one, rows) for _ in range(3)]
        found[f"decode {rows} tok/s"] = statistics.median(run[0] for run in runs)
        found[f"decode {rows} whole tok/s"] = statistics.median(run[1] for run in runs)
    ours.decode(versions, 64)
    mixed = statistics.median(ours.decode(versions, 64)[0] for _ in range(3))
    found["decode 64, 8 adapters / 1"] = mixed / found["decode 64 tok/s"]
    found |= arriving(ours, versions[0])
    found["512 arriving / 256 whole"] = found["512 arriving tok/s"] / found["decode 256 whole tok/s"]
    found["512 arriving / 512 at once"] = found["512 arriving tok/s"] / found["512 at once tok/s"]
    data = data_of([64], base.vocab_size)
    waits = []
    for _ in range(5):
        ours.train({"m0": data})
        torch.cuda.synchronize()
        started = time.perf_counter()
        ours.ask(ours.freeze("m0"), new=4)
        while not any(isinstance(answer, TokenStep) for answer in ours.engine.step()):
            pass
        waits.append(1e3 * (time.perf_counter() - started))
        drain(ours.engine)
    found["new weights to first token ms"] = statistics.median(waits)
    return found


def served(ours: Ours, version: str, at_once: int, samples: int = 1) -> float:
    """Tokens a second of 512 rows of ragged lengths, a new request whenever fewer than so many are open."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(16, 257, 512 // samples).tolist()
    news = rng.integers(64, 193, 512 // samples).tolist()
    waiting, open_ = list(zip(lengths, news, strict=True)), 0
    with measured() as taken:
        while waiting or ours.engine.busy:
            while waiting and open_ < at_once:
                prompt, new = waiting.pop()
                ours.ask(version, prompt, new, samples)
                open_ += 1
            for answer in ours.engine.step():
                open_ -= type(answer).__name__ == "SampleDone"
    return samples * sum(news) / taken["seconds"]


def arriving(ours: Ours, version: str) -> Figures:
    """Requests that come as others end, all of them there at once, and eight samples of each of 64."""
    ways = {"512 arriving": (256, 1), "512 at once": (512, 1), "64 x 8 at once": (64, 8)}
    for way in ways.values():
        served(ours, version, *way)
    return {f"{name} tok/s": served(ours, version, *way) for name, way in ways.items()}


def passes(ours: Ours, version: str) -> None:
    """The passes that arriving requests are served in: with prompts, and without them by their rows."""
    runner = ours.engine.sampler.runner
    run, prompts, plain = runner.run, [], {}

    def timed(work: Any) -> Any:
        tokens = sum(piece.end - piece.start for piece in work.pieces)
        started = time.perf_counter()
        found = run(work)
        taken = time.perf_counter() - started
        if tokens:
            prompts.append((tokens, taken))
        else:
            plain.setdefault(-(-len(work.rows) // 32) * 32, []).append(taken)
        return found

    served(ours, version, 256)
    runner.run = timed
    rate = served(ours, version, 256)
    del runner.run
    print(f"\n512 arriving: {rate:,.0f} tok/s")
    for title, some in (
        ("of 4,096 tokens and more", [x for x in prompts if x[0] >= 4096]),
        ("of fewer", [x for x in prompts if x[0] < 4096]),
    ):
        tokens, taken = (sum(x[i] for x in some) for i in range(2))
        each = 1e6 * taken / max(tokens, 1)
        print(f"{len(some):4} passes with prompts {title}: {tokens} tokens, {each:.1f} us each")
    for rows, times in sorted(plain.items()):
        print(f"{len(times):4} steps of up to {rows} rows: {1e3 * statistics.median(times):.2f} ms")


def rl_loop(base: BaseModel) -> Figures:
    """Rollouts of 64 prompts x 8, a pass over all of them, a step, and the new weights: where time goes."""
    ours = Ours(base, 24)
    ours.create("policy")
    version = ours.freeze("policy")
    spent = {"sample": [], "train": [], "hand over": []}

    def once() -> None:
        with measured() as taken:
            for _ in range(64):
                ours.ask(version, samples=8)
            drain(ours.engine)
        spent["sample"].append(taken["seconds"])
        data = data_of([PROMPT + NEW] * 512, base.vocab_size)
        with measured() as taken:
            ours.train({"policy": data})
        spent["train"].append(taken["seconds"])
        with measured() as taken:
            ours.freeze("policy")
        spent["hand over"].append(taken["seconds"])

    once()
    once()
    for each in spent.values():
        each.clear()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        once()
    busy = sum(
        event.time_range.elapsed_us()
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    total = sum(sum(each) for each in spent.values())
    found = {f"loop {name} s": sum(each) for name, each in spent.items()}
    return found | {"loop idle %": 100 * max(0.0, 1 - busy / 1e6 / total)}


def baseline(model: Any, compiled: bool) -> Figures:
    """A bare transformers + PEFT loop and `generate`."""
    from peft import LoraConfig, get_peft_model

    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]
    peft = get_peft_model(
        model, LoraConfig(r=RANK, lora_alpha=32, target_modules=targets, lora_dropout=0.0)
    )
    chosen = [p for p in peft.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(chosen, lr=1e-4)
    if compiled:
        for layer in peft.base_model.model.model.layers:
            layer.forward = torch.compile(layer.forward)
    ids = torch.randint(0, model.config.vocab_size, (ROWS, LENGTH + 1), device="cuda")
    found: Figures = {}
    fresh()

    def step(ids: torch.Tensor, mask: torch.Tensor | None = None) -> None:
        logits = peft(input_ids=ids[:, :-1], attention_mask=mask, use_cache=False).logits
        targets = ids[:, 1:] if mask is None else ids[:, 1:].masked_fill(mask == 0, -100)
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), targets.flatten(), reduction="sum"
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    found["train tok/s"] = ROWS * LENGTH / repeated(lambda: step(ids), 2, 4)
    found["train GB"] = peak_gb()
    if compiled:
        return found
    lengths = ragged_lengths()
    # Padded rows of the longest length, as many at a time as memory allows.
    order = sorted(lengths)
    longest = order[-1]

    def padded() -> None:
        for start in range(0, len(order), 4):
            some = order[start : start + 4]
            rows = torch.randint(0, model.config.vocab_size, (len(some), longest + 1), device="cuda")
            mask = torch.zeros(len(some), longest, dtype=torch.int64, device="cuda")
            for i, length in enumerate(some):
                mask[i, :length] = 1
            step(rows, mask)

    found["train ragged tok/s"] = sum(lengths) / repeated(padded, 1, 3)
    peft.eval()
    fresh()
    prompt = torch.randint(0, model.config.vocab_size, (64, PROMPT), device="cuda")

    def generate() -> None:
        with torch.inference_mode():
            peft.generate(
                input_ids=prompt, attention_mask=torch.ones_like(prompt), do_sample=True,
                max_new_tokens=NEW, min_new_tokens=NEW, pad_token_id=0,
            )  # fmt: skip

    found["decode 64 whole tok/s"] = 64 * NEW / repeated(generate, 0, 1)
    return found


def profile(base: BaseModel) -> None:
    """What takes the device's time in training steps of one and of eight adapters, and in decode steps."""
    ours = Ours(base, 16)
    equal = data_of([LENGTH] * ROWS, base.vocab_size)
    parts = {}
    for i, rank in enumerate(MIXED_RANKS):
        ours.create(f"mixed {i}", rank)
        parts[f"mixed {i}"] = equal[i : i + 1]
    ours.create("one")
    _profiled("a training step", lambda: ours.train({"one": equal}))
    _profiled("a training step of 8 adapters", lambda: ours.train(parts))
    version = ours.freeze("one")
    for rows in (1, 64, 256):
        ours.decode([version], rows)
        for _ in range(rows):
            ours.ask(version)
        for _ in range(NEW // 2):
            ours.engine.step()
        _profiled(
            f"16 decode steps of {rows} rows", lambda: [ours.engine.step() for _ in range(16)], warm=0
        )
        drain(ours.engine)
    passes(ours, version)


def _profiled(title: str, work: Callable[[], object], warm: int = 2) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as watch

    for _ in range(warm):
        work()
    torch.cuda.synchronize()
    with watch(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        taken = time.perf_counter() - started
    rows = [event for event in seen.key_averages() if event.self_device_time_total > 0]
    rows.sort(key=lambda event: -event.self_device_time_total)
    kernels = [event for event in rows if str(event.device_type).endswith("CUDA")]
    busy = sum(event.self_device_time_total for event in kernels) / 1e3
    print(f"\n{title}: {1e3 * taken:.1f} ms, kernels {busy:.1f} ms")
    for event in kernels[:18]:
        print(f"{event.self_device_time_total / 1e3:9.2f} ms {event.count:6}  {event.key[:90]}")


def shares(ours: Figures, weights: int, flops: float, bandwidth: float) -> Figures:
    """How much of the chip's limits is used, in percent."""
    found: Figures = {}
    if "train tok/s" in ours:
        found["train % of the chip's arithmetic"] = 400 * weights * ours["train tok/s"] / flops / 1e12
    if "decode 64 tok/s" in ours:
        read = 2 * weights * ours["decode 64 tok/s"] / 64 / 1e12
        found["decode 64 % of its bandwidth (weights alone)"] = 100 * read / bandwidth
        done = 2 * weights * ours["decode 256 tok/s"] / 1e12
        found["decode 256 % of its arithmetic"] = 100 * done / flops
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--no-baseline", action="store_true")
    parser.add_argument("--only", nargs="+", choices=("train", "sample", "loop"))
    parser.add_argument("--json")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "shape", options.shape, flush=True)
    flops, bandwidth = limits()
    print(f"limits measured: {flops:.0f} TFLOP/s, {bandwidth:.2f} TB/s", flush=True)
    tables: dict[str, Figures] = {"tinkex": {}}
    base = BaseModel(random_model(options.shape))
    if options.profile:
        profile(base)
        return
    weights = sum(site.inner * site.outer for site in base.sites)
    for name, part in (("train", training), ("sample", sampling), ("loop", rl_loop)):
        if options.only is None or name in options.only:
            found = part(base)
            print({key: round(value, 2) for key, value in found.items()}, flush=True)
            tables["tinkex"] |= found
        fresh()
    tables["tinkex"] |= shares(tables["tinkex"], weights, flops, bandwidth)
    del base
    fresh()
    if not options.no_baseline:
        for name, compiled in (("transformers + PEFT", False), ("the same, compiled", True)):
            tables[name] = baseline(random_model(options.shape), compiled)
            print(name, {key: round(value, 2) for key, value in tables[name].items()}, flush=True)
            fresh()
    show(tables)
    if options.json:
        Path(options.json).write_text(json.dumps(tables, indent=2))


def show(tables: dict[str, Figures]) -> None:
    """Side by side, with what was aimed at on the 8B shape."""
    print(f"\n{'':46}" + "".join(f"{name:>21}" for name in tables) + f"{'ratio':>8}{'aim':>10}")
    for key, value in tables["tinkex"].items():
        others = [table.get(key) for name, table in tables.items() if name != "tinkex"]
        shown = "".join(f"{x:>21,.2f}" if x is not None else f"{'':>21}" for x in (value, *others))
        ratio = f"{value / others[0]:>8.2f}" if others and others[0] else f"{'':>8}"
        aim = f">= {TARGETS[key]:,}" if key in TARGETS else f"<= {MOST[key]:,}" if key in MOST else ""
        print(f"{key:46}{shown}{ratio}{aim:>12}")


if __name__ == "__main__":
    main()
