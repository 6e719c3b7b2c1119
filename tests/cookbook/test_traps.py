"""The traps the page warns of are there, and show themselves as it says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from .environment import Environment
from .kitchen import LONGEST, Kitchen, Served
from .page import PAGE, recipes

pytestmark = pytest.mark.slow

MODEL = "Qwen/Qwen3-4B-Instruct-2507"


@pytest.fixture(scope="module")
def official(environment: Environment, served: Served, tmp_path_factory: pytest.TempPathFactory) -> Kitchen:
    return Kitchen(tmp_path_factory.mktemp("traps"), environment, served, ours=False)


def complaint(kitchen: Kitchen, command: str, folder: Path) -> str:
    """What is said by a command that fails."""
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=kitchen.variables, capture_output=True, text=True,
        timeout=LONGEST,
    )  # fmt: skip
    assert done.returncode != 0
    return done.stderr


def said(text: str) -> str:
    """A text that the page quotes."""
    assert text in PAGE.read_text()
    return text


def test_a_folder_without_the_model(official: Kitchen, tmp_path: Path) -> None:
    (tmp_path / "pirate.jsonl").write_bytes((official.folder / "pirate.jsonl").read_bytes())
    wanted = said("We couldn't connect to 'https://huggingface.co'")
    assert wanted in complaint(official, recipes()["chat_sl"], tmp_path)


@pytest.mark.parametrize(
    ("name", "text"), [("my/model", "Unknown model"), ("Qwen/mine", "KeyError")], ids=lambda each: each
)
def test_a_name_the_cookbook_does_not_know(name: str, text: str, official: Kitchen) -> None:
    command = recipes()["chat_sl"].replace(MODEL, name)
    assert said(text) in complaint(official, command, official.folder)


def test_a_conversation_that_does_not_fit(official: Kitchen) -> None:
    turns = [{"role": "user", "content": "word " * 2000}, {"role": "assistant", "content": "ok"}]
    (official.folder / "long.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 16)
    command = (
        recipes()["chat_sl"].replace("pirate.jsonl", "long.jsonl").replace("runs/chat_sl", "runs/long")
    )
    wanted = said("2012 tokens > context 1024")
    assert wanted in complaint(
        official, command.replace("max_length=512", "max_length=4096"), official.folder
    )
    official.run(["bash", "-c", command.replace("max_steps=8", "max_steps=1")])  # cut to 512 tokens


def test_data_that_changed_is_not_read_again(official: Kitchen) -> None:
    file = official.folder / "openai/gsm8k/main/train.jsonl"
    ask = "import datasets; print(datasets.load_dataset('openai/gsm8k', 'main')['train'][0]['answer'])"
    first = official.run(["python", "-c", ask])
    file.write_text(json.dumps({"question": "Which?", "answer": "Nine.\n#### 9"}) + "\n")
    assert official.run(["python", "-c", ask]).splitlines()[-1] == first.splitlines()[-1] == "#### 2"
    official.run(["rm", "-r", "hf/datasets"])
    assert official.run(["python", "-c", ask]).splitlines()[-1] == "#### 9"


def test_what_the_cookbooks_own_download_takes(official: Kitchen) -> None:
    official.cooked("chat_sl")
    *_, last = official.rows("chat_sl", "checkpoints.jsonl")
    code = """
import os, sys, tinker
from tinker_cookbook import weights
trainer = tinker.ServiceClient().create_training_client_from_state(sys.argv[1])
exported = trainer.save_weights_external("home").result().path
print(*sorted(os.listdir(weights.download(tinker_path=exported, output_dir="home"))))
for path in sys.argv[1:]:
    try:
        weights.download(tinker_path=path, output_dir="elsewhere")
    except Exception as problem:
        print(str(problem).replace(chr(10), " "))
"""
    files, training, sampler = official.run(
        ["python", "-W", "ignore", "-c", code, last["state_path"], last["sampler_path"]]
    ).splitlines()[-3:]
    assert files == "adapter_config.json adapter_model.safetensors"
    assert "this server writes no encrypted exports" in training
    assert "no attribute 'get_checkpoint_archive_url_from_tinker_path'" in sampler
