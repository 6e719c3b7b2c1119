"""Asking a model for samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from ..errors import InvalidArgumentError
from .model_input import ModelInput
from .record import Record
from .rules import Bounds, Integer, Mismatch, Rule, Schema, shown
from .tensor_data import TensorData

__all__ = [
    "CreateSamplingSessionRequest",
    "CreateSamplingSessionResponse",
    "GetSamplerResponse",
    "JoinSamplingSessionRequest",
    "JoinSamplingSessionResponse",
    "SampleRequest",
    "SamplingParams",
]


_INTEGER = Integer()


class StopRule(Rule):
    """Where sampling stops: a text, several texts, or token ids."""

    __slots__ = ()

    def take(self, value: Any, lenient: bool = False) -> str | list[str] | list[int]:
        """Accept one text, or a list that holds texts only or token ids only."""
        if isinstance(value, str):
            return value
        if not isinstance(value, (list, tuple)) and not hasattr(value, "tolist"):
            raise Mismatch(f"expected text, a list of texts or a list of token ids, got {shown(value)}")
        items = value.tolist() if hasattr(value, "tolist") else list(value)
        if all(isinstance(item, str) for item in items):
            return items
        try:
            return [_INTEGER.take(item) for item in items]
        except Mismatch:
            raise Mismatch(f"must hold texts only or token ids only, got {shown(value)}") from None

    def schema(self, definitions: Schema) -> Schema:
        """Describe the three forms."""
        return {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}},
                {"type": "array", "items": {"type": "integer"}},
            ]
        }


Stop: TypeAlias = Annotated[str | Sequence[str] | Sequence[int], StopRule()]


class SamplingParams(Record):
    """How to sample; `stop=None` stops at the end-of-text token, `stop=[]` stops at nothing."""

    max_tokens: int | None = None
    seed: int | None = None
    stop: Stop | None = None
    temperature: Annotated[float, Bounds(finite=True)] = 1.0
    top_k: int = -1
    top_p: Annotated[float, Bounds(finite=True)] = 1.0


class SampleRequest(Record):
    """Asks for samples that continue a prompt."""

    num_samples: int = 1
    prompt: ModelInput
    sampling_params: SamplingParams
    base_model: str | None = None
    model_path: str | None = None
    sampling_session_id: str | None = None
    seq_id: int | None = None
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: TensorData | None = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: int | None = None
    record_stability_info: bool | None = None
    type: Literal["sample"] = "sample"


class CreateSamplingSessionRequest(Record):
    """Opens a sampling session on a base model or on saved sampler weights."""

    session_id: str
    sampling_session_seq_id: int
    base_model: str | None = None
    model_path: str | None = None
    type: Literal["create_sampling_session"] = "create_sampling_session"


class CreateSamplingSessionResponse(Record):
    """The id of a new sampling session."""

    type: Literal["create_sampling_session"] = "create_sampling_session"
    sampling_session_id: str


class JoinSamplingSessionRequest(Record):
    """Joins a sampling session from another process."""

    sampling_session_id: str
    type: Literal["join_sampling_session"] = "join_sampling_session"


class JoinSamplingSessionResponse(Record):
    """The number that tells this process's samples from the others'."""

    type: Literal["join_sampling_session"] = "join_sampling_session"
    client_counter: int


class GetSamplerResponse(Record):
    """What a sampling session samples from."""

    sampler_id: str
    base_model: str
    model_path: str | None = None


def check_target_logprobs(tensor: TensorData) -> None:
    """Refuse target ids that are not an int64 matrix."""
    if tensor.dtype != "int64" or tensor.shape is None or len(tensor.shape) != 2:
        raise InvalidArgumentError(
            "target_prompt_logprobs: expected an int64 tensor [len(prompt) - 1, K], "
            f"got {tensor.dtype} of shape {tensor.shape}"
        )
