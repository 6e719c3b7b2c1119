"""Products of few tokens with large weights, which are read once, as fast as they come.

A program handles some outputs of all tokens, over all inputs or a part of them. Weights stand where a
product's rows do, since the tokens are too few to fill a tile. All programs run at the same time, each with
several steps of weights on their way.

Shape letters: T tokens, O outputs, I inputs, S parts of the inputs.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .early_start import early, let_next_start, wait_for_previous

_OUTPUTS = 64
_MOST_PARTS, _MOST_STAGES, _MOST_PROGRAMS = 4, 5, 3


class _Device(NamedTuple):
    processors: int
    shared: int
    """Bytes of shared memory a processor has."""


class _Cut(NamedTuple):
    """How a product is cut: parts of the inputs, inputs of a step, steps on their way."""

    parts: int
    inputs: int
    stages: int


@triton.jit
def _product(
    x, weight, out, tokens, outputs, x_stride, weight_stride, out_stride, part_stride,
    EACH: tl.constexpr, TOKENS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
    STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    at = (tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)).to(tl.int64)
    there = at < outputs
    rows = tl.arange(0, TOKENS)
    inside = rows < tokens
    i = part * EACH + tl.arange(0, INPUTS)
    w_spot = weight + at[:, None] * weight_stride + i[None, :]
    x_spot = x + rows[None, :] * x_stride + i[:, None]
    if EARLY:
        wait_for_previous()
        let_next_start()
    total = tl.zeros((OUTPUTS, TOKENS), tl.float32)
    for _ in tl.range(0, EACH, INPUTS, num_stages=STAGES):
        w = tl.load(w_spot, mask=there[:, None], other=0.0)
        value = tl.load(x_spot, mask=inside[None, :], other=0.0)
        total = tl.dot(w, value, total)
        w_spot += INPUTS
        x_spot += INPUTS
    spot = out + part * part_stride + rows[:, None] * out_stride + at[None, :]
    tl.store(spot, tl.trans(total).to(out.dtype.element_ty), mask=inside[:, None] & there[None, :])


def fits(inner: int) -> bool:
    """Whether products with so many inputs are for this module, on a device that starts kernels early."""
    return inner % 64 == 0 and (triton.knobs.runtime.interpret or bool(early()["EARLY"]))


def few_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`x @ weight.T`, `[T, O]`."""
    out = torch.empty(len(x), len(weight), dtype=x.dtype, device=x.device)
    _launch(x, weight, out[None], _cut(len(x), len(weight), x.shape[1], 1))
    return out


def few_sums(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The same as sums over parts of the inputs, still to be added: `[S, T, O]` in float32."""
    cut = _cut(len(x), len(weight), x.shape[1], _MOST_PARTS)
    out = torch.empty(cut.parts, len(x), len(weight), dtype=torch.float32, device=x.device)
    _launch(x, weight, out, cut)
    return out


def _launch(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, cut: _Cut) -> None:
    (tokens, inner), outputs = x.shape, len(weight)
    _product[(triton.cdiv(outputs, _OUTPUTS), cut.parts)](
        x, weight, out, tokens, outputs, x.stride(0), weight.stride(0), out.stride(1), out.stride(0),
        EACH=inner // cut.parts, TOKENS=_padded(tokens), OUTPUTS=_OUTPUTS, INPUTS=cut.inputs,
        STAGES=cut.stages, num_warps=4, **early(),
    )  # fmt: skip


@functools.cache
def _cut(tokens: int, outputs: int, inner: int, most_parts: int) -> _Cut:
    """As many parts as spread programs evenly, and as many steps on their way as there is memory for."""
    device, tiles = _device(), -(-outputs // _OUTPUTS)

    def spread(parts: int) -> float:
        programs = tiles * parts
        return programs / (-(-programs // device.processors) * device.processors)

    possible = [parts for parts in range(1, most_parts + 1) if inner % (parts * 64) == 0]
    # A little better spread is not worth more sums to add.
    parts = max(possible, key=lambda parts: spread(parts) - 0.05 * parts)
    programs = min(-(-tiles * parts // device.processors), _MOST_PROGRAMS)
    room = device.shared // programs - 1024
    for inputs in (128, 64):
        stages = min(room // ((_OUTPUTS + _padded(tokens)) * inputs * 2), _MOST_STAGES)
        if inner // parts % inputs == 0 and (stages >= 3 or inputs == 64):
            return _Cut(parts, inputs, max(stages, 2))
    raise AssertionError(inner)


def _padded(tokens: int) -> int:
    return max(1 << (tokens - 1).bit_length(), 16)


@functools.cache
def _device() -> _Device:
    if not torch.cuda.is_available():
        return _Device(132, 228 << 10)  # compiled or interpreted for one that is not there
    found = torch.cuda.get_device_properties()
    return _Device(found.multi_processor_count, found.shared_memory_per_multiprocessor)
