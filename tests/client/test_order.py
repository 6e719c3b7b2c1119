"""Any mix of operations, failures, cancels and delays leaves a usable client and an executable order."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.client.rig import WAIT, Rig, data
from tinkex import types
from tinkex.client.training import TrainingClient
from tinkex.client.turns import Line
from tinkex.errors import TinkerError
from tinkex.losses import numpy_loss
from tinkex.types.losses import check_loss

PARALLEL = types.ClientConfigResponse(parallel_fwdbwd_chunks=True, fwdbwd_max_chunk_len=2)
SERIAL = types.ClientConfigResponse(parallel_fwdbwd_chunks=False, fwdbwd_max_chunk_len=2)
ADAM = types.AdamParams(learning_rate=1e-4)


@numpy_loss
def halves(examples: list[types.Datum], logprobs: list[Any]) -> Any:
    return sum(float(each.sum()) for each in logprobs) / 2, {}, [each * 0 + 0.5 for each in logprobs]


def start(trainer: Any, kind: str) -> Any:
    if kind == "pass":
        return trainer.forward_backward(data(1), "cross_entropy")
    if kind == "pieces":
        return trainer.forward_backward(data(7), "cross_entropy")
    if kind == "forward":
        return trainer.forward(data(3), "cross_entropy")
    if kind == "step":
        return trainer.optim_step(ADAM)
    if kind == "custom":
        return trainer.forward_backward_custom(data(3), halves)
    return trainer.save_state(f"state-{id(object())}", overwrite=True)


operation = st.tuples(
    st.sampled_from(["pass", "pieces", "forward", "step", "custom", "save"]),
    st.sampled_from(
        ["fine", "fine", "rejected", "busy", "dropped", "lost-answer", "fails", "slow", "cancelled"]
    ),
)


@pytest.mark.parametrize("config", [PARALLEL, SERIAL], ids=["parallel", "serial"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(operations=st.lists(operation, min_size=1, max_size=7))
def test_any_mix_leaves_a_usable_client_and_an_order_the_server_can_execute(
    config: types.ClientConfigResponse, operations: list[tuple[str, str]]
) -> None:
    rig = Rig(config=config, skip_after=5.0)
    trainer = rig.trainer()
    routes = ("forward_backward", "optim_step", "save_weights")
    started = []
    for kind, fate in operations:
        if fate == "rejected":
            rig.service.faults.add(routes, status=400, body={"detail": "no"}, times=1)
        elif fate == "busy":
            rig.service.faults.add(routes, status=503, times=2)
        elif fate == "dropped":
            rig.service.faults.add(routes, drop=True, times=1)
        elif fate == "lost-answer":
            rig.service.faults.add(routes, drop=True, after=True, times=1)
        elif fate == "fails":
            rig.service.faults.add(routes, fail=("bad luck", "user"), times=1)
        elif fate == "slow":
            rig.service.faults.add(routes, delay=3.0, times=2)
        try:
            future = start(trainer, kind)
        except TinkerError:  # a custom loss waits for its forward pass in the call itself
            continue
        started.append(future)
        if fate == "cancelled":
            future.cancel()
    for future in started:
        if not future.cancelled():
            future.exception(WAIT)  # everything ends
    rig.service.faults.clear()
    assert trainer.optim_step(ADAM).result(WAIT) is not None
    calls = [call for call in rig.service.calls if call.model_id == trainer.model_id and call.seq_id]
    first_seen = list(dict.fromkeys(call.seq_id for call in calls))
    assert sorted(first_seen) == list(range(1, len(first_seen) + 1)), "no hole is left behind"
    executed = list(rig.service.executed(trainer.model_id))
    assert executed == sorted(set(executed)), "each once, in order"


def test_ids_are_given_in_call_order_across_threads_one_model_each() -> None:
    rig = Rig()
    service = rig.client()
    trainers = [service.create_lora_training_client("Qwen/Qwen3-8B") for _ in range(3)]
    done: list[Any] = []

    def work(trainer: Any) -> None:
        futures = []
        for _ in range(5):
            futures += [trainer.forward_backward(data(1), "cross_entropy"), trainer.optim_step(ADAM)]
        done.extend(future.result(WAIT) for future in futures)

    threads = [threading.Thread(target=work, args=(trainer,)) for trainer in trainers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert len(done) == 30
    for trainer in trainers:
        assert rig.service.seq_ids(trainer.model_id) == list(range(1, 11))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_every_training_operation_is_numbered_from_one() -> None:
    rig = Rig()
    trainer = rig.trainer()
    path = trainer.save_state("first").result(WAIT).path
    trainer.forward(data(1), "cross_entropy").result(WAIT)
    trainer.forward_backward(data(1), "cross_entropy").result(WAIT)
    trainer.forward_backward_custom(data(1), halves).result(WAIT)
    trainer.optim_step(ADAM).result(WAIT)
    trainer.save_weights_for_sampler("a").result(WAIT)
    trainer.save_weights_external("b").result(WAIT)
    trainer.save_weights_and_get_sampling_client()
    trainer.load_state(path).result(WAIT)
    trainer.load_state_with_optimizer(path).result(WAIT)
    operations = [call for call in rig.service.calls if call.model_id == trainer.model_id]
    sent = [(call.route, call.body.seq_id) for call in operations]
    assert sent == [
        ("save_weights", 1),
        ("forward_backward", 2),
        ("forward_backward", 3),
        ("forward_backward", 4),
        ("forward_backward", 5),
        ("optim_step", 6),
        ("save_weights_for_sampler", 7),
        ("save_weights_external", 8),
        ("save_weights_for_sampler", 9),
        ("load_weights", 10),
        ("load_weights", 11),
    ]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kinds=st.lists(st.sampled_from(["pass", "forward", "step", "save"]), min_size=2, max_size=8),
    delays=st.lists(st.sampled_from([0.0, 0.1, 2.0, 30.0]), min_size=1, max_size=8),
    results=st.lists(st.sampled_from([0.0, 5.0, 100.0]), min_size=1, max_size=4),
)
def test_requests_arrive_in_order_whatever_their_delays(
    kinds: list[str], delays: list[float], results: list[float]
) -> None:
    rig = Rig()
    trainer = rig.trainer()
    routes = ["forward_backward", "optim_step", "save_weights"]
    rig.service.latency = {route: results[index % len(results)] for index, route in enumerate(routes)}
    for index in range(len(kinds)):
        rig.service.faults.add(routes, delay=delays[index % len(delays)], times=1)
    futures = [start(trainer, kind) for kind in kinds]
    for future in futures:
        future.result(WAIT)
    calls = [call for call in rig.service.calls if call.model_id == trainer.model_id and call.seq_id]
    assert [call.seq_id for call in calls] == list(range(1, len(kinds) + 1))
    expected = {"pass": "forward_backward", "forward": "forward_backward", "step": "optim_step"}
    assert [call.route for call in calls] == [expected.get(kind, "save_weights") for kind in kinds]
    assert rig.service.executed(trainer.model_id) == list(range(1, len(kinds) + 1))


@pytest.mark.parametrize("method", ["forward", "forward_backward"])
@pytest.mark.parametrize("form", ["", "_async"])
def test_an_unknown_loss_is_refused_before_anything_is_sent(method: str, form: str) -> None:
    rig = Rig()
    trainer = rig.trainer()
    before = len(rig.service.calls)

    def call() -> None:
        made = getattr(trainer, method + form)(data(1), "crossentropy")
        if form:
            asyncio.run(made)

    with pytest.raises(
        ValueError, match=r"cross_entropy, importance_sampling, .* did you mean 'cross_entropy'"
    ):
        call()
    assert [call.route for call in rig.service.calls[before:] if call.route != "session_heartbeat"] == []
    assert trainer.forward_backward(data(1), "cross_entropy").result(WAIT)
    assert rig.service.seq_ids(trainer.model_id) == [1]


def test_the_losses_a_pass_takes_are_in_its_signature() -> None:
    hints = get_type_hints(TrainingClient.forward_backward)
    assert hints["loss_fn"] == types.LossFnType
    assert get_type_hints(TrainingClient.forward)["loss_fn"] == types.LossFnType
    for name in get_args(types.LossFnType):
        check_loss(name)


def test_pieces_of_one_pass_go_in_parallel_with_the_first_last() -> None:
    rig = Rig(config=PARALLEL)
    trainer = rig.trainer()
    trainer.forward_backward(data(6), "cross_entropy").result(WAIT)
    assert rig.service.seq_ids(trainer.model_id)[-1] == 1
    assert sorted(rig.service.seq_ids(trainer.model_id)) == [1, 2, 3]


def test_a_custom_loss_keeps_its_place_until_its_backward_pass_is_sent() -> None:
    rig = Rig()
    trainer = rig.trainer()
    later: list[Any] = []

    @numpy_loss
    def loss(examples: list[types.Datum], logprobs: list[Any]) -> Any:
        later.append(trainer.optim_step(ADAM))  # called while the loss runs
        return 0.0, {}, [each * 0 for each in logprobs]

    trainer.forward_backward_custom(data(1), loss).result(WAIT)
    later[0].result(WAIT)
    kinds = [
        (call.route, getattr(call.body, "forward_only", None))
        for call in rig.service.calls
        if call.model_id == trainer.model_id and call.seq_id
    ]
    assert kinds == [("forward_backward", True), ("forward_backward", False), ("optim_step", None)]


def test_a_line_hands_over_in_order_and_leaving_twice_is_harmless() -> None:
    line = Line()
    first, second, third = line.enter(), line.enter(), line.enter()
    second.leave()
    first.leave()
    first.leave()
    assert len(line) == 1
    assert line.numbers(2) == [1, 2]
    third.leave()
    assert len(line) == 0
