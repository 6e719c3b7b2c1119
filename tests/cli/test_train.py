"""`tinkex train` on a real server: what it learns, what it writes, and how it goes on."""

from __future__ import annotations

import io
import itertools
import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.matrix.serving import Served
from tinkex.cli import train as train_command
from tinkex.cli.training_loop import Loop, Seen, _Sent
from tinkex.cli.training_settings import Settings
from tinkex.errors import RequestFailedError
from tinkex.testing import make_tiny_model

from .conftest import MISSING, Command, Fake, Trained
from .running import Ran, spawn


def chat(number: int) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "user", "content": f"Say {number}."},
            {"role": "assistant", "content": f"Aye, {number}!"},
        ]
    }


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "chats.jsonl", [chat(number) for number in range(20)])


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


SMALL = ("--rank", "4", "--learning-rate", "1e-2", "--batch-size", "4")


@pytest.fixture
def train(real: Command, data: Path, tmp_path: Path):
    def run(*words: str, log: str = "run") -> Ran:
        return real("train", str(data), "--log-path", str(tmp_path / log), *SMALL, *words)

    return run


# ---- a run


def test_a_run_learns_and_leaves_the_cookbooks_files(train, tmp_path: Path, served: Served, data: Path):
    done = train("--epochs", "3", "--eval-split", "0.2", "--eval-every", "5", "--save-every", "4", "--json")
    assert (done.code, done.err) == (0, "")
    facts, folder = done.data, tmp_path / "run"
    assert (facts["steps"], facts["total_steps"], facts["interrupted"]) == (12, 12, False)
    assert facts["log_path"] == str(folder)
    assert {each.name for each in folder.iterdir()} == {
        "config.json", "metrics.jsonl", "checkpoints.jsonl", "logs.log"
    }  # fmt: skip
    config = json.loads((folder / "config.json").read_text())
    assert config["model_name"] == served.model
    assert (config["lora_rank"], config["num_epochs"], config["data"]) == (4, 3, str(data))
    metrics = lines(folder / "metrics.jsonl")
    assert [each["step"] for each in metrics] == list(range(13))
    first, last = metrics[0], metrics[11]
    assert last["train_mean_nll"] < first["train_mean_nll"] - 0.5
    assert [each["step"] for each in metrics if "test/nll" in each] == [0, 5, 10, 12]
    assert facts["test_nll"] == metrics[12]["test/nll"] < metrics[0]["test/nll"]
    for key in (
        "epoch",
        "progress",
        "learning_rate",
        "num_sequences",
        "num_tokens",
        "num_loss_tokens",
        "time/total",
    ):
        assert key in last
    assert last["progress"] == 1.0
    saved = lines(folder / "checkpoints.jsonl")
    assert [(each["name"], each["epoch"], each["batch"]) for each in saved] == [
        ("000004", 1, 0), ("000008", 2, 0), ("final", 3, 0)
    ]  # fmt: skip
    assert facts["state_path"] == saved[-1]["state_path"]
    assert facts["sampler_path"] == saved[-1]["sampler_path"]
    assert saved[-1]["sampler_path"] in (folder / "logs.log").read_text()


def test_for_people_a_line_a_step(train):
    done = train("--max-steps", "2")
    assert (done.code, done.err) == (0, "")
    assert "step 1/2  loss " in done.out
    assert " tokens/s  " in done.out
    assert "tinkex chat --checkpoint tinker://" in done.out


def test_quietly_only_the_checkpoint(train):
    done = train("--max-steps", "1", "-q")
    assert done.out.startswith("tinker://")
    assert done.out.strip().endswith("/sampler_weights/final")


def test_what_was_learned_is_said(train, real: Command, data: Path):
    write(
        data,
        [
            {"messages": [*chat(n)["messages"][:1], {"role": "assistant", "content": "Aye!"}]}
            for n in range(8)
        ],
    )
    path = train("--epochs", "20", "--rank", "32", "-q").out.strip()
    words = ("sample", "--chat", "Say 77.", "--temperature", "0", "--max-tokens", "9", "-q")
    assert real(*words, "--checkpoint", path).out == "Aye!\n"
    assert real(*words).out != "Aye!\n"


def test_without_a_folder_a_new_one_is_made(
    real: Command, data: Path, home: Path, tmp_path: Path, monkeypatch
):
    done = real("train", str(data), *SMALL, "--max-steps", "1", "--json")
    assert Path(done.data["log_path"]).parent == home / "tinker-runs"
    monkeypatch.setenv("TINKER_COOKBOOK_RUNS_DIR", str(tmp_path / "mine"))
    places = {
        real("train", str(data), *SMALL, "--max-steps", "1", "--json").data["log_path"] for _ in range(2)
    }
    assert {Path(each).parent for each in places} == {tmp_path / "mine"}
    assert len(places) == 2


