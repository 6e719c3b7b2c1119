"""What this machine's credential is, and whether the service takes it."""

from __future__ import annotations

import os

from .errors import TinkerError

__all__ = ["get_tinker_token", "raise_if_tinker_not_accessible", "tinker_has_credentials"]

_UNREADABLE = (OSError, RuntimeError, ValueError, TinkerError)


def get_tinker_token() -> str | None:
    """The key in TINKER_API_KEY or kept from a login, or None; runs no command and asks no server."""
    try:
        return _static_key()
    except _UNREADABLE:
        return None


def tinker_has_credentials() -> bool:
    """Whether there is a credential; a configured TINKER_CREDENTIAL_CMD counts without being run."""
    if os.environ.get("TINKER_CREDENTIAL_CMD"):
        return True
    return get_tinker_token() is not None


def raise_if_tinker_not_accessible() -> None:
    """Ask the service once, blocking, and raise the `TinkerError` that says why it cannot be used."""
    from .client.access import check_access
    from .config import Config

    try:
        check_access(Config.resolve())
    except TinkerError:
        raise
    except Exception as problem:
        raise TinkerError(str(problem)) from problem


def _static_key() -> str | None:
    from .net.credentials import CredentialStore, check_key

    key = os.environ.get("TINKER_API_KEY")
    if not key:
        stored = CredentialStore().default()
        key = None if stored is None else stored.key.reveal()
    if key is not None:
        check_key(key)
    return key
