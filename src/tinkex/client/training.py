"""`TrainingClient`: passes, optimizer steps and checkpoints of one model, in the order of the calls."""

from __future__ import annotations

import asyncio
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ..errors import InvalidArgumentError
from ..losses.custom import LossResult, backward_data, evaluate, forward_data, merged
from ..notices import notice
from ..types.console import training_run_url
from ..types.datum import Datum
from ..types.forward_backward_output import ForwardBackwardOutput
from ..types.losses import LossFnType, check_loss
from ..types.model import GetInfoRequest, GetInfoResponse
from ..types.optimizer import AdamParams, OptimParams, OptimParamsBase, OptimStepRequest, OptimStepResponse
from ..types.rules import shown
from ..types.weights import SaveWeightsForSamplerRequest
from ..wire.jsonbody import encode
from ..wire.passes import PassBody, estimate_bytes
from ..wire.routes import route
from .future import Future
from .model_checkpoints import Checkpoints
from .model_line import ModelLine
from .retry_config import RetryConfig
from .session import Session
from .texts import Texts
from .turns import Turn

if TYPE_CHECKING:
    from .custom_loss import LossHandle
    from .sampling import SamplingClient
    from .telemetry import Telemetry

__all__ = ["TrainingClient"]

T = TypeVar("T")

_PASS = route("forward_backward")
_WORTH_A_THREAD = 64 * 1024  # encoding more than this is not done on an event loop
_SMALL_RATE, _SMALL_RATE_STEPS = 2e-5, 20

CustomLossFn = Callable[[list[Datum], list[Any]], tuple[Any, dict[str, float]]]


