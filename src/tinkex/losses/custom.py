"""A loss of one's own: logprobs in, gradient out, trained through a weighted cross-entropy.

The server's cross-entropy is -Σ w·logp, so weights of minus the loss's gradient give exactly that
gradient.  torch is imported only when a torch loss is used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .._lazy import np
from ..errors import InvalidArgumentError
from ..types.arrays import Array
from ..types.datum import Datum
from ..types.forward_backward_output import ForwardBackwardOutput
from ..types.tensor_data import TensorData

__all__ = ["LossResult", "backward_data", "evaluate", "forward_data", "merged", "numpy_loss"]

F = TypeVar("F", bound=Callable[..., Any])

_FORWARD_INPUTS = ("target_tokens", "weights")


@dataclass(frozen=True, slots=True)
class LossResult:
    """What a custom loss gave: its value, its metrics, and its gradient per example."""

    loss: float
    metrics: Mapping[str, float]
    gradients: list[Array]


def numpy_loss(function: F) -> F:
    """Mark a loss that takes numpy arrays and returns (loss, metrics, gradients).

    One gradient per example, of the shape of its logprobs; numpy, jax or anything with a buffer.
    """
    function.__tinkex_numpy_loss__ = True  # type: ignore[attr-defined]
    return function


def forward_data(data: Sequence[Datum]) -> list[Datum]:
    """The examples as a forward pass wants them: targets, and weights of zero if there are none."""
    prepared = []
    for index, datum in enumerate(data):
        targets = datum.loss_fn_inputs.get("target_tokens")
        if targets is None:
            raise InvalidArgumentError(f"data[{index}].loss_fn_inputs: a custom loss needs target_tokens")
        weights = datum.loss_fn_inputs.get("weights") or _zeros_like(targets)
        inputs = {"target_tokens": targets, "weights": weights}
        prepared.append(
            Datum(datum.model_input, inputs, datum.model_input_spans, datum.loss_fn_input_spans)
        )
    return prepared


def _zeros_like(targets: TensorData) -> TensorData:
    shape = targets.shape if targets.shape is not None else list(targets._numpy.shape)
    if targets.is_sparse:
        values = np.zeros(targets._numpy.shape, np.float32)
        return TensorData(values, "float32", shape, targets.sparse_crow_indices, targets.sparse_col_indices)
    return TensorData.from_numpy(np.zeros(shape, np.float32))


def _logprobs(output: ForwardBackwardOutput, data: Sequence[Datum]) -> list[Array]:
    arrays = []
    for index, (one, datum) in enumerate(zip(output.loss_fn_outputs, data, strict=True)):
        if "logprobs" not in one:
            raise InvalidArgumentError(f"the server gave no logprobs for data[{index}]")
        array = one["logprobs"].to_numpy()
        targets = datum.loss_fn_inputs["target_tokens"]
        shape = targets.shape if targets.shape is not None else list(targets._numpy.shape)
        if array.size != int(np.prod(shape)):
            raise InvalidArgumentError(
                f"data[{index}]: {array.size} logprobs came back for targets of shape {shape}"
            )
        arrays.append(array.reshape(shape))
    return arrays


def evaluate(
    function: Callable[..., Any], data: Sequence[Datum], output: ForwardBackwardOutput
) -> LossResult:
    """Run the user's loss on the logprobs of a forward pass."""
    logprobs = _logprobs(output, data)
    if getattr(function, "__tinkex_numpy_loss__", False):
        return _numpy(function, data, logprobs)
    return _torch(function, data, logprobs)


def _numpy(function: Callable[..., Any], data: Sequence[Datum], logprobs: list[Array]) -> LossResult:
    loss, metrics, gradients = function(list(data), logprobs)
    arrays = [_as_numpy(gradient) for gradient in gradients]
    shapes = [list(array.shape) for array in logprobs]
    if [list(array.shape) for array in arrays] != shapes:
        raise InvalidArgumentError(
            f"the loss returned gradients of shapes {[list(a.shape) for a in arrays]}, "
            f"the logprobs have {shapes}"
        )
    return LossResult(float(loss), _plain(metrics), arrays)


def _plain(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The user's metrics with scalar tensors as numbers; what is none stays as it is."""
    plain = dict(metrics)
    for name, value in plain.items():
        if not isinstance(value, str):
            with contextlib.suppress(TypeError, ValueError, RuntimeError):
                plain[name] = float(value)
    return plain


def _as_numpy(value: Any) -> Array:
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return np.from_dlpack(value).astype(np.float32, copy=False)
    return np.asarray(value, dtype=np.float32)


def _torch(function: Callable[..., Any], data: Sequence[Datum], logprobs: list[Array]) -> LossResult:
    try:
        import torch
    except ImportError:
        raise ImportError(
            "a custom loss written in torch needs PyTorch: pip install 'tinkex[torch]'; or mark a "
            "loss that returns its own gradients with @tinkex.losses.numpy_loss"
        ) from None
    # The caller may have switched gradients off for what it does itself.
    with torch.inference_mode(False), torch.enable_grad():
        leaves = [torch.from_numpy(array.copy()).requires_grad_(True) for array in logprobs]
        loss, metrics = function(list(data), leaves)
        loss.backward()
    gradients: list[Array] = []
    for index, leaf in enumerate(leaves):
        if leaf.grad is None:
            raise InvalidArgumentError(
                f"the loss does not depend on the logprobs of data[{index}]: no gradient; "
                "leave that example out, or multiply its logprobs by zero"
            )
        gradients.append(leaf.grad.numpy())
    return LossResult(float(loss.detach()), _plain(metrics), gradients)


def backward_data(data: Sequence[Datum], gradients: Sequence[Array]) -> list[Datum]:
    """The examples of the backward pass: weights of minus the gradient."""
    prepared = []
    for datum, gradient in zip(data, gradients, strict=True):
        targets = datum.loss_fn_inputs["target_tokens"]
        inputs = {"target_tokens": targets, "weights": _weights(targets, -gradient)}
        prepared.append(
            Datum(datum.model_input, inputs, datum.model_input_spans, datum.loss_fn_input_spans)
        )
    return prepared


def _weights(targets: TensorData, dense: Array) -> TensorData:
    """Weights in the layout of the targets."""
    if not targets.is_sparse:
        return TensorData.from_numpy(np.ascontiguousarray(dense, np.float32))
    assert targets.shape is not None
    assert targets.sparse_crow_indices is not None
    counts = np.diff(np.asarray(targets.sparse_crow_indices))
    rows = np.repeat(np.arange(targets.shape[0]), counts.tolist())
    listed = dense[rows, np.asarray(targets.sparse_col_indices)].astype(np.float32)
    return TensorData(
        listed, "float32", targets.shape, targets.sparse_crow_indices, targets.sparse_col_indices
    )


def merged(result: LossResult, output: ForwardBackwardOutput) -> ForwardBackwardOutput:
    """The backward pass's result with the custom loss's value and metrics."""
    metrics = dict(output.metrics)
    surrogate = metrics.pop("loss:sum", None)
    metrics |= result.metrics
    metrics["loss:sum"] = result.loss
    if surrogate is not None:
        metrics["surrogate_loss:sum"] = surrogate
    return ForwardBackwardOutput(output.loss_fn_output_type, output.loss_fn_outputs, metrics)
