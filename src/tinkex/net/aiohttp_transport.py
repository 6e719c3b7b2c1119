"""HTTP/1.1 through aiohttp: the cheapest transport on cleartext connections."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from functools import lru_cache
from typing import TYPE_CHECKING

from ..errors import APIConnectionError, APITimeoutError, InvalidArgumentError, RequestInfo
from .transport import Request, Response, unreachable, unsendable

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

__all__ = ["AiohttpTransport"]

MOST_BYTES = 1 << 30
"""Bytes of an answer, unpacked: a bound against servers that mean harm."""


@lru_cache(maxsize=512)
def _parsed(url: str) -> URL:
    from yarl import URL

    return URL(url, encoded=True)


class AiohttpTransport:
    """Sends requests through one aiohttp session; connections are kept and reused."""

    def __init__(self, *, ca_file: str | None = None, proxy: str | None = None) -> None:
        self._ca_file, self._proxy = ca_file, proxy
        self._session: aiohttp.ClientSession | None = None
        self._timeouts: dict[tuple[float, float, bool], aiohttp.ClientTimeout] = {}

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        secure: ssl.SSLContext | bool = True
        if self._ca_file:
            try:
                secure = ssl.create_default_context(cafile=self._ca_file)
            except OSError as problem:
                raise InvalidArgumentError(f"ca_file: {self._ca_file} cannot be used: {problem}") from None
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, ssl=secure, keepalive_timeout=30, enable_cleanup_closed=True
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
            auto_decompress=True,
            read_bufsize=2**18,
        )
        return self._session

    def _timeout(self, request: Request) -> aiohttp.ClientTimeout:
        import aiohttp

        key = (request.timeout, request.connect_timeout, request.stream)
        known = self._timeouts.get(key)
        if known is None:
            total = None if request.stream else request.timeout
            known = self._timeouts[key] = aiohttp.ClientTimeout(
                total=total, sock_connect=request.connect_timeout, sock_read=request.timeout
            )
        return known

    async def send(self, request: Request) -> Response:
        """Send one request and wait for its answer."""
        import aiohttp

        session = self._session or self._open()
        try:
            answer = await session.request(
                request.method,
                _parsed(request.url),
                data=request.body,
                headers=request.headers,
                timeout=self._timeout(request),
                allow_redirects=request.follow_redirects,
                proxy=self._proxy,
            )
            headers = {name.lower(): value for name, value in answer.headers.items()}
            if request.stream:
                return Response(answer.status, headers, chunks=_chunks(answer, request))
            try:
                body = await _whole(answer, request)
            finally:
                answer.release()
        except TimeoutError:
            raise APITimeoutError(RequestInfo.of(request)) from None
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as problem:
            raise unreachable(request, problem) from None
        except ValueError:  # its text may quote a header
            raise unsendable(request) from None
        return Response(answer.status, headers, body)

    async def close(self) -> None:
        """Free every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


async def _whole(answer: aiohttp.ClientResponse, request: Request) -> bytes:
    """The body, unless it is larger than any answer is."""
    length = answer.content_length
    if length is not None and length <= MOST_BYTES and "content-encoding" not in answer.headers:
        return await answer.read()
    pieces, total = [], 0
    async for piece in answer.content.iter_any():
        pieces.append(piece)
        total += len(piece)
        if total > MOST_BYTES:
            answer.close()
            raise APIConnectionError(
                RequestInfo.of(request), f"Connection error: the answer has more than {MOST_BYTES} bytes"
            )
    return b"".join(pieces)


async def _chunks(answer: aiohttp.ClientResponse, request: Request) -> AsyncIterator[bytes]:
    import aiohttp

    try:
        async for piece in answer.content.iter_any():
            yield piece
    except TimeoutError:
        raise APITimeoutError(RequestInfo.of(request)) from None
    except (aiohttp.ClientError, OSError) as problem:
        raise unreachable(request, problem) from None
    finally:
        answer.close()
