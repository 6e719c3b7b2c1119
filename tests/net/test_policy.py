"""The one retry decision, as a table: every status, every word of the server, every budget."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkex.errors import (
    APIConnectionError,
    APIResponseValidationError,
    APIStatusError,
    APITimeoutError,
    ClientClosedError,
    Fault,
    InvalidArgumentError,
    PromiseExpiredError,
    RequestErrorCategory,
    RequestFailedError,
    ResponseInfo,
    RetryableException,
    StuckError,
    TinkerError,
    is_user_error,
    status_class,
    status_rule,
)
from tinkex.net.breaker import CircuitOpenError
from tinkex.net.policy import BILLING_PAUSE, Operation, advised, backoff, decide

STATUSES = range(400, 600)
WORDS = {None: {}, True: {"x-should-retry": "true"}, False: {"x-should-retry": "False "}}
PLAIN = Operation("optim_step")
SAMPLING = Operation("asample", resubmits=True)
PUBLISH = Operation("publish", final=frozenset({409, 503}))
chances = st.floats(0, 1, exclude_max=True)


def refusal(status: int, word: bool | None = None, retry_after: float | None = None) -> APIStatusError:
    kind = status_class(status)
    return kind("no", ResponseInfo(status, WORDS[word]), None, retry_after=retry_after)


# ---- statuses


@pytest.mark.parametrize("operation", [PLAIN, SAMPLING, PUBLISH], ids=lambda each: each.name)
@pytest.mark.parametrize("word", WORDS)
def test_every_status_is_decided_by_the_servers_word_or_by_the_table(
    operation: Operation, word: bool | None
) -> None:
    for status in STATUSES:
        decision = decide(refusal(status, word), operation, 0, 0.0, 0.5)
        expected = word
        if word is None:
            expected = status_rule(status).retryable and status not in operation.final
        assert decision.retry is expected, status
        assert (decision.delay > 0) is expected
        assert str(status) in decision.reason


def test_the_table_says_whose_fault_and_what_is_sent_again() -> None:
    again = {status for status in STATUSES if status_rule(status).retryable}
    assert again == {402, 408, 409, 429, *range(500, 600)}
    faults = {fault: [s for s in STATUSES if status_rule(s).fault is fault] for fault in Fault}
    assert faults[Fault.SERVER] == [409, 410, *range(500, 600)]
    assert faults[Fault.NETWORK] == [408]
    assert faults[Fault.UNKNOWN] == []
    assert len(faults[Fault.USER]) == 97


def test_errors_and_the_table_agree() -> None:
    for status, result in itertools.product(STATUSES, (False, True)):
        kind = status_class(status, result=result)
        error = kind("no", ResponseInfo(status), None)
        rule = status_rule(status)
        assert error.fault is rule.fault
        assert error.status_code == status
        # A lost result is no reason to repeat the request that asked for it, but the work may be.
        assert error.retryable is (rule.retryable or kind is PromiseExpiredError)
        assert is_user_error(error) is (status < 500 and status != 408)


@pytest.mark.parametrize("word", ["TRUE", " true", "True"])
def test_the_servers_word_is_read_in_any_spelling(word: str) -> None:
    error = APIStatusError("no", ResponseInfo(418, {"X-Should-Retry": word}), None)
    assert decide(error, PLAIN, 0, 0.0, 0.5).retry


def test_an_unknown_word_counts_for_nothing() -> None:
    assert not decide(
        APIStatusError("no", ResponseInfo(418, {"x-should-retry": "1"}), None), PLAIN, 0, 0, 0
    ).retry


# ---- what has no status


@pytest.mark.parametrize(
    ("error", "plain", "sampling"),
    [
        (APIConnectionError(), True, True),
        (APITimeoutError(), True, True),
        (StuckError(), False, False),
        (CircuitOpenError(), False, False),
        (RequestFailedError("x", "r", RequestErrorCategory.Server), False, True),
        (RequestFailedError("x", "r", RequestErrorCategory.User), False, False),
        (RequestFailedError("x", "r", RequestErrorCategory.Unknown), False, False),
        (RequestFailedError("x", "r", "nonsense"), False, False),
        (RetryableException("lost"), False, True),
        (APIResponseValidationError(ResponseInfo(200), None), False, False),
        (InvalidArgumentError("x"), False, False),
        (ClientClosedError("x"), False, False),
        (TinkerError("x"), False, False),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else str(each),
)
def test_errors_without_a_status(error: TinkerError, plain: bool, sampling: bool) -> None:
    assert decide(error, PLAIN, 0, 0.0, 0.5).retry is plain
    assert decide(error, SAMPLING, 0, 0.0, 0.5).retry is sampling


def test_a_lost_result_is_asked_for_anew_by_sampling_only() -> None:
    gone = PromiseExpiredError("gone", ResponseInfo(410), None)
    assert decide(gone, SAMPLING, 0, 0.0, 0.5).retry
    assert status_rule(410).retryable is False


# ---- budgets


@given(attempt=st.integers(0, 20), allowed=st.integers(1, 20), chance=chances)
def test_no_more_tries_than_allowed(attempt: int, allowed: int, chance: float) -> None:
    operation = Operation("x", seconds=1e9, attempts=allowed)
    assert decide(refusal(503), operation, attempt, 0.0, chance).retry is (attempt + 1 < allowed)


@given(elapsed=st.floats(0, 400), chance=chances, attempt=st.integers(0, 8))
def test_no_wait_goes_beyond_the_time_allowed(elapsed: float, chance: float, attempt: int) -> None:
    decision = decide(refusal(503), PLAIN, attempt, elapsed, chance)
    assert decision.retry is (elapsed + backoff(attempt, chance) <= PLAIN.seconds)
    if not decision.retry:
        assert decision.delay == 0
        assert f"gave up after {attempt + 1} tries" in decision.reason


def test_a_whole_life_of_failures_fits_the_budget() -> None:
    elapsed, attempt = 0.0, 0
    while (decision := decide(APIConnectionError(), PLAIN, attempt, elapsed, 1.0)).retry:
        elapsed += decision.delay
        attempt += 1
    assert 280 <= elapsed <= PLAIN.seconds
    assert attempt < PLAIN.attempts


def test_a_billing_problem_has_a_window_of_its_own() -> None:
    operation = Operation("x", seconds=10.0, billing_seconds=100.0, attempts=1000)
    error = refusal(402)
    assert decide(error, operation, 5, 90.0, 0.5).delay == BILLING_PAUSE
    assert not decide(error, operation, 5, 96.0, 0.5).retry
    assert not decide(refusal(503), operation, 5, 90.0, 0.5).retry
    # The server's word makes it an error like any other.
    assert not decide(refusal(402, True), operation, 5, 90.0, 0.5).retry
    assert not decide(refusal(402, False), operation, 0, 0.0, 0.5).retry


# ---- waits


@given(attempt=st.integers(0, 10_000), chance=chances)
def test_waits_double_up_to_a_limit_and_are_jittered(attempt: int, chance: float) -> None:
    full = min(0.5 * 2.0 ** min(attempt, 30), 10.0)
    assert 0.75 * full <= backoff(attempt, chance) <= full
    assert backoff(attempt, chance, 2.0, 3.0) <= 3.0


@given(
    attempt=st.integers(0, 50),
    advice=st.floats(0.05, 60),
    chance=chances,
    status=st.sampled_from([402, 408, 409, 429, 500, 503]),
)
def test_the_servers_advice_beats_every_other_wait(
    attempt: int, advice: float, chance: float, status: int
) -> None:
    decision = decide(refusal(status, retry_after=advice), PLAIN, attempt, 0.0, chance)
    assert decision.retry
    assert advice <= decision.delay <= advice * 1.1


@given(attempt=st.integers(0, 100), advice=st.floats(0, 0.05, exclude_max=True), chance=chances)
def test_advice_to_come_back_at_once_makes_no_hot_loop(attempt: int, advice: float, chance: float) -> None:
    wait = advised(advice, attempt, chance)
    assert 0.75 * 0.05 <= wait <= 1.0
    assert wait >= 0.75 * min(0.05 * 2.0 ** min(attempt, 10), 1.0)


def test_advice_beyond_the_budget_ends_the_operation() -> None:
    operation = Operation("x", seconds=30.0)
    assert not decide(refusal(429, retry_after=60.0), operation, 0, 0.0, 0.0).retry
