"""An arm of a tagged union that this version does not know."""

from __future__ import annotations

from .record import OpenRecord

__all__ = ["UnknownVariant"]


class UnknownVariant(OpenRecord):
    """Something a newer peer sent; `type` names it and its other fields are attributes."""

    type: str
