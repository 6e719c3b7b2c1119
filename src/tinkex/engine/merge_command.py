"""Writes a PEFT adapter into its base model, as a process of its own.

`python -m tinkex.engine.merge_command BASE ADAPTER OUT` prints one JSON object: `{"tensors": …}` with how
many changed, or `{"error": …}` and exit code 1.  Only the model's shape is built, never its weights.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from .base_model import BaseModel
from .faults import UserFault
from .merge import merge
from .model_folder import check_folder
from .peft_format import import_peft

__all__ = ["main", "merge_peft"]


def merge_peft(base: Path, adapter: Path, out: Path) -> int:
    """Write the base model with a PEFT adapter in its weights; the number of tensors that changed."""
    check_folder(base)
    config = AutoConfig.from_pretrained(base, local_files_only=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    shape = BaseModel(model)
    shape.device = torch.device("cpu")  # where the adapter's own weights go
    changed = merge(base, import_peft(adapter, shape), out)
    # safetensors writes files for their owner alone; a merged model is a file like any other.
    os.umask(mask := os.umask(0))
    for path in out.iterdir():
        path.chmod(0o666 & ~mask)
    return changed


def main(arguments: Sequence[str]) -> int:
    """Merge, and print what became of it."""
    base, adapter, out = map(Path, arguments)
    try:
        done = {"tensors": merge_peft(base, adapter, out)}
    except (UserFault, OSError) as problem:
        sys.stdout.write(json.dumps({"error": str(problem)}) + "\n")
        return 1
    sys.stdout.write(json.dumps(done) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
