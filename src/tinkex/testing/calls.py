"""What a service was asked: every request in order, decoded when looked at."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..errors import InvalidArgumentError
from ..wire.headers import IDEMPOTENCY_KEY, PROTOBUF
from ..wire.jsonbody import convert
from ..wire.passes import decode_request
from ..wire.routes import Route
from ..wire.zstd import decompress
from .exchange import FakeRequest

__all__ = ["Call", "Calls", "read_body"]

MOST_UNPACKED = 512 * 1024 * 1024
_NOT_READ = object()


def read_body(route: Route, headers: Mapping[str, str], raw: bytes) -> Any:
    """A body as its record (a `PassRequest` if it is protobuf), or None for a route without one."""
    if route.request is None:
        return None
    if headers.get("content-encoding") == "zstd":
        raw = decompress(raw, MOST_UNPACKED)
    if PROTOBUF in headers.get("content-type", ""):
        return decode_request(raw)
    try:
        data = msgspec.json.decode(raw) if raw else {}
    except msgspec.DecodeError as problem:
        raise InvalidArgumentError(f"the body is not JSON: {problem}") from None
    return convert(route.server_request, data)


@dataclass(slots=True)
class Call:
    """One request: where it went, what it held, when it came and how it was answered."""

    route: str  # the route's name, or "" if the contract has none for it
    method: str
    path: str
    params: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str] = field(repr=False)
    raw: bytes = field(repr=False)
    index: int
    time: float
    status: int | None = None  # None until answered
    _of: Route | None = field(default=None, repr=False)
    _body: Any = field(default=_NOT_READ, repr=False)

    @classmethod
    def of(
        cls, request: FakeRequest, route: Route | None, params: Mapping[str, str], index: int, time: float
    ) -> Call:
        """Note a request."""
        name = route.name if route is not None else ""
        return cls(
            name, request.method, request.path, params, request.query, request.headers, request.body,
            index, time, None, route,
        )  # fmt: skip

    @property
    def body(self) -> Any:
        """The body as a record, a `PassRequest`, a dict for routes unknown, or None if unreadable."""
        if self._body is _NOT_READ:
            try:
                self._body = read_body(self._of, self.headers, self.raw) if self._of else self.json
            except InvalidArgumentError:
                self._body = None
        return self._body

    @property
    def json(self) -> Any:
        """The body as plain JSON data, or None if it is not JSON."""
        try:
            return msgspec.json.decode(self.raw)
        except msgspec.DecodeError:
            return None

    @property
    def seq_id(self) -> int | None:
        """The number the client gave this operation, if it has one."""
        return getattr(self.body, "seq_id", None)

    @property
    def model_id(self) -> str | None:
        """The model this operation is for, if any."""
        return getattr(self.body, "model_id", None)

    @property
    def idempotency_key(self) -> str | None:
        """The client's key for this request."""
        return self.headers.get(IDEMPOTENCY_KEY.lower())

    def __hash__(self) -> int:
        return self.index


class Calls(list[Call]):
    """All requests in order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self._arrived = threading.Condition()
        self._watchers = 0

    def note(self, call: Call) -> None:
        """Append a call and wake whoever waits for it."""
        self.append(call)
        if self._watchers:
            with self._arrived:
                self._arrived.notify_all()

    def to(self, *routes: str) -> list[Call]:
        """The calls to these routes."""
        return [call for call in self if call.route in routes]

    def wait_for(self, route: str, count: int = 1, timeout: float = 10.0) -> list[Call]:
        """Block this thread until `count` calls to a route have come (not for use on the loop itself)."""
        self._watchers += 1
        try:
            with self._arrived:
                if not self._arrived.wait_for(lambda: len(self.to(route)) >= count, timeout):
                    raise TimeoutError(
                        f"{len(self.to(route))} of {count} calls to {route} came in {timeout:g} s"
                    )
        finally:
            self._watchers -= 1
        return self.to(route)
