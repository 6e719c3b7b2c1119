"""The model inside the package: its size, its tokens, its card, and what it can do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinkex
from tinkex import models, types
from tinkex.client.local_server import NEEDED
from tinkex.demo.measuring import replies, rewards
from tinkex.models.facts import read_facts

FOLDER = models.EMBEDDED / "nano"
MISSING = [name for name in NEEDED if find_spec(name) is None]
QWEN3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / name).read_text("utf-8"))
    return found


# ---- its files


def test_it_is_small_enough_to_travel_in_the_package():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 8_000_000


def test_it_is_a_small_qwen3():
    config, facts = read("config.json"), read_facts("nano", FOLDER)
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert (config["num_hidden_layers"], config["hidden_size"]) == (6, 192)
    assert config["tie_word_embeddings"] is True
    assert config["max_position_embeddings"] >= 512
    assert facts.parameters is not None
    assert 2_500_000 < facts.parameters < 3_500_000


def test_its_tokens_are_made_as_qwen3_s():
    tokenizer = read("tokenizer.json")
    split, bytes_ = tokenizer["pre_tokenizer"]["pretokenizers"]
    assert split["pattern"]["Regex"] == QWEN3_SPLIT
    assert (bytes_["type"], bytes_["use_regex"]) == ("ByteLevel", False)
    assert tokenizer["normalizer"] == {"type": "NFC"}
    assert len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"]) == 4096
    added = {each["content"]: each["id"] for each in tokenizer["added_tokens"]}
    assert {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>"} <= set(
        added
    )
    assert read("config.json")["eos_token_id"] == added["<|im_end|>"]


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_its_tokens(text: str):
    import unicodedata

    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == unicodedata.normalize("NFC", text)


def test_the_card_says_what_it_is_made_of():
    card = (FOLDER / "MODEL_CARD.md").read_text("utf-8")
    for heading in ("What it does", "Figures", "Training", "Limits", "Samples (greedy)"):
        assert f"\n## {heading}\n" in card
    assert "Licence: Apache-2.0" in card
    assert "{{" not in card
    assert f"{read_facts('nano', FOLDER).parameters:,} parameters" in card


# ---- what it can do


@pytest.fixture
def sampler(local_state: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tinkex.SamplingClient]:
    if MISSING:
        pytest.skip(f"a server needs {', '.join(MISSING)}")
    monkeypatch.setenv("TINKEX_STATE", str(local_state))
    with tinkex.ServiceClient.local("nano", telemetry=False) as client:
        yield client.create_sampling_client(base_model="nano")


def say(sampler: tinkex.SamplingClient, turns: list[str], *, most: int = 40, warmth: float = 0.0) -> str:
    """The answer to the last of these turns of a user, after its own answers to the others."""
    chat: list[dict[str, Any]] = []
    for turn in turns:
        chat.append({"role": "user", "content": turn})
        prompt = sampler.apply_chat_template(chat, add_generation_prompt=True)
        params = types.SamplingParams(max_tokens=most, temperature=warmth, seed=1)
        sequence = sampler.sample(prompt, 1, params).result().sequences[0]
        assert sequence.stop_reason == "stop", "it ends its turns"
        chat.append({"role": "assistant", "content": sampler.decode(sequence, skip_special_tokens=True)})
    return str(chat[-1]["content"])


def test_it_chats_in_turns_as_its_card_shows(sampler: tinkex.SamplingClient):
    shown = (FOLDER / "MODEL_CARD.md").read_text("utf-8").partition("--- greedy ---")[2]
    for talk in shown.partition("```")[0].split("--- greedy ---")[:2]:
        asked, answered = (re.findall(rf"^{who}: (.*)$", talk, re.M) for who in ("user", "nano"))
        assert len(asked) == len(answered) >= 3
        assert say(sampler, asked) == answered[-1]


def test_it_tells_a_short_story(sampler: tinkex.SamplingClient):
    story = say(sampler, ["Tell me a story about a cat."], most=400, warmth=0.7)
    sentences = re.split(r"(?<=[.!?])[\"']?\s+", story)
    assert 50 < len(story.split()) < 350
    assert story.rstrip("\"'").endswith((".", "!", "?"))
    assert len(set(sentences)) >= 0.9 * len(sentences)


def test_half_of_its_sums_are_right_so_that_there_is_something_to_learn(sampler: tinkex.SamplingClient):
    sums = [(a, b) for a in range(0, 20, 3) for b in range(1, 21, 2)]
    share = rewards(replies(sampler, sums, 4), sums).mean()
    assert 0.4 <= share <= 0.65
