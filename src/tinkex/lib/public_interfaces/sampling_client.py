"""`SamplingClient`, under the official SDK's module path."""

from __future__ import annotations

from ...client.sampling import SamplingClient

__all__ = ["SamplingClient"]
