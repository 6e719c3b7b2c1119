"""Faults at every point of a journey: every future ends, with an error of ours or the injected one, and
the same clients work afterwards.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.client.rig import WAIT, Rig, data, eventually
from tinkex import ServiceClient, types
from tinkex.client.portal import portal
from tinkex.errors import APIConnectionError, APITimeoutError, TinkerError
from tinkex.net.transport import Request, Response, Transport
from tinkex.testing.transports import HandlerTransport
from tinkex.wire.headers import JSON, PROTOBUF

ADAM = types.AdamParams(learning_rate=1e-4)
PROMPT = types.ModelInput.from_ints([1, 2, 3])
SHORT = types.SamplingParams(max_tokens=2)
MODEL = "Qwen/Qwen3-8B"
QUIET = ("session_heartbeat", "dynamic_config")  # they come by the clock, not by the journey

PLAIN = types.ClientConfigResponse(fwdbwd_max_chunk_len=2, parallel_fwdbwd_chunks=True)
BATCHED = PLAIN.model_copy(update={"sample_use_retrieve_futures": True})


class Injected(RuntimeError):
    """Something no transport is expected to raise."""


def answer(body: bytes, kind: str = JSON, status: int = 200) -> Callable[[Request], Response]:
    return lambda request: Response(status, {"content-type": kind}, body)


def raised(error: Callable[[Request], BaseException]) -> Callable[[Request], Response]:
    def throw(request: Request) -> Response:
        raise error(request)

    return throw


# What comes instead of the answer; those that the client is to get over by itself are marked.
FAULTS: dict[str, tuple[Callable[[Request], Response], bool]] = {
    "no connection": (raised(APIConnectionError), True),
    "no answer": (raised(APITimeoutError), True),
    "dropped by the library": (raised(lambda _: asyncio.CancelledError()), True),
    "odd exception": (raised(lambda _: Injected("odd")), False),
    "garbage": (answer(b"\x00\xffgarbage"), False),
    "garbage as protobuf": (answer(b"\xff\xff\xff", PROTOBUF), False),
    "a web page": (answer(b"<html>Hello</html>", "text/html"), False),
    "nothing": (answer(b""), False),
    "null": (answer(b"null"), False),
    "a list": (answer(b"[1, 2]"), False),
    "wrong types": (answer(b'{"request_id": 7, "session_id": [], "model_id": {}, "type": 1}'), False),
    "only announced": (answer(b'{"status": "complete_metadata", "response_payload_size": "x"}'), False),
    "a bad gateway": (answer(b"<html>502</html>", "text/html", 502), True),
}


class Sabotage:
    """Replaces the answer to the n-th request of a journey."""

    def __init__(self, rig: Rig, fault: Callable[[Request], Response], delivered: bool) -> None:
        self.rig, self.fault, self.delivered = rig, fault, delivered
        self.sent = 0
        self.strike_at: int | None = None

    def make(self, _: Any) -> Transport:
        inner = HandlerTransport(self.rig.service.handle, clock=self.rig.clock)
        owner = self

        class Sabotaged:
            async def send(self, request: Request) -> Response:
                if any(name in request.url for name in QUIET):
                    return await inner.send(request)
                owner.sent += 1
                if owner.sent != owner.strike_at:
                    return await inner.send(request)
                if owner.delivered:
                    await inner.send(request)
                return owner.fault(request)

            async def close(self) -> None:
                await inner.close()

        return Sabotaged()


class Journey:
    """One program, from the first call to the last; errors are noted, and what can go on goes on."""

    def __init__(self, client: ServiceClient) -> None:
        self.client = client
        self.errors: list[BaseException] = []
        self.trainer: Any = None
        self.sampler: Any = None

    def note(self, step: Callable[[], Any]) -> Any:
        try:
            return step()
        except BaseException as error:
            if type(error) in (TimeoutError, AssertionError):
                raise  # something did not end
            self.errors.append(error)
            return None

    def insist(self, step: Callable[[], Any]) -> Any:
        return self.note(step) or step()  # the fault struck once: a second try succeeds

    def walk(self) -> None:
        self.note(self.client.get_server_capabilities)
        self.trainer = self.insist(lambda: self.client.create_lora_training_client(MODEL, rank=8))
        futures = [
            self.trainer.forward_backward(data(5), "cross_entropy"),
            self.trainer.optim_step(ADAM),
            self.trainer.save_state("state", overwrite=True),
        ]
        for future in futures:
            self.note(lambda future=future: future.result(WAIT))
        self.sampler = self.insist(self.trainer.save_weights_and_get_sampling_client)
        samples = [self.sampler.sample(PROMPT, 2, SHORT), self.sampler.compute_logprobs(PROMPT)]
        for future in samples:
            self.note(lambda future=future: future.result(WAIT))

    def work_on(self) -> None:
        """The same clients are as good as new."""
        result = self.trainer.forward_backward(data(3), "cross_entropy").result(WAIT)
        assert len(result.loss_fn_outputs) == 3
        self.trainer.optim_step(ADAM).result(WAIT)
        assert len(self.sampler.sample(PROMPT, 1, SHORT).result(WAIT).sequences) == 1


def tasks() -> set[Any]:
    """Everything that goes on in the background loop, in whatever way it was started."""
    loop = portal()._loop
    return set() if loop is None else {task for task in asyncio.all_tasks(loop) if not task.done()}


def set_out(config: types.ClientConfigResponse, fault: Any, delivered: bool) -> tuple[Sabotage, Journey]:
    rig = Rig(config=config, skip_after=5.0)
    sabotage = Sabotage(rig, fault, delivered)
    client = ServiceClient(
        base_url="http://fake.test", api_key="tml-test", clock=rig.clock, transport=sabotage.make,
        telemetry=False,
    )  # fmt: skip
    return sabotage, Journey(client)


@pytest.mark.parametrize("config", [PLAIN, BATCHED], ids=["single polls", "common polls"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_at_any_point_of_a_journey_is_got_over_or_told(
    name: str, config: types.ClientConfigResponse
) -> None:
    fault, harmless = FAULTS[name]
    sabotage, journey = set_out(config, fault, False)
    journey.walk()
    assert not journey.errors
    length = sabotage.sent
    assert length >= 18
    for place, delivered in itertools.product(range(1, length + 1), (False, True)):
        sabotage, journey = set_out(config, fault, delivered)
        sabotage.strike_at = place
        journey.walk()
        sabotage.strike_at = None  # a journey may be shorter by a poll
        journey.work_on()
        assert journey.client.close("success").exception(WAIT) is None
        for error in journey.errors:
            assert isinstance(error, (TinkerError, Injected)), (place, delivered, error)
        if harmless:
            assert not journey.errors, (place, delivered)
        else:
            # One failed request may fail the pass it is a piece of, and no other operation.
            assert len(journey.errors) <= 1, (place, delivered, journey.errors)


def test_nothing_is_left_running_after_faults() -> None:
    gc.collect()
    before = len(tasks())
    for name, (fault, _) in FAULTS.items():
        for place in (5, 9, 12, 16):
            sabotage, journey = set_out(PLAIN, fault, True)
            sabotage.strike_at = place
            journey.walk()
            journey.client.close("success").result(WAIT)
            del journey, sabotage
        gc.collect()
        assert eventually(lambda: len(tasks()) <= before), (name, tasks())


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_not_even_an_exit_inside_the_background_loop_ends_it(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    for place in (1, 4, 10, 15):
        sabotage, journey = set_out(PLAIN, raised(lambda _: kind("inside")), True)
        sabotage.strike_at = place
        journey.walk()
        journey.work_on()
        journey.client.close("success").result(WAIT)
        assert all(isinstance(error, (kind, TinkerError)) for error in journey.errors)
    assert "it goes on" in caplog.text


# ---- inside the client


def test_an_error_while_results_are_put_together_ends_the_future(monkeypatch: pytest.MonkeyPatch) -> None:
    from tinkex.client import model_line, polling

    rig = Rig()
    trainer = rig.trainer()

    def fails(*_: Any) -> Any:
        raise Injected("in the middle")

    for module, name in ((model_line, "combine"), (polling, "decode_output")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, fails)
            with pytest.raises(Injected):
                trainer.forward_backward(data(1), "cross_entropy").result(WAIT)
        assert trainer.forward_backward(data(1), "cross_entropy").result(WAIT)


def test_an_error_while_a_sample_is_read_ends_the_future(monkeypatch: pytest.MonkeyPatch) -> None:
    from tinkex.client import polling

    sampler = Rig().client().create_sampling_client(base_model=MODEL)

    def fails(*_: Any) -> Any:
        raise Injected("in the middle")

    with monkeypatch.context() as patch:
        patch.setattr(polling, "decode_sample_response", fails)
        with pytest.raises(Injected):
            sampler.sample(PROMPT, 1, SHORT).result(WAIT)
    assert sampler.sample(PROMPT, 1, SHORT).result(WAIT)


@pytest.mark.parametrize("how", ["raises", "is cancelled"])
def test_a_common_poll_that_dies_leaves_nobody_waiting_and_starts_again(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tinkex.client.poller import Poller

    rig = Rig(config=types.ClientConfigResponse(sample_use_retrieve_futures=True), latency={"asample": 5.0})
    sampler = rig.client().create_sampling_client(base_model=MODEL)
    died = 0
    poll = Poller._poll

    async def fragile(self: Poller) -> None:
        nonlocal died
        died += 1
        if died == 1:
            if how == "raises":
                raise Injected("the poller")
            raise asyncio.CancelledError
        await poll(self)

    monkeypatch.setattr(Poller, "_poll", fragile)
    for _ in range(2):
        for future in [sampler.sample(PROMPT, 1, SHORT) for _ in range(10)]:
            assert future.result(WAIT).sequences
    assert died >= 2
    assert rig.service.calls.to("retrieve_futures")


@pytest.mark.parametrize("status", [400, 401, 403])
def test_a_refused_common_poll_is_no_silent_wait(status: int) -> None:
    rig = Rig(config=types.ClientConfigResponse(sample_use_retrieve_futures=True))
    sampler = rig.client().create_sampling_client(base_model=MODEL)
    rig.service.faults.add("retrieve_futures", status=status, body={"detail": "no"})
    assert sampler.sample(PROMPT, 1, SHORT).result(WAIT).sequences
    rig.service.faults.add("retrieve_future", status=403, body={"detail": "no"})
    with pytest.raises(TinkerError, match="403"):
        sampler.sample(PROMPT, 1, SHORT).result(WAIT)


def test_a_server_without_common_polls_costs_no_memory_per_sample() -> None:
    rig = Rig(
        config=types.ClientConfigResponse(sample_use_retrieve_futures=True), without=["retrieve_futures"]
    )
    sampler = rig.client().create_sampling_client(base_model=MODEL)
    for future in [sampler.sample(PROMPT, 1, SHORT) for _ in range(50)]:
        future.result(WAIT)
    poller = sampler._runner._poller
    assert poller is not None
    assert (poller._fetched, poller._waiting, poller._early) == ([], {}, {})


def test_heartbeats_survive_whatever_happens_to_one() -> None:
    rig = Rig()
    rig.clock.auto = False
    problems = [Injected("odd"), APIConnectionError(), KeyError("x"), asyncio.CancelledError()]
    beats = 0

    class Fragile(HandlerTransport):
        async def send(self, request: Request) -> Response:
            nonlocal beats
            if "heartbeat" in request.url:
                beats += 1
                if problems:
                    raise problems.pop()
            return await super().send(request)

    client = ServiceClient(
        base_url="http://fake.test", api_key="tml-x", clock=rig.clock, telemetry=False,
        transport=lambda _: Fragile(rig.service.handle, clock=rig.clock),
    )  # fmt: skip
    client.create_sampling_client(base_model=MODEL)
    rig.clock.advance_from_thread(75)
    assert eventually(lambda: beats >= 7)
    assert len(rig.service.calls.to("session_heartbeat")) >= 3


def test_a_session_that_could_not_be_joined_is_joined_the_next_time() -> None:
    rig = Rig(config=types.ClientConfigResponse(sample_join_sampling_session=True))
    client = rig.client()
    original = client.create_sampling_client(base_model=MODEL)
    from tinkex.client.sampling import SamplingClient

    copy = SamplingClient(client.holder, sampling_session_id=original.sampling_session_id, shadow=True)
    rig.service.faults.add("join_sampling_session", status=400, body={"detail": "not yet"}, times=1)
    with pytest.raises(TinkerError):
        copy.sample(PROMPT, 1, SHORT).result(WAIT)
    assert copy.sample(PROMPT, 1, SHORT).result(WAIT).sequences


@pytest.mark.parametrize("route", ["asample", "retrieve_future", "retrieve_futures", "optim_step"])
@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_asks_for_no_wait_gets_no_hot_loop(route: str, status: int) -> None:
    rig = Rig(config=types.ClientConfigResponse(sample_use_retrieve_futures=route == "retrieve_futures"))
    client = rig.client()
    trainer = client.create_lora_training_client(MODEL)
    sampler = client.create_sampling_client(base_model=MODEL)
    before = len(rig.service.calls.to(route))
    fault = rig.service.faults.add(
        route, status=status, headers={"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, times=25
    )
    work = trainer.optim_step(ADAM) if route == "optim_step" else sampler.sample(PROMPT, 1, SHORT)
    work.result(WAIT)
    times = [call.time for call in rig.service.calls.to(route)[before:]]
    assert fault.used == 25
    assert times[20] - times[0] >= 5.0


def test_polls_that_time_out_at_once_are_no_hot_loop() -> None:
    rig = Rig(config=types.ClientConfigResponse(sample_use_retrieve_futures=True))
    times: list[float] = []

    class Hasty(HandlerTransport):
        async def send(self, request: Request) -> Response:
            if "retrieve_futures" in request.url:
                times.append(self.clock.monotonic())
                if len(times) <= 6:
                    raise APITimeoutError(request)
            return await super().send(request)

    client = ServiceClient(
        base_url="http://fake.test", api_key="tml-x", clock=rig.clock, telemetry=False,
        transport=lambda _: Hasty(rig.service.handle, clock=rig.clock),
    )  # fmt: skip
    sampler = client.create_sampling_client(base_model=MODEL)
    assert sampler.sample(PROMPT, 1, SHORT).result(WAIT).sequences
    assert times[6] - times[0] >= 10.0
