"""Losses by handle: traced as the official SDK does, run on the server or here, with the same result."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest

from tests.client.rig import WAIT, Rig, data
from tests.client.test_custom_loss import advantages, flat, policy_gradient, sent, wide
from tinkex import types
from tinkex.client.custom_loss import LossHandle
from tinkex.errors import InvalidArgumentError, RequestFailedError
from tinkex.losses.tracing import encode_graph, trace
from tinkex.wire.jsonbody import wire_form

torch = pytest.importorskip("torch")

ON_SERVER = types.ClientConfigResponse(custom_loss_server_side=True)
OUTSIDE = 0.5


# ---- losses that can be traced


def weighted(logprobs: Any, weights: Any) -> Any:
    loss = -(logprobs * weights).sum()
    return loss, {"custom/nll:sum": loss, "custom/nll:mean": loss}


def clipped(logprobs: Any, advantages: Any) -> Any:
    ratio = torch.exp(logprobs)
    low = torch.clamp(ratio, 1 - OUTSIDE, 1 + math.sqrt(0.04))
    gain = torch.minimum(ratio * advantages, low * advantages)
    share = (ratio != low).to(torch.float32).mean()
    return -gain.sum(), {"custom/clip.share:mean": share}


def policy(logprobs: Any, advantages: Any) -> Any:
    return -(advantages * logprobs.exp()).sum(), {}


def indexed(logprobs: Any) -> Any:
    tail = logprobs[..., 1:][:, None] * logprobs[0]
    masked = torch.where(
        tail > -float("inf"), tail, torch.full_like(tail, float("nan"), dtype=torch.float32)
    )
    return masked.sum() / logprobs.shape[0], {"custom/len:sum": masked.sum(dim=(0, 1))}


def functional(logprobs: Any, teacher: Any, scale: Any) -> Any:
    gap = torch.nn.functional.smooth_l1_loss(logprobs, teacher, reduction="none", beta=0.5)
    stacked = torch.stack([gap, gap.abs()], dim=-1)
    return stacked.sum() * scale, {"custom/top:mean": torch.special.expit(gap).max()}


def constants(logprobs: Any) -> Any:
    zeros = torch.zeros_like(
        logprobs, dtype=torch.float64, device=torch.device("cpu"), layout=torch.strided
    )
    same = logprobs.contiguous(memory_format=torch.contiguous_format)
    return same.sum() + zeros.sum().to(torch.float32), {}


GOOD = [
    (weighted, {"logprobs": 1, "weights": 1}),
    (clipped, {"logprobs": 1, "advantages": 1}),
    (policy, {"logprobs": 1, "advantages": 1}),
    (indexed, {"logprobs": 2}),
    (functional, {"logprobs": 1, "teacher": 1, "scale": 0}),
    (constants, {"logprobs": 1}),
]


@pytest.mark.parametrize(("loss", "ranks"), GOOD, ids=lambda value: getattr(value, "__name__", None))
def test_the_wire_form_is_the_official_one(loss: Any, ranks: Any) -> None:
    official = pytest.importorskip("tinker.lib.public_interfaces.custom_loss")
    theirs = official.trace_loss(loss, ranks, "session")
    inputs, graph = trace(loss, ranks)
    ours = LossHandle(loss.__name__, inputs, "session", graph)
    assert wire_form(encode_graph(ours.name, graph)) == official.encode_graph(theirs).model_dump()
    assert wire_form(list(inputs)) == [each.model_dump() for each in theirs.inputs]
    assert (ours.name, ours.input_names) == (theirs.name, theirs.input_names)
    assert graph.code == theirs.graph.code


@pytest.mark.parametrize(("loss", "ranks"), GOOD[:3], ids=lambda value: getattr(value, "__name__", None))
def test_running_here_gives_what_the_official_sdk_computes(loss: Any, ranks: Any) -> None:
    official = pytest.importorskip("tinker.lib.public_interfaces.custom_loss")
    inputs, graph = trace(loss, ranks)
    examples = flat(3)
    leaves = [torch.linspace(-2, -0.1, len(advantages(each))) for each in examples]
    total, metrics = LossHandle("x", inputs, "s", graph).local()(examples, leaves)
    expected, expected_metrics = official.run_loss_handle(
        official.trace_loss(loss, ranks, "s"), examples, leaves
    )
    assert float(total) == float(expected)
    assert metrics == expected_metrics


# ---- losses that cannot


def no_logprobs(weights: Any) -> Any:
    return weights.sum(), {}


def upper_case(logprobs: Any, Weights: Any) -> Any:
    return (logprobs * Weights).sum(), {}


def starred(logprobs: Any, *rest: Any) -> Any:
    return logprobs.sum(), {}


def keyword_only(logprobs: Any, *, weights: Any) -> Any:
    return (logprobs * weights).sum(), {}


def defaulted(logprobs: Any, weights: Any = None) -> Any:
    return logprobs.sum(), {}


def branching(logprobs: Any) -> Any:
    return (logprobs.sum() if logprobs.sum() > 0 else -logprobs.sum()), {}


def foreign(logprobs: Any) -> Any:
    return np.exp(logprobs).sum(), {}


def to_python(logprobs: Any) -> Any:
    return logprobs.sum(), {"custom/x:sum": logprobs.sum().item()}


def to_list(logprobs: Any) -> Any:
    return logprobs.sum() + logprobs.tolist()[0], {}


def backwards(logprobs: Any) -> Any:
    loss = logprobs.sum()
    loss.backward()
    return loss, {}


def made_up(logprobs: Any) -> Any:
    return logprobs.no_such_method(), {}


CAPTURED = torch.ones(3)


def captured(logprobs: Any) -> Any:
    return (logprobs * CAPTURED).sum(), {}


def lone(logprobs: Any) -> Any:
    return logprobs.sum()


def number(logprobs: Any) -> Any:
    return 1.0, {}


def listed(logprobs: Any) -> Any:
    return logprobs.sum(), [("custom/x:sum", logprobs.sum())]


def metric_name(logprobs: Any) -> Any:
    return logprobs.sum(), {"loss:sum": logprobs.sum()}


def metric_case(logprobs: Any) -> Any:
    return logprobs.sum(), {"custom/Upper:sum": logprobs.sum()}


def metric_suffix(logprobs: Any) -> Any:
    return logprobs.sum(), {"custom/x:max": logprobs.sum()}


def metric_value(logprobs: Any) -> Any:
    return logprobs.sum(), {"custom/x:sum": 1.0}


def many(
    logprobs: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, i: Any, j: Any, k: Any,
    m: Any, n: Any, o: Any, p: Any, q: Any,
) -> Any:  # fmt: skip
    return logprobs.sum(), {}


ONE = {"logprobs": 1}
BAD = [
    (no_logprobs, {"weights": 1}, "logprobs first"),
    (upper_case, {"logprobs": 1, "Weights": 1}, "a-z"),
    (starred, {"logprobs": 1, "rest": 1}, "keyword-only"),
    (keyword_only, {"logprobs": 1, "weights": 1}, "keyword-only"),
    (defaulted, {"logprobs": 1, "weights": 1}, "default"),
    (many, dict.fromkeys("abcdefghijkmnopq", 1) | ONE, "17 parameters"),
    (weighted, ONE, "input_ranks"),
    (weighted, {"logprobs": 1, "weights": 1, "more": 1}, "input_ranks"),
    (weighted, {"logprobs": 0, "weights": 1}, "rank 1"),
    (branching, ONE, "cannot be traced"),
    (foreign, ONE, None),
    (to_python, ONE, r"\.item\(\)"),
    (to_list, ONE, r"\.tolist\(\)"),
    (backwards, ONE, r"\.backward\(\)"),
    (made_up, ONE, "no_such_method"),
    (captured, ONE, "from outside"),
    (lone, ONE, r"\(loss, metrics\)"),
    (number, ONE, "tensor as its loss"),
    (listed, ONE, "as a dict"),
    (metric_name, ONE, "custom/<name>"),
    (metric_case, ONE, "custom/<name>"),
    (metric_suffix, ONE, "custom/<name>"),
    (metric_value, ONE, "must be a tensor"),
]


@pytest.mark.parametrize(("loss", "ranks", "text"), BAD, ids=lambda value: getattr(value, "__name__", None))
def test_what_cannot_be_sent_is_refused_at_the_call(loss: Any, ranks: Any, text: str | None) -> None:
    official = pytest.importorskip("tinker.lib.public_interfaces.custom_loss")
    with pytest.raises(ValueError):
        official.trace_loss(loss, ranks, "session")
    rig = Rig()
    with pytest.raises(InvalidArgumentError, match=text):
        rig.client().create_custom_loss(loss, ranks)
    assert rig.service.calls == []


def test_modules_and_foreign_arguments_are_refused() -> None:
    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)
            self.__signature__ = inspect.signature(self.forward)

        def forward(self, logprobs: Any) -> Any:
            return self.layer(logprobs).sum(), {}

    with pytest.raises(InvalidArgumentError, match="module"):
        trace(Wrapped(), ONE)
    _, graph = trace(lone_pair, ONE)
    next(node for node in graph.graph.nodes if node.op == "call_method").kwargs = {"dim": {1: 2}}
    with pytest.raises(InvalidArgumentError, match="passes a"):
        encode_graph("x", graph)


def lone_pair(logprobs: Any) -> Any:
    return logprobs.sum(), {}


# ---- on the server


def test_a_server_that_runs_losses_gets_the_graph_once_and_then_only_its_id() -> None:
    rig = Rig(config=ON_SERVER)
    client = rig.client()
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B")
    first = client.create_custom_loss(weighted, {"logprobs": 1, "weights": 1}).result(WAIT)
    second = client.create_custom_loss(policy, {"logprobs": 1, "advantages": 1}).result(WAIT)
    asked = [call.json for call in rig.service.calls_to("create_custom_loss")]
    assert [each["custom_loss_seq_id"] for each in asked] == [0, 1]
    assert [each["name"] for each in asked] == ["weighted", "policy"]
    assert asked[0]["inputs"] == [{"name": "logprobs", "rank": 1}, {"name": "weights", "rank": 1}]
    assert asked[0]["graph"]["format"] == 1
    assert first.session_id == asked[0]["session_id"] == trainer.holder.known_id
    assert first.loss_id not in (None, second.loss_id)

    assert trainer.forward_backward_custom(flat(2), first).result(WAIT).metrics
    (call,) = rig.service.calls_to("forward_backward")
    assert (call.body.loss_fn, call.body.forward_only) == ("custom", False)
    assert call.body.loss_fn_config == {"loss_id": first.loss_id}
    assert set(call.body.data[0].loss_fn_inputs) == {"target_tokens", "weights", "advantages"}


@pytest.mark.parametrize("config", [ON_SERVER, types.ClientConfigResponse()], ids=["server", "here"])
def test_the_same_loss_is_made_once_in_a_session(config: types.ClientConfigResponse) -> None:
    rig = Rig(config=config)
    client = rig.client()
    handle = client.create_custom_loss(policy, {"logprobs": 1, "advantages": 1}).result(WAIT)
    with pytest.raises(InvalidArgumentError, match="already has the same loss as 'policy'"):
        client.create_custom_loss(policy, {"logprobs": 1, "advantages": 1}).result(WAIT)
    other = client.create_custom_loss(policy, {"logprobs": 2, "advantages": 2}).result(WAIT)
    assert other.key != handle.key
    assert rig.client().create_custom_loss(policy, {"logprobs": 1, "advantages": 1}).result(WAIT) != handle


def test_a_loss_the_server_failed_to_make_can_be_made_again() -> None:
    rig = Rig(config=ON_SERVER)
    client = rig.client()
    rig.service.faults.add("create_custom_loss", fail=("no room", "server"), times=1)
    with pytest.raises(RequestFailedError, match="no room"):
        client.create_custom_loss(policy, {"logprobs": 1, "advantages": 1}).result(WAIT)
    assert client.create_custom_loss(policy, {"logprobs": 1, "advantages": 1}).result(WAIT).loss_id


# ---- here


def test_without_such_a_server_the_loss_runs_here_with_the_exact_gradient() -> None:
    rig = Rig()
    client = rig.client()
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B")
    handle = client.create_custom_loss(policy, {"logprobs": 1, "advantages": 1}).result(WAIT)
    assert handle.loss_id is None
    assert rig.service.calls_to("create_custom_loss") == []
    examples = flat(3)
    plain = trainer.forward(examples, "cross_entropy").result(WAIT)
    rig.service.calls.clear()
    result = trainer.forward_backward_custom(examples, handle).result(WAIT)
    total = 0.0
    for after, each, one in zip(
        sent(rig, forward_only=False), examples, plain.loss_fn_outputs, strict=True
    ):
        logprobs = one["logprobs"].to_numpy()
        total += float(-(advantages(each) * np.exp(logprobs)).sum())
        np.testing.assert_allclose(
            after.loss_fn_inputs["weights"].to_numpy(), -policy_gradient(each, logprobs), rtol=1e-6
        )
    assert result.metrics["loss:sum"] == pytest.approx(total, rel=1e-6)


def test_metrics_are_added_up_or_averaged_by_their_names() -> None:
    rig = Rig()
    client = rig.client()
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B")
    handle = client.create_custom_loss(weighted, {"logprobs": 1, "weights": 1}).result(WAIT)
    metrics = trainer.forward_backward_custom(data(4), handle).result(WAIT).metrics
    assert metrics["custom/nll:sum"] == pytest.approx(metrics["loss:sum"], rel=1e-6)
    assert metrics["custom/nll:mean"] == pytest.approx(metrics["loss:sum"] / 4, rel=1e-6)


def test_a_loss_that_is_no_scalar_is_refused() -> None:
    def vector(logprobs: Any) -> Any:
        return logprobs * 1.0, {}

    rig = Rig()
    client = rig.client()
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B")
    handle = client.create_custom_loss(vector, ONE).result(WAIT)
    with pytest.raises(InvalidArgumentError, match=r"scalar.*\[4\]"):
        trainer.forward_backward_custom(data(1), handle)
    assert trainer.forward_backward(data(1), "cross_entropy").result(WAIT).metrics


@pytest.mark.parametrize("config", [ON_SERVER, types.ClientConfigResponse()], ids=["server", "here"])
def test_examples_must_have_what_the_loss_reads(config: types.ClientConfigResponse) -> None:
    rig = Rig(config=config)
    client = rig.client()
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B")
    handle = client.create_custom_loss(policy, {"logprobs": 1, "advantages": 1}).result(WAIT)
    with pytest.raises(InvalidArgumentError, match=r"data\[1\].*'advantages' is missing"):
        trainer.forward_backward_custom([*flat(1), *data(1)], handle)
    with pytest.raises(InvalidArgumentError, match=r"\['target_tokens'\] has rank 2"):
        trainer.forward_backward_custom(wide(1), handle)
    with pytest.raises(InvalidArgumentError, match="No data provided"):
        trainer.forward_backward_custom([], handle)
    other = rig.client().create_lora_training_client("Qwen/Qwen3-8B")
    with pytest.raises(InvalidArgumentError, match="belongs to session"):
        other.forward_backward_custom(flat(1), handle)
    assert rig.service.calls_to("forward_backward") == []


def test_a_handle_shows_and_compares_what_it_is() -> None:
    inputs, graph = trace(policy, {"logprobs": 1, "advantages": 1})
    handle = LossHandle("policy", inputs, "session", graph)
    again = LossHandle("policy", inputs, "session", trace(policy, {"logprobs": 1, "advantages": 1})[1])
    assert handle == again
    assert handle.key == again.key
    assert "graph" not in repr(handle)
    assert handle.input_names == ("advantages",)
    with pytest.raises(AttributeError):
        handle.name = "other"  # type: ignore[misc]
