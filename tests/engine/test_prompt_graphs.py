"""How prompts are laid out for a recorded pass."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tinkex.engine.prompt_graphs import MOST_TOKENS, laid_out, rounded, rounded_length, rounded_prompts


@given(st.integers(1, MOST_TOKENS))
def test_room_holds_the_tokens_and_is_one_of_few_sizes(tokens):
    room = rounded(tokens)
    assert tokens <= room <= max(2 * tokens, 32)
    assert room in {32, 64, 128, 256, *range(512, MOST_TOKENS + 1, 256)}
    assert rounded(room) == room


@given(st.integers(0, MOST_TOKENS))
def test_lengths_are_rounded_to_few(longest):
    room = rounded_length(longest)
    assert longest <= room
    assert room in {256, 512, 1024, 2048}
    assert room == 256 or room < 2 * longest


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20), st.integers(0, 100))
def test_prompts_keep_their_bounds_and_padding_is_one_more(lengths, spare):
    tokens = sum(lengths)
    most = rounded_prompts(len(lengths))
    assert len(lengths) <= most
    given_3t = np.arange(3 * tokens).reshape(3, tokens)
    padded, ends = laid_out(given_3t, lengths, tokens + spare, most, 999)
    assert (padded[:, :tokens] == given_3t).all()
    assert (padded[0, tokens:] == 0).all()
    assert (padded[2, tokens:] == 999).all()
    assert padded[1, tokens:].tolist() == list(range(spare))
    spans = np.diff(ends).tolist()
    assert spans == [*lengths, *[0] * (most - len(lengths)), spare]
    assert ends[0] == 0
    assert len(ends) == most + 2
