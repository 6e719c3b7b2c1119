"""The official SDK's side of the contract: its models by name, and its own way of writing and reading."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import Any

import httpx
import pydantic
import tinker
from tinker import types as official_types
from tinker._compat import model_dump
from tinker.cli.auth_api import SelfApiKeyResponse
from tinker.lib.api_future_impl import _APIFuture, _LoopState, _TransportError
from tinker.lib.public_interfaces.rest_client import _SessionTraceExportPollResponse
from tinker.types._pydantic_types.forward_backward_input import ForwardBackwardInput as PassInput
from tinker.types.try_again_response import TryAgainResponse

_ELSEWHERE: dict[str, Any] = {
    "ApiKeyResponse": SelfApiKeyResponse,
    "ForwardBackwardInput": PassInput,
    "TraceExportResponse": _SessionTraceExportPollResponse,
    "TryAgainResponse": TryAgainResponse,
}


def model(kind: Any) -> type[pydantic.BaseModel] | None:
    """The official pydantic model of the same name, if there is one."""
    found = _ELSEWHERE.get(kind.__name__) or getattr(official_types, kind.__name__, None)
    return found if inspect.isclass(found) and issubclass(found, pydantic.BaseModel) else None


def written(request: pydantic.BaseModel) -> Any:
    """The JSON data the official SDK puts on the wire for a request."""
    return model_dump(request, exclude_unset=False, exclude_none=True, mode="json")


def http_client(handler: Any) -> tinker.AsyncTinker:
    """The official HTTP client, strict about responses as the SDK sets it up, answered by `handler`."""
    return tinker._client.AsyncTinker(
        api_key="tml-test",
        base_url="http://127.0.0.1:1",
        http_client=httpx.AsyncClient(
            transport=httpx.MockTransport(handler), base_url="http://127.0.0.1:1"
        ),
        max_retries=0,
        _strict_response_validation=True,
    )


def read(body: bytes, cast_to: Any) -> Any:
    """What the official SDK makes of a synchronous response."""

    async def ask() -> Any:
        client = http_client(
            lambda _: httpx.Response(200, content=body, headers={"content-type": "application/json"})
        )
        async with client._client:
            return await client.get("/api/v1/anything", cast_to=cast_to)

    return asyncio.run(ask())


class Waiter:
    """What `_APIFuture` needs to fetch and read a result, without its background loop."""

    request_type = "Sample"
    request_queue_roundtrip_time = 0.0
    request_id = "r-1"
    _queue_state_observer = None
    _cached_result: Any = None

    def __init__(self, client: Any, model_cls: Any) -> None:
        self.model_cls = model_cls
        self.holder = self
        self._client = client
        self._inflight_response_bytes_semaphore = self

    @contextlib.contextmanager
    def aclient(self, _pool: Any) -> Any:
        yield self._client

    @contextlib.asynccontextmanager
    async def acquire(self, _size: int) -> Any:
        yield

    def get_telemetry(self) -> None:
        return None


def retrieve(response: httpx.Response, model_cls: Any) -> tuple[Any, Any]:
    """What the official SDK makes of an answer to `retrieve_future`: the outcome, and the result."""

    async def ask() -> tuple[Any, Any]:
        client = http_client(lambda _: response)
        async with client._client, contextlib.AsyncExitStack() as stack:
            waiter, state = Waiter(client, model_cls), _LoopState()
            outcome = await _APIFuture._fetch_via_rest(waiter, state, 0)
            if isinstance(outcome, _TransportError):
                return outcome, None
            result = await _APIFuture._handle_outcome(waiter, outcome, state, stack, 0, 0.0)
            return outcome, result

    return asyncio.run(ask())
