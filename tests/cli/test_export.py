"""`tinkex export` and `tinkex merge`: what other tools load is what was trained."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from tests.matrix.serving import Served
from tinkex.cli import merge
from tinkex.cli.adapters import look_at
from tinkex.cli.output import CommandError
from tinkex.testing import make_tiny_model

from .conftest import Command, Fake, Trained


@pytest.fixture
def exported(real: Command, trained: Trained, tmp_path: Path) -> Path:
    assert real("export", trained.sampler, str(tmp_path / "adapter"), "-q").code == 0
    return tmp_path / "adapter"


# ---- export


@pytest.mark.parametrize("kind", ["state", "sampler", "external"])
def test_every_kind_becomes_a_peft_folder(
    real: Command, trained: Trained, tmp_path: Path, kind: str, served: Served
):
    folder = tmp_path / "adapter"
    done = real("export", getattr(trained, kind), str(folder), "--json")
    assert done.code == 0
    assert (done.data["folder"], done.data["rank"], done.data["base_model"]) == (
        str(folder),
        4,
        served.model,
    )
    for file in done.data["files"]:
        held = (folder / file["name"]).read_bytes()
        assert (len(held), hashlib.sha256(held).hexdigest()) == (file["size_bytes"], file["sha256"])
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {
        file["name"] for file in done.data["files"]
    }
    assert "unembedding" in done.problem["warning"]
    assert done.data["parameters"] == look_at(folder).parameters > 1000


def test_for_people_how_to_use_it(real: Command, trained: Trained, tmp_path: Path):
    done = real("export", trained.state, str(tmp_path / "a"), "--base", "Qwen/Qwen3-8B")
    assert done.code == 0
    assert "vllm serve Qwen/Qwen3-8B --enable-lora --max-lora-rank 4" in done.out
    assert json.loads((tmp_path / "a" / "adapter_config.json").read_text())["base_model_name_or_path"] == (
        "Qwen/Qwen3-8B"
    )


def test_files_are_not_written_over_unasked(real: Command, trained: Trained, exported: Path):
    done = real("export", trained.state, str(exported))
    assert (done.code, done.out) == (1, "")
    assert "--force" in done.err
    assert real("export", trained.state, str(exported), "--force").code == 0


def test_peft_loads_every_tensor(exported: Path, served: Served, tmp_path: Path):
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    base = transformers.AutoModelForCausalLM.from_pretrained(make_tiny_model(tmp_path / "base"))
    model = peft.PeftModel.from_pretrained(base, str(exported))
    weights = {name: each for name, each in model.named_parameters() if "lora_" in name}
    assert len(weights) == len(look_at(exported).tensors)
    assert any(each.abs().sum() > 0 for name, each in weights.items() if "lora_B" in name)


def test_a_checkpoint_that_is_no_adapter_is_told(fake: Fake, tmp_path: Path):
    import tinkex

    with tinkex.ServiceClient() as client:
        trainer = client.create_lora_training_client("Qwen/Qwen3-8B", rank=8)
        path = trainer.save_weights_external("e").result().path
    done = fake("export", path, str(tmp_path / "a"))  # a fake's files are made up
    assert (done.code, done.out) == (1, "")
    assert str(tmp_path / "a") in done.err


# ---- folders that are no adapter


def broken(folder: Path, name: str, change) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(change(data))


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("adapter_model.safetensors", lambda data: data[:-1], "it should have"),
        ("adapter_model.safetensors", lambda data: data + b"x", "it should have"),
        ("adapter_model.safetensors", lambda data: data[:4], "header cannot be read"),
        ("adapter_model.safetensors", lambda data: data.replace(b"F32", b"F16"), "is damaged at"),
        ("adapter_config.json", lambda data: b"{", "cannot be read"),
        (
            "adapter_config.json",
            lambda data: data.replace(b'"r": 4', b'"r": 5'),
            "no LoRA adapter of rank 5",
        ),
    ],
)
def test_damage_is_seen(exported: Path, name: str, change, said: str):
    broken(exported, name, change)
    with pytest.raises(CommandError, match=said):
        look_at(exported)


# ---- merge


def test_a_merged_model_is_the_base_model_with_the_adapter(
    real: Command, served: Served, exported: Path, tmp_path: Path
):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    base = make_tiny_model(tmp_path / "base")
    done = real("merge", str(exported), str(tmp_path / "merged"), "--base", str(base), "--json")
    assert (done.code, done.err) == (0, "")
    assert done.data["tensors_changed"] == len(look_at(exported).tensors) // 2
    load = transformers.AutoModelForCausalLM.from_pretrained
    tokens = torch.arange(20, 50)[None]
    with torch.no_grad():
        adapted = peft.PeftModel.from_pretrained(load(base), str(exported))(tokens).logits
        merged = load(tmp_path / "merged")(tokens).logits
        plain = load(base)(tokens).logits
    assert torch.allclose(merged, adapted, atol=1e-5)
    assert not torch.allclose(merged, plain, atol=1e-3)
    assert (tmp_path / "merged" / "tokenizer.json").is_file()


def test_straight_from_the_server_by_a_name_on_the_shelf(
    real: Command, trained: Trained, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make_tiny_model(tmp_path / "shelf" / served.model)
    monkeypatch.setenv("TINKEX_MODELS", str(tmp_path / "shelf"))
    done = real("merge", trained.state, str(tmp_path / "merged"))
    assert (done.code, done.err) == (0, "")
    assert "tensors changed" in done.out
    assert (tmp_path / "merged" / "model.safetensors").stat().st_mode & 0o044
    again = real("merge", trained.state, str(tmp_path / "merged"))
    assert again.code == 1
    assert "--force" in again.err


def test_a_model_that_is_not_its_base_is_refused(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("torch")
    from tinkex.engine import merge_command

    other = make_tiny_model(tmp_path / "other", layers=1)
    assert merge_command.main([str(other), str(exported), str(tmp_path / "merged")]) == 1
    told = capsys.readouterr().out
    assert "no place for" in json.loads(told)["error"]
    assert not (tmp_path / "merged").exists()

    def child(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, told, "")

    monkeypatch.setattr(subprocess, "run", child)
    with pytest.raises(CommandError, match=r"cannot be merged: .* no place for") as refused:
        merge._child(other, exported, tmp_path / "merged")
    assert "--base" in refused.value.hint


def test_an_engine_that_dies_is_told_with_its_last_words(tmp_path: Path):
    if merge.find_spec("torch") is not None:
        pytest.skip("the engine would run")
    with pytest.raises(CommandError, match="merging failed: ModuleNotFoundError"):
        merge._child(tmp_path, tmp_path, tmp_path / "merged")


def test_what_cannot_be_merged(real: Command, exported: Path, tmp_path: Path):
    if merge.find_spec("torch") is None:
        pytest.skip("there is no PyTorch here")
    assert real("merge", str(tmp_path / "none"), str(tmp_path / "m")).code == 1
    done = real("merge", str(exported), str(tmp_path / "m"), "--base", "nobody/has-this")
    assert done.code == 1
    assert "'nobody/has-this'" in done.err


def test_without_pytorch_it_says_what_to_install(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(merge, "find_spec", lambda name: None if name == "torch" else object())
    done = cli("merge", "adapter", str(tmp_path / "m"))
    assert done.code == 1
    assert "(torch)" in done.err
    assert 'pip install "tinkex[server]"' in done.err
