"""The clients and futures, under the official SDK's module path."""

from __future__ import annotations

from .admin_client import AdminClient
from .api_future import APIFuture, AwaitableConcurrentFuture
from .custom_loss import LossHandle, PerDatumLossFn
from .rest_client import RestClient
from .sampling_client import SamplingClient
from .service_client import ServiceClient
from .training_client import TrainingClient

__all__ = [
    "APIFuture",
    "AdminClient",
    "AwaitableConcurrentFuture",
    "LossHandle",
    "PerDatumLossFn",
    "RestClient",
    "SamplingClient",
    "ServiceClient",
    "TrainingClient",
]
