"""Kept importable under this name."""

from .futures import TryAgainResponse

__all__ = ["TryAgainResponse"]
