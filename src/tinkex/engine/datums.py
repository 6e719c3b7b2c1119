"""Training data as it arrives, checked and laid end to end: one set of arrays for all sequences of a part.

Shape letters: T tokens of the part, N tokens of one datum, K targets a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .faults import UserFault
from .messages import Datum, SparseRows

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]
TARGETS = "target_tokens"
MOST_CELLS = 1 << 26
"""Cells a call's targets may have once they lie side by side: a sparse matrix states many in few bytes."""


@dataclass(slots=True)
class PartData:
    """A part's sequences, one after the other, on the device."""

    lengths: list[int]
    starts: list[int]
    shapes: list[tuple[int, ...]]
    """The shape of each datum's targets: what its logprobs come back as."""
    tokens_t: torch.Tensor
    positions_t: torch.Tensor
    targets_tk: torch.Tensor
    inputs_tk: dict[str, torch.Tensor]
    live_t: npt.NDArray[np.bool_] | None = None
    """Rows that can have a gradient; None: all."""

    @property
    def total(self) -> int:
        """Tokens of the part."""
        return self.starts[-1]


def lay_out(
    data: Sequence[Datum],
    *,
    needs: Sequence[str],
    allows: Sequence[str],
    defaults: dict[str, float],
    live: str | None,
    vocab_size: int,
    context_length: int,
    device: torch.device,
    dtype: torch.dtype,
) -> PartData:
    """Check every datum and put them end to end; the first thing wrong is refused by its datum's number."""
    if not data:
        raise UserFault("no data: a pass needs at least one datum")
    tokens = [_tokens(i, datum, context_length) for i, datum in enumerate(data)]
    lengths = [len(row) for row in tokens]
    starts = [0, *np.cumsum(lengths).tolist()]
    raw = [dense(i, TARGETS, datum.inputs.get(TARGETS)) for i, datum in enumerate(data)]
    shapes = [x.shape for x in raw]
    widths = {shape[1] if len(shape) == 2 else 1 for shape in shapes}
    width = max(widths)
    if live is None and len(widths) > 1:
        raise UserFault(f"{TARGETS} of one call must all have the same second dimension for this loss")
    if not width:
        where = next(i for i, shape in enumerate(shapes) if shape[-1] == 0)
        raise UserFault(f"datum {where}: {TARGETS} has no targets")
    if starts[-1] * width > MOST_CELLS:
        raise UserFault(f"{TARGETS} has {starts[-1]} rows of {width} targets > {MOST_CELLS} in all")
    targets_tk = _stack(TARGETS, raw, lengths, width, np.int64)
    flat_tokens = np.concatenate(tokens)
    _check_ids("model_input", flat_tokens, starts, vocab_size)
    _check_ids(TARGETS, targets_tk, starts, vocab_size)
    inputs: dict[str, torch.Tensor] = {}
    live_t: npt.NDArray[np.bool_] | None = None
    wide = np.float64 if dtype == torch.float64 else np.float32
    for name in (*needs, *allows):
        given = [datum.inputs.get(name) for datum in data]
        if all(x is None for x in given):
            if name in defaults:
                given = [_filled(datum.inputs[TARGETS], defaults[name]) for datum in data]
            elif name in needs:
                raise UserFault(f"datum 0 has no loss_fn_inputs[{name!r}], which this loss needs")
            else:
                continue
        arrays = [dense(i, name, x) for i, x in enumerate(given)]
        if (found := [x.shape for x in arrays]) != shapes:
            i = next(i for i, shape in enumerate(shapes) if found[i] != shape)
            raise UserFault(
                f"datum {i}: {name} has shape {list(found[i])}, {TARGETS} has {list(shapes[i])}"
            )
        stacked = _stack(name, arrays, lengths, width, wide)
        if not np.isfinite(stacked).all():
            where = _datum_of(int(np.argmin(np.isfinite(stacked).all(axis=1))), starts)
            raise UserFault(f"datum {where}: {name} holds a value that is not finite")
        if name == live:
            live_t = stacked[:, 0] != 0 if width == 1 else (stacked != 0).any(axis=1)
        inputs[name] = torch.from_numpy(stacked).to(device)
    positions = np.arange(starts[-1], dtype=np.int64) - np.repeat(np.asarray(starts[:-1]), lengths)
    return PartData(
        lengths,
        starts,
        shapes,
        torch.from_numpy(flat_tokens).to(device),
        torch.from_numpy(positions).to(device),
        torch.from_numpy(targets_tk).to(device),
        inputs,
        None if live_t is None or live_t.all() else live_t,
    )


