"""Who am I, trade my key for a token, let my key in no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinkex.config import Secret
from tinkex.server.keys import KeyRing
from tinkex.server.places import TOKEN_SECRET
from tinkex.server.tokens import Tokens
from tinkex.types import AuthTokenResponse

from .rig import Rig, served


def give_tokens(rig: Rig) -> None:
    rig.ring.now = rig.clock.time
    rig.ring.tokens = Tokens(rig.state / TOKEN_SECRET, rig.ring)


def swap(path: Path, data: bytes) -> bytes:
    """Write a file in place, and give what was there."""
    before = path.read_bytes()
    path.write_bytes(data)
    return before


@served
async def test_a_key_is_shown_without_itself(rig: Rig):
    got = await rig.get("auth/apikey/me")
    assert got.status == 200
    assert got.json == {
        "key_id": 1,
        "name": "ann-0",
        "note": "",
        "details": {"org_details": {"name": "ann"}, "user_details": {"email": ""}},
    }
    assert rig.keys["ann"] not in got.body.decode()


@served
async def test_an_owner_named_by_an_address_has_it_shown(rig: Rig):
    key = rig.ring.add("mail", "ann@example.com", "hello")[1].reveal()
    got = (await rig.get("auth/apikey/me", key=key)).json
    assert (got["note"], got["details"]["user_details"]) == ("hello", {"email": "ann@example.com"})


@served
async def test_a_key_that_revokes_itself_is_let_in_no_more(rig: Rig):
    assert (await rig.ask("DELETE", "auth/apikey/me")).status == 200
    for path in ("auth/apikey/me", "sessions"):
        assert (await rig.get(path)).status == 401
    assert (await rig.ask("DELETE", "auth/apikey/me")).status == 401
    assert (await rig.get("auth/apikey/me", key="bob")).status == 200
    assert await rig.events() == ["api_key.revoked"]
    assert await rig.events("bob") == []


@served
async def test_the_key_given_at_the_start_cannot_be_revoked(rig: Rig):
    key = Secret("tml-given-at-the-start-of-it")
    rig.service.keys = KeyRing(rig.state / "keys.json", extra=key)
    assert (await rig.get("auth/apikey/me", key=key.reveal())).json["key_id"] == 0
    got = await rig.ask("DELETE", "auth/apikey/me", key=key.reveal())
    assert got.status == 409
    assert "ends when the server does" in got.detail
    assert (await rig.get("sessions", key=key.reveal())).status == 200


@served
async def test_a_key_is_traded_for_a_token_that_ends(rig: Rig):
    give_tokens(rig)
    got = await rig.post("auth/token")
    assert got.status == 200
    token = AuthTokenResponse.model_validate(got.json).jwt
    assert rig.keys["ann"] not in token
    assert (await rig.get("auth/apikey/me", key=token)).json["key_id"] == 1
    assert (await rig.get("sessions", key=token)).status == 200
    assert (await rig.post("auth/token", key=token)).status == 200
    await rig.clock.forward(3600)
    assert (await rig.get("sessions", key=token)).status == 401
    assert (await rig.get("sessions")).status == 200


@served
async def test_a_token_ends_with_its_key_and_can_end_it(rig: Rig):
    give_tokens(rig)
    token = (await rig.post("auth/token")).json["jwt"]
    other = (await rig.post("auth/token", key="bob")).json["jwt"]
    assert (await rig.ask("DELETE", "auth/apikey/me", key=token)).status == 200
    for key in ("ann", token):
        assert (await rig.get("sessions", key=key)).status == 401
    rig.ring.revoke("bob-0")
    assert (await rig.get("sessions", key=other)).status == 401


@served
async def test_a_server_without_tokens_says_so(rig: Rig):
    got = await rig.post("auth/token")
    assert got.status == 403
    assert "use the API key itself" in got.detail


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "auth/token"), ("GET", "auth/apikey/me"), ("DELETE", "auth/apikey/me")]
)
@served
async def test_strangers_get_nothing(rig: Rig, method: str, path: str):
    for key in (None, "tml-wrong", "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.e30.x", ""):
        assert (await rig.ask(method, path, key=key)).status == 401


@served
async def test_a_damaged_key_file_lets_nobody_in_until_it_is_mended(rig: Rig):
    good = swap(rig.ring.path, b"{")
    got = await rig.get("sessions")
    assert got.status == 503
    assert "cannot read its keys" in got.detail
    assert (await rig.get("healthz", key=None)).status == 200
    swap(rig.ring.path, good)
    assert (await rig.get("sessions")).status == 200
