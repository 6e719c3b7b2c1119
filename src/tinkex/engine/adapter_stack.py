"""Several adapters side by side as one, so that a decode step of many adapters costs one small product.

The factors of all adapters lie one after the other along the rank, scales multiplied in; after the product
with A each row keeps only its own adapter's part (the others' is overwritten, whatever it is), and one
product with B does the rest. Rows of the base model keep nothing. Worth it on a CPU, where many tiny
products cost more than one with zeros.

Shape letters: T tokens, M members of a group, R the ranks' sum, I inputs, O outputs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from .adapters import Adapter
from .base_model import BaseModel
from .lora import HEAD
from .plan import Segment

MOST_RANKS = 512
MOST_BYTES = 256 << 20
_KEPT = 4


@dataclass(frozen=True, slots=True)
class StackLayout:
    """Which groups and modules any of the stacked adapters changes."""

    groups: frozenset[str]
    paths: frozenset[str]


@dataclass(frozen=True, slots=True)
class StackTensors:
    """The stacked factors, under the names `LoraTensors` gives a single adapter's."""

    group_a: dict[str, torch.Tensor]
    group_bt: dict[str, list[torch.Tensor]]
    a: dict[str, torch.Tensor]
    bt: dict[str, torch.Tensor]


class AdapterStack:
    """What a pass sees in place of one adapter."""

    scale = 1.0

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        self.adapters = tuple(adapters)
        self.rank = sum(adapter.rank for adapter in adapters)
        layouts = [adapter.layout for adapter in adapters]
        sites = {name: sites for layout in layouts for name, sites in layout.groups.items()}
        paths = frozenset(path for layout in layouts for path in layout.paths)
        self.layout = StackLayout(frozenset(sites), paths)
        group_a: dict[str, torch.Tensor] = {}
        group_bt: dict[str, list[torch.Tensor]] = {}
        for name, members in sites.items():
            firsts, seconds = [], []
            for adapter in adapters:
                if name in adapter.layout.groups:
                    a_mri = adapter.compute.group_a[name].view(len(members), adapter.rank, -1)
                    bts = [bt * adapter.scale for bt in adapter.compute.group_bt[name]]
                else:
                    flat = adapter.compute.flat
                    a_mri = flat.new_zeros(len(members), adapter.rank, members[0].inner)
                    bts = [flat.new_zeros(adapter.rank, site.outer) for site in members]
                firsts.append(a_mri)
                seconds.append(bts)
            group_a[name] = torch.cat(firsts, dim=1).flatten(0, 1)
            group_bt[name] = [torch.cat(each) for each in zip(*seconds, strict=True)]
        head_a = {HEAD: group_a[HEAD]} if HEAD in group_a else {}
        head_bt = {HEAD: group_bt[HEAD][0]} if HEAD in group_bt else {}
        self.compute = StackTensors(group_a, group_bt, head_a, head_bt)
        self.sound = all(bool(torch.isfinite(bt).all()) for bts in group_bt.values() for bt in bts)
        """Whether B is finite, so that the zeros of foreign rows stay zeros."""

    def segment(self, owners: Sequence[Adapter | None]) -> Segment:
        """One segment for rows that belong to these adapters."""
        starts: dict[int, int] = {}
        at = 0
        for adapter in self.adapters:
            starts[id(adapter)] = at
            at += adapter.rank
        foreign_rt = torch.ones(self.rank, len(owners), dtype=torch.bool)
        for row, owner in enumerate(owners):
            if owner is not None:
                start = starts[id(owner)]
                foreign_rt[start : start + owner.rank, row] = False
        return Segment(cast("Adapter", self), 0, len(owners), foreign_rt=foreign_rt)


class AdapterStacks:
    """The stacks lately used, by the adapters in them."""

    def __init__(self, base: BaseModel) -> None:
        self.usable = base.device.type == "cpu" and not any(site.experts for site in base.sites)
        self._kept: OrderedDict[tuple[tuple[int, int], ...], AdapterStack] = OrderedDict()

    def segment(self, owners: Sequence[Adapter | None]) -> Segment | None:
        """One segment for these rows, or None where they are better served one adapter at a time."""
        if not self.usable:
            return None
        distinct = {id(owner): owner for owner in owners if owner is not None}
        adapters = sorted(distinct.values(), key=lambda adapter: adapter.version)
        if len(adapters) < 2 or sum(adapter.rank for adapter in adapters) > MOST_RANKS:
            return None
        if sum(adapter.compute.flat.nbytes for adapter in adapters) > MOST_BYTES:
            return None
        key = tuple((id(adapter), adapter.version) for adapter in adapters)
        stack = self._kept.get(key)
        if stack is None:
            stack = self._kept[key] = AdapterStack(adapters)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return stack.segment(owners) if stack.sound else None
