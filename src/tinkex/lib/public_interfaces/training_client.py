"""`TrainingClient`, under the official SDK's module path."""

from __future__ import annotations

from ...client.training import TrainingClient

__all__ = ["TrainingClient"]
