"""One retry decision for every operation: tries are counted, waits are told, layers do not multiply."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Callable
from email.utils import format_datetime
from typing import Any

import pytest

from tests.client.rig import WAIT, Rig, data, eventually
from tinkex import types
from tinkex.client.rest import RestClient
from tinkex.client.retry_config import RetryConfig
from tinkex.errors import (
    APIConnectionError,
    ClientClosedError,
    ConflictError,
    InternalServerError,
    NotFoundError,
    RateLimitError,
    RequestFailedError,
    TinkerError,
)

ADAM = types.AdamParams(learning_rate=1e-4)
PROMPT = types.ModelInput.from_ints([1, 2, 3])
SHORT = types.SamplingParams(max_tokens=2)
MODEL = "Qwen/Qwen3-8B"


class Everyone:
    """One client of each kind on one service."""

    def __init__(self, retry_config: RetryConfig | None = None, **settings: Any) -> None:
        self.rig = Rig(**settings)
        self.service = self.rig.client()
        self.trainer = self.service.create_lora_training_client(MODEL)
        self.sampler = self.service.create_sampling_client(base_model=MODEL, retry_config=retry_config)
        self.rest = RestClient(self.service.holder)
        self.path = self.trainer.save_state("saved").result(WAIT).path

    def load(self) -> Any:
        return self.service.create_training_client_from_state(self.path)


def _sampler_of_a_step(party: Everyone) -> Any:
    return party.trainer.save_weights_and_get_sampling_client()


# Every kind of request a program makes, by route: those that start work, and those that only ask.
OPERATIONS: dict[str, Callable[[Everyone], Any]] = {
    "create_session": lambda party: party.rig.client().create_sampling_client(base_model=MODEL),
    "client_config": lambda party: party.rig.client().get_server_capabilities(),
    "get_server_capabilities": lambda party: party.service.get_server_capabilities(),
    "create_model": lambda party: party.service.create_lora_training_client(MODEL),
    "create_sampling_session": lambda party: party.service.create_sampling_client(base_model=MODEL),
    "forward_backward": lambda party: party.trainer.forward_backward(data(1), "cross_entropy").result(WAIT),
    "optim_step": lambda party: party.trainer.optim_step(ADAM).result(WAIT),
    "save_weights": lambda party: party.trainer.save_state("a").result(WAIT),
    "save_weights_for_sampler": _sampler_of_a_step,
    "save_weights_external": lambda party: party.trainer.save_weights_external("a").result(WAIT),
    "load_weights": Everyone.load,
    "weights_info": Everyone.load,
    "get_info": lambda party: party.trainer.get_info(),
    "get_sampler": lambda party: party.sampler.get_base_model(),
    "asample": lambda party: party.sampler.sample(PROMPT, 1, SHORT).result(WAIT),
    "list_sessions": lambda party: party.rest.list_sessions().result(WAIT),
    "set_checkpoint_ttl": lambda party: party.rest.set_checkpoint_ttl_from_tinker_path(
        party.path, None
    ).result(WAIT),
    "copy_weights": lambda party: party.rest.copy_weights(party.path, "project").result(WAIT),
}
FAULTS: dict[str, dict[str, Any]] = {
    "busy": {"status": 503},
    "throttled": {"status": 429},
    "unreachable": {"drop": True},
    "answer lost": {"drop": True, "after": True},
    "silent": {"hang": True},
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("route", OPERATIONS)
def test_every_failure_costs_one_try_under_the_same_key(route: str, fault: str) -> None:
    party = Everyone()
    before = len(party.rig.service.calls_to(route))
    party.rig.service.faults.add(route, times=3, **FAULTS[fault])
    OPERATIONS[route](party)
    tries = party.rig.service.calls_to(route)[before:]
    assert len(tries) == 4
    assert len({call.idempotency_key for call in tries}) == 1
    assert [call.headers["x-stainless-retry-count"] for call in tries] == ["0", "1", "2", "3"]
    assert len({call.raw for call in tries}) == 1  # numbers and all


@pytest.mark.parametrize("fault", ["busy", "throttled", "unreachable", "silent"])
@pytest.mark.parametrize("route", ["forward_backward", "optim_step", "create_model", "list_sessions"])
def test_a_server_down_for_good_is_asked_for_one_budget_only(route: str, fault: str) -> None:
    party = Everyone()
    before = len(party.rig.service.calls_to(route))
    party.rig.service.faults.add(route, **FAULTS[fault])
    with pytest.raises((InternalServerError, RateLimitError, APIConnectionError)):
        OPERATIONS[route](party)
    tries = party.rig.service.calls_to(route)[before:]
    budget = party.service.config.retry_seconds
    assert 3 <= len(tries) <= 45  # one layer: ten-second waits, not those of one layer times another
    # The clock runs on by itself after the last of them, while this thread waits for a core.
    assert budget / 2 <= tries[-1].time - tries[0].time <= budget
    assert len({call.idempotency_key for call in tries}) == 1


@pytest.mark.parametrize("answer", ["lost", "there"])
@pytest.mark.parametrize("route", ["delete_checkpoint", "publish_checkpoint", "unpublish_checkpoint"])
def test_what_a_try_did_whose_answer_was_lost_is_no_error(route: str, answer: str) -> None:
    party = Everyone()
    method = getattr(party.rest, f"{route}_from_tinker_path")
    if route == "unpublish_checkpoint":
        party.rest.publish_checkpoint_from_tinker_path(party.path).result(WAIT)
    if answer == "lost":
        party.rig.service.faults.add(route, drop=True, after=True, times=1)
    assert method(party.path).result(WAIT) is None
    # Done by somebody else, it is still said to be done already.
    refused = NotFoundError if route == "delete_checkpoint" else ConflictError
    with pytest.raises(refused):
        method(party.path).result(WAIT)
    assert len(party.rig.service.calls_to(route)) == (3 if answer == "lost" else 2)


# ---- advice


def _date(rig: Rig, seconds: int) -> str:
    from datetime import timedelta

    return format_datetime(rig.clock.now() + timedelta(seconds=seconds), usegmt=True)


BATCHED = types.ClientConfigResponse(sample_use_retrieve_futures=True)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    "route", ["optim_step", "list_sessions", "retrieve_future", "retrieve_futures", "asample"]
)
def test_a_date_to_come_back_at_is_heeded_by_every_layer(route: str, status: int) -> None:
    party = Everyone(config=BATCHED)
    fake = party.rig.service
    before = len(fake.calls_to(route))
    with party.rig.clock.frozen():
        fake.faults.add(route, status=status, headers={"retry-after": _date(party.rig, 20)}, times=1)
        if route == "list_sessions":
            work: Any = party.rest.list_sessions()
        elif route in ("retrieve_futures", "asample"):
            work = party.sampler.sample(PROMPT, 1, SHORT)
        else:
            work = party.trainer.optim_step(ADAM)
        assert eventually(lambda: len(fake.calls_to(route)) > before)
    work.result(WAIT)
    first, second = [call.time for call in fake.calls_to(route)[before : before + 2]]
    assert 19.0 <= second - first <= 22.5  # a date has whole seconds; up to a tenth is added


def test_the_delay_reaches_whoever_has_to_give_up() -> None:
    party = Everyone()
    headers = {"retry-after": "7", "x-should-retry": "false"}
    for route in ("list_sessions", "asample"):
        party.rig.service.faults.add(route, status=429, headers=headers, times=1)
        with pytest.raises(RateLimitError) as caught:
            OPERATIONS[route](party)
        assert caught.value.retry_after == 7.0
        assert caught.value.retryable


# ---- the server's own word


@pytest.mark.parametrize(
    "route", ["optim_step", "retrieve_future", "asample", "list_sessions", "create_model"]
)
@pytest.mark.parametrize(
    ("status", "word", "tries"), [(400, "true", 2), (503, "false", 1), (429, "false", 1)]
)
def test_the_servers_word_counts_in_every_layer(route: str, status: int, word: str, tries: int) -> None:
    party = Everyone()
    asked_by = "optim_step" if route == "retrieve_future" else route
    before = len(party.rig.service.calls_to(route))
    party.rig.service.faults.add(
        route, status=status, headers={"x-should-retry": word}, body={"detail": "x"}, times=1
    )
    if tries == 1:
        with pytest.raises(TinkerError):
            OPERATIONS[asked_by](party)
    else:
        OPERATIONS[asked_by](party)
    # A wait that goes on asks as often as it takes; one that was refused asks no more.
    assert len(party.rig.service.calls_to(route)) - before == tries


def test_not_even_the_servers_word_ends_a_wait_that_is_only_told_to_ask_again() -> None:
    party = Everyone()
    headers, body = {"x-should-retry": "false"}, {"type": "try_again", "queue_state": "active"}
    party.rig.service.faults.add("retrieve_future", status=408, headers=headers, body=body, times=3)
    assert party.trainer.optim_step(ADAM).result(WAIT) is not None


# ---- a sampler's own rules


def test_a_samplers_own_waits_are_kept_between_tries() -> None:
    slow = RetryConfig(retry_delay_base=20.0, retry_delay_max=30.0, jitter_factor=0.1)
    party = Everyone(slow)
    fake = party.rig.service
    fake.faults.add("asample", status=503, times=2)
    fake.faults.add(
        "retrieve_future", status=200, body={"error": "gone wrong", "category": "server"}, times=1
    )
    party.sampler.sample(PROMPT, 1, SHORT).result(WAIT)
    times = [call.time for call in fake.calls_to("asample")]
    waits = [after - before for before, after in itertools.pairwise(times)]
    assert len(waits) == 3
    assert all(wait >= least for wait, least in zip(waits, (18.0, 27.0, 18.0), strict=True)), waits


@pytest.mark.parametrize(
    ("named", "tries"), [((RequestFailedError,), 2), ((TimeoutError, ValueError), 1), ((), 1)]
)
def test_a_sampler_tries_again_on_what_it_is_told_to(
    named: tuple[type[Exception], ...], tries: int
) -> None:
    party = Everyone(RetryConfig(retryable_exceptions=named))
    fake = party.rig.service
    fake.faults.add(
        "retrieve_future", status=200, body={"error": "no such token", "category": "user"}, times=1
    )
    work = party.sampler.sample(PROMPT, 1, SHORT)
    if tries == 1:
        assert isinstance(work.exception(WAIT), RequestFailedError)
    else:
        work.result(WAIT)
    assert len(fake.calls_to("asample")) == tries


def test_a_closed_client_is_not_tried_again_whatever_the_rules() -> None:
    party = Everyone(RetryConfig(retryable_exceptions=(Exception,)))
    tries: list[Any] = []
    party.service.on_event(lambda event: tries.append(event) if event.kind == "retry" else None)
    party.service.close().result(WAIT)
    with pytest.raises(ClientClosedError):
        party.sampler.sample(PROMPT, 1, SHORT).result(WAIT)
    assert party.service.holder.connection.hooks.flush()
    assert tries == []


def test_a_retry_config_can_be_changed_and_hashed() -> None:
    config = RetryConfig()
    config.progress_timeout = 60.0
    assert config == RetryConfig(progress_timeout=60.0)
    assert hash(config) == hash(RetryConfig(progress_timeout=60.0))
    assert RetryConfig(retry_delay_base=0.0, retry_delay_max=0.0).wait(0, 0.5) > 0


# ---- what ends a wait


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 406, 410, 413, 418, 422, 451])
def test_whatever_ends_a_wait_is_typed_and_still_a_value_error(status: int) -> None:
    party = Everyone()
    party.rig.service.faults.add("retrieve_future", status=status, body={"detail": "no"})
    error = party.trainer.optim_step(ADAM).exception(WAIT)
    assert isinstance(error, TinkerError)
    if status != 410:  # there the official SDK raises an exception of its own kind, which ours is too
        assert isinstance(error, ValueError)
    assert getattr(error, "status_code", 410) == status
    party.rig.service.faults.clear()
    assert party.trainer.optim_step(ADAM).result(WAIT)


# ---- a component that fails


def test_one_client_s_end_in_the_middle_of_its_work_leaves_the_others_alone() -> None:
    party = Everyone(latency={"asample": 5.0})
    other = party.rig.client()
    sampler = other.create_sampling_client(base_model=MODEL)

    async def abandoned(sampler: Any) -> None:
        tasks = [asyncio.ensure_future(sampler.sample_async(PROMPT, 1, SHORT)) for _ in range(5)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with party.rig.clock.frozen():
        mine = [party.sampler.sample(PROMPT, 1, SHORT) for _ in range(5)]
        asyncio.run(abandoned(sampler))
        del sampler
        other.close("errored")
        del other
        gc.collect()
    assert all(future.result(WAIT).sequences for future in mine)
