"""What both sides read off the wire: protobuf and JSON, packed bodies, events, paths, headers."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any

import msgspec
import numpy as np
import zstandard

from tests.contract import captured
from tests.contract.full_bodies import FULL
from tinkex import types
from tinkex.errors import APIError, APIResponseValidationError, InvalidArgumentError
from tinkex.net.answers import error_from
from tinkex.net.caller import read_answer
from tinkex.net.sse import SseDecoder
from tinkex.net.transport import Request, Response
from tinkex.server.api_examples import RESPONSES, RESULTS
from tinkex.types.topk_logprobs import TopkLogprobs
from tinkex.wire import bodies, headers, jsonbody, passes, paths, results, samples, tensors, zstd
from tinkex.wire import tinker_public_pb2 as pb
from tinkex.wire.routes import ROUTES

from .mutation import changed, damaged, json_text, message
from .running import Target

TENSOR = types.TensorData
INVALID = (InvalidArgumentError,)
LIMIT = 1 << 20


def _tensors() -> list[types.TensorData]:
    sparse = {"shape": [2, 3], "sparse_crow_indices": [0, 1, 2], "sparse_col_indices": [2, 0]}
    return [
        TENSOR([1, 2, 3], "int64", [3]),
        TENSOR([0.5, -1.0, 2.0, 4.0], "float32", [2, 2]),
        TENSOR([0.5, 0.25], "float32", **sparse),  # type: ignore[arg-type]
    ]


# ---- protobuf


@functools.cache
def pass_requests() -> tuple[bytes, ...]:
    """Passes as we write them, and one the official SDK wrote."""
    chunks: list[Any] = [types.EncodedTextChunk(tokens=[1, 2, 3])]
    inputs = dict(zip(("target_tokens", "weights", "extra"), _tensors(), strict=True))
    image = types.ImageChunk(data=b"\x89PNG", format="png", expected_tokens=5)
    span = types.SampledProvenanceSpan(sequence_id="s:0", offset=1, length=2)
    plain = types.Datum(types.ModelInput(chunks=chunks), inputs)
    rich = types.Datum(types.ModelInput(chunks=[*chunks, image]), inputs, [span], [span])
    config = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    return (
        passes.encode_request(passes.PassRequest("m:train:0", 1, [plain], "cross_entropy")),
        passes.encode_request(passes.PassRequest("m:train:0", 2, [plain, rich], "ppo", config, True)),
        passes.encode_request(passes.PassRequest("m", 3, [rich], "custom", {"loss_id": "x", "a": 1.0})),
        base64.b64decode(captured.FORWARD_BACKWARD),
    )


@functools.cache
def _outputs() -> tuple[bytes, ...]:
    row = {"logprobs": _tensors()[1], "ids": _tensors()[0]}
    made = types.ForwardBackwardOutput("ArrayRecord", [row, row], {"loss:sum": 1.5})
    one = types.ForwardBackwardOutput("ArrayRecord", [{"logprobs": TENSOR([0.5], "float32", [1])}] * 3, {})
    return (
        passes.encode_output(made),
        passes.encode_output(one),
        base64.b64decode(captured.FORWARD_BACKWARD_OUTPUT),
    )


@functools.cache
def _sampled() -> types.SampleResponse:
    topk = TopkLogprobs(np.array([[1, 2], [3, 4]], np.int32), np.array([[-1, -2], [-3, -4]], np.float32))
    sequence = types.SampledSequence(
        "length", "q:0", np.array([5, 6], np.int32), np.array([-0.5, -1], np.float32), topk
    )
    alternatives = types.PromptAltTokens(
        TENSOR([1, 2], "int64", [2, 1]), TENSOR([0.5, 1], "float32", [2, 1])
    )
    scores = np.array([np.nan, -1, -2], np.float32)
    return types.SampleResponse([sequence], scores, topk, TENSOR([1.0], "float32", [1]), 3, alternatives)


@functools.cache
def _samples() -> tuple[bytes, ...]:
    return samples.encode_sample_response(_sampled()), base64.b64decode(captured.SAMPLE_RESPONSE)


def _read_tensor(data: bytes) -> object:
    from google.protobuf.message import DecodeError

    try:
        read = pb.Tensor.FromString(data)
    except DecodeError as problem:
        raise InvalidArgumentError(str(problem)) from None
    return tensors.from_message(read)


def _whole(response: types.SampleResponse) -> None:
    """Look at everything: arrays become lists when asked for."""
    for sequence in response.sequences:
        assert len(sequence.tokens) >= 0
        assert sequence.logprobs is None or isinstance(sequence.logprobs, list)
        assert sequence.topk_logprobs is None or isinstance(sequence.topk_logprobs, list)
    assert response.prompt_logprobs is None or isinstance(response.prompt_logprobs, list)
    assert response.topk_prompt_logprobs is None or isinstance(response.topk_prompt_logprobs, list)


# ---- JSON


def _record(kind: Any, corpus: Sequence[bytes], name: str) -> Target:
    return Target(name, lambda: corpus, functools.partial(jsonbody.decode, kind), INVALID, json_text, 0.4)


def _requests() -> list[Target]:
    """A target for each body a server reads."""
    found = []
    for name, body in FULL.items():
        corpus = [json.dumps(body).encode()]
        corpus += [sent.encode() for _, path, sent in captured.REQUESTS_0_36 if path.endswith(f"/{name}")]
        found.append(_record(ROUTES[name].server_request, corpus, f"json request {name}"))
    return found


def _answers() -> list[Target]:
    """A target for each answer and result a client reads as JSON."""
    held: dict[str, tuple[Any, list[bytes]]] = {}
    for name, route in ROUTES.items():
        for kind, examples in ((route.response, RESPONSES), (route.result, RESULTS)):
            if kind is not None and kind.__name__ not in ("SampleResponse", "ForwardBackwardOutput"):
                found = held.setdefault(kind.__name__, (kind, []))[1]
                found.append(json.dumps(examples.get(name, _BARE.get(kind.__name__, {}))).encode())
    made = []
    for name, (kind, corpus) in held.items():

        def read(data: bytes, kind: Any = kind) -> object:
            return read_answer(kind, Response(200, {}, data))

        errors = (APIResponseValidationError,)
        given = functools.partial(list, corpus)
        made.append(Target(f"json answer {name}", given, read, errors, json_text, 0.2))
    return made


_BARE: dict[str, Any] = {
    "CreateCustomLossResponse": {"loss_id": "l", "type": "create_custom_loss"},
    "UnloadModelResponse": {"model_id": "m", "type": "unload_model"},
}


def _read_output(data: bytes) -> object:
    return results.read_output(jsonbody.parse(data))


def _read_samples(data: bytes) -> object:
    read = results.read_samples(jsonbody.parse(data), ["a"])
    _whole(read)
    return read


# ---- packed bodies


@functools.cache
def _packed() -> tuple[bytes, ...]:
    stepped = zstandard.ZstdCompressor(level=1).compressobj()
    bomb = b"".join([*(stepped.compress(bytes(1 << 20)) for _ in range(64)), stepped.flush()])
    stated = zstandard.ZstdCompressor(level=1).compress(bytes(1 << 26))
    skipped = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    plain = zstd.compress(pass_requests()[1] * 30)
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(pass_requests()[0])
    checked = zstandard.ZstdCompressor(write_checksum=True).compress(b"{}" * 300)
    return plain, unsized, checked, bomb, stated, skipped + plain, zstd.compress(b"")


def _unpack(data: bytes) -> object:
    made = zstd.decompress(data, LIMIT)
    assert len(made) <= LIMIT
    return made


# ---- events, paths, headers


def _events() -> list[bytes]:
    tokens = json.dumps({"sequence": 0, "tokens": [1, 2], "logprobs": [-1.0, -2.0]}).encode()
    return [
        b": hello\n\nevent: tokens\ndata: " + tokens + b"\n\n",
        b"\xef\xbb\xbfid: 1\r\nevent: done\r\ndata: {\r\ndata: }\r\n\r\n",
        b"data\ndata:\n\nretry: 10\n\nevent: error\rdata: " + b'{"error":"x","category":"user"}' + b"\r\r",
    ]


def _feed(data: bytes) -> object:
    """The events of a stream: the same however it is cut."""
    cut = Random(len(data))
    decoder, pieces, at = SseDecoder(1 << 16), [], 0
    while at < len(data):
        size = cut.choice((1, 2, 7, 64, 4096))
        pieces += decoder.feed(data[at : at + size])
        at += size
    assert pieces == SseDecoder(1 << 16).feed(data)
    for event in pieces:
        if event.event in ("tokens", "done", "error"):
            kind: Any = {"tokens": bodies.TokensEvent, "error": bodies.ErrorEvent}.get(event.event)
            read = jsonbody.parse(event.data.encode())
            if kind is None:
                results.read_samples(read)
            else:
                jsonbody.convert(kind, read)
    return pieces


def _path(data: bytes) -> object:
    text = data.decode("utf-8", "surrogateescape")
    parsed = paths.parse(text)
    made = f"tinker://{parsed.training_run_id}/{parsed.checkpoint_id}"
    assert made == text
    paths.check_name(parsed.checkpoint_id.split("/", 1)[1])
    return parsed


def _paths() -> list[bytes]:
    return [
        b"tinker://s-1:train:0/weights/step-1",
        b"tinker://s-1:train:0/sampler_weights/a.b:c=@+,~",
        b"tinker://r/external_weights/x",
    ]


def _header_lines() -> list[bytes]:
    return [
        b"retry-after: 12\nretry-after-ms: 3.5\nx-should-retry: true",
        b"retry-after: Fri, 31 Dec 1999 23:59:59 GMT",
        b"retry-after: 1e400\nretry-after-ms: nan",
    ]


def pairs_of(data: bytes) -> dict[str, str]:
    """Header lines as a mapping."""
    lines = data.decode("latin-1").split("\n")
    return {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }


def _retry(data: bytes) -> object:
    found = pairs_of(data)
    headers.should_retry(found)
    seconds = headers.retry_after(found, datetime(2026, 1, 1, tzinfo=UTC))
    assert seconds is None or 0 <= seconds <= headers.LONGEST_RETRY_AFTER
    return seconds


def _refusals() -> list[bytes]:
    return [
        b"400 " + json.dumps({"detail": "no"}).encode(),
        b"503 <html>busy</html>",
        b"422 [1,2]",
        b"429 ",
    ]


def _refusal(data: bytes) -> object:
    status, _, body = data.partition(b" ")
    number = int(status) if status.isdigit() and 400 <= int(status[:4]) < 600 else 400
    request = Request("POST", "http://127.0.0.1/api/v1/x")
    error = error_from(request, Response(number, {}, body), datetime(2026, 1, 1, tzinfo=UTC))
    assert isinstance(error, APIError)
    str(error)
    return msgspec.json.encode(str(error))


TARGETS = [
    Target("protobuf pass", pass_requests, passes.decode_request, INVALID, message, 3),
    Target("protobuf output", _outputs, passes.decode_output, INVALID, message, 3),
    Target(
        "protobuf samples", _samples, lambda data: _whole(samples.decode_sample_response(data)), INVALID,
        message, 3,
    ),
    Target(
        "protobuf tensor", lambda: [tensors.write_tensor(each).bytes() for each in _tensors()],
        _read_tensor, INVALID, message, 2,
    ),
    *_requests(),
    *_answers(),
    Target(
        "json output",
        lambda: [results.output_to_json(passes.decode_output(each)) for each in _outputs()],
        _read_output, INVALID, json_text,
    ),
    Target(
        "json samples", lambda: [results.samples_to_json(_sampled())], _read_samples, INVALID, json_text
    ),
    Target("zstd", _packed, _unpack, INVALID, damaged, 1),
    Target("sse", _events, _feed, (ValueError,), lambda rng, corpus: changed(rng, b"".join(
        rng.choice(corpus) for _ in range(rng.randrange(1, 4))), corpus), 1),
    Target("tinker path", _paths, _path, INVALID, damaged, 1),
    Target("retry headers", _header_lines, _retry, (), damaged, 0.5),
    Target("refusal", _refusals, _refusal, (), damaged, 1),
]  # fmt: skip
