"""Download addresses that work for a while without a key: signed, and bound to one file.

They are built from the address the server was told it has, never from what a request says.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from .problems import Problem

__all__ = ["DOWNLOAD_SECRET", "PAGE", "SignedUrls"]

PAGE = "files"
"""The first segment of every download address."""
DOWNLOAD_SECRET = "download-secret"  # noqa: S105 - the name of a file
_SECRET_BYTES = 32


class SignedUrls:
    """Signs addresses and takes them back; the secret lies in the state folder, for its owner alone."""

    def __init__(self, state: Path, url: str, seconds: float, now: Callable[[], float]) -> None:
        self._path, self._url = state / DOWNLOAD_SECRET, url
        self._seconds, self._now = seconds, now
        self._secret = b""

    def __repr__(self) -> str:
        return "SignedUrls(****)"

    def sign(self, folder: str, name: str) -> tuple[str, float]:
        """An address for a file of a folder below the state folder, and when it stops working."""
        expires = int(self._now() + self._seconds)
        token = f"{expires:x}.{_base64(folder.encode())}.{_base64(self._mark(folder, name, expires))}"
        return f"{self._url}/{PAGE}/{token}/{quote(name)}", float(expires)

    def folder_of(self, token: str, name: str) -> str:
        """The folder a token is for, if it was signed for this name and still holds."""
        when, _, rest = token.partition(".")
        where, _, mark = rest.partition(".")
        try:
            expires, folder = int(when, 16), _unbase64(where).decode()
            right = hmac.compare_digest(self._mark(folder, name, expires), _unbase64(mark))
        except (ValueError, OverflowError):
            right = False
        if not right:
            raise Problem(403, "this download address was not made here, or was changed")
        if self._now() >= expires:
            raise Problem(410, "this download address has expired; ask for a new one")
        return folder

    def _mark(self, folder: str, name: str, expires: int) -> bytes:
        signed = b"\0".join((folder.encode(), name.encode("utf-8", "surrogatepass"), b"%d" % expires))
        return hmac.digest(self._key(), signed, hashlib.sha256)

    def _key(self) -> bytes:
        if not self._secret:
            self._secret = _make_or_read(self._path)
        return self._secret


def _make_or_read(path: Path) -> bytes:
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        found = path.read_bytes()
        if len(found) == _SECRET_BYTES:
            return found
        path.unlink()  # cut short by a crash; addresses given out before no longer work
        return _make_or_read(path)
    with os.fdopen(file, "wb") as opened:
        made = secrets.token_bytes(_SECRET_BYTES)
        opened.write(made)
        opened.flush()
        os.fsync(opened.fileno())
    return made


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unbase64(text: str) -> bytes:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as problem:
        raise ValueError(str(problem)) from None
    if _base64(data) != text:  # the last letter has bits that mean nothing
        raise ValueError("not as it was written")
    return data
