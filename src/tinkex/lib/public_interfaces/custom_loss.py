"""`LossHandle`, under the official SDK's module path."""

from __future__ import annotations

from ...client.custom_loss import LossHandle, PerDatumLossFn

__all__ = ["LossHandle", "PerDatumLossFn"]
