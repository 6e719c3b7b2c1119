"""tinker-cookbook, unmodified, on our server: with the official SDK and with our client."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import time
from pathlib import Path

import pytest

import tinkex
from tinkex import types

from .environment import Environment
from .kitchen import LONGEST, Kitchen, Served, server
from .page import promises, recipes, sections

pytestmark = pytest.mark.slow

MODEL = "Qwen/Qwen3-4B-Instruct-2507"
NEEDS = {"on_policy_distillation": ["chat_sl"]}
"""Recipe -> those whose checkpoints it begins with."""


def cooked(kitchen: Kitchen, recipe: str) -> None:
    """Have a recipe done, after what it needs."""
    for other in NEEDS.get(recipe, []):
        kitchen.cooked(other)
    kitchen.cooked(recipe)


def rest(served: Served) -> tinkex.RestClient:
    return tinkex.RestClient(base_url=served.url, api_key=served.key)


def test_the_environment_is_the_one_the_page_names(environment: Environment) -> None:
    code = "import importlib.metadata as m; print(*(m.version(n) for n in NAMES))"
    names = ("tinker", "tinker-cookbook", "transformers")
    done = subprocess.run(
        [str(environment.programs / "python"), "-c", code.replace("NAMES", repr(names))],
        env=environment.variables(),
        capture_output=True,
        text=True,
        check=True,
    )
    sdk, cookbook, transformers = done.stdout.split()
    assert (sdk, cookbook) == ("0.36.0", "0.5.8")
    assert tuple(int(part) for part in transformers.split(".")) <= (5, 5, 4)


@pytest.mark.parametrize("recipe", recipes())
def test_a_recipe_runs_to_its_end_and_shows_what_the_page_promises(
    recipe: str, kitchen: Kitchen, served: Served
) -> None:
    cooked(kitchen, recipe)
    for promise in promises():
        if promise.recipe == recipe:
            values = kitchen.metric(recipe, promise.metric)
            assert all(math.isfinite(value) for value in values)
            assert promise.kept(values), (promise, values)
    *_, last = kitchen.rows(recipe, "checkpoints.jsonl")
    assert last["name"] == "final"
    run = rest(served).get_training_run_by_tinker_path(last["state_path"]).result()
    assert run.base_model == MODEL
    listed = rest(served).list_checkpoints(run.training_run_id).result().checkpoints
    assert {last["state_path"], last["sampler_path"]} <= {each.tinker_path for each in listed}


def test_reinforcement_learning_logs_its_rewards(kitchen: Kitchen) -> None:
    kitchen.cooked("math_rl")
    rewards = kitchen.metric("math_rl", "env/all/reward/total")
    assert len(rewards) == 4
    assert all(-0.1 <= reward <= 1 for reward in rewards)
    assert max(kitchen.metric("math_rl", "env/all/correct")) > 0, "nano gets some sums right"
    assert max(abs(each) for each in kitchen.metric("math_rl", "optim/kl_sample_train_v1")) < 1e-3
    assert all(entropy > 0 for entropy in kitchen.metric("math_rl", "optim/entropy"))


def test_what_the_server_tells_of_a_step_is_in_the_log(kitchen: Kitchen) -> None:
    kitchen.cooked("chat_sl")
    assert kitchen.metric("chat_sl", "step:max") == [*range(1, 11)]
    assert all(norm > 0 for norm in kitchen.metric("chat_sl", "grad_norm:max"))


def test_the_run_remembers_how_its_chats_were_written(kitchen: Kitchen, served: Served) -> None:
    kitchen.cooked("chat_sl")
    *_, last = kitchen.rows("chat_sl", "checkpoints.jsonl")
    run = rest(served).get_training_run_by_tinker_path(last["sampler_path"]).result()
    assert (run.user_metadata or {})["renderer_name"] == "qwen3_instruct"


def test_the_pirate_speaks_on_the_server_and_at_home(kitchen: Kitchen, served: Served) -> None:
    kitchen.cooked("chat_sl")
    *_, last = kitchen.rows("chat_sl", "checkpoints.jsonl")
    asked = "<|im_start|>user\nWhat is a boat?<|im_end|>\n<|im_start|>assistant\n"
    with tinkex.ServiceClient(base_url=served.url, api_key=served.key) as client:
        sampler = client.create_sampling_client(model_path=last["sampler_path"])
        prompt = types.ModelInput.from_ints(sampler.get_tokenizer().encode(asked))
        greedy = types.SamplingParams(max_tokens=12, temperature=0.0)
        there = sampler.sample(prompt, 1, greedy).result().sequences[0].tokens
        assert sampler.get_tokenizer().decode(there).startswith("Arr")

    kitchen.run(["bash", "-euo", "pipefail", "-c", sections()["Taking weights home"][0]])
    assert (kitchen.folder / "pirate-adapter" / "adapter_model.safetensors").is_file()
    code = (
        "import torch, transformers as t; "
        "model = t.AutoModelForCausalLM.from_pretrained('pirate-model', dtype='float32'); "
        f"asked = torch.tensor([{prompt.to_ints()}]); "
        "print(model.generate(asked, max_new_tokens=12, do_sample=False).tolist()[0])"
    )
    at_home = json.loads(kitchen.run(["python", "-c", code]).splitlines()[-1])
    assert at_home == [*prompt.to_ints(), *there]


def test_a_recipe_that_was_killed_goes_on_from_its_last_checkpoint_on_a_restarted_server(
    environment: Environment, tmp_path: Path
) -> None:
    with server(tmp_path / "server", environment) as served:
        kitchen = Kitchen(tmp_path / "kitchen", environment, served, ours=False)
        kill_after_first_checkpoint(kitchen, "chat_sl")
    before = kitchen.metric("chat_sl", "train_mean_nll")
    (saved,) = kitchen.rows("chat_sl", "checkpoints.jsonl")
    assert saved["batch"] == 2

    with server(tmp_path / "server", environment) as served:
        kitchen = Kitchen(tmp_path / "kitchen", environment, served, ours=False)
        kitchen.cooked("chat_sl")
    steps = [row["step"] for row in kitchen.rows("chat_sl", "metrics.jsonl")]
    assert steps == [*range(len(before)), *range(2, 10)]
    after = kitchen.metric("chat_sl", "train_mean_nll")[len(before) :]
    assert max(after) < before[0] / 2, "what was learnt is there"
    counted = kitchen.metric("chat_sl", "step:max")[len(before) :]
    assert counted == [counted[0] + i for i in range(8)]
    assert counted[0] > 2, "the optimizer's state is there"
    names = [row["name"] for row in kitchen.rows("chat_sl", "checkpoints.jsonl")]
    assert (names[0], names[-1]) == ("000002", "final")


def kill_after_first_checkpoint(kitchen: Kitchen, recipe: str) -> None:
    """Run a recipe and `kill -9` it once it has written down a checkpoint."""
    checkpoints = kitchen.file(recipe, "checkpoints.jsonl")
    with subprocess.Popen(
        ["bash", "-c", f"exec {kitchen.command(recipe)[-1]}"],
        cwd=kitchen.folder,
        env=kitchen.variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        until = time.monotonic() + LONGEST
        while not (checkpoints.exists() and checkpoints.read_text().endswith("\n")):
            assert process.poll() is None
            assert time.monotonic() < until, "no checkpoint"
            time.sleep(0.01)
        process.kill()
        assert process.wait() == -signal.SIGKILL


def test_both_command_lines_list_what_was_saved(kitchen: Kitchen) -> None:
    kitchen.cooked("chat_sl")
    *_, last = kitchen.rows("chat_sl", "checkpoints.jsonl")
    kitchen.variables["COLUMNS"] = "300"  # paths are not broken over lines
    for command in sections()["chat_sl"][1].splitlines():
        assert last["sampler_path"] in kitchen.run(["bash", "-c", command]), command
