"""Credentials never get through, whatever stands around them; ordinary text does."""

from __future__ import annotations

import base64
import json
import string
import uuid

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tinkex.client.redaction import scrub, scrub_data, secrets_of
from tinkex.config import Config

around = st.text(alphabet=string.ascii_letters + string.digits + " \n\t\"'{}[]():,;=/.-_?&ü", max_size=30)
body = st.text(alphabet=string.ascii_letters + string.digits + "-_", min_size=16, max_size=60)


def jwt(claims: dict[str, str]) -> str:
    parts = (json.dumps(each).encode() for each in ({"alg": "HS256"}, claims))
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts) + ".c2lnbmF0dXJl"


@settings(max_examples=200, deadline=None)
@given(before=around, after=around, secret=st.text(min_size=4, max_size=40))
def test_a_known_credential_never_gets_through(before: str, after: str, secret: str) -> None:
    left = scrub(before + secret + after, [secret])
    assert secret not in left.replace("[removed]", "\0")


@settings(max_examples=200, deadline=None)
@given(before=around, after=around, rest=body)
def test_a_key_that_nobody_knows_never_gets_through(before: str, after: str, rest: str) -> None:
    assume(rest not in before + after)
    assert rest not in scrub(f"{before} tml-{rest} {after}")


@settings(max_examples=100, deadline=None)
@given(before=around, after=around, who=st.text(max_size=20))
def test_a_token_never_gets_through(before: str, after: str, who: str) -> None:
    token = jwt({"sub": who})
    left = scrub(f"{before}{token} {after}")
    assert token not in left
    assert token.split(".")[1] not in left


@pytest.mark.parametrize(
    "text",
    [
        "X-API-Key: hunter2hunter2",
        "x-api-key=hunter2hunter2",
        "{'x-api-key': 'hunter2hunter2'}",
        '{"Authorization": "hunter2hunter2"}',
        "Authorization: Bearer hunter2hunter2",
        "password = hunter2hunter2",
        "cookie: hunter2hunter2; other",
        "https://me:hunter2hunter2@host/path",
        "https://bucket/file?X-Amz-Signature=hunter2hunter2&x=1",
        "hf_hunter2hunter2",
        "sk-hunter2hunter2",
        "AKIAhunter2hunter2",
        "opaque hunter2hunter2hunter2hunter2hunter2",
    ],
)
def test_what_looks_like_a_credential_is_removed(text: str) -> None:
    left = scrub(text)
    assert "hunter2" not in left
    assert "[removed]" in left


@pytest.mark.parametrize(
    "text",
    [
        "Error code: 400",
        "the model sess-1:train:0 was not found",
        f"request {uuid.UUID(int=7)} failed after 3 tries in 12 s",
        "create_training_client_from_state_with_optimizer_async needs a path",
        "shape [3, 8] does not fit [3, 7]; see https://host/docs/page",
        "",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert scrub(text) == text


def test_long_texts_are_cut() -> None:
    assert len(scrub("word " * 10_000)) <= 4000


def test_data_keeps_plain_values_and_loses_what_is_not_for_others() -> None:
    kept = scrub_data(
        {
            "step": 3,
            "rate": 0.5,
            "none": None,
            "flag": True,
            "names": ["a", ("b", 1)],
            "deep": {"inner": {"api_key": "x", "left": "tml-abcdefgh12345"}},
            "request_headers": {"a": "b"},
            "response_body": "x",
            "prompt": "x",
            "auth": "x",
            "object": object(),
            7: "seven",
        }
    )
    assert kept == {
        "step": 3,
        "rate": 0.5,
        "none": None,
        "flag": True,
        "names": ["a", ["b", 1]],
        "deep": {"inner": {"left": "[removed]"}},
        "object": "<object>",
        "7": "seven",
    }


def test_a_config_knows_its_secrets() -> None:
    config = Config.resolve(
        base_url="http://fake.test",
        api_key="tml-k",
        headers={"CF-Access-Client-Secret": "s", "X-Team": "plain"},
        environ={},
    )
    assert sorted(secrets_of(config)) == ["s", "tml-k"]
