"""`SamplingClient`: samples and logprobs from one frozen set of weights."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import weakref
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import (
    APIStatusError,
    InvalidArgumentError,
    PromiseExpiredError,
    RateLimitError,
    RequestFailedError,
    StuckError,
    TinkerError,
    UnsupportedByServerError,
)
from ..net.caller import new_key, read_answer
from ..net.limits import Gate
from ..net.policy import BILLING_PAUSE, Operation, backoff, decide
from ..notices import notice
from ..types.futures import UntypedAPIFuture
from ..types.model_input import ModelInput
from ..types.rules import shown
from ..types.sample_response import SampleResponse
from ..types.sampling import (
    CreateSamplingSessionRequest,
    CreateSamplingSessionResponse,
    GetSamplerResponse,
    JoinSamplingSessionRequest,
    JoinSamplingSessionResponse,
    SamplingParams,
    check_target_logprobs,
)
from ..types.tensor_data import TensorData
from ..wire.bodies import CancelFutureRequest
from ..wire.headers import SAMPLING_BACKPRESSURE
from ..wire.jsonbody import encode, wire_form
from ..wire.paths import CLONE_BLOCK, check_model_path
from ..wire.routes import route
from .future import Future, Progress
from .poller import Poller
from .polling import wait_for_result
from .portal import portal
from .retry_config import RetryConfig
from .session import Session

if TYPE_CHECKING:
    from .telemetry import Telemetry
    from .training import TrainingClient

__all__ = ["SamplingClient"]

logger = logging.getLogger(__name__)

_SAMPLE = route("asample")
_encode = msgspec.json.Encoder().encode
_SMALL_PROMPT = 128 * 1024
_RESUBMITS = Operation("asample", seconds=3600.0, attempts=10, resubmits=True)


class SamplingClient:
    """Samples from weights that never change; cheap to make, safe to share between threads.

    It can be pickled and sent to other processes; the credential stays behind unless
    `pickle_credentials` is set, and the receiver uses its own.
    """

    pickle_credentials = False

    def __init__(
        self,
        holder: Session,
        *,
        sampling_session_id: str,
        shadow: bool = False,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> None:
        self.holder = holder
        self.sampling_session_id = sampling_session_id
        self.retry_config = retry_config
        self.record_stability_info = record_stability_info
        self._shadow = shadow
        self._generation = portal().generation
        self._numbers = itertools.count()
        self._clone = 0
        self._joining: asyncio.Task[None] | None = None
        self._poller: Poller | None = None
        self._gate: Gate | None = None
        self._progressed_at: float | None = None
        self._trainer: tuple[weakref.ref[TrainingClient], int] | None = None

    def __repr__(self) -> str:
        return f"SamplingClient(sampling_session_id={self.sampling_session_id!r})"

    @staticmethod
    def create(
        holder: Session,
        *,
        model_path: str | None = None,
        base_model: str | None = None,
        sampling_session_id: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> Future[SamplingClient]:
        """Open a sampling session on a base model or on saved weights."""
        if sampling_session_id is None:
            if model_path is None and base_model is None:
                raise InvalidArgumentError("create_sampling_client: give model_path or base_model")
            if model_path is not None:
                check_model_path(model_path)
        number = holder.next_sampler() if sampling_session_id is None else -1

        async def run() -> SamplingClient:
            made = sampling_session_id
            if made is None:
                request = CreateSamplingSessionRequest(
                    session_id=await holder.id(),
                    sampling_session_seq_id=number,
                    base_model=base_model,
                    model_path=model_path,
                )
                answer: CreateSamplingSessionResponse = await holder.connection.caller.read(
                    CreateSamplingSessionResponse, route("create_sampling_session"), encode(request)
                )
                made = answer.sampling_session_id
            return SamplingClient(
                holder,
                sampling_session_id=made,
                retry_config=retry_config,
                record_stability_info=record_stability_info,
            )

        return portal().start(run())

    # ---- sampling

    def sample(
        self,
        prompt: ModelInput,
        num_samples: int,
        sampling_params: SamplingParams,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
        topk_sample_logprobs: int = 0,
        target_prompt_logprobs: TensorData | None = None,
        prompt_alt_tokens_k: int = 0,
        prompt_logprobs_last_n: int | None = None,
    ) -> Future[SampleResponse]:
        """Start sampling; the future gives the sequences."""
        form = self._form(
            prompt, num_samples, sampling_params, include_prompt_logprobs, topk_prompt_logprobs,
            topk_sample_logprobs, target_prompt_logprobs, prompt_alt_tokens_k, prompt_logprobs_last_n,
        )  # fmt: skip
        return self._start(form)

    async def sample_async(
        self,
        prompt: ModelInput,
        num_samples: int,
        sampling_params: SamplingParams,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
        topk_sample_logprobs: int = 0,
        target_prompt_logprobs: TensorData | None = None,
        prompt_alt_tokens_k: int = 0,
        prompt_logprobs_last_n: int | None = None,
    ) -> SampleResponse:
        """Sample; cancelling this call cancels the sample."""
        form = self._form(
            prompt, num_samples, sampling_params, include_prompt_logprobs, topk_prompt_logprobs,
            topk_sample_logprobs, target_prompt_logprobs, prompt_alt_tokens_k, prompt_logprobs_last_n,
        )  # fmt: skip
        response: SampleResponse = await _owned(self._start(form))
        return response

    def compute_logprobs(
        self, prompt: ModelInput, prompt_logprobs_last_n: int | None = None
    ) -> Future[list[float | None]]:
        """The logprob of each prompt token; None where there is none."""
        form = self._logprobs_form(prompt, prompt_logprobs_last_n)
        future: Future[list[float | None]] = Future()

        async def run() -> list[float | None]:
            response = await self._sample(form, future.progress)
            return list(response.prompt_logprobs or [])

        return portal().start(run(), future=future)

    async def compute_logprobs_async(
        self, prompt: ModelInput, prompt_logprobs_last_n: int | None = None
    ) -> list[float | None]:
        """The logprob of each prompt token; None where there is none."""
        logprobs: list[float | None] = await _owned(self.compute_logprobs(prompt, prompt_logprobs_last_n))
        return logprobs

    def _logprobs_form(self, prompt: ModelInput, last_n: int | None) -> dict[str, Any]:
        return self._form(prompt, 1, SamplingParams(max_tokens=1), True, 0, 0, None, 0, last_n)

    def _form(
        self,
        prompt: ModelInput,
        num_samples: int,
        params: SamplingParams,
        prompt_logprobs: bool,
        topk_prompt: int,
        topk_sample: int,
        target: TensorData | None,
        alternatives: int,
        last_n: int | None,
    ) -> dict[str, Any]:
        """The request's body but for its number; arguments are checked, the prompt is encoded."""
        if not isinstance(prompt, ModelInput):
            raise InvalidArgumentError(f"prompt: expected a ModelInput, got {shown(prompt)}")
        if not isinstance(params, SamplingParams):
            raise InvalidArgumentError(f"sampling_params: expected SamplingParams, got {shown(params)}")
        if not isinstance(num_samples, int) or num_samples < 1:
            raise InvalidArgumentError(f"num_samples: must be 1 or more, got {shown(num_samples)}")
        if target is not None:
            check_target_logprobs(target)
        if alternatives < 0:
            raise InvalidArgumentError(f"prompt_alt_tokens_k: must be 0 or more, got {alternatives}")
        if last_n is not None and last_n < 1:
            raise InvalidArgumentError(f"prompt_logprobs_last_n: must be 1 or more, got {last_n}")
        if last_n is not None and not prompt_logprobs:
            raise InvalidArgumentError("prompt_logprobs_last_n: needs include_prompt_logprobs=True")
        self._look_at_weights()
        form: dict[str, Any] = {
            "num_samples": num_samples,
            "prompt": msgspec.Raw(encode(prompt)),
            "sampling_params": wire_form(params),
            "sampling_session_id": self.sampling_session_id,
            "seq_id": None,
            "prompt_logprobs": prompt_logprobs,
            "topk_prompt_logprobs": topk_prompt,
            "topk_sample_logprobs": topk_sample,
        }
        if target is not None:
            form["target_prompt_logprobs"] = wire_form(target)
        form["prompt_alt_tokens_k"] = alternatives
        if last_n is not None:
            form["prompt_logprobs_last_n"] = last_n
        form["record_stability_info"] = self.record_stability_info
        form["type"] = "sample"
        return form

    def _look_at_weights(self) -> None:
        if self._trainer is None:
            return
        trainer = self._trainer[0]()
        if trainer is not None and trainer._steps > self._trainer[1]:
            notice(
                "stale-sampler",
                "this sampling client has the weights from before the last optim_step(); make a new one "
                "with save_weights_and_get_sampling_client() to sample from the current ones.",
            )

    def _start(self, form: dict[str, Any]) -> Future[SampleResponse]:
        future: Future[SampleResponse] = Future()
        return portal().start(self._sample(form, future.progress), future=future)

    # ---- on the background loop

    async def _sample(self, form: dict[str, Any], progress: Progress) -> SampleResponse:
        connection = self.holder.connection
        settings = await connection.settings()
        await self._settle()
        if self._gate is None:
            limit = settings.sample_max_concurrent_requests
            if self.retry_config is not None and self.retry_config.max_connections is not None:
                limit = self.retry_config.max_connections
            self._gate = Gate(limit)
        config = self.retry_config or RetryConfig(
            enable_stuck_detection=settings.sample_enable_stuck_detection,
            enable_retry_logic=not settings.sample_no_retries,
        )
        clock = connection.clock
        async with self._gate.hold():
            started = clock.monotonic()
            if self._progressed_at is None or self._gate.inside == 1:
                self._progressed_at = started
            attempt = 0
            while True:
                form["seq_id"] = next(self._numbers)
                try:
                    return await self._once(form, progress, config)
                except (PromiseExpiredError, RequestFailedError) as error:
                    decision = decide(
                        error, _RESUBMITS, attempt, clock.monotonic() - started, clock.random()
                    )
                    if not decision.retry or not config.enable_retry_logic:
                        raise
                    connection.hooks.emit("retry", _SAMPLE.name, attempt=attempt, error=error)
                    await clock.sleep(decision.delay)
                    attempt += 1

    async def _settle(self) -> None:
        """A copy of a client in another process needs sample numbers of its own."""
        if self._generation != portal().generation:
            self._generation = portal().generation
            self._shadow, self._clone = True, 0
            self._poller = self._gate = self._joining = None
        if not self._shadow or self._clone:
            return
        await self.holder.id()  # this process must send heartbeats too
        if self._joining is None:
            self._joining = asyncio.get_running_loop().create_task(self._join())
        await asyncio.shield(self._joining)

    async def _join(self) -> None:
        connection = self.holder.connection
        clone = secrets.randbelow(CLONE_BLOCK - 1) + 1
        if connection.known_settings.sample_join_sampling_session:
            body = encode(JoinSamplingSessionRequest(sampling_session_id=self.sampling_session_id))
            answer: JoinSamplingSessionResponse = await connection.caller.read(
                JoinSamplingSessionResponse, route("join_sampling_session"), body
            )
            clone = answer.client_counter
        self._clone = clone
        self._numbers = itertools.count(clone * CLONE_BLOCK)

    async def _once(self, form: dict[str, Any], progress: Progress, config: RetryConfig) -> SampleResponse:
        """Submit once and wait for the result."""
        connection = self.holder.connection
        progress.stage = "sending"
        ticket, seconds = await self._submit(form, config)
        request_id = ticket.request_id
        try:
            response = await self._result(ticket, progress, seconds, config)
        except asyncio.CancelledError:
            if connection.dynamic.sample_cancel_enabled:
                portal().spawn(self._cancel(request_id))
            raise
        self._progressed_at = connection.clock.monotonic()
        _check_answer(form, response)
        return response

    async def _submit(self, form: dict[str, Any], config: RetryConfig) -> tuple[UntypedAPIFuture, float]:
        """Get the request accepted; refusals for load pause everyone with this key."""
        connection = self.holder.connection
        shared, clock = connection.shared, connection.clock
        body = _encode(form)
        operation = Operation(_SAMPLE.name, seconds=config.progress_timeout, attempts=10_000)
        key = new_key()
        started = clock.monotonic()
        attempt = 0
        while True:
            await shared.sampling.enter()
            accepted = False
            try:
                async with shared.sampling_bytes.hold(len(body)):
                    sent = clock.monotonic()
                    response = await connection.caller.once(
                        _SAMPLE, body, headers=_BACKPRESSURE, key=key, attempt=attempt
                    )
                accepted = True
                return read_answer(UntypedAPIFuture, response), clock.monotonic() - sent
            except RateLimitError as error:
                delay = error.retry_after
                if delay is None:
                    delay = backoff(0, clock.random(), 1.0 if len(body) <= _SMALL_PROMPT else 5.0)
                shared.sampling.slow_down(delay)
                connection.metrics.count("throttled.asample")
                connection.hooks.emit("throttle", _SAMPLE.name, delay=delay, limit=shared.sampling.limit)
                wait = 0.0
            except TinkerError as error:
                wait = await self._wait_after(error, operation, attempt, started)
            finally:
                shared.sampling.leave(accepted=accepted)
            attempt += 1
            self._check_stuck(config)
            if wait:
                await clock.sleep(wait)

    async def _wait_after(
        self, error: TinkerError, operation: Operation, attempt: int, started: float
    ) -> float:
        clock = self.holder.connection.clock
        elapsed = clock.monotonic() - started
        if isinstance(error, APIStatusError) and error.status_code == 402:
            window = self.holder.connection.known_settings.billing_exception_max_pause_duration_sec
            if elapsed > window:
                raise error
            logger.warning("sampling is paused: %s; trying again for up to %d s", error, window)
            return BILLING_PAUSE
        decision = decide(error, operation, attempt, elapsed, clock.random())
        if not decision.retry:
            raise error
        self.holder.connection.hooks.emit("retry", _SAMPLE.name, attempt=attempt, error=error)
        if attempt in (2, 6) or (attempt > 6 and attempt % 6 == 0):
            logger.warning(
                "asample at %s: %s; trying again in %.1f s",
                self.holder.connection.config.base_url, decision.reason, decision.delay,
            )  # fmt: skip
        return decision.delay

    async def _result(
        self, ticket: UntypedAPIFuture, progress: Progress, seconds: float, config: RetryConfig
    ) -> SampleResponse:
        connection = self.holder.connection
        request_id = ticket.request_id
        progress.stage, progress.request_id = "waiting", request_id
        names = ticket.sample_sequence_ids

        def check() -> None:
            self._check_stuck(config, request_id, progress)

        async def fetch(whole: bool) -> SampleResponse:
            fetched: SampleResponse = await wait_for_result(
                connection, _SAMPLE, request_id,
                progress=progress, sequence_ids=names, submit_seconds=seconds, whole=whole, check=check,
            )  # fmt: skip
            return fetched

        if not connection.known_settings.sample_use_retrieve_futures:
            return await fetch(False)
        if self._poller is None:
            self._poller = Poller(connection, self.sampling_session_id, self._clone)
        poller = self._poller
        size = await poller.wait(request_id)
        if size:
            async with connection.shared.result_bytes.hold(size):
                response = await fetch(True)
        else:
            response = await fetch(False)
        poller.fetched(request_id)
        return response

    def _check_stuck(
        self, config: RetryConfig, request_id: str | None = None, progress: Progress | None = None
    ) -> None:
        if not config.enable_stuck_detection or self._progressed_at is None:
            return
        quiet = self.holder.connection.clock.monotonic() - self._progressed_at
        if quiet > config.progress_timeout:
            state = f"; queue {progress.queue_state}: {progress.queue_reason}" if progress else ""
            raise StuckError(
                message=f"No sample of {self.sampling_session_id} has come back for {quiet:.0f} s "
                f"(progress_timeout={config.progress_timeout:g}); waiting for {request_id}{state}. "
                "Requests appear to be stuck."
            )

    async def _cancel(self, request_id: str) -> None:
        body = encode(CancelFutureRequest(request_id=request_id))
        try:
            await self.holder.connection.caller.call(
                route("cancel_future"), body, timeout=30.0, operation=Operation("cancel_future", 60.0, 5)
            )
        except TinkerError as error:
            logger.info("the sample %s could not be cancelled: %s", request_id, error)

    # ---- about the weights

    async def _sampler(self) -> GetSamplerResponse:
        answer: GetSamplerResponse = await self.holder.connection.caller.read(
            GetSamplerResponse, route("get_sampler"), path={"sampler_id": self.sampling_session_id}
        )
        return answer

    def get_base_model(self) -> str:
        """The base model the weights belong to."""
        return portal().start(self._sampler()).result().base_model

    async def get_base_model_async(self) -> str:
        """The base model the weights belong to."""
        return (await portal().start(self._sampler())).base_model

    def get_tokenizer(self) -> Any:
        """The model's tokenizer; loaded once per process."""
        from .tokenizers import tokenizer_for

        return tokenizer_for(self.holder.connection, self.get_base_model(), None)

    async def get_tokenizer_async(self) -> Any:
        """The model's tokenizer, loaded without blocking the event loop."""
        from .tokenizers import tokenizer_for

        name = await self.get_base_model_async()
        return await asyncio.to_thread(tokenizer_for, self.holder.connection, name, None)

    def get_telemetry(self) -> Telemetry | None:
        """What reports events to the server, unless it is off."""
        return self.holder.telemetry

    # ---- other processes

    def get_sampler_handle(self) -> str:
        """A text that another process can turn into a client for the same weights; no credential."""
        from .handles import make_handle

        return make_handle(self)

    @staticmethod
    def from_sampler_handle(handle: str, *, api_key: str | None = None) -> SamplingClient:
        """A client from a handle, with this process's own credential."""
        from .handles import read_handle

        return read_handle(handle, api_key)

    def __reduce__(self) -> Any:
        from .handles import pickled

        return pickled(self)


_BACKPRESSURE = {SAMPLING_BACKPRESSURE: "1"}


async def _owned(future: Future[Any]) -> Any:
    """Wait for a future nobody else holds: if the wait is cancelled, so is the work."""
    try:
        return await future
    except asyncio.CancelledError:
        future.cancel()
        raise


def _check_answer(form: dict[str, Any], response: SampleResponse) -> None:
    if form["prompt_alt_tokens_k"] and response.prompt_alt_tokens is None:
        raise UnsupportedByServerError("the server ignored prompt_alt_tokens_k: it does not know it")
    last_n = form.get("prompt_logprobs_last_n")
    if last_n is not None and response.prompt_logprobs is not None:
        scored = sum(value is not None for value in response.prompt_logprobs)
        if scored > last_n:
            raise UnsupportedByServerError(
                f"the server ignored prompt_logprobs_last_n={last_n} and scored {scored} tokens"
            )
