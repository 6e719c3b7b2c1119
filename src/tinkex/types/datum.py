"""`Datum`: one training example, an input and the arrays its loss needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from ..errors import InvalidArgumentError
from .arrays import as_array, cast, is_numpy, is_torch
from .model_input import ModelInput
from .provenance_spans import PromptProvenanceSpan, ProvenanceSpans, SampledProvenanceSpan
from .rules import Mismatch, Schema, shown
from .tensor_data import TensorData, TensorDtype

__all__ = ["Datum", "LossFnInputs"]

LossFnInputs: TypeAlias = dict[str, TensorData]

# The dtype of a plain list, which has none of its own, follows from its name.
LIST_DTYPES: Mapping[str, TensorDtype] = {
    "target_tokens": "int64",
    "weights": "float32",
    "advantages": "float32",
    "logprobs": "float32",
    "clip_low_threshold": "float32",
    "clip_high_threshold": "float32",
    "sequence_ratio_mask": "float32",
}
_SPARSE_WHEN_SMALLER = ("target_tokens", "weights")
_MOST_DIMENSIONS = 2


@dataclass(frozen=True, slots=True)
class Datum:
    """One training example; loss inputs may be TensorData, numpy, torch or lists."""

    model_input: ModelInput
    loss_fn_inputs: LossFnInputs = field(default_factory=dict)
    model_input_spans: ProvenanceSpans | None = None
    loss_fn_input_spans: ProvenanceSpans | None = None

    if TYPE_CHECKING:  # what may be given is more than what is kept

        def __init__(
            self,
            model_input: ModelInput,
            loss_fn_inputs: Mapping[str, Any] = ...,
            model_input_spans: ProvenanceSpans | None = None,
            loss_fn_input_spans: ProvenanceSpans | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        if not isinstance(self.model_input, ModelInput):
            raise InvalidArgumentError(
                f"Datum.model_input: expected a ModelInput, got {shown(self.model_input)}"
            )
        if not isinstance(self.loss_fn_inputs, Mapping):
            raise InvalidArgumentError(
                f"Datum.loss_fn_inputs: expected a mapping, got {shown(self.loss_fn_inputs)}"
            )
        tensors = {name: _tensor(name, value) for name, value in self.loss_fn_inputs.items()}
        object.__setattr__(self, "loss_fn_inputs", tensors)
        _check_spans("model_input_spans", self.model_input_spans)
        _check_spans("loss_fn_input_spans", self.loss_fn_input_spans)
        if (self.model_input_spans is None) != (self.loss_fn_input_spans is None):
            raise _HalfProvenance("Datum: provenance comes as a pair; set both span lists or neither")

    def with_provenance(self, model_input: ProvenanceSpans, loss_fn_inputs: ProvenanceSpans) -> Self:
        """The same datum with spans that tile its input and its target tokens exactly."""
        _check_tiling("model_input", model_input, self.model_input.length)
        targets = self.loss_fn_inputs.get("target_tokens")
        if targets is not None and targets.shape is not None and len(targets.shape) == 1:
            _check_tiling("loss_fn_inputs", loss_fn_inputs, targets.shape[0])
        return replace(self, model_input_spans=model_input, loss_fn_input_spans=loss_fn_inputs)

    @classmethod
    def __take__(cls, value: Any, lenient: bool = False) -> Self:
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping) or "model_input" not in value:
            raise Mismatch(f"expected Datum or a mapping with model_input, got {shown(value)}")
        try:
            model_input = ModelInput.__take__(value["model_input"], lenient)
        except Mismatch as problem:
            raise problem.inside("model_input") from None
        given = value.get("loss_fn_inputs") or {}
        if not isinstance(given, Mapping):
            raise Mismatch(f"expected a mapping, got {shown(given)}", "loss_fn_inputs")
        inputs = {}
        for name, tensor in given.items():
            try:
                inputs[name] = TensorData.__take__(tensor, lenient)
            except Mismatch as problem:
                raise problem.inside(f"loss_fn_inputs[{name!r}]") from None
        try:
            return cls(model_input, inputs)
        except InvalidArgumentError as problem:
            raise Mismatch(str(problem)) from None

    @classmethod
    def __schema__(cls, definitions: Schema) -> Schema:
        from .compounds import Own, Table

        return {
            "type": "object",
            "title": "Datum",
            "properties": {
                "model_input": Own(ModelInput).schema(definitions),
                "loss_fn_inputs": Table(Own(TensorData)).schema(definitions),
            },
            "required": ["model_input", "loss_fn_inputs"],
        }

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """The JSON form; spans travel in protobuf only."""
        return {
            "model_input": self.model_input.model_dump(**options),
            "loss_fn_inputs": {k: v.model_dump(exclude_none=True) for k, v in self.loss_fn_inputs.items()},
        }


class _HalfProvenance(InvalidArgumentError, AssertionError):
    """One span list without the other (an AssertionError in the official SDK)."""


def _tensor(name: str, value: Any) -> TensorData:
    where = f"Datum.loss_fn_inputs[{name!r}]"
    if not isinstance(name, str):
        raise InvalidArgumentError(f"{where}: the name of a loss input must be text, got {shown(name)}")
    if isinstance(value, TensorData):
        tensor = value
    elif is_torch(value):
        sparse = name in _SPARSE_WHEN_SMALLER and value.ndim == _MOST_DIMENSIONS
        tensor = TensorData.from_torch_sparse(value) if sparse else TensorData.from_torch(value)
    elif is_numpy(value) or hasattr(value, "__array_interface__") or hasattr(value, "__dlpack__"):
        tensor = TensorData.of(value, where)
    elif isinstance(value, (list, tuple)):
        tensor = _from_list(name, value, where)
    else:
        raise TypeError(
            f"{where}: expected TensorData, a numpy or torch array or a list, got {shown(value)}"
        )
    dimensions = len(tensor.shape) if tensor.shape is not None else tensor._numpy.ndim
    if dimensions > _MOST_DIMENSIONS:
        raise InvalidArgumentError(
            f"{where}: shape {tensor.shape} has {dimensions} dimensions; a scalar, [T] or [T, K] is allowed"
        )
    return tensor


def _from_list(name: str, value: list[Any] | tuple[Any, ...], where: str) -> TensorData:
    dtype = LIST_DTYPES.get(name)
    if dtype is None:
        known = ", ".join(LIST_DTYPES)
        raise InvalidArgumentError(
            f"{where}: a plain list has no dtype under this name; give a numpy array or "
            f"TensorData(data=…, dtype=…), or use one of: {known}"
        )
    array = cast(as_array(value, where), dtype, where)
    return TensorData(data=array, dtype=dtype, shape=list(array.shape))


def _check_spans(name: str, spans: ProvenanceSpans | None) -> None:
    for span in spans or ():
        if not isinstance(span, (PromptProvenanceSpan, SampledProvenanceSpan)):
            raise TypeError(
                f"Datum.{name}: expected PromptProvenanceSpan or SampledProvenanceSpan, got {shown(span)}"
            )


def _check_tiling(name: str, spans: ProvenanceSpans, expected: int) -> None:
    covered = sum(span.length for span in spans)
    if covered != expected:
        raise InvalidArgumentError(
            f"with_provenance {name}: the spans cover {covered} positions, the field has {expected}"
        )
