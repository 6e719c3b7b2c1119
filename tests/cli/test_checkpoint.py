"""`tinkex checkpoint` on a real server, and on ones that fail or cannot."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tinkex

from .conftest import Command, Fake, Trained

NOWHERE = "tinker://nobody/weights/nothing"


def saved(names: int = 3) -> list[str]:
    """Checkpoints on the service of the environment."""
    with tinkex.ServiceClient() as client:
        trainer = client.create_lora_training_client("Qwen/Qwen3-8B", rank=8)
        return [trainer.save_state(f"c{number}").result().path for number in range(names)]


# ---- looking


def test_checkpoints_of_a_run(real: Command, trained: Trained):
    done = real("checkpoint", "list", "--run-id", trained.run)
    assert (done.code, done.err) == (0, "")
    title, head, *rows = done.out.splitlines()
    assert title == f"3 checkpoints for run {trained.run}"
    assert head.split("  ")[0] == "Checkpoint ID"
    for word in ("Type", "Size", "Public", "Created", "Expires", "Path"):
        assert word in head
    assert {row.split()[-1] for row in rows} == {trained.state, trained.sampler, trained.external}
    data = real("checkpoint", "list", "--run-id", trained.run, "--json").data
    assert data["run_id"] == trained.run
    assert {each["checkpoint_type"] for each in data["checkpoints"]} == {"training", "sampler", "external"}


def test_all_checkpoints(real: Command, trained: Trained):
    newest = real("checkpoint", "list", "--limit", "3", "--json").data
    assert "run_id" not in newest
    assert {each["tinker_path"] for each in newest["checkpoints"]} == {
        trained.state, trained.sampler, trained.external
    }  # fmt: skip
    quiet = real("checkpoint", "list", "-q", "--limit", "0").out.split()
    assert trained.state in quiet
    assert len(quiet) >= 3


def test_none_at_all(real: Command, trained: Trained):
    real("run", "delete", trained.run, "--yes")
    assert real("checkpoint", "list", "--run-id", trained.run).out == (
        f"No checkpoints found for run {trained.run}\n"
    )


def test_one_checkpoint(real: Command, trained: Trained):
    for path in (trained.state, trained.sampler, trained.external):
        done = real("checkpoint", "info", path)
        assert done.code == 0
        for said in (path, trained.run, "Yes (Rank 4)", "Never", "tiny/model"):
            assert said in done.out
        data = real("checkpoint", "info", path, "--json").data
        assert (data["tinker_path"], data["is_lora"], data["lora_rank"]) == (path, True, 4)


def test_a_checkpoint_that_does_not_exist(real: Command, trained: Trained):
    done = real("checkpoint", "info", f"tinker://{trained.run}/weights/nothing")
    assert done.code == 1
    assert "Checkpoint not found" in done.err
    assert real("checkpoint", "info", NOWHERE).code == 1


@pytest.mark.parametrize("command", ["info", "publish", "unpublish", "download", "push-hf", "delete"])
def test_a_path_that_is_none_was_not_understood(cli: Command, command: str):
    for path in ("weights/0001", "tinker://run/0001"):
        done = cli("checkpoint", command, path)
        assert (done.code, done.out) == (2, "")
        assert "Invalid tinker path" in done.err


# ---- changing


def test_publishing_and_taking_it_back(real: Command, trained: Trained):
    for _ in range(2):
        done = real("checkpoint", "publish", trained.state)
        assert done.code == 0
        assert f"{trained.state} is public" in done.out
    assert real("checkpoint", "info", trained.state, "--json").data["public"] is True
    assert real("checkpoint", "unpublish", trained.state, "--json").data == {
        "tinker_path": trained.state, "public": False
    }  # fmt: skip
    assert real("checkpoint", "info", trained.state, "--json").data["public"] is False


def test_what_is_so_already_is_no_failure(fake: Fake):
    (path,) = saved(1)
    with fake.service.faults.add("publish_checkpoint", status=409):
        done = fake("checkpoint", "publish", path)
    assert (done.code, done.err) == (0, "")
    assert "already public" in done.out


def test_an_end_is_set_and_taken_away(real: Command, trained: Trained):
    done = real("checkpoint", "set-ttl", trained.state, "--ttl", "7200")
    assert (done.code, done.out) == (0, f"{trained.state} expires in 7,200 seconds\n")
    assert "in 1 hour" in real("checkpoint", "info", trained.state).out
    done = real("checkpoint", "set-ttl", trained.state, "--remove", "--json")
    assert done.data == {"tinker_path": trained.state, "ttl_seconds": None}
    assert real("checkpoint", "info", trained.state, "--json").data["expires_at"] is None
    assert real("checkpoint", "set-ttl", trained.state, "--ttl", "5").code == 1


@pytest.mark.parametrize("words", [[], ["--ttl", "7200", "--remove"], ["--ttl", "x"]])
def test_an_end_is_either_set_or_taken_away(cli: Command, words: list[str]):
    assert cli("checkpoint", "set-ttl", NOWHERE, *words).code == 2


# ---- deleting


def test_a_failed_delete_fails_the_command_and_spares_no_other(real: Command, trained: Trained):
    gone = f"tinker://{trained.run}/weights/nothing"
    done = real("checkpoint", "delete", trained.state, gone, trained.sampler, "--yes", "--json")
    assert done.code == 1
    assert done.data["deleted_count"] == 2
    assert [each["tinker_path"] for each in done.data["failed"]] == [gone]
    assert gone in done.problem["error"]
    left = real("checkpoint", "list", "--run-id", trained.run, "-q").out.split()
    assert left == [trained.external]


def test_for_people_failures_stand_on_stderr(real: Command, trained: Trained):
    done = real("checkpoint", "delete", trained.state, f"tinker://{trained.run}/weights/no", "-y")
    assert done.code == 1
    assert done.out == "Deleted 1 checkpoint\n"
    assert "/weights/no: " in done.err
    assert done.err.count("\n") == 1


def test_all_deleted_is_a_success(real: Command, trained: Trained):
    done = real("checkpoint", "delete", trained.state, trained.state, "-y", "--json")
    assert (done.code, done.data) == (0, {"deleted_count": 1, "failed": []})


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([], set()),
        (["--type", "weights"], {"sampler", "external"}),
        (["--type", "sampler"], {"state", "external"}),
        (["--before", "2020-01-01"], {"state", "sampler", "external"}),
        (["--after", "2020-01-01T00:00:00Z"], set()),
        (
            ["--after", "2020-01-01", "--before", "2999-01-01", "--type", "external_weights"],
            {"state", "sampler"},
        ),
    ],
)
def test_those_of_a_run_that_match(real: Command, trained: Trained, filters: list[str], left: set[str]):
    done = real("checkpoint", "delete", "--run-id", trained.run, *filters, "--yes", "--json")
    assert (done.code, done.err) == (0, "")
    found = set(real("checkpoint", "list", "--run-id", trained.run, "-q").out.split())
    assert found == {getattr(trained, name) for name in left}


def test_nothing_is_deleted_unasked(real: Command, trained: Trained, monkeypatch: pytest.MonkeyPatch):
    for words in (["--run-id", trained.run], [trained.state]):
        done = real("checkpoint", "delete", *words)
        assert done.code == 2
        assert "pass --yes" in done.err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    done = real("checkpoint", "delete", trained.state, "--json")  # nobody reads a question in JSON mode
    assert done.code == 2
    assert len(real("checkpoint", "list", "--run-id", trained.run, "-q").out.split()) == 3


@pytest.mark.parametrize(
    "words",
    [[], [NOWHERE, "--run-id", "x"], [NOWHERE, "--type", "weights"], ["--run-id", "x", "--type", "bird"],
     ["--run-id", "x", "--before", "yesterday"]],
)  # fmt: skip
def test_what_cannot_be_meant(cli: Command, words: list[str]):
    done = cli("checkpoint", "delete", *words, "--yes")
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1


def test_a_server_that_refuses_some(fake: Fake):
    paths = saved(40)
    with fake.service.faults.add("delete_checkpoint", status=403, body={"detail": "not yours"}, times=3):
        done = fake("checkpoint", "delete", *paths, "--yes", "--json")
    assert done.code == 1
    assert (done.data["deleted_count"], len(done.data["failed"])) == (37, 3)
    assert all("not yours" in each["error"] for each in done.data["failed"])


# ---- downloading


@pytest.mark.parametrize("kind", ["state", "sampler", "external"])
def test_every_kind_is_downloaded(real: Command, trained: Trained, tmp_path: Path, kind: str):
    path = getattr(trained, kind)
    done = real("checkpoint", "download", path, "-o", str(tmp_path / "models"), "--json")
    assert (done.code, done.err) == (0, "")
    folder = Path(done.data["destination"])
    assert folder == tmp_path / "models" / path.removeprefix("tinker://").replace("/", "_")
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {each.name for each in folder.iterdir()}
    assert done.data["file_size_bytes"] == sum(each.stat().st_size for each in folder.iterdir())


def test_a_folder_is_not_written_over_unasked(real: Command, trained: Trained, tmp_path: Path):
    words = ("checkpoint", "download", trained.state, "--output", str(tmp_path))
    first = real(*words)
    assert first.code == 0
    assert "Downloaded to" in first.out
    again = real(*words)
    assert again.code == 1
    assert "--force" in again.err
    assert real(*words, "--force", "-q").out.strip().startswith(str(tmp_path))


def test_a_download_that_fails_leaves_no_folder(real: Command, trained: Trained, tmp_path: Path):
    done = real("checkpoint", "download", f"tinker://{trained.run}/weights/no", "-o", str(tmp_path))
    assert (done.code, done.out) == (1, "")
    assert done.err.count("\n") == 1
    assert [each for each in tmp_path.iterdir() if each.name != "home"] == []


def test_where_only_exports_are_given_out_one_is_made_and_deleted(fake: Fake, tmp_path: Path):
    (path,) = saved(1)
    with fake.service.faults.add("checkpoint_archive", status=404, body={"detail": "no such route"}):
        done = fake("checkpoint", "download", path, "-o", str(tmp_path), "--json")
        assert (done.code, done.err) == (0, "")
        assert (Path(done.data["destination"]) / "adapter_model.safetensors").is_file()
        assert len(fake.service.calls.to("save_weights_external")) == 1
        assert len(fake.service.calls.to("delete_checkpoint")) == 1
        assert list(fake.service.world.checkpoints) == [path]
        with tinkex.ServiceClient() as client:
            trainer = client.create_lora_training_client("Qwen/Qwen3-8B", rank=8)
            sampler = trainer.save_weights_for_sampler("p").result().path
        done = fake("checkpoint", "download", sampler, "-o", str(tmp_path))
        assert done.code == 1
        assert "does not give out sampler checkpoints" in done.err
        assert "save_state" in done.err
