"""The byte codec: what goes in comes out, and foreign bytes never do more than raise `CodecError`."""

import dataclasses
import json
import typing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tinkex.engine import codec, messages
from tinkex.engine.codec import CodecError, decode, encode

DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
]
arrays = st.sampled_from(DTYPES).flatmap(
    lambda name: hnp.arrays(name, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
)
ints = st.integers(-(1 << 63), (1 << 64) - 1)
texts = st.text(max_size=12)
scalars = st.one_of(st.none(), st.booleans(), ints, st.floats(), texts)
sparse = st.builds(messages.SparseRows, arrays, arrays, arrays, st.tuples(ints, ints))


def of(hint):
    """A strategy for a field's annotation."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return records(hint)
    if hint == messages.Array:
        return arrays
    if origin is tuple:
        return (
            st.lists(of(args[0]), max_size=3).map(tuple) if args[-1] is ... else st.tuples(*map(of, args))
        )
    if origin is dict:
        return st.dictionaries(texts, of(args[1]), max_size=3)
    if args:
        return st.one_of(*map(of, args))
    return {int: ints, str: texts, float: st.floats(), bool: st.booleans(), type(None): st.none()}[hint]


def records(kind):
    hints = typing.get_type_hints(kind, vars(messages))
    return st.builds(kind, **{field.name: of(hints[field.name]) for field in dataclasses.fields(kind)})


KINDS = [*typing.get_args(messages.Message)]


def same(left, right):
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if dataclasses.is_dataclass(left):
        return type(left) is type(right) and all(
            same(getattr(left, f.name), getattr(right, f.name)) for f in dataclasses.fields(left)
        )
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return type(left) is type(right) and (left == right or left != left)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_round_trip_of_every_message(kind):
    @settings(max_examples=25, deadline=None)
    @given(records(kind))
    def run(message):
        assert same(message, decode(encode(message)))

    run()


def test_every_message_carries_an_epoch():
    assert all("epoch" in kind.__slots__ for kind in KINDS)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data):
    with pytest.raises(CodecError):
        decode(data)


EXAMPLE = messages.Train(
    3,
    "r",
    (
        messages.TrainPart(
            "m",
            (messages.Datum(np.arange(5), {"weights": np.ones(5, np.float32)}),),
            "cross_entropy",
            {"beta": 0.5},
        ),
    ),
)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_messages_raise_or_stay_messages(data):
    raw = bytearray(encode(EXAMPLE))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        message = decode(bytes(raw))
    except CodecError:
        return
    assert type(message) in KINDS


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(encode(EXAMPLE)) - 1))
def test_cut_messages_are_refused(length):
    with pytest.raises(CodecError):
        decode(encode(EXAMPLE)[:length])


def packed(header):
    body = header if isinstance(header, bytes) else json.dumps(header).encode()
    return codec._PREFIX.pack(codec.MAGIC, len(body), codec._PREFIX.size + len(body)) + body


@pytest.mark.parametrize(
    "header",
    [
        ["Cancel", 1],
        ["Cancel", 1, "x", "y"],
        ["Cancel", "1", "x"],
        ["Cancel", True, "x"],
        ["Cancel", 1 << 70, "x"],
        ["Cancel", 1, ["x"]],
        ["Popen", "x"],
        ["SamplingParams", None, 1.0, -1, 1.0, None, None],
        ["Ready", 1, {}, ["<f4", 1 << 39]],
        ["Ready", 1, {}, ["<f4", -1]],
        ["Ready", 1, {}, ["<f4", True]],
        ["Ready", 1, {}, ["<f4", *[1] * 9]],
        ["Ready", 1, {}, ["|O", 0]],
        ["Ready", 1, {}, [["<f4"], 0]],
        ["Ready", 1, {}, None],
        ["Ready", 1, {"a": []}, ["<f4", 0]],
        ["Ready", 1, [], ["<f4", 0]],
        ["TrainDone", 1, "x", [["TrainPart", "m", [], "l", {}, False]]],
        ["TrainDone", 1, "x", [["PartFailure", "c"]]],
        ["TrainDone", 1, "x", [{}]],
        ["TrainDone", 1, "x", "y"],
        ["DropSampler", 1, "x", None],
        [["Cancel", 1, "x"]],
        {"Cancel": 1},
        "Cancel",
        None,
        [],
        b"[" * 100_000,
        b"9" * 5_000,
    ],
    ids=lambda header: str(header)[:30],
)
def test_hostile_headers_are_refused(header):
    with pytest.raises(CodecError):
        decode(packed(header))


def test_the_plainest_header_is_read():
    assert decode(packed(["Cancel", 1, "x"])) == messages.Cancel(1, "x")


def test_bytes_after_the_last_array_are_refused():
    raw = bytearray(encode(messages.Cancel(1, "x")) + b"tail")
    codec._PREFIX.pack_into(raw, 0, codec.MAGIC, codec._PREFIX.unpack_from(raw)[1], len(raw))
    with pytest.raises(CodecError, match="follow the last array"):
        decode(raw)


def test_arrays_are_read_in_place_and_only_read():
    raw = encode(messages.Sample(1, "r", "v", np.arange(1000, dtype=np.int32)))
    prompt = decode(raw).prompt
    assert not prompt.flags.writeable
    assert not prompt.flags.owndata


def test_odd_layouts_are_sent_as_values():
    step = messages.TokenStep(
        1,
        np.arange(10, dtype=">i8")[::2],
        np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3)),
        np.full((), 1.5, np.float32),
        np.empty(0, np.int64),
        np.empty((0, 4), np.uint8),
    )
    back = decode(encode(step))
    assert back.streams.tolist() == [0, 2, 4, 6, 8]
    assert back.tokens.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert back.logprobs.shape == ()
    assert back.reasons.shape == (0, 4)


@pytest.mark.parametrize(
    "message",
    [
        messages.Cancel(1 << 80, "x"),
        messages.Cancel("1", "x"),
        messages.Done(1, "x", {1: 2}),
        messages.Done(1, "x", {"a": object()}),
        messages.Sample(1, "x", "v", np.array(["text"])),
        messages.Sample(1, "x", "v", [1, 2]),
        messages.Sample(1, "x", "v", np.arange(3), params=messages.ScoreOptions()),
        messages.TrainDone(1, "x", [messages.PartFailure("user", "no")]),
        messages.TrainDone(1, "x", (messages.SamplingParams(),)),
        messages.SparseRows(np.ones(1), np.ones(1), np.ones(1), (1, 1)),
        object(),
    ],
    ids=range(11),
)
def test_what_cannot_be_sent_is_refused(message):
    with pytest.raises(CodecError):
        encode(message)


def test_the_field_that_is_wrong_is_named():
    part = messages.TrainPart("m", (messages.Datum(np.arange(2), {"weights": [1.0]}),), "l")
    with pytest.raises(CodecError, match=r"Train\.parts: TrainPart\.data: Datum\.inputs: .*cannot be list"):
        encode(messages.Train(1, "t", (part,)))


def test_any_text_can_be_sent():
    message = messages.Cancel(1, "\ud800 \0 \n \u2028 🙂")
    assert decode(encode(message)) == message


def streamed(frames, data, cuts):
    """Feed bytes in pieces of at most these lengths; the messages that come out."""
    view, found, turn = memoryview(data), [], 0
    while view:
        space = frames.space()
        assert len(space)
        count = min(len(space), len(view), cuts[turn % len(cuts)])
        space[:count] = view[:count]
        found += frames.filled(count)
        view, turn = view[count:], turn + 1
    return found


def padded(size):
    return messages.OptimStep(1, "x" * size, "m", {"learning_rate": 0.5})


def with_array(size):
    return messages.Sample(1, "s", "", np.arange(size, dtype=np.int64))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(st.integers(0, 3000).map(padded), st.integers(0, 3000).map(with_array)), max_size=12
    ),
    st.lists(st.integers(1, 9000), min_size=1, max_size=5),
    st.sampled_from([256, 4096, 1 << 18]),
)
def test_a_stream_is_cut_into_the_messages_it_was_made_of(sent, cuts, size):
    data = b"".join(codec.packed(sent))
    found = streamed(codec.Frames(size), data, cuts)
    assert len(found) == len(sent)
    assert all(map(same, sent, found))


def test_large_arrays_are_sent_as_they_are_and_received_in_place():
    big = np.arange(codec.LARGE, dtype=np.int64)
    small = messages.AskStats(1, "a")
    buffers = codec.packed([small, with_array(3), messages.Sample(1, "s", "", big), small, small])
    assert len(buffers) == 3
    assert np.shares_memory(np.frombuffer(buffers[1], np.uint8), big)
    frames = codec.Frames()
    found = streamed(frames, b"".join(buffers), [1 << 20])
    assert [type(message).__name__ for message in found] == [
        "AskStats",
        "Sample",
        "Sample",
        "AskStats",
        "AskStats",
    ]
    assert np.array_equal(found[2].prompt, big)


def test_what_came_before_garbage_is_still_handed_out():
    frames = codec.Frames()
    data = encode(messages.AskStats(1, "a")) + b"GET / HTTP/1.1\r\n\r\n"
    frames.space()[: len(data)] = data
    arriving = frames.filled(len(data))
    assert next(arriving).request_id == "a"
    with pytest.raises(CodecError, match="first bytes are wrong"):
        next(arriving)


def test_a_stream_does_not_promise_more_than_its_limit():
    data = encode(with_array(1000))
    assert streamed(codec.Frames(limit=len(data)), data, [100])
    with pytest.raises(CodecError, match=f"states {len(data)} bytes"):
        streamed(codec.Frames(limit=len(data) - 1), data, [100])
