"""`tinkex run` on a real server, and on one that fails."""

from __future__ import annotations

import sys

import pytest

import tinkex

from .conftest import Command, Fake, Trained


def test_runs_are_listed_newest_first(real: Command, trained: Trained):
    done = real("run", "list", "--limit", "1")
    assert (done.code, done.err) == (0, "")
    title, head, row = done.out.splitlines()
    assert title.startswith("1 training run")
    assert head.split() == ["Run", "ID", "Base", "Model", "LoRA", "Last", "Update", "Status"]
    assert row.split("  ")[0] == trained.run
    assert "Rank 4" in row
    assert row.endswith("OK")


def test_a_list_as_json_and_quietly(real: Command, trained: Trained):
    everything = real("run", "list", "--limit", "0", "--json").data["runs"]
    assert everything[0]["training_run_id"] == trained.run
    assert everything[0]["last_checkpoint"]["tinker_path"] == trained.state
    assert everything[0]["user_metadata"] == {"made": "here"}
    quiet = real("run", "list", "--limit", "0", "--quiet").out.split()
    assert quiet == [each["training_run_id"] for each in everything]


def test_columns_are_chosen(real: Command, trained: Trained):
    done = real("run", "list", "-c", "checkpoint,owner, checkpoint_time", "--limit", "1")
    assert done.out.splitlines()[1].split("  ")[0] == "Last Checkpoint"
    assert done.out.splitlines()[2].split() == ["weights/s", "local", "just", "now"]


def test_a_column_that_does_not_exist_was_not_understood(cli: Command):
    done = cli("run", "list", "--columns", "id,colour")
    assert (done.code, done.out) == (2, "")
    assert "no column 'colour' (there are id, model" in done.err


@pytest.mark.parametrize("limit", ["-1", "x"])
def test_a_limit_is_a_count(cli: Command, limit: str):
    done = cli("run", "list", f"--limit={limit}")
    assert done.code == 2
    assert "not a whole number from 0" in done.err


def test_one_run(real: Command, trained: Trained):
    done = real("run", "info", trained.run)
    assert done.code == 0
    for said in (trained.run, "Yes (Rank 4)", trained.state, trained.sampler, "Metadata made", "here"):
        assert said in done.out
    data = real("run", "info", trained.run, "--json").data
    assert (data["training_run_id"], data["lora_rank"]) == (trained.run, 4)
    assert real("run", "info", trained.run, "-q").out == f"{trained.run}\n"


def test_a_run_that_does_not_exist(real: Command):
    done = real("run", "info", "nobody")
    assert (done.code, done.out) == (1, "")
    assert "`tinkex run list`" in done.err
    assert done.err.count("\n") == 1
    assert real("run", "info", "nobody", "--json").problem["exit_code"] == 1


def test_all_checkpoints_of_a_run_are_deleted(real: Command, trained: Trained):
    done = real("run", "delete", trained.run, "--yes", "--json")
    assert done.code == 0
    assert done.data["deleted_count"] == 3
    assert done.data["runs"] == [{"run_id": trained.run, "deleted_count": 3, "failed": []}]
    assert real("checkpoint", "list", "--run-id", trained.run, "--json").data["checkpoints"] == []


def test_one_unknown_run_does_not_save_the_others(real: Command, trained: Trained):
    done = real("run", "delete", "nobody", trained.run, "--yes", "--json")
    assert done.code == 1
    assert [each["tinker_path"] for each in done.data["failed"]] == ["nobody"]
    assert done.data["deleted_count"] == 3
    assert "nobody" in done.problem["error"]


def test_nothing_is_deleted_unasked(real: Command, trained: Trained, monkeypatch: pytest.MonkeyPatch):
    done = real("run", "delete", trained.run)
    assert done.code == 2
    assert "--yes" in done.err
    assert len(real("checkpoint", "list", "--run-id", trained.run, "--json").data["checkpoints"]) == 3


class Terminal:
    """Somebody at a terminal who answers."""

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        return f"{self.answer}\n"


@pytest.mark.parametrize(("answer", "left"), [("n", 3), ("", 3), ("y", 0), ("YES", 0)])
def test_whoever_is_there_is_asked(
    real: Command, trained: Trained, monkeypatch: pytest.MonkeyPatch, answer: str, left: int
):
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    done = real("run", "delete", trained.run)
    assert done.code == (1 if left else 0)
    assert "Deleting 3 checkpoints cannot be undone. Go ahead? [y/N]" in done.err
    assert trained.state in done.err
    listed = real("checkpoint", "list", "--run-id", trained.run, "--json").data
    assert len(listed["checkpoints"]) == left


def test_a_list_in_pages(fake: Fake):
    with tinkex.ServiceClient() as client:
        for _ in range(103):
            client.create_lora_training_client("Qwen/Qwen3-8B", rank=8)
    assert len(fake("run", "list", "--limit", "0", "--json").data["runs"]) == 103
    assert len(fake.service.calls.to("list_training_runs")) == 2
    assert "(100 more not shown" in fake("run", "list", "--limit", "3").out
