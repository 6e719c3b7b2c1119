"""Arrays and tensors to try the wire with, and when two of them are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tinkex import types

FLOATS32 = st.floats(width=32)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=5)
WIRE_ARRAYS = hnp.arrays(np.float32, SHAPES, elements=FLOATS32) | hnp.arrays(np.int64, SHAPES)


def same(left: Any, right: Any) -> bool:
    """Equal bit for bit as far as values go: NaN equals NaN, -0.0 is not 0.0."""
    left, right = np.asarray(left), np.asarray(right)
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype.kind != "f":
        return bool(np.array_equal(left, right))
    signs = np.isnan(left) | (np.signbit(left) == np.signbit(right))
    return bool(np.array_equal(left, right, equal_nan=True) and signs.all())


@st.composite
def csr(draw: Any) -> types.TensorData:
    rows, columns = draw(st.integers(0, 5)), draw(st.integers(1, 5))
    listed = [sorted(draw(st.sets(st.integers(0, columns - 1)))) for _ in range(rows)]
    crow = [0]
    for row in listed:
        crow.append(crow[-1] + len(row))
    dtype = draw(st.sampled_from(["int64", "float32"]))
    element = FLOATS32 if dtype == "float32" else st.integers(-(2**63), 2**63 - 1)
    return types.TensorData(
        data=draw(st.lists(element, min_size=crow[-1], max_size=crow[-1])),
        dtype=dtype,
        shape=[rows, columns],
        sparse_crow_indices=crow,
        sparse_col_indices=[column for row in listed for column in row],
    )
