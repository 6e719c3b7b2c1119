"""The credential of each request: a key as it is, or a token made from it and kept fresh."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from ..config import Config, Secret
from ..errors import TinkerError
from .clock import Clock
from .credentials import CredentialStore, find_credential, is_jwt, run_command

__all__ = ["Auth", "claims_of"]

logger: Final = logging.getLogger(__name__)

_REFRESH_EARLY = 300.0
_REFRESH_LATEST = 60.0
_RETRY_REFRESH = 60.0
_UNTOLD_LIFE = 600.0  # of a token that does not say when it ends
_COMMAND_KEPT = 30.0  # how long what a command printed is sent as it is
_LAST_MOMENT = 1e12  # far beyond the year 9999

Exchange = Callable[[str], Awaitable[str]]


def claims_of(token: str) -> dict[str, Any]:
    """The claims inside a JWT, unverified; empty if it cannot be read."""
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (IndexError, ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


class Auth:
    """Gives each request its credential; belongs to one event loop.

    Until `use_tokens` is called the credential goes out as it is.  Afterwards it is exchanged for a
    token: at first use, and again in the background five minutes before the token ends.  One exchange,
    and one run of a credential command, is under way at a time.
    """

    def __init__(self, config: Config, clock: Clock, store: CredentialStore | None = None) -> None:
        self._config, self._clock, self._store = config, clock, store
        self._raw: Secret | None = None
        self._raw_until = float("inf")
        self._exchange: Exchange | None = None
        self._force_command = False
        self._token: Secret | None = None
        self._expires = 0.0
        self._life = 0.0
        self._no_retry_before = 0.0
        self._under_way: dict[str, asyncio.Task[str]] = {}

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
        now = self._clock.monotonic()
        if self._exchange is None:
            return self._raw.reveal() if self._raw is not None and now < self._raw_until else None
        # A token that lives for minutes only is renewed in its last quarter.
        early = min(_REFRESH_EARLY, self._life / 4)
        return self._token.reveal() if self._token is not None and self._expires - now > early else None

    async def header(self) -> str:
        """The header value, made fresh if need be."""
        known = self.cached()
        if known is not None:
            return known
        if self._exchange is None:
            return await asyncio.shield(self._once("raw", self._find))
        now = self._clock.monotonic()
        latest = min(_REFRESH_LATEST, self._life / 8)
        if self._token is not None and self._expires - now > latest:
            if now >= self._no_retry_before:
                self._once("token", self._renew)  # nobody waits for it while the old one is good
            return self._token.reveal()
        return await asyncio.shield(self._once("token", self._renew))

    def _once(self, name: str, work: Callable[[], Coroutine[Any, Any, str]]) -> asyncio.Task[str]:
        """The task that does this now, started if there is none."""
        task = self._under_way.get(name)
        if task is None or task.done():
            task = self._under_way[name] = asyncio.get_running_loop().create_task(work())
            task.add_done_callback(_seen)
        return task

    async def _find(self) -> str:
        if self._config.credential_command is not None and self._from_command():
            try:
                raw = await _off_the_loop(self.raw)
            except RuntimeError:  # the interpreter is ending, and starts neither threads nor commands
                if self._raw is None:
                    raise
                return self._raw.reveal()
            self._raw, self._raw_until = Secret(raw), self._clock.monotonic() + _COMMAND_KEPT
            return raw
        # A key at hand needs no thread, nor one that was read from the login file before.
        at_hand = self._raw is not None or self._config.api_key is not None
        return self.raw() if at_hand else await _off_the_loop(self.raw)

    async def _renew(self) -> str:
        exchange = self._exchange
        assert exchange is not None
        try:
            token = await exchange(await self._find())
        except Exception:
            now = self._clock.monotonic()
            self._no_retry_before = now + _RETRY_REFRESH
            if self._token is None or self._expires <= now:
                raise
            logger.warning("the access token could not be renewed; the old one is used meanwhile")
            return self._token.reveal()
        self._token, self._life = Secret(token), _life_of(token, self._clock.now().timestamp())
        self._expires = self._clock.monotonic() + self._life
        return token


def _life_of(token: str, now: float) -> float:
    """The seconds a new token is good for."""
    claims = claims_of(token)
    begins, ends = _moment(claims.get("iat")), _moment(claims.get("exp"))
    if ends is None:
        return _UNTOLD_LIFE
    if ends > now:
        return ends - now
    # A new token that is over already: this machine's clock is ahead of the server's.
    return max(ends - begins, 0.0) if begins is not None else _UNTOLD_LIFE


def _moment(value: Any) -> float | None:
    """Seconds since 1970, if it can be that."""
    return float(value) if isinstance(value, (int, float)) and abs(value) < _LAST_MOMENT else None


def _seen(task: asyncio.Task[str]) -> None:
    if not task.cancelled():
        task.exception()  # whoever waits is told; a background renewal may have nobody


async def _off_the_loop(function: Callable[[], str]) -> str:
    """Call something that may block, in a thread that does not hold up the interpreter's exit."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[str] = loop.create_future()

    def settle(result: str, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def work() -> None:
        result, error = "", None
        try:
            result = function()
        except Exception as problem:
            error = problem
        with contextlib.suppress(RuntimeError):  # the loop is gone, and whoever waited with it
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name="tinkex-credential", daemon=True).start()
    return await done
