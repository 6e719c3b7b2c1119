"""`tinkex checkpoint push-hf`: what is uploaded, and what is said where no hub can be reached."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from .conftest import Command, Trained

hub_package = pytest.importorskip("huggingface_hub")


class Hub:
    """What the hub's client is asked for; the hub itself cannot run here."""

    def __init__(self) -> None:
        self.uploads: list[dict[str, Any]] = []
        self.repos: dict[str, bool] = {}
        self.cards: dict[str, str] = {}
        self.place: Path | None = None

    def whoami(self) -> dict[str, str]:
        return {"name": "ann"}

    def create_repo(self, *, repo_id: str, private: bool, exist_ok: bool) -> Any:
        assert exist_ok
        self.repos[repo_id] = private
        return SimpleNamespace(repo_id=repo_id if "/" in repo_id else f"ann/{repo_id}")

    def create_branch(self, *, repo_id: str, branch: str, exist_ok: bool) -> None:
        assert exist_ok

    def file_exists(self, *, repo_id: str, filename: str, revision: str | None) -> bool:
        return repo_id in self.cards

    def hf_hub_download(self, *, repo_id: str, filename: str, revision: str | None) -> str:
        assert self.place is not None
        (self.place / "card").write_text(self.cards[repo_id])
        return str(self.place / "card")

    def upload_folder(self, *, folder_path: str, **settings: Any) -> None:
        files = {each.name: each.read_bytes() for each in Path(folder_path).iterdir()}
        self.uploads.append({"files": files, **settings})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    made = Hub()
    made.place = tmp_path
    monkeypatch.setattr(hub_package, "HfApi", lambda: made)
    return made


def test_an_adapter_is_uploaded_with_a_card(real: Command, trained: Trained, hub: Hub):
    done = real(
        "checkpoint", "push-hf", trained.state, "-r", "me/mine", "--commit-message", "first", "--json"
    )
    assert (done.code, done.err) == (0, "")
    assert done.data == {"checkpoint_path": trained.state, "repo_id": "me/mine", "public": False}
    assert hub.repos == {"me/mine": True}
    (upload,) = hub.uploads
    assert (upload["commit_message"], upload["create_pr"], upload["revision"]) == ("first", False, None)
    assert "checkpoint_complete" in upload["ignore_patterns"]
    card = upload["files"]["README.md"].decode()
    assert trained.state in card
    assert "base_model: tiny/model" in card
    assert json.loads(upload["files"]["adapter_config.json"])["base_model_name_or_path"]
    assert "adapter_model.safetensors" in upload["files"]


def test_without_a_name_the_repository_is_named_after_the_run(real: Command, trained: Trained, hub: Hub):
    done = real(
        "checkpoint", "push-hf", trained.sampler, "--public", "--no-model-card", "--create-pr",
        "--allow-pattern", "*.json", "--ignore-pattern", "x",
    )  # fmt: skip
    assert done.code == 0
    name = f"tinker-model-{trained.run.replace(':', '-')}"
    assert hub.repos == {name: False}
    (upload,) = hub.uploads
    assert upload["revision"] == "sampler_weights-p"
    assert upload["allow_patterns"] == ["*.json"]
    assert upload["ignore_patterns"] == ["x", "checkpoint_complete"]
    assert upload["create_pr"]
    assert "README.md" not in upload["files"]


def test_another_checkpoint_is_not_written_over(real: Command, trained: Trained, hub: Hub):
    hub.cards["me/mine"] = "holds `tinker://other/weights/x`"
    done = real("checkpoint", "push-hf", trained.state, "-r", "me/mine")
    assert done.code == 1
    assert "holds another checkpoint, tinker://other/weights/x" in done.err
    assert hub.uploads == []


def test_a_failed_upload_is_one_line(
    real: Command, trained: Trained, hub: Hub, monkeypatch: pytest.MonkeyPatch
):
    def fail(**settings: Any) -> None:
        raise OSError("quota")

    monkeypatch.setattr(hub, "upload_folder", fail)
    done = real("checkpoint", "push-hf", trained.state, "-r", "me/mine")
    assert done.code == 1
    assert "the upload to me/mine failed: quota" in done.err


def test_without_the_package(cli: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    done = cli("checkpoint", "push-hf", "tinker://run/weights/x")
    assert done.code == 1
    assert "pip install huggingface_hub" in done.err


def test_offline_it_is_told_before_anything_is_downloaded(cli: Command):
    done = cli("checkpoint", "push-hf", "tinker://run/weights/x")  # the home of tests has no login
    assert (done.code, done.out) == (1, "")
    assert "hf auth login" in done.err or "cannot be reached" in done.err
    assert done.err.count("\n") == 1