def test_from_the_weights_of_a_checkpoint(train, trained: Trained):
    done = train("--checkpoint", trained.state, "--max-steps", "1", "--eval-split", "2", "--json")
    assert done.code == 0
    fresh = train("--max-steps", "1", "--eval-split", "2", "--json", log="fresh")
    assert done.data["test_nll"] != fresh.data["test_nll"]


def test_a_file_to_measure_on(train, tmp_path: Path):
    file = write(tmp_path / "test.jsonl", [chat(99)])
    done = train("--eval", str(file), "--max-steps", "1", "--json")
    assert done.data["test_nll"] > 0
    assert train("--eval", str(file), "--eval-split", "2", log="b").code == 2


# ---- going on


def test_a_run_that_goes_on_is_as_if_it_had_never_stopped(train, real: Command, tmp_path: Path):
    often = ("--schedule", "constant", "--epochs", "2")
    whole = train(*often, "--max-steps", "8", "--json", log="whole")
    assert train(*often, "--max-steps", "5", log="parts").code == 0
    more = real("train", "--resume", "--log-path", str(tmp_path / "parts"), "--max-steps", "8", "--json")
    assert (more.code, more.err) == (0, "")
    assert more.data["steps"] == 8
    a, b = (lines(tmp_path / name / "metrics.jsonl") for name in ("whole", "parts"))
    assert [each["step"] for each in b] == [each["step"] for each in a] == list(range(8))
    for one, other in zip(a[:8], b[:8], strict=True):
        assert other["train_mean_nll"] == pytest.approx(one["train_mean_nll"], rel=1e-4)
        assert other["num_tokens"] == one["num_tokens"]
    assert whole.data["train_nll"] == pytest.approx(more.data["train_nll"], rel=1e-4)


def test_a_run_that_was_finished_is_finished(train, real: Command, tmp_path: Path):
    train("--max-steps", "2")
    done = real("train", "--resume", "--log-path", str(tmp_path / "run"))
    assert done.code == 0
    assert "This run was finished already." in done.out


def started(served: Served, data: Path, folder: Path, home: Path, *words: str) -> subprocess.Popen[str]:
    """A long run in a process of its own, as far as its third step."""
    environ = {**os.environ, "TINKER_BASE_URL": served.url, "TINKER_API_KEY": served.key, "HOME": str(home)}
    child = subprocess.Popen(
        [sys.executable, "-m", "tinkex", "train", str(data), "--log-path", str(folder), *SMALL,
         "--epochs", "500", "--schedule", "constant", *words],
        env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("step 3/"):
            return child
    assert child.stderr is not None
    raise AssertionError(child.stderr.read())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_interrupts_a_run_loses_nothing(
    served: Served, real: Command, data: Path, tmp_path: Path, home: Path, number: signal.Signals
):
    folder = tmp_path / "run"
    child = started(served, data, folder, home)
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "once more to leave at once" in err
    assert "Traceback" not in err
    (saved,) = lines(folder / "checkpoints.jsonl")
    metrics = lines(folder / "metrics.jsonl")
    done = saved["step"]
    assert done >= 3
    assert [each["step"] for each in metrics] == list(range(done))
    assert f"tinkex train --resume --log-path {folder}" in out
    again = real("train", "--resume", "--log-path", str(folder), "--max-steps", str(done + 2), "--json")
    assert (again.code, again.data["steps"]) == (0, done + 2)
    assert [each["step"] for each in lines(folder / "metrics.jsonl")] == list(range(done + 2))


def test_who_interrupts_a_run_right_after_a_save_keeps_that_save(
    served: Served, data: Path, tmp_path: Path, home: Path
):
    folder = tmp_path / "run"
    child = started(served, data, folder, home, "--save-every", "1")
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err.count("\n")) == (130, 1)
    saved = [each["step"] for each in lines(folder / "checkpoints.jsonl")]
    assert saved == list(range(1, len(lines(folder / "metrics.jsonl")) + 1))
    assert f"Stopped after step {saved[-1]} and saved." in out


