"""`tinkex merge`: an adapter written into its base model, as a plain Hugging Face folder.

The work is done by the engine in a process of its own; this one never loads PyTorch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from .adapters import AdapterFolder, look_at
from .checkpoint_download import fetch_files
from .main import Parser
from .output import CommandError, Output
from .progress import ProgressLine
from .reaching import add_server
from .readable import plural, size

NEEDED = ("torch", "transformers", "safetensors")
_SCHEME = "tinker://"
_SHAPE = {"source": "text", "base": "text", "folder": "text", "tensors_changed": "int", "size_bytes": "int"}


def register(parser: Parser) -> None:
    """Fill the command's parser."""
    parser.add_argument(
        "source", metavar="SOURCE", help="a checkpoint (tinker://…), or a folder with a PEFT adapter"
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where the merged model goes")
    parser.add_argument(
        "--base", metavar="MODEL",
        help="the base model: a name or a folder (default: the name the adapter has for it)",
    )  # fmt: skip
    parser.add_argument("--force", action="store_true", help="replace a folder that is there")
    add_server(parser)
    parser.command(
        _merge,
        _SHAPE,
        examples="tinkex merge tinker://s-1f3a:train:0/sampler_weights/final merged --base ~/qwen3-8b\n"
        "tinkex merge my-adapter merged",
    )


def _merge(arguments: argparse.Namespace, out: Output) -> int:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise CommandError(
            f"merging needs what is not installed here ({', '.join(missing)})",
            'pip install "tinkex[server]"',
        )
    folder = arguments.folder.expanduser().resolve()
    if folder.exists() and not arguments.force:
        raise CommandError(
            f"{folder} is there already", "pass --force to replace it, or name another folder"
        )
    if arguments.base is not None:
        _base(arguments.base)  # before anything is downloaded
    with _adapter(arguments, out) as adapter, ProgressLine(out) as line:
        base = _base(arguments.base or adapter.base_model)
        line.show("merging …", now=True)
        changed = _child(base, adapter.folder, folder)
    total = sum(path.stat().st_size for path in folder.iterdir())
    data = {
        "source": arguments.source,
        "base": str(base),
        "folder": str(folder),
        "tensors_changed": changed,
        "size_bytes": total,
    }
    text = f"{folder}: {base.name} with {plural(changed, 'tensor')} changed, {size(total)}."
    out.record(data, essential="folder", text=text)
    return 0


@contextmanager
def _adapter(arguments: argparse.Namespace, out: Output) -> Iterator[AdapterFolder]:
    """The adapter's folder; a downloaded one for as long as it is needed."""
    if not arguments.source.startswith(_SCHEME):
        yield look_at(Path(arguments.source).expanduser())
        return
    with tempfile.TemporaryDirectory(prefix="tinkex-merge-") as place:
        arguments.checkpoint_path = arguments.source
        yield look_at(fetch_files(arguments, out, Path(place) / "adapter").folder)


def _base(name: str | None) -> Path:
    from ..models import resolve

    if name is None:
        raise CommandError("the adapter does not say what its base model is", "name it with --base MODEL")
    return resolve(name)


def _child(base: Path, adapter: Path, out: Path) -> int:
    """Have the engine merge; the number of tensors that changed."""
    module = "tinkex.engine.merge_command"
    command = [sys.executable, "-P", "-m", module, str(base), str(adapter), str(out)]
    environ = {**os.environ, "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)  # noqa: S603
    try:
        told = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise CommandError(f"merging failed: {last}") from None
    if "error" in told:
        raise CommandError(
            f"the adapter cannot be merged: {told['error']}", "is --base its own base model?"
        )
    changed: int = told["tensors"]
    return changed
