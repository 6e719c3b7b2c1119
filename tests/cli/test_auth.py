"""`tinkex auth` on a real server and on ones that say no."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from tests.matrix.serving import Served
from tinkex.config import Secret
from tinkex.net.credentials import CredentialStore, StoredKey

from .conftest import Command, Fake


@pytest.fixture
def server(cli: Command, served: Served, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command on the real server without a key."""
    monkeypatch.setenv("TINKER_BASE_URL", served.url)
    return cli


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_in_and_out_again(server: Command, served: Served, home: Path, monkeypatch: pytest.MonkeyPatch):
    typed(monkeypatch, f"  {served.key}\n")
    done = server("auth", "login")
    assert (done.code, done.err) == (0, "")
    assert served.key not in done.out
    file = home / ".tinker" / "credentials.json"
    assert str(file) in done.out
    assert file.stat().st_mode & 0o777 == 0o600
    held = json.loads(file.read_text())
    assert held["keys"][held["default"]]["key"] == served.key
    assert server("auth", "status").code == 0
    assert "local" in server("auth", "whoami").out
    again = server("auth", "login")
    assert again.code == 1
    assert "`tinkex auth logout`" in again.err
    out = server("auth", "logout", "--json")
    assert (out.code, out.data["deleted_on_server"]) == (0, False)
    assert server("auth", "logout").code == 1
    assert server("auth", "status").code == 1


def test_a_login_as_json(server: Command, served: Served, monkeypatch: pytest.MonkeyPatch):
    typed(monkeypatch, f"{served.key}\n")
    monkeypatch.setenv("TINKER_API_KEY", "tml-another")
    done = server("auth", "login", "--json")
    assert done.code == 0
    assert done.data["organization"] == "local"
    assert "TINKER_API_KEY" in done.problem["warning"]


def test_what_the_official_client_stored_is_read(home: Path, server: Command, served: Served):
    file = home / ".tinker" / "credentials.json"
    file.parent.mkdir()
    entry = {"type": "manual", "key": served.key, "name": "theirs"}
    file.write_text(json.dumps({"version": 1, "default": "7", "keys": {"7": entry}}))
    assert server("auth", "status", "--json").data["accessible"] is True
    assert "'theirs'" in server("auth", "logout").out


@pytest.mark.parametrize(
    ("key", "said"),
    [("\n", "no key was given"), ("sk-123\n", "must start with 'tml-'"), ("tml-wrong\n", "")],
)
def test_a_wrong_key_is_not_kept(
    server: Command, home: Path, monkeypatch: pytest.MonkeyPatch, key: str, said: str
):
    typed(monkeypatch, key)
    done = server("auth", "login")
    assert (done.code, done.out) == (1, "")
    assert said in done.err
    assert "wrong" not in done.err
    assert not (home / ".tinker").exists()


def test_a_key_that_a_login_made_and_the_server_does_not_know(server: Command):
    CredentialStore().save(StoredKey("9", Secret("tml-of-nobody"), "made", "generated"))
    done = server("auth", "logout")
    assert done.code == 1
    assert "forgotten here, but could not be deleted on the server" in done.err
    assert CredentialStore().default() is None


def test_a_key_that_a_login_made_ends_with_it(fake: Fake):
    CredentialStore().save(StoredKey("9", Secret("tml-test"), "made", "generated"))
    done = fake("auth", "logout", "--json")
    assert (done.code, done.data["deleted_on_server"]) == (0, True)
    assert len(fake.service.calls.to("delete_api_key")) == 1


def test_status_says_both(server: Command, served: Served, monkeypatch: pytest.MonkeyPatch):
    done = server("auth", "status")
    assert done.code == 1
    assert done.out == "Credentials available: no\n"
    assert "`tinkex auth login`" in done.err
    monkeypatch.setenv("TINKER_API_KEY", "tml-wrong")
    done = server("auth", "status")
    assert done.code == 1
    assert done.out == "Credentials available: yes\nTinker accessible: no\n"
    assert "TINKER_API_KEY" in done.err
    done = server("auth", "status", "--json")
    assert (done.data["credentials"], done.data["accessible"]) == (True, False)
    monkeypatch.setenv("TINKER_API_KEY", served.key)
    done = server("auth", "status")
    assert (done.code, done.err) == (0, "")
    assert done.out == "Credentials available: yes\nTinker accessible: yes\n"


def test_whoami_with_a_key(server: Command, served: Served, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TINKER_API_KEY", served.other_key)
    data = server("auth", "whoami", "--json").data
    assert (data["user_urn"], data["key"]["name"], data["key"]["organization"]) == (None, "other", "other")


def test_whoami_with_a_token(fake: Fake):
    from tinkex.types import ClientConfigResponse

    fake.service.config = ClientConfigResponse(pjwt_auth_enabled=True)
    data = fake("auth", "whoami", "--json").data
    assert data["user_urn"]
    assert data["org_urn"].startswith("tml:organization:")


def test_no_key_at_all_is_no_network_problem(server: Command):
    done = server("run", "list")
    assert done.code == 1
    assert "No credential was found" in done.err
    assert "TINKER_BASE_URL=local" in done.err
    assert "tinkex auth login" in done.err
    assert done.err.count("\n") == 1


def test_nobody_is_waited_for_where_no_server_is(cli: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    done = cli("auth", "status", "--base-url", "http://127.0.0.1:9")
    assert done.code == 1
    assert "no answer from http://127.0.0.1:9" in done.err
    assert "tinkex doctor" in done.err


def test_keys_pasted_at_a_terminal_are_not_shown(
    server: Command, served: Served, monkeypatch: pytest.MonkeyPatch
):
    import getpass

    typed(monkeypatch, "")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    asked = []
    monkeypatch.setattr(getpass, "getpass", lambda prompt, stream: asked.append(prompt) or served.key)
    assert server("auth", "login").code == 0
    assert asked == ["Paste your API key: "]
    assert "TINKER_API_KEY" not in os.environ
