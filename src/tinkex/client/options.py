"""Options of single requests, under the names the official SDK exports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

__all__ = ["RequestOptions", "Timeout"]


class Timeout:
    """Seconds allowed for connecting, reading, writing and waiting for a connection; None is no limit."""

    __slots__ = ("connect", "pool", "read", "write")
    connect: float | None
    read: float | None
    write: float | None
    pool: float | None

    def __init__(
        self,
        timeout: float | tuple[float | None, ...] | Timeout | None = 5.0,
        *,
        connect: float | Any | None = ...,
        read: float | Any | None = ...,
        write: float | Any | None = ...,
        pool: float | Any | None = ...,
    ) -> None:
        if isinstance(timeout, Timeout):
            base: tuple[Any, ...] = (timeout.connect, timeout.read, timeout.write, timeout.pool)
        elif isinstance(timeout, tuple):
            base = (*timeout, None, None, None, None)[:4]
        else:
            base = (timeout,) * 4
        given = (connect, read, write, pool)
        chosen = [old if new is ... else new for new, old in zip(given, base, strict=True)]
        self.connect, self.read, self.write, self.pool = chosen

    def as_dict(self) -> dict[str, float | None]:
        """The four limits by name."""
        return {name: getattr(self, name) for name in ("connect", "read", "write", "pool")}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timeout) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash((self.connect, self.read, self.write, self.pool))

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value}" for name, value in self.as_dict().items())
        return f"Timeout({inside})"


class RequestOptions(TypedDict, total=False):
    """What may be set for one request."""

    headers: Mapping[str, str]
    max_retries: int
    timeout: float | Timeout | None
    params: Mapping[str, object]
    extra_json: Mapping[str, object]
    idempotency_key: str
    follow_redirects: bool
