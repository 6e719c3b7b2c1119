"""`ServiceClient`, under the official SDK's module path."""

from __future__ import annotations

from ...client.service import ServiceClient

__all__ = ["ServiceClient"]
