"""Following redirects without taking a credential along to strangers.

HTTP libraries only know `Authorization` to be private; a service's own headers would travel on.
"""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import SplitResult, urljoin, urlsplit

from ..errors import APIConnectionError, RequestInfo
from .transport import Request, Response

__all__ = ["MOST_REDIRECTS", "redirected"]

MOST_REDIRECTS = 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HARMLESS = frozenset({"accept", "accept-encoding", "user-agent"})
_PORTS = {"http": 80, "https": 443}


def redirected(request: Request, response: Response) -> Request | None:
    """The request an answer sends us on to, or None if it is an answer."""
    location = response.headers.get("location")
    if response.status not in _REDIRECTS or not location:
        return None
    url = urljoin(request.url, location)
    here, there = urlsplit(request.url), urlsplit(url)
    if there.scheme not in _PORTS or (here.scheme, there.scheme) == ("https", "http"):
        raise APIConnectionError(
            RequestInfo.of(request), f"Connection error: a redirect to {there.scheme}:// is not followed."
        )
    headers = request.headers
    if not _same_server(here, there):
        headers = {name: value for name, value in headers.items() if name.lower() in _HARMLESS}
    if response.status == 303 or (response.status in (301, 302) and request.method == "POST"):
        return replace(request, method="GET", url=url, headers=headers, body=None)
    return replace(request, url=url, headers=headers)


def _same_server(here: SplitResult, there: SplitResult) -> bool:
    if here.hostname != there.hostname:
        return False
    ports = [parts.port or _PORTS[parts.scheme] for parts in (here, there)]
    upgraded = (here.scheme, there.scheme) == ("http", "https") and ports == [80, 443]
    return upgraded or (here.scheme == there.scheme and ports[0] == ports[1])
