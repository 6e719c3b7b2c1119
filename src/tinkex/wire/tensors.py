"""Tensors in protobuf, dense and sparse, both ways."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from .._lazy import np
from ..errors import InvalidArgumentError
from ..types.arrays import Array
from ..types.tensor_data import TensorData, TensorDtype
from .fields import Writer, varint

if TYPE_CHECKING:
    from . import tinker_public_pb2 as pb

__all__ = ["from_message", "take_buffer", "write_named", "write_tensor"]

FLOAT32, INT64, INT32, BFLOAT16 = 1, 2, 3, 4
DTYPE_NUMBERS = {"float32": FLOAT32, "int64": INT64}
DTYPE_NAMES: dict[int, TensorDtype] = {
    FLOAT32: "float32",
    BFLOAT16: "float32",
    INT64: "int64",
    INT32: "int64",
}
_STORED = {FLOAT32: "<f4", INT64: "<i8", INT32: "<i4", BFLOAT16: "<u2"}


def write_tensor(tensor: TensorData) -> Writer:
    """A `Tensor` message around the array's own memory."""
    message = Writer()
    array = np.ascontiguousarray(tensor._numpy)
    if tensor.sparse_crow_indices is None:
        message.data(1, array, array.nbytes)
    else:
        csr = Writer()
        csr.data(1, array, array.nbytes)
        for number, indices in (
            (2, tensor.sparse_crow_indices),
            (3, tensor.sparse_col_indices),
        ):
            stored = np.asarray(indices, np.int64)
            csr.data(number, stored, stored.nbytes)
        message.message(2, csr)
    message.raw(_tail(tensor.dtype, tuple(tensor.shape or ())))
    return message


def _tail(dtype: TensorDtype, shape: tuple[int, ...]) -> bytes:
    message = Writer()
    message.integer(3, DTYPE_NUMBERS[dtype])
    if shape:
        packed = b"".join(map(varint, shape))
        message.data(4, packed, len(packed))
    return message.bytes()


def write_named(message: Writer, number: int, name: str, tensor: TensorData) -> None:
    """An entry of a `map<string, Tensor>` field."""
    array = np.ascontiguousarray(tensor._numpy)
    if tensor.sparse_crow_indices is None and array.nbytes:
        head, tail = _frame(number, name, tensor.dtype, array.nbytes, tuple(tensor.shape or ()))
        message.parts += (head, array, tail)
        message.length += len(head) + array.nbytes + len(tail)
        return
    entry = Writer()
    entry.text(1, name)
    entry.message(2, write_tensor(tensor))
    message.message(number, entry)


@functools.lru_cache(4096)
def _frame(
    number: int, name: str, dtype: TensorDtype, size: int, shape: tuple[int, ...]
) -> tuple[bytes, bytes]:
    """What stands before and after a dense tensor's own bytes; a batch has few different ones."""
    tail = _tail(dtype, shape)
    tensor, entry, message = Writer(), Writer(), Writer()
    tensor.data(1, b"", size)
    tensor.length += len(tail)
    entry.text(1, name)
    entry.message(2, tensor)
    message.message(number, entry)
    return message.bytes(), tail


def dtype_name(number: int) -> TensorDtype:
    """The public dtype of a stored one."""
    name = DTYPE_NAMES.get(number)
    if name is None:
        raise InvalidArgumentError(
            f"Tensor.dtype: {number} is not known; use {FLOAT32} (float32) or {INT64} (int64)"
        )
    return name


def take_buffer(data: bytes, dtype: int) -> Array:
    """Stored bytes as a writable array of the public dtype: bfloat16 and int32 are widened."""
    name = dtype_name(dtype)
    stored = np.dtype(_STORED[dtype])
    if len(data) % stored.itemsize:
        raise InvalidArgumentError(
            f"Tensor: {len(data)} bytes are no whole number of {stored.itemsize}-byte values"
        )
    if dtype == BFLOAT16:
        # A bfloat16 is the upper half of a float32.
        widened = np.frombuffer(data, stored).astype(np.uint32) << 16
        return widened.view(np.float32)
    if dtype == INT32:
        return np.frombuffer(data, stored).astype(np.int64)
    # One copy makes the memory writable, as torch wants it.
    return np.frombuffer(bytearray(data), np.dtype(name))


def from_message(message: pb.Tensor) -> TensorData:
    """A `Tensor` message as `TensorData`; an empty shape means a scalar or an unstated one."""
    dtype = dtype_name(message.dtype)
    shape: Any = list(message.shape)
    if message.HasField("sparse_csr"):
        csr = message.sparse_csr
        return TensorData(
            data=take_buffer(csr.values, message.dtype),
            dtype=dtype,
            shape=shape,
            sparse_crow_indices=take_buffer(csr.crow_indices, INT64).tolist(),
            sparse_col_indices=take_buffer(csr.col_indices, INT64).tolist(),
        )
    array = take_buffer(message.dense, message.dtype)
    if not shape and array.size != 1:
        shape = [array.size]
    return TensorData(data=array, dtype=dtype, shape=shape)
