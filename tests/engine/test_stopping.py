"""Stops: exactly the listed ones, strings across token borders, lengths with both numbers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinkex.engine.faults import UserFault
from tinkex.engine.messages import LENGTH, STOP, SamplingParams
from tinkex.engine.stopping import StopRule, StopWatch, token_budget


def byte_text(tokens):
    """A byte-level tokenizer's decoder: unfinished characters come out as U+FFFD."""
    return bytes(tokens).decode("utf-8", errors="replace")


def watch(stop, budget=1000, pieces=byte_text):
    return StopWatch(StopRule.of(SamplingParams(stop=stop), [7], readable=True), budget, pieces)


def run(stopper, tokens):
    for token in tokens:
        reason = stopper.see(token)
        if reason is not None:
            return stopper.tokens, reason
    return stopper.tokens, None


def test_without_stop_the_end_of_text_token_stops_and_is_kept_once():
    assert run(watch(None), [1, 2, 7, 7, 3]) == ([1, 2, 7], STOP)


def test_an_empty_list_disables_the_end_of_text_token_too():
    assert run(watch((), budget=4), [1, 7, 7, 2, 3]) == ([1, 7, 7, 2], LENGTH)


def test_listed_tokens_take_the_place_of_the_end_of_text_token():
    assert run(watch((5,)), [1, 7, 5, 9]) == ([1, 7, 5], STOP)


def test_a_stop_at_the_last_allowed_token_is_a_stop():
    assert run(watch((5,), budget=2), [1, 5]) == ([1, 5], STOP)


def test_tokens_and_strings_mix():
    assert run(watch((5, "ab")), b"xxab")[1] == STOP
    assert run(watch((5, "ab")), [120, 5])[1] == STOP


@settings(max_examples=300, deadline=None)
@given(
    st.text(alphabet="aβ\n🙂 ", max_size=30),
    st.lists(st.text(alphabet="aβ\n🙂 ", min_size=1, max_size=4), min_size=1),
)
def test_the_sequence_ends_with_the_byte_that_completes_a_string(text, stops):
    tokens, reason = run(watch(tuple(stops)), text.encode())
    kept = byte_text(tokens)
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if ends:
        assert (kept, reason) == (text[: min(ends)], STOP)
        assert sum(kept.count(stop) for stop in stops if kept.endswith(stop)) >= 1
    else:
        assert (kept, reason) == (text, None)


def test_a_string_may_end_inside_a_token():
    vocabulary = ["He", "llo\n", "\nUs", "er: x", "tail"]
    stopper = watch(("\n\nUser:",), pieces=lambda tokens: "".join(vocabulary[t] for t in tokens))
    assert run(stopper, [0, 1, 2, 3, 4]) == ([0, 1, 2, 3], STOP)


def test_decoders_that_drop_a_leading_space_are_given_context():
    words = [" stop", " it", " now"]

    def decode(tokens):
        return "".join(words[t] for t in tokens).removeprefix(" ")

    assert run(watch(("p it",), pieces=decode), [2, 0, 1, 2]) == ([2, 0, 1], STOP)


def test_bytes_that_are_no_text_are_not_read_again_and_again():
    read = []

    def pieces(tokens):
        read.append(len(tokens))
        return byte_text(tokens)

    drawn = [0x80] * 500 + [0xE2, 0x82] * 200 + list("\u20acnd".encode())
    tokens, reason = run(watch(("\u20acnd",), pieces=pieces), [*drawn, 5])
    assert (tokens, reason) == (drawn, STOP)
    assert max(read) < 64


def test_strings_without_a_tokenizer_are_refused():
    with pytest.raises(UserFault, match="tokenizer"):
        StopRule.of(SamplingParams(stop=("x",)), [], readable=False)
    with pytest.raises(UserFault, match="empty"):
        StopRule.of(SamplingParams(stop=("",)), [], readable=True)


def test_budgets_reach_the_context_and_not_past_it():
    assert token_budget(500, None, 512) == 12
    assert token_budget(500, 12, 512) == 12
    with pytest.raises(UserFault, match="prompt 900 \\+ max_tokens 200 > context 512"):
        token_budget(900, 200, 512)
    with pytest.raises(UserFault, match="no tokens"):
        token_budget(0, 5, 512)
    with pytest.raises(UserFault, match="negative"):
        token_budget(3, -1, 512)
