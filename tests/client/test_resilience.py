"""Failing, slow, overloaded and older servers: what the client does about them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from typing import Any

import pytest

from tests.client.rig import WAIT, Rig, data, eventually
from tinkex import types
from tinkex.client.retry_config import RetryConfig
from tinkex.errors import (
    APIConnectionError,
    BadRequestError,
    BillingError,
    PromiseExpiredError,
    RequestFailedError,
    ResultNotFoundError,
    StuckError,
    TinkerError,
)

ADAM = types.AdamParams(learning_rate=1e-4)
PROMPT = types.ModelInput.from_ints([1, 2, 3])
SHORT = types.SamplingParams(max_tokens=2)
BATCHED = types.ClientConfigResponse(sample_use_retrieve_futures=True)


def times(rig: Rig, route: str) -> list[float]:
    return [call.time for call in rig.service.calls.to(route)]


# ---- storms


def test_a_storm_of_503_is_answered_with_few_polls() -> None:
    rig = Rig()
    trainer = rig.trainer()
    rig.service.faults.add("retrieve_future", status=503, times=8)
    started = len(times(rig, "retrieve_future"))
    trainer.optim_step(ADAM).result(WAIT)
    asked = times(rig, "retrieve_future")[started:]
    assert len([moment for moment in asked if moment - asked[0] <= 5.0]) <= 6
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert gaps[3] > gaps[0]  # the waits grow
    assert len({round(gap, 6) for gap in gaps}) == len(gaps)  # and are jittered


def test_immediate_try_again_answers_are_not_followed_by_immediate_polls() -> None:
    rig = Rig(hold=0.0, latency={"optim_step": 5.0})
    trainer = rig.trainer()
    before = len(times(rig, "retrieve_future"))
    trainer.optim_step(ADAM).result(WAIT)
    assert len(times(rig, "retrieve_future")) - before <= 25


def test_a_lost_server_is_reported_within_seconds_and_work_goes_on_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    trainer = rig.trainer()
    rig.offline()
    with caplog.at_level(logging.WARNING, "tinkex"):
        future = trainer.optim_step(ADAM)
        assert eventually(lambda: bool(caplog.records))
        first = next(record for record in caplog.records if "trying again" in record.getMessage())
    assert "http://fake.test" in first.getMessage()
    assert isinstance(first.args, tuple)
    left = first.args[-1]  # of the budget, in seconds
    assert trainer.holder.connection.config.retry_seconds - 5.0 <= left  # told after the first short waits
    rig.offline(False)
    assert future.result(WAIT) is not None


def test_two_thousand_samples_on_a_slow_server_all_succeed_without_bursts() -> None:
    rig = Rig()
    client = rig.client().create_sampling_client(base_model="Qwen/Qwen3-8B")
    rig.service.rate_limit("asample", 20, burst=20)
    futures = [client.sample(PROMPT, 1, SHORT) for _ in range(2000)]
    for future in futures:
        assert len(future.result(90).sequences) == 1
    sent = times(rig, "asample")
    settled = [moment for moment in sent if moment - sent[0] > 20]
    most = max(sum(1 for other in settled if moment <= other < moment + 1.0) for moment in settled[::50])
    assert most <= 80  # 20 fit into a second; refused tries on top stay few
    assert len(sent) <= 2000 * 3


# ---- retries


@pytest.mark.parametrize(
    "fault", [{"status": 503}, {"status": 429}, {"status": 408}, {"status": 409}, {"drop": True}]
)
def test_an_operation_keeps_its_key_and_number_over_all_tries(fault: dict[str, Any]) -> None:
    rig = Rig()
    trainer = rig.trainer()
    rig.service.faults.add("optim_step", times=3, **fault)
    trainer.optim_step(ADAM).result(WAIT)
    calls = rig.service.calls.to("optim_step")
    assert len(calls) == 4
    assert len({call.idempotency_key for call in calls}) == 1
    assert {call.seq_id for call in calls} == {1}


def test_the_server_has_the_last_word_on_retries() -> None:
    rig = Rig()
    client = rig.client()
    again, never = {"x-should-retry": "true"}, {"x-should-retry": "false"}
    route = "get_server_capabilities"
    rig.service.faults.add(route, status=400, headers=again, body={"detail": "x"}, times=1)
    client.get_server_capabilities()
    rig.service.faults.add(route, status=503, headers=never, body={"detail": "x"})
    with pytest.raises(TinkerError):
        client.get_server_capabilities()
    assert len(rig.service.calls.to(route)) == 3


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after-ms": "2500", "retry-after": "9"}, 2.5),
        ({"retry-after": "900"}, 60.0),
    ],
)
@pytest.mark.parametrize("route", ["optim_step", "retrieve_future", "asample"])
def test_advice_on_when_to_come_back_is_heeded_everywhere(
    route: str, headers: dict[str, str], wait: float
) -> None:
    rig = Rig()
    client = rig.client()
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B")
    sampler = client.create_sampling_client(base_model="Qwen/Qwen3-8B")
    before = len(times(rig, route))
    rig.service.faults.add(route, status=429, headers=headers, times=1)
    work = sampler.sample(PROMPT, 1, SHORT) if route == "asample" else trainer.optim_step(ADAM)
    work.result(WAIT)
    first, second = times(rig, route)[before : before + 2]
    assert wait <= second - first <= wait * 1.2 + 0.5


def test_a_server_gone_for_good_ends_in_an_error_that_tells_how_long_was_tried() -> None:
    rig = Rig()
    client = rig.client()
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B", rank=8)
    delays: list[float] = []
    client.on_event(
        lambda event: (
            delays.append(event.data["delay"])
            if (event.kind, event.name) == ("retry", "optim_step")
            else None
        )
    )
    rig.offline()
    with pytest.raises(APIConnectionError):
        trainer.optim_step(ADAM).result(WAIT)
    client.holder.connection.hooks.flush()
    assert 200 <= sum(delays) <= 300
    rig.offline(False)
    trainer.optim_step(ADAM).result(WAIT)


def test_an_empty_400_comes_from_a_proxy_and_is_tried_again() -> None:
    rig = Rig()
    trainer = rig.trainer()
    rig.service.faults.add("optim_step", status=400, body=b"", times=1)
    trainer.optim_step(ADAM).result(WAIT)


# ---- waiting for results


def test_a_wait_that_is_refused_ends_typed() -> None:
    rig = Rig()
    trainer = rig.trainer()
    rig.service.faults.add("retrieve_future", status=404, body={"detail": "who?"})
    with pytest.raises(ResultNotFoundError) as caught:
        trainer.optim_step(ADAM).result(WAIT)
    assert isinstance(caught.value, ValueError)
    rig.service.faults.clear()
    trainer.optim_step(ADAM).result(WAIT)


def test_three_bad_requests_while_waiting_are_forgiven() -> None:
    rig = Rig()
    trainer = rig.trainer()
    rig.service.faults.add("retrieve_future", status=400, body={"detail": "?"}, times=3)
    trainer.optim_step(ADAM).result(WAIT)
    rig.service.faults.add("retrieve_future", status=400, body={"detail": "?"})
    with pytest.raises(BadRequestError):
        trainer.optim_step(ADAM).result(WAIT)


def test_a_lost_result_fails_training_and_resubmits_sampling_under_a_new_number() -> None:
    rig = Rig()
    client = rig.client()
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B")
    rig.service.faults.add("optim_step", lose=True, times=1)
    with pytest.raises(PromiseExpiredError):
        trainer.optim_step(ADAM).result(WAIT)
    sampler = client.create_sampling_client(base_model="Qwen/Qwen3-8B")
    rig.service.faults.add("asample", lose=True, times=2)
    assert len(sampler.sample(PROMPT, 1, SHORT).result(WAIT).sequences) == 1
    assert [call.seq_id for call in rig.service.calls.to("asample")] == [0, 1, 2]


@pytest.mark.parametrize("category", ["server", "user", "unknown"])
@pytest.mark.parametrize("route", ["asample", "forward_backward", "optim_step", "save_weights"])
def test_failed_work_is_tried_again_only_where_that_is_safe(route: str, category: str) -> None:
    rig = Rig()
    client = rig.client()
    sampler = client.create_sampling_client(base_model="Qwen/Qwen3-8B")
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B")
    rig.service.faults.add(route, fail=("oops", category), times=1)
    future: Any = {
        "asample": lambda: sampler.sample(PROMPT, 1, SHORT),
        "forward_backward": lambda: trainer.forward_backward(data(1), "cross_entropy"),
        "optim_step": lambda: trainer.optim_step(ADAM),
        "save_weights": lambda: trainer.save_state("a"),
    }[route]()
    error = future.exception(WAIT)
    safe = route == "asample" and category == "server"
    assert len(rig.service.calls.to(route)) == (2 if safe else 1)
    if not safe:
        assert isinstance(error, RequestFailedError)
        assert error.category == category
        assert error.request_id
    else:
        assert error is None


@pytest.mark.parametrize("spelling", ["user", "User", "USER", "weird"])
def test_the_category_is_read_in_any_case_and_kept(spelling: str) -> None:
    rig = Rig()
    trainer = rig.trainer()
    rig.service.faults.add(
        "retrieve_future", status=200, body={"error": "x", "category": spelling}, times=1
    )
    error = trainer.optim_step(ADAM).exception(WAIT)
    assert isinstance(error, RequestFailedError)
    assert error.category_text == spelling
    assert error.category == ("unknown" if spelling == "weird" else "user")


def test_a_billing_problem_pauses_visibly_and_ends_when_the_window_is_over() -> None:
    rig = Rig(config=types.ClientConfigResponse(billing_exception_max_pause_duration_sec=60))
    client = rig.client()
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B")
    seen: list[Any] = []
    client.on_event(lambda event: seen.append(event) if event.kind == "queue_state" else None)
    rig.service.faults.add("retrieve_future", status=402, body={"detail": "pay"}, times=3)
    trainer.optim_step(ADAM).result(WAIT)
    client.holder.connection.hooks.flush()
    assert any(event.data["state"] == "paused_billing" for event in seen)
    rig.service.faults.add("retrieve_future", status=402, body={"detail": "pay"})
    with pytest.raises(BillingError):
        trainer.optim_step(ADAM).result(WAIT)


def test_results_in_json_may_hold_what_is_no_number() -> None:
    rig = Rig()
    trainer = rig.trainer()
    step = b'{"type": "optim_step", "metrics": {"grad_norm:mean": NaN, "largest:max": Infinity}}'
    rig.service.faults.add("retrieve_future", status=200, body=step, times=1)
    metrics = trainer.optim_step(ADAM).result(WAIT).metrics
    assert metrics is not None
    assert math.isnan(metrics["grad_norm:mean"])
    assert metrics["largest:max"] == math.inf
    output = (
        b'{"loss_fn_output_type": "x", "metrics": {"loss:sum": NaN}, "loss_fn_outputs": '
        b'[{"logprobs": {"data": [NaN, -1.0], "dtype": "float32", "shape": [2]}}]}'
    )
    rig.service.faults.add("retrieve_future", status=200, body=output, times=1)
    result = trainer.forward(data(1), "cross_entropy").result(WAIT)
    assert math.isnan(result.metrics["loss:sum"])
    assert result.loss_fn_outputs[0]["logprobs"].data[1] == -1.0


def test_each_billing_problem_has_a_window_of_its_own() -> None:
    window = types.ClientConfigResponse(billing_exception_max_pause_duration_sec=60)
    rig = Rig(config=window, latency={"optim_step": 500.0}, hold=20.0)
    trainer = rig.trainer()
    rig.service.faults.add("retrieve_future", status=402, body={"detail": "pay"}, times=2)
    polls = len(rig.service.calls_to("retrieve_future"))
    rig.service.faults.add(
        "retrieve_future",
        when=lambda _: len(rig.service.calls_to("retrieve_future")) - polls > 8,
        status=402,
        body={"detail": "pay"},
        times=2,
    )
    assert trainer.optim_step(ADAM).result(WAIT)
    answers = [call.status for call in rig.service.calls_to("retrieve_future")[polls:]]
    assert answers.count(402) == 4


def test_a_billing_problem_of_a_sample_that_has_waited_long_has_its_whole_window() -> None:
    rig = Rig(config=types.ClientConfigResponse(billing_exception_max_pause_duration_sec=60))
    sampler = rig.client().create_sampling_client(base_model="Qwen/Qwen3-8B")
    busy = rig.service.faults.add("asample", status=429, headers={"retry-after": "50"}, times=2)
    unpaid = rig.service.faults.add("asample", status=402, body={"detail": "pay"}, times=2)
    assert sampler.sample(PROMPT, 1, SHORT).result(WAIT).sequences
    assert [call.status for call in rig.service.calls_to("asample")] == [429, 429, 402, 402, 200]
    busy.remove()
    unpaid.remove()
    rig.service.faults.add("asample", status=402, body={"detail": "pay"})
    with pytest.raises(BillingError):
        sampler.sample(PROMPT, 1, SHORT).result(WAIT)


def test_large_results_are_announced_before_they_are_fetched() -> None:
    rig = Rig(large_result=10)
    trainer = rig.trainer()
    assert trainer.forward(data(2), "cross_entropy").result(WAIT).loss_fn_outputs
    asked = [call.json["allow_metadata_only"] for call in rig.service.calls.to("retrieve_future")][-2:]
    assert asked == [True, False]


def test_nothing_moving_for_too_long_is_an_error_that_says_what_was_waited_for() -> None:
    rig = Rig(latency={"asample": 1e9}, hold=20.0)
    rig.service.queue_state = ("paused_capacity", "all seats taken")
    patience = RetryConfig(progress_timeout=300)
    sampler = rig.client().create_sampling_client(base_model="Qwen/Qwen3-8B", retry_config=patience)
    with pytest.raises(StuckError, match="all seats taken"):
        sampler.sample(PROMPT, 1, SHORT).result(WAIT)


# ---- one poll for many samples


def test_finished_samples_are_asked_for_together_where_the_server_offers_it() -> None:
    rig = Rig(config=BATCHED, latency={"asample": 1.0})
    sampler = rig.client().create_sampling_client(base_model="Qwen/Qwen3-8B")
    for future in [sampler.sample(PROMPT, 1, SHORT) for _ in range(50)]:
        future.result(WAIT)
    assert len(rig.service.calls.to("retrieve_future")) == 50
    assert len(rig.service.calls.to("retrieve_futures")) <= 10


def test_a_server_without_the_common_poll_is_polled_singly() -> None:
    rig = Rig(
        config=types.ClientConfigResponse(sample_use_retrieve_futures=True), without=["retrieve_futures"]
    )
    sampler = rig.client().create_sampling_client(base_model="Qwen/Qwen3-8B")
    for _ in range(2):
        sampler.sample(PROMPT, 1, SHORT).result(WAIT)
    assert len(rig.service.calls.to("retrieve_futures")) == 1


# ---- older servers


@pytest.mark.parametrize(
    "settings", [{"json_only": True}, {"sample_sequence_ids": False}, {"dynamic": None}]
)
def test_older_servers_work(settings: dict[str, Any]) -> None:
    rig = Rig(**settings)
    client = rig.client()
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B")
    result = trainer.forward_backward(data(2), "cross_entropy").result(WAIT)
    assert len(result.loss_fn_outputs) == 2
    sampler = trainer.save_weights_and_get_sampling_client()
    answer = sampler.sample(PROMPT, 2, SHORT).result(WAIT)
    names = [sequence.sequence_id for sequence in answer.sequences]
    assert len(set(names)) == 2
    assert all(names)


def test_a_server_without_client_config_works_with_defaults() -> None:
    rig = Rig(without=["client_config", "client_dynamic_config"])
    sampler = rig.client().create_sampling_client(base_model="Qwen/Qwen3-8B")
    assert sampler.sample(PROMPT, 1, SHORT).result(WAIT).sequences


# ---- limits


def test_backoff_is_shared_by_clients_with_the_same_key_and_by_nobody_else() -> None:
    rig = Rig()
    first = rig.client("tml-a").create_sampling_client(base_model="Qwen/Qwen3-8B")
    second = rig.client("tml-a").create_sampling_client(base_model="Qwen/Qwen3-8B")
    other = rig.client("tml-b").create_sampling_client(base_model="Qwen/Qwen3-8B")
    rig.service.faults.add("asample", status=429, headers={"retry-after": "30"}, times=1)
    refused = first.sample(PROMPT, 1, SHORT)
    assert eventually(lambda: len(rig.service.calls.to("asample")) == 1)
    started = rig.service.calls.to("asample")[0].time
    assert eventually(lambda: first.holder.connection.shared.sampling.paused_until > started)
    with rig.clock.frozen():
        quick = other.sample(PROMPT, 1, SHORT)
        assert eventually(lambda: len(rig.service.calls.to("asample")) == 2)
        later = second.sample(PROMPT, 1, SHORT)
    for future in (refused, quick, later):
        future.result(WAIT)
    sent = [
        (call.json["sampling_session_id"], call.time - started) for call in rig.service.calls.to("asample")
    ]
    assert next(wait for name, wait in sent if name == other.sampling_session_id) < 30
    waits = [wait for name, wait in sent[1:] if name != other.sampling_session_id]
    assert len(waits) == 2
    assert min(waits) >= 30


def test_awaiting_thousands_of_samples_from_one_loop_gives_every_one_its_answer() -> None:
    rig = Rig()
    sampler = rig.client().create_sampling_client(base_model="Qwen/Qwen3-8B")

    async def main() -> set[str]:
        answers = await asyncio.gather(*(sampler.sample_async(PROMPT, 1, SHORT) for _ in range(1000)))
        return {answer.sequences[0].sequence_id for answer in answers}

    assert len(asyncio.run(main())) == 1000