class TrainingClient(Checkpoints, Texts):
    """Trains one model.

    Calls are sent in the order in which they are made and return at once with a future; the next
    call need not wait for the last one's result.
    """

    def __init__(self, holder: Session, model_seq_id: int, model_id: str) -> None:
        self.holder = holder
        self.model_id = model_id
        self._model_seq_id = model_seq_id
        self._line = ModelLine(holder, model_id)
        self._gradients = 0  # passes since the last optimizer step
        self._steps = 0
        self._largest_rate = 0.0

    def __repr__(self) -> str:
        return f"TrainingClient(model_id={self.model_id!r})"

    def get_console_url(self) -> str:
        """The model's page in the hosted console."""
        return training_run_url(self.model_id)

    # ---- passes

    def forward(
        self,
        data: list[Datum],
        loss_fn: LossFnType,
        loss_fn_config: Mapping[str, float | str] | None = None,
    ) -> Future[ForwardBackwardOutput]:
        """Compute logprobs and loss, without gradients."""
        return self._pass(data, loss_fn, loss_fn_config, forward_only=True)

    async def forward_async(
        self,
        data: list[Datum],
        loss_fn: LossFnType,
        loss_fn_config: Mapping[str, float | str] | None = None,
    ) -> Future[ForwardBackwardOutput]:
        """Compute logprobs and loss, without gradients."""
        return await self._pass_async(data, loss_fn, loss_fn_config, forward_only=True)

    def forward_backward(
        self,
        data: list[Datum],
        loss_fn: LossFnType,
        loss_fn_config: Mapping[str, float | str] | None = None,
    ) -> Future[ForwardBackwardOutput]:
        """Compute logprobs and loss, and add to the gradients."""
        return self._pass(data, loss_fn, loss_fn_config)

    async def forward_backward_async(
        self,
        data: list[Datum],
        loss_fn: LossFnType,
        loss_fn_config: Mapping[str, float | str] | None = None,
    ) -> Future[ForwardBackwardOutput]:
        """Compute logprobs and loss, and add to the gradients."""
        return await self._pass_async(data, loss_fn, loss_fn_config)

    @staticmethod
    def _check(data: Any, loss_fn: str, config: Mapping[str, float | str] | None) -> list[Datum]:
        check_loss(loss_fn, config)
        checked = list(data)
        if not checked:
            raise InvalidArgumentError("No data provided: data must hold at least one Datum")
        for index, datum in enumerate(checked):
            if not isinstance(datum, Datum):
                raise InvalidArgumentError(f"data[{index}]: expected a Datum, got {shown(datum)}")
        return checked

    def _pass(
        self,
        data: list[Datum],
        loss_fn: str,
        config: Mapping[str, float | str] | None,
        *,
        forward_only: bool = False,
    ) -> Future[ForwardBackwardOutput]:
        bodies = self._line.bodies(self._check(data, loss_fn, config), loss_fn, config, forward_only)
        return self._start_pass(bodies, self._line.enter(), forward_only)

    async def _pass_async(
        self,
        data: list[Datum],
        loss_fn: str,
        config: Mapping[str, float | str] | None,
        *,
        forward_only: bool = False,
    ) -> Future[ForwardBackwardOutput]:
        checked = self._check(data, loss_fn, config)
        turn = self._line.enter()
        try:
            if sum(map(estimate_bytes, checked)) > _WORTH_A_THREAD:
                bodies = await asyncio.to_thread(self._line.bodies, checked, loss_fn, config, forward_only)
            else:
                bodies = self._line.bodies(checked, loss_fn, config, forward_only)
        except BaseException:
            turn.leave()
            raise
        return self._start_pass(bodies, turn, forward_only)

    def _start_pass(
        self, bodies: list[PassBody], turn: Turn, forward_only: bool
    ) -> Future[ForwardBackwardOutput]:
        if not forward_only:
            self._gradients += 1
        return self._line.start_pass(bodies, turn)

    # ---- custom losses

    def forward_backward_custom(
        self,
        data: list[Datum],
        loss_fn: CustomLossFn | LossHandle,
        *,
        loss_type_input: Literal["logprobs"] | None = None,
    ) -> Future[ForwardBackwardOutput]:
        """Train on a loss of your own: `loss_fn(data, logprobs)` returns the loss and metrics.

        The loss runs here, in the calling thread, between a forward and a backward pass; the call
        keeps its place in line until the backward pass is sent.
        """
        _check_loss_input(loss_type_input)
        checked, function, loss_id = self._custom(data, loss_fn)
        if loss_id is not None:
            return self._pass(checked, "custom", {"loss_id": loss_id})
        prepared = forward_data(checked)
        turn = self._line.enter()
        try:
            bodies = self._line.bodies(prepared, "cross_entropy", None, True)
            forward = self._line.start_in_turn(bodies, turn)
            try:
                output = forward.result()
            finally:
                forward.cancel()  # if the wait was interrupted
            with self._line.running_loss():
                result = evaluate(function, checked, output)
            backward = self._line.bodies(
                backward_data(prepared, result.gradients), "cross_entropy", None, False
            )
        except BaseException:
            turn.leave()
            raise
        return self._start_custom(backward, turn, result)

    async def forward_backward_custom_async(
        self,
        data: list[Datum],
        loss_fn: CustomLossFn | LossHandle,
        *,
        loss_type_input: Literal["logprobs"] | None = None,
    ) -> Future[ForwardBackwardOutput]:
        """Train on a loss of your own; it runs in this thread, between two passes."""
        _check_loss_input(loss_type_input)
        checked, function, loss_id = self._custom(data, loss_fn)
        if loss_id is not None:
            return await self._pass_async(checked, "custom", {"loss_id": loss_id})
        prepared = forward_data(checked)
        turn = self._line.enter()
        try:
            bodies = await asyncio.to_thread(self._line.bodies, prepared, "cross_entropy", None, True)
            forward = self._line.start_in_turn(bodies, turn)
            try:
                output = await forward
            finally:
                forward.cancel()  # if the wait was cancelled
            with self._line.running_loss():
                result = evaluate(function, checked, output)
            backward = await asyncio.to_thread(
                self._line.bodies, backward_data(prepared, result.gradients), "cross_entropy", None, False
            )
        except BaseException:
            turn.leave()
            raise
        return self._start_custom(backward, turn, result)

    def _custom(
        self, data: Any, loss_fn: CustomLossFn | LossHandle
    ) -> tuple[list[Datum], Callable[..., Any], str | None]:
        """The examples, checked; the loss as a function; its id if the server runs it."""
        from .custom_loss import LossHandle

        checked = self._check(data, "cross_entropy", None)
        if not isinstance(loss_fn, LossHandle):
            return checked, loss_fn, None
        if loss_fn.session_id != self.holder.known_id:
            raise InvalidArgumentError(
                f"loss_fn: this LossHandle belongs to session {loss_fn.session_id}, "
                f"the model to {self.holder.known_id}; create the loss with the same ServiceClient"
            )
        return loss_fn.inputs_of(checked), loss_fn.local(), loss_fn.loss_id

    def _start_custom(
        self, bodies: list[PassBody], turn: Turn, result: LossResult
    ) -> Future[ForwardBackwardOutput]:
        self._gradients += 1
        return self._line.start_pass(bodies, turn, lambda output: merged(result, output))

    # ---- operations with a small JSON body

    def optim_step(
        self, optim_params: OptimParams | None = None, *, adam_params: AdamParams | None = None
    ) -> Future[OptimStepResponse]:
        """Update the weights with the gradients added up since the last step."""
        if optim_params is not None and adam_params is not None:
            raise InvalidArgumentError("optim_step: give optim_params or adam_params, not both")
        params = optim_params if optim_params is not None else adam_params
        if not isinstance(params, (AdamParams, OptimParamsBase)):
            raise TypeError(
                f"optim_step: expected AdamParams or another optimizer's params, got {shown(params)}"
            )
        self._look_at_step(params)
        return self._line.operate(
            route("optim_step"),
            OptimStepRequest(optim_params=params, model_id=self.model_id),
            lambda result: result,
        )

    async def optim_step_async(
        self, optim_params: OptimParams | None = None, *, adam_params: AdamParams | None = None
    ) -> Future[OptimStepResponse]:
        """Update the weights with the gradients added up since the last step."""
        return self.optim_step(optim_params, adam_params=adam_params)

    def _look_at_step(self, params: Any) -> None:
        if self._gradients == 0:
            notice("no-gradients", "optim_step() without a forward_backward() since the last one.")
        self._gradients = 0
        self._steps += 1
        rate = float(getattr(params, "learning_rate", 0.0) or 0.0)
        self._largest_rate = max(self._largest_rate, rate)
        if self._steps == _SMALL_RATE_STEPS and self._largest_rate < _SMALL_RATE:
            notice(
                "small-learning-rate",
                f"the learning rate has stayed below {_SMALL_RATE:g} for {self._steps} steps: that is a "
                "rate for full fine-tuning; LoRA wants about ten times more (1e-4 to 5e-4).",
            )

    # ---- sampling from this model

    def _ephemeral(self, retry_config: RetryConfig | None, stability: bool) -> Future[SamplingClient]:
        from .sampling import SamplingClient

        number_in_session = self.holder.next_sampler()
        steps = self._steps

        def read(result: Any) -> SamplingClient:
            made = SamplingClient(
                self.holder,
                sampling_session_id=result.sampling_session_id,
                retry_config=retry_config,
                record_stability_info=stability,
            )
            made._trainer = (weakref.ref(self), steps)
            return made

        return self._line.operate(
            route("save_weights_for_sampler"),
            SaveWeightsForSamplerRequest(model_id=self.model_id, sampling_session_seq_id=number_in_session),
            read,
        )

    def save_weights_and_get_sampling_client(
        self,
        name: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> SamplingClient:
        """Freeze the weights as they are now and return a client that samples from them."""
        _ignored_name(name)
        return self._ephemeral(retry_config, record_stability_info).result()

    async def save_weights_and_get_sampling_client_async(
        self,
        name: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> SamplingClient:
        """Freeze the weights as they are now and return a client that samples from them."""
        _ignored_name(name)
        return await self._ephemeral(retry_config, record_stability_info)

    def create_sampling_client(
        self,
        model_path: str,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> SamplingClient:
        """A client that samples from saved sampler weights."""
        from .sampling import SamplingClient

        return SamplingClient.create(
            self.holder,
            model_path=model_path,
            retry_config=retry_config,
            record_stability_info=record_stability_info,
        ).result()

    async def create_sampling_client_async(
        self,
        model_path: str,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> SamplingClient:
        """A client that samples from saved sampler weights."""
        from .sampling import SamplingClient

        return await SamplingClient.create(
            self.holder,
            model_path=model_path,
            retry_config=retry_config,
            record_stability_info=record_stability_info,
        )

    # ---- about the model

    async def _info(self) -> GetInfoResponse:
        body = encode(GetInfoRequest(model_id=self.model_id))
        answer: GetInfoResponse = await self.holder.connection.caller.read(
            GetInfoResponse, route("get_info"), body
        )
        return answer

    def get_info(self) -> GetInfoResponse:
        """What the model is."""
        return self.holder.start(self._info()).result()

    async def get_info_async(self) -> GetInfoResponse:
        """What the model is."""
        return await self.holder.start(self._info())

    async def _tokenizer_names(self) -> tuple[str, str | None]:
        info = await self._info()
        return info.model_data.model_name or info.model_name or "", info.model_data.tokenizer_id

    def get_telemetry(self) -> Telemetry | None:
        """What reports events to the server, unless it is off."""
        return self.holder.telemetry


def _check_loss_input(loss_type_input: str | None) -> None:
    if loss_type_input is None:
        return
    warnings.warn("loss_type_input is deprecated: leave it out", DeprecationWarning, stacklevel=3)
    if loss_type_input != "logprobs":
        raise InvalidArgumentError(f"loss_type_input: only 'logprobs' is possible, got {loss_type_input!r}")


def _ignored_name(name: str | None) -> None:
    if name is not None:
        warnings.warn(
            "the name of an ephemeral sampler is ignored; use save_weights_for_sampler(name) to keep it",
            DeprecationWarning,
            stacklevel=3,
        )
