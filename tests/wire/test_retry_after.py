"""What the retry headers of an answer mean."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkex.wire.headers import LONGEST_RETRY_AFTER, retry_after, should_retry

from ..strategies import examples

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def http_date(seconds: float) -> str:
    return format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)


TABLE = [
    ({}, None),
    # milliseconds come first, then seconds, then a date
    ({"retry-after-ms": "1500"}, 1.5),
    ({"retry-after-ms": "0.5"}, 0.0005),
    ({"retry-after": "7"}, 7.0),
    ({"retry-after": "2.5"}, 2.5),
    ({"retry-after": " 3 "}, 3.0),
    ({"retry-after": http_date(9)}, 9.0),
    ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
    ({"retry-after-ms": "250", "retry-after": http_date(9)}, 0.25),
    # what cannot be read counts as absent
    ({"retry-after-ms": "soon"}, None),
    ({"retry-after-ms": ""}, None),
    ({"retry-after-ms": "soon", "retry-after": "4"}, 4.0),
    ({"retry-after-ms": "nan", "retry-after": "4"}, 4.0),
    ({"retry-after-ms": "inf", "retry-after": "4"}, 4.0),
    ({"retry-after": "soon"}, None),
    ({"retry-after": ""}, None),
    ({"retry-after": "nan"}, None),
    ({"retry-after": "Sun, 99 Foo 2026 12:00:00 GMT"}, None),
    ({"retry-after": "2026-03-01T12:00:09Z"}, None),
    # the past and below zero mean at once
    ({"retry-after-ms": "-5"}, 0.0),
    ({"retry-after": "-5"}, 0.0),
    ({"retry-after": "0"}, 0.0),
    ({"retry-after": http_date(-3600)}, 0.0),
    ({"retry-after": "Mon, 01 Jan 0001 00:00:00 GMT"}, 0.0),
    # the cap
    ({"retry-after": "3600"}, LONGEST_RETRY_AFTER),
    ({"retry-after-ms": "99999999"}, LONGEST_RETRY_AFTER),
    ({"retry-after": http_date(86400)}, LONGEST_RETRY_AFTER),
    ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, LONGEST_RETRY_AFTER),
    # a date without a zone is in UTC, other zones are honoured
    ({"retry-after": "Sun, 01 Mar 2026 12:00:05 -0000"}, 5.0),
    ({"retry-after": "Sun, 01 Mar 2026 12:00:05"}, 5.0),
    ({"retry-after": "Sun, 01 Mar 2026 14:00:05 +0200"}, 5.0),
]


@pytest.mark.parametrize(("headers", "seconds"), TABLE)
def test_the_table(headers: dict[str, str], seconds: float | None):
    found = retry_after(headers, NOW)
    assert found == (None if seconds is None else pytest.approx(seconds))


def test_the_cap_is_the_callers():
    assert retry_after({"retry-after": "3600"}, NOW, longest=600) == 600
    assert retry_after({"retry-after": "3600"}, NOW, longest=float("inf")) == 3600


@examples(200)
@given(
    ms=st.none() | st.text(max_size=12) | st.floats().map(str),
    plain=st.none() | st.text(max_size=40) | st.floats().map(str) | st.integers().map(str),
)
def test_no_header_makes_a_wait_that_is_not_sane(ms: str | None, plain: str | None):
    named = {"retry-after-ms": ms, "retry-after": plain}
    found = retry_after({name: text for name, text in named.items() if text is not None}, NOW)
    assert found is None or 0 <= found <= LONGEST_RETRY_AFTER


@examples(100)
@given(seconds=st.integers(-(10**6), 10**6), offset=st.integers(-12, 14))
def test_any_http_date_is_read(seconds: int, offset: int):
    from datetime import timezone

    moment = (NOW + timedelta(seconds=seconds)).astimezone(timezone(timedelta(hours=offset)))
    found = retry_after({"retry-after": format_datetime(moment)}, NOW)
    assert found == min(max(seconds, 0), LONGEST_RETRY_AFTER)


@pytest.mark.parametrize(
    ("text", "meant"),
    [("true", True), ("True", True), (" false ", False), ("", None), ("maybe", None), (None, None)],
)
def test_the_servers_own_word_on_a_retry(text: str | None, meant: bool | None):
    assert should_retry({} if text is None else {"x-should-retry": text}) is meant
