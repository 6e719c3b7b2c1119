"""Requests as they are, over the client's transport: no retries, no types, whatever comes back."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..client.connection import Connection
from ..client.portal import portal
from ..config import Config
from ..errors import TinkerError
from ..net.lanes import make_transport
from ..net.transport import Request
from ..wire.headers import API_KEY, IDEMPOTENCY_KEY, JSON, PROTOBUF
from ..wire.routes import PREFIX
from .checks import Failed

__all__ = ["Answer", "PlainHttp"]

_SHOWN = 160


@dataclass(frozen=True, slots=True)
class Answer:
    """One response; header names are lower case."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def json(self) -> Any:
        """The body read as JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise Failed(f"{self} is not JSON") from None

    @property
    def binary(self) -> bool:
        """Whether it says that it is protobuf."""
        return PROTOBUF in self.headers.get("content-type", "")

    @property
    def refused(self) -> bool:
        """Whether the request was refused as the caller's mistake, for good."""
        return 400 <= self.status < 500 and self.status not in (402, 408, 409, 410, 425, 429)

    @property
    def absent(self) -> bool:
        """Whether the server has no such operation."""
        return self.status in (404, 405, 501)

    def __str__(self) -> str:
        text = self.body[: _SHOWN + 1].decode("utf-8", "replace")
        shown = f"{text[:_SHOWN]}…" if len(text) > _SHOWN else text
        return f"HTTP {self.status} {'(protobuf)' if self.binary else shown}".strip()


class PlainHttp:
    """Sends single requests to one server; all of them must be answered before `until`."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.until = float("inf")
        """The moment (of `time.monotonic`) at which waiting ends."""
        self._transport = make_transport(config)
        self._connection = Connection(config.with_(retry_seconds=2.0))
        self._credential: str | None = None

    def left(self) -> float:
        """The seconds left."""
        return max(self.until - time.monotonic(), 0.0)

    def credential(self) -> str:
        """What this server wants to see as a key: the key itself, or a token for it."""
        if self._credential is None:
            self._credential = portal().run(self._find_credential())
        return self._credential

    async def _find_credential(self) -> str:
        # If this fails a check of its own says so; until then the key is sent as it is.
        with contextlib.suppress(TinkerError):
            await self._connection.settings()
        return await self._connection.auth.header()

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
    ) -> Answer:
        """The answer to one request; bytes are sent as they are, other bodies as JSON.

        An empty `key` sends none.
        """
        raw = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        credential = self.credential() if key is None else key
        sent = {
            "Accept": JSON,
            "Content-Type": JSON,
            # A new one for each attempt, as the outer retry loop of an SDK makes.
            IDEMPOTENCY_KEY: f"conformance-{uuid.uuid4()}",
            **({API_KEY: credential} if credential else {}),
            **self.config.headers,
            **(headers or {}),
        }
        seconds = min(60.0, self.left())
        request = Request(method, f"{self.config.base_url}{PREFIX}{path}", sent, raw, seconds)
        got = portal().run(self._transport.send(request))
        return Answer(got.status, got.headers, got.body)

    def post(self, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None) -> Answer:
        """The answer to a POST."""
        return self.call("POST", path, body, headers=headers)

    def get(self, path: str) -> Answer:
        """The answer to a GET."""
        return self.call("GET", path)

    def ok(self, path: str, body: Any, *, headers: Mapping[str, str] | None = None) -> Any:
        """The JSON of an answer to a POST that must be a success."""
        answer = self.post(path, body, headers=headers)
        if not 200 <= answer.status < 300:
            raise Failed(f"POST {path}: {answer}")
        return answer.json

    def found(self, path: str) -> Any:
        """The JSON of an answer to a GET that must be a success."""
        answer = self.get(path)
        if answer.status != 200:
            raise Failed(f"GET {path}: {answer}")
        return answer.json

    def close(self) -> None:
        """Free every connection."""
        portal().run(self._transport.close())
