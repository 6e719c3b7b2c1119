"""Who is asking: API keys, and the short-lived tokens they are traded for."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

__all__ = ["Identity"]

_SECRET = b"a fake service has nothing to hide"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Identity:
    """The keys a service knows; without a list every key is welcome and owns what it makes."""

    def __init__(self, api_keys: Mapping[str, str] | Iterable[str] | None, seconds: float) -> None:
        if api_keys is None or isinstance(api_keys, Mapping):
            self.keys = None if api_keys is None else dict(api_keys)
        else:
            self.keys = {key: _owner(key) for key in api_keys}
        self.seconds = seconds
        self.revoked: set[str] = set()
        self._known: dict[str, str] = {}
        self._serial = itertools.count(1)

    def owner_of(self, credential: str, now: float) -> str | None:
        """The owner a key or token stands for, or None if it is no good."""
        if not credential or credential in self.revoked:
            return None
        if credential.startswith("eyJ"):
            claims = self.read(credential)
            return claims["sub"] if claims is not None and claims["exp"] > now else None
        if self.keys is not None:
            return self.keys.get(credential)
        known = self._known.get(credential)
        if known is None:
            known = self._known[credential] = _owner(credential)
        return known

    def issue(self, owner: str, now: float) -> str:
        """A signed token for an owner, good for `seconds` from now."""
        claims = {
            "iss": "passport-fake",
            "sub": owner,
            "org_id": "fake-org",
            "email": f"{owner}@example.com",
            "iat": int(now),
            "exp": int(now + self.seconds),
            "jti": str(next(self._serial)),
        }
        head = _base64(b'{"alg":"HS256","typ":"JWT"}')
        signed = f"{head}.{_base64(msgspec.json.encode(claims))}"
        return f"{signed}.{_signature(signed)}"

    def read(self, token: str) -> dict[str, Any] | None:
        """The claims of a token this service issued, or None."""
        signed, _, signature = token.rpartition(".")
        if not hmac.compare_digest(signature, _signature(signed)):
            return None
        payload = signed.partition(".")[2]
        try:
            claims = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        except (binascii.Error, msgspec.DecodeError):
            return None
        return claims if isinstance(claims, dict) else None


def _owner(key: str) -> str:
    return f"user-{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def _signature(signed: str) -> str:
    return _base64(hmac.new(_SECRET, signed.encode(), hashlib.sha256).digest())
