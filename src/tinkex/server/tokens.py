"""Short-lived tokens that stand for a key (`--jwt`): JSON web tokens signed with HMAC-SHA256.

Each key signs with a secret of its own, derived from the server's and the key's digest: a token ends with
its key, and another key under the same id cannot bring it back.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from pathlib import Path
from typing import Any

from .key_file import KeyFileError, KeyInfo, write_private
from .keys import KeyRing

__all__ = ["Tokens"]

_LONGEST = 4096
_SECRET_BYTES = 32


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


_HEAD = _base64(b'{"alg":"HS256","typ":"JWT"}')
"""The only head a token may have, to the letter: there is no algorithm to choose."""


class Tokens:
    """Issues tokens and takes them back; its secret lies in the state folder, for its owner alone."""

    def __init__(self, path: Path, keys: KeyRing) -> None:
        self._keys = keys
        self._secret = _secret(path)

    def __repr__(self) -> str:
        return "Tokens(****)"

    def issue(self, key: KeyInfo, seconds: float, now: float) -> str | None:
        """A token for a key, good for so long; None if the key is not in use any more."""
        found = self._keys.live(key.id)
        if found is None:
            return None
        info, digest = found.info, found.digest
        claims = {
            "iss": "tinkex",
            "sub": f"tml:user:{info.owner}",
            "org_id": info.owner,
            "email": "",
            "iat": int(now),
            "exp": int(now + seconds),
            "jti": secrets.token_hex(8),
            "key": info.id,
        }
        signed = f"{_HEAD}.{_base64(json.dumps(claims, separators=(',', ':')).encode())}"
        return f"{signed}.{_base64(self._sign(digest, signed))}"

    def verify(self, token: str, now: float) -> KeyInfo | None:
        """The key a token stands for; None if it is not ours, was changed, is over, or its key is gone."""
        head, _, rest = token.partition(".")
        payload, _, signature = rest.partition(".")
        if len(token) > _LONGEST or head != _HEAD or not token.isascii():
            return None
        claims = _claims(payload)
        number, ends = claims.get("key"), claims.get("exp")
        if type(number) is not int or type(ends) is not int:
            return None
        found = self._keys.live(number)
        if found is None:
            return None
        info, digest = found.info, found.digest
        right = _base64(self._sign(digest, f"{head}.{payload}"))
        if not hmac.compare_digest(right, signature) or now >= ends:
            return None
        return info

    def _sign(self, digest: str, signed: str) -> bytes:
        key = hmac.digest(self._secret, digest.encode(), hashlib.sha256)
        return hmac.digest(key, signed.encode(), hashlib.sha256)


def _claims(payload: str) -> dict[str, Any]:
    try:
        claims = json.loads(
            base64.b64decode(payload + "=" * (-len(payload) % 4), altchars=b"-_", validate=True)
        )
    except (binascii.Error, ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _secret(path: Path) -> bytes:
    """The secret of a state folder, made when there is none."""
    if not path.exists():
        write_private(path, secrets.token_hex(_SECRET_BYTES))
    try:
        found = bytes.fromhex(path.read_text().strip())
    except (OSError, ValueError):
        found = b""
    if len(found) != _SECRET_BYTES:
        raise KeyFileError(f"{path} is damaged; remove it: clients then ask for new tokens by themselves")
    return found
