"""Losses traced on a client, run here as data: every step is one of a closed list, and nothing is evaluated
as code.

Before a graph touches real numbers it runs, backward pass included, on tensors without storage; there the
size of every intermediate result, their sum and the arithmetic are bounded, so a graph cannot take memory
or time it was not given.

A graph answers the loss of one datum and metrics named `custom/<name>:sum` or `:mean`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from .custom_ops import ATTRIBUTES, METHODS, find_function
from .datums import TARGETS, PartData, dense
from .faults import EngineFault, UserFault
from .messages import Datum, SparseRows
from .packing import Run

MAX_NODES = 1024
MAX_TEXT = 1 << 20
MAX_ELEMENTS = 1 << 24
MAX_ELEMENTS_IN_ALL = 1 << 28
MAX_FLOPS = 1 << 35
MAX_SECONDS = 20.0
MAX_INPUTS = 16
MAX_PIECES = 1 << 14

_METRIC = re.compile(r"custom/[a-z0-9_./-]{1,64}:(sum|mean)")
_GETATTR = ("getattr", "builtins.getattr")
_DTYPES = {
    name: getattr(torch, name)
    for name in (
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "int8",
        "int16",
        "int32",
        "int64",
        "bool",
        "uint8",
    )
}
_Metrics = list[dict[str, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class _Node:
    op: str
    name: str
    target: str
    args: Any
    kwargs: Any


@dataclass(slots=True)
class CustomLoss:
    """A traced loss: its inputs with their ranks, and its steps in order."""

    inputs: list[tuple[str, int]]
    nodes: list[_Node]
    bound: list[dict[str, torch.Tensor]] = field(default_factory=list)
    left: float = 0.0
    """Seconds its own steps may still take; the model's do not count."""
    deadline: float = 0.0
    checked: set[tuple[tuple[int, ...], ...]] = field(default_factory=set)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> CustomLoss:
        """Read a loss from its settings: `graph` is JSON text with `inputs` (name, rank) and `nodes`."""
        text = config.get("graph")
        if not isinstance(text, str):
            raise UserFault("loss custom needs its graph as JSON text in the setting 'graph'")
        if len(text) > MAX_TEXT:
            raise UserFault(f"the custom loss's graph has {len(text)} characters > {MAX_TEXT}")
        try:
            read = json.loads(text)
            inputs = [(str(x["name"]), int(x["rank"])) for x in read["inputs"]]
            nodes = [
                _Node(x["op"], x["name"], x["target"], x.get("args", []), x.get("kwargs", {}))
                for x in read["nodes"]
            ]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as problem:
            raise UserFault(f"the custom loss's graph cannot be read: {problem!r}") from None
        for node in nodes:
            words = (node.op, node.name, node.target)
            if not all(isinstance(x, str) for x in words) or not isinstance(node.args, list):
                raise UserFault("the custom loss's graph cannot be read: a step has no name or arguments")
            if not isinstance(node.kwargs, dict):
                raise UserFault(
                    f"the custom loss's graph cannot be read: {node.name} has no named arguments"
                )
        loss = cls(inputs, nodes)
        loss._check()
        return loss

    def _check(self) -> None:
        if len(self.nodes) > MAX_NODES:
            raise UserFault(f"the custom loss has {len(self.nodes)} steps > {MAX_NODES}")
        if len(self.inputs) > MAX_INPUTS:
            raise UserFault(f"the custom loss takes {len(self.inputs)} inputs > {MAX_INPUTS}")
        if not self.inputs or self.inputs[0][0] != "logprobs" or self.inputs[0][1] not in (1, 2):
            raise UserFault("a custom loss takes logprobs of rank 1 or 2 first")
        names = [name for name, _ in self.inputs]
        places = [node.target for node in self.nodes if node.op == "placeholder"]
        if places != names:
            raise UserFault(f"the custom loss's inputs are {names}, its graph takes {places}")
        if not self.nodes or self.nodes[-1].op != "output":
            raise UserFault("the custom loss's graph has no output")
        seen: set[str] = set()
        for node in self.nodes:
            if node.name in seen:
                raise UserFault(f"the custom loss has two steps named {node.name!r}")
            seen.add(node.name)
            if node.op == "call_function":
                known = node.target in _GETATTR or find_function(node.target) is not None
            elif node.op == "call_method":
                known = node.target in METHODS
            else:
                known = node.op in ("placeholder", "output")
            if not known:
                raise UserFault(f"a custom loss may not use {node.op} {node.target!r}")

    def bind(self, data: Sequence[Datum], device: torch.device, dtype: torch.dtype) -> CustomLoss:
        """The same loss holding the inputs of these datums; a missing one or one of another rank is
        refused.
        """
        bound = []
        for i, datum in enumerate(data):
            given: dict[str, torch.Tensor] = {}
            for name, rank in self.inputs:
                key = TARGETS if name == "logprobs" else name
                value = datum.inputs.get(key)
                if value is None:
                    raise UserFault(
                        f"datum {i} has no loss_fn_inputs[{key!r}], which the custom loss takes"
                    )
                array = dense(i, key, value) if isinstance(value, SparseRows) else value
                if array.ndim != rank:
                    raise UserFault(f"datum {i}: {key} has rank {array.ndim}, the loss declared {rank}")
                if name != "logprobs":
                    tensor = torch.from_numpy(array.copy()).to(device)
                    given[name] = tensor.to(dtype) if tensor.is_floating_point() else tensor
            bound.append(given)
        return replace(self, bound=bound, left=MAX_SECONDS)

    def run(
        self, lp_tk: torch.Tensor, data: PartData, run: Run
    ) -> tuple[torch.Tensor, torch.Tensor, _Metrics]:
        """The sum of the losses of some datums, its derivative by each logprob, and their metrics."""
        total = lp_tk.new_zeros(())
        slope_tk = torch.zeros_like(lp_tk)
        metrics: _Metrics = []
        start = 0
        self.deadline = time.monotonic() + self.left
        for i in range(run.first, run.end):
            rows = slice(start, start + data.lengths[i])
            start = rows.stop
            lp = lp_tk[rows] if self.inputs[0][1] == 2 else lp_tk[rows, 0]
            try:
                self._measure(lp, self.bound[i])
                value, slope, found = self._differentiate(lp, self.bound[i])
            except EngineFault:
                raise
            except Exception as problem:
                text = str(problem).split("\n", 1)[0][:300]
                raise UserFault(f"the custom loss failed on datum {i}: {text}") from None
            total = total + value
            slope_tk[rows] = slope.reshape(slope_tk[rows].shape)
            metrics.append(found)
        self.left = self.deadline - time.monotonic()
        return total, slope_tk, metrics

    def _measure(self, lp: torch.Tensor, inputs: dict[str, torch.Tensor]) -> None:
        shapes = (tuple(lp.shape), *(tuple(x.shape) for x in inputs.values()))
        if shapes in self.checked:
            return
        meta = {name: x.to("meta") for name, x in inputs.items()}
        with FlopCounterMode(display=False) as flops, _Bounded(flops):
            self._differentiate(lp.to("meta"), meta)
        self.checked.add(shapes)

    def _differentiate(
        self, lp: torch.Tensor, inputs: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        with torch.inference_mode(False), torch.enable_grad(), torch.device(lp.device):
            leaf = lp.detach().clone().requires_grad_()
            loss, metrics = self._evaluate({"logprobs": leaf, **{k: x.clone() for k, x in inputs.items()}})
            if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
                raise UserFault("a custom loss must answer a loss without dimensions")
            if not loss.requires_grad:
                raise UserFault("the custom loss does not depend on logprobs")
            (slope,) = torch.autograd.grad(loss, [leaf], allow_unused=True)
        if slope is None:
            raise UserFault("the custom loss does not depend on logprobs")
        return loss.detach(), slope, {key: value.detach() for key, value in metrics.items()}

    def _evaluate(self, given: dict[str, torch.Tensor]) -> tuple[Any, dict[str, torch.Tensor]]:
        values: dict[str, Any] = {}
        device = given["logprobs"].device
        for node in self.nodes:
            if time.monotonic() > self.deadline:
                raise UserFault(f"the custom loss took longer than {MAX_SECONDS:.0f} s")
            if node.op == "placeholder":
                values[node.name] = given[node.target]
                continue
            args = [_decode(x, values, device) for x in node.args]
            if node.op == "output":
                return _answer(args)
            kwargs = {key: _decode(x, values, device) for key, x in node.kwargs.items()}
            if kwargs.get("device") is not None:  # everything is where the logprobs are
                kwargs["device"] = device
            values[node.name] = _step(node, args, kwargs)
        raise UserFault("the custom loss's graph has no output")

    @staticmethod
    def reduced(found: _Metrics) -> dict[str, float]:
        """The metrics of all datums, reduced as their names say."""
        sums: dict[str, float] = {}
        for metrics in found:
            for key, value in metrics.items():
                sums[key] = sums.get(key, 0.0) + float(value)
        return {key: v / len(found) if key.endswith(":mean") else v for key, v in sums.items()}


class _Bounded(TorchDispatchMode):  # type: ignore[misc]
    """Counts what every operation makes, inside composite ones and backward passes too."""

    def __init__(self, flops: Any) -> None:
        super().__init__()
        self.flops = flops
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (pieces := _pieces(func, args)) > MAX_PIECES:
            raise UserFault(f"the custom loss cuts a tensor in {pieces} pieces > {MAX_PIECES}")
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, torch.Tensor):
                if x.numel() > MAX_ELEMENTS:
                    raise UserFault(f"the custom loss makes {x.numel()} numbers in a step > {MAX_ELEMENTS}")
                self.total += x.numel()
        if self.total > MAX_ELEMENTS_IN_ALL:
            raise UserFault(f"the custom loss makes more than {MAX_ELEMENTS_IN_ALL} numbers a datum")
        if self.flops.get_total_flops() > MAX_FLOPS:
            raise UserFault(f"the custom loss takes more than {MAX_FLOPS} operations a datum")
        return out