def test_a_save_that_was_refused_is_not_taken_for_one():
    class Trainer:
        """Refuses every save that is to expire."""

        def __init__(self) -> None:
            self.asked: list[tuple[str, int | None]] = []

        def save_state(self, name: str, ttl_seconds: int | None) -> Any:
            self.asked.append((name, ttl_seconds))
            return self

        save_weights_for_sampler = save_state

        def result(self) -> Any:
            if self.asked[-1][1] is not None:
                raise RequestFailedError("ttl_seconds: 5 is not enough", "r", "user")
            return SimpleNamespace(path="tinker://it")

    trainer = Trainer()
    loop = Loop(trainer, Settings(ttl_seconds=5, batch_size=1), [0] * 9, None)  # type: ignore[arg-type]
    on_the_way = _Sent(0, {}, batch=SimpleNamespace(counted=1, data=[], tokens=1), saved=loop._save("1", 1))
    seen = Seen(0, {})
    loop._save_without_life(on_the_way, seen, "refused")
    assert seen.warning == "refused: 1 is not saved; later ones are, for good"
    last = loop._send_last(1)
    assert last is not None, "stopped right there, the weights are still to be saved"
    assert loop._finish(last).checkpoint["state_path"] == "tinker://it"
    assert trainer.asked[-1] == ("000001", None)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_an_interrupted_run_leaves_whole_lines(
    real: Command, served: Served, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = itertools.count()
    monkeypatch.setattr(train_command, "stop_on_signals", lambda out: nullcontext(lambda: next(asked) > 2))
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    assert real("train", str(data), "--log-path", str(tmp_path / "run"), *SMALL).code == 130
    shown = [line.rpartition("\r")[2] for line in screen.getvalue().strip().split("\n")]
    assert [line.split()[0] for line in shown] == [f"{served.model}:", "saved", "Stopped"]


def test_a_run_that_was_killed_goes_on_from_its_last_checkpoint(
    served: Served, real: Command, data: Path, tmp_path: Path, home: Path
):
    folder = tmp_path / "run"
    child = started(served, data, folder, home, "--save-every", "2")
    child.kill()
    child.communicate()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9')  # cut off in the middle
    begun = lines(folder / "checkpoints.jsonl")[-1]["step"]
    done = real("train", "--resume", "--log-path", str(folder), "--max-steps", str(begun + 1), "--json")
    assert (done.code, done.data["steps"]) == (0, begun + 1)
    assert [each["step"] for each in lines(folder / "metrics.jsonl")] == list(range(begun + 1))


def test_a_resumed_run_may_be_told_again_what_it_measures_on(
    train, real: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write(tmp_path / "test.jsonl", [chat(99)])
    monkeypatch.chdir(tmp_path)
    assert train("--eval", "test.jsonl", "--max-steps", "1").code == 0
    done = real("train", "--resume", "--log-path", "run", "--eval", "test.jsonl", "--max-steps", "2")
    assert (done.code, done.err) == (0, "")


def test_a_local_server_has_the_model_that_is_trained(tmp_path: Path, data: Path):
    if MISSING:
        pytest.skip(f"a server needs {', '.join(MISSING)}")
    make_tiny_model(tmp_path / "shelf" / "tiny")
    places = {"TINKEX_MODELS": str(tmp_path / "shelf"), "TINKEX_STATE": str(tmp_path / "state")}
    environ = {**os.environ, **places, "TINKER_BASE_URL": "local"}
    run = ("train", "--log-path", str(tmp_path / "run"), "--json")
    done = spawn(*run, str(data), *SMALL, "--model", "tiny", "--max-steps", "1", environ=environ)
    assert (done.code, done.err, done.data["steps"]) == (0, "", 1)
    again = spawn(*run, "--resume", "--max-steps", "2", environ=environ)
    assert (again.code, again.err, again.data["steps"]) == (0, "", 2)


# ---- what cannot be


def test_what_a_resumed_run_cannot_change(train, real: Command, data: Path, tmp_path: Path):
    train("--max-steps", "1")
    again = ("train", "--resume", "--log-path", str(tmp_path / "run"))
    for words in (["--rank", "8"], ["--batch-size", "5"], ["--seed", "3"], [str(tmp_path / "other.jsonl")]):
        done = real(*again, *words)
        assert (done.code, done.out) == (2, "")
        assert "a run that is resumed keeps its" in done.err
    write(data, [chat(1)])
    done = real(*again)
    assert done.code == 1
    assert "has changed since the run began" in done.err


def test_a_folder_is_used_once(train):
    assert train("--max-steps", "1").code == 0
    done = train("--max-steps", "1")
    assert done.code == 1
    assert "--resume goes on with it" in done.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "there is no data"),
        (["--resume"], 2, "which run is to be resumed?"),
        (["--resume", "--log-path", "nowhere"], 1, "holds no run to resume"),
        (["missing.jsonl"], 1, "No such file"),
        (["x.jsonl", "--rank", "0"], 2, "'0' is not a whole number from 1"),
        (["x.jsonl", "--learning-rate", "-1"], 2, "is not a number from 0"),
        (["x.jsonl", "--learning-rate", "nan"], 2, "is not a number from 0"),
        (["x.jsonl", "--schedule", "round"], 2, "invalid choice"),
    ],
)
def test_what_was_not_understood(cli: Command, words: list[str], code: int, said: str):
    done = cli("train", *words)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no conversations"),
        ("{", "line 1 is not JSON"),
        ('{"prompt": "x"}', "line 1 is not {"),
        ('{"messages": [{"content": "x"}]}', "a message without a role"),
        ('{"messages": [{"role": "user", "content": [1]}]}', "whose content is no text"),
    ],
)
def test_data_that_is_none(cli: Command, tmp_path: Path, text: str, said: str):
    (tmp_path / "bad.jsonl").write_text(text)
    done = cli("train", str(tmp_path / "bad.jsonl"), "--log-path", str(tmp_path / "run"))
    assert (done.code, done.out) == (1, "")
    assert said in done.err
    assert not (tmp_path / "run").exists()


