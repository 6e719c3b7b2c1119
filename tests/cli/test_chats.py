"""Conversations as tokens, with several chat templates; and tokens as text, as soon as they can be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tinkex.cli.chats import ChatFormat, TextStream
from tinkex.cli.output import CommandError
from tinkex.cli.training_data import Chat, Dataset, order_of, split
from tinkex.client.plain_tokenizer import PlainTokenizer
from tinkex.testing import make_tiny_model

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

TALK = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "u1"},
    {"role": "assistant", "content": "a1"},
    {"role": "user", "content": "u2"},
    {"role": "assistant", "content": "a2"},
]
# The last answer begins with a thought, earlier ones do not.
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRICT = (
    "{% if messages[0].role != 'user' %}{{ raise_exception('users come first') }}{% endif %}"
    "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
)


def tokenizer(folder: Path, template: str | None = None) -> PlainTokenizer:
    place = make_tiny_model(folder)
    if template is not None:
        settings = json.loads((place / "tokenizer_config.json").read_text())
        settings["chat_template"] = template
        (place / "tokenizer_config.json").write_text(json.dumps(settings))
    return PlainTokenizer.from_folder(str(place))


@pytest.fixture
def plain(tmp_path: Path) -> PlainTokenizer:
    return tokenizer(tmp_path)


def trained(format: ChatFormat, example: tuple[list[int], list[float]]) -> list[str]:
    """The texts that are trained on."""
    texts, tokens = [], []
    for token, weight in [*zip(*example, strict=True), (0, 0.0)]:
        if weight:
            tokens.append(token)
        elif tokens:
            texts.append(format.tokenizer.decode(tokens))
            tokens = []
    return texts


def test_answers_and_their_ends_are_trained_on(plain: PlainTokenizer):
    format = ChatFormat(plain)
    (example,) = format.examples(TALK)
    assert trained(format, example) == ["a1<|im_end|>", "a2<|im_end|>"]
    assert plain.decode(example[0]) == plain.apply_chat_template(TALK, tokenize=False)
    (last,) = format.examples(TALK, "last")
    assert last[0] == example[0]
    assert trained(format, last) == ["a2<|im_end|>"]


def test_an_answer_ends_with_its_turn_whatever_else_ends_it(plain: PlainTokenizer):
    format = ChatFormat(plain)
    assert format.stops(()) == [plain.eos_token_id]
    assert format.stops(("x", "y")) == ["x", "y", "<|im_end|>"]


def test_what_follows_the_last_answer_is_left_out(plain: PlainTokenizer):
    format = ChatFormat(plain)
    (example,) = format.examples([*TALK, {"role": "user", "content": "u3"}])
    assert plain.decode(example[0]).endswith("a2<|im_end|>\n")
    assert format.examples(TALK[:2]) == []


def test_a_template_that_writes_the_last_answer_otherwise(tmp_path: Path):
    format = ChatFormat(tokenizer(tmp_path, THINKING))
    first, second = format.examples(TALK)
    assert trained(format, first) == ["<think></think>a1<|im_end|>"]
    assert trained(format, second) == ["<think></think>a2<|im_end|>"]
    assert "<think></think>a1" not in format.tokenizer.decode(second[0])
    assert len(format.examples(TALK, "last")) == 1


def test_a_prompt_ends_where_the_answer_begins(plain: PlainTokenizer):
    format = ChatFormat(plain)
    prompt = format.prompt(TALK[:2])
    (example,) = format.examples(TALK[:3])
    assert example[0][: len(prompt)] == prompt
    assert not any(example[1][: len(prompt)])
    assert format.end == [258]


def test_without_a_template(plain: PlainTokenizer):
    plain.chat_template = None
    with pytest.raises(CommandError, match="no chat template"):
        ChatFormat(plain)


def test_a_template_that_refuses_is_told_with_the_line(tmp_path: Path):
    format = ChatFormat(tokenizer(tmp_path, STRICT))
    with pytest.raises(
        CommandError, match="line 7: the chat template does not take this conversation: users"
    ):
        Dataset.of([Chat(7, TALK)], format, "all", None)


def test_long_conversations_are_cut_or_dropped(plain: PlainTokenizer):
    format = ChatFormat(plain)
    whole = Dataset.of([Chat(1, TALK)], format, "all", None)
    (datum,) = whole.everything().data
    assert (whole.cut, whole.dropped) == (0, 0)
    assert whole.counted == [6.0]
    assert whole.tokens == [datum.model_input.length]
    exact = Dataset.of([Chat(1, TALK)], format, "all", datum.model_input.length)
    assert (exact.cut, exact.counted) == (0, [6.0])
    cut = Dataset.of([Chat(1, TALK)], format, "all", datum.model_input.length - 2)
    assert (cut.cut, cut.counted) == (1, [5.0])  # without the end of the last answer
    none = Dataset.of([Chat(1, TALK), Chat(2, TALK[:2])], format, "all", 5)
    assert (len(none), none.dropped) == (0, 2)


def test_orders_are_the_same_whenever_they_are_asked_for():
    assert sorted(order_of(10, 1, 0)) == list(range(10))
    order_of.cache_clear()
    assert order_of(10, 1, 0) == order_of(10, 1, 0)
    assert order_of(10, 1, 0) != order_of(10, 1, 1)
    assert order_of(10, 1, 0) != order_of(10, 2, 0)


def test_splits():
    chats = [Chat(line, []) for line in range(20)]
    for share, held in ((0.1, 2), (0.001, 1), (5.0, 5)):
        train, test = split(chats, share, 3)
        assert len(test) == held
        assert sorted(each.line for each in train + test) == list(range(20))
    with pytest.raises(CommandError, match="leaves none"):
        split(chats, 20.0, 3)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_text_comes_in_whole_characters(plain: PlainTokenizer, size: int):
    text = "größe 🙂 日本 end"
    tokens = plain.encode(text)
    stream = TextStream(plain)
    pieces = [stream.add(tokens[at : at + size]) for at in range(0, len(tokens), size)]
    assert "".join(pieces) + stream.add([], last=True) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_that_never_ends_is_shown_at_the_end(plain: PlainTokenizer):
    tokens = plain.encode("🙂")[:2]
    stream = TextStream(plain)
    assert stream.add(tokens) == ""
    assert "\ufffd" in stream.add([], last=True)
