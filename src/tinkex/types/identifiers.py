"""Names of ids and other plain aliases."""

from __future__ import annotations

from typing import Literal, TypeAlias

__all__ = ["ModelID", "RequestID", "StopReason"]

ModelID: TypeAlias = str
RequestID: TypeAlias = str
StopReason: TypeAlias = Literal["length", "stop"]
