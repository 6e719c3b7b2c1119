"""`tinkex checkpoint push-hf`: a checkpoint as a PEFT adapter on the Hugging Face hub."""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checkpoint_download import fetch_files
from .main import Parser
from .output import CommandError, Output
from .paths import checkpoint_path
from .reaching import rest

if TYPE_CHECKING:
    from ..types.checkpoint import ParsedCheckpointTinkerPath
    from ..types.weights import WeightsInfoResponse

_CONFIG, _WEIGHTS = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")
_MARKER = "checkpoint_complete"
_PATH = re.compile(r"tinker://[^\s`]+")


def fill(parser: Parser) -> None:
    """Fill the command's parser."""
    parser.add_argument(
        "-r", "--repo", metavar="NAME", dest="repo_id", help="the repository (default: named after the run)"
    )
    parser.add_argument("--public", action="store_true", help="make the repository public")
    parser.add_argument("--revision", metavar="NAME", help="the branch to upload to")
    parser.add_argument("--commit-message", metavar="TEXT", help="what the commit says")
    parser.add_argument("--create-pr", action="store_true", help="open a pull request instead")
    parser.add_argument(
        "--allow-pattern", metavar="GLOB", action="append", dest="allow_patterns",
        help="upload only files that match; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--ignore-pattern", metavar="GLOB", action="append", dest="ignore_patterns",
        help="leave out files that match; may be given several times",
    )  # fmt: skip
    parser.add_argument("--no-model-card", action="store_true", help="write no README.md")
    parser.command(
        _push,
        {"checkpoint_path": "text", "repo_id": "text", "revision?": "text", "public": "bool"},
        examples="tinkex checkpoint push-hf tinker://s-1f3a:train:0/weights/final -r me/my-adapter",
    )


def _push(arguments: argparse.Namespace, out: Output) -> int:
    path = checkpoint_path(arguments)
    hub = _hub()
    about = rest(arguments, out).get_weights_info_by_tinker_path(path.tinker_path).result()
    repo, revision = _names(arguments, path, about)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "adapter"
        fetch_files(arguments, out, folder)
        _check(folder, about)
        if not (arguments.no_model_card or (folder / "README.md").exists()):
            (folder / "README.md").write_text(model_card(repo, path.tinker_path, about), encoding="utf-8")
        _upload(hub, arguments, folder, repo, revision, path.tinker_path)
    data = {"checkpoint_path": path.tinker_path, "repo_id": repo, "public": arguments.public}
    if revision is not None:
        data["revision"] = revision
    fields = {
        "Checkpoint Path": path.tinker_path,
        "Repo ID": repo,
        "Revision": revision,
        "Public": arguments.public,
    }
    out.record(fields, essential="Repo ID", data=data)
    return 0


def _hub() -> Any:
    """The hub, logged in; anything else is found out before a byte is downloaded."""
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise CommandError(
            "uploading needs huggingface_hub", "pip install huggingface_hub, then hf auth login"
        ) from None
    hub = HfApi()
    try:
        hub.whoami()
    except OSError as error:  # every error of the hub's is one
        refused = getattr(getattr(error, "response", None), "status_code", None)
        offline = refused is None and "token" not in str(error).lower()
        if offline:
            raise CommandError(
                f"the Hugging Face hub cannot be reached: {error}",
                "`tinkex export` writes the same files to a folder",
            ) from None
        raise CommandError("not logged in to the Hugging Face hub", "hf auth login") from None
    return hub


def _names(
    arguments: argparse.Namespace, path: ParsedCheckpointTinkerPath, about: WeightsInfoResponse
) -> tuple[str, str | None]:
    """The repository and the branch."""
    if arguments.repo_id is not None:
        return arguments.repo_id, arguments.revision
    model = about.base_model.rpartition("/")[2] or "adapter"
    repo = _plain(f"tinker-{model}-{path.training_run_id}")
    return repo, arguments.revision or _plain(path.checkpoint_id)


def _plain(text: str) -> str:
    return re.sub(r"-{2,}", "-", re.sub(r"[^\w.-]", "-", text, flags=re.ASCII)).strip("-_.")


def _check(folder: Path, about: WeightsInfoResponse) -> None:
    if not (folder / _CONFIG).is_file() or not any((folder / name).is_file() for name in _WEIGHTS):
        raise CommandError(
            f"the checkpoint is no PEFT adapter: it lacks {_CONFIG} or {_WEIGHTS[0]}",
            "encrypted exports cannot be uploaded",
        )
    config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    if not isinstance(config.get("base_model_name_or_path"), str):
        config["base_model_name_or_path"] = about.base_model
        (folder / _CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def model_card(repo: str, path: str, about: WeightsInfoResponse) -> str:
    """The README.md of an adapter's repository."""
    parts = {"attention": about.train_attn, "MLP": about.train_mlp, "unembedding": about.train_unembed}
    trained = ", ".join(name for name, on in parts.items() if on is not False)
    return f"""---
base_model: {about.base_model}
library_name: peft
tags: [tinker, peft, lora, "base_model:adapter:{about.base_model}"]
tinker_path: {path}
---

# {repo.rpartition("/")[2]}

A LoRA adapter for `{about.base_model}` (rank {about.lora_rank}; trained: {trained}), saved as `{path}`.

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

base = AutoModelForCausalLM.from_pretrained("{about.base_model}")
model = PeftModel.from_pretrained(base, "{repo}")
```
"""


def _upload(
    hub: Any, arguments: argparse.Namespace, folder: Path, repo: str, revision: str | None, path: str
) -> None:
    try:
        repo = hub.create_repo(repo_id=repo, private=not arguments.public, exist_ok=True).repo_id
        if revision is not None and not arguments.create_pr:
            hub.create_branch(repo_id=repo, branch=revision, exist_ok=True)
        held = _held(hub, repo, revision)
        if held not in (None, path):
            raise CommandError(
                f"{repo} holds another checkpoint, {held}", "choose another --repo or --revision"
            )
        hub.upload_folder(
            folder_path=str(folder),
            repo_id=repo,
            revision=revision,
            commit_message=arguments.commit_message,
            create_pr=arguments.create_pr,
            allow_patterns=arguments.allow_patterns,
            ignore_patterns=[*(arguments.ignore_patterns or ()), _MARKER],
        )
    except OSError as error:
        raise CommandError(f"the upload to {repo} failed: {error}", "try again") from None


def _held(hub: Any, repo: str, revision: str | None) -> str | None:
    """The checkpoint a repository says it holds."""
    if not hub.file_exists(repo_id=repo, filename="README.md", revision=revision):
        return None
    card = Path(hub.hf_hub_download(repo_id=repo, filename="README.md", revision=revision))
    found = _PATH.search(card.read_text(encoding="utf-8", errors="replace"))
    return found[0] if found else None