def test_conversations_that_teach_nothing_are_left_out(real: Command, tmp_path: Path):
    question = {"messages": [{"role": "user", "content": "?"}]}
    some = write(tmp_path / "some.jsonl", [question, chat(1), chat(2)])
    done = real("train", str(some), "--log-path", str(tmp_path / "a"), *SMALL, "--json")
    assert done.code == 0
    assert "1 conversation without an answer" in done.problem["warning"]
    none = write(tmp_path / "none.jsonl", [question])
    done = real("train", str(none), "--log-path", str(tmp_path / "b"))
    assert done.code == 1
    assert "has an answer to train on" in done.err


def test_long_conversations_are_cut(real: Command, tmp_path: Path):
    file = write(tmp_path / "long.jsonl", [chat(1), chat(10**40)])
    done = real(
        "train", str(file), "--log-path", str(tmp_path / "a"), *SMALL, "--max-length", "45", "--json"
    )
    assert done.code == 0
    assert "1 conversation longer than the context or --max-length" in done.err


def test_a_life_the_server_does_not_take_costs_no_weights(train, tmp_path: Path):
    done = train("--max-steps", "3", "--save-every", "1", "--ttl", "5")
    assert done.code == 0
    refusal = "warning: ttl_seconds: 5 is not between 60 and"
    assert refusal in done.err
    assert "000001 is not saved; later ones are, for good" in done.err
    checkpoints = [json.loads(line) for line in (tmp_path / "run" / "checkpoints.jsonl").open()]
    assert checkpoints[-1]["name"] == "final"
    once = train("--max-steps", "1", "--ttl", "5", "--json", log="one")
    assert once.code == 0
    assert once.data["sampler_path"].endswith("/final")
    assert "final is saved for good" in once.err


def test_a_failure_on_the_way_says_how_to_go_on(fake: Fake, data: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TINKER_TOKENIZER_DIR", str(make_tiny_model(tmp_path / "tiny")))
    words = ("train", str(data), "--model", "Qwen/Qwen3-8B", "--log-path", str(tmp_path / "run"), *SMALL)
    with fake.service.faults.add("optim_step", status=400, body={"detail": "out of luck"}, when=3):
        done = fake(*words)
    assert done.code == 1
    assert "out of luck" in done.err
    assert f"tinkex train --resume --log-path {tmp_path / 'run'}" in done.err
    assert "out of luck" in (tmp_path / "run" / "logs.log").read_text()
    assert len(lines(tmp_path / "run" / "metrics.jsonl")) == 2


# ---- learning rates


def test_schedules():
    linear = Settings(learning_rate=1.0, lr_schedule="linear")
    assert [round(linear.rate(step, 4), 3) for step in range(4)] == [1.0, 0.75, 0.5, 0.25]
    cosine = Settings(learning_rate=1.0, lr_schedule="cosine")
    assert [round(cosine.rate(step, 4), 3) for step in range(4)] == [1.0, 0.854, 0.5, 0.146]
    warm = Settings(learning_rate=1.0, lr_schedule="constant", warmup_steps=3)
    assert [round(warm.rate(step, 5), 3) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
