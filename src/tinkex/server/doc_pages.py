"""Pages for people: what this is, and the API's description to read and to feed to tools."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import msgspec

from .._version import __version__
from .asks import JSON_TYPE, Reply
from .openapi import describe
from .problems import Problem

if TYPE_CHECKING:
    from .service import Service

__all__ = ["PAGES", "docs_page", "front_page", "openapi_page"]

_HTML = (b"content-type", b"text/html; charset=utf-8")
# Nothing is loaded from elsewhere, and nothing but the description is fetched.
_POLICY = (
    b"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_GUARDED = [(b"content-security-policy", _POLICY), (b"x-content-type-options", b"nosniff")]
_FRONT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Tinkex</title>
<style>
body {{ font: 16px/1.6 system-ui, sans-serif; max-width: 36rem; margin: 4rem auto; padding: 0 1rem; }}
</style>
</head><body><h1>Tinkex {version}</h1>
<p>A server that fine-tunes and samples language models, for every client of the Tinker API.</p>
<p>Models: {models}</p>
<pre>export TINKER_BASE_URL={url}
export TINKER_API_KEY=tml-…</pre>
<p><a href="{prefix}/docs">API</a> · <a href="{prefix}/openapi.json">openapi.json</a> ·
<a href="{prefix}/readyz">ready?</a></p>
</body></html>
"""
_described: WeakKeyDictionary[Service, bytes] = WeakKeyDictionary()


def _only(path: str, page: str) -> None:
    if path.rstrip("/") != page:
        raise Problem(404, f"no page {path!r}")


async def openapi_page(service: Service, path: str, headers: Mapping[bytes, bytes], query: bytes) -> Reply:
    """The API's description; made once, for nothing in it changes while a server runs."""
    _only(path, "/openapi.json")
    body = _described.get(service)
    if body is None:
        body = _described[service] = msgspec.json.encode(describe(service))
    return Reply(200, body, [JSON_TYPE, (b"access-control-allow-origin", b"*")])


async def docs_page(service: Service, path: str, headers: Mapping[bytes, bytes], query: bytes) -> Reply:
    """The description as a page; it needs nothing from outside."""
    _only(path, "/docs")
    return Reply(200, _DOCS, [_HTML, *_GUARDED])


async def front_page(service: Service, path: str, headers: Mapping[bytes, bytes], query: bytes) -> Reply:
    """What answers here, and where to go on."""
    _only(path, "")
    text = _FRONT.format(
        version=__version__,
        models=html.escape(", ".join(service.catalogue.by_name)),
        url=html.escape(service.url),
        prefix=html.escape(service.prefix),
    )
    return Reply(200, text.encode(), [_HTML, *_GUARDED])


_DOCS = (Path(__file__).parent / "docs.html").read_bytes()
PAGES = {"": front_page, "docs": docs_page, "openapi.json": openapi_page}
