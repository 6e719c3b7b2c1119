"""The closed list of operations a custom loss may use, by the name the client's trace gives them.

Nothing here reads a file, draws a number, runs code, changes global state or has a result whose shape
depends on values.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

_POINTWISE = (
    "abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh ceil clamp clamp_max clamp_min "
    "clip copysign cos cosh deg2rad digamma div divide eq erf erfc erfinv exp exp2 expm1 floor "
    "floor_divide fmax fmin fmod frac ge greater greater_equal gt heaviside hypot isclose isfinite "
    "isinf isnan le lerp less less_equal lgamma log log10 log1p log2 logaddexp logaddexp2 logical_and "
    "logical_not logical_or logical_xor logit lt masked_fill maximum minimum mul multiply nan_to_num "
    "ne neg negative not_equal positive pow rad2deg reciprocal relu remainder round rsqrt rsub "
    "sigmoid sign sin sinc sinh softmax log_softmax sqrt square sub subtract tan tanh true_divide "
    "trunc where xlogy bitwise_and bitwise_or bitwise_xor bitwise_not"
)
_REDUCING = (
    "all amax amin aminmax any argmax argmin count_nonzero cummax cummin cumprod cumsum logcumsumexp "
    "logsumexp max mean median min nanmean nansum norm prod quantile std sum var var_mean std_mean"
)
_SHAPING = (
    "argsort atleast_1d atleast_2d broadcast_to cat chunk clone concat concatenate detach diag "
    "diagonal diff expand_copy flatten flip gather hstack index_select movedim narrow permute ravel "
    "repeat_interleave reshape roll select slice_copy sort split squeeze stack swapaxes "
    "take_along_dim tile topk transpose tril triu unbind unflatten unsqueeze vstack column_stack "
    "searchsorted bucketize scatter scatter_add index_add"
)
_PRODUCTS = "bmm dot einsum inner matmul mm mv outer vdot baddbmm addmm"
_MAKING = "arange full full_like linspace ones ones_like scalar_tensor tensor zeros zeros_like"
_FUNCTIONAL = (
    "binary_cross_entropy binary_cross_entropy_with_logits celu elu gelu hardtanh "
    "hinge_embedding_loss huber_loss kl_div l1_loss leaky_relu log_softmax logsigmoid "
    "margin_ranking_loss mish mse_loss normalize one_hot pad relu relu6 selu sigmoid silu "
    "smooth_l1_loss soft_margin_loss softmax softmin softplus softsign tanh"
)
_METHODS_ONLY = (
    "bool contiguous dim double expand expand_as float half int long ndimension new_full new_ones "
    "new_zeros nelement numel repeat reshape_as size t to type_as view view_as masked_scatter mT cpu"
)
_OPERATORS = (
    "abs add and_ eq floordiv ge getitem gt iadd iand imul invert ior ipow isub itruediv le lt matmul "
    "mod mul ne neg not_ or_ pos pow sub truediv xor ifloordiv imod"
)
_MATH = (
    "acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh degrees erf erfc exp expm1 fabs "
    "floor fmod gamma hypot isclose isfinite isinf isnan lgamma log log10 log1p log2 pow radians sin "
    "sinh sqrt tan tanh trunc"
)
_ALIASES = (
    "torch._C._nn.",
    "torch._C._special.",
    "torch.special.",
    "torch.functional.",
    "torch._tensor.",
)
ATTRIBUTES = frozenset(("T", "device", "dtype", "mT", "ndim", "shape"))


def _guarded_pow(base: Any, exponent: Any) -> Any:
    # Between Python numbers, floats: an integer power can be as large as memory.
    if isinstance(base, (int, float)) and isinstance(exponent, (int, float)):
        return float(base) ** float(exponent)
    return operator.pow(base, exponent)


def _table() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    for name in " ".join((_POINTWISE, _REDUCING, _SHAPING, _PRODUCTS, _MAKING)).split():
        if hasattr(torch, name):
            found[f"torch.{name}"] = getattr(torch, name)
    for name in _FUNCTIONAL.split():
        found[f"torch.nn.functional.{name}"] = getattr(functional, name)
    for name in _OPERATORS.split():
        found[f"operator.{name}"] = getattr(operator, name)
    for name in _MATH.split():
        found[f"math.{name}"] = getattr(math, name)
    found["torch._C._nn.log_sigmoid"] = functional.logsigmoid
    for name in ("pow", "ipow"):
        found[f"operator.{name}"] = _guarded_pow
    return found


FUNCTIONS = _table()
METHODS = frozenset(" ".join((_POINTWISE, _REDUCING, _SHAPING, _PRODUCTS, _METHODS_ONLY)).split())


def find_function(name: str) -> Callable[..., Any] | None:
    """The function of this name, or None if it is not offered; torch's names for its own aliases count."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    for alias in (
        "torch._C._nn.",
        "torch._C._special.",
        "torch.special.",
        "torch.functional.",
        "torch.linalg.",
    ):
        if name.startswith(alias):
            last = name.removeprefix(alias).removeprefix("special_")
            return FUNCTIONS.get(f"torch.nn.functional.{last}") or FUNCTIONS.get(f"torch.{last}")
    return None
