"""`SamplingClient`: samples and logprobs from one frozen set of weights."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import AsyncIterable, Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..errors import InvalidArgumentError, TinkerError
from ..net.caller import read_answer
from ..notices import notice
from ..types.model import GetInfoRequest, GetInfoResponse
from ..types.model_input import ModelInput
from ..types.rules import Integer, Mismatch, shown
from ..types.sample_response import SampleResponse
from ..types.sampling import (
    CreateSamplingSessionRequest,
    CreateSamplingSessionResponse,
    GetSamplerResponse,
    SampleRequest,
    SamplingParams,
    check_target_logprobs,
)
from ..types.tensor_data import TensorData
from ..wire.jsonbody import encode, wire_form
from ..wire.paths import check_model_path, parse
from ..wire.routes import route
from .future import Future, owned
from .many import ManySamples, Run, SampleInput
from .queue_state import QueueState, QueueStateObserver
from .retry_config import RetryConfig
from .sample_runner import SampleRunner
from .session import Session
from .streaming import SampleStream
from .texts import Texts

if TYPE_CHECKING:
    from .telemetry import Telemetry
    from .training import TrainingClient

__all__ = ["SamplingClient"]

logger: Final = logging.getLogger(__name__)

_SAY_EVERY = 60.0
_INTEGER = Integer()


class SamplingClient(Texts, QueueStateObserver):
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
        self._runner = SampleRunner(holder, sampling_session_id, retry_config, shadow)
        self._runner.observer = weakref.ref(self)
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

        return holder.start(run())

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
        response: SampleResponse = await owned(self._start(form))
        return response

    def sample_stream(
        self,
        prompt: ModelInput,
        sampling_params: SamplingParams,
        num_samples: int = 1,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
        topk_sample_logprobs: int = 0,
        target_prompt_logprobs: TensorData | None = None,
        prompt_alt_tokens_k: int = 0,
        prompt_logprobs_last_n: int | None = None,
        *,
        buffer: int = 64,
    ) -> SampleStream:
        """Start sampling and read the tokens as they come, with `for` or `async for`.

        When `buffer` items wait to be read, no more are taken from the server.
        """
        form = self._form(
            prompt, num_samples, sampling_params, include_prompt_logprobs, topk_prompt_logprobs,
            topk_sample_logprobs, target_prompt_logprobs, prompt_alt_tokens_k, prompt_logprobs_last_n,
        )  # fmt: skip
        return SampleStream(self._runner, form, buffer)

    def sample_many(
        self,
        items: Iterable[SampleInput] | AsyncIterable[SampleInput],
        sampling_params: SamplingParams | None = None,
        num_samples: int = 1,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
        topk_sample_logprobs: int = 0,
        *,
        concurrency: int = 64,
        ordered: bool = False,
        return_exceptions: bool = False,
    ) -> ManySamples:
        """Sample from many prompts and read the results as they complete, with `for` or `async for`.

        Items are prompts, or `SampleRequest`s with settings of their own; no more than `concurrency`
        are taken before a result is read.  The first error is raised and cancels the rest, unless
        `return_exceptions` is set.
        """

        def prepare(item: SampleInput) -> Run:
            if isinstance(item, SampleRequest):
                form = self._request_form(item)
            else:
                params = SamplingParams() if sampling_params is None else sampling_params
                form = self._form(
                    item, num_samples, params, include_prompt_logprobs, topk_prompt_logprobs,
                    topk_sample_logprobs, None, 0, None,
                )  # fmt: skip
            return lambda progress: self._runner.run(form, progress)

        return ManySamples(
            self.holder,
            prepare,
            items,
            concurrency=concurrency,
            ordered=ordered,
            return_exceptions=return_exceptions,
        )

    def compute_logprobs(
        self, prompt: ModelInput, prompt_logprobs_last_n: int | None = None
    ) -> Future[list[float | None]]:
        """The logprob of each prompt token; None where there is none."""
        form = self._logprobs_form(prompt, prompt_logprobs_last_n)
        future: Future[list[float | None]] = Future()

        async def run() -> list[float | None]:
            response = await self._runner.run(form, future.progress)
            return list(response.prompt_logprobs or [])

        return self.holder.start(run(), future=future)

    async def compute_logprobs_async(
        self, prompt: ModelInput, prompt_logprobs_last_n: int | None = None
    ) -> list[float | None]:
        """The logprob of each prompt token; None where there is none."""
        logprobs: list[float | None] = await owned(self.compute_logprobs(prompt, prompt_logprobs_last_n))
        return logprobs

    def _logprobs_form(self, prompt: ModelInput, last_n: int | None) -> dict[str, Any]:
        return self._form(prompt, 1, SamplingParams(max_tokens=1), True, 0, 0, None, 0, last_n)

    def _request_form(self, request: SampleRequest) -> dict[str, Any]:
        if request.base_model or request.model_path or request.sampling_session_id or request.seq_id:
            raise InvalidArgumentError(
                "SampleRequest: leave out base_model, model_path, sampling_session_id and seq_id; "
                "this client fills them in"
            )
        return self._form(
            request.prompt, request.num_samples, request.sampling_params, bool(request.prompt_logprobs),
            request.topk_prompt_logprobs, request.topk_sample_logprobs, request.target_prompt_logprobs,
            request.prompt_alt_tokens_k, request.prompt_logprobs_last_n,
        )  # fmt: skip

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
        num_samples = _whole("num_samples", num_samples, 1)
        if target is not None:
            check_target_logprobs(target)
        alternatives = _whole("prompt_alt_tokens_k", alternatives, 0)
        last_n = None if last_n is None else _whole("prompt_logprobs_last_n", last_n, 1)
        if last_n is not None and not prompt_logprobs:
            raise InvalidArgumentError("prompt_logprobs_last_n: needs include_prompt_logprobs=True")
        if not prompt_logprobs:  # older weights that score a text are a reference, and meant to be old
            self._look_at_weights()
        form: dict[str, Any] = {
            "num_samples": num_samples,
            "prompt": msgspec.Raw(encode(prompt)),
            "sampling_params": wire_form(params),
            "sampling_session_id": self.sampling_session_id,
            "seq_id": None,
            "prompt_logprobs": bool(prompt_logprobs),
            "topk_prompt_logprobs": _whole("topk_prompt_logprobs", topk_prompt),
            "topk_sample_logprobs": _whole("topk_sample_logprobs", topk_sample),
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
        return self.holder.start(self._runner.run(form, future.progress), future=future)

    # ---- about the weights

    async def _sampler(self) -> GetSamplerResponse:
        answer: GetSamplerResponse = await self.holder.connection.caller.read(
            GetSamplerResponse, route("get_sampler"), path={"sampler_id": self.sampling_session_id}
        )
        return answer

    def get_base_model(self) -> str:
        """The base model the weights belong to."""
        return self.holder.start(self._sampler()).result().base_model

    async def get_base_model_async(self) -> str:
        """The base model the weights belong to."""
        return (await self.holder.start(self._sampler())).base_model

    async def _tokenizer_names(self) -> tuple[str, str | None]:
        sampler = await self._sampler()
        said = sampler.extra.get("tokenizer_id")
        if isinstance(said, str):
            return sampler.base_model, said
        # Only a model under training can be asked, and its weights may have outlived it.
        with contextlib.suppress(TinkerError):
            trainer = self._trainer[0]() if self._trainer is not None else None
            owner = (
                trainer.model_id if trainer is not None else parse(sampler.model_path or "").training_run_id
            )
            response = await self.holder.connection.caller.once(
                route("get_info"), encode(GetInfoRequest(model_id=owner))
            )
            said = read_answer(GetInfoResponse, response).model_data.tokenizer_id
        return sampler.base_model, said

    def get_telemetry(self) -> Telemetry | None:
        """What reports events to the server, unless it is off."""
        return self.holder.telemetry

    def on_queue_state_change(self, queue_state: QueueState, queue_state_reason: str | None) -> None:
        """Called when the queue state of a sample changes; logs a pause, unless it was said just now.

        Replace it, on a client or in a subclass, to be told instead; it runs on a thread of its own.
        """
        if queue_state is not QueueState.ACTIVE:
            reason = queue_state_reason or f"the server's queue is {queue_state.value.replace('_', ' ')}"
            self.holder.connection.teller.say(
                logger, f"{self.sampling_session_id}:{queue_state.value}", _SAY_EVERY,
                "sampling from %s is paused: %s", self.sampling_session_id, reason,
            )  # fmt: skip

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


def _whole(name: str, value: object, least: int | None = None) -> int:
    """A whole number in any common form, numpy's too."""
    try:
        number = _INTEGER.take(value)
    except Mismatch as problem:
        raise InvalidArgumentError(f"{name}: {problem.message}") from None
    if least is not None and number < least:
        raise InvalidArgumentError(f"{name}: must be {least} or more, got {number}")
    return number
