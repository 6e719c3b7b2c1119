"""The HTTP side: an ASGI application over the route table, with one place where refusals become answers.

Paths outside the API (`/docs`, downloads, readiness) are extra pages of the same application. It knows no
handler by name: they register themselves in `asks.HANDLERS`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from time import perf_counter
from typing import Any, TypeAlias
from urllib.parse import unquote

from ..wire.headers import API_KEY
from ..wire.jsonbody import encode
from ..wire.routes import PREFIX, ROUTES, Route
from ..wire.routing import find_route, methods_of
from .asks import HANDLERS, JSON_TYPE, Ask, Reply
from .disk import disk_problem
from .door import identify
from .metrics_page import METRICS_PAGE
from .problems import Problem
from .reading import Gone, Receive, number_in, read_all, read_query, understand
from .request_ids import HEADER, name_request
from .service import Service

log = logging.getLogger(__name__)

Scope: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Page: TypeAlias = Callable[[Service, str, Mapping[bytes, bytes], bytes], Awaitable[Reply]]

OPEN_ROUTES = frozenset({"health"})
GUARDED_PAGES = frozenset({METRICS_PAGE})
"""Pages that need a key, unless `metrics_open`; the others need none."""
NO_ROUTE, FRONT = "none", "front"
"""What requests for nothing that is here, and for the first page, are counted as."""
LEFT = 499
"""What a request is counted as whose client left before it was whole."""
OFF_LOOP = 64 << 10
"""Bodies from this size on are decoded in a thread."""
LONGEST_SHOWN = 300
"""Letters of a path that a refusal repeats."""
_KEY = API_KEY.lower().encode()


class App:
    """An ASGI 3 application around one service."""

    def __init__(self, service: Service, pages: Mapping[str, Page] | None = None) -> None:
        self.service = service
        self.pages = dict(pages or {})
        """By the first segment of the path, for GET and HEAD."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or live from start to stop."""
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1003})

    async def drain(self) -> None:
        """Take no new work, and return when running work has ended or had its time."""
        await self.service.drain()

    def release(self) -> None:
        """Have those who wait for results ask again, of the server that comes next."""
        self.service.release()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.service.start()
        except Exception as error:
            log.error("the server cannot start: %s", error)
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.service.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        metrics, began, name = self.service.metrics, perf_counter(), name_request(headers)
        try:
            reply = await self._answer(scope, headers, receive)
        except Gone:
            metrics.answered(scope.get("route", NO_ROUTE), LEFT, perf_counter() - began)
            return
        except Problem as problem:
            reply = refusal(problem)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            passing = disk_problem(error)
            if passing is None:
                log.error("request failed (%s) %s %s", name, scope["method"], _shown(scope), exc_info=error)
                text = f"the server made a mistake ({type(error).__name__}); its log has {name}"
                passing = Problem(500, text)
            else:
                log.error("request put off (%s) %s %s: %s", name, scope["method"], _shown(scope), error)
            reply = refusal(passing)
        seconds = perf_counter() - began
        metrics.answered(scope.get("route", NO_ROUTE), reply.status, seconds)
        if log.isEnabledFor(logging.DEBUG):
            what = scope["method"], _shown(scope), reply.status, 1000 * seconds
            log.debug("%s %s %d in %.1f ms", *what)
        # Lists of headers are shared between answers.
        reply.headers = [*reply.headers, (HEADER, name.encode())]
        await _send(reply, receive, send, head=scope["method"] == "HEAD")

    async def _answer(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> Reply:
        method, path = scope["method"], self._path(scope)
        found = find_route(method, path)
        client = scope.get("client")
        peer: str = client[0] if client else ""
        if found is None:
            return await self._page(scope, path, headers, peer)
        route, params = found
        scope["route"] = route.name
        service = self.service
        owner, key_id = self._authenticate(route, headers.get(_KEY), peer)
        limits = service.options.limits
        raw = b"" if method == "GET" else await read_all(receive, headers, limits.body_bytes)
        try:
            if len(raw) < OFF_LOOP and b"content-encoding" not in headers:
                body, raw = understand(route, headers, raw, limits)
            else:
                body, raw = await asyncio.to_thread(understand, route, headers, raw, limits)
        except Problem:
            if route.lane == "train":
                service.use_up(owner, *number_in(headers, raw))
            raise
        query = read_query(route, scope["query_string"])
        ask = Ask(service, route, headers, params, body, query, owner, key_id, raw, peer)
        try:
            answer = await HANDLERS[route.name](ask)
        except Problem as problem:
            service.refused(ask, problem)
            raise
        return answer if isinstance(answer, Reply) else Reply(200, encode(answer))

    def _path(self, scope: Scope) -> str:
        path: str = scope["path"]
        prefix = self.service.prefix
        if prefix and path.startswith(prefix + "/"):
            path = path[len(prefix) :]
        return path

    async def _page(self, scope: Scope, path: str, headers: dict[bytes, bytes], peer: str) -> Reply:
        method: str = scope["method"]
        first = path.partition("/")[2].partition("/")[0]
        page = self.pages.get(first) if method in ("GET", "HEAD") and path.startswith("/") else None
        if page is not None:
            scope["route"] = first or FRONT
            if first in GUARDED_PAGES and not self.service.options.metrics_open:
                identify(self.service, headers.get(_KEY) or _bearer(headers), peer)
            return await page(self.service, unquote(path), headers, scope["query_string"])
        allowed = methods_of(path)
        if allowed:
            raise Problem(
                405,
                f"{path[:LONGEST_SHOWN]} is served under {', '.join(allowed)}",
                headers={"allow": ", ".join(allowed)},
            )
        hint = "" if path.startswith(PREFIX) else f"; the API is under {PREFIX}"
        raise Problem(404, f"no route for {method} {path[:LONGEST_SHOWN]}{hint}")

    def _authenticate(self, route: Route, credential: bytes | None, peer: str) -> tuple[str, int]:
        if route.name in OPEN_ROUTES:
            return "", 0
        known = identify(self.service, credential, peer)
        return known.owner, known.id


def _shown(scope: Scope) -> str:
    """The path, for the log; addresses of downloads are as good as keys, and stay out of it."""
    path: str = scope["path"]
    return path if scope.get("route") in ROUTES else "/" + scope.get("route", NO_ROUTE)


def _bearer(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The key as scrapers send it."""
    kind, _, credential = headers.get(b"authorization", b"").partition(b" ")
    return credential.strip() if kind.lower() == b"bearer" else None


def refusal(problem: Problem) -> Reply:
    """A refusal as an answer; it always has a body and says its length."""
    headers = [JSON_TYPE, *((name.encode(), value.encode()) for name, value in problem.headers.items())]
    return Reply(problem.status, encode({"detail": problem.text}), headers)


async def _send(reply: Reply, receive: Receive, send: Send, *, head: bool) -> None:
    if reply.pieces is None:
        length = (b"content-length", str(len(reply.body)).encode())
        await send(
            {"type": "http.response.start", "status": reply.status, "headers": [*reply.headers, length]}
        )
        await send({"type": "http.response.body", "body": b"" if head else reply.body})
        return
    await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
    left = asyncio.ensure_future(_until_gone(receive))
    try:
        if not head:
            async for piece in reply.pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                if left.done():
                    return  # a large file is not read to its end for nobody
    finally:
        left.cancel()
        close = getattr(reply.pieces, "aclose", None)
        if close is not None:
            await close()
    await send({"type": "http.response.body", "body": b""})


async def _until_gone(receive: Receive) -> None:
    """Wait for the client to leave; what is left of its request may come first."""
    for _ in range(3):
        if (await receive())["type"] == "http.disconnect":
            return
