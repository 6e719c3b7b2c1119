"""Every command there is, on the real server: done and failed, for people and as JSON.

What each does in full is in a file of its own; here none can be left out: one without a row fails.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.serving import Served
from tests.server.made_states import make_state
from tinkex.cli.tree import below, walk
from tinkex.testing import make_tiny_model

from .conftest import Command, Trained

SMALL = "--rank 4 --steps 1 --batch-size 1 --length 16 --samples 1 --max-tokens 2"
USAGE = "unrecognized arguments: extra"


@dataclass(frozen=True)
class Row:
    """A command line that is done and what it says to people; one that fails, how, and what it says."""

    done: str
    says: str
    failed: str
    code: int
    error: str
    typed: str = ""
    reports: bool = False
    """Whether it also has a document to show when it fails."""
    first: str = ""
    """A command that has to go before it."""
    warns: str = ""


ROWS = {
    "demo": Row("--show-code --task rl", "importance_sampling", "--model nope --out {new}", 1, "nope"),
    "chat": Row("--max-tokens 3", " tokens/s]", "--model huge", 1, "no model 'huge'", typed="hello\n"),
    "sample": Row("hi --max-tokens 2", "\n", "x --model huge", 1, "no model 'huge'"),
    "train": Row(
        "{chats} --log-path {new} --rank 4 --batch-size 2", "tinker://", "{new}", 1, "No such file",
    ),
    "export": Row(
        "{sampler} {new}", "adapter", "tinker://{run}/weights/no {new}", 1, "weights/no",
        warns="unembedding",
    ),
    "merge": Row("{state} {new} --base {base}", "{new}", "{state} {new} --base {new}", 1, "{new}"),
    "models list": Row("", "nano", "extra", 2, USAGE),
    "models add": Row("{base} --name mine{mode}", "tinkex serve --model mine", "{new}", 1, "{new}"),
    "models info": Row("nano", "Qwen3ForCausalLM", "nope", 1, "nope"),
    "serve": Row("--print-config --port 9", "port = 9  # --port", "--model nope --state {new}", 2, "nope"),
    "keys add": Row("ann{mode} --state {new}", "tml-", "'two words' --state {new}", 1, "'two words'"),
    "keys list": Row(
        "--state {folder}", "laptop", "extra", 2, USAGE, first="keys add laptop --state {folder}",
    ),
    "keys revoke": Row(
        "laptop --state {folder}", "'laptop'", "nobody --state {folder}", 1, "'nobody'",
        first="keys add laptop --state {folder}", reports=True,
    ),
    "state check": Row("{kept}", "It is whole.", "{new}", 1, "is no state folder"),
    "state compact": Row("{kept}", "{kept}", "{new}", 1, "is no state folder"),
    "state export": Row("{kept} {new}.tar", "{new}.tar", "{new} {new}.tar", 1, "is no state folder"),
    "state import": Row(
        "{folder}/b.tar {new}", "{new}", "{new}.tar {new}", 1, "{new}.tar",
        first="state export {kept} {folder}/b.tar"
    ),
    "conformance": Row(
        "--only wire/2.1/health", "1 passed, 0 failed", "--base-url http://127.0.0.1:9", 1, "http://127.0.0.1:9"
    ),
    "auth login": Row("", "credentials.json", "", 1, "key", typed="{key}\n"),
    "auth logout": Row("", "is forgotten", "", 1, "no key", first="auth login", typed="{key}\n"),
    "auth status": Row(
        "", "accessible: yes", "--base-url http://127.0.0.1:9", 1, "http://127.0.0.1:9", reports=True,
    ),
    "auth whoami": Row("", "local", "--base-url http://127.0.0.1:9", 1, "http://127.0.0.1:9"),
    "model list": Row("", "{model}", "--base-url http://127.0.0.1:9", 1, "http://127.0.0.1:9"),
    "run list": Row("--limit 0", "{run}", "--columns colour", 2, "colour"),
    "run info": Row("{run}", "{run}", "nobody", 1, "nobody"),
    "run delete": Row("{run} --yes", "3 checkpoints", "nobody --yes", 1, "nobody", reports=True),
    "checkpoint list": Row("--run-id {run}", "{state}", "--run-id nobody", 1, "nobody"),
    "checkpoint info": Row("{state}", "{state}", "tinker://{run}/weights/no", 1, "weights/no"),
    "checkpoint publish": Row("{state}", "{state}", "tinker://{run}/weights/no", 1, "weights/no"),
    "checkpoint unpublish": Row(
        "{state}", "{state}", "tinker://{run}/weights/no", 1, "weights/no",
        first="checkpoint publish {state}"
    ),
    "checkpoint set-ttl": Row("{state} --ttl 7200", "{state}", "{state}", 2, "--ttl"),
    "checkpoint delete": Row(
        "{state} --yes", "1 checkpoint", "tinker://{run}/weights/no --yes", 1, "weights/no", reports=True
    ),
    "checkpoint download": Row(
        "{state} -o {new}", "{new}", "tinker://{run}/weights/no -o {new}", 1, "weights/no",
    ),
    "session list": Row("--limit 0", "{session}", "--limit x", 2, "'x'"),
    "session info": Row("{session}", "{run}", "nobody", 1, "nobody"),
    "session export-trace": Row("{session} -o {new}", "{new}", "nobody", 1, "nobody"),
    "billing usage": Row(
        "2026-01-01T00:00:00Z 2026-01-02T00:00:00Z", "\n", "2026-01-01 2025-01-01", 1, "time zone"
    ),
    "billing checkpoint-storage": Row("", "checkpoint", "extra", 2, USAGE),
    "doctor": Row("", "server", "extra", 2, USAGE),
    "bench": Row(SMALL, "tokens/s", "--steps 0", 2, "--steps"),
    "completion": Row("bash", "complete", "tcsh", 2, "'tcsh'"),
    "version": Row("", "tinkex ", "extra", 2, USAGE),
}  # fmt: skip
ELSEWHERE = {"checkpoint push-hf": "test_checkpoint_push.py, with the hub's client replaced"}
LEAVES = [" ".join(words) for words, parser in walk() if not below(parser)]


def test_every_command_has_a_row():
    assert set(LEAVES) == {*ROWS, *ELSEWHERE}, "give each command a row in ROWS"


class Things(dict[str, str]):
    """What command lines speak of, made when one does."""

    def __init__(self, request: pytest.FixtureRequest, served: Served, place: Path) -> None:
        super().__init__(url=served.url, key=served.key, model=served.model)
        self._request, self._place = request, place
        self._made = {
            "new": lambda: str(place / "new"),
            "folder": lambda: str(_folder(place / "folder")),
            "kept": lambda: str(make_state(place / "kept")),
            "base": lambda: str(make_tiny_model(place / "base")),
            "chats": self._chats,
        }

    def __missing__(self, name: str) -> str:
        if name in self._made:
            self[name] = self._made[name]()
        else:
            trained: Trained = self._request.getfixturevalue("trained")
            self.update(run=trained.run, state=trained.state, sampler=trained.sampler)
            self["session"] = trained.run.partition(":")[0]
        return self[name]

    def _chats(self) -> str:
        turns = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Ahoy!"}]
        file = self._place / "chats.jsonl"
        file.write_text(f"{json.dumps({'messages': turns})}\n" * 4)
        return str(file)


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.fixture
def things(
    request: pytest.FixtureRequest, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Things]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("TINKEX_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(_folder(tmp_path / "here"))
    yield Things(request, served, tmp_path)
    assert os.listdir(tmp_path / "here") == [], "nothing is left where nobody asked for it"


def words_of(text: str, things: Things, **more: str) -> list[str]:
    for name, value in more.items():
        things[name] = value
    parts = [part.strip() for part in text.split("'")]
    return [
        word.format_map(things)
        for at, part in enumerate(parts)
        for word in ([part] if at % 2 else part.split())
    ]


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


@pytest.fixture
def ready(real: Command, things: Things, monkeypatch: pytest.MonkeyPatch):
    """Does what has to go before a command, and types what it asks for."""

    def prepare(name: str, row: Row) -> None:
        if name in ("train", "merge", "export", "chat") and find_spec("torch") is None:
            pytest.skip("needs torch")
        if row.first:
            typed(monkeypatch, row.typed.format_map(things))
            before = real(*words_of(row.first, things))
            assert before.code == 0, before.err
        typed(monkeypatch, row.typed.format_map(things))

    return prepare


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        (name, mode)
        for name in ROWS
        for mode in ("people", "json", "quiet")
        if mode == "json" or name not in ("doctor", "merge")  # they load torch: once is enough
    ],
)
def test_what_is_done(name: str, mode: str, real: Command, things: Things, ready: Any):
    row = ROWS[name]
    ready(name, row)
    given = words_of(row.done, things, mode=mode)
    says = row.says.format_map(things)
    done = real(*name.split(), *given, *{"json": ["--json"], "quiet": ["--quiet"]}.get(mode, []))
    assert done.code == 0, done.err
    warnings = [line for line in done.err.splitlines() if "TINKER_API_KEY" not in line]
    assert len(warnings) == bool(row.warns)
    assert row.warns in "".join(warnings)
    if mode == "people":
        assert says in done.out
    elif mode == "json":
        assert isinstance(done.data, dict)  # and the fixture has held it against the command's shape


@pytest.mark.parametrize("mode", ["people", "json"])
@pytest.mark.parametrize("name", ROWS)
def test_what_fails(name: str, mode: str, real: Command, things: Things, monkeypatch: pytest.MonkeyPatch):
    row = ROWS[name]
    typed(monkeypatch, "")
    done = real(*name.split(), *words_of(row.failed, things, mode=mode), *(["--json"] * (mode == "json")))
    assert done.code == row.code, done.err
    assert row.reports or done.out == ""
    error = row.error.format_map(things)
    if mode == "people":
        assert done.err.count("\n") == 1
        assert done.err.startswith("tinkex: ")
        assert error in done.err
    else:
        assert error in done.problem["error"] + done.problem["hint"]
        assert done.problem["exit_code"] == row.code
