"""What of the official SDK's module of this name exists here."""

from __future__ import annotations

from typing import Any

from ._types import RequestOptions, Timeout

__all__ = ["RequestOptions", "Timeout"]


def __getattr__(name: str) -> Any:
    if name in ("AsyncTinker", "AsyncClient"):
        # An ImportError, so that code which patches the class where it exists passes it by.
        raise ImportError(
            f"tinkex has no {name}: its requests do not go through such a class, and changing one would "
            "change nothing. Settings of ServiceClient and tinkex.Config take its place."
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
