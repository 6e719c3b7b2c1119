"""Custom loss graphs: traced Python gives the same numbers; everything outside the list or the bounds is
refused.
"""

import json
import math
import operator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.fx import symbolic_trace
from torch.fx.node import Node, _get_qualified_name
from torch.nn import functional

from tinkex.engine import custom_graph
from tinkex.engine.custom_graph import CustomLoss
from tinkex.engine.custom_ops import FUNCTIONS, METHODS
from tinkex.engine.faults import UserFault
from tinkex.engine.messages import Datum, PartFailure, PartResult
from tinkex.engine.trainer import Trainer

from .training_models import assert_close, engine_model, filled_adapter, make_data, plain_model, run_one


def encode(value):
    """One argument of a traced step as the protocol writes it."""
    if isinstance(value, Node):
        return {"ref": value.name}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, list):
        return [encode(x) for x in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(x) for x in value]}
    if isinstance(value, dict):
        return {"dict": {key: encode(x) for key, x in value.items()}}
    if isinstance(value, slice):
        return {"slice": [encode(x) for x in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"ellipsis": True}
    for kind in ("dtype", "device", "layout", "memory_format"):
        if isinstance(value, getattr(torch, kind)):
            return {kind: str(value).removeprefix("torch.")}
    return value


def graph_of(function, **ranks):
    """A Python loss as the JSON text a pass carries."""
    nodes = []
    for node in symbolic_trace(function).graph.nodes:
        target = str(node.target)
        if node.op == "call_function":
            target = _get_qualified_name(node.target).replace("_operator.", "operator.")
        nodes.append(
            {
                "op": node.op,
                "name": node.name,
                "target": target,
                "args": [encode(x) for x in node.args],
                "kwargs": {key: encode(x) for key, x in node.kwargs.items()},
            }
        )
    inputs = [{"name": name, "rank": rank} for name, rank in ranks.items()]
    return json.dumps({"inputs": inputs, "nodes": nodes})


def ppo_like(logprobs, old, advantages):
    ratio = torch.exp(logprobs - old)
    clipped = torch.clamp(ratio, 0.8, 1.2)
    loss = -torch.minimum(ratio * advantages, clipped * advantages).sum()
    return loss, {
        "custom/ratio:mean": ratio.detach().mean(),
        "custom/tokens:sum": torch.ones_like(old).sum(),
    }


def shapes_and_steps(logprobs, old, advantages):
    n = logprobs.shape[0]
    later = torch.cat([logprobs[1:], torch.zeros(1, dtype=logprobs.dtype)])
    weights = functional.softplus(advantages).detach() / math.sqrt(4.0)
    mask = torch.where(old < old.mean(), 1.0, 0.25)
    total = ((logprobs + 0.5 * later) * weights * mask).sum() / n
    total = total + functional.logsigmoid(logprobs[..., -1:] - old[:1]).sum()
    total += logprobs.view(-1, 1).unsqueeze(0).pow(2).mean()
    return -total, {}


def every_pair(logprobs, old, advantages):
    apart = logprobs.unsqueeze(0) - logprobs.unsqueeze(1)
    order = (advantages.unsqueeze(0) > advantages.unsqueeze(1)).float()
    return functional.softplus(-apart * order).sum() + torch.einsum("i,i->", logprobs, old) * 0.01, {}


@pytest.fixture(scope="module")
def base():
    return engine_model(plain_model("qwen3"))


def data_with_inputs():
    data = make_data([7, 12, 3], loss="ppo")
    for datum in data:
        datum.inputs["old"] = datum.inputs.pop("logprobs")
    return data


RANKS = {"logprobs": 1, "old": 1, "advantages": 1}


@pytest.mark.parametrize("function", [ppo_like, shapes_and_steps, every_pair])
def test_a_traced_loss_gives_what_python_gives(base, function):
    adapter = filled_adapter(base, 4)
    data = data_with_inputs()
    state, result = run_one(base, adapter, data, "custom", {"graph": graph_of(function, **RANKS)})
    assert isinstance(result, PartResult), result
    total, slopes, metrics = 0.0, [], []
    for datum, output in zip(data, result.outputs, strict=True):
        leaf = torch.from_numpy(output["logprobs"].copy()).requires_grad_()
        loss, found = function(
            leaf, *(torch.from_numpy(datum.inputs[key]) for key in ("old", "advantages"))
        )
        loss.backward()
        total += float(loss.detach())
        slopes.append(leaf.grad.numpy())
        metrics.append(found)
    assert result.metrics["loss:sum"] == pytest.approx(total, rel=1e-4)
    linear = [Datum(d.tokens, d.inputs | {"weights": -g}) for d, g in zip(data, slopes, strict=True)]
    wanted, _ = run_one(base, adapter, linear)
    assert_close(state.grads.flat, wanted.grads.flat, 1e-4)
    if function is ppo_like:
        assert result.metrics["custom/tokens:sum"] == 22
        mean = sum(float(m["custom/ratio:mean"]) for m in metrics) / 3
        assert result.metrics["custom/ratio:mean"] == pytest.approx(mean, rel=1e-4)


def test_rank_two_logprobs_and_scalar_inputs(base):
    data = make_data([5, 6], width=3)
    for datum in data:
        datum.inputs["beta"] = np.array(0.5, np.float32)

    def loss(logprobs, weights, beta):
        return -(logprobs * weights).sum() * beta, {}

    ranks = {"logprobs": 2, "weights": 2, "beta": 0}
    adapter = filled_adapter(base, 4)
    custom, result = run_one(base, adapter, data, "custom", {"graph": graph_of(loss, **ranks)})
    assert result.outputs[0]["logprobs"].shape == (5, 3)
    built_in, _ = run_one(base, adapter, data)
    assert_close(custom.grads.flat, 0.5 * built_in.grads.flat, 1e-5)


def by_hand(*steps, output="x"):
    nodes = [{"op": "placeholder", "name": "lp", "target": "logprobs"}, *steps]
    answer = {"tuple": [{"ref": output}, {"dict": {}}]}
    nodes.append({"op": "output", "name": "output", "target": "output", "args": [answer]})
    return {"inputs": [{"name": "logprobs", "rank": 1}], "nodes": nodes}


def call(target, *args, name="x", op="call_function", **kwargs):
    return {"op": op, "name": name, "target": target, "args": list(args), "kwargs": kwargs}


LP = {"ref": "lp"}
REFUSED = {
    "eval": by_hand(call("builtins.eval", "1+1")),
    "exec": by_hand(call("exec", "import os")),
    "os.system": by_hand(call("os.system", "true")),
    "torch.load": by_hand(call("torch.load", "x.pt")),
    "torch.save": by_hand(call("torch.save", LP, "x.pt")),
    "torch.rand": by_hand(call("torch.rand", 3)),
    "torch.from_file": by_hand(call("torch.from_file", "x")),
    "torch.ops": by_hand(call("torch.ops.load_library", "x")),
    "item": by_hand(call("item", LP, op="call_method")),
    "numpy": by_hand(call("numpy", LP, op="call_method")),
    "backward": by_hand(call("backward", LP, op="call_method")),
    "register_hook": by_hand(call("register_hook", LP, op="call_method")),
    "__class__": by_hand(call("__class__", LP, op="call_method")),
    "get_attr": by_hand({"op": "get_attr", "name": "x", "target": "weight"}),
    "call_module": by_hand({"op": "call_module", "name": "x", "target": "linear"}),
    "may not read the attribute": by_hand(call("builtins.getattr", LP, "__class__")),
    "before it is made": by_hand(call("torch.exp", {"ref": "y"})),
    "unknown kind": by_hand(call("torch.exp", {"object": "os"})),
    "tensors and numbers": by_hand(call("operator.mul", [0], 1 << 40)),
    "without dimensions": by_hand(call("torch.exp", LP)),
    "does not depend": by_hand(call("torch.zeros", [])),
    "numbers in a step": by_hand(call("torch.ones", 1 << 30, name="y"), call("torch.sum", {"ref": "y"})),
    "numbers a datum": by_hand(
        call("torch.ones", [1 << 12, 1 << 12], name="y0"),
        *(call("torch.exp", {"ref": f"y{i}"}, name=f"y{i + 1}") for i in range(20)),
        call("torch.sum", {"ref": "y20"}),
    ),
    "operations a datum": by_hand(
        call("torch.ones", [1 << 12, 1 << 12], name="y"),
        call("torch.mm", {"ref": "y"}, {"ref": "y"}, name="z"),
        call("torch.sum", {"ref": "z"}),
    ),
    "einsum": by_hand(
        call("torch.ones", [4000, 4000], name="y"),
        call("torch.einsum", "ab,cd,ad,bc->", *[{"ref": "y"}] * 4, name="e"),
        call("operator.mul", {"ref": "e"}, {"ref": "lp"}, name="w"),
        call("torch.sum", {"ref": "w"}),
    ),
    "shape depends": by_hand(
        call("operator.lt", LP, 0.0, name="m"),
        call("operator.getitem", LP, {"ref": "m"}, name="y"),
        call("torch.sum", {"ref": "y"}),
    ),
    f"in {1 << 24} pieces": by_hand(
        call("torch.ones", 1 << 24, name="y"),
        call("unbind", {"ref": "y"}, op="call_method", name="z"),
        call("torch.sum", LP),
    ),
    f"in {1 << 23} pieces": by_hand(
        call("torch.ones", 1 << 24, name="y"),
        call("torch.split", {"ref": "y"}, 2, name="z"),
        call("torch.sum", LP),
    ),
    "two steps named": by_hand(call("torch.exp", LP, name="lp"), call("torch.sum", LP)),
    "too large": by_hand(call("operator.mul", 1 << 40, 1 << 40, name="y"), call("torch.sum", LP)),
    "has no output": {"inputs": [{"name": "logprobs", "rank": 1}], "nodes": [by_hand()["nodes"][0]]},
    "its graph takes": by_hand(call("torch.sum", LP)) | {"inputs": [{"name": "logprobs", "rank": 1}] * 2},
    "of rank 1 or 2": by_hand(call("torch.sum", LP)) | {"inputs": [{"name": "logprobs", "rank": 0}]},
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_is_outside_the_list_or_the_bounds_is_the_users_fault(base, name):
    state, result = run_one(
        base, filled_adapter(base, 2), make_data([5]), "custom", {"graph": json.dumps(REFUSED[name])}
    )
    assert isinstance(result, PartFailure)
    assert result.category == "user"
    assert state.grads is None
    if name not in ("einsum", "shape depends", "torch.ops", "exec", "eval"):
        assert name in result.text, result.text


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"inputs": 3}', '{"inputs": [], "nodes": [[]]}', "[" * 5000]
)
def test_unreadable_graphs(text):
    with pytest.raises(UserFault, match="cannot be read"):
        CustomLoss.from_config({"graph": text})


