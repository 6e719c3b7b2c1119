"""The event decoder: the same events however the bytes are cut and whatever ends the lines."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinkex.net.sse import ServerEvent, SseDecoder

STREAM = (
    "\ufeff: a comment first\n"
    "data: one\n\n"
    "event: tokens\nid: 7\ndata: {\"text\": \"größe – 漢字 🙂\"}\n\n"
    ":keep alive\n\n"
    "data: first line\ndata:second line\ndata:  third line\n\n"
    "event: nothing\n\n"
    "data\n\n"
    "data:\n\n"
    "retry: 1000\nunknown: field\nid\ndata: colon: inside\n\n"
    "data: never finished\n"
)  # fmt: skip
EVENTS = [
    ServerEvent("one"),
    ServerEvent('{"text": "größe – 漢字 🙂"}', "tokens", "7"),
    ServerEvent("first line\nsecond line\n third line", id="7"),
    ServerEvent("", id="7"),
    ServerEvent("", id="7"),
    ServerEvent("colon: inside", id=""),
]
ENDINGS = {"lf": "\n", "crlf": "\r\n", "cr": "\r"}


def decoded(*pieces: bytes) -> list[ServerEvent]:
    decoder = SseDecoder()
    return [event for piece in pieces for event in decoder.feed(piece)]


def mixed(text: str) -> str:
    """The same lines, each ended another way; an LF never follows a CR that ends a line of its own."""
    made, ends = "", ["\n", "\r\n", "\r"]
    for number, line in enumerate(text.split("\n")[:-1]):
        end = ends[number % 3]
        if not line and made.endswith("\r") and end == "\n":
            end = "\r\n"
        made += line + end
    return made


STREAMS = {name: STREAM.replace("\n", end).encode() for name, end in ENDINGS.items()}
STREAMS["mixed"] = mixed(STREAM).encode()
ALL = pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)


@ALL
def test_in_one_piece(stream: bytes):
    assert decoded(stream) == EVENTS


@ALL
def test_cut_in_two_at_every_byte(stream: bytes):
    for cut in range(len(stream) + 1):
        assert decoded(stream[:cut], stream[cut:]) == EVENTS, cut


@ALL
def test_cut_in_three_at_every_pair_of_neighbouring_bytes(stream: bytes):
    for cut in range(len(stream)):
        assert decoded(stream[:cut], stream[cut : cut + 1], stream[cut + 1 :]) == EVENTS, cut


@ALL
def test_byte_by_byte_with_empty_pieces_between(stream: bytes):
    pieces = [piece for index in range(len(stream)) for piece in (stream[index : index + 1], b"")]
    assert decoded(*pieces) == EVENTS


def test_an_event_is_given_as_soon_as_its_blank_line_is_there():
    decoder = SseDecoder()
    assert decoder.feed(b"data: 1\r") == []
    assert decoder.feed(b"\n\r") == [ServerEvent("1")]
    assert decoder.feed(b"\ndata: 2\n\n") == [ServerEvent("2")]


def test_cr_at_the_end_of_a_piece_ends_the_line_at_once():
    decoder = SseDecoder()
    assert decoder.feed(b"data: 1\r\r") == [ServerEvent("1")]
    assert decoder.feed(b"\r\n") == []
    assert decoder.feed(b"data: 2\r\n\r") == [ServerEvent("2")]


def test_a_byte_order_mark_counts_only_at_the_start():
    assert decoded(b"\xef", b"\xbb", b"\xbfdata: 1\n\n") == [ServerEvent("1")]
    assert decoded(b"\n\xef\xbb\xbfdata: 1\n\ndata: \xef\xbb\xbf2\n\n") == [ServerEvent("\ufeff2")]


def test_bytes_that_are_not_utf8_do_not_end_the_stream():
    assert decoded(b"data: a\xff\xfeb\n\ndata: 2\n\n") == [ServerEvent("a\ufffd\ufffdb"), ServerEvent("2")]


def test_an_id_with_a_null_is_ignored():
    assert decoded(b"id: 1\n\nid: x\0y\ndata: 2\n\n") == [ServerEvent("2", id="1")]


def test_only_cr_lf_and_crlf_end_lines():
    text = "a\u2028b\u0085c\x0bd\x0ce"
    assert decoded(f"data: {text}\n\n".encode()) == [ServerEvent(text)]


@pytest.mark.parametrize("long", [b"data: " + b"x" * 30, b"data: xxxxxxxxx\n" * 3, b"x" * 30])
def test_an_event_without_end_is_refused(long: bytes):
    with pytest.raises(ValueError, match="longer than 20"):
        SseDecoder(longest=20).feed(long)


def test_comments_and_finished_events_do_not_count_against_the_limit():
    decoder = SseDecoder(longest=20)
    for _ in range(50):
        assert decoder.feed(b": still here\n") == []
        assert decoder.feed(b"data: 1\n\n") == [ServerEvent("1")]


LINES = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=20)


@settings(max_examples=60, deadline=None)
@given(
    events=st.lists(
        st.tuples(st.lists(LINES, min_size=1, max_size=3), st.text("abc", max_size=3)), max_size=5
    ),
    end=st.sampled_from(sorted(ENDINGS.values())),
    cuts=st.lists(st.integers(0, 400), max_size=12),
)
def test_what_is_written_is_read(events: list[tuple[list[str], str]], end: str, cuts: list[int]):
    stream = "".join(
        f"event: {name}{end}" + "".join(f"data: {line}{end}" for line in lines) + end
        for lines, name in events
    ).encode()
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[left:right] for left, right in itertools.pairwise(places)]
    assert decoded(*pieces) == [ServerEvent("\n".join(lines), name or "message") for lines, name in events]
