"""`tinkex.auth`: which credential there is, and whether the service takes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tinkex import auth, types
from tinkex.errors import APIConnectionError, AuthenticationError, BillingError, TinkerError
from tinkex.testing import FakeServer, FakeService

JWT = "eyJhbGciOiJub25lIn0.e30."


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any credential."""
    for name in ("TINKER_API_KEY", "TINKER_CREDENTIAL_CMD", "TINKER_BASE_URL", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    return tmp_path


def log_in(home: Path, key: str) -> None:
    file = home / ".tinker" / "credentials.json"
    file.parent.mkdir()
    record = {"type": "manual", "key": key, "name": "n"}
    file.write_text(json.dumps({"version": 1, "default": "a", "keys": {"a": record}}))


def test_without_anything_there_is_no_credential(home: Path) -> None:
    assert auth.get_tinker_token() is None
    assert auth.tinker_has_credentials() is False


@pytest.mark.parametrize("key", ["tml-key", JWT])
def test_the_environment_comes_first(home: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    log_in(home, "tml-stored")
    monkeypatch.setenv("TINKER_API_KEY", key)
    assert auth.get_tinker_token() == key
    assert auth.tinker_has_credentials() is True


def test_a_stored_login_is_found(home: Path) -> None:
    log_in(home, "tml-stored")
    assert auth.get_tinker_token() == "tml-stored"
    assert auth.tinker_has_credentials() is True


def test_a_command_counts_without_being_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_CREDENTIAL_CMD", f"touch {home / 'ran'}; echo tml-made")
    assert auth.get_tinker_token() is None
    assert auth.tinker_has_credentials() is True
    monkeypatch.setenv("TINKER_API_KEY", "not-a-key")
    assert auth.tinker_has_credentials() is True
    assert not (home / "ran").exists()


def test_what_cannot_be_a_credential_is_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "sk-other")
    assert auth.get_tinker_token() is None
    assert auth.tinker_has_credentials() is False
    monkeypatch.delenv("TINKER_API_KEY")
    log_in(home, "sk-other")
    assert auth.tinker_has_credentials() is False
    (home / ".tinker" / "credentials.json").write_text("{broken")
    assert auth.get_tinker_token() is None
    assert auth.tinker_has_credentials() is False


# ---- asking the service


@pytest.fixture
def server(home: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """A service that takes one key."""
    with FakeServer(FakeService(api_keys=["tml-good"])) as server:
        monkeypatch.setenv("TINKER_BASE_URL", server.base_url)
        monkeypatch.setenv("TINKER_API_KEY", "tml-good")
        yield server


def asked(server: FakeServer) -> list[str]:
    return [call.route for call in server.service.calls]


def test_an_accessible_service_is_asked_once(server: FakeServer) -> None:
    auth.raise_if_tinker_not_accessible()
    assert asked(server) == ["client_config", "get_server_capabilities"]


def test_tokens_are_used_where_the_service_wants_them(server: FakeServer) -> None:
    server.service.config = types.ClientConfigResponse(pjwt_auth_enabled=True)
    auth.raise_if_tinker_not_accessible()
    assert asked(server) == ["client_config", "auth_token", "get_server_capabilities"]
    assert server.service.calls[-1].headers["x-api-key"].startswith("eyJ")


def test_an_older_service_is_accessible_too(server: FakeServer) -> None:
    server.service.config = None
    auth.raise_if_tinker_not_accessible()
    assert asked(server) == ["client_config", "get_server_capabilities"]


def test_a_wrong_key_is_an_authentication_error(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-bad")
    with pytest.raises(AuthenticationError):
        auth.raise_if_tinker_not_accessible()


@pytest.mark.parametrize("route", ["client_config", "get_server_capabilities"])
def test_missing_billing_is_told_at_once(server: FakeServer, route: str) -> None:
    server.service.faults.add(route, status=402)
    with pytest.raises(BillingError):
        auth.raise_if_tinker_not_accessible()
    assert asked(server).count(route) == 1


def test_a_service_that_is_gone_is_a_connection_error_at_once(server: FakeServer) -> None:
    server.go_down()
    with pytest.raises(APIConnectionError):
        auth.raise_if_tinker_not_accessible()


def test_no_credential_is_told_with_what_to_do(home: Path) -> None:
    with pytest.raises(TinkerError, match="TINKER_API_KEY"):
        auth.raise_if_tinker_not_accessible()


def test_whatever_else_goes_wrong_is_a_tinker_error(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(config: object) -> None:
        raise PermissionError("no access to the file")

    monkeypatch.setattr("tinkex.client.access.check_access", fail)
    with pytest.raises(TinkerError, match="no access to the file") as caught:
        auth.raise_if_tinker_not_accessible()
    assert isinstance(caught.value.__cause__, PermissionError)
