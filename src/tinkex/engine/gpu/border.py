"""Adapters beside the base weights: each weight matrix ends in rows that hold the As of a pass's adapters.

A product with such a matrix gives the base model's outputs and A's products in one go; read the other way
in a backward pass it sums both gradients. The Bs of all adapters lie in one matrix a group, scales
multiplied in; those of the unembedding lie beside its weights too, behind their columns, so that hidden
states followed by A's products give whole logits. An adapter's place among the ranks is the same
everywhere; each token's products with other adapters are overwritten with zeros (whatever they were), so
that one dense product serves any mixture. Zeros stay zeros only beside finite factors, so an adapter that
has others shares no pass.

Shape letters: O outputs, I inputs of a group, M its members, R ranks in all (a multiple of 32), T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..adapters import Adapter, LoraLayout
from ..lora import HEAD, LoraGroup, evenness
from ..plan import Segment
from ..sending import sent
from . import CAPACITY

if TYPE_CHECKING:
    from .place_kernels import Places

STEP = 32
"""What the ranks in all are rounded up to, for the kernels' sake."""

MANY = 4096
"""From so many tokens on two products with fewer ranks cost less than one."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One adapter's place: ranks `start` to `start + adapter.rank`, for tokens of these segments."""

    adapter: Adapter
    start: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """Some tokens, and among the ranks those that are theirs, in steps."""

    tokens: slice
    ranks: slice
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Stack:
    """What the border holds for a pass."""

    ranks: int
    entries: tuple[Entry, ...]
    spans_t2: torch.Tensor | None
    """The first of each token's own ranks and their end; None when all ranks are everybody's."""
    shares: tuple[Share, ...] = ()
    """All tokens, in parts that use fewer ranks where there are any."""

    def apart(self, tokens: int) -> Stack:
        """What a recorded pass of so many tokens holds: spans of its own, and no adapters."""
        if self.spans_t2 is None:
            return Stack(self.ranks, (), None)
        return Stack(self.ranks, (), self.spans_t2.new_zeros(tokens, 2))

    def take_spans(self, given: Stack) -> None:
        """Have the first tokens those ranks that are their own in another stack."""
        if self.spans_t2 is not None and given.spans_t2 is not None:
            self.spans_t2[: len(given.spans_t2)].copy_(given.spans_t2)

    def keep_own(self, low: torch.Tensor) -> None:
        """Overwrite other adapters' parts of A's products `[T, M R]`; several may lie one below another."""
        spans = self.spans_t2
        if spans is None:
            return
        if low.is_cuda:
            from .mask_kernels import keep_own

            keep_own(low, spans, self.ranks)
            return
        spans = spans.repeat(len(low) // len(spans), 1)
        rank_r = torch.arange(self.ranks, device=low.device)
        foreign_tr = (rank_r < spans[:, :1]) | (rank_r >= spans[:, 1:])
        low.unflatten(1, (-1, self.ranks)).masked_fill_(foreign_tr[:, None], 0.0)


class Border:
    """The room beside a model's weights, and which adapters are in it now."""

    def __init__(self, groups: Sequence[LoraGroup], head_ee: torch.Tensor, vocab: int) -> None:
        """`head_ee` is the unembedding with room for `CAPACITY` more rows and columns."""
        self.ext: dict[str, torch.Tensor] = {}
        self.outer: dict[str, int] = {}
        self.members: dict[str, list[tuple[str, int, int]]] = {}
        for group in groups:
            assert group.ext_ei is not None
            self.ext[group.name] = group.ext_ei
            self.outer[group.name] = group.columns[-1][1]
            self.members[group.name] = [
                (path, start, end) for path, (start, end) in zip(group.paths, group.columns, strict=True)
            ]
        self.bt = {
            name: torch.zeros(CAPACITY, self.outer[name], dtype=head_ee.dtype, device=head_ee.device)
            for name in self.ext
        }
        self._head_ve, size = head_ee[:vocab], head_ee.shape[1] - CAPACITY
        self.ext[HEAD], self.bt[HEAD] = head_ee[:, :size], self._head_ve[:, size:].t()
        self.outer[HEAD], self.members[HEAD] = vocab, [(HEAD, 0, vocab)]
        self._held: tuple[tuple[int, int], ...] = ()
        self._shape: tuple[object, ...] = ()
        self._places: dict[tuple[LoraLayout, int], Places] = {}
        self._last: tuple[Sequence[Segment], int, Stack] | None = None

    def weight(self, name: str, ranks: int) -> torch.Tensor:
        """Base weights and the As of all adapters, `[O + M R, I]`."""
        return self.ext[name][: self.outer[name] + len(self.members[name]) * ranks]

    def a(self, name: str, ranks: int) -> torch.Tensor:
        """The As alone, `[M R, I]`, member after member."""
        return self.weight(name, ranks)[self.outer[name] :]

    def head(self, ranks: int) -> torch.Tensor:
        """The unembedding and behind its columns the Bs of all adapters, `[V, I + R]`."""
        return self._head_ve[:, : self.ext[HEAD].shape[1] + ranks]

    def nbytes(self) -> int:
        """What the border takes beyond the base weights."""
        total = 0
        for name, x in self.ext.items():
            total += CAPACITY * len(self.members[name]) * int(x.shape[1]) * int(x.element_size())
            total += int(self.bt[name].nbytes)
        return total

    def stack(self, segments: Sequence[Segment], tokens: int) -> Stack | None:
        """Load what some segments need; None where it does not fit."""
        if self._last is not None and self._last[0] is segments and self._last[1] == tokens:
            found = self._last[2]
            if found.spans_t2 is not None and not _sound(found.entries):
                return None
            self._load(found.entries, found.ranks)
            return found
        entries: list[Entry] = []
        by_owner: dict[tuple[int, int], tuple[Adapter, list[Segment]]] = {}
        for segment in segments:
            if segment.adapter is not None:
                owner = by_owner.setdefault((id(segment.adapter), id(segment.grads)), (segment.adapter, []))
                owner[1].append(segment)
        at = 0
        for adapter, owned in sorted(by_owner.values(), key=lambda owner: -evenness(owner[0].rank)):
            entries.append(Entry(adapter, at, tuple(owned)))
            at += adapter.rank
        if at > CAPACITY:
            return None
        ranks = -(-at // STEP) * STEP
        whole = len(entries) == 1 and sum(s.end - s.start for s in entries[0].segments) == tokens
        spans = None
        if ranks and not whole:
            if not _sound(entries):
                return None
            spans = own_spans(entries, tokens, self.bt[HEAD].device)
        self._load(entries, ranks)
        stack = Stack(ranks, tuple(entries), spans, shared_out(entries, tokens, ranks))
        self._last = (segments, tokens, stack)
        return stack

    def _load(self, entries: Sequence[Entry], ranks: int) -> None:
        held = tuple(map(_version, entries))
        if held == self._held:
            return
        shape = (ranks, *((id(entry.adapter.layout), entry.adapter.rank) for entry in entries))
        if shape != self._shape:
            for name in self.ext:
                self.a(name, ranks).zero_()
                self.bt[name][:ranks].zero_()
            self._shape, self._held = shape, ()
        before = self._held or ((0, 0),) * len(held)
        for entry, now, then in zip(entries, held, before, strict=True):
            if now != then:
                self._copy(entry, ranks)
        self._held = held

    def _copy(self, entry: Entry, ranks: int) -> None:
        adapter, start = entry.adapter, entry.start
        if self.bt[HEAD].is_cuda:
            places = self._places_of(adapter)
            places.copy(adapter.compute.flat, adapter.scale, start, ranks)
            return
        end = start + adapter.rank
        for name in adapter.layout.groups:
            a_stack, bt = self.a(name, ranks), self.bt[name]
            for member, (path, first, last) in enumerate(self.members[name]):
                a_stack[member * ranks + start : member * ranks + end] = adapter.compute.a[path]
                torch.mul(adapter.compute.bt[path], adapter.scale, out=bt[start:end, first:last])

    def _places_of(self, adapter: Adapter) -> Places:
        """Where the factors of adapters of this shape go; made once for each."""
        from .place_kernels import Move, Places

        key = (adapter.layout, adapter.rank)
        if key not in self._places:
            moves = []
            for site, factor, begin, _ in adapter.layout.slots(adapter.rank):
                name = site.group
                paths = [path for path, *_ in self.members[name]]
                member = paths.index(site.path)
                if factor == "a":
                    rows = self.ext[name][self.outer[name] :]
                    moves.append(Move(begin, adapter.rank, rows, member, False))
                else:
                    _, first, last = self.members[name][member]
                    moves.append(Move(begin, adapter.rank, self.bt[name][:, first:last], 0, True))
            self._places[key] = Places(moves)
        return self._places[key]


def _sound(entries: Sequence[Entry]) -> bool:
    return all(entry.adapter.is_sound() for entry in entries)


def _version(entry: Entry) -> tuple[int, int]:
    return id(entry.adapter), entry.adapter.version


def shared_out(entries: Sequence[Entry], tokens: int, ranks: int) -> tuple[Share, ...]:
    """A pass cut in two where that makes products with ranks a quarter smaller, or more."""
    found: tuple[Share, ...] = (Share(slice(0, tokens), slice(0, ranks), tuple(entries)),)
    if tokens < MANY or any(a.segments[-1].end > b.segments[0].start for a, b in pairwise(entries)):
        return found
    best = 0.75 * tokens * ranks
    for at in range(1, len(entries)):
        here, start = entries[at].segments[0].start, entries[at].start
        below, above = -(-start // STEP) * STEP, start // STEP * STEP
        size = here * below + (tokens - here) * (ranks - above)
        if size <= best:
            best = size
            found = (
                Share(slice(0, here), slice(0, below), tuple(entries[:at])),
                Share(slice(here, tokens), slice(above, ranks), tuple(entries[at:])),
            )
    return found


def own_spans(entries: Sequence[Entry], tokens: int, device: torch.device) -> torch.Tensor:
    """The first of each token's own ranks and their end, `[T, 2]`."""
    spans = np.zeros((tokens, 2), np.int32)
    for entry in entries:
        end = entry.start + entry.adapter.rank
        for segment in entry.segments:
            spans[segment.start : segment.end] = entry.start, end
    return sent(spans, device)
