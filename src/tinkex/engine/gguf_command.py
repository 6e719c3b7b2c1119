"""Makes a Hugging Face folder of a GGUF file, as a process of its own.

`python -m tinkex.engine.gguf_command FILE FOLDER` prints one JSON object: `{"folder": …}`, or
`{"error": …}` and exit code 1.  Weights are kept in bfloat16, which is more than a quantised file holds.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from .faults import UserFault
from .gguf import convert_gguf

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Convert, and print what became of it."""
    file, folder = map(Path, arguments)
    try:
        convert_gguf(file, folder, dtype=torch.bfloat16)
    except (UserFault, OSError, ValueError, KeyError, IndexError) as problem:
        text = (
            str(problem) if isinstance(problem, (UserFault, OSError)) else f"it cannot be read: {problem}"
        )
        sys.stdout.write(json.dumps({"error": text}) + "\n")
        return 1
    # safetensors writes files for their owner alone; a model is a file like any other.
    os.umask(mask := os.umask(0))
    for path in folder.iterdir():
        path.chmod(0o666 & ~mask)
    sys.stdout.write(json.dumps({"folder": str(folder)}) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
