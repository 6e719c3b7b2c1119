"""Short-lived tokens: signed, bounded in time, and no better than the key they stand for."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinkex.config import Secret
from tinkex.server.keys import KeyFileError, KeyInfo, KeyRing
from tinkex.server.tokens import Tokens

NOW = 1_700_000_000.0


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    return KeyRing(tmp_path / "keys.json")


@pytest.fixture
def tokens(tmp_path: Path, ring: KeyRing) -> Tokens:
    return Tokens(tmp_path / "token-secret", ring)


@pytest.fixture
def info(ring: KeyRing) -> KeyInfo:
    return ring.add("laptop", "ann")[0]


def issued(tokens: Tokens, info: KeyInfo, seconds: float = 600) -> str:
    token = tokens.issue(info, seconds, NOW)
    assert token is not None
    return token


def encoded(data: Any) -> str:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def parts(token: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    head, payload, signature = token.split(".")

    def read(text: str) -> Any:
        return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))

    return read(head), read(payload), signature


def test_a_token_stands_for_its_key_until_it_is_over(tokens: Tokens, info: KeyInfo):
    token = issued(tokens, info)
    assert token.startswith("eyJ")
    assert tokens.verify(token, NOW) == info
    assert tokens.verify(token, NOW + 599) == info
    assert tokens.verify(token, NOW + 600) is None


def test_a_ring_takes_tokens_where_the_server_gives_them(tokens: Tokens, tmp_path: Path, info: KeyInfo):
    ring = KeyRing(tmp_path / "keys.json", now=lambda: NOW)
    token = issued(tokens, info)
    assert ring.owner_of(token) is None
    ring.tokens = tokens
    assert ring.owner_of(token) == info
    assert ring.owner_of(token + "x") is None
    late = KeyRing(tmp_path / "keys.json", now=lambda: NOW + 600)
    late.tokens = tokens
    assert late.owner_of(token) is None


def test_the_claims_clients_read(tokens: Tokens, info: KeyInfo):
    head, claims, _ = parts(issued(tokens, info))
    assert head == {"alg": "HS256", "typ": "JWT"}
    said = {
        "iss": "tinkex",
        "sub": "tml:user:ann",
        "org_id": "ann",
        "email": "",
        "iat": NOW,
        "exp": NOW + 600,
    }
    assert {name: claims[name] for name in said} == said
    assert issued(tokens, info) != issued(tokens, info)


def test_a_token_ends_with_its_key(tokens: Tokens, ring: KeyRing, info: KeyInfo):
    token = issued(tokens, info)
    ring.revoke(info.id)
    assert tokens.verify(token, NOW) is None
    assert tokens.issue(info, 600, NOW) is None


def test_another_key_given_at_the_start_does_not_bring_old_tokens_back(tmp_path: Path):
    def at_start(key: str) -> tuple[KeyRing, Tokens]:
        ring = KeyRing(tmp_path / "keys.json", extra=Secret(key))
        return ring, Tokens(tmp_path / "secret", ring)

    ring, tokens = at_start("tml-the-first-of-them")
    assert ring.ad_hoc is not None
    token = issued(tokens, ring.ad_hoc)
    again = at_start("tml-the-first-of-them")[1].verify(token, NOW)
    assert again is not None
    assert again.id == 0
    assert at_start("tml-another-one-now")[1].verify(token, NOW) is None


def test_a_restart_keeps_tokens_and_another_server_knows_none(tmp_path: Path, ring: KeyRing, info: KeyInfo):
    token = issued(Tokens(tmp_path / "secret", ring), info)
    assert Tokens(tmp_path / "secret", ring).verify(token, NOW) == info
    assert Tokens(tmp_path / "elsewhere", ring).verify(token, NOW) is None


def test_there_is_no_algorithm_to_choose(tokens: Tokens, ring: KeyRing, info: KeyInfo):
    _, claims, signature = parts(issued(tokens, info))
    payload = encoded(claims)
    for head in ({"alg": "none", "typ": "JWT"}, {"alg": "None"}, {"alg": "HS512", "typ": "JWT"}, {}, b"x"):
        for end in ("", signature):
            assert tokens.verify(f"{encoded(head)}.{payload}.{end}", NOW) is None
    # Signed by somebody who knows all that stands in the key file.
    entry = ring.live(info.id)
    assert entry is not None
    signed = f"{encoded({'alg': 'HS256', 'typ': 'JWT'})}.{payload}"
    own = hmac.new(entry.digest.encode(), signed.encode(), hashlib.sha256).digest()
    assert tokens.verify(f"{signed}.{encoded(own)}", NOW) is None


@pytest.mark.parametrize(
    "change",
    [{"exp": NOW + 10**9}, {"exp": True}, {"exp": "9999999999"}, {"exp": None}, {"key": 2}, {"key": None},
     {"key": "1"}, {"key": 0}, {"sub": "tml:user:bob"}],
)  # fmt: skip
def test_changed_claims_are_refused(tokens: Tokens, ring: KeyRing, info: KeyInfo, change: dict[str, Any]):
    ring.add("other", "bob")
    head, claims, signature = issued(tokens, info).split(".")[0], *parts(issued(tokens, info))[1:]
    assert tokens.verify(f"{head}.{encoded({**claims, **change})}.{signature}", NOW) is None


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, 10_000), letter=st.characters())
def test_no_changed_letter_passes(at: int, letter: str, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.getbasetemp() / "letters"
    ring = KeyRing(folder / "keys.json")
    info = next(iter(ring.list()), None) or ring.add("laptop", "ann")[0]
    tokens = Tokens(folder / "secret", ring)
    token = issued(tokens, info)
    assert tokens.verify(token, NOW) == info
    at %= len(token)
    if letter != token[at]:
        assert tokens.verify(token[:at] + letter + token[at + 1 :], NOW) is None
    assert tokens.verify(token[:at], NOW) is None
    assert tokens.verify(token + letter, NOW) is None


@pytest.mark.parametrize(
    "rubbish", ["", ".", "..", "...", "eyJ", "eyJ.eyJ.x", "a" * 5000, "é.é.é", "\udcff..", "tml-abc"]
)
def test_rubbish_is_no_token(tokens: Tokens, rubbish: str):
    assert tokens.verify(rubbish, NOW) is None


def test_the_secret_is_for_its_owner_alone_and_does_not_show(tokens: Tokens, tmp_path: Path):
    path = tmp_path / "token-secret"
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(bytes.fromhex(path.read_text())) == 32
    assert repr(tokens) == "Tokens(****)"


@pytest.mark.parametrize("text", ["", "zz", "abcd"])
def test_a_damaged_secret_stops_the_start(tmp_path: Path, ring: KeyRing, text: str):
    (tmp_path / "secret").write_text(text)
    with pytest.raises(KeyFileError, match="damaged; remove it"):
        Tokens(tmp_path / "secret", ring)
