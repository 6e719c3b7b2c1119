"""`ServiceClient`: the way in; it makes training, sampling and REST clients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..config import Config
from ..errors import ClientClosedError, InvalidArgumentError
from ..net.clock import Clock
from ..net.events import Event
from ..net.lanes import make_transport
from ..types.console import session_url, sessions_url
from ..types.futures import UntypedAPIFuture
from ..types.model import CreateModelRequest, CreateModelResponse, LoraConfig
from ..types.optimizer import AdamOptimizerConfig, OptimizerConfig
from ..types.service import GetServerCapabilitiesResponse
from ..types.weights import LoadWeightsRequest, LoadWeightsResponse, WeightsInfoResponse
from ..wire.bodies import WeightsInfoRequest
from ..wire.jsonbody import encode
from ..wire.paths import model_id as model_id_of
from ..wire.paths import parse
from ..wire.routes import route
from .connection import Connection, MakeTransport
from .future import Future, Progress
from .local_start import WithLocalServer
from .polling import wait_for_result
from .portal import portal
from .retry_config import RetryConfig
from .sampling import SamplingClient
from .session import FinishStatus, Session
from .training import TrainingClient

if TYPE_CHECKING:
    from ..types.custom_loss import CustomLossInputRank
    from .custom_loss import LossHandle, PerDatumLossFn
    from .rest import RestClient
    from .telemetry import Telemetry

__all__ = ["ServiceClient"]


class ServiceClient(WithLocalServer):
    """A connection to a service.  Making one does nothing yet; the first call opens a session.

    Use it as a context manager, or call `close()`, so that the server knows how the session ended.
    """

    def __init__(
        self,
        user_metadata: dict[str, str] | None = None,
        project_id: str | None = None,
        *,
        display_name: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        default_headers_overrides: Mapping[str, str] | None = None,
        telemetry: bool | None = None,
        config: Config | None = None,
        clock: Clock | None = None,
        transport: MakeTransport | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs:
            names = ", ".join(sorted(kwargs))
            warnings.warn(f"ServiceClient ignores unknown arguments: {names}", FutureWarning, stacklevel=2)
        resolved = config or Config.resolve(
            base_url=base_url,
            api_key=api_key,
            project_id=project_id,
            headers=default_headers_overrides,
            display_name=display_name,
            user_metadata=dict(user_metadata or {}),
            telemetry=telemetry,
        )
        self._connection = Connection(resolved, clock=clock, make_transport=transport or make_transport)
        self.config: Config = self._connection.config
        self._session = Session(self._connection)
        self._closing: Future[None] | None = None

    def __repr__(self) -> str:
        return f"ServiceClient(base_url={self.config.base_url!r}, session_id={self._session.known_id!r})"

    # ---- the end

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        status: FinishStatus = "success"
        if exc_type is not None:
            status = "errored" if issubclass(exc_type, Exception) else "interrupted"
        self.close(status).result()

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        status: FinishStatus = "success"
        if exc_type is not None:
            status = "errored" if issubclass(exc_type, Exception) else "interrupted"
        await self.close(status)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise ClientClosedError("ServiceClient is closed")

    def close(self, status: FinishStatus = "success", detail: str | None = None) -> Future[None]:
        """End the session and free its connections; every later use raises `ClientClosedError`."""
        if status not in ("success", "errored", "interrupted"):
            raise InvalidArgumentError(
                f"status: expected 'success', 'errored' or 'interrupted', got {status!r}"
            )
        if self._closing is None:
            self._closing = portal().start(self._close(status, detail))
        return self._closing

    async def _close(self, status: FinishStatus, detail: str | None) -> None:
        try:
            await self._session.finish(status, detail)
            if self._session.telemetry is not None:
                await self._session.telemetry.drain()
        finally:
            self._connection.closed = True

    # ---- seeing what happens

    def on_event(self, hook: Callable[[Event], None]) -> Callable[[], None]:
        """Call `hook` with every event of this client; returns how to stop that."""
        return self._connection.hooks.add(hook)

    def metrics(self) -> dict[str, Any]:
        """Counts and latencies of this client's own traffic, as plain data."""
        return self._connection.measured().snapshot()

    def prometheus(self) -> str:
        """The same in Prometheus' text format."""
        return self._connection.measured().prometheus()

    @property
    def holder(self) -> Session:
        """The session, under the name other code knows it by."""
        return self._session

    def get_telemetry(self) -> Telemetry | None:
        """What reports events to the server, unless it is off."""
        return self._session.telemetry

    def get_console_url(self) -> str:
        """The session's page in the hosted console; the list of sessions until there is one."""
        known = self._session.known_id
        return session_url(known) if known else sessions_url()

    # ---- what the server can do

    async def _capabilities(self) -> GetServerCapabilitiesResponse:
        await self._connection.settings()
        answer: GetServerCapabilitiesResponse = await self._connection.caller.read(
            GetServerCapabilitiesResponse, route("get_server_capabilities")
        )
        return answer

    def get_server_capabilities(self) -> GetServerCapabilitiesResponse:
        """The base models the server offers."""
        answer: GetServerCapabilitiesResponse = self._start(self._capabilities()).result()
        return answer

    async def get_server_capabilities_async(self) -> GetServerCapabilitiesResponse:
        """The base models the server offers."""
        answer: GetServerCapabilitiesResponse = await self._start(self._capabilities())
        return answer

    def _start(self, work: Any) -> Future[Any]:
        if self._closing is not None:
            work.close()
            raise ClientClosedError("ServiceClient is closed")
        return self._session.start(work)

    # ---- training

    def create_lora_training_client(
        self,
        base_model: str,
        rank: int = 32,
        seed: int | None = None,
        train_mlp: bool = True,
        train_attn: bool = True,
        train_unembed: bool = True,
        user_metadata: dict[str, str] | None = None,
        optimizer: OptimizerConfig | None = None,
    ) -> TrainingClient:
        """Create a model with a LoRA adapter to train."""
        lora = _lora(rank, seed, train_mlp, train_attn, train_unembed)
        client: TrainingClient = self._start(
            self._create(base_model, lora, user_metadata, optimizer, self._session.next_model())
        ).result()
        return client

    async def create_lora_training_client_async(
        self,
        base_model: str,
        rank: int = 32,
        seed: int | None = None,
        train_mlp: bool = True,
        train_attn: bool = True,
        train_unembed: bool = True,
        user_metadata: dict[str, str] | None = None,
        optimizer: OptimizerConfig | None = None,
    ) -> TrainingClient:
        """Create a model with a LoRA adapter to train."""
        lora = _lora(rank, seed, train_mlp, train_attn, train_unembed)
        client: TrainingClient = await self._start(
            self._create(base_model, lora, user_metadata, optimizer, self._session.next_model())
        )
        return client

    async def _create(
        self,
        base_model: str,
        lora: LoraConfig,
        user_metadata: dict[str, str] | None,
        optimizer: OptimizerConfig | None,
        number: int,
    ) -> TrainingClient:
        request = CreateModelRequest(
            session_id=await self._session.id(),
            model_seq_id=number,
            base_model=base_model,
            user_metadata=user_metadata,
            lora_config=lora,
            optimizer_config=optimizer or AdamOptimizerConfig(),
        )
        answer: CreateModelResponse = await self._ask("create_model", request)
        return TrainingClient(self._session, number, answer.model_id)

    async def _ask(self, name: str, request: Any) -> Any:
        """Submit an operation outside any model's line and wait for its result."""
        origin = route(name)
        clock = self._connection.clock
        started = clock.monotonic()
        ticket: UntypedAPIFuture = await self._connection.caller.read(
            UntypedAPIFuture, origin, encode(request)
        )
        return await wait_for_result(
            self._connection, origin, ticket.request_id,
            progress=Progress(), submit_seconds=clock.monotonic() - started,
        )  # fmt: skip

    def create_training_client_from_state(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: dict[str, str] | None = None,
        weights_access_token: str | None = None,
        optimizer: OptimizerConfig | None = None,
    ) -> TrainingClient:
        """A new model that starts from saved weights, with a fresh optimizer."""
        client: TrainingClient = self._start(
            self._from_state(path, base_model, user_metadata, weights_access_token, optimizer, False)
        ).result()
        return client

    async def create_training_client_from_state_async(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: dict[str, str] | None = None,
        weights_access_token: str | None = None,
        optimizer: OptimizerConfig | None = None,
    ) -> TrainingClient:
        """A new model that starts from saved weights, with a fresh optimizer."""
        client: TrainingClient = await self._start(
            self._from_state(path, base_model, user_metadata, weights_access_token, optimizer, False)
        )
        return client

    def create_training_client_from_state_with_optimizer(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: dict[str, str] | None = None,
        weights_access_token: str | None = None,
    ) -> TrainingClient:
        """A new model that goes on from a checkpoint, optimizer state included."""
        client: TrainingClient = self._start(
            self._from_state(path, base_model, user_metadata, weights_access_token, None, True)
        ).result()
        return client

    async def create_training_client_from_state_with_optimizer_async(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: dict[str, str] | None = None,
        weights_access_token: str | None = None,
    ) -> TrainingClient:
        """A new model that goes on from a checkpoint, optimizer state included."""
        client: TrainingClient = await self._start(
            self._from_state(path, base_model, user_metadata, weights_access_token, None, True)
        )
        return client

    async def _from_state(
        self,
        path: str,
        base_model: str | None,
        user_metadata: dict[str, str] | None,
        token: str | None,
        optimizer: OptimizerConfig | None,
        with_optimizer: bool,
    ) -> TrainingClient:
        parse(path)
        settings = await self._connection.settings()
        number = self._session.next_model()
        if settings.create_model_via_load_weights:
            session_id = await self._session.id()
            request = LoadWeightsRequest(
                session_id=session_id,
                model_seq_id=number,
                base_model=base_model,
                user_metadata=user_metadata,
                path=path,
                optimizer=with_optimizer,
                optimizer_config=None if with_optimizer else optimizer,
                weights_access_token=token,
            )
            answer: LoadWeightsResponse = await self._ask("load_weights", request)
            return TrainingClient(self._session, number, answer.model_id or model_id_of(session_id, number))
        # Another account's checkpoint is described to that account's credential.
        info: WeightsInfoResponse = await self._connection.caller.read(
            WeightsInfoResponse,
            route("weights_info"),
            encode(WeightsInfoRequest(tinker_path=path)),
            credential=await self._connection.credential_of(token),
        )
        if not info.is_lora or info.lora_rank is None:
            raise InvalidArgumentError(f"{path} is not a LoRA checkpoint: it cannot be trained further")
        lora = LoraConfig(
            rank=info.lora_rank,
            train_mlp=info.train_mlp is not False,
            train_attn=info.train_attn is not False,
            train_unembed=info.train_unembed is not False,
        )
        family = info.optimizer_config if with_optimizer else optimizer
        client = await self._create(base_model or info.base_model, lora, user_metadata, family, number)
        await client._load(path, with_optimizer, token)
        return client

    def copy_weights(
        self, path: str, *, ttl_seconds: int | None = None, weights_access_token: str | None = None
    ) -> Future[str]:
        """Copy a checkpoint into this client's project; returns the copy's path."""
        return self._rest().copy_weights(
            path, self.config.project_id, ttl_seconds=ttl_seconds, weights_access_token=weights_access_token
        )

    # ---- sampling

    def create_sampling_client(
        self,
        model_path: str | None = None,
        base_model: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> SamplingClient:
        """A client that samples from a base model or from saved weights."""
        return self._sampler(model_path, base_model, retry_config, record_stability_info).result()

    async def create_sampling_client_async(
        self,
        model_path: str | None = None,
        base_model: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> SamplingClient:
        """A client that samples from a base model or from saved weights."""
        return await self._sampler(model_path, base_model, retry_config, record_stability_info)

    def _sampler(
        self,
        model_path: str | None,
        base_model: str | None,
        retry_config: RetryConfig | None,
        stability: bool,
    ) -> Future[SamplingClient]:
        self._check_open()
        return SamplingClient.create(
            self._session,
            model_path=model_path,
            base_model=base_model,
            retry_config=retry_config,
            record_stability_info=stability,
        )

    # ---- losses and REST

    def create_custom_loss(
        self, fn: PerDatumLossFn, input_ranks: Mapping[str, CustomLossInputRank]
    ) -> Future[LossHandle]:
        """Trace a loss, so that the server can run it where it offers that."""
        from .custom_loss import create_custom_loss

        self._check_open()
        return create_custom_loss(self._session, fn, input_ranks)

    def create_rest_client(self) -> RestClient:
        """A client for listings and checkpoints (deprecated: use `RestClient()`)."""
        warnings.warn(
            "create_rest_client() is deprecated: use tinkex.RestClient()", FutureWarning, stacklevel=2
        )
        return self._rest()

    def _rest(self) -> RestClient:
        from .rest import RestClient

        self._check_open()
        return RestClient(self._session)


def _lora(
    rank: int, seed: int | None, train_mlp: bool, train_attn: bool, train_unembed: bool
) -> LoraConfig:
    if not (train_mlp or train_attn or train_unembed):
        raise _NothingToTrain(
            "create_lora_training_client: one of train_mlp, train_attn and train_unembed must be True"
        )
    return LoraConfig(
        rank=rank, seed=seed, train_mlp=train_mlp, train_attn=train_attn, train_unembed=train_unembed
    )


class _NothingToTrain(InvalidArgumentError, AssertionError):
    """No part of the model was chosen (an AssertionError in the official SDK)."""
