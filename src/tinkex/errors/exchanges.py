"""What an error keeps of a request and its response: nothing secret, nothing live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

__all__ = ["RequestInfo", "ResponseInfo"]

# Headers worth keeping on an error; everything else, credentials above all, is dropped.
_KEPT_HEADERS = frozenset(
    {
        "content-length",
        "content-type",
        "date",
        "retry-after",
        "retry-after-ms",
        "server",
        "traceparent",
        "x-deprecation-level",
        "x-deprecation-note",
        "x-request-id",
        "x-should-retry",
    }
)


class _Headers(dict[str, str]):
    """Headers by lower-case name, found in any spelling."""

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(name.lower())

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)


def _kept(headers: Any) -> Mapping[str, str]:
    try:
        pairs = [(str(name).lower(), str(value)) for name, value in dict(headers or {}).items()]
    except (TypeError, ValueError):
        pairs = []
    return _Headers((name, value) for name, value in pairs if name in _KEPT_HEADERS)


def _bare_url(url: object) -> str:
    try:
        parts = urlsplit(str(url or ""))
    except ValueError:
        return ""
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """The method and address of a request, without its headers, query or body."""

    method: str = ""
    url: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", _bare_url(self.url))

    @classmethod
    def of(cls, request: object) -> RequestInfo:
        """Take what is safe to keep from any HTTP library's request object."""
        if isinstance(request, cls):
            return request
        if request is None:
            return cls()
        return cls(str(getattr(request, "method", "")), str(getattr(request, "url", "")))


@dataclass(frozen=True, slots=True)
class ResponseInfo:
    """The status and harmless headers of a response."""

    status_code: int
    headers: Mapping[str, str] = field(default_factory=dict)
    request: RequestInfo = field(default_factory=RequestInfo)

    def __post_init__(self) -> None:
        object.__setattr__(self, "headers", _kept(self.headers))

    @classmethod
    def of(cls, response: object) -> ResponseInfo:
        """Take what is safe to keep from any HTTP library's response object."""
        if isinstance(response, cls):
            return response
        try:
            request: object = getattr(response, "request", None)
        except RuntimeError:  # httpx raises when no request was attached
            request = None
        return cls(
            int(getattr(response, "status_code", 0)),
            getattr(response, "headers", {}),
            RequestInfo.of(request),
        )
