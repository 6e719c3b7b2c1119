"""Training states and sampler weights as folders: one safetensors file of flat buffers and what they mean.

A folder appears whole or not at all: it is written beside its place and renamed. A state read back
continues bit for bit, because weights, moments and step count are stored as they are in memory. Names and
ownership are not known here.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from .adamw import AdamState
from .adapters import Adapter, LoraLayout, LoraTensors
from .base_model import BaseModel
from .faults import ServerFault, UserFault
from .fresh_folder import fresh_folder
from .kill_points import reach
from .tensor_files import DISK_ERRORS, write_tensors
from .trainer import TrainState

FILE = "adapter.safetensors"
FORMAT = "1"
PARTS = ("attn", "mlp", "unembed")


def save_state(
    folder: str | Path, state: TrainState, *, with_optimizer: bool = True, with_gradient: bool = False
) -> int:
    """Write a model's weights (and moments, and the gradient accumulated so far); bytes written."""
    tensors = _tensors(state, with_optimizer, with_gradient)
    return _write(Path(folder), state.adapter, tensors, kind="state", step=str(_step(state, tensors)))


class StateCopy:
    """A model's weights (moments, gradient) as they are at one moment, to be written at another."""

    def __init__(
        self, state: TrainState, *, with_optimizer: bool = True, with_gradient: bool = False
    ) -> None:
        found = _tensors(state, with_optimizer, with_gradient)
        self._tensors = {name: x.detach().to("cpu", copy=True) for name, x in found.items()}
        self._adapter, self._step = state.adapter, _step(state, found)
        self.nbytes = sum(x.nbytes for x in self._tensors.values())

    def save(self, folder: str | Path) -> int:
        """Write it, as `save_state` would have then; bytes written."""
        return _write(Path(folder), self._adapter, self._tensors, kind="state", step=str(self._step))


def _tensors(state: TrainState, with_optimizer: bool, with_gradient: bool) -> dict[str, torch.Tensor]:
    tensors = {"weights": state.adapter.master.flat}
    if with_optimizer and state.moments is not None:
        tensors |= {"exp_avg": state.moments.exp_avg, "exp_avg_sq": state.moments.exp_avg_sq}
    if with_gradient and state.grads is not None:
        tensors["gradient"] = state.grads.flat
    return tensors


def _step(state: TrainState, tensors: dict[str, torch.Tensor]) -> int:
    return state.steps if "exp_avg" in tensors else 0


def load_state(folder: str | Path, base: BaseModel, *, with_optimizer: bool = True) -> TrainState:
    """A model's training state as it was saved; without the optimizer, its weights alone."""
    adapter, tensors, facts = _read(Path(folder), base)
    state = TrainState(adapter)
    size = adapter.master.flat.shape
    with _damage_told(Path(folder)):
        if with_optimizer and any(x.shape != size for x in tensors.values()):
            raise ValueError("its optimizer's state has another size than its weights")
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
    held = {name: x.contiguous().cpu() for name, x in tensors.items()}
    facts["checksum"] = _checksum(held, facts)
    with fresh_folder(folder) as place:
        path = place / FILE
        reach("folder: before it is written")
        write_tensors(path, held, facts)
        return path.stat().st_size


def _checksum(tensors: dict[str, torch.Tensor], facts: dict[str, str]) -> str:
    """A CRC-32 of every number and of what is said of them."""
    said = {key: value for key, value in facts.items() if key != "checksum"}
    found = zlib.crc32(json.dumps(said, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        shape = f"{name} {tensor.dtype} {list(tensor.shape)}".encode()
        found = zlib.crc32(tensor.view(-1).view(torch.uint8).numpy(), zlib.crc32(shape, found))
    return f"{found:08x}"


def _read(folder: Path, base: BaseModel) -> tuple[Adapter, dict[str, torch.Tensor], dict[str, str]]:
    path = folder / FILE
    if not path.is_file():
        raise UserFault(f"no checkpoint at {folder}")
    try:
        with safe_open(path, framework="pt") as file:
            facts: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as problem:
        if isinstance(problem, OSError) and problem.errno in DISK_ERRORS:
            raise  # the disk may answer again
        raise ServerFault(f"the checkpoint at {folder} cannot be read: {problem}") from None
    if "checksum" in facts and facts["checksum"] != _checksum(tensors, facts):
        raise ServerFault(
            f"the checkpoint at {folder} is damaged: its numbers are not those that were saved"
        )
    if facts.get("format") != FORMAT:
        raise UserFault(f"the checkpoint at {folder} has format {facts.get('format')!r}, expected {FORMAT}")
    with _damage_told(folder):
        return _adapter(folder, base, tensors, facts), tensors, facts


@contextmanager
def _damage_told(folder: Path) -> Iterator[None]:
    """What is missing or misshapen in a file that can be read, in words."""
    try:
        yield
    except (KeyError, ValueError, OverflowError, RuntimeError) as problem:
        raise ServerFault(f"the checkpoint at {folder} is damaged: {problem!r}") from None


def _adapter(
    folder: Path, base: BaseModel, tensors: dict[str, torch.Tensor], facts: dict[str, str]
) -> Adapter:
    layout = layout_of(base, frozenset(facts["parts"].split(",")))
    if _signature(layout) != facts["layout"]:
        raise UserFault(f"the checkpoint at {folder} belongs to another base model")
    rank, flat = int(facts["rank"]), tensors["weights"]
    if flat.dim() != 1 or flat.numel() != layout.per_rank * rank or not flat.is_floating_point():
        raise ServerFault(f"the checkpoint at {folder} is damaged: its size does not match its rank")
    return Adapter(
        layout,
        rank,
        alpha=float(facts["alpha"]),
        seed=int(facts["seed"]),
        device=base.device,
        dtype=base.dtype,
        flat=flat,
    )
