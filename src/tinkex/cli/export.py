"""`tinkex export`: a checkpoint as a folder PEFT, transformers and vLLM load."""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

from .adapters import CONFIG, look_at
from .checkpoint_download import fetch_files
from .main import Parser
from .output import CommandError, Output
from .paths import add_path
from .reaching import add_server
from .readable import plural, size

_SHAPE = {
    "checkpoint_path": "text",
    "folder": "text",
    "base_model": "text?",
    "rank": "int",
    "parameters": "int",
    "tensors": "int",
    "files": [{"name": "text", "size_bytes": "int", "sha256": "text"}],
}


def register(parser: Parser) -> None:
    """Fill the command's parser."""
    add_path(parser)
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where the files go")
    parser.add_argument(
        "--base",
        metavar="NAME",
        help="the base model's name in adapter_config.json (default: the server's)",
    )
    parser.add_argument("--force", action="store_true", help="write over files that are there")
    add_server(parser)
    parser.command(
        _export,
        _SHAPE,
        examples="tinkex export tinker://s-1f3a:train:0/sampler_weights/final mine --base Qwen/Qwen3-8B",
    )


def _export(arguments: argparse.Namespace, out: Output) -> int:
    folder = arguments.folder.expanduser().resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not arguments.force:
        raise CommandError(
            f"{folder} is there already", "pass --force to write into it, or name another folder"
        )
    done = fetch_files(arguments, out, folder, overwrite=arguments.force)  # each file against its digest
    adapter = look_at(folder)
    base = arguments.base or adapter.base_model
    if base != adapter.base_model:
        config = {**adapter.config, "base_model_name_or_path": base}
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    files = [
        {"name": name, "size_bytes": (folder / name).stat().st_size, "sha256": _digest(folder / name)}
        for name in sorted(done.files)
    ]
    data = {
        "checkpoint_path": arguments.checkpoint_path,
        "folder": str(folder),
        "base_model": base,
        "rank": adapter.rank,
        "parameters": adapter.parameters,
        "tensors": len(adapter.tensors),
        "files": files,
    }
    text = (
        f"{folder}: a LoRA adapter of rank {adapter.rank} for {base}, "
        f"{plural(adapter.parameters, 'parameter')} in {size(done.size_bytes)}.\n"
        f'  transformers: PeftModel.from_pretrained(base, "{folder}")\n'
        f"  vLLM:         vllm serve {base} --enable-lora --max-lora-rank {adapter.rank} "
        f"--lora-modules mine={folder}"
    )
    out.record({"folder": str(folder)}, essential="folder", text=text, data=data)
    if adapter.changes_head:
        out.warn(
            "it changes the unembedding, which vLLM cannot do; `tinkex merge` makes a plain model of it"
        )
    return 0


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
