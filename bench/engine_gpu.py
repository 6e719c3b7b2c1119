"""The engine on a GPU beside transformers + PEFT, random weights at Qwen3's shapes, in one run.

    python bench/engine_gpu.py [--shape 8b|1.7b|0.6b] [--no-baseline] [--json FILE]

Training: packed 8 x 1,024 tokens, LoRA rank 32 on attention, MLP and unembedding, forward + backward +
optimizer step, through the engine's messages. Sampling: 64 rows, 128 prompt + 128 new tokens, from frozen
adapter weights. Times are medians of wall time around a device synchronisation; memory is the peak of
allocated bytes. The baseline row is a bare loop with the same tokens, rank and modules.
Where nothing can be installed, put `src` and an unpacked peft wheel on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
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
DECODE_ROWS, PROMPT, NEW = 64, 128, 128
KV_BYTES = 12 << 30  # counted in the peaks below


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
def measured() -> Iterator[dict[str, float]]:
    """Wall time around synchronised work."""
    found: dict[str, float] = {}
    torch.cuda.synchronize()
    started = time.perf_counter()
    yield found
    torch.cuda.synchronize()
    found["seconds"] = time.perf_counter() - started


def repeated(work: Callable[[], None], warm: int = 3, rounds: int = 6) -> float:
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


def drain(engine: Engine, count: list[int] | None = None) -> list[Any]:
    """Step until nothing is left to do."""
    answers = []
    while engine.busy:
        for answer in engine.step():
            if isinstance(answer, TokenStep):
                if count is not None:
                    count[0] += len(answer.tokens)
            else:
                answers.append(answer)
    return answers


def batch(rng: np.random.Generator, vocab: int) -> tuple[Datum, ...]:
    def one() -> Datum:
        tokens = rng.integers(0, vocab, LENGTH + 1)
        weights = np.ones(LENGTH, np.float32)
        return Datum(tokens[:-1].astype(np.int32), {"target_tokens": tokens[1:], "weights": weights})

    return tuple(one() for _ in range(ROWS))


def ours(model: Any) -> dict[str, float]:
    """The engine's figures."""
    base = BaseModel(model)
    engine = Engine(base, options=EngineOptions(sampler=SamplerOptions(kv_bytes=KV_BYTES)))
    made = engine.submit(CreateAdapter(0, "create", "m", rank=RANK, seed=0)) + drain(engine)
    assert not any(type(answer).__name__ == "Failed" for answer in made), made
    data = batch(np.random.default_rng(0), base.vocab_size)
    found: dict[str, float] = {}
    fresh()

    def step() -> None:
        engine.submit(Train(0, "t", (TrainPart("m", data, "cross_entropy"),)))
        engine.submit(OptimStep(0, "o", "m", {"learning_rate": 1e-4}))
        for answer in drain(engine):
            assert type(answer).__name__ in ("TrainDone", "Done"), answer

    seconds = repeated(step)
    found["train_tok_s"] = ROWS * LENGTH / seconds
    found["train_gb"] = peak_gb()
    engine.submit(SaveSampler(0, "s", "m"))
    (saved,) = drain(engine)
    version = str(saved.facts["version"])
    rng = np.random.default_rng(1)

    def sample(rows: int) -> float:
        for index in range(rows):
            prompt = rng.integers(0, base.vocab_size, PROMPT).astype(np.int32)
            params = SamplingParams(max_tokens=NEW, stop=(), seed=index)
            engine.submit(Sample(0, f"{time.monotonic_ns()}", version, prompt, params=params))
        count = [0]
        with measured() as taken:
            drain(engine, count)
        assert count[0] == rows * NEW, count
        return count[0] / taken["seconds"]

    for rows in (1, DECODE_ROWS, 256):
        sample(rows)
        found[f"decode_{rows}_tok_s"] = statistics.median(sample(rows) for _ in range(3))
    found["sample_gb"] = peak_gb()
    return found


def baseline(model: Any) -> dict[str, float]:
    """A bare transformers + PEFT loop and `generate`."""
    from peft import LoraConfig, get_peft_model

    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]
    peft = get_peft_model(
        model, LoraConfig(r=RANK, lora_alpha=32, target_modules=targets, lora_dropout=0.0)
    )
    chosen = [p for p in peft.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(chosen, lr=1e-4)
    ids = torch.randint(0, model.config.vocab_size, (ROWS, LENGTH + 1), device="cuda")
    found: dict[str, float] = {}
    fresh()

    def step() -> None:
        logits = peft(input_ids=ids[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="sum"
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    found["train_tok_s"] = ROWS * LENGTH / repeated(step, 2, 4)
    found["train_gb"] = peak_gb()
    peft.eval()
    fresh()
    prompt = torch.randint(0, model.config.vocab_size, (DECODE_ROWS, PROMPT), device="cuda")

    def generate() -> None:
        with torch.inference_mode():
            peft.generate(
                input_ids=prompt, attention_mask=torch.ones_like(prompt), do_sample=True,
                max_new_tokens=NEW, min_new_tokens=NEW, pad_token_id=0,
            )  # fmt: skip

    found[f"decode_{DECODE_ROWS}_tok_s"] = DECODE_ROWS * NEW / repeated(generate, 1, 2)
    found["sample_gb"] = peak_gb()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--no-baseline", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "shape", options.shape, flush=True)
    tables: dict[str, dict[str, float]] = {}
    model = random_model(options.shape)
    tables["tinkex"] = ours(model)
    print("tinkex", {key: round(value, 1) for key, value in tables["tinkex"].items()}, flush=True)
    del model
    fresh()
    if not options.no_baseline:
        tables["transformers + PEFT"] = baseline(random_model(options.shape))
    print(f"\n{'':24}" + "".join(f"{name:>22}" for name in tables) + f"{'ratio':>9}")
    for key in tables["tinkex"]:
        values = [table.get(key) for table in tables.values()]
        shown = "".join(f"{value:>22,.1f}" if value is not None else f"{'':>22}" for value in values)
        ratio = f"{values[0] / values[1]:>9.2f}" if len(values) == 2 and values[0] and values[1] else ""
        print(f"{key:24}{shown}{ratio}")
    if options.json:
        Path(options.json).write_text(json.dumps(tables, indent=2))


if __name__ == "__main__":
    main()
