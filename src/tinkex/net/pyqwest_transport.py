"""HTTP/2 over TLS through pyqwest: one connection carries many requests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import APITimeoutError, InvalidArgumentError, RequestInfo
from .transport import Request, Response, unreachable, unsendable

if TYPE_CHECKING:
    import pyqwest

__all__ = ["PyqwestTransport", "works_here"]

_used_by: int | None = None  # the process that has the library's own threads


def works_here() -> bool:
    """Whether pyqwest can be used: not in the fork of a process that did, which has none of its threads."""
    return _used_by in (None, os.getpid())


class PyqwestTransport:
    """Sends requests through one pyqwest client; HTTP/2 wherever the server speaks it."""

    def __init__(self, *, ca_file: str | None = None, proxy: str | None = None) -> None:
        self._ca_file, self._proxy = ca_file, proxy
        self._clients: dict[bool, pyqwest.Client] = {}

    def _client(self, request: Request) -> pyqwest.Client:
        global _used_by
        import pyqwest

        known = self._clients.get(request.follow_redirects)
        if known is None:
            _used_by = _used_by or os.getpid()
            options: dict[str, Any] = {}
            # Without an explicit rule pyqwest looks at the environment itself; the configuration has
            # already done so, with NO_PROXY, and its decision stands.
            direct = pyqwest.Proxy("http://127.0.0.1:9", no_proxy="*,0.0.0.0/0,::/0")
            options["proxy"] = self._proxy or direct
            try:
                if self._ca_file:
                    options["tls_ca_cert"] = Path(self._ca_file).read_bytes()
                transport = pyqwest.HTTPTransport(
                    tls_include_system_certs=True,
                    connect_timeout=request.connect_timeout,
                    pool_max_idle_per_host=64,
                    follow_redirects=request.follow_redirects,
                    enable_otel=False,
                    use_system_dns=True,
                    **options,
                )
            except (OSError, ValueError) as problem:
                if not self._ca_file:
                    raise InvalidArgumentError("the proxy's address cannot be used") from None
                raise InvalidArgumentError(f"ca_file: {self._ca_file} cannot be used: {problem}") from None
            known = self._clients[request.follow_redirects] = pyqwest.Client(transport)
        return known

    async def send(self, request: Request) -> Response:
        """Send one request and wait for its answer."""
        client = self._client(request)
        body = bytes(request.body) if isinstance(request.body, memoryview) else request.body
        try:
            async with asyncio.timeout(request.timeout):
                if request.stream:
                    held = client.stream(request.method, request.url, dict(request.headers), body)
                    answer = await held.__aenter__()
                    headers = {name.lower(): value for name, value in answer.headers.items()}
                    return Response(answer.status, headers, chunks=_chunks(held, answer, request))
                full = await client.execute(request.method, request.url, dict(request.headers), body)
        except TimeoutError:
            raise APITimeoutError(RequestInfo.of(request)) from None
        except ValueError:  # its text may quote a header
            raise unsendable(request) from None
        except Exception as problem:
            if isinstance(problem, (OSError, RuntimeError)) or _is_http_error(problem):
                raise unreachable(request, problem) from None
            raise
        headers = {name.lower(): value for name, value in full.headers.items()}
        return Response(full.status, headers, bytes(full.content))

    async def close(self) -> None:
        """Drop the clients; their connections close when they are collected."""
        self._clients.clear()


async def _chunks(held: Any, answer: Any, request: Request) -> AsyncIterator[bytes]:
    try:
        pieces = aiter(answer.content)
        while True:
            async with asyncio.timeout(request.timeout):
                piece = await anext(pieces, None)
            if piece is None:
                return
            yield bytes(piece)
    except TimeoutError:
        raise APITimeoutError(RequestInfo.of(request)) from None
    except Exception as problem:
        if isinstance(problem, OSError) or _is_http_error(problem):
            raise unreachable(request, problem) from None
        raise
    finally:
        await held.__aexit__(None, None, None)


def _is_http_error(problem: Exception) -> bool:
    return type(problem).__module__.startswith("pyqwest")
