"""`tinkex chat` on a real server, through a pipe and at a terminal."""

from __future__ import annotations

import builtins
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.matrix.serving import Served

from .conftest import Command, Trained
from .running import Ran

Talk = Callable[..., Ran]


@pytest.fixture
def talk(real: Command, monkeypatch: pytest.MonkeyPatch) -> Talk:
    """Says some lines through a pipe."""

    def say(*lines: str, words: tuple[str, ...] = ()) -> Ran:
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines) + "\n"))
        return real("chat", "--max-tokens", "6", "--seed", "1", *words)

    return say


def test_a_conversation_for_people(talk: Talk, served: Served):
    done = talk("hello", "", "and you?")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Talking to {served.model}.")
    assert done.out.count(" tokens/s]") == 2


def test_only_the_answers(talk: Talk):
    assert "tokens/s" not in talk("hello", words=("--quiet",)).out


def test_a_conversation_as_json(talk: Talk, served: Served):
    done = talk("hello", "again", words=("--json", "--system", "Be kind."))
    assert (done.code, done.err) == (0, "")
    assert [each["role"] for each in done.data["messages"]] == [
        "system", "user", "assistant", "user", "assistant"
    ]  # fmt: skip
    for turn in done.data["turns"]:
        assert turn["model"] == served.model
        assert 1 <= turn["tokens"] <= 6


def test_weights_are_switched(talk: Talk, trained: Trained, served: Served):
    done = talk(
        "hello",
        f"/checkpoint {trained.sampler}",
        "hello",
        f"/checkpoint {served.model}",
        "hi",
        words=("--json",),
    )
    assert (done.code, done.err) == (0, "")
    assert [turn["model"] for turn in done.data["turns"]] == [served.model, trained.sampler, served.model]


def test_the_weights_to_begin_with(talk: Talk, trained: Trained):
    done = talk("hello", words=("--json", "--checkpoint", trained.state))
    assert done.data["model"] == trained.state


def test_commands(talk: Talk, trained: Trained, tmp_path: Path):
    file = tmp_path / "chats.jsonl"
    done = talk(
        "/help", "/checkpoints", "one", "/undo", "/undo", "two", "/system Be kind.", "three",
        f"/save {file}", "/reset", "four", "/temperature 0", "/max-tokens 2", "five",
        "/system", "/quit", "never", words=("--json",),
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    assert [each["content"] for each in done.data["messages"] if each["role"] == "user"] == ["four", "five"]
    assert done.data["messages"][0]["role"] == "user"
    assert done.data["turns"][-1]["tokens"] <= 2
    (line,) = file.read_text().splitlines()
    assert [each["content"] for each in json.loads(line)["messages"]][:2] == ["Be kind.", "two"]


def test_commands_for_people(talk: Talk, trained: Trained):
    done = talk("/help", "/checkpoints", "/reset", "/system x", "/system")
    for said in (
        "/checkpoint PATH",
        trained.sampler,
        "Begun anew.",
        "The system message is set.",
        "There is no",
    ):
        assert said in done.out
    assert trained.external not in done.out


def test_what_goes_wrong_does_not_end_the_conversation(talk: Talk):
    done = talk(
        "/fly", "/temperature hot", "/checkpoint huge", "/max-tokens 100000", "hello", "/save nowhere/x",
        "/max-tokens 3", "hi",
    )  # fmt: skip
    assert done.code == 1
    assert done.err.count("\n") == 5
    assert "nowhere/x: No such file" in done.err
    assert "no command '/fly'" in done.err
    assert done.out.count(" tokens/s]") == 1


@pytest.mark.parametrize("watched", [True, False])
def test_at_a_terminal(
    real: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], watched: bool
):
    said = iter(["hello", "/fly"])

    def ask(prompt: str) -> str:
        assert prompt == ("\n> " if watched else "")
        try:
            return next(said)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: watched, raising=False)
    monkeypatch.setattr(builtins, "input", ask)
    done = real("chat", "--max-tokens", "3")
    assert done.code == 0
    assert "tokens/s]" in done.out
    assert done.err.count("\n> ") == (0 if watched else 3)
