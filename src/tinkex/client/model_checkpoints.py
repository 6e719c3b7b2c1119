"""Saving a model and loading what was saved, as operations in the model's line."""

from __future__ import annotations

import warnings

from ..types.weights import (
    LoadWeightsRequest,
    LoadWeightsResponse,
    SaveWeightsExternalRequest,
    SaveWeightsExternalResponse,
    SaveWeightsForSamplerRequest,
    SaveWeightsForSamplerResponse,
    SaveWeightsRequest,
    SaveWeightsResponse,
)
from ..wire.paths import check_name
from ..wire.routes import route
from .future import Future
from .model_line import ModelLine

__all__ = ["Checkpoints"]


class Checkpoints:
    """Saves the weights of one model, and loads them."""

    model_id: str
    _line: ModelLine

    def save_state(
        self,
        name: str,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
        user_metadata: dict[str, str] | None = None,
    ) -> Future[SaveWeightsResponse]:
        """Save weights and optimizer state, to go on training from."""
        check_name(name)
        return self._line.operate(
            route("save_weights"),
            SaveWeightsRequest(
                model_id=self.model_id,
                path=name,
                ttl_seconds=ttl_seconds,
                overwrite=overwrite,
                user_metadata=user_metadata,
            ),
            lambda result: result,
        )

    async def save_state_async(
        self,
        name: str,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
        user_metadata: dict[str, str] | None = None,
    ) -> Future[SaveWeightsResponse]:
        """Save weights and optimizer state, to go on training from."""
        return self.save_state(name, ttl_seconds, overwrite, user_metadata)

    def _load(self, path: str, optimizer: bool, token: str | None) -> Future[LoadWeightsResponse]:
        return self._line.operate(
            route("load_weights"),
            LoadWeightsRequest(
                model_id=self.model_id,
                path=path,
                optimizer=optimizer,
                weights_access_token=token,
            ),
            lambda result: result,
        )

    def load_state(self, path: str, weights_access_token: str | None = None) -> Future[LoadWeightsResponse]:
        """Load weights into this model (deprecated: create a client from the checkpoint instead)."""
        _deprecated_load("load_state", "create_training_client_from_state")
        return self._load(path, False, weights_access_token)

    async def load_state_async(
        self, path: str, weights_access_token: str | None = None
    ) -> Future[LoadWeightsResponse]:
        """Load weights into this model (deprecated: create a client from the checkpoint instead)."""
        _deprecated_load("load_state_async", "create_training_client_from_state_async")
        return self._load(path, False, weights_access_token)

    def load_state_with_optimizer(
        self, path: str, weights_access_token: str | None = None
    ) -> Future[LoadWeightsResponse]:
        """Load weights and optimizer state (deprecated: create a client from the checkpoint instead)."""
        _deprecated_load("load_state_with_optimizer", "create_training_client_from_state_with_optimizer")
        return self._load(path, True, weights_access_token)

    async def load_state_with_optimizer_async(
        self, path: str, weights_access_token: str | None = None
    ) -> Future[LoadWeightsResponse]:
        """Load weights and optimizer state (deprecated: create a client from the checkpoint instead)."""
        _deprecated_load(
            "load_state_with_optimizer_async", "create_training_client_from_state_with_optimizer_async"
        )
        return self._load(path, True, weights_access_token)

    def save_weights_for_sampler(
        self,
        name: str,
        ttl_seconds: int | None = None,
        user_metadata: dict[str, str] | None = None,
    ) -> Future[SaveWeightsForSamplerResponse]:
        """Save weights under a name, to sample from; they never change afterwards."""
        check_name(name)
        return self._line.operate(
            route("save_weights_for_sampler"),
            SaveWeightsForSamplerRequest(
                model_id=self.model_id,
                path=name,
                ttl_seconds=ttl_seconds,
                user_metadata=user_metadata,
            ),
            lambda result: SaveWeightsForSamplerResponse(path=result.path, type=result.type),
        )

    async def save_weights_for_sampler_async(
        self,
        name: str,
        ttl_seconds: int | None = None,
        user_metadata: dict[str, str] | None = None,
    ) -> Future[SaveWeightsForSamplerResponse]:
        """Save weights under a name, to sample from; they never change afterwards."""
        return self.save_weights_for_sampler(name, ttl_seconds, user_metadata)

    def save_weights_external(
        self,
        name: str,
        ttl_seconds: int | None = None,
        age_encryption_recipients: list[str] | None = None,
    ) -> Future[SaveWeightsExternalResponse]:
        """Save weights in a format other tools read, to be downloaded."""
        check_name(name)
        return self._line.operate(
            route("save_weights_external"),
            SaveWeightsExternalRequest(
                model_id=self.model_id,
                path=name,
                ttl_seconds=ttl_seconds,
                age_encryption_recipients=age_encryption_recipients,
            ),
            lambda result: SaveWeightsExternalResponse(path=result.path, type=result.type),
        )

    async def save_weights_external_async(
        self,
        name: str,
        ttl_seconds: int | None = None,
        age_encryption_recipients: list[str] | None = None,
    ) -> Future[SaveWeightsExternalResponse]:
        """Save weights in a format other tools read, to be downloaded."""
        return self.save_weights_external(name, ttl_seconds, age_encryption_recipients)


def _deprecated_load(name: str, instead: str) -> None:
    warnings.warn(
        f"TrainingClient.{name}() is deprecated: use ServiceClient.{instead}()",
        FutureWarning,
        stacklevel=3,
    )
