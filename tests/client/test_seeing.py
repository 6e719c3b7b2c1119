"""Seeing what a client does: events with the caller's tags, progress, metrics, traces, warnings."""

from __future__ import annotations

import asyncio
import collections
import logging
import threading
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tests.client.rig import WAIT, Rig, data, eventually
from tests.net.test_metrics import parse
from tinkex import ServiceClient, context, trace, types
from tinkex.net.events import Event
from tinkex.notices import TinkexWarning, notice, silence

ADAM = types.AdamParams(learning_rate=1e-4)
PROMPT = types.ModelInput.from_ints([1, 2, 3])
SHORT = types.SamplingParams(max_tokens=2)
MODEL = "Qwen/Qwen3-8B"


class Log:
    """The events of a client."""

    def __init__(self, client: ServiceClient) -> None:
        self._events: list[Event] = []
        self._hooks = client.holder.connection.hooks
        self.stop = client.on_event(self._events.append)

    def __call__(self, kind: str | None = None, name: str | None = None) -> list[Event]:
        assert self._hooks.flush(WAIT)
        return [
            event for event in self._events if kind in (None, event.kind) and name in (None, event.name)
        ]


def watched(**settings: Any) -> tuple[Rig, ServiceClient, Log]:
    rig = Rig(**settings)
    client = rig.client()
    return rig, client, Log(client)


def held(state: str, reason: str | None = None) -> dict[str, Any]:
    """A poll that is told to come back."""
    body = {"type": "try_again", "request_id": "r", "queue_state": state, "queue_state_reason": reason}
    return {"status": 408, "body": body}


# ---- tags