def _pieces(func: Any, args: Any) -> int:
    """How many tensors an operation makes of one."""
    if func is torch.ops.aten.unbind.int:
        size, dim = 1, args[1:2]
    elif func is torch.ops.aten.split.Tensor:
        size, dim = args[1], args[2:3]
    else:
        return 1
    whole: int = args[0].shape[dim[0] if dim else 0]
    return -(-whole // max(size, 1))


def _step(node: _Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if node.op == "call_method":
        if not args or not isinstance(args[0], (torch.Tensor, torch.Size)):
            raise UserFault(f"{node.name}: {node.target} is called on something that is no tensor")
        if node.target == "cpu":
            return args[0]
        if node.target == "to":
            args = [args[0].device if isinstance(x, str) else x for x in args]
        return getattr(args[0], node.target)(*args[1:], **kwargs)
    if node.target in _GETATTR:
        if len(args) != 2 or not isinstance(args[0], torch.Tensor) or args[1] not in ATTRIBUTES:
            raise UserFault(f"{node.name}: a custom loss may not read the attribute {args[1:]!r}")
        return getattr(args[0], args[1])
    function = find_function(node.target)
    assert function is not None
    if node.target.startswith("operator."):
        plain = (torch.Tensor, int, float, bool)
        if node.target == "operator.getitem":
            plain = (torch.Tensor, torch.Size, tuple, list)  # type: ignore[assignment]
            checked = args[:1]
        else:
            checked = args
        if not all(isinstance(x, plain) for x in checked):
            raise UserFault(f"{node.name}: {node.target} takes tensors and numbers only")
    out = function(*args, **kwargs)
    if isinstance(out, int) and abs(out) >= 1 << 63:
        raise UserFault(f"{node.name}: the number is too large")
    return out


def _decode(value: Any, values: dict[str, Any], device: torch.device, depth: int = 0) -> Any:
    if depth > 16:
        raise UserFault("an argument of the custom loss is nested too deeply")
    if isinstance(value, list):
        return [_decode(x, values, device, depth + 1) for x in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise UserFault("an argument of the custom loss is an object with other than one key")
    ((kind, inner),) = value.items()
    if kind == "ref":
        if inner not in values:
            raise UserFault(f"the custom loss refers to {inner!r} before it is made")
        return values[inner]
    if kind in ("tuple", "slice"):
        items = [_decode(x, values, device, depth + 1) for x in inner]
        return tuple(items) if kind == "tuple" else slice(*items)
    if kind == "dict":
        return {key: _decode(x, values, device, depth + 1) for key, x in inner.items()}
    if kind == "ellipsis":
        return ...
    if kind == "float" and inner in ("inf", "-inf", "nan"):
        return float(inner)
    if kind == "dtype" and inner in _DTYPES:
        return _DTYPES[inner]
    if kind == "device":
        return device
    if kind == "layout" and inner == "strided":
        return torch.strided
    if kind == "memory_format" and inner in ("contiguous_format", "preserve_format"):
        return getattr(torch, inner)
    raise UserFault(f"the custom loss has an argument of unknown kind {kind!r}")


def _answer(args: list[Any]) -> tuple[Any, dict[str, torch.Tensor]]:
    pair = args[0] if args else None
    if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[1], dict):
        raise UserFault("a custom loss must answer a pair of loss and metrics")
    for key, value in pair[1].items():
        if not _METRIC.fullmatch(key):
            raise UserFault(f"metric {key!r} must be named custom/<name>:sum or custom/<name>:mean")
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            raise UserFault(f"metric {key!r} must be a tensor of one number")
    return pair[0], pair[1]