def test_size_of_the_graph_is_bounded(monkeypatch):
    steps = [call("torch.exp", LP, name=f"y{i}") for i in range(custom_graph.MAX_NODES)]
    with pytest.raises(UserFault, match="steps >"):
        CustomLoss.from_config({"graph": json.dumps(by_hand(*steps))})
    monkeypatch.setattr(custom_graph, "MAX_TEXT", 10)
    with pytest.raises(UserFault, match="characters >"):
        CustomLoss.from_config({"graph": json.dumps(by_hand())})


def test_time_is_bounded(base, monkeypatch):
    monkeypatch.setattr(custom_graph, "MAX_SECONDS", -1.0)
    graph = json.dumps(by_hand(call("torch.sum", LP)))
    _, result = run_one(base, filled_adapter(base, 2), make_data([5]), "custom", {"graph": graph})
    assert "took longer" in result.text


def test_only_the_losss_own_time_counts(base, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(custom_graph, "time", SimpleNamespace(monotonic=lambda: now[0]))
    real = Trainer._micro_batch

    def slow(self, parts, batch):
        now[0] += 100.0
        real(self, parts, batch)

    monkeypatch.setattr(Trainer, "_micro_batch", slow)
    graph = {"graph": json.dumps(by_hand(call("torch.sum", LP)))}
    _, result = run_one(base, filled_adapter(base, 2), make_data([5, 6]), "custom", graph, token_budget=6)
    assert isinstance(result, PartResult), result
    real_step = custom_graph._step

    def slow_step(node, args, kwargs):
        now[0] += 6.0
        return real_step(node, args, kwargs)

    monkeypatch.setattr(custom_graph, "_step", slow_step)
    _, result = run_one(base, filled_adapter(base, 2), make_data([5] * 4), "custom", graph, token_budget=5)
    assert "took longer than 20 s" in result.text


def moved(logprobs, old, advantages):
    zeros = torch.zeros_like(old, device="cpu") + old.new_zeros(1, device=torch.device("cpu"))
    return -(logprobs.cpu() * advantages.to("cpu") + zeros.to("cpu", torch.float32)).sum(), {}


def test_devices_named_in_a_loss_are_the_logprobs_own(base):
    data = data_with_inputs()
    adapter = filled_adapter(base, 4)
    found, result = run_one(base, adapter, data, "custom", {"graph": graph_of(moved, **RANKS)})
    assert isinstance(result, PartResult), result
    linear = [Datum(d.tokens, d.inputs | {"weights": d.inputs["advantages"]}) for d in data]
    wanted, _ = run_one(base, adapter, linear)
    assert_close(found.grads.flat, wanted.grads.flat, 1e-4)


def test_what_is_measured_has_no_storage_whatever_device_is_named(base, monkeypatch):
    made = []
    real = custom_graph.find_function

    def watched(name):
        def run(*args, **kwargs):
            made.append(real(name)(*args, **kwargs))
            return made[-1]

        return run if name == "torch.ones" else real(name)

    monkeypatch.setattr(custom_graph, "find_function", watched)
    monkeypatch.setattr(custom_graph, "MAX_ELEMENTS", 100)
    graph = json.dumps(by_hand(call("torch.ones", 50, name="y", device="cpu"), call("torch.sum", LP)))
    run_one(base, filled_adapter(base, 2), make_data([5]), "custom", {"graph": graph})
    assert [x.device.type for x in made][:1] == ["meta"]


def test_a_python_power_cannot_fill_memory(base):
    graph = json.dumps(by_hand(call("operator.pow", 10, 10**9, name="y"), call("torch.sum", LP)))
    _, result = run_one(base, filled_adapter(base, 2), make_data([5]), "custom", {"graph": graph})
    assert isinstance(result, PartFailure)


def test_missing_inputs_and_wrong_ranks_are_named(base):
    graph = graph_of(ppo_like, **RANKS)
    adapter = filled_adapter(base, 2)
    _, result = run_one(base, adapter, make_data([5], loss="ppo"), "custom", {"graph": graph})
    assert "'old'" in result.text
    data = data_with_inputs()
    data[1].inputs["old"] = data[1].inputs["old"][:, None]
    _, result = run_one(base, adapter, data, "custom", {"graph": graph})
    assert "datum 1: old has rank 2" in result.text


def test_the_list_holds_nothing_that_acts_outside():
    for name in (
        "load",
        "save",
        "manual_seed",
        "set_default_dtype",
        "compile",
        "bernoulli",
        "normal",
        "nonzero",
    ):
        assert f"torch.{name}" not in FUNCTIONS
        assert name not in METHODS
    assert not any(name.endswith("_") for name in METHODS)
    assert FUNCTIONS["operator.add"] is operator.add
