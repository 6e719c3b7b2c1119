"""Trying keys: slowed for whoever tries, never for whoever has one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.client import Stream
from tests.server.machine import Machine, running
from tinkex.config import Secret
from tinkex.server.keys import KeyRing
from tinkex.server.wrong_keys import AT_ONCE, MOST_ADDRESSES, PER_SECOND, WrongKeys


async def asked(server: Machine, key: str, peer: str = "192.0.2.1") -> Any:
    """The answer to one request with a key, from an address."""
    scope = {
        "type": "http", "method": "GET", "path": "/api/v1/get_server_capabilities", "query_string": b"",
        "headers": [(b"x-api-key", key.encode())], "client": (peer, 5),
    }  # fmt: skip
    return await Stream(server.app, scope, [b""]).whole()


@running()
async def test_an_address_that_goes_on_trying_must_wait_and_others_need_not(server: Machine):
    right = server.key["ann"]
    for number in range(AT_ONCE):
        assert (await asked(server, f"tml-guess-{number}")).status == 401
    refused = await asked(server, "tml-guess-again")
    assert refused.status == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert "tml-" not in refused.body.decode()
    # A right key from the same address (an office, a proxy) is let in as ever, however often it asks.
    for _ in range(3):
        assert (await asked(server, right)).status == 200
    assert (await asked(server, "tml-guess-again")).status == 429
    assert (await asked(server, "tml-guess-again", "192.0.2.2")).status == 401
    server.clock.advance(2 / PER_SECOND)
    assert (await asked(server, "tml-guess-again")).status == 401


@running()
async def test_a_missing_key_is_no_guess(server: Machine):
    for _ in range(AT_ONCE + 10):
        answer = await server.send("GET", "/api/v1/get_server_capabilities")
        assert answer.status == 401
    assert len(server.service.wrong_keys) == 0


@running()
async def test_a_short_key_given_by_hand_is_not_found_by_trying(server: Machine):
    server.service.keys = KeyRing(server.folder / "none.json", extra=Secret("tml-1234"), extra_owner="ann")
    assert (await asked(server, "tml-1234")).status == 200
    for number in range(AT_ONCE):
        await asked(server, f"tml-{number}")
    # A guess that is right now looks like one that is wrong.
    assert (await asked(server, "tml-1234")).status == 429
    assert (await asked(server, "tml-1234", "192.0.2.2")).status == 200


@running()
async def test_a_lent_credential_is_no_way_round(server: Machine):
    body = {"source_path": "tinker://s-1:train:0/weights/a", "destination_project_id": "p"}
    seen = []
    for number in range(AT_ONCE + 2):
        headers = {"X-Tinker-Weights-Access-Token": f"tml-guess-{number}"}
        seen.append((await server.ann("copy_weights", body, headers=headers)).status)
    assert seen == [403] * AT_ONCE + [429] * 2
    load = {"session_id": await server.ann.session(), "model_seq_id": 0, "path": body["source_path"],
            "optimizer": True, "weights_access_token": "tml-guess"}  # fmt: skip
    assert (await server.ann("load_weights", load)).status == 429


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 50)), max_size=300))
@settings(max_examples=30, deadline=None)
def test_no_address_gets_more_than_its_share(tries: list[tuple[int, float]]):
    wrong, now = WrongKeys(), 0.0
    looked = dict.fromkeys(range(4), 0)
    for who, pause in tries:
        now += pause
        if not wrong.wait(f"10.0.0.{who}", now):
            wrong.note(f"10.0.0.{who}", now)
            looked[who] += 1
    assert all(count <= AT_ONCE + now * PER_SECOND for count in looked.values())


def test_the_memory_has_a_bound():
    wrong = WrongKeys()
    for number in range(3 * MOST_ADDRESSES):
        wrong.note(f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}", float(number))
    assert len(wrong) == MOST_ADDRESSES


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("", "", True),
    ],
)
def test_neighbours_of_the_sixth_version_count_as_one(one: str, other: str, same: bool):
    wrong = WrongKeys()
    for _ in range(AT_ONCE):
        wrong.note(one, 0.0)
    assert (wrong.wait(other, 0.0) > 0) is same


def test_keys_are_compared_in_constant_time():
    """Each comparison of something secret is `hmac.compare_digest`, over all keys and without a way out."""
    import ast

    source = Path(__file__).parents[2] / "src" / "tinkex" / "server"
    secret = {"digest", "signature", "mark", "right", "_secret", "credential"}
    for name in ("keys.py", "tokens.py", "signing.py"):
        tree = ast.parse((source / name).read_text())
        assert "compare_digest" in (source / name).read_text()
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
                words = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                words |= {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
                assert not words & secret, f"{name}:{node.lineno}"
