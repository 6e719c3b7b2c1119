"""The keys a server takes, each with its owner.

A ring looks at its file whenever it is asked: what `tinkex keys` adds or revokes holds from the next
request on.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeAlias

from ..config import Secret
from . import key_file
from .key_file import Entries, Entry, KeyFileError, KeyInfo, KeysError, check_name

__all__ = ["AD_HOC", "KeyFileError", "KeyInfo", "KeyRing", "KeysError", "TokenReader"]

AD_HOC = 0
"""The id of the one key that is given at the start and stands in no file."""

_NOTE_LENGTH = 500
_HINT_LENGTH = 4
_FRESH = 200_000_000
"""Nanoseconds: a file changed so recently may be changed again without its stat showing it."""

_Stat: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Held:
    """What was read last; swapped as a whole, since other threads may be looking."""

    stat: _Stat | None = None
    entries: tuple[Entry, ...] = ()
    known: dict[str, KeyInfo] = field(default_factory=dict)


class TokenReader(Protocol):
    """What reads tokens that stand for keys (`tokens.Tokens`)."""

    def verify(self, token: str, now: float) -> KeyInfo | None:
        """The key a token stands for, or None."""

    def issue(self, key: KeyInfo, seconds: float, now: float) -> str | None:
        """A token for a key, or None if the key is not in use any more."""


class KeyRing:
    """The keys in a file, and perhaps one more that was given at the start."""

    def __init__(
        self,
        path: Path,
        *,
        extra: Secret | None = None,
        extra_owner: str = "local",
        now: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self.now = now
        """The date tokens are read by."""
        self._held = _Held()
        self.tokens: TokenReader | None = None
        """Reads short-lived tokens, where the server gives them."""
        self._extra: Entry | None = None
        if extra is not None:
            if not extra.reveal().startswith("tml-"):
                raise KeysError(
                    "a key must begin with 'tml-': clients refuse others before they ask a server"
                )
            check_name("owner", extra_owner)
            info = KeyInfo(
                AD_HOC, "ad-hoc", extra_owner, "given when the server was started", _hint(extra), now()
            )
            self._extra = Entry(info, extra.digest)

    def __repr__(self) -> str:
        return f"KeyRing({str(self.path)!r})"

    # ---- asking

    def owner_of(self, credential: str) -> KeyInfo | None:
        """Whose key or token this is, or None; a damaged file is an error, except for the ad-hoc key."""
        if self.tokens is not None and credential.startswith("eyJ"):
            return self.tokens.verify(credential, self.now())
        digest = _digest(credential)
        extra = self._extra
        if extra is not None and hmac.compare_digest(extra.digest, digest):
            return extra.info
        held = self._look()
        found = held.known.get(digest)
        if found is not None:
            return found
        for entry in held.entries:
            # No way out of the loop: how long it takes says nothing about where a key stands.
            if hmac.compare_digest(entry.digest, digest) and entry.live:
                found = entry.info
        if found is not None:
            held.known[digest] = found
        return found

    def live(self, key_id: int) -> Entry | None:
        """A key in use and its digest, by its id."""
        if key_id == AD_HOC:
            return self._extra
        entries = (entry for entry in self._look().entries if entry.info.id == key_id)
        return next((entry for entry in entries if entry.live), None)

    def list(self) -> list[KeyInfo]:
        """The keys of the file in the order they were made, the revoked ones too."""
        return [entry.info for entry in self._look().entries]

    @property
    def ad_hoc(self) -> KeyInfo | None:
        """The key given at the start, if one was."""
        return None if self._extra is None else self._extra.info

    # ---- changing

    def add(self, name: str, owner: str, note: str = "") -> tuple[KeyInfo, Secret]:
        """Make a key; it is told this once and never again."""
        check_name("name", name)
        check_name("owner", owner)
        if name.isdecimal():
            raise KeysError(f"name {name!r} could be taken for a key's id; put a letter in it")
        if len(note) > _NOTE_LENGTH or not all(letter.isprintable() for letter in note):
            raise KeysError(f"a note is one line of at most {_NOTE_LENGTH} characters")
        key = Secret("tml-" + secrets.token_urlsafe(24))
        with self._changing() as entries:
            if any(entry.live and entry.info.name == name for entry in entries):
                raise KeysError(f"there is a key named {name!r}; revoke it first or choose another name")
            number = 1 + max((entry.info.id for entry in entries), default=AD_HOC)
            info = KeyInfo(number, name, owner, note, _hint(key), self.now())
            entries.append(Entry(info, key.digest))
        return info, key

    def revoke(self, which: int | str) -> KeyInfo:
        """Revoke a key by its id (`3` or `#3`), name or last characters."""
        with self._changing() as entries:
            found = [entry for entry in entries if entry.live and _is_called(entry.info, which)]
            if not found:
                raise KeysError(
                    f"no key in use has the id, name or hint {which!r}; `tinkex keys list` shows them"
                )
            if len(found) > 1:
                ids = ", ".join(f"#{entry.info.id} ({entry.info.name})" for entry in found)
                raise KeysError(f"{which!r} fits several keys: {ids}; say which by #id")
            return self._strike(entries, found[0])

    def revoke_key(self, credential: str) -> KeyInfo | None:
        """Revoke the key that is given itself, or by its token; None if it is no key in use."""
        info = self.owner_of(credential)
        if info is None:
            return None
        if info.id == AD_HOC:
            raise KeysError("this key was given when the server was started: it ends when the server does")
        with self._changing() as entries:
            for entry in entries:
                if entry.live and entry.info.id == info.id:
                    return self._strike(entries, entry)
        return None

    def ensure_one(self, owner: str = "local") -> tuple[KeyInfo, Secret] | None:
        """Make a first key if there is no way in; None if there is one."""
        if self._extra is not None or any(info.revoked is None for info in self.list()):
            return None
        return self.add("first", owner, "made when the server first started")

    def _strike(self, entries: Entries, entry: Entry) -> KeyInfo:
        info = replace(entry.info, revoked=self.now())
        entries[entries.index(entry)] = replace(entry, info=info)
        return info

    # ---- the file

    def _look(self) -> _Held:
        """What the file says now; it is read only if it is not the one that was read last."""
        held, seen = self._held, self._seen()
        if seen is not None and seen == held.stat:
            return held
        entries = () if seen is None else tuple(key_file.read(self.path))
        # A stat that could stay the same over a change is not remembered: the file is read again next time.
        steady = seen is not None and time.time_ns() - seen[0] > _FRESH
        self._held = held = _Held(seen if steady else None, entries)
        return held

    def _seen(self) -> _Stat | None:
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise KeyFileError(f"{self.path} cannot be read: {problem.strerror}") from None
        return found.st_mtime_ns, found.st_size, found.st_ino

    @contextmanager
    def _changing(self) -> Iterator[Entries]:
        with key_file.change(self.path) as entries:
            yield entries
        self._held = _Held()


def _digest(credential: str) -> str:
    return hashlib.sha256(credential.encode("utf-8", "surrogatepass")).hexdigest()


def _hint(key: Secret) -> str:
    """The last characters, unless they would give away much of a short key."""
    text = key.reveal()
    return text[-_HINT_LENGTH:] if len(text) >= 4 + 3 * _HINT_LENGTH else ""


def _is_called(info: KeyInfo, which: int | str) -> bool:
    if isinstance(which, int):
        return info.id == which
    return bool(which) and which in (str(info.id), f"#{info.id}", info.name, info.hint)
