"""Training states and sampler weights as folders: one safetensors file of flat buffers and what they mean.

A folder appears whole or not at all: it is written beside its place and renamed. A state read back
continues bit for bit, because weights, moments and step count are stored as they are in memory. Names and
ownership are not known here.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from .adamw import AdamState
from .adapters import Adapter, LoraLayout, LoraTensors
from .base_model import BaseModel
from .durable import make_folders, sync, sync_all
from .faults import ServerFault, UserFault
from .kill_points import reach
from .trainer import TrainState

FILE = "adapter.safetensors"
FORMAT = "1"
PARTS = ("attn", "mlp", "unembed")


def save_state(
    folder: str | Path, state: TrainState, *, with_optimizer: bool = True, with_gradient: bool = False
) -> int:
    """Write a model's weights (and moments, and the gradient accumulated so far); bytes written."""
    tensors = {"weights": state.adapter.master.flat}
    step = 0
    if with_optimizer and state.moments is not None:
        tensors |= {"exp_avg": state.moments.exp_avg, "exp_avg_sq": state.moments.exp_avg_sq}
        step = state.moments.step
    if with_gradient and state.grads is not None:
        tensors["gradient"] = state.grads.flat
    return _write(Path(folder), state.adapter, tensors, kind="state", step=str(step))


def load_state(folder: str | Path, base: BaseModel, *, with_optimizer: bool = True) -> TrainState:
    """A model's training state as it was saved; without the optimizer, its weights alone."""
    adapter, tensors, facts = _read(Path(folder), base)
    state = TrainState(adapter)
    if with_optimizer and "exp_avg" in tensors:
        first, second = (tensors[name].to(base.device) for name in ("exp_avg", "exp_avg_sq"))
        state.moments = AdamState(first, second, int(facts["step"]))
    if with_optimizer and "gradient" in tensors:
        state.grads = LoraTensors(adapter.layout, adapter.rank, tensors["gradient"].to(base.device))
    return state


def save_sampler(folder: str | Path, adapter: Adapter) -> int:
    """Write the weights a sampler needs; bytes written."""
    return _write(Path(folder), adapter, {"weights": adapter.master.flat}, kind="sampler", step="0")


def load_sampler(folder: str | Path, base: BaseModel) -> Adapter:
    """Sampler weights, from a folder of either kind."""
    return _read(Path(folder), base)[0]


def layout_of(base: BaseModel, parts: frozenset[str]) -> LoraLayout:
    """The layout of an adapter with these parts."""
    return base.layout(**{name: name in parts for name in PARTS})


def _signature(layout: LoraLayout) -> str:
    sites = [(s.path, s.inner, s.outer, s.experts, s.shared) for s in layout.sites]
    return hashlib.blake2b(json.dumps(sites).encode(), digest_size=16).hexdigest()


def _write(folder: Path, adapter: Adapter, tensors: dict[str, torch.Tensor], **facts: str) -> int:
    facts |= {
        "format": FORMAT,
        "rank": str(adapter.rank),
        "alpha": repr(adapter.alpha),
        "seed": str(adapter.seed),
        "parts": ",".join(sorted(adapter.parts)),
        "layout": _signature(adapter.layout),
    }
    with fresh_folder(folder) as place:
        path = place / FILE
        reach("folder: before it is written")
        save_file({name: x.contiguous().cpu() for name, x in tensors.items()}, path, metadata=facts)
        return path.stat().st_size


def _read(folder: Path, base: BaseModel) -> tuple[Adapter, dict[str, torch.Tensor], dict[str, str]]:
    path = folder / FILE
    if not path.is_file():
        raise UserFault(f"no checkpoint at {folder}")
    try:
        with safe_open(path, framework="pt") as file:
            facts: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as problem:
        raise ServerFault(f"the checkpoint at {folder} cannot be read: {problem}") from None
    if facts.get("format") != FORMAT:
        raise UserFault(f"the checkpoint at {folder} has format {facts.get('format')!r}, expected {FORMAT}")
    layout = layout_of(base, frozenset(facts["parts"].split(",")))
    if _signature(layout) != facts["layout"]:
        raise UserFault(f"the checkpoint at {folder} belongs to another base model")
    rank = int(facts["rank"])
    if tensors["weights"].numel() != layout.per_rank * rank:
        raise ServerFault(f"the checkpoint at {folder} is damaged: its size does not match its rank")
    adapter = Adapter(
        layout,
        rank,
        alpha=float(facts["alpha"]),
        seed=int(facts["seed"]),
        device=base.device,
        dtype=base.dtype,
        flat=tensors["weights"],
    )
    return adapter, tensors, facts


class fresh_folder:  # noqa: N801
    """A context that writes a folder aside and puts it in place, whole and on disk, when it ends well."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.aside = folder.with_name(f".{folder.name}.{os.getpid()}.part")

    def __enter__(self) -> Path:
        shutil.rmtree(self.aside, ignore_errors=True)
        make_folders(self.aside)
        return self.aside

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is not None:
            shutil.rmtree(self.aside, ignore_errors=True)
            return
        reach("folder: before it is synced")
        sync_all(self.aside)
        old = self.folder.with_name(f".{self.folder.name}.{os.getpid()}.old")
        if self.folder.exists():
            self.folder.rename(old)
        reach("folder: before it is renamed")
        self.aside.rename(self.folder)
        reach("folder: after it is renamed")
        sync(self.folder.parent)
        shutil.rmtree(old, ignore_errors=True)
