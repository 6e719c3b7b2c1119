"""The credential of each request: a key as it is, or a token made from it and kept fresh."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ..config import Config, Secret
from ..errors import TinkerError
from .clock import Clock
from .credentials import CredentialStore, find_credential, is_jwt, run_command

__all__ = ["Auth", "claims_of"]

logger = logging.getLogger(__name__)

_REFRESH_EARLY = 300.0
_REFRESH_LATEST = 60.0
_RETRY_REFRESH = 60.0

Exchange = Callable[[str], Awaitable[str]]


def claims_of(token: str) -> dict[str, Any]:
    """The claims inside a JWT, unverified; empty if it cannot be read."""
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (IndexError, ValueError, binascii.Error):
        return {}
    return claims if isinstance(claims, dict) else {}


class Auth:
    """Gives each request its credential.

    Until `use_tokens` is called the credential goes out as it is.  Afterwards it is exchanged for a
    token: at first use, again five minutes before the token ends, with one exchange at a time.
    """

    def __init__(self, config: Config, clock: Clock, store: CredentialStore | None = None) -> None:
        self._config, self._clock, self._store = config, clock, store
        self._raw: Secret | None = None
        self._exchange: Exchange | None = None
        self._force_command = False
        self._token: str | None = None
        self._expires = 0.0
        self._no_retry_before = 0.0
        self._lock: asyncio.Lock | None = None

    def raw(self) -> str:
        """The credential as it was given; may run the user's command (blocking)."""
        if self._config.credential_command is not None and self._from_command():
            return run_command(self._config.credential_command).reveal()
        if self._raw is None:
            self._raw = find_credential(self._config, self._store)
        return self._raw.reveal()

    def _from_command(self) -> bool:
        key = self._config.api_key
        if key is None or self._force_command:
            return key is None or not is_jwt(key.reveal())
        return not (key.reveal().startswith("tml-") or is_jwt(key.reveal()))

    @property
    def digest(self) -> str:
        """A fingerprint of the credential, without running a command."""
        key = self._config.api_key
        if key is not None:
            return key.digest
        if self._config.credential_command is not None:
            return Secret(f"command:{self._config.credential_command}").digest
        return Secret(self.raw()).digest

    def use_tokens(self, exchange: Exchange, *, force_command: bool = False) -> None:
        """From now on send tokens made by `exchange` from the credential."""
        if force_command and self._config.credential_command is None:
            key = self._config.api_key
            if key is None or not is_jwt(key.reveal()):
                raise TinkerError("This server wants a credential from TINKER_CREDENTIAL_CMD: set it.")
        self._exchange, self._force_command = exchange, force_command

    def cached(self) -> str | None:
        """The header value if it is at hand and fresh; nothing blocks here."""
        if self._exchange is None:
            needs_command = self._config.credential_command is not None and self._from_command()
            return self._raw.reveal() if self._raw is not None and not needs_command else None
        if self._token is not None and self._expires - self._clock.monotonic() > _REFRESH_EARLY:
            return self._token
        return None

    async def header(self) -> str:
        """The header value, made fresh if need be."""
        known = self.cached()
        if known is not None:
            return known
        if self._exchange is None:
            return await asyncio.to_thread(self.raw)
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            known = self.cached()
            if known is not None:
                return known
            return await self._fresh(self._exchange)

    async def _fresh(self, exchange: Exchange) -> str:
        now = self._clock.monotonic()
        usable = self._token is not None and self._expires - now > _REFRESH_LATEST
        if usable and now < self._no_retry_before:
            assert self._token is not None
            return self._token
        try:
            raw = await asyncio.to_thread(self.raw)
            self._token = await exchange(raw)
        except TinkerError:
            self._no_retry_before = now + _RETRY_REFRESH
            if self._token is None or self._expires <= now:
                raise
            logger.warning("the access token could not be renewed; the old one is used meanwhile")
            return self._token
        expires = claims_of(self._token).get("exp")
        left = float(expires) - self._clock.now().timestamp() if isinstance(expires, (int, float)) else 0.0
        self._expires = self._clock.monotonic() + left
        return self._token
