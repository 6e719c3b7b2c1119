"""Asks a fake service by route name, in process, as a client would."""

from __future__ import annotations

import json
from typing import Any

from tinkex.testing import FakeRequest, FakeResponse, FakeService
from tinkex.wire import jsonbody, passes, zstd
from tinkex.wire.headers import JSON, PROTOBUF
from tinkex.wire.routes import route

TEXT = {"chunks": [{"tokens": [5, 6, 7], "type": "encoded_text"}]}
SAMPLE = {"prompt": TEXT, "sampling_params": {"max_tokens": 4}, "num_samples": 1}
DATUM = {
    "model_input": TEXT,
    "loss_fn_inputs": {
        "target_tokens": {"data": [6, 7, 8], "dtype": "int64", "shape": [3]},
        "weights": {"data": [0.0, 1.0, 1.0], "dtype": "float32", "shape": [3]},
    },
}


class Asker:
    """One client, by its key."""

    def __init__(self, service: FakeService, key: str = "tml-test") -> None:
        self.service = service
        self.key = key

    async def __call__(
        self,
        name: str,
        body: Any = None,
        *,
        query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        **params: str,
    ) -> FakeResponse:
        """The answer to one request; the body may be a record, JSON data, or bytes."""
        at = route(name)
        raw = body if isinstance(body, bytes) else b"" if body is None else jsonbody.encode(body)
        known = {"x-api-key": self.key, "content-type": JSON, "accept": JSON, "host": "fake"}
        request = FakeRequest(
            at.method, at.url_path(**params), query or {}, {**known, **(headers or {})}, raw
        )
        return await self.service.handle(request)

    async def ok(self, name: str, body: Any = None, **more: Any) -> Any:
        """The answer's JSON, which must be a success."""
        answer = await self(name, body, **more)
        assert answer.status == 200, (name, answer.status, answer.body)
        return json.loads(answer.body)

    async def session(self) -> str:
        """A new session."""
        return (await self.ok("create_session", {"sdk_version": "0.36.0", "tags": []}))["session_id"]

    async def model(self, session: str, number: int = 0) -> str:
        """A new model, ready to train."""
        body = {"session_id": session, "model_seq_id": number, "base_model": "Qwen/Qwen3-8B"}
        made = await self.result(await self.ok("create_model", body))
        return made["model_id"]

    async def sampler(self, session: str, number: int = 0) -> str:
        """A new sampling session on the base model."""
        body = {"session_id": session, "sampling_session_seq_id": number, "base_model": "Qwen/Qwen3-8B"}
        return (await self.ok("create_sampling_session", body))["sampling_session_id"]

    async def result(self, ticket: dict[str, Any]) -> Any:
        """A ticket's result as JSON."""
        return await self.ok("retrieve_future", {"request_id": ticket["request_id"]})

    async def poll(self, ticket: dict[str, Any], *, binary: bool = False, **more: Any) -> FakeResponse:
        """One poll for a ticket, whatever comes of it."""
        headers = {"accept": PROTOBUF} if binary else {}
        return await self("retrieve_future", {"request_id": ticket["request_id"], **more}, headers=headers)

    async def step(self, model: str, number: int) -> dict[str, Any]:
        """Submit an optimizer step."""
        return await self.ok("optim_step", {"model_id": model, "seq_id": number, "adam_params": {}})

    async def train(
        self, model: str, number: int, count: int = 1, *, packed: bool = False, loss: str = "cross_entropy"
    ) -> FakeResponse:
        """Submit a pass in protobuf, zstd-packed if wanted."""
        from tinkex.types import Datum

        data = [Datum.__take__(DATUM, True)] * count
        body = passes.encode_request(passes.PassRequest(model, number, data, loss))
        headers = {"content-type": PROTOBUF}
        if packed:
            body, headers["content-encoding"] = zstd.compress(body), "zstd"
        return await self("forward_backward", body, headers=headers)

    async def sample(self, sampler: str, number: int = 0, **more: Any) -> dict[str, Any]:
        """Submit a sample."""
        return await self.ok(
            "asample", {**SAMPLE, "sampling_session_id": sampler, "seq_id": number, **more}
        )
