"""A client without an SDK: plain HTTP requests and their answers, byte for byte."""

from __future__ import annotations

import http.client
import itertools
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from tinkex.wire import tinker_public_pb2 as pb

from .serving import KEY, Served

JSON = "application/json"
PROTOBUF = "application/x-protobuf"
MOST_POLLS = 120

# Tokens, targets and weights of a few examples; every token is below 60.
EXAMPLES = [
    ([2, 3, 5, 7], [3, 5, 7, 11], [0.0, 1.0, 1.0, 0.5]),
    ([4, 6, 8], [6, 8, 10], [1.0, 1.0, 2.0]),
    ([9, 1, 9, 1, 9], [1, 9, 1, 9, 1], [0.0, 0.0, 1.0, 1.0, 1.0]),
    ([20, 21, 22, 23], [21, 22, 23, 24], [1.0, 0.25, 1.0, 0.25]),
]
PROMPT = {"chunks": [{"tokens": [5, 6, 7], "type": "encoded_text"}]}
SAMPLE = {"prompt": PROMPT, "num_samples": 1, "sampling_params": {"max_tokens": 4, "seed": 3, "stop": []}}
STEP = {"learning_rate": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8}

_keys = itertools.count(1)


@dataclass(frozen=True)
class Answer:
    """One response."""

    status: int
    headers: dict[str, str]
    body: bytes = field(repr=False)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def binary(self) -> bool:
        return PROTOBUF in self.headers["content-type"]


