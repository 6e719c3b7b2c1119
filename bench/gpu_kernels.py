"""Kernels of the GPU engine one by one, beside the plain operations they replace and the chip's bandwidth.

    python bench/gpu_kernels.py [--rows 256] [--context 192]

Times are medians of device time, at Qwen3-8B's shape in bfloat16. `least` is how long the bytes
that must be read and written take at the speed of a large copy, measured in the same run.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from itertools import product

import torch

from tinkex.engine.adamw import AdamParams, AdamState, adamw_step
from tinkex.engine.gpu.adamw_kernels import adamw
from tinkex.engine.gpu.decode_kernels import decode_attention
from tinkex.engine.gpu.draw_kernels import draw_tokens
from tinkex.engine.gpu.mlp_kernels import gated
from tinkex.engine.gpu.norm_kernels import add_norm
from tinkex.engine.gpu.place_kernels import Move, Places
from tinkex.engine.sampling_math import DrawParams, draw

HIDDEN, INNER, VOCAB, HEADS, KV, SIZE, RANK, BLOCK = 4096, 12288, 151_936, 32, 8, 128, 32, 16
CUDA = "cuda"


def microseconds(
    work: Callable[[], object], rounds: int = 7, times: int = 10, recorded: bool = True
) -> float:
    """The device time of some work: recorded several times in a graph, so that no launch is waited for."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()

    def repeated() -> None:
        for _ in range(times):
            work()

    if recorded:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            repeated()
    found = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay() if recorded else repeated()
        end.record()
        end.synchronize()
        found.append(1e3 * begin.elapsed_time(end) / times)
    return statistics.median(found)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=CUDA, dtype=torch.bfloat16)


def bandwidth() -> float:
    """Bytes a microsecond of a large copy."""
    x = torch.empty(1 << 31, device=CUDA, dtype=torch.uint8)
    y = torch.empty_like(x)
    # Not `copy_`, which a graph would hand to a copy engine.
    return 2 * len(x) / microseconds(lambda: torch.bitwise_not(x, out=y))


class Table:
    """Prints a line for each kernel."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        print(
            f"copy {speed / 1e6:.2f} TB/s\n{'':44}{'plain':>10}{'kernel':>10}{'ratio':>8}{'least':>9}  us"
        )

    def row(
        self,
        title: str,
        kernel: Callable[[], object],
        size: float,
        plain: Callable[[], object] | None = None,
        recorded: bool = True,
    ) -> None:
        ours = microseconds(kernel, recorded=recorded)
        before = None if plain is None else microseconds(plain, recorded=recorded)
        shown = f"{'':>10}" if before is None else f"{before:>10.1f}"
        ratio = f"{'':>8}" if before is None else f"{before / ours:>8.2f}"
        print(f"{title:44}{shown}{ours:>10.1f}{ratio}{size / self.speed:>9.1f}", flush=True)


def drawing(table: Table, rows: int) -> None:
    logits = torch.randn(rows, VOCAB, device=CUDA) * 3
    numbers = torch.rand(rows, dtype=torch.float64, device=CUDA)
    for title, k, p in (("", -1, 1.0), (", top-k 50", 50, 1.0), (", top-p 0.95", -1, 0.95)):
        params = DrawParams.of([1.0] * rows, [k] * rows, [p] * rows, vocab=VOCAB, device=CUDA)
        table.row(
            f"draw {rows} rows{title}",
            lambda params=params: draw(logits, params, numbers, draw_tokens),
            logits.nbytes,
            lambda params=params: draw(logits, params, numbers),
        )


def optimizing(table: Table) -> None:
    weights = torch.randn(87_000_000, device=CUDA)
    grads, state, params = torch.randn_like(weights), AdamState.zeros_like(weights), AdamParams()

    def kernel() -> object:
        return adamw(
            weights, grads, state.exp_avg, state.exp_avg_sq, step=3, learning_rate=1e-4, beta1=0.9,
            beta2=0.95, eps=1e-12, weight_decay=0.0, shrink=1.0,
        )  # fmt: skip

    def plain() -> torch.Tensor:
        before = weights.clone()
        adamw_step(weights, grads, state, params)
        return torch.linalg.vector_norm(before.sub_(weights))

    table.row("AdamW, 87M weights", kernel, 7 * weights.nbytes, plain, recorded=False)


def placing(table: Table) -> None:
    outers = [(HIDDEN, 6144), (HIDDEN, HIDDEN), (HIDDEN, 2 * INNER), (INNER, HIDDEN)] * 36
    flat = normal(sum(RANK * (inner + outer) for inner, outer in outers))
    moves, views, at = [], [], 0
    for inner, outer in outers:
        for columns, scaled in ((inner, False), (outer, True)):
            target = normal(RANK, columns)
            moves.append(Move(at, RANK, target, 0, scaled))
            views.append((flat[at : at + RANK * columns].view(RANK, columns), target))
            at += RANK * columns
    places = Places(moves)

    def plain() -> None:
        torch._foreach_copy_([target for _, target in views], [source for source, _ in views])
        torch._foreach_mul_([target for _, target in views[1::2]], 1.5)

    table.row(
        "place an adapter of rank 32", lambda: places.copy(flat, 1.5, 0, RANK), 2 * flat.nbytes, plain
    )


def between_products(table: Table, rows: int) -> None:
    x, y, weight = normal(rows, HIDDEN), normal(rows, HIDDEN + RANK), normal(HIDDEN)
    low, bt = normal(rows, RANK), normal(RANK, HIDDEN)
    table.row(
        f"add + norm, {rows} rows",
        lambda: add_norm(x, weight, 1e-6, y=y[:, :HIDDEN], low=low, bt=bt),
        4 * x.nbytes + bt.nbytes,
    )
    both, pair = normal(rows, 2 * INNER + 2 * RANK), normal(RANK, 2 * INNER)
    table.row(
        f"gate of the MLP, {rows} rows",
        lambda: gated(both, both[:, 2 * INNER :], pair, INNER),
        1.5 * both.nbytes + pair.nbytes,
    )


def attending(table: Table, rows: int, context: int) -> None:
    width = -(-context // BLOCK)
    k, v = normal((rows * width + 1) * BLOCK, KV, SIZE), normal((rows * width + 1) * BLOCK, KV, SIZE)
    blocks = torch.randperm(rows * width, device=CUDA).view(rows, width)
    positions = torch.full((rows,), context - 1, device=CUDA)
    q = normal(rows, HEADS, SIZE)
    size = 2 * rows * context * KV * SIZE * 2
    for tokens, warps, stages in product((32, 64, 128), (1, 2, 4), (2, 3)):
        options = {"tokens": tokens, "warps": warps, "stages": stages}
        table.row(
            f"attention {rows} x {context}: {tokens} tokens, {warps}w, {stages}s",
            lambda options=options: decode_attention(
                q, k, v, blocks, positions, BLOCK, SIZE**-0.5, None, **options
            ),
            size,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--context", type=int, default=192)
    options = parser.parse_args()
    with torch.inference_mode():
        table = Table(bandwidth())
        for rows in sorted({64, options.rows}):
            drawing(table, rows)
            between_products(table, rows)
        placing(table)
        optimizing(table)
        attending(table, options.rows, options.context)


if __name__ == "__main__":
    main()
