"""One LoRA adapter: which modules it changes, its rank and scale, and its tensors as views of one flat
buffer.

The flat buffer makes an optimizer step, a snapshot and a copy to another device a handful of large
operations. This module knows nothing of gradients' use, of files, or of which adapters are on the device.

Shape letters: R rank, I inputs of a module, O its outputs, E experts.
"""

from __future__ import annotations

import copy
import itertools
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from .faults import UserFault

ALPHA = 32.0
"""The scale of every adapter made here is `ALPHA / rank`, so that first steps look alike at every rank."""

_versions = itertools.count(1)


@dataclass(frozen=True, slots=True)
class LoraSite:
    """One module that can carry LoRA: `W' = W + scale * B A`, with A `[R, I]` and B kept as Bt `[R, O]`.

    With experts, the factor on the hidden side is shared by all of them: gate and up have one A and a Bt
    `[E, R, O]`, down has an A `[E, R, I]` and one Bt.
    """

    path: str
    group: str
    part: str
    inner: int
    outer: int
    experts: int = 0
    shared: str = ""

    def a_shape(self, rank: int) -> tuple[int, ...]:
        """The shape of A at this rank."""
        return (self.experts, rank, self.inner) if self.shared == "b" else (rank, self.inner)

    def bt_shape(self, rank: int) -> tuple[int, ...]:
        """The shape of B's transpose at this rank."""
        return (self.experts, rank, self.outer) if self.shared == "a" else (rank, self.outer)


class LoraLayout:
    """The sites of an adapter in the order of its flat buffer: a group's A factors lie together, then its
    Bs.
    """

    def __init__(self, sites: Iterable[LoraSite]) -> None:
        self.sites = tuple(sites)
        self.groups: dict[str, tuple[LoraSite, ...]] = {
            name: tuple(members)
            for name, members in itertools.groupby(self.sites, key=lambda site: site.group)
        }
        self.paths = frozenset(site.path for site in self.sites)

    @cached_property
    def per_rank(self) -> int:
        """How many numbers the adapter has for each unit of rank."""
        return sum(_numel(s.a_shape(1)) + _numel(s.bt_shape(1)) for s in self.sites)

    def slots(self, rank: int) -> list[tuple[LoraSite, str, int, tuple[int, ...]]]:
        """Every factor as (site, "a" or "bt", offset in the flat buffer, shape)."""
        found: list[tuple[LoraSite, str, int, tuple[int, ...]]] = []
        offset = 0
        for members in self.groups.values():
            for factor in ("a", "bt"):
                for site in members:
                    shape = site.a_shape(rank) if factor == "a" else site.bt_shape(rank)
                    found.append((site, factor, offset, shape))
                    offset += _numel(shape)
        return found


class LoraTensors:
    """A flat buffer and its views: `a[path]`, `bt[path]`, `group_a[group]` (stacked As of modules on
    one input).

    B lies transposed because products whose short side comes first are several times faster on a CPU.
    """

    __slots__ = ("a", "bt", "flat", "group_a", "group_bt", "layout", "rank")

    def __init__(self, layout: LoraLayout, rank: int, flat: torch.Tensor) -> None:
        self.layout, self.rank, self.flat = layout, rank, flat
        self.a: dict[str, torch.Tensor] = {}
        self.bt: dict[str, torch.Tensor] = {}
        self.group_a: dict[str, torch.Tensor] = {}
        self.group_bt: dict[str, list[torch.Tensor]] = {}
        starts: dict[str, int] = {}
        for site, factor, offset, shape in layout.slots(rank):
            view = flat[offset : offset + _numel(shape)].view(shape)
            (self.a if factor == "a" else self.bt)[site.path] = view
            starts.setdefault(site.group, offset)
        for name, members in layout.groups.items():
            self.group_bt[name] = [self.bt[site.path] for site in members]
            if members[0].shared != "b":
                rows = rank * len(members)
                start = starts[name]
                inner = members[0].inner
                self.group_a[name] = flat[start : start + rows * inner].view(rows, inner)

    @classmethod
    def zeros(
        cls, layout: LoraLayout, rank: int, device: torch.device | str, dtype: torch.dtype
    ) -> LoraTensors:
        """A buffer of zeros."""
        return cls(layout, rank, torch.zeros(layout.per_rank * rank, device=device, dtype=dtype))

    def like(self, flat: torch.Tensor) -> LoraTensors:
        """The same views over another buffer."""
        return LoraTensors(self.layout, self.rank, flat)

    def named(self) -> dict[str, torch.Tensor]:
        """Every factor by `path.lora_A` / `path.lora_B`, as views."""
        out: dict[str, torch.Tensor] = {}
        for site in self.layout.sites:
            out[f"{site.path}.lora_A"] = self.a[site.path]
            out[f"{site.path}.lora_B"] = self.bt[site.path].transpose(-1, -2)
        return out


