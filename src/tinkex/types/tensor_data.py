"""`TensorData`: an array of numbers as it travels, dense or sparse CSR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .._lazy import np
from ..errors import InvalidArgumentError
from .arrays import WIRE_DTYPES, Array, as_array, cast, from_torch, wire_dtype
from .rules import Mismatch, Schema, shown

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

__all__ = ["TensorData", "TensorDtype"]

TensorDtype: TypeAlias = Literal["int64", "float32"]


@dataclass(frozen=True, eq=False, init=False, slots=True)
class TensorData:
    """Numbers with a dtype and a shape; arrays of the right dtype are kept by reference."""

    dtype: TensorDtype
    shape: list[int] | None = None
    sparse_crow_indices: list[int] | None = None
    sparse_col_indices: list[int] | None = None
    _numpy: Array = field(repr=False)  # type: ignore[misc]  # there is no generated __init__

    def __init__(
        self,
        data: Any = None,
        dtype: TensorDtype | None = None,
        shape: list[int] | None = None,
        sparse_crow_indices: list[int] | None = None,
        sparse_col_indices: list[int] | None = None,
    ) -> None:
        if dtype is None:
            raise TypeError("TensorData needs dtype='float32' or dtype='int64'")
        if dtype not in WIRE_DTYPES:
            raise InvalidArgumentError(
                f"TensorData.dtype: {dtype!r} is not supported; use 'float32' or 'int64'"
            )
        array = as_array([] if data is None else data, "TensorData.data")
        array = _writable(cast(array, dtype, "TensorData.data"))
        shape = _checked_shape(shape)
        sparse_crow_indices = _checked_indices("sparse_crow_indices", sparse_crow_indices)
        sparse_col_indices = _checked_indices("sparse_col_indices", sparse_col_indices)
        if sparse_crow_indices is not None or sparse_col_indices is not None:
            _check_csr(array, shape, sparse_crow_indices, sparse_col_indices)
        elif shape is not None and list(array.shape) != shape:
            if array.size != _size(shape):
                raise InvalidArgumentError(
                    f"TensorData.shape: {shape} needs {_size(shape)} values, data has {array.size}"
                )
            array = _reshaped(array, shape)
        _fill(self, array, dtype, shape, sparse_crow_indices, sparse_col_indices)

    @classmethod
    def wrap(cls, array: Array, dtype: TensorDtype, shape: list[int]) -> TensorData:
        """Hold an array already known to have this dtype and shape, without any check."""
        self = object.__new__(cls)
        _fill(self, array, dtype, shape, None, None)
        return self

    @property
    def data(self) -> list[int] | list[float]:
        """The values in row-major order as a list (for sparse tensors: the stored ones)."""
        values: list[int] | list[float] = self._numpy.ravel().tolist()
        return values

    @property
    def is_sparse(self) -> bool:
        """Whether only some cells are stored."""
        return self.sparse_crow_indices is not None

    @classmethod
    def from_numpy(cls, array: npt.NDArray[Any]) -> TensorData:
        """Make one from a numpy array of any integer, float or bool dtype."""
        return cls.of(array, "TensorData.data")

    @classmethod
    def of(cls, value: Any, where: str) -> TensorData:
        """Make one from anything array-like; `where` names it in a refusal or a warning."""
        array = as_array(value, where)
        dtype = wire_dtype(array)
        array = _writable(cast(array, dtype, where))
        return cls.wrap(array, dtype, list(array.shape))

    @classmethod
    def from_torch(cls, tensor: torch.Tensor) -> TensorData:
        """Make one from a torch tensor; bfloat16 is widened to float32."""
        return cls.from_numpy(from_torch(tensor))

    @classmethod
    def from_torch_sparse(cls, tensor: torch.Tensor, pad_value: int = 0) -> TensorData:
        """Make a sparse one from a dense 2-D torch tensor when that saves space, else a dense one."""
        pad_value = _checked_pad(pad_value)
        dense = cls.from_torch(tensor)
        array = dense._numpy
        if array.ndim != 2:
            return dense
        rows, columns = array.shape
        listed = array != pad_value
        count = int(listed.sum())
        if (rows + 1) + 2 * count >= rows * columns:
            return dense
        crow = np.concatenate([[0], listed.sum(axis=1).cumsum()])
        return cls(
            data=array[listed],
            dtype=dense.dtype,
            shape=[rows, columns],
            sparse_crow_indices=crow.tolist(),
            sparse_col_indices=np.nonzero(listed)[1].tolist(),
        )

    def to_numpy(self, pad_value: int = 0) -> npt.NDArray[Any]:
        """The array; cells a sparse tensor does not list hold `pad_value`."""
        if self.sparse_crow_indices is None:
            return self._numpy
        assert self.shape is not None
        assert self.sparse_col_indices is not None
        dense = np.full(self.shape, _checked_pad(pad_value), self._numpy.dtype)
        counts = np.diff(np.asarray(self.sparse_crow_indices, np.int64))
        rows = np.repeat(np.arange(self.shape[0]), counts.tolist())
        dense[rows, np.asarray(self.sparse_col_indices, np.int64)] = self._numpy
        return dense

    def to_torch(self, pad_value: int = 0) -> torch.Tensor:
        """The same as a torch tensor, sharing memory where it can."""
        try:
            import torch
        except ImportError:
            raise ImportError(
                "to_torch() needs PyTorch: pip install 'tinkex[torch]', or use to_numpy()"
            ) from None
        return torch.from_numpy(self.to_numpy(pad_value))

    def tolist(self, pad_value: int = 0) -> list[Any]:
        """The values as (nested) lists."""
        values: list[Any] = self.to_numpy(pad_value).tolist()
        return values

    def equals(self, other: object) -> bool:
        """Whether dtype, shape, layout and values are the same; NaN equals NaN."""
        return (
            isinstance(other, TensorData)
            and self.dtype == other.dtype
            and self.shape == other.shape
            and self.sparse_crow_indices == other.sparse_crow_indices
            and self.sparse_col_indices == other.sparse_col_indices
            and self._numpy.shape == other._numpy.shape
            and bool(np.array_equal(self._numpy, other._numpy, equal_nan=self.dtype == "float32"))
        )

    def nbytes(self) -> int:
        """Bytes this tensor takes on the wire, roughly."""
        indices = len(self.sparse_crow_indices or ()) + len(self.sparse_col_indices or ())
        return int(self._numpy.nbytes) + 8 * indices

    @classmethod
    def __take__(cls, value: Any, lenient: bool = False) -> TensorData:
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise Mismatch(f"expected TensorData or a mapping, got {shown(value)}")
        names = ("data", "dtype", "shape", "sparse_crow_indices", "sparse_col_indices")
        given = {name: value[name] for name in names if value.get(name) is not None}
        if lenient and given.get("dtype") == "float32" and "data" in given:
            given["data"] = _from_json(given["data"])
        try:
            return cls(**given)
        except (InvalidArgumentError, TypeError) as problem:
            raise Mismatch(str(problem)) from None

    @classmethod
    def __schema__(cls, definitions: Schema) -> Schema:
        integers = {"type": "array", "items": {"type": "integer"}}
        return {
            "type": "object",
            "title": "TensorData",
            "description": "Numbers in row-major order; sparse CSR when both index lists are set.",
            "properties": {
                "data": {"type": "array", "items": {"type": "number"}},
                "dtype": {"enum": [*WIRE_DTYPES]},
                "shape": integers,
                "sparse_crow_indices": integers,
                "sparse_col_indices": integers,
            },
            "required": ["data", "dtype"],
        }

    def model_dump(self, *, exclude_none: bool = False, **_options: Any) -> dict[str, Any]:
        """The JSON form."""
        known = {
            "data": self.data,
            "dtype": self.dtype,
            "shape": self.shape,
            "sparse_crow_indices": self.sparse_crow_indices,
            "sparse_col_indices": self.sparse_col_indices,
        }
        return {name: value for name, value in known.items() if value is not None or not exclude_none}


_set = object.__setattr__
_MOST_DIMENSIONS = 64  # as arrays may have


def _fill(
    tensor: TensorData,
    array: Array,
    dtype: str,
    shape: list[int] | None,
    crow: list[int] | None,
    col: list[int] | None,
) -> None:
    _set(tensor, "dtype", dtype)
    _set(tensor, "shape", shape)
    _set(tensor, "sparse_crow_indices", crow)
    _set(tensor, "sparse_col_indices", col)
    _set(tensor, "_numpy", array)


def _from_json(data: Any) -> Any:
    """Floats as JSON carries them: a NaN or infinity, which it lacks, comes as a word or as null."""
    try:
        return np.asarray(data, np.float64)
    except (TypeError, ValueError):
        return data  # the constructor says what is wrong with it


def _writable(array: Array) -> Array:
    """Copy read-only memory: torch.from_numpy warns about memory it must not write to."""
    return array if array.flags.writeable else array.copy()


def _size(shape: list[int]) -> int:
    product = 1
    for length in shape:
        product *= length
    return product


def _reshaped(array: Array, shape: list[int]) -> Array:
    try:
        return array.reshape(shape)
    except (ValueError, OverflowError) as problem:  # more dimensions, or longer ones, than arrays have
        raise InvalidArgumentError(f"TensorData.shape: {shown(shape)}: {problem}") from None


def _checked_shape(shape: Any) -> list[int] | None:
    if shape is None:
        return None
    try:
        lengths = [int(length) for length in shape if length == int(length)]
        fits = len(lengths) <= _MOST_DIMENSIONS and all(0 <= length < 2**63 for length in lengths)
        if fits and len(lengths) == len(shape):
            return lengths
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidArgumentError(
        f"TensorData.shape: {shown(shape)} is not a list of lengths (whole numbers, 0 or more)"
    )


def _checked_indices(name: str, indices: Any) -> list[int] | None:
    if indices is None:
        return None
    array = as_array(indices, f"TensorData.{name}")
    whole = array.dtype.kind in "iu" or (
        array.dtype.kind == "f" and bool(((array == np.trunc(array)) & (np.abs(array) < 2.0**63)).all())
    )
    if array.ndim != 1 or not whole:
        raise InvalidArgumentError(f"TensorData.{name}: {shown(indices)} is not a list of whole numbers")
    if isinstance(indices, list) and array.dtype.kind == "i":
        return indices
    plain: list[int] = array.astype(np.int64).tolist()
    return plain


def _checked_pad(pad_value: Any) -> int:
    if isinstance(pad_value, bool) or not isinstance(pad_value, (int, np.integer)):
        raise TypeError(f"pad_value must be an integer, got {shown(pad_value)}")
    return int(pad_value)


def _check_csr(
    values: Array, shape: list[int] | None, crow: list[int] | None, col: list[int] | None
) -> None:
    if crow is None or col is None:
        raise InvalidArgumentError("TensorData: sparse_crow_indices and sparse_col_indices come together")
    if shape is None or len(shape) != 2:
        raise InvalidArgumentError(f"TensorData.shape: a sparse tensor needs [rows, columns], got {shape}")
    rows, columns = shape
    crow_array, col_array = np.asarray(crow, np.int64), np.asarray(col, np.int64)
    ascending = crow_array.size and crow_array[0] == 0 and (np.diff(crow_array) >= 0).all()
    if crow_array.shape != (rows + 1,) or not ascending:
        raise InvalidArgumentError(
            f"TensorData.sparse_crow_indices: needs {rows + 1} ascending numbers from 0, got {shown(crow)}"
        )
    if values.ndim != 1 or not values.size == col_array.size == int(crow_array[-1]):
        raise InvalidArgumentError(
            f"TensorData: {values.size} values, {col_array.size} column indices and a last row "
            f"pointer of {int(crow_array[-1])} must agree"
        )
    if col_array.size and not (0 <= int(col_array.min()) and int(col_array.max()) < columns):
        raise InvalidArgumentError(
            f"TensorData.sparse_col_indices: must be from 0 to {columns - 1}, got {shown(col)}"
        )