def dense(index: int, name: str, value: object) -> npt.NDArray[Any]:
    """An input as a plain array; cells a sparse one does not list are zero."""
    if value is None:
        raise UserFault(f"datum {index} has no loss_fn_inputs[{name!r}], which others of the call have")
    if isinstance(value, SparseRows):
        rows, columns = value.shape
        counts: Ints = np.diff(value.crow.astype(np.int64)).astype(np.int64)
        col = value.col.astype(np.int64)
        sound = columns >= 0 and len(value.crow) == rows + 1
        sound = sound and len(col) == len(value.values) == int(value.crow[-1])
        if not sound or (counts < 0).any() or (len(col) and (col.min() < 0 or col.max() >= columns)):
            raise UserFault(f"datum {index}: {name} is not a sound sparse matrix of {rows} x {columns}")
        if rows * columns > MOST_CELLS:
            raise UserFault(f"datum {index}: {name} is {rows} x {columns} > {MOST_CELLS} in all")
        out = np.zeros((rows, columns), dtype=value.values.dtype)
        out[np.repeat(np.arange(rows), counts), col] = value.values
        return out
    array = np.asarray(value)
    if array.ndim not in (1, 2):
        raise UserFault(f"datum {index}: {name} has {array.ndim} dimensions, expected 1 or 2")
    return array


def _filled(targets: Any, value: float) -> Any:
    """An input of this value wherever there is a target."""
    if isinstance(targets, SparseRows):
        return replace(targets, values=np.full(len(targets.values), value, np.float32))
    return np.full(np.shape(targets), value, np.float32)


def _tokens(index: int, datum: Datum, context_length: int) -> Ints:
    if datum.media:
        kinds = ", ".join(sorted(set(datum.media)))
        raise UserFault(f"datum {index} holds {kinds} input; this model reads text only")
    tokens = np.asarray(datum.tokens)
    if tokens.ndim != 1 or not len(tokens):
        raise UserFault(f"datum {index} has no tokens")
    if len(tokens) > context_length:
        raise UserFault(f"datum {index} has {len(tokens)} tokens > context {context_length}")
    return tokens.astype(np.int64, copy=False)


def _stack(
    name: str, arrays: Sequence[npt.NDArray[Any]], lengths: list[int], width: int, dtype: Any
) -> npt.NDArray[Any]:
    if width == 1 and [len(x) for x in arrays] == lengths and all(x.ndim == 1 for x in arrays):
        return np.concatenate(arrays).astype(dtype, copy=False).reshape(-1, 1)
    rows = []
    for i, (x, length) in enumerate(zip(arrays, lengths, strict=True)):
        if len(x) != length:
            raise UserFault(f"datum {i}: {name} has {len(x)} rows for {length} input tokens")
        x = x.reshape(length, -1)
        if x.shape[1] != width:
            x = np.pad(x, ((0, 0), (0, width - x.shape[1])))
        rows.append(x)
    return np.concatenate(rows).astype(dtype, copy=False)


def _check_ids(name: str, ids: Ints, starts: Sequence[int], vocab_size: int) -> None:
    if int(ids.min()) >= 0 and int(ids.max()) < vocab_size:
        return
    flat = ids.reshape(len(ids), -1)
    row = int(np.argmax(((flat < 0) | (flat >= vocab_size)).any(axis=1)))
    bad = flat[row][(flat[row] < 0) | (flat[row] >= vocab_size)][0]
    raise UserFault(
        f"datum {_datum_of(row, starts)}: {name} holds token {int(bad)}, the vocabulary has {vocab_size}"
    )


def _datum_of(row: int, starts: Sequence[int]) -> int:
    return int(np.searchsorted(starts, row, side="right")) - 1
