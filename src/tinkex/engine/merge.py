"""An adapter written into its base model's weights: a plain Hugging Face folder, tensor by tensor.

Only one tensor is in memory at a time besides the adapter. Sums are taken in float32 and stored in the
base's own dtype.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from .adapters import Adapter, LoraSite
from .faults import UserFault
from .fresh_folder import fresh_folder
from .lora import HEAD

_INDEX = "model.safetensors.index.json"
_ONE_EXPERT = re.compile(r"(.+\.mlp\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.weight")
_STACKED = re.compile(r"(.+\.mlp\.experts)\.(gate_up_proj|down_proj)")
_EMBED = "model.embed_tokens.weight"
_ONE_FILE = "model.safetensors"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".pkl", ".ckpt", ".gguf", ".h5", ".msgpack")
"""Endings of files that may hold the weights once more, without the adapter."""


def merge(base_folder: str | Path, adapter: Adapter, out_folder: str | Path) -> int:
    """Write the base model with the adapter in its weights; the number of tensors that changed.

    If the unembedding was tied to the embedding and the adapter changes it, the two part ways in the merged
    model.
    """
    source = Path(base_folder)
    shards = _shards(source)
    if not shards or not (source / "config.json").is_file():
        raise UserFault(f"{source.name} is no folder of safetensors with a config.json")
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    delta = _Deltas(adapter)
    with fresh_folder(Path(out_folder)) as place:
        places: dict[str, str] = {}
        total = 0
        for shard in shards:
            with safe_open(shard, framework="pt") as file:
                names = set(file.keys())
                tensors = {name: delta.applied(name, file.get_tensor(name)) for name in names}
                if _EMBED in names and delta.waits_for(HEAD) and config.get("tie_word_embeddings"):
                    tensors[f"{HEAD}.weight"] = delta.applied(f"{HEAD}.weight", file.get_tensor(_EMBED))
            save_file(tensors, place / shard.name, metadata={"format": "pt"})
            places |= dict.fromkeys(tensors, shard.name)
            total += sum(x.nbytes for x in tensors.values())
        if left := delta.left():
            raise UserFault(f"the base model has no weight for {sorted(left)[0]}")
        if HEAD in delta.used and config.get("tie_word_embeddings"):
            config["tie_word_embeddings"] = False  # a tied one may be stored too, and would not be read
        for path in source.iterdir():
            weights = path.suffix in _WEIGHTS or path.name.endswith(".index.json")
            if path.is_file() and not weights and path.name != "config.json":
                shutil.copy2(path, place / path.name)
        (place / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        if [shard.name for shard in shards] != [_ONE_FILE]:
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
            (place / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return delta.changed


def _shards(folder: Path) -> list[Path]:
    """The files a model is read from: those its index names, or the one file there is without one."""
    if (folder / _INDEX).is_file():
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        return [folder / name for name in sorted(set(index["weight_map"].values()))]
    whole = folder / _ONE_FILE
    return [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))


class _Deltas:
    """What the adapter adds to each weight, by the names weights have on disk."""

    def __init__(self, adapter: Adapter) -> None:
        self.scale = adapter.scale
        self.named = {name: x.float().cpu() for name, x in adapter.master.named().items()}
        self.sites: dict[str, LoraSite] = {site.path: site for site in adapter.layout.sites}
        self.used: set[str] = set()
        self.changed = 0

    def waits_for(self, path: str) -> bool:
        """Whether the adapter changes this module and its weight has not been seen."""
        return path in self.sites and path not in self.used

    def left(self) -> set[str]:
        """Modules whose weights were not found."""
        return self.sites.keys() - self.used

    def applied(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """The weight of this name with the adapter's part added."""
        found = self._delta(name)
        if found is None:
            return weight
        self.changed += 1
        added = found()
        if added.shape != weight.shape:
            raise UserFault(f"{name} has shape {list(weight.shape)}, the adapter's is {list(added.shape)}")
        return (weight.float() + added).to(weight.dtype)

    def _delta(self, name: str) -> Callable[[], torch.Tensor] | None:
        path = name.removesuffix(".weight")
        if path in self.sites and not self.sites[path].experts:
            self.used.add(path)
            return lambda: self._product(path)
        one = _ONE_EXPERT.fullmatch(name)
        if one is not None and f"{one[1]}.{one[3]}" in self.sites:
            path, expert = f"{one[1]}.{one[3]}", int(one[2])
            self.used.add(path)
            return lambda: self._product(path, expert)
        stacked = _STACKED.fullmatch(name)
        if stacked is not None:
            names = ("gate_proj", "up_proj") if stacked[2] == "gate_up_proj" else ("down_proj",)
            paths = [f"{stacked[1]}.{last}" for last in names]
            if all(path in self.sites for path in paths):
                self.used.update(paths)
                return lambda: torch.cat([self._product(path) for path in paths], dim=1)
        return None

    def _product(self, path: str, expert: int | None = None) -> torch.Tensor:
        a, b = self.named[f"{path}.lora_A"], self.named[f"{path}.lora_B"]
        if expert is not None:
            a, b = (x[expert] if x.dim() == 3 else x for x in (a, b))
        return self.scale * (b @ a)
