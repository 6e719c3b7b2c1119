"""Tickets for work, and how one asks for its result."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from ..errors import RequestErrorCategory
from .compounds import OneOf
from .forward_backward_output import ForwardBackwardOutput
from .identifiers import ModelID, RequestID
from .model import CreateModelResponse, UnloadModelResponse
from .optimizer import OptimStepResponse
from .record import OpenRecord, Record
from .weights import (
    LoadWeightsResponse,
    SaveWeightsExternalResponse,
    SaveWeightsForSamplerResponse,
    SaveWeightsResponse,
)

__all__ = [
    "FutureCompletion",
    "FutureFailed",
    "FutureFinished",
    "FutureRetrieveRequest",
    "FutureRetrieveResponse",
    "FuturesRetrieveRequest",
    "FuturesRetrieveResponse",
    "RequestErrorCategory",
    "RequestFailedResponse",
    "SamplingSessionFuturesTarget",
    "TryAgainResponse",
    "UntypedAPIFuture",
]


class UntypedAPIFuture(Record):
    """A ticket for work the server accepted."""

    request_id: RequestID
    model_id: ModelID | None = None
    sample_sequence_ids: list[str] | None = None


class FutureRetrieveRequest(Record):
    """Asks for the result of one ticket."""

    request_id: RequestID
    allow_metadata_only: bool = False


class TryAgainResponse(Record):
    """The work is not done yet; `queue_state` says whether it moves."""

    type: Literal["try_again"] = "try_again"
    request_id: str
    queue_state: Literal["active", "paused_capacity", "paused_rate_limit"]
    queue_state_reason: str | None = None


class RequestFailedResponse(Record):
    """The work was run and failed."""

    error: str
    category: RequestErrorCategory


class SamplingSessionFuturesTarget(Record):
    """The samples of one sampling session (and one of its clones)."""

    type: Literal["sampling_session"] = "sampling_session"
    sampling_session_id: str
    cloned_sampler_id: int = 0
    __tag__ = "sampling_session"


class FuturesRetrieveRequest(Record):
    """Asks which samples of a session are done since `prev_cursor`."""

    target: SamplingSessionFuturesTarget
    prev_cursor: int = 0
    timeout: float | None = None
    retrieved_request_ids: list[str] = []


class FutureFinished(Record):
    """A ticket whose result is ready."""

    state: Literal["finished"] = "finished"
    request_id: RequestID
    response_payload_uncompressed_size: int | None = None
    __tag__ = "finished"


class FutureFailed(Record):
    """A ticket whose work failed."""

    state: Literal["failed"] = "failed"
    request_id: RequestID
    __tag__ = "failed"


class UnknownCompletion(OpenRecord):
    """A ticket in a state this version does not know."""

    state: str


FutureCompletion: TypeAlias = Annotated[
    FutureFinished | FutureFailed, OneOf("state", unknown=UnknownCompletion)
]


class FuturesRetrieveResponse(Record):
    """The tickets that ended, and where to go on from."""

    completions: list[FutureCompletion]
    cursor: int


FutureRetrieveResponse: TypeAlias = (
    TryAgainResponse
    | ForwardBackwardOutput
    | OptimStepResponse
    | SaveWeightsResponse
    | LoadWeightsResponse
    | SaveWeightsForSamplerResponse
    | SaveWeightsExternalResponse
    | CreateModelResponse
    | UnloadModelResponse
    | RequestFailedResponse
)
