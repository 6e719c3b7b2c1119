"""What tests ask a server, as raw requests: one client with a key, and its answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tinkex.types import Datum, ModelInput, TensorData
from tinkex.wire import jsonbody
from tinkex.wire.headers import JSON, PROTOBUF
from tinkex.wire.passes import PassRequest, encode_request
from tinkex.wire.routes import route

if TYPE_CHECKING:
    from .machine import Machine

TEXT = {"chunks": [{"tokens": [5, 6, 7], "type": "encoded_text"}]}


@dataclass(slots=True)
class Answer:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes = field(repr=False)
    streamed: bool = False

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def detail(self) -> str:
        """What a refusal says."""
        text: str = self.json["detail"]
        return text

    def __str__(self) -> str:
        return f"{self.status} {self.body[:400]!r}"


class Stream:
    """One request on its way, and its answer as it comes."""

    def __init__(self, app: Any, scope: dict[str, Any], body: Sequence[bytes]) -> None:
        self._pieces = list(body)
        self._gone = asyncio.Event()
        self._said: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._started: dict[str, Any] | None = None
        self.taken = 0
        """Pieces of the body the server has asked for."""

        async def run() -> None:
            try:
                await app(scope, self._receive, self._send)
            finally:
                self._said.put_nowait(None)

        self.task = asyncio.ensure_future(run())

    async def _receive(self) -> dict[str, Any]:
        if self.taken < len(self._pieces):
            piece = self._pieces[self.taken]
            self.taken += 1
            return {"type": "http.request", "body": piece, "more_body": self.taken < len(self._pieces)}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self._said.put_nowait(message)

    async def started(self) -> dict[str, Any]:
        """Status and headers."""
        if self._started is None:
            self._started = await self._said.get()
            if self._started is None:
                self.task.result()
                raise AssertionError("the application answered nothing")
        return self._started

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        await self.started()
        while (message := await self._said.get()) is not None:
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body"):
                return
        self.task.result()

    async def whole(self) -> Answer:
        """The whole answer."""
        start = await self.started()
        headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}
        body = b"".join([piece async for piece in self.pieces()])
        await self.task
        streamed = headers.get("content-type", "").startswith("text/event-stream")
        return Answer(start["status"], headers, body, streamed)

    def close(self) -> None:
        """The client is gone."""
        self._gone.set()
        self.task.cancel()


def datum(tokens: Sequence[int] = (1, 2, 3), weight: float = 1.0, **inputs: Any) -> Datum:
    """A training example: targets are the next tokens."""
    targets = [*tokens[1:], 4]
    given = {
        "target_tokens": TensorData(targets, "int64", [len(targets)]),
        "weights": TensorData([weight] * len(targets), "float32", [len(targets)]),
    }
    return Datum(model_input=ModelInput.from_ints(list(tokens)), loss_fn_inputs={**given, **inputs})


class Client:
    """Asks one server with one key."""

    def __init__(self, machine: Machine, key: str) -> None:
        self.machine, self.key = machine, key

    async def __call__(
        self,
        name: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        query: str = "",
        **params: str,
    ) -> Answer:
        """The answer of one route; the body may be a record, JSON data, bytes or pieces of bytes."""
        at = route(name)
        path = at.url_path(**params)
        return await self.machine.send(at.method, path, self.raw(body), self.headers(headers), query)

    def headers(self, more: dict[str, str] | None = None) -> dict[str, str]:
        """Headers as a client sends them."""
        return {"x-api-key": self.key, "content-type": JSON, "accept": JSON, **(more or {})}

    @staticmethod
    def raw(body: Any) -> bytes | list[bytes]:
        """A body as bytes."""
        if body is None:
            return b""
        if isinstance(body, (bytes, bytearray)):
            return bytes(body)
        if isinstance(body, list) and body and isinstance(body[0], bytes):
            return body
        return jsonbody.encode(body)

    async def ok(self, name: str, body: Any = None, **more: Any) -> Any:
        """The JSON of an answer that must be a success."""
        answer = await self(name, body, **more)
        assert answer.status == 200, (name, str(answer))
        return answer.json

    async def refused(self, name: str, body: Any = None, status: int = 400, **more: Any) -> str:
        """The text of an answer that must be a refusal."""
        answer = await self(name, body, **more)
        assert answer.status == status, (name, str(answer))
        return answer.detail

    # ---- things to work with

    async def session(self, **more: Any) -> str:
        """A new session."""
        made = await self.ok("create_session", {"sdk_version": "0.36.0", "tags": [], **more})
        id: str = made["session_id"]
        return id

    async def begin_model(self, session: str, number: int = 0, base: str = "tiny", **more: Any) -> str:
        """Ask for a model; its id, before it is there."""
        body = {"session_id": session, "model_seq_id": number, "base_model": base, **more}
        made = await self.ok("create_model", body)
        id: str = made["model_id"]
        assert made["request_id"] == f"{id}:0"
        return id

    async def model(self, session: str | None = None, number: int = 0, **more: Any) -> str:
        """A new model, ready to train."""
        id = await self.begin_model(session or await self.session(), number, **more)
        assert (await self.result(f"{id}:0"))["model_id"] == id
        return id

    async def sampler(self, session: str, number: int = 0, base: str | None = "tiny", **more: Any) -> str:
        """A new sampling session."""
        body = {"session_id": session, "sampling_session_seq_id": number, "base_model": base, **more}
        made = await self.ok("create_sampling_session", body)
        id: str = made["sampling_session_id"]
        return id

    # ---- operations; each answers the request id

    async def train(
        self, model: str, seq: int, *data: Datum, loss: str = "cross_entropy", config: Any = None,
        forward_only: bool = False,
    ) -> str:  # fmt: skip
        """A pass, in protobuf."""
        return self.ticket(
            await self("forward_backward", *self.train_body(model, seq, *data, loss=loss, config=config,
                                                            forward_only=forward_only),
                       headers={"content-type": PROTOBUF})
        )  # fmt: skip

    @staticmethod
    def train_body(
        model: str, seq: int, *data: Datum, loss: str = "cross_entropy", config: Any = None,
        forward_only: bool = False,
    ) -> tuple[bytes]:  # fmt: skip
        """The bytes of a pass."""
        return (encode_request(PassRequest(model, seq, data or (datum(),), loss, config, forward_only)),)

    async def step(self, model: str, seq: int, **params: Any) -> str:
        """An optimizer step."""
        return self.ticket(
            await self("optim_step", {"model_id": model, "seq_id": seq, "adam_params": params})
        )

    async def save(self, model: str, seq: int, name: str, **more: Any) -> str:
        """Save weights under a name."""
        return self.ticket(
            await self("save_weights", {"model_id": model, "seq_id": seq, "path": name, **more})
        )

    async def freeze(self, model: str, seq: int, number: int | None = None, name: str | None = None) -> str:
        """Freeze weights for sampling, for a sampling session or under a name."""
        body = {"model_id": model, "seq_id": seq, "sampling_session_seq_id": number, "path": name}
        return self.ticket(await self("save_weights_for_sampler", body))

    async def load(self, model: str, seq: int, path: str, optimizer: bool = True) -> str:
        """Load saved weights."""
        body = {"model_id": model, "seq_id": seq, "path": path, "optimizer": optimizer}
        return self.ticket(await self("load_weights", body))

    async def sample(self, sampler: str, seq: int, **more: Any) -> str:
        """A sample."""
        return self.ticket(await self("asample", self.sample_body(sampler, seq, **more)))

    @staticmethod
    def sample_body(sampler: str, seq: int, **more: Any) -> dict[str, Any]:
        """A sample's request: three tokens, unless told otherwise."""
        params = {"max_tokens": 3, "seed": 7, **more.pop("params", {})}
        body = {"sampling_session_id": sampler, "seq_id": seq, "prompt": TEXT, "sampling_params": params}
        return {**body, **more}

    @staticmethod
    def ticket(answer: Answer) -> str:
        """The request id of accepted work."""
        assert answer.status == 200, str(answer)
        id: str = answer.json["request_id"]
        return id

    # ---- results

    async def poll(self, id: str, *, binary: bool = False, **more: Any) -> Answer:
        """One poll, held as long as the server holds it."""
        headers = {"accept": PROTOBUF} if binary else {}
        return await self("retrieve_future", {"request_id": id, **more}, headers=headers)

    def begin_poll(self, id: str, **more: Any) -> asyncio.Task[Answer]:
        """A poll in the background."""
        return asyncio.ensure_future(self.poll(id, **more))

    async def result(self, id: str) -> Any:
        """A result that must come without time passing, as JSON; failed work has `error` in it."""
        poll = self.begin_poll(id)
        await self.machine.until(poll.done)
        answer = poll.result()
        assert answer.status == 200, str(answer)
        return answer.json

    async def done(self, id: str) -> Any:
        """A result that must be a success."""
        found = await self.result(id)
        assert "error" not in found, found
        return found

    async def loss(self, id: str) -> float:
        """The loss of a pass that must have succeeded."""
        value: float = (await self.done(id))["metrics"]["loss:sum"]
        return value
