"""`tinkex sample` on a real server."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from tests.matrix.serving import Served
from tinkex.testing import make_tiny_model

from .conftest import MISSING, Command, Fake, Trained
from .running import spawn


def test_a_prompt_is_continued(real: Command):
    done = real("sample", "Once upon a time", "--max-tokens", "5", "--seed", "3")
    assert (done.code, done.err) == (0, "")
    assert done.out == real("sample", "Once upon a time", "--max-tokens", "5", "--seed", "3").out
    assert done.out == real("sample", "Once upon a time", "--max-tokens", "5", "--seed", "3", "-q").out


def test_everything_about_the_samples(real: Command, served: Served):
    done = real(
        "sample", "abc", "--model", served.model, "-n", "3", "--max-tokens", "4", "--seed", "1", "--json",
        "--temperature", "0.5", "--top-p", "0.9", "--top-k", "50", "--logprobs", "--topk-logprobs", "2",
        "--prompt-logprobs", "--topk-prompt-logprobs", "2",
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    assert done.data["model"] == served.model
    (result,) = done.data["results"]
    assert (result["prompt"], result["prompt_tokens"]) == ("abc", 3)
    assert len(result["sequences"]) == 3
    for sequence in result["sequences"]:
        assert 1 <= len(sequence["tokens"]) <= 4
        assert len(sequence["logprobs"]) == len(sequence["topk_logprobs"]) == len(sequence["tokens"])
        assert sequence["stop_reason"] in ("stop", "length")
    assert result["prompt_logprobs"][0] is None
    assert len(result["topk_prompt_logprobs"]) == 3
    assert done.data["tokens"] == sum(len(each["tokens"]) for each in result["sequences"])


def test_several_samples_for_people(real: Command):
    done = real("sample", "abc", "-n", "2", "--max-tokens", "3", "--seed", "1")
    assert done.out.splitlines()[0] == "--- sample 1"
    assert "--- sample 2" in done.out


def test_prompts_from_files_and_pipes(real: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    words = ("--max-tokens", "4", "--seed", "2", "--json")
    expected = real("sample", "from a file", *words).data["results"]
    (tmp_path / "p.txt").write_text("from a file")
    assert real("sample", "-i", str(tmp_path / "p.txt"), *words).data["results"] == expected
    for more in ([], ["--input", "-"]):
        monkeypatch.setattr(sys, "stdin", io.StringIO("from a file"))
        assert real("sample", *more, *words).data["results"] == expected


def test_a_line_of_a_file_may_hold_other_ends_of_lines(real: Command, tmp_path: Path):
    text = "one\u2028two\x85three\x0bfour"
    (tmp_path / "p.jsonl").write_bytes(json.dumps({"prompt": text}, ensure_ascii=False).encode() + b"\r\n")
    done = real("sample", "-i", str(tmp_path / "p.jsonl"), "--max-tokens", "1", "--json")
    assert [each["prompt"] for each in done.data["results"]] == [text]


def test_many_prompts_keep_their_order(real: Command, tmp_path: Path):
    file = tmp_path / "many.jsonl"
    lines = [{"prompt": f"number {n}"} for n in range(9)] + [
        {"messages": [{"role": "user", "content": "hi"}]}
    ]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    done = real("sample", "-i", str(file), "--max-tokens", "2", "--json", "--concurrency", "3")
    assert (done.code, done.err) == (0, "")
    results = done.data["results"]
    assert [each["prompt"] for each in results[:9]] == [f"number {n}" for n in range(9)]
    assert results[9]["prompt_tokens"] == len("<user\nhi>\n<assistant\n")  # one token for each marker
    assert "--- prompt 2, sample 1" in real("sample", "-i", str(file), "--max-tokens", "2").out


def test_a_message_is_answered_by_the_chat_template(real: Command):
    plain = real("sample", "hi", "--max-tokens", "2", "--json").data["results"][0]
    chat = real("sample", "hi", "--chat", "--system", "Be short.", "--max-tokens", "2", "--json").data[
        "results"
    ][0]
    assert plain["prompt_tokens"] == 2
    assert chat["prompt_tokens"] == len("<system\nBe short.>\n<user\nhi>\n<assistant\n")


def test_a_stop_text_ends_a_sample(real: Command):
    whole = real("sample", "abc", "--max-tokens", "30", "--seed", "5", "--json").data["results"][0][
        "sequences"
    ][0]
    middle = next(each for each in whole["text"][3:] if each.isascii() and each.isprintable())
    cut = real(
        "sample",
        "abc",
        "--max-tokens",
        "30",
        "--seed",
        "5",
        "--stop",
        middle,
        "--stop",
        "never said",
        "--json",
    )
    (sequence,) = cut.data["results"][0]["sequences"]
    assert sequence["stop_reason"] == "stop"
    assert len(sequence["tokens"]) < len(whole["tokens"])
    assert sequence["text"].endswith(middle)


@pytest.mark.parametrize("kind", ["sampler", "state"])
def test_from_a_checkpoint(real: Command, trained: Trained, kind: str):
    path = getattr(trained, kind)
    words = ("abc", "--temperature", "0", "--max-tokens", "6", "--logprobs", "--json")
    done = real("sample", *words, "--checkpoint", path)
    assert (done.code, done.err) == (0, "")
    assert done.data["model"] == path
    base = real("sample", *words).data["results"][0]["sequences"][0]
    assert done.data["results"][0]["sequences"][0]["logprobs"] != base["logprobs"]


def test_what_cannot_be_sampled_from(real: Command, trained: Trained):
    done = real("sample", "x", "--checkpoint", trained.external)
    assert done.code == 1
    assert "is an export" in done.err
    done = real("sample", "x", "--model", "huge")
    assert done.code == 1
    assert "the server has no model 'huge'; it has tiny/model" in done.err
    assert real("sample", "x", "--checkpoint", f"tinker://{trained.run}/sampler_weights/no").code == 1


def test_which_model_is_asked_where_there_are_several(fake: Fake):
    done = fake("sample", "x")
    assert done.code == 2
    assert "which model? The server has Qwen/Qwen3-4B" in done.err


def test_some_prompts_may_fail(real: Command, tmp_path: Path):
    file = tmp_path / "many.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": "a" * length}) for length in (5, 9000, 6)))
    done = real("sample", "-i", str(file), "--max-tokens", "2", "--json")
    assert done.code == 1
    good, bad, fine = done.data["results"]
    assert good["sequences"]
    assert fine["sequences"]
    assert "sequences" not in bad
    assert "9000" in bad["error"]
    assert done.problem["error"].startswith("prompt 2: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 1 is not JSON"),
        ('{"prompt": "a"}\n{"text": 1}', "line 2 has neither"),
        ("\n", "holds no prompts"),
    ],
)
def test_a_file_that_holds_no_prompts(cli: Command, tmp_path: Path, text: str, said: str):
    (tmp_path / "p.jsonl").write_text(text)
    done = cli("sample", "-i", str(tmp_path / "p.jsonl"))
    assert (done.code, done.out) == (1, "")
    assert said in done.err


def test_what_was_not_understood(cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert cli("sample", "a", "-i", str(tmp_path)).code == 2
    assert cli("sample", "a", "--model", "x", "--checkpoint", "y").code == 2
    assert cli("sample", "a", "--checkpoint", "y").code == 2
    assert cli("sample", "-i", str(tmp_path / "missing")).code == 1
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert "there is no prompt" in cli("sample").err


@pytest.mark.parametrize(("option", "value"), [("--temperature", "-1"), ("--top-p", "7"), ("-n", "0")])
def test_settings_that_cannot_be(real: Command, option: str, value: str):
    done = real("sample", "x", option, value)
    assert (done.code, done.out) == (1, "")
    assert done.err.count("\n") == 1


def test_nothing_is_left_for_an_answer(real: Command):
    done = real("sample", "a" * 8192)
    assert done.code == 1
    assert "leave no room in a context of 8,192" in done.err


def test_a_local_server_has_the_model_the_command_is_for(tmp_path: Path):
    if MISSING:
        pytest.skip(f"a server needs {', '.join(MISSING)}")
    make_tiny_model(tmp_path / "shelf" / "tiny")
    places = {"TINKEX_MODELS": str(tmp_path / "shelf"), "TINKEX_STATE": str(tmp_path / "state")}
    where = ("--base-url", "local", "--model", "tiny")
    done = spawn("sample", "hi", "--max-tokens", "2", "--json", *where, environ={**os.environ, **places})
    assert (done.code, done.err) == (0, "")
    assert done.data["model"] == "tiny"