def test_tags_of_two_threads_stay_with_the_requests_of_each() -> None:
    _, client, log = watched(config=types.ClientConfigResponse(fwdbwd_max_chunk_len=1))
    trainer = client.create_lora_training_client(MODEL)
    sampler = client.create_sampling_client(base_model=MODEL)
    before = len(log("request"))
    gate = threading.Barrier(2)

    def train() -> None:
        with context(who="trainer", step="1"):
            gate.wait()
            futures = [
                trainer.forward_backward(data(4), "cross_entropy"),
                trainer.optim_step(ADAM),
                trainer.save_state("a"),
            ]
        for future in futures:
            future.result(WAIT)

    def sample() -> None:
        with context(who="sampler"):
            gate.wait()
            futures = [sampler.sample(PROMPT, 1, SHORT) for _ in range(5)]
        for future in futures:
            future.result(WAIT)

    threads = [threading.Thread(target=each) for each in (train, sample)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    seen = [event for event in log("request")[before:] if event.name != "session_heartbeat"]
    tags = {(event.name, tuple(sorted(event.tags.items()))) for event in seen}
    trainers, samplers = (("step", "1"), ("who", "trainer")), (("who", "sampler"),)
    assert tags == {
        ("forward_backward", trainers),
        ("optim_step", trainers),
        ("save_weights", trainers),
        ("asample", samplers),
        ("retrieve_future", trainers),
        ("retrieve_future", samplers),
    }
    polls = collections.Counter(event.tags["who"] for event in seen if event.name == "retrieve_future")
    assert polls == {"trainer": 6, "sampler": 5}


def test_tags_of_tasks_stay_apart_too() -> None:
    _, client, log = watched()
    sampler = client.create_sampling_client(base_model=MODEL)

    async def one(name: str) -> None:
        with context(task=name):
            await sampler.sample_async(PROMPT, 1, SHORT)

    async def main() -> None:
        await asyncio.gather(*(one(f"t{number}") for number in range(10)))

    asyncio.run(main())
    tags = [event.tags.get("task") for event in log("request", "asample")]
    assert sorted(tags) == [f"t{number}" for number in range(10)]


def test_heartbeats_belong_to_nobodys_call() -> None:
    rig, client, log = watched()
    rig.clock.auto = False
    with context(who="first"), trace():
        client.create_sampling_client(base_model=MODEL)
    rig.clock.advance_from_thread(35)
    assert eventually(lambda: len(rig.service.calls.to("session_heartbeat")) >= 3)
    assert {tuple(event.tags) for event in log("request", "session_heartbeat")} == {()}
    assert all("traceparent" not in call.headers for call in rig.service.calls.to("session_heartbeat"))


# ---- kinds of events


def test_each_change_of_the_queue_is_told_once_with_its_reason() -> None:
    rig, client, log = watched()
    trainer = client.create_lora_training_client(MODEL)
    rig.service.faults.add(
        "retrieve_future",
        times=3,
        **held("paused_capacity", "all seats taken"),
        then={
            "times": 2,
            **held("paused_capacity", "two seats free"),
            "then": {"times": 2, **held("active")},
        },
    )
    future = trainer.optim_step(ADAM)
    future.result(WAIT)
    events = log("queue_state")
    assert [(event.data["state"], event.data["reason"]) for event in events] == [
        ("paused_capacity", "all seats taken"),
        ("paused_capacity", "two seats free"),
        ("active", None),
    ]
    assert {event.data["request_id"] for event in events} == {future.request_id}
    assert {event.name for event in events} == {"optim_step"}


def test_progress_tells_where_the_work_is(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(hold=5.0, latency={"optim_step": 1e5})
    trainer = rig.trainer()
    rig.service.queue_state = ("paused_rate_limit", "three others are before you")
    rig.service.faults.add("forward_backward", delay=50.0)
    with rig.clock.frozen():
        first = trainer.forward_backward(data(1), "cross_entropy")
        future = trainer.optim_step(ADAM)
        assert eventually(lambda: first.progress.stage == "sending")
        assert future.progress.stage == "queued"
        assert future.request_id is None
    with caplog.at_level(logging.WARNING, "tinkex"):
        assert eventually(lambda: future.progress.queue_state == "paused_rate_limit")
        assert eventually(lambda: "three others are before you" in caplog.text)
    assert future.progress.stage == "waiting"
    assert future.progress.queue_reason == "three others are before you"
    assert future.request_id is not None
    assert future.request_id == future.progress.request_id
    assert first.progress.stage == "done"
    assert future.cancel()
    assert future.progress.stage == "done"


def test_many_waiters_make_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(hold=5.0, latency={"asample": 30.0})
    sampler = rig.client().create_sampling_client(base_model=MODEL)
    rig.service.queue_state = ("paused_capacity", "all seats taken")
    with caplog.at_level(logging.WARNING, "tinkex"):
        for future in [sampler.sample(PROMPT, 1, SHORT) for _ in range(200)]:
            future.result(WAIT)
    lines = [record for record in caplog.records if "all seats taken" in record.getMessage()]
    assert 1 <= len(lines) <= 2


def test_a_servers_note_is_passed_on_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    client = rig.client()
    note = {"x-deprecation-note": "this version ends in May", "x-deprecation-level": "error"}
    rig.service.faults.add("get_server_capabilities", headers=note)
    with caplog.at_level(logging.WARNING, "tinkex"):
        for _ in range(5):
            client.get_server_capabilities()
    (line,) = [record for record in caplog.records if "ends in May" in record.getMessage()]
    assert line.levelno == logging.ERROR


def test_retries_are_told_with_their_delay_and_reason() -> None:
    rig, client, log = watched()
    trainer = client.create_lora_training_client(MODEL)
    sampler = client.create_sampling_client(base_model=MODEL)
    rig.service.faults.add("optim_step", status=503, times=2)
    rig.service.faults.add("asample", drop=True, times=1)
    trainer.optim_step(ADAM).result(WAIT)
    sampler.sample(PROMPT, 1, SHORT).result(WAIT)
    steps = log("retry", "optim_step")
    assert [event.data["attempt"] for event in steps] == [0, 1]
    assert all(event.data["delay"] > 0 for event in steps)
    assert {event.data["error"].status_code for event in steps} == {503}
    (sample,) = log("retry", "asample")
    assert sample.data["delay"] > 0
    assert "reset" in str(sample.data["error"])


def test_throttles_pauses_polls_and_chunks_are_told() -> None:
    rig, client, log = watched(config=types.ClientConfigResponse(fwdbwd_max_chunk_len=2))
    trainer = client.create_lora_training_client(MODEL)
    sampler = client.create_sampling_client(base_model=MODEL)
    rig.service.faults.add("asample", status=429, headers={"retry-after": "3"}, times=1)
    sampler.sample(PROMPT, 1, SHORT).result(WAIT)
    (throttle,) = log("throttle")
    assert throttle.name == "asample"
    assert 3.0 <= throttle.data["delay"] <= 3.3
    assert throttle.data["limit"] < 64
    rig.service.faults.add("asample", status=402, body={"detail": "pay"}, times=2)
    sampler.sample(PROMPT, 1, SHORT).result(WAIT)
    assert [event.name for event in log("pause")] == ["asample", "asample"]
    rig.service.faults.add("retrieve_future", status=503, times=2)
    trainer.forward_backward(data(5), "cross_entropy").result(WAIT)
    assert len(log("poll", "forward_backward")) == 2
    chunks = log("chunk")
    assert sorted(event.data["seq_id"] for event in chunks) == [1, 2, 3]
    assert sum(event.data["datums"] for event in chunks) == 5


def test_every_request_is_told_with_its_status_and_time() -> None:
    rig, client, log = watched()
    trainer = client.create_lora_training_client(MODEL)
    rig.service.faults.add("optim_step", status=503, times=1)
    trainer.optim_step(ADAM).result(WAIT)
    told = collections.Counter((event.name, event.data["status"]) for event in log("request"))
    made = collections.Counter((call.route, call.status) for call in rig.service.calls)
    assert told == made
    assert told["optim_step", 503] == 1
    assert all(event.data["seconds"] >= 0 for event in log("request"))


def test_telemetry_that_is_off_sends_nothing_but_hooks_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    rig = Rig()
    client = rig.client(telemetry=None)
    assert client.get_telemetry() is None
    log = Log(client)
    trainer = client.create_lora_training_client(MODEL)
    rig.service.faults.add("optim_step", status=400, body={"detail": "no"}, times=1)
    assert trainer.optim_step(ADAM).exception(WAIT) is not None
    client.close("errored").result(WAIT)
    assert not rig.service.calls.to("telemetry")
    assert log("request", "optim_step")
    assert log("request", "finish_session")


# ---- hooks in the way


@pytest.mark.parametrize("kind", ["raises", "hangs"])
def test_a_hook_that_misbehaves_does_not_disturb_the_traffic(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    client = rig.client()
    release = threading.Event()

    def hook(event: Event) -> None:
        if kind == "raises":
            raise RuntimeError("a mistake in a hook")
        release.wait(WAIT)

    client.on_event(hook)
    try:
        trainer = client.create_lora_training_client(MODEL)
        sampler = client.create_sampling_client(base_model=MODEL)
        futures = [sampler.sample(PROMPT, 1, SHORT) for _ in range(50)]
        trainer.forward_backward(data(2), "cross_entropy").result(WAIT)
        for future in futures:
            future.result(WAIT)
        client.close("success").result(WAIT)
    finally:
        release.set()
    assert client.holder.connection.hooks.flush(WAIT)
    assert ("a mistake in a hook" in caplog.text) is (kind == "raises")


def test_a_hook_added_late_is_told_and_may_call_the_client() -> None:
    rig = Rig()
    client = rig.client()
    sampler = client.create_sampling_client(base_model=MODEL)
    answers: list[Any] = []

    def hook(event: Event) -> None:
        if not answers:
            answers.append(sampler.sample(PROMPT, 1, SHORT).result(WAIT))

    client.on_event(hook)
    sampler.sample(PROMPT, 1, SHORT).result(WAIT)
    assert eventually(lambda: len(answers) == 1)


# ---- metrics


def test_numbers_equal_the_truth_when_all_is_quiet() -> None:
    rig = Rig(config=types.ClientConfigResponse(fwdbwd_max_chunk_len=2))
    client = rig.client()
    trainer = client.create_lora_training_client(MODEL)
    sampler = client.create_sampling_client(base_model=MODEL)
    rig.service.faults.add("optim_step", status=503, times=2)
    rig.service.faults.add("asample", status=429, times=3)
    rig.service.faults.add("save_weights", drop=True, times=1)
    futures: list[Any] = [sampler.sample(PROMPT, 1, SHORT) for _ in range(20)]
    futures += [trainer.forward_backward(data(5), "cross_entropy"), trainer.optim_step(ADAM)]
    futures += [trainer.save_state("a")]
    for future in futures:
        future.result(WAIT)
    rig.clock.auto = False
    numbers = client.metrics()
    answered = collections.Counter(call.route for call in rig.service.calls)
    answered["save_weights"] -= 1  # the connection was lost: no answer, no latency
    assert {name: each["count"] for name, each in numbers["latencies"].items()} == dict(answered)
    refused = [call for call in rig.service.calls if call.status in (429, 503)]
    counters = numbers["counters"]
    assert counters["status.503"] == 2
    assert counters["status.429"] == 3 == counters["throttled.asample"]
    assert counters["retry.optim_step"] == 2
    assert counters["retry.save_weights"] == 1 == counters["unreachable.save_weights"]
    assert len(refused) == 5
    gauges = numbers["gauges"]
    quiet = ("sampling.under_way", "sampling.waiting", "sampling.bytes", "training.bytes", "results.bytes")
    assert {name: gauges[name] for name in quiet} == dict.fromkeys(quiet, 0)
    assert 1 <= gauges["sampling.limit"] <= 400
    kinds, samples = parse(client.prometheus())
    assert set(kinds.values()) == {"counter", "gauge", "histogram"}
    told = {each["name"]: value for each, value in samples["tinkex_client_seconds_count"]}
    assert told == dict(answered)


def test_gauges_show_what_is_under_way() -> None:
    rig = Rig()
    client = rig.client()
    sampler = client.create_sampling_client(base_model=MODEL)
    rig.service.faults.add("asample", delay=5.0)
    with rig.clock.frozen():
        futures = [sampler.sample(PROMPT, 1, SHORT) for _ in range(100)]
        assert eventually(lambda: client.metrics()["gauges"].get("sampling.waiting") == 36)
        assert client.metrics()["gauges"]["sampling.under_way"] == 64
    for future in futures:
        future.result(WAIT)
    assert client.metrics()["gauges"]["sampling.under_way"] == 0


# ---- traces


def test_a_trace_goes_out_with_every_request_of_its_calls() -> None:
    rig = Rig()
    client = rig.client()
    trainer = client.create_lora_training_client(MODEL)
    sampler = client.create_sampling_client(base_model=MODEL)
    with trace() as one:
        step = trainer.optim_step(ADAM)
    with trace() as two:
        sample = sampler.sample(PROMPT, 1, SHORT)
    step.result(WAIT)
    sample.result(WAIT)
    carried = collections.defaultdict(list)
    for call in rig.service.calls:
        carried[call.headers.get("traceparent")].append(call.route)
    assert carried[one] == ["optim_step", "retrieve_future"]
    assert carried[two] == ["asample", "retrieve_future"]


# ---- warnings where users trip


class ChatTokenizer:
    chat_template = "{{ messages }}"
    all_special_tokens = ("<|im_start|>",)

    def encode(self, text: str) -> list[int]:
        return [1, 2, 3]


def stale_sampler() -> None:
    trainer = Rig().trainer()
    trainer.forward_backward(data(1), "cross_entropy")
    sampler = trainer.save_weights_and_get_sampling_client()
    sampler.sample(PROMPT, 1, SHORT).result(WAIT)  # fresh: nothing to say
    trainer.optim_step(ADAM).result(WAIT)
    sampler.sample(PROMPT, 1, SHORT).result(WAIT)


def no_gradients() -> None:
    trainer = Rig().trainer()
    trainer.forward_backward(data(1), "cross_entropy")
    trainer.optim_step(ADAM)
    trainer.forward(data(1), "cross_entropy")  # leaves no gradients
    trainer.optim_step(ADAM).result(WAIT)


def small_learning_rate() -> None:
    trainer = Rig().trainer()
    for _ in range(20):
        trainer.forward_backward(data(1), "cross_entropy")
        last = trainer.optim_step(types.AdamParams(learning_rate=1e-6))
    last.result(WAIT)


def raw_text() -> None:
    tokenizer = ChatTokenizer()
    types.ModelInput.from_text("<|im_start|>user", tokenizer)  # has a template's marks
    types.ModelInput.from_text("Once upon a time", tokenizer)


def blocking_call() -> None:
    rig = Rig()
    sampler = rig.client().create_sampling_client(base_model=MODEL)

    async def main() -> None:
        await sampler.sample(PROMPT, 1, SHORT)
        sampler.sample(PROMPT, 1, SHORT).result(WAIT)

    asyncio.run(main())


TRAPS: dict[str, tuple[Callable[[], None], str]] = {
    "stale-sampler": (stale_sampler, "save_weights_and_get_sampling_client"),
    "no-gradients": (no_gradients, "forward_backward"),
    "small-learning-rate": (small_learning_rate, "LoRA"),
    "raw-text": (raw_text, "apply_chat_template"),
    "blocking-call": (blocking_call, "await"),
}


def given(step: Callable[[], None]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step()
    return [str(each.message) for each in caught if issubclass(each.category, TinkexWarning)]


@pytest.mark.parametrize("name", TRAPS)
def test_a_trap_is_pointed_out_once_with_the_way_around_it(name: str) -> None:
    step, advice = TRAPS[name]
    (text,) = given(step)
    assert f"[{name}]" in text
    assert advice in text
    assert given(step) == []


@pytest.mark.parametrize("name", TRAPS)
def test_a_warning_stands_at_the_line_of_the_program(name: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        TRAPS[name][0]()
    assert [each.filename for each in caught if issubclass(each.category, TinkexWarning)] == [__file__]


def test_the_cells_of_a_notebook_may_wait() -> None:
    rig = Rig()
    sampler = rig.client().create_sampling_client(base_model=MODEL)
    # As a kernel does it: plain cells are called from a task of its own.
    kernel = ModuleType("ipykernel.kernelbase")
    exec("async def shell_main(cell): cell()", kernel.__dict__)

    def cell() -> None:
        sampler.sample(PROMPT, 1, SHORT).result(WAIT)
        list(sampler.sample_stream(PROMPT, SHORT))

    async def task_of_the_user() -> None:
        cell()

    assert given(lambda: asyncio.run(kernel.shell_main(cell))) == []
    assert len(given(lambda: asyncio.run(task_of_the_user()))) == 1


def test_a_call_that_blocks_a_loop_is_named_as_the_program_wrote_it() -> None:
    rig = Rig()
    trainer = rig.client().create_lora_training_client(MODEL)
    path = trainer.save_weights_for_sampler("a").result(WAIT).path

    async def main() -> None:
        trainer.create_sampling_client(path)

    (text,) = given(lambda: asyncio.run(main()))
    assert text.startswith("create_sampling_client() waits inside a running event loop")


@pytest.mark.parametrize("name", TRAPS)
def test_each_warning_can_be_switched_off(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step, _ = TRAPS[name]
    monkeypatch.setenv("TINKEX_WARNINGS", "0")
    assert given(step) == []
    monkeypatch.delenv("TINKEX_WARNINGS")
    silence(name)
    assert given(step) == []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        notice("another", "text")
    assert len(caught) == 1, "the others stay on"


def test_older_weights_may_be_a_reference_that_scores_texts() -> None:
    def reference() -> None:
        trainer = Rig().trainer()
        sampler = trainer.save_weights_and_get_sampling_client()
        trainer.forward_backward(data(1), "cross_entropy")
        trainer.optim_step(ADAM).result(WAIT)
        sampler.compute_logprobs(PROMPT).result(WAIT)
        sampler.sample(PROMPT, 1, SHORT, include_prompt_logprobs=True).result(WAIT)

    assert given(reference) == []


def test_a_healthy_program_hears_nothing() -> None:
    def healthy() -> None:
        with Rig().client() as client:
            trainer = client.create_lora_training_client(MODEL)
            for _ in range(25):
                trainer.forward_backward(data(1), "cross_entropy")
                last = trainer.optim_step(ADAM)
            last.result(WAIT)
            sampler = trainer.save_weights_and_get_sampling_client()
            sampler.sample(PROMPT, 1, SHORT).result(WAIT)

    assert given(healthy) == []
