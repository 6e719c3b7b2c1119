"""Futures, under the official SDK's module path."""

from __future__ import annotations

from ...client.future import APIFuture
from ...client.wrapped_future import AwaitableConcurrentFuture

__all__ = ["APIFuture", "AwaitableConcurrentFuture"]
