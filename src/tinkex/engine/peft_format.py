"""Adapters as PEFT folders: written so that PEFT loads every tensor, read back as a starting point.

Experts are written one by one, the shared factor repeated for each. Reading also knows the names hosted
checkpoints use for the unembedding and for stacked experts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from .adapters import Adapter, LoraSite
from .base_model import BaseModel
from .checkpoints import layout_of
from .faults import UserFault
from .fresh_folder import fresh_folder
from .model_folder import refuse_pickles
from .tensor_files import write_tensors

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_PREFIX = "base_model.model."
_KEY = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?(?:\.weight)?")
_EXPERT = re.compile(r"(.+\.mlp\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)")
_BESIDE_THE_BASE = ("gaussian", "eva", "orthogonal")
"""Named ways to begin an adapter that leave the base model's weights as they are; others take from them."""
_ALIASES = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def export_peft(folder: str | Path, adapter: Adapter, *, base_name: str | None = None) -> int:
    """Write an adapter as a PEFT folder; bytes written."""
    tensors = {f"{_PREFIX}{name}.weight": x for name, x in expanded(adapter)}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": adapter.rank,
        "lora_alpha": int(adapter.alpha) if adapter.alpha.is_integer() else adapter.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "inference_mode": True,
        "target_modules": sorted({site.path.rsplit(".", 1)[-1] for site in adapter.layout.sites}),
    }
    with fresh_folder(Path(folder)) as place:
        contiguous = {
            name: x.cpu().clone(memory_format=torch.contiguous_format) for name, x in tensors.items()
        }
        write_tensors(place / WEIGHTS, contiguous, {"format": "pt"})
        (place / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        return sum(path.stat().st_size for path in place.iterdir())


def expanded(adapter: Adapter) -> Iterator[tuple[str, torch.Tensor]]:
    """Every factor as `path.lora_A` / `path.lora_B`, experts as modules of their own."""
    named = adapter.master.named()
    for site in adapter.layout.sites:
        a, b = named[f"{site.path}.lora_A"], named[f"{site.path}.lora_B"]
        if not site.experts:
            yield f"{site.path}.lora_A", a
            yield f"{site.path}.lora_B", b
            continue
        parent, name = site.path.rsplit(".", 1)
        for expert in range(site.experts):
            yield f"{parent}.{expert}.{name}.lora_A", a if site.shared == "a" else a[expert]
            yield f"{parent}.{expert}.{name}.lora_B", b if site.shared == "b" else b[expert]


def import_peft(folder: str | Path, base: BaseModel, *, seed: int = 0) -> Adapter:
    """A PEFT folder as an adapter; modules it leaves out start fresh, with no effect.

    What cannot be kept exactly is refused: other kinds of adapters, ranks that differ from module to
    module, modules this model has no place for, experts that do not share the factor ours share.
    """
    place = Path(folder)
    refuse_pickles(place, WEIGHTS)
    if not (place / CONFIG).is_file() or not (place / WEIGHTS).is_file():
        raise UserFault(f"{place.name} lacks {CONFIG} or {WEIGHTS}")
    config = _config(place / CONFIG)
    for key in (
        "use_dora",
        "use_rslora",
        "fan_in_fan_out",
        "rank_pattern",
        "alpha_pattern",
        "modules_to_save",
    ):
        if config.get(key):
            raise UserFault(f"PEFT adapters with {key} are not supported")
    begun = config.get("init_lora_weights", True)
    if isinstance(begun, str) and begun not in _BESIDE_THE_BASE:
        raise UserFault(f"PEFT adapters begun by {begun} change the base model too, and are not supported")
    if config.get("peft_type", "LORA") != "LORA" or config.get("bias", "none") != "none":
        raise UserFault("only LoRA adapters without biases can be read")
    if "r" not in config or "lora_alpha" not in config:
        raise UserFault(f"{CONFIG} lacks r or lora_alpha")
    rank, alpha = config["r"], config["lora_alpha"]
    if type(rank) is not int or rank < 1 or type(alpha) not in (int, float) or not math.isfinite(alpha):
        raise UserFault(f"{CONFIG}: r must be a whole number from 1 on and lora_alpha a number")
    sites = {site.path: site for site in base.sites}
    try:
        tensors = load_file(place / WEIGHTS)
    except (SafetensorError, OSError) as problem:
        raise UserFault(f"{WEIGHTS} cannot be read: {problem}") from None
    found = _factors(tensors, sites)
    _check_rank(found, rank)
    parts = frozenset(sites[path].part for path in found)
    layout = layout_of(base, parts)
    adapter = Adapter(
        layout,
        rank,
        alpha=float(alpha),
        seed=seed,
        device=base.device,
        dtype=base.dtype,
    )
    named = {name: x.clone() for name, x in adapter.master.named().items()}
    for path, factors in found.items():
        if factors.keys() != {"A", "B"}:
            raise UserFault(f"{path} has only one of lora_A and lora_B")
        for side, x in factors.items():
            named[f"{path}.lora_{side}"] = x.to(base.device)
    adapter.load(named)
    return adapter


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as problem:
        raise UserFault(f"{CONFIG} is not JSON: {problem}") from None
    if not isinstance(config, dict):
        raise UserFault(f"{CONFIG} holds no object")
    return config


def _check_rank(found: dict[str, dict[str, torch.Tensor]], rank: int) -> None:
    """Refuse factors of another rank before there is an adapter of that rank: it may be of any size."""
    if not found:
        raise UserFault(f"{WEIGHTS} has no LoRA factors")
    for path, factors in found.items():
        for side, x in factors.items():
            if x.dim() not in (2, 3) or x.shape[-2 if side == "A" else -1] != rank:
                raise UserFault(f"{path}.lora_{side} has shape {list(x.shape)}, {CONFIG} says rank {rank}")


def _factors(
    tensors: dict[str, torch.Tensor], sites: dict[str, LoraSite]
) -> dict[str, dict[str, torch.Tensor]]:
    found: dict[str, dict[str, torch.Tensor]] = {}
    experts: dict[tuple[str, str], dict[int, torch.Tensor]] = {}
    for key, x in tensors.items():
        match = _KEY.fullmatch(key)
        if match is None:
            raise UserFault(f"{key} is no LoRA factor")
        path, side = _known_name(match[1]), match[2]
        one = _EXPERT.fullmatch(path)
        if one is not None and one[1] + "." + one[3] in sites:
            experts.setdefault((f"{one[1]}.{one[3]}", side), {})[int(one[2])] = x
        elif path in sites:
            site = sites[path]
            if site.experts and x.dim() == 3 and site.shared == side.lower():
                x = _shared(path, side, list(x))
            found.setdefault(path, {})[side] = x
        else:
            raise UserFault(f"{key} changes a module this model has no place for")
    for (path, side), each in experts.items():
        site = sites[path]
        if sorted(each) != list(range(site.experts)):
            raise UserFault(f"{path} has factors for {len(each)} of {site.experts} experts")
        rows = [each[i] for i in range(site.experts)]
        joined = _shared(path, side, rows) if site.shared == side.lower() else torch.stack(rows)
        found.setdefault(path, {})[side] = joined
    return found


def _known_name(path: str) -> str:
    if path.endswith("unembed_tokens"):
        return "lm_head"
    parent, _, last = path.rpartition(".")
    return f"{parent}.{_ALIASES[last]}" if parent.endswith("mlp.experts") and last in _ALIASES else path


def _shared(path: str, side: str, rows: list[torch.Tensor]) -> torch.Tensor:
    if not all(torch.equal(rows[0], x) for x in rows[1:]):
        raise UserFault(f"{path}: experts have different lora_{side}; here they share one")
    return rows[0]