class Adapter:
    """A LoRA adapter: `master` holds its weights, `compute` the same numbers in the base model's dtype.

    Training changes `master` and calls `refresh`; trainer and sampler both read `compute`. `version` is new
    after every change, so that whatever was cached for the adapter can be told to be stale.
    """

    def __init__(
        self,
        layout: LoraLayout,
        rank: int,
        *,
        alpha: float = ALPHA,
        seed: int | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        flat: torch.Tensor | None = None,
    ) -> None:
        if rank < 1:
            raise UserFault(f"rank must be a positive number, got {rank}")
        if not layout.sites:
            raise UserFault("an adapter must train at least one of attention, MLP and unembedding")
        self.layout = layout
        self.rank = rank
        self.alpha = float(alpha)
        self.scale = self.alpha / rank
        self.dtype = dtype
        self.seed = secrets.randbits(62) if seed is None else int(seed)
        master_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        if flat is None:
            flat = _initial(layout, rank, self.seed, master_dtype)
        self.master = LoraTensors(layout, rank, flat.to(device=device, dtype=master_dtype, copy=True))
        self.compute = self.master
        self.folded: dict[str, torch.Tensor] = {}
        """Base weights with this adapter's product in them, for as long as a training pass needs them."""
        self.version = 0
        self.sound: bool | None = None
        """Whether all of `compute` is finite; None until somebody looks."""
        self.refresh()

    @property
    def device(self) -> torch.device:
        """Where the weights are now."""
        return self.master.flat.device

    @property
    def parts(self) -> frozenset[str]:
        """Which of attn, mlp and unembed the adapter changes."""
        return frozenset(site.part for site in self.layout.sites)

    def nbytes(self) -> int:
        """Bytes its weights take."""
        own: int = self.master.flat.nbytes
        return own if self.compute is self.master else own + int(self.compute.flat.nbytes)

    def refresh(self, sound: bool | None = None) -> None:
        """Make `compute` follow `master` after a change of the weights.

        Who made it follow already says whether it is `sound`.
        """
        self.sound = sound
        if self.master.flat.dtype == self.dtype:
            self.compute = self.master
        elif sound is not None:
            pass
        elif self.compute is self.master:
            self.compute = self.master.like(self.master.flat.to(self.dtype))
        else:
            self.compute.flat.copy_(self.master.flat)
        self.folded.clear()
        self.version = next(_versions)

    def is_sound(self) -> bool:
        """Whether all weights computed with are finite; looked at once after each change."""
        if self.sound is None:
            self.sound = bool(torch.isfinite(self.compute.flat).all())
        return self.sound

    def move(self, device: torch.device | str) -> None:
        """Bring the weights to a device; views are remade, numbers and version stay."""
        if self.device == torch.device(device):
            return
        version = self.version
        self.master = self.master.like(self.master.flat.to(device))
        self.compute = self.master
        self.refresh()
        self.version = version

    def frozen(self) -> Adapter:
        """A copy that later training does not touch: what a sampler holds."""
        return Adapter(
            self.layout,
            self.rank,
            alpha=self.alpha,
            seed=self.seed,
            device=self.device,
            dtype=self.dtype,
            flat=self.master.flat,
        )

    def sampled_copy(self) -> Adapter:
        """What `frozen` gives, but only in the dtype it is sampled in: it cannot be trained any more."""
        found = copy.copy(self)
        found.master = found.compute = self.compute.like(self.compute.flat.clone())
        found.folded = {}
        found.version = next(_versions)
        return found

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take every factor from `path.lora_A` / `path.lora_B`; a missing, extra or misshapen one is
        refused.
        """
        own = self.master.named()
        if missing := sorted(own.keys() - tensors.keys()):
            raise UserFault(f"the adapter lacks {len(missing)} tensors, first {missing[0]}")
        if extra := sorted(tensors.keys() - own.keys()):
            raise UserFault(
                f"the adapter has {len(extra)} tensors this one has no place for, first {extra[0]}"
            )
        for name, view in own.items():
            if tuple(tensors[name].shape) != tuple(view.shape):
                raise UserFault(
                    f"{name} has shape {list(tensors[name].shape)}, expected {list(view.shape)}"
                )
        for name, view in own.items():
            view.copy_(tensors[name])
        self.refresh()


def _initial(layout: LoraLayout, rank: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    # Drawn on the CPU site by site, so that a seed means the same adapter on every device.
    generator = torch.Generator().manual_seed(seed & (2**63 - 1))
    flat = torch.zeros(layout.per_rank * rank, dtype=dtype)
    for site, factor, offset, shape in layout.slots(rank):
        if factor == "a":
            bound = site.inner**-0.5
            draw = torch.rand(_numel(shape), generator=generator, dtype=torch.float32)
            flat[offset : offset + _numel(shape)] = (draw * 2 - 1) * bound
    return flat


def _numel(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
