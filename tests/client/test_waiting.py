"""How long a result is waited for, what is told meanwhile, and what a timeout leaves behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from typing import Any

import pytest

from tests.client.rig import WAIT, Rig, data, eventually
from tinkex import SamplingClient, types
from tinkex.client.future import Progress
from tinkex.client.patience import Patience
from tinkex.client.queue_state import QueueState, QueueStateObserver, queue_state
from tinkex.client.retry_config import RetryConfig
from tinkex.config import Config
from tinkex.errors import RequestFailedError, StuckError
from tinkex.testing import FakeClock

ADAM = types.AdamParams(learning_rate=1e-4)
PROMPT = types.ModelInput.from_ints([1, 2, 3])
SHORT = types.SamplingParams(max_tokens=2)
MODEL = "Qwen/Qwen3-8B"
SINGLE = types.ClientConfigResponse()
BATCHED = types.ClientConfigResponse(sample_use_retrieve_futures=True)
FOR_EVER = 1e9


def patient(rig: Rig, **settings: Any) -> Any:
    """A client with settings of its own."""
    return rig.client(
        config=Config.resolve(base_url="http://fake.test", api_key="tml-test", telemetry=False, **settings)
    )


# ---- nothing moves


@pytest.mark.parametrize(
    "silence",
    [
        {"latency": FOR_EVER, "heard": "try again, "},
        {"fault": {"hang": True}, "heard": "none."},
        {"fault": {"status": 503}, "heard": "HTTP 503, "},
        {"fault": {"drop": True}, "heard": "Connection reset"},
    ],
    ids=lambda silence: silence["heard"],
)
@pytest.mark.parametrize("operation", ["optim_step", "forward_backward"])
def test_a_training_operation_that_never_moves_ends_at_the_set_time(
    operation: str, silence: dict[str, Any]
) -> None:
    rig = Rig(hold=20.0)
    trainer = patient(rig, stuck_seconds=300.0).create_lora_training_client(MODEL)
    if "latency" in silence:
        rig.service.latency = {operation: FOR_EVER}
        rig.service.queue_state = ("paused_capacity", "all seats taken")
    else:
        rig.service.faults.add("retrieve_future", **silence["fault"])
    if operation == "optim_step":
        future: Any = trainer.optim_step(ADAM)
    else:
        future = trainer.forward_backward(data(1), "cross_entropy")
    error = future.exception(WAIT)
    assert isinstance(error, StuckError)
    assert error.request_id == future.request_id is not None
    assert not error.retryable
    text = str(error)
    assert f"Nothing of {trainer.model_id} has come back for 300 s (stuck_seconds=300)" in text
    assert f"the oldest of 1: {operation} {future.request_id}, 300 s old" in text
    assert f"last answer: {silence['heard']}" in text
    if "latency" in silence:
        assert "queue paused_capacity (all seats taken)" in text


def test_the_client_stays_usable_after_something_was_stuck() -> None:
    rig = Rig()
    trainer = patient(rig, stuck_seconds=60.0).create_lora_training_client(MODEL)
    fault = rig.service.faults.add("retrieve_future", hang=True)
    waiting = [trainer.optim_step(ADAM) for _ in range(3)]
    for future in waiting:
        with pytest.raises(StuckError, match="optim_step"):
            future.result(WAIT)
    fault.remove()
    assert trainer.optim_step(ADAM).result(WAIT)
    assert rig.service.seq_ids(trainer.model_id) == [1, 2, 3, 4]
    assert rig.service.executed(trainer.model_id) == [1, 2, 3, 4]  # they ran, nobody saw it


def test_a_model_that_is_never_made_ends_at_the_set_time() -> None:
    rig = Rig(latency={"create_model": FOR_EVER})
    with pytest.raises(StuckError, match=r"create_model.*stuck_seconds=45"):
        patient(rig, stuck_seconds=45.0).create_lora_training_client(MODEL)


def test_a_long_line_that_moves_is_not_stuck() -> None:
    rig = Rig(latency={"optim_step": 50.0})
    trainer = patient(rig, stuck_seconds=60.0).create_lora_training_client(MODEL)
    futures = [trainer.optim_step(ADAM) for _ in range(8)]
    for future in futures:
        assert future.result(WAIT)
    assert rig.clock.elapsed >= 400.0


def test_failures_move_too() -> None:
    rig = Rig(latency={"optim_step": 50.0})
    trainer = patient(rig, stuck_seconds=60.0).create_lora_training_client(MODEL)
    rig.service.faults.add("optim_step", fail=("no", "user"), times=3)
    futures = [trainer.optim_step(ADAM) for _ in range(4)]
    for future in futures[:3]:
        with pytest.raises(RequestFailedError):
            future.result(WAIT)
    assert futures[3].result(WAIT)


def test_without_the_setting_a_training_operation_is_waited_for() -> None:
    rig = Rig(latency={"optim_step": 10_000.0}, hold=600.0)
    trainer = patient(rig, poll_timeout=700.0).create_lora_training_client(MODEL)
    assert trainer.optim_step(ADAM).result(WAIT)
    assert rig.clock.elapsed >= 10_000.0


@pytest.mark.parametrize("config", [SINGLE, BATCHED], ids=["single", "batched"])
@pytest.mark.parametrize("silence", ["works for ever", "never answers"])
def test_samples_that_never_come_end_at_the_clients_time(
    config: types.ClientConfigResponse, silence: str
) -> None:
    rig = Rig(config=config, hold=20.0)
    sampler = patient(rig, stuck_seconds=100.0).create_sampling_client(base_model=MODEL)
    if silence == "never answers":
        rig.service.faults.add(("retrieve_future", "retrieve_futures"), hang=True)
    else:
        rig.service.latency = {"asample": FOR_EVER}
    futures = [sampler.sample(PROMPT, 1, SHORT) for _ in range(5)]
    for future in futures:
        error = future.exception(WAIT)
        assert isinstance(error, StuckError)
        assert f"Nothing of {sampler.sampling_session_id} has come back for 100 s" in str(error)
        assert f"Waiting for asample {future.request_id}" in str(error)
        assert error.request_id == future.request_id
    rig.service.faults.clear()
    rig.service.latency = {}
    assert sampler.sample(PROMPT, 1, SHORT).result(WAIT).sequences


def test_a_sampler_s_own_setting_goes_before_the_client_s() -> None:
    rig = Rig(latency={"asample": 300.0}, hold=20.0)
    client = patient(rig, stuck_seconds=100.0)
    sampler = client.create_sampling_client(
        base_model=MODEL, retry_config=RetryConfig(progress_timeout=1000.0)
    )
    assert sampler.sample(PROMPT, 1, SHORT).result(WAIT).sequences


def test_a_server_that_refuses_all_samples_for_ever_is_stuck_too() -> None:
    rig = Rig()
    sampler = patient(rig, stuck_seconds=100.0).create_sampling_client(base_model=MODEL)
    rig.service.faults.add("asample", status=429)
    with pytest.raises(StuckError, match=r"not accepted yet.*last answer: HTTP 429"):
        sampler.sample(PROMPT, 1, SHORT).result(WAIT)


def test_patience_counts_from_the_last_movement_or_the_own_start() -> None:
    clock = FakeClock()
    patience = Patience(clock, "a model", 10.0)

    async def main() -> None:
        with patience.waiting("first", Progress(), "1") as first:
            await clock.advance(6.0)
            with patience.waiting("second", Progress(), "2") as second:
                assert (first.left(), second.left()) == (4.0, 10.0)
                await clock.advance(4.0)
                with pytest.raises(
                    StuckError, match=r"Waiting for first 1; the oldest of 2: first 1, 10 s old"
                ):
                    first.left()
                assert second.left() == 6.0
                patience.moved()
                assert (first.left(), second.left()) == (10.0, 10.0)
                patience.seconds = None
                await clock.advance(1e6)
                assert first.left() == second.left() == float("inf")

    asyncio.run(main())


# ---- timeouts of one call


@pytest.mark.parametrize("form", ["result", "exception", "result_async", "wait_for"])
@pytest.mark.parametrize("operation", ["step", "pass", "sample", "listing"])
def test_a_timeout_leaves_the_work_as_it_was(operation: str, form: str) -> None:
    rig = Rig()
    client = rig.client()
    trainer = client.create_lora_training_client(MODEL)
    sampler = client.create_sampling_client(base_model=MODEL)
    rig.service.pause("optim_step", "forward_backward", "asample")
    fault = rig.service.faults.add("get_info", hang=True)
    future: Any = {
        "step": lambda: trainer.optim_step(ADAM),
        "pass": lambda: trainer.forward_backward(data(1), "cross_entropy"),
        "sample": lambda: sampler.sample(PROMPT, 1, SHORT),
        "listing": lambda: client.holder.start(trainer._info()),
    }[operation]()

    async def awaited() -> None:
        await (asyncio.wait_for(future, 0.02) if form == "wait_for" else future.result_async(timeout=0.02))

    def wait() -> None:
        if form in ("result", "exception"):
            getattr(future, form)(0.02)
        else:
            asyncio.run(awaited())

    with pytest.raises(TimeoutError):
        wait()
    assert not future.done()
    assert not future.cancelled()
    fault.remove()
    rig.service.resume()
    assert future.result(WAIT) is asyncio.run(future.result_async()) is not None
    assert trainer.optim_step(ADAM).result(WAIT)
    assert sampler.sample(PROMPT, 1, SHORT).result(WAIT)


# ---- queue states


class Told:
    """Remembers what it was told, and in which thread."""

    def __init__(self) -> None:
        self.changes: list[tuple[QueueState, str | None]] = []
        self.threads: set[str] = set()

    def __call__(self, state: QueueState, reason: str | None) -> None:
        self.changes.append((state, reason))
        self.threads.add(threading.current_thread().name)


def walk_through_states(rig: Rig, start: Any) -> Any:
    """Start work and let the server tell of several states before it is done."""
    with rig.clock.frozen():
        future = start()
        assert eventually(lambda: future.request_id is not None)
    for state in (
        ("active", None),
        ("paused_capacity", "all seats taken"),
        ("paused_rate_limit", None),
        ("lunch", "back soon"),
        ("active", None),
    ):
        rig.service.queue_state = state  # type: ignore[assignment]
        before = len(rig.service.calls_to("retrieve_future"))
        rig.clock.advance_until_from_thread(
            lambda seen=before: len(rig.service.calls_to("retrieve_future")) >= seen + 3
        )
    return future


def test_a_sampler_is_told_once_of_each_change(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(hold=5.0, latency={"asample": 2000.0})
    rig.clock = rig.service.clock = FakeClock()
    sampler = rig.client().create_sampling_client(base_model=MODEL)
    assert isinstance(sampler, QueueStateObserver)
    told = Told()
    sampler.on_queue_state_change = told  # type: ignore[method-assign]
    walk_through_states(rig, lambda: sampler.sample(PROMPT, 1, SHORT))
    assert eventually(lambda: len(told.changes) >= 5)
    assert told.changes == [
        (QueueState.ACTIVE, None),
        (QueueState.PAUSED_CAPACITY, "all seats taken"),
        (QueueState.PAUSED_RATE_LIMIT, None),
        (QueueState.UNKNOWN, "back soon"),
        (QueueState.ACTIVE, None),
    ]
    assert "tinkex-portal" not in told.threads
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_pause_is_logged_unless_it_was_just_now(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(hold=5.0, latency={"asample": 2000.0})
    rig.clock = rig.service.clock = FakeClock()
    sampler = rig.client().create_sampling_client(base_model=MODEL)
    futures = []

    def many() -> Any:
        futures.extend(sampler.sample(PROMPT, 1, SHORT) for _ in range(20))
        return futures[-1]

    walk_through_states(rig, many)
    assert eventually(lambda: "lunch" not in caplog.text and "back soon" in caplog.text)
    lines = [record.getMessage() for record in caplog.records if "paused" in record.getMessage()]
    name = sampler.sampling_session_id
    assert lines == [
        f"sampling from {name} is paused: all seats taken",
        f"sampling from {name} is paused: the server's queue is paused rate limit",
        f"sampling from {name} is paused: back soon",
    ]


def test_a_pause_is_logged_though_the_sampler_was_dropped(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(hold=5.0, latency={"asample": 100.0})
    rig.service.queue_state = ("paused_capacity", "all seats taken")
    client = rig.client()
    future = client.create_sampling_client(base_model=MODEL).sample(PROMPT, 1, SHORT)
    gc.collect()
    assert future.result(WAIT).sequences
    assert "all seats taken" in caplog.text


def test_an_observer_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(SamplingClient):
        def on_queue_state_change(self, queue_state: QueueState, queue_state_reason: str | None) -> None:
            raise ZeroDivisionError("mine")

    rig = Rig(hold=5.0, latency={"asample": 100.0})
    rig.service.queue_state = ("paused_capacity", None)
    made = rig.client().create_sampling_client(base_model=MODEL)
    sampler = Failing(made.holder, sampling_session_id=made.sampling_session_id)
    assert sampler.sample(PROMPT, 1, SHORT).result(WAIT).sequences
    assert eventually(lambda: "mine" in caplog.text)


def test_states_are_those_of_the_official_sdk() -> None:
    official = pytest.importorskip("tinker.lib.api_future_impl")
    assert {state.name: state.value for state in QueueState} == {
        state.name: state.value for state in official.QueueState
    }
    assert [queue_state(text) for text in ("active", "paused_capacity", "?")] == [
        QueueState.ACTIVE, QueueState.PAUSED_CAPACITY, QueueState.UNKNOWN,
    ]  # fmt: skip
    with pytest.raises(TypeError, match="abstract"):
        QueueStateObserver()  # type: ignore[abstract]
