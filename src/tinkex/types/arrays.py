"""Turning what users hold — lists, numpy, torch, anything with a buffer — into wire arrays."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any, Literal

from .._lazy import np
from ..errors import InvalidArgumentError
from .rules import shown

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
else:
    Array = Any

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MAX = 2**63 - 1
WIRE_DTYPES = ("float32", "int64")


class LossyCastWarning(UserWarning):
    """A cast to a wire dtype changed values."""


def is_torch(value: object) -> bool:
    """Whether a value is a torch tensor, without importing torch."""
    return _is("torch", "Tensor", value)


def is_numpy(value: object) -> bool:
    """Whether a value is a numpy array, without importing numpy."""
    return _is("numpy", "ndarray", value)


def _is(module: str, name: str, value: object) -> bool:
    # While another thread imports it the module is there and what is in it is not.
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def from_torch(tensor: Any) -> Array:
    """A torch tensor's values as a numpy array; bfloat16 is widened, shared memory is kept shared."""
    import torch

    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    array: Array = tensor.cpu().contiguous().numpy()
    return array


def as_array(value: Any, where: str) -> Array:
    """Any array-like value as a numpy array of numbers, or a clear refusal."""
    if is_numpy(value):
        array: Array = value
    elif is_torch(value):
        array = from_torch(value)
    else:
        try:
            array = np.asarray(value)
        except (ValueError, TypeError, OverflowError):
            raise InvalidArgumentError(
                f"{where}: must be a rectangular numeric array; ragged nested lists are not supported, "
                f"got {shown(value)}"
            ) from None
    if array.dtype.kind not in "fiub":
        if array.dtype.name == "bfloat16":  # slow to ask, so only of a kind numpy does not know
            return array.astype(np.float32)
        if array.dtype.kind == "O" and not is_numpy(value):
            raise InvalidArgumentError(
                f"{where}: must be a rectangular numeric array within int64, got {shown(value)}"
            )
        raise InvalidArgumentError(
            f"{where}: dtype {array.dtype.name} is not supported; use an integer, float or bool array, "
            f"got {shown(value)}"
        )
    return array


def wire_dtype(array: Array) -> Literal["float32", "int64"]:
    """The wire dtype an array is sent as: float32 for floats, int64 for integers and bools."""
    return "float32" if array.dtype.kind == "f" else "int64"


def cast(array: Array, dtype: str, where: str) -> Array:
    """An array in a wire dtype, aliased when it has it already; a cast that loses values warns."""
    if array.dtype == dtype:
        return array
    if dtype == "int64":
        _check_integers(array, where)
        return array.astype(np.int64)
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    if array.dtype.itemsize > 4 or array.dtype.kind in "iu":
        _warn_if_lossy(array, narrow, where)
    return narrow


def _check_integers(array: Array, where: str) -> None:
    if array.dtype.kind == "f":
        finite = np.isfinite(array)
        if not finite.all():
            index = int(np.flatnonzero(~finite)[0])
            raise InvalidArgumentError(
                f"{where}[{index}]: NaN or infinity cannot be sent as int64, got {array.flat[index]}"
            )
        if (array != np.trunc(array)).any():
            _warn(f"{where}: fractions are cut off by the cast from {array.dtype.name} to int64")
        if array.size and (np.abs(array).max() >= 2.0**63):
            largest = array.flat[int(np.abs(array).argmax())]
            raise InvalidArgumentError(f"{where}: {largest} is beyond int64 (at most {INT64_MAX})")
    elif array.dtype == np.uint64 and array.size and int(array.max()) > INT64_MAX:
        raise InvalidArgumentError(f"{where}: {int(array.max())} is beyond int64 (at most {INT64_MAX})")


def _warn_if_lossy(array: Array, narrow: Array, where: str) -> None:
    if array.dtype.kind in "iu":
        if _digits_lost(array, narrow).any():
            _warn(f"{where}: {array.dtype.name} values beyond 2^24 lose digits as float32")
    elif (np.isinf(narrow) & np.isfinite(array)).any():
        _warn(f"{where}: {array.dtype.name} values beyond float32 become infinite")


def _digits_lost(array: Array, narrow: Array) -> Array:
    """Where casting back does not give the integer again; float64 could not tell beyond 2^53."""
    limits = np.iinfo(array.dtype)
    inside = (narrow >= float(limits.min)) & (narrow < float(limits.max) + 1)
    lost: Array = ~inside | (np.where(inside, narrow, 0).astype(array.dtype) != array)
    return lost


def _warn(text: str) -> None:
    warnings.warn(text, LossyCastWarning, stacklevel=5)


def token_array(value: Any, where: str) -> Array:
    """Token ids as a one-dimensional int32 array, or a refusal that names the first bad one."""
    array = as_array(value, where)
    if array.ndim != 1:
        raise InvalidArgumentError(f"{where}: must be one-dimensional, got shape {list(array.shape)}")
    if array.dtype == np.int32:
        return array
    if array.size == 0:
        return np.empty(0, np.int32)
    if array.dtype.kind == "f" or array.dtype.kind == "b":
        raise InvalidArgumentError(
            f"{where}: token ids must be integers, got dtype {array.dtype.name}: {shown(value)}"
        )
    narrow: Array = array.astype(np.int32)
    wrong = narrow != array
    if wrong.any():
        index = int(np.flatnonzero(wrong)[0])
        raise InvalidArgumentError(
            f"{where}[{index}]: {int(array[index])} is outside int32 ({INT32_MIN} to {INT32_MAX})"
        )
    return narrow
