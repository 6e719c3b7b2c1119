"""Custom losses: exact gradients through the server's cross-entropy, in the caller's own thread."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.client.rig import WAIT, Rig, data
from tinkex import types
from tinkex.errors import InvalidArgumentError
from tinkex.losses import numpy_loss
from tinkex.testing import FakeClock

PIECES = types.ClientConfigResponse(fwdbwd_max_chunk_len=2)
Loss = Callable[[list[types.Datum], list[Any]], Any]


# ---- one loss per shape of targets, in numpy and in torch, and its gradient in closed form


def flat(count: int = 5) -> list[types.Datum]:
    """Examples with targets of [T]."""
    made = []
    for index in range(count):
        tokens = np.arange(3 + index) * 7 + index
        inputs = {
            "target_tokens": tokens,
            "weights": np.ones(len(tokens), np.float32),
            "advantages": np.linspace(-1, 1, len(tokens), dtype=np.float32),
        }
        made.append(types.Datum(types.ModelInput.from_ints(tokens), inputs))
    return made


def wide(count: int = 5) -> list[types.Datum]:
    """Examples with targets of [T, K] and no weights of their own."""
    made = []
    for index in range(count):
        length, width = 2 + index, 3
        inputs = {
            "target_tokens": np.arange(length * width).reshape(length, width) + index,
            "advantages": np.linspace(0, 1, length * width, dtype=np.float32).reshape(length, width),
        }
        made.append(types.Datum(types.ModelInput.from_ints(np.arange(length)), inputs))
    return made


def advantages(datum: types.Datum) -> Any:
    return datum.loss_fn_inputs["advantages"].to_numpy()


def policy_gradient(datum: types.Datum, logprobs: Any) -> Any:
    """Of -Σ A exp(logp): a ratio to an old policy of probability one."""
    return -advantages(datum) * np.exp(logprobs)


def distillation_gradient(datum: types.Datum, logprobs: Any) -> Any:
    """Of ½ Σ (logp - q)²."""
    return logprobs - advantages(datum)


@numpy_loss
def policy_numpy(examples: list[types.Datum], logprobs: list[Any]) -> Any:
    losses = [-(advantages(each) * np.exp(own)).sum() for each, own in zip(examples, logprobs, strict=True)]
    gradients = [policy_gradient(each, own) for each, own in zip(examples, logprobs, strict=True)]
    return sum(losses), {"examples:sum": float(len(examples))}, gradients


@numpy_loss
def distillation_numpy(examples: list[types.Datum], logprobs: list[Any]) -> Any:
    gaps = [own - advantages(each) for each, own in zip(examples, logprobs, strict=True)]
    return sum((gap**2).sum() / 2 for gap in gaps), {"examples:sum": float(len(examples))}, gaps


def policy_torch(examples: list[types.Datum], logprobs: list[Any]) -> Any:
    losses = [
        -(each.loss_fn_inputs["advantages"].to_torch() * own.exp()).sum()
        for each, own in zip(examples, logprobs, strict=True)
    ]
    return sum(losses), {"examples:sum": float(len(examples))}


def distillation_torch(examples: list[types.Datum], logprobs: list[Any]) -> Any:
    losses = [
        ((own - each.loss_fn_inputs["advantages"].to_torch()) ** 2).sum() / 2
        for each, own in zip(examples, logprobs, strict=True)
    ]
    return sum(losses), {"examples:sum": float(len(examples))}


CASES = [
    pytest.param(policy_numpy, policy_gradient, flat, id="numpy-1d"),
    pytest.param(distillation_numpy, distillation_gradient, wide, id="numpy-2d"),
    pytest.param(policy_torch, policy_gradient, flat, id="torch-1d"),
    pytest.param(distillation_torch, distillation_gradient, wide, id="torch-2d"),
]


def run(trainer: Any, examples: list[types.Datum], loss: Loss, *, use_async: bool) -> Any:
    if not use_async:
        return trainer.forward_backward_custom(examples, loss).result(WAIT)

    async def go() -> Any:
        return await (await trainer.forward_backward_custom_async(examples, loss))

    return asyncio.run(go())


def sent(rig: Rig, *, forward_only: bool) -> list[types.Datum]:
    """The examples of one of the two passes, in order."""
    bodies = [call.body for call in rig.service.calls_to("forward_backward")]
    wanted = sorted(
        (body for body in bodies if body.forward_only is forward_only), key=lambda body: body.seq_id
    )
    assert all(body.loss_fn == "cross_entropy" for body in wanted)
    return [datum for body in wanted for datum in body.data]


@pytest.mark.parametrize("use_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(("loss", "gradient", "make"), CASES)
def test_the_server_gets_minus_the_gradient_as_weights(
    loss: Loss, gradient: Any, make: Any, use_async: bool
) -> None:
    if loss in (policy_torch, distillation_torch):
        pytest.importorskip("torch")
    rig = Rig(config=PIECES)
    trainer = rig.trainer()
    examples = make()
    plain = trainer.forward(examples, "cross_entropy").result(WAIT)
    rig.service.calls.clear()
    result = run(trainer, examples, loss, use_async=use_async)

    logprobs = [
        one["logprobs"].to_numpy().reshape(advantages(each).shape)
        for one, each in zip(plain.loss_fn_outputs, examples, strict=True)
    ]
    for before, after, each, own in zip(
        sent(rig, forward_only=True), sent(rig, forward_only=False), examples, logprobs, strict=True
    ):
        assert before.model_input == after.model_input == each.model_input
        assert set(before.loss_fn_inputs) == set(after.loss_fn_inputs) == {"target_tokens", "weights"}
        targets = after.loss_fn_inputs["target_tokens"].to_numpy()
        np.testing.assert_array_equal(targets, each.loss_fn_inputs["target_tokens"].to_numpy())
        weights = after.loss_fn_inputs["weights"].to_numpy()
        assert weights.shape == targets.shape
        np.testing.assert_allclose(weights, -gradient(each, own), rtol=1e-6, atol=1e-7)
    expected = (
        sum(-(advantages(each) * np.exp(own)).sum() for each, own in zip(examples, logprobs, strict=True))
        if gradient is policy_gradient
        else sum(
            ((own - advantages(each)) ** 2).sum() / 2 for each, own in zip(examples, logprobs, strict=True)
        )
    )
    assert result.metrics["loss:sum"] == pytest.approx(float(expected), rel=1e-5)
    assert result.metrics["examples:sum"] == len(examples)
    surrogate = sum(
        float((gradient(each, own) * own).sum()) for each, own in zip(examples, logprobs, strict=True)
    )
    assert result.metrics["surrogate_loss:sum"] == pytest.approx(surrogate, rel=1e-4)


def test_a_gradient_agrees_with_finite_differences() -> None:
    examples = flat(1)
    logprobs = np.linspace(-3, -0.1, 3)
    (analytic,) = policy_numpy(examples, [logprobs])[2]
    step = 1e-6
    for index in range(3):
        shift = np.zeros(3)
        shift[index] = step
        up, down = (policy_numpy(examples, [logprobs + sign * shift])[0] for sign in (1, -1))
        assert (up - down) / (2 * step) == pytest.approx(analytic[index], rel=1e-5)


def test_missing_weights_are_zero_in_the_forward_pass_and_given_ones_are_kept() -> None:
    rig = Rig()
    trainer = rig.trainer()
    trainer.forward_backward_custom([*wide(1), *wide(1)], distillation_numpy).result(WAIT)
    for datum in sent(rig, forward_only=True):
        assert not datum.loss_fn_inputs["weights"].to_numpy().any()
    rig.service.calls.clear()
    trainer.forward_backward_custom(flat(2), policy_numpy).result(WAIT)
    for datum in sent(rig, forward_only=True):
        assert datum.loss_fn_inputs["weights"].to_numpy().all()


def test_sparse_targets_keep_their_layout() -> None:
    rig = Rig()
    targets = types.TensorData(
        data=[5, 6, 7],
        dtype="int64",
        shape=[3, 8],
        sparse_crow_indices=[0, 1, 1, 3],
        sparse_col_indices=[0, 0, 1],
    )

    @numpy_loss
    def squares(examples: list[types.Datum], logprobs: list[Any]) -> Any:
        return sum((own**2).sum() / 2 for own in logprobs), {}, logprobs

    datum = types.Datum(types.ModelInput.from_ints([1, 2, 3]), {"target_tokens": targets})
    trainer = rig.trainer()
    trainer.forward_backward_custom([datum], squares).result(WAIT)
    before, after = (sent(rig, forward_only=flag)[0].loss_fn_inputs for flag in (True, False))
    for inputs in (before, after):
        assert inputs["target_tokens"].is_sparse
        assert inputs["weights"].sparse_crow_indices == [0, 1, 1, 3]
        assert inputs["weights"].sparse_col_indices == [0, 0, 1]
    assert all(np.asarray(after["weights"].data) > 0)


# ---- where it runs


@pytest.mark.parametrize("use_async", [False, True], ids=["sync", "async"])
def test_the_loss_runs_in_the_callers_thread(use_async: bool) -> None:
    seen: list[int] = []

    @numpy_loss
    def here(examples: list[types.Datum], logprobs: list[Any]) -> Any:
        seen.append(threading.get_ident())
        return 0.0, {}, logprobs

    run(Rig().trainer(), data(1), here, use_async=use_async)
    assert seen == [threading.get_ident()]


@pytest.mark.parametrize("use_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_a_caller_that_has_switched_gradients_off_can_have_a_loss(mode: str, use_async: bool) -> None:
    torch = pytest.importorskip("torch")
    with getattr(torch, mode)():
        output = run(
            Rig().trainer(),
            data(2),
            lambda _, logprobs: (-sum(each.sum() for each in logprobs), {}),
            use_async=use_async,
        )
        assert torch.is_grad_enabled() is False
    assert output.metrics["loss:sum"] > 0


@pytest.mark.parametrize("use_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_heartbeats_go_on_during_a_slow_loss(library: str, use_async: bool) -> None:
    rig = Rig()
    rig.clock = rig.service.clock = FakeClock()
    beats: list[int] = []

    def think() -> None:
        rig.clock.advance_from_thread(65.0)
        beats.append(len(rig.service.calls_to("session_heartbeat")))

    @numpy_loss
    def slow_numpy(examples: list[types.Datum], logprobs: list[Any]) -> Any:
        think()
        return 0.0, {}, logprobs

    def slow_torch(examples: list[types.Datum], logprobs: list[Any]) -> Any:
        think()
        return sum(each.sum() for each in logprobs), {}

    if library == "torch":
        pytest.importorskip("torch")
    loss = slow_numpy if library == "numpy" else slow_torch
    assert run(rig.trainer(), data(1), loss, use_async=use_async).metrics
    assert beats == [6]


@pytest.mark.parametrize("use_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("nested", ["forward", "step", "sampler"])
def test_waiting_inside_the_loss_for_what_comes_after_it_is_an_error_not_a_hang(
    nested: str, use_async: bool
) -> None:
    rig = Rig()
    trainer = rig.trainer()
    before = trainer.forward(data(1), "cross_entropy")
    started: list[Any] = []

    @numpy_loss
    def loss(examples: list[types.Datum], logprobs: list[Any]) -> Any:
        before.result(WAIT)  # was sent already
        if nested == "forward":
            started.append(trainer.forward(data(1), "cross_entropy"))
            wait = started[0].result
        elif nested == "step":
            started.append(trainer.optim_step(types.AdamParams(learning_rate=1e-4)))
            wait = started[0].result
        else:
            wait = trainer.save_weights_and_get_sampling_client
        with pytest.raises(RuntimeError, match="custom loss"):
            wait()
        return 0.0, {}, logprobs

    run(trainer, data(1), loss, use_async=use_async)
    for each in started:  # outside, waiting for it is fine
        assert each.result(WAIT)


def test_an_error_in_the_loss_reaches_the_caller_and_frees_the_line() -> None:
    @numpy_loss
    def broken(examples: list[types.Datum], logprobs: list[Any]) -> Any:
        raise ZeroDivisionError("mine")

    trainer = Rig().trainer()
    with pytest.raises(ZeroDivisionError, match="mine"):
        trainer.forward_backward_custom(data(1), broken)
    assert trainer.forward_backward(data(1), "cross_entropy").result(WAIT).metrics


# ---- what a loss may return


class Dlpack:
    """An array that can only be had by dlpack, as those of some libraries."""

    def __init__(self, held: Any) -> None:
        self._held = held

    def __dlpack__(self, **options: Any) -> Any:
        return self._held.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._held.__dlpack_device__()


@pytest.mark.parametrize(
    "wrap", [lambda array: array.astype(np.float64), Dlpack, lambda array: array.tolist()]
)
def test_gradients_may_be_of_any_array_kind(wrap: Any) -> None:
    @numpy_loss
    def loss(examples: list[types.Datum], logprobs: list[Any]) -> Any:
        return 1.0, {}, [wrap(np.full(each.shape, 0.25, np.float32)) for each in logprobs]

    rig = Rig()
    rig.trainer().forward_backward_custom(data(2), loss).result(WAIT)
    for datum in sent(rig, forward_only=False):
        np.testing.assert_array_equal(
            datum.loss_fn_inputs["weights"].to_numpy(), np.full(4, -0.25, np.float32)
        )


def test_gradients_of_a_wrong_shape_are_refused() -> None:
    @numpy_loss
    def loss(examples: list[types.Datum], logprobs: list[Any]) -> Any:
        return 1.0, {}, [each[:-1] for each in logprobs]

    with pytest.raises(InvalidArgumentError, match=r"gradients of shapes \[\[3\]\]"):
        Rig().trainer().forward_backward_custom(data(1), loss)


def test_logprobs_without_a_gradient_are_refused() -> None:
    pytest.importorskip("torch")

    def first_only(examples: list[types.Datum], logprobs: list[Any]) -> Any:
        return logprobs[0].sum(), {}

    with pytest.raises(InvalidArgumentError, match=r"data\[1\]"):
        Rig().trainer().forward_backward_custom(data(2), first_only)


def test_examples_without_targets_are_refused_before_anything_is_sent() -> None:
    rig = Rig()
    trainer = rig.trainer()
    bare = types.Datum(types.ModelInput.from_ints([1, 2]), {"weights": np.ones(2, np.float32)})
    with pytest.raises(InvalidArgumentError, match="target_tokens"):
        trainer.forward_backward_custom([bare], policy_numpy)
    with pytest.raises(InvalidArgumentError, match="No data provided"):
        trainer.forward_backward_custom([], policy_numpy)
    assert rig.service.calls_to("forward_backward") == []


def test_metrics_may_be_anything() -> None:
    kept = {"note": "warm-up", "nothing": None, "histogram": [1, 2]}

    @numpy_loss
    def loss(examples: list[types.Datum], logprobs: list[Any]) -> Any:
        return 0.0, {**kept, "scalar": np.float32(0.5)}, logprobs

    metrics = run(Rig().trainer(), data(1), loss, use_async=False).metrics
    assert {name: metrics[name] for name in kept} == kept
    assert type(metrics["scalar"]) is float


def test_without_torch_a_torch_loss_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    rig = Rig()
    trainer = rig.trainer()
    with pytest.raises(ImportError, match=r"tinkex\[torch\]"):
        trainer.forward_backward_custom(data(1), policy_torch)
    with pytest.raises(ImportError, match=r"tinkex\[torch\]"):
        rig.client().create_custom_loss(lambda logprobs: (logprobs.sum(), {}), {"logprobs": 1})
    assert trainer.forward_backward_custom(flat(1), policy_numpy).result(WAIT).metrics


def test_loss_type_input_is_deprecated() -> None:
    trainer = Rig().trainer()
    with pytest.warns(DeprecationWarning, match="loss_type_input"):
        trainer.forward_backward_custom(flat(1), policy_numpy, loss_type_input="logprobs").result(WAIT)
    with (
        pytest.warns(DeprecationWarning, match="leave it out"),
        pytest.raises(ValueError, match="only 'logprobs'"),
    ):
        trainer.forward_backward_custom(flat(1), policy_numpy, loss_type_input="logits")
