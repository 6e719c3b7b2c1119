"""`RestClient`, under the official SDK's module path."""

from __future__ import annotations

from ...client.rest import RestClient

__all__ = ["RestClient"]
