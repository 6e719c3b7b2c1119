"""`AdminClient`, under the official SDK's module path."""

from __future__ import annotations

from ...client.admin import AdminClient

__all__ = ["AdminClient"]
