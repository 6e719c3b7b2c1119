"""Small types of the official SDK's module of this name."""

from __future__ import annotations

from typing import Final, Literal, final

from .client.options import RequestOptions, Timeout

__all__ = ["NOT_GIVEN", "NoneType", "NotGiven", "RequestOptions", "Timeout"]

NoneType: Final = type(None)


@final
class NotGiven:
    """Stands for an argument that was left out, where None would mean something; it is falsy."""

    __slots__ = ()

    def __bool__(self) -> Literal[False]:
        return False

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN: Final = NotGiven()
