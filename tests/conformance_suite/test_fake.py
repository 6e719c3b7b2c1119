"""The checks on a fake over HTTP: all that does not depend on real training passes."""

from __future__ import annotations

import pytest

from tinkex.conformance.checks import CHECKS, Check, Failed, Skipped, chosen, expect, widest
from tinkex.conformance.suite import all_checks
from tinkex.testing import FakeService
from tinkex.types import ClientConfigResponse

from .running import ALL, FAST, KEY, MADE_UP, MODEL, UNSAID, check_fake, ended


def fake(**settings: object) -> FakeService:
    return FakeService(models=[MODEL], api_keys=[KEY], hold=0.5, skip_after=1.0, **settings)


@pytest.mark.parametrize("parallel", [False, True])
def test_a_fake_passes_all_that_needs_no_training(parallel: bool):
    service = fake(config=ClientConfigResponse(parallel_fwdbwd_chunks=parallel))
    outcomes = check_fake(service)
    assert set(outcomes) == FAST
    assert ended(outcomes, "fail").keys() == MADE_UP
    assert ended(outcomes, "skip").keys() == UNSAID


def test_a_fake_passes_what_waits_for_its_own_times():
    outcomes = check_fake(fake(), sorted(ALL - FAST), slow=True)
    # Its steps move the weights even without gradients, so a late pass cannot be told from none.
    assert ended(outcomes, "fail").keys() == {"wire/6.3/gap"}
    assert ended(outcomes, "pass").keys() == ALL - FAST - {"wire/6.3/gap"}


def test_servers_that_want_tokens_are_checked_with_tokens():
    service = fake(config=ClientConfigResponse(pjwt_auth_enabled=True))
    outcomes = check_fake(service, ["wire/"])
    assert ended(outcomes, "fail") == {}


def test_everything_made_is_taken_down_again():
    service = fake()
    check_fake(service)
    assert service.world.checkpoints == {}
    assert [session.id for session in service.world.sessions.values() if session.ended is None] == []
    assert len(service.world.sessions) > 30


# ---- the list of checks


def test_every_check_is_named_after_a_row_and_says_what_must_hold():
    assert len(ALL) > 70
    for check in all_checks():
        kind, row, what = check.name.split("/")
        assert kind in ("journey", "wire", "numerics")
        assert row.replace(".", "").isdigit()
        assert what
        assert len(check.title) > 20


def test_checks_are_chosen_by_part_of_their_name():
    def names(*patterns: str, slow: bool = False) -> list[str]:
        return [check.name for check in chosen(all_checks(), patterns, slow=slow)]

    assert set(names()) == FAST
    assert set(names(slow=True)) == ALL
    assert names("wire/5.1/unknown-future") == ["wire/5.1/unknown-future"]
    assert set(names("5.2/")) == {"wire/5.2/cursor", "wire/5.2/clones", "wire/5.2/unknown-session"}
    assert names("wire*key") == ["wire/1.3/key", "wire/6.2/session-key", "wire/0.10/key-is-not-all"]
    assert names("pending") == []
    assert names("pending", slow=True) == ["wire/5.1/pending"]
    assert names("nothing like it") == []


def test_a_check_that_saw_something_else_fails():
    with pytest.raises(Failed, match="saw this"):
        expect([], "saw this")
    expect([0], "never shown")
    assert issubclass(Failed, Exception)
    assert not issubclass(Failed, Skipped)
    assert isinstance(CHECKS["wire/2.1/health"], Check)


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        (1.0, 1.5, 0.5),
        ([1.0, 2.0], [1.0, 2.25], 0.25),
        ([[1.0], [None, 3.0]], [[1.0], [None, 1.0]], 2.0),
        ([1.0], [1.0, 2.0], float("inf")),
        ([None], [1.0], float("inf")),
        ([float("nan")], [1.0], float("inf")),
        ([], [], 0.0),
    ],
)
def test_how_far_apart_numbers_are(one: object, other: object, apart: float):
    assert widest(one, other) == apart
