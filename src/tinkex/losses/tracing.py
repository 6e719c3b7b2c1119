"""A loss as a graph: a function of one example's logprobs, traced with torch.fx and written as JSON.

Only what a server can rebuild is let through: calls of torch, math and Python's operators, and
tensor methods that stay in torch.  torch is imported when something is traced.
"""

from __future__ import annotations

import builtins
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import InvalidArgumentError
from ..types.custom_loss import CustomLossGraph, CustomLossInput, CustomLossInputRank, CustomLossNode
from ..types.datum import Datum

if TYPE_CHECKING:
    from torch.fx import GraphModule

__all__ = ["check_inputs", "encode_graph", "loss_name", "run_graph", "trace"]

MOST_INPUTS = 16
_MODULES = frozenset({"torch", "math", "operator", "_operator"})
_INPUT = re.compile(r"[a-z_][a-z0-9_]{0,63}")
_METRIC = re.compile(r"custom/[a-z0-9_./-]{1,64}:(sum|mean)")
_METHODS_REFUSED = {
    "backward": "the backward pass is run for you: return the loss",
    "item": "it leaves torch: keep every value a tensor, metrics too",
    "numpy": "it leaves torch: keep every value a tensor, metrics too",
    "tolist": "it leaves torch: keep every value a tensor, metrics too",
}


def loss_name(function: Callable[..., Any]) -> str:
    """What a loss is called on the server and in messages."""
    name: str = getattr(function, "__name__", type(function).__name__)
    return name


def trace(
    function: Callable[..., Any], ranks: Mapping[str, CustomLossInputRank]
) -> tuple[tuple[CustomLossInput, ...], GraphModule]:
    """The inputs of a loss in order, and its graph."""
    try:
        import torch.fx
    except ImportError:
        raise ImportError(
            "create_custom_loss traces the loss with PyTorch: pip install 'tinkex[torch]'"
        ) from None
    inputs = _inputs(function, ranks)
    try:
        graph = torch.fx.symbolic_trace(function)
    except Exception as problem:
        raise InvalidArgumentError(
            f"create_custom_loss: {loss_name(function)} cannot be traced by torch.fx: {problem}; "
            "no Python branch may depend on a tensor's value, and only torch and math may be called"
        ) from problem
    _check_graph(loss_name(function), graph)
    return inputs, graph


# ---- parameters


def _refuse(name: str, text: str) -> NoReturn:
    raise InvalidArgumentError(f"create_custom_loss: {name} {text}")


def _inputs(
    function: Callable[..., Any], ranks: Mapping[str, CustomLossInputRank]
) -> tuple[CustomLossInput, ...]:
    name = loss_name(function)
    parameters = list(inspect.signature(function).parameters.values())
    names = [each.name for each in parameters]
    if not names or names[0] != "logprobs":
        _refuse(
            name, "must take logprobs first, then the loss_fn_inputs it reads: def loss(logprobs, weights)"
        )
    if len(names) > MOST_INPUTS:
        _refuse(name, f"takes {len(names)} parameters; {MOST_INPUTS} are possible, logprobs included")
    for each in parameters:
        if not _INPUT.fullmatch(each.name):
            _refuse(name, f"parameter {each.name!r}: only a-z, 0-9 and _ are possible in a name")
        if each.kind not in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
            _refuse(
                name, f"parameter {each.name!r}: *args, **kwargs and keyword-only ones are not possible"
            )
        if each.default is not each.empty:
            _refuse(name, f"parameter {each.name!r} has a default; every example must have every input")
    if set(ranks) != set(names):
        _refuse(
            name,
            f"takes {', '.join(names)}; input_ranks must give each of them a rank, got {sorted(ranks)}",
        )
    if ranks["logprobs"] == 0:
        _refuse(name, "needs logprobs of rank 1 ([T]) or 2 ([T, K])")
    return tuple(CustomLossInput(name=each, rank=ranks[each]) for each in names)


# ---- what a graph may hold


def _check_graph(name: str, graph: GraphModule) -> None:
    for node in graph.graph.nodes:
        if node.op == "call_function":
            _check_function(name, node.target)
        elif node.op == "call_method":
            _check_method(name, node.target)
        elif node.op == "call_module":
            _refuse(name, f"calls the module {node.target!r}; use functions, as in torch.nn.functional")
        elif node.op == "get_attr":
            _refuse(
                name,
                f"holds a tensor from outside ({node.target!r}); it may read only logprobs and its inputs",
            )
        elif node.op == "output":
            _check_output(name, node.args[0])