class Wire:
    """Requests to one server with one key."""

    def __init__(self, server: Served, key: str | None = KEY) -> None:
        self.server = server
        self.key = key
        self._base = urlsplit(server.url)

    # ---- one request

    def call(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> Answer:
        """The answer to one request; a body of bytes is sent as it is, anything else as JSON."""
        raw = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        sent = {
            "Accept": JSON,
            "Content-Type": JSON,
            # A new key for every attempt, as the outer retry loop of an SDK makes.
            "X-Idempotency-Key": f"attempt-{next(_keys)}",
            **({} if self.key is None else {"X-API-Key": self.key}),
            **(headers or {}),
        }
        connection = http.client.HTTPConnection(self._base.hostname or "", self._base.port, timeout=60)
        try:
            connection.request(method, f"{self._base.path}/api/v1{path}", raw, sent)
            got = connection.getresponse()
            return Answer(got.status, {k.lower(): v for k, v in got.getheaders()}, got.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any = None, *, headers: dict[str, str] | None = None) -> Answer:
        return self.call("POST", path, body, headers=headers)

    def ok(self, path: str, body: Any, *, headers: dict[str, str] | None = None) -> Any:
        """The JSON of an answer that must be a success."""
        answer = self.post(path, body, headers=headers)
        assert answer.status == 200, (path, answer.status, answer.body[:500])
        return answer.json

    def ticket(self, path: str, body: Any, *, headers: dict[str, str] | None = None) -> str:
        """The id under which accepted work is polled for."""
        made = self.ok(path, body, headers=headers)["request_id"]
        assert isinstance(made, str)
        return made

    # ---- results

    def poll(self, ticket: str, *, binary: bool = False, **more: Any) -> Answer:
        """One poll, whatever comes of it."""
        accept = {"Accept": PROTOBUF} if binary else {}
        return self.post("/retrieve_future", {"request_id": ticket, **more}, headers=accept)

    def polls(self, ticket: str, *, binary: bool = False) -> list[Answer]:
        """Every answer until one is final."""
        seen = []
        for _ in range(MOST_POLLS):
            seen.append(self.poll(ticket, binary=binary))
            if seen[-1].status != 408:
                return seen
        raise AssertionError(f"{ticket} is still pending after {MOST_POLLS} polls")

    def outcome(self, ticket: str) -> Any:
        """The JSON that polling ends with: a result or a failure."""
        last = self.polls(ticket)[-1]
        assert last.status == 200, (ticket, last.status, last.body[:500])
        return last.json

    def result(self, ticket: str) -> Any:
        """The JSON of work that must have succeeded."""
        made = self.outcome(ticket)
        assert "error" not in made, made
        return made

    def done(self, path: str, body: Any) -> Any:
        """Submit, wait, and return the result."""
        return self.result(self.ticket(path, body))

    # ---- things to work with

    def session(self) -> str:
        body = {"tags": [], "user_metadata": {}, "sdk_version": "0.36.0", "type": "create_session"}
        return self.ok("/create_session", body)["session_id"]

    def model_request(self, session: str, number: int = 0) -> dict[str, Any]:
        return {
            "session_id": session,
            "model_seq_id": number,
            "base_model": self.server.model,
            "lora_config": {"rank": 4, "seed": 5},
            "type": "create_model",
        }

    def model(self, session: str | None = None, number: int = 0) -> str:
        """A model ready to train; all are alike at first."""
        return self.done("/create_model", self.model_request(session or self.session(), number))["model_id"]

    def sampler(self, session: str | None = None, number: int = 0) -> str:
        body = {
            "session_id": session or self.session(),
            "sampling_session_seq_id": number,
            "base_model": self.server.model,
        }
        return self.ok("/create_sampling_session", body)["sampling_session_id"]

    def submit_pass(self, model: str, number: int, examples: Any = None, **more: Any) -> str:
        """Submit a pass in protobuf."""
        body = pass_message(model, number, examples, **more).SerializeToString()
        return self.ticket("/forward_backward", body, headers={"Content-Type": PROTOBUF})

    def submit_step(self, model: str, number: int) -> str:
        body = {"model_id": model, "seq_id": number, "adam_params": STEP, "type": "optim_step"}
        return self.ticket("/optim_step", body)

    def submit_sample(self, sampler: str, number: int = 0, **more: Any) -> str:
        return self.ticket("/asample", {**SAMPLE, "sampling_session_id": sampler, "seq_id": number, **more})

    def look(self, model: str, number: int) -> list[list[float]]:
        """The logprobs of all examples with the model's weights of now."""
        return logprobs_of(self.result(self.submit_pass(model, number, forward_only=True)))


def pass_message(
    model: str,
    number: int,
    examples: Any = None,
    *,
    loss: str = "cross_entropy",
    forward_only: bool = False,
) -> pb.ForwardBackwardRequest:
    """A pass as SDKs from 0.25 on send it."""
    message = pb.ForwardBackwardRequest(
        model_id=model, seq_id=number, loss_fn=loss, forward_only=forward_only
    )
    for tokens, targets, weights in EXAMPLES if examples is None else examples:
        datum = message.data.add()
        datum.model_input.add().encoded_text.tokens = np.asarray(tokens, "<i4").tobytes()
        _fill(datum.loss_fn_inputs["target_tokens"], targets, "<i8", pb.DTYPE_INT64)
        if loss == "cross_entropy":
            _fill(datum.loss_fn_inputs["weights"], weights, "<f4", pb.DTYPE_FLOAT32)
        else:
            _fill(datum.loss_fn_inputs["advantages"], weights, "<f4", pb.DTYPE_FLOAT32)
            _fill(datum.loss_fn_inputs["logprobs"], [-2.0] * len(targets), "<f4", pb.DTYPE_FLOAT32)
    return message


def _fill(tensor: pb.Tensor, values: list[Any], dtype: str, tag: Any) -> None:
    tensor.dense = np.asarray(values, dtype).tobytes()
    tensor.dtype = tag
    tensor.shape.append(len(values))


def pass_json(examples: Any = None, *, old: bool = False) -> dict[str, Any]:
    """A pass's input as SDKs up to 0.24 send it; up to 0.16 without any `type`."""
    tag = {} if old else {"type": "encoded_text"}
    data = [
        {
            "model_input": {"chunks": [{"tokens": tokens, **tag}]},
            "loss_fn_inputs": {
                "target_tokens": {"data": targets, "dtype": "int64", "shape": [len(targets)]},
                "weights": {"data": weights, "dtype": "float32", "shape": [len(weights)]},
            },
        }
        for tokens, targets, weights in (EXAMPLES if examples is None else examples)
    ]
    return {"data": data, "loss_fn": "cross_entropy", "loss_fn_config": None}


def logprobs_of(result: dict[str, Any]) -> list[list[float]]:
    """The logprobs of a pass's JSON result."""
    return [row["logprobs"]["data"] for row in result["loss_fn_outputs"]]


def read_output(body: bytes) -> tuple[pb.ForwardBackwardOutput, list[list[float]]]:
    """A pass's protobuf result, and the logprobs in it."""
    message = pb.ForwardBackwardOutput.FromString(body)
    rows: list[list[float]] = []
    for record in message.loss_fn_outputs:
        tensor = record.fields["logprobs"]
        offsets = np.frombuffer(tensor.offsets, "<i8")
        assert len(offsets) == record.num_datums + 1
        for start, end in itertools.pairwise(offsets.tolist()):
            rows.append(np.frombuffer(tensor.data[start:end], "<f4").tolist())
    return message, rows
