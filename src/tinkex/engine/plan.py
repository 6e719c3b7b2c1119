"""What one forward pass is told besides its tokens: which adapter owns which tokens and how attention runs.

A pass works on one flat row of T tokens. Sequences lie one after the other in it (`cu_seqlens`), and so do
the runs of tokens that share an adapter (`segments`). The plan travels as the keyword `tinkex_plan` through
transformers' layers to the attention function, and is put in the base model's `PlanSlot` for the modules
that get no keywords.

Shape letters: T tokens of the pass, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .adapters import Adapter, LoraTensors
    from .workspace import Workspace

AttentionFn = Callable[
    ["Plan", int, torch.Tensor, torch.Tensor, torch.Tensor, float, "int | None"],
    torch.Tensor,
]
"""`attention(plan, layer, q[T,H,D], k[T,K,D], v[T,K,D], scaling, sliding_window) -> [T,H,D]`, causal."""


@dataclass(slots=True)
class Segment:
    """Tokens `start` to `end` of the row use `adapter` (None: the base model); `grads`, if given, collects
    its gradient.
    """

    adapter: Adapter | None
    start: int
    end: int
    grads: LoraTensors | None = None
    foreign_rt: torch.Tensor | None = None
    """For several adapters stacked as one: which parts of A's product are not the token's own."""


@dataclass(slots=True)
class Plan:
    """One forward pass: attention, adapter segments, sequence boundaries, and whatever the attention
    function keeps.
    """

    attention: AttentionFn
    segments: tuple[Segment, ...]
    cu_seqlens: tuple[int, ...]
    paged: Any = None
    anchor: torch.Tensor | None = None
    """A scalar that requires grad, when this pass will be followed by a backward pass."""
    checkpoint: bool = False
    """Keep only each layer's input for the backward pass and compute the rest again."""
    fold: bool = False
    """Add each adapter's product to the weights before use; for passes of many tokens on small models."""
    scratch: dict[Any, Any] = field(default_factory=dict)
    """Values computed once a pass and shared by its layers (index tensors on the device, for example)."""
    room: Workspace | None = None
    """Where the pass may put its tensors; None: each is allocated."""

    def spare(self, name: Hashable, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor | None:
        """A place for a tensor of this shape, to give as `out`; None: let the operation allocate it."""
        return None if self.room is None else self.room.take(name, shape, like.dtype)

    def place(self, name: Hashable, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """A tensor of this shape with anything in it."""
        found = None if self.room is None else self.room.take(name, shape, like.dtype)
        return torch.empty(shape, dtype=like.dtype, device=like.device) if found is None else found

    def pieces(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """The rows of each segment, where the segments fill the row."""
        if len(self.segments) == 1:
            return (x,)
        sizes = self.scratch.get("sizes")
        if sizes is None:
            sizes = self.scratch["sizes"] = [segment.end - segment.start for segment in self.segments]
        found: Sequence[torch.Tensor] = x.split_with_sizes(sizes)
        return found

    @property
    def tokens(self) -> int:
        """How many tokens the row has."""
        return self.cu_seqlens[-1]

    @property
    def spans(self) -> Sequence[tuple[int, int]]:
        """The (start, end) of each sequence in the row."""
        return list(zip(self.cu_seqlens[:-1], self.cu_seqlens[1:], strict=True))

    @property
    def training(self) -> bool:
        """Whether gradients will be asked for."""
        return self.anchor is not None


@dataclass(slots=True)
class PlanSlot:
    """Where the base model's modules find the plan of the pass now running; one pass at a time."""

    plan: Plan | None = None


def join_segments(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Merge neighbours of the same adapter, so that each run of tokens costs one small matmul."""
    joined: list[Segment] = []
    for piece in segments:
        if piece.start == piece.end:
            continue
        last = joined[-1] if joined else None
        if last and last.adapter is piece.adapter and last.grads is piece.grads and last.end == piece.start:
            joined[-1] = Segment(last.adapter, last.start, piece.end, last.grads)
        else:
            joined.append(piece)
    return tuple(joined)