def _check_function(name: str, target: Any) -> None:
    module = getattr(target, "__module__", None) or ""
    if target is not builtins.getattr and module.partition(".")[0] not in _MODULES:
        called = getattr(target, "__qualname__", target)
        _refuse(
            name, f"calls {called!r} of {module or 'an unknown module'}; only torch and math are possible"
        )


def _check_method(name: str, method: str) -> None:
    import torch

    if not hasattr(torch.Tensor, method):
        _refuse(name, f"calls .{method}(), which tensors do not have")
    if method in _METHODS_REFUSED:
        _refuse(name, f"calls .{method}(): {_METHODS_REFUSED[method]}")


def _check_output(name: str, output: Any) -> None:
    from torch.fx import Node

    if not isinstance(output, (tuple, list)) or len(output) != 2:
        _refuse(name, "must return (loss, metrics)")
    loss, metrics = output
    if not isinstance(loss, Node):
        _refuse(name, f"must return a tensor as its loss, got {loss!r}")
    if not isinstance(metrics, dict):
        _refuse(name, "must return its metrics as a dict")
    for key, value in metrics.items():
        if not isinstance(key, str) or not _METRIC.fullmatch(key):
            _refuse(name, f"metric {key!r}: call it custom/<name>:sum or custom/<name>:mean, in lower case")
        if not isinstance(value, Node):
            _refuse(name, f"metric {key!r}: must be a tensor, got {value!r}")


# ---- the wire form


def encode_graph(name: str, graph: GraphModule) -> CustomLossGraph:
    """A graph as plain data, node by node."""
    nodes = [
        CustomLossNode(
            op=node.op,
            name=node.name,
            target=_target(node),
            args=[_encode(name, each) for each in node.args],
            kwargs={key: _encode(name, each) for key, each in node.kwargs.items()},
        )
        for node in graph.graph.nodes
    ]
    return CustomLossGraph(nodes=nodes)


def _target(node: Any) -> str:
    from torch.fx.node import _get_qualified_name

    if node.op != "call_function":
        return str(node.target)
    name: str = _get_qualified_name(node.target)
    # Python's operators live in a private module of CPython; the wire has the public one.
    return f"operator.{name.removeprefix('_operator.')}" if name.startswith("_operator.") else name


def _encode(name: str, value: Any) -> Any:
    """An argument: as it is where JSON can hold it, otherwise as a one-key object."""
    import torch
    from torch.fx import Node

    if isinstance(value, Node):
        return {"ref": value.name}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [_encode(name, each) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [_encode(name, each) for each in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _encode(name, each) for key, each in value.items()}}
    if isinstance(value, slice):
        return {"slice": [_encode(name, each) for each in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"ellipsis": True}
    for kind in ("dtype", "device", "layout", "memory_format"):
        if isinstance(value, getattr(torch, kind)):
            return {kind: str(value).removeprefix("torch.")}
    _refuse(name, f"passes a {type(value).__name__} to a call; that cannot be sent to the server")


# ---- running it here


def check_inputs(name: str, inputs: Sequence[CustomLossInput], data: Sequence[Datum]) -> None:
    """Refuse examples that lack an input, or have it with another rank than was declared."""
    for index, datum in enumerate(data):
        for each in inputs:
            # Logprobs come back in the shape of the targets.
            key = "target_tokens" if each is inputs[0] else each.name
            tensor = datum.loss_fn_inputs.get(key)
            if tensor is None:
                raise InvalidArgumentError(
                    f"data[{index}].loss_fn_inputs: {key!r} is missing, which the loss {name!r} reads"
                )
            rank = 1 if tensor.shape is None else len(tensor.shape)
            if rank != each.rank:
                raise InvalidArgumentError(
                    f"data[{index}].loss_fn_inputs[{key!r}] has rank {rank}; the loss {name!r} was "
                    f"created for {each.name} of rank {each.rank}"
                )


def run_graph(
    name: str, graph: GraphModule, inputs: Sequence[str], data: Sequence[Datum], logprobs: Sequence[Any]
) -> tuple[Any, dict[str, float]]:
    """The sum of the losses of all examples, and their metrics: added up, or averaged if `:mean`."""
    total: Any = None
    sums: dict[str, float] = {}
    for datum, own in zip(data, logprobs, strict=True):
        loss, metrics = graph(own, *(datum.loss_fn_inputs[each].to_torch() for each in inputs))
        if loss.ndim != 0:
            raise InvalidArgumentError(
                f"the loss {name!r} must return a scalar, got a tensor of shape {list(loss.shape)}"
            )
        total = loss if total is None else total + loss
        for key, value in metrics.items():
            number = value.detach() if hasattr(value, "detach") else value
            sums[key] = sums.get(key, 0.0) + float(number)
    return total, {
        key: value / len(data) if key.endswith(":mean") else value for key, value in sums.items()
    }
