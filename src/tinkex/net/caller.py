"""Making calls: headers, credential, one idempotency key, the retry decision, events.

A call is one logical operation; however often it is sent, its key and body stay the same.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import sys
import uuid
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

from .._version import SDK_VERSION, __version__
from ..config import Config
from ..errors import (
    APIConnectionError,
    APIError,
    APIResponseValidationError,
    APIStatusError,
    InvalidArgumentError,
    RequestInfo,
    TinkerError,
)
from ..wire.headers import API_KEY, DEPRECATION_LEVEL, DEPRECATION_NOTE, IDEMPOTENCY_KEY, JSON
from ..wire.jsonbody import decode
from ..wire.routes import Route
from .answers import error_from
from .auth import Auth
from .breaker import Breaker
from .clock import Clock
from .events import Hooks
from .lanes import Lanes
from .metrics import Metrics
from .policy import Operation, decide
from .redirects import MOST_REDIRECTS, redirected
from .teller import Teller
from .trace import trace_headers
from .transport import Request, Response

__all__ = ["Caller"]

logger: Final = logging.getLogger(__name__)

_ARCHITECTURES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}
_SAY_AFTER = 2.0  # seconds of silence after which a waiting user is told why
_SAY_AGAIN = 30.0
_MOST_NOTES = 100


def _standing_headers(config: Config) -> dict[str, str]:
    machine = platform.machine().lower()
    standing = {
        "Accept": JSON,
        "Content-Type": JSON,
        "User-Agent": f"tinkex/{__version__} Python/{platform.python_version()}",
        "X-Stainless-Package-Version": SDK_VERSION,
        "X-Stainless-OS": platform.system() or "Unknown",
        "X-Stainless-Arch": _ARCHITECTURES.get(machine, machine or "unknown"),
        "X-Stainless-Runtime": sys.implementation.name.replace("cpython", "CPython"),
        "X-Stainless-Runtime-Version": platform.python_version(),
        "X-Stainless-Async": "async:asyncio",
    }
    # In our spelling: a header that is there twice has no certain meaning.
    ours = {name.lower(): name for name in (*standing, API_KEY, IDEMPOTENCY_KEY)}
    return standing | {ours.get(name.lower(), name): value for name, value in config.headers.items()}


class Caller:
    """Calls one server with one credential."""

    auth: Auth
    clock: Clock
    config: Config
    lanes: Lanes

    def __init__(
        self,
        config: Config,
        lanes: Lanes,
        auth: Auth,
        clock: Clock,
        hooks: Hooks | None = None,
        metrics: Metrics | None = None,
        teller: Teller | None = None,
    ) -> None:
        self.config, self.lanes, self.auth, self.clock = config, lanes, auth, clock
        self.hooks: Hooks = Hooks() if hooks is None else hooks  # one without hooks yet is false
        self.metrics: Metrics = metrics or Metrics()
        self.teller: Teller = teller or Teller(clock)
        self._standing = _standing_headers(config)
        self._breakers: dict[str, Breaker] = {}
        self._noted: set[str] = set()

    async def call(
        self,
        route: Route,
        body: bytes | memoryview | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        timeout: float | None = None,
        operation: Operation | None = None,
        key: str | None = None,
        credential: str | None = None,
        follow_redirects: bool = True,
    ) -> Response:
        """Send until it is accepted, refused for good, or the operation's budget is spent."""
        operation = operation or Operation(route.name, seconds=self.config.retry_seconds)
        key = key or new_key()
        started = self.clock.monotonic()
        attempt = 0
        lost = False  # whether a try may have been carried out without its answer getting here
        while True:
            try:
                return await self.once(
                    route, body, headers=headers, path=path, query=query, timeout=timeout,
                    key=key, attempt=attempt, credential=credential, follow_redirects=follow_redirects,
                )  # fmt: skip
            except TinkerError as error:
                status = error.status_code if isinstance(error, APIStatusError) else 599
                if lost and status in operation.done:
                    return Response(status, {})
                lost = lost or status >= 500
                elapsed = self.clock.monotonic() - started
                decision = decide(error, operation, attempt, elapsed, self.clock.random())
                if not decision.retry:
                    raise
                self.metrics.count(f"retry.{route.name}")
                self.hooks.emit("retry", route.name, attempt=attempt, delay=decision.delay, error=error)
                if elapsed + decision.delay >= _SAY_AFTER:
                    self.teller.say(
                        logger, f"{route.name}:{type(error).__name__}", _SAY_AGAIN,
                        "%s at %s: %s; trying again in %.1f s (for up to %.0f s more)",
                        route.name, self.config.base_url, decision.reason, decision.delay,
                        max(operation.seconds - elapsed, 0.0),
                    )  # fmt: skip
                await self.clock.sleep(decision.delay)
                attempt += 1

    async def once(
        self,
        route: Route,
        body: bytes | memoryview | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        timeout: float | None = None,
        key: str | None = None,
        attempt: int = 0,
        result: bool = False,
        credential: str | None = None,
        stream: bool = False,
        follow_redirects: bool = True,
    ) -> Response:
        """Send one request; an answer of 400 and above is raised as its error."""
        credential = credential or self.auth.cached() or await self.auth.header()
        url = self.config.base_url + (route.url_path(**path) if path else route.full_path)
        if query:
            url = f"{url}?{urlencode(query)}"
        seconds = timeout if timeout is not None else self.config.timeout
        sent = {**self._standing, API_KEY: credential, **trace_headers()}
        if route.method != "GET":
            sent[IDEMPOTENCY_KEY] = key or new_key()
        sent["x-stainless-retry-count"] = str(attempt)
        sent["x-stainless-read-timeout"] = f"{seconds:g}"
        if headers:
            sent.update(headers)
        request = Request(
            route.method, url, sent, body, seconds, self.config.connect_timeout, stream, False
        )
        breaker = self._breaker(route)
        if breaker is not None:
            breaker.before()
        started = self.clock.monotonic()
        try:
            response = await self._send(route, request)
            if 300 <= response.status < 400 and follow_redirects:
                response = await self._follow(route, request, response)
        except BaseException as error:
            if breaker is not None:
                breaker.after(False if isinstance(error, APIConnectionError) else None)
            if isinstance(error, APIConnectionError):
                self.metrics.count(f"unreachable.{route.name}")
            raise
        took = self.clock.monotonic() - started
        self.metrics.observe(route.name, took)
        self.hooks.emit("request", route.name, status=response.status, seconds=took, attempt=attempt)
        if breaker is not None:
            breaker.after(response.status < 500)
        if DEPRECATION_NOTE in response.headers:
            self._note(response)
        if response.status >= 400:
            self.metrics.count(f"status.{response.status}")
            raise await self._refusal(request, response, result)
        return response

    async def _send(self, route: Route, request: Request) -> Response:
        try:
            return await self.lanes.send(route.lane, request)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled this task: the HTTP library dropped the request by itself.
            raise APIConnectionError(
                RequestInfo.of(request), "Connection error: the request was dropped."
            ) from None

    async def _follow(self, route: Route, request: Request, response: Response) -> Response:
        for _ in range(MOST_REDIRECTS):
            onward = redirected(request, response)
            if onward is None:
                return response
            if response.chunks is not None:
                async for _piece in response.chunks:  # to its end, so that the connection is free again
                    pass
            request, response = onward, await self._send(route, onward)
        raise APIConnectionError(RequestInfo.of(request), "Connection error: too many redirects.")

    async def _refusal(self, request: Request, response: Response, result: bool) -> APIError:
        if response.chunks is not None:
            response.body = b"".join([piece async for piece in response.chunks])
        return error_from(request, response, self.clock.now(), result=result)

    def _breaker(self, route: Route) -> Breaker | None:
        if not self.config.circuit_breaker:
            return None
        return self._breakers.setdefault(route.name, Breaker(self.clock, route.name))

    def _note(self, response: Response) -> None:
        """Pass on what the server has to say about this client, each thing once."""
        text = response.headers[DEPRECATION_NOTE]
        if text in self._noted or len(self._noted) >= _MOST_NOTES:
            return
        self._noted.add(text)
        level = logging.ERROR if response.headers.get(DEPRECATION_LEVEL) == "error" else logging.WARNING
        logger.log(level, "the server says: %s", text)

    async def read(
        self, kind: Any, route: Route, body: bytes | memoryview | None = None, **options: Any
    ) -> Any:
        """Call and read the JSON answer as a record."""
        response = await self.call(route, body, **options)
        return read_answer(kind, response)


def read_answer(kind: Any, response: Response) -> Any:
    """The JSON of an answer as a record, or an error that says it has the wrong shape."""
    try:
        return decode(kind, response.body)
    except InvalidArgumentError as problem:
        from ..errors import ResponseInfo

        raise APIResponseValidationError(
            ResponseInfo(response.status, response.headers),
            response.body[:2000].decode("utf-8", "replace"),
            f"The server's answer cannot be read: {problem}",
        ) from None


def new_key() -> str:
    """A fresh idempotency key."""
    return f"tinkex-{uuid.uuid4()}"
