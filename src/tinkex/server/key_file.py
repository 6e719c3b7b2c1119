"""The file of keys: what stands in it, how it is checked, and how it is changed by one writer at a time."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ..engine.durable import make_folders, sync
from ..errors import TinkerError

__all__ = [
    "Entries",
    "Entry",
    "KeyFileError",
    "KeyInfo",
    "KeysError",
    "change",
    "check_name",
    "read",
    "write_private",
]

_NAME = re.compile(r"[A-Za-z0-9._@+-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MEND = "mend it, or remove it and make new keys with `tinkex keys add`"


class KeysError(TinkerError):
    """Something that cannot be done with the keys; the text says why and never holds a key."""


class KeyFileError(KeysError):
    """The key file cannot be read; nobody is let in by it until it is mended."""


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """What may be shown of a key."""

    id: int
    name: str
    owner: str
    note: str = ""
    hint: str = ""
    """Its last characters."""
    created: float = 0.0
    revoked: float | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """A key as the file has it."""

    info: KeyInfo
    digest: str
    """SHA-256 of the key, in hexadecimal."""

    @property
    def live(self) -> bool:
        """Whether the key has not been revoked."""
        return self.info.revoked is None


Entries: TypeAlias = list[Entry]


def check_name(what: str, name: str) -> None:
    """Refuse what is no name of a key or owner."""
    if not _NAME.fullmatch(name):
        raise KeysError(f"{what} {name!r}: 1 to 64 of the letters a-z A-Z 0-9 . _ @ + - are allowed")


def read(path: Path) -> Entries:
    """The keys of a file, none if there is no file; a `KeyFileError` if it is not as it must be."""
    try:
        with path.open("rb") as file:
            if os.name == "posix" and os.fstat(file.fileno()).st_mode & 0o022:
                raise KeyFileError(f"{path} may be written by others; run chmod 600 on it")
            data = json.loads(file.read())
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise KeyFileError(f"{path} cannot be read: {problem.strerror}") from None
    except (ValueError, RecursionError):
        raise KeyFileError(f"{path} is damaged: it is not JSON; {_MEND}") from None
    try:
        return _entries(data)
    except ValueError as problem:
        raise KeyFileError(f"{path} is damaged: {problem}; {_MEND}") from None


@contextmanager
def change(path: Path) -> Iterator[Entries]:
    """The keys of a file, to be changed; they are written when the block ends well."""
    make_folders(path.parent, 0o700)
    with _locked(path.with_suffix(".lock")):
        entries = read(path)
        yield entries
        data = {"version": 1, "keys": [_written(entry) for entry in entries]}
        write_private(path, json.dumps(data, indent=1))


def write_private(path: Path, text: str) -> None:
    """Put a file in place whole or not at all, readable by its owner alone."""
    # Written beside the file, for its owner alone as mkstemp does, then moved over it.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
        sync(path.parent)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


# ---- what stands in it

_KINDS: Mapping[str, tuple[type, ...]] = {
    "id": (int,),
    "name": (str,),
    "owner": (str,),
    "note": (str,),
    "digest": (str,),
    "hint": (str,),
    "created": (int, float),
    "revoked": (int, float, type(None)),
}


def _written(entry: Entry) -> dict[str, Any]:
    return {name: entry.digest if name == "digest" else getattr(entry.info, name) for name in _KINDS}


def _entries(data: Any) -> Entries:
    """The entries of a parsed file; a ValueError says what is wrong with it and quotes nothing of it."""
    if not isinstance(data, dict) or data.get("version") != 1 or not isinstance(data.get("keys"), list):
        raise ValueError('it is not {"version": 1, "keys": [...]}')
    entries = [_entry(number, each) for number, each in enumerate(data["keys"], 1)]
    if len({entry.info.id for entry in entries}) < len(entries):
        raise ValueError("two keys have the same id")
    return entries


def _entry(number: int, each: Any) -> Entry:
    if not isinstance(each, dict):
        raise ValueError(f"key number {number} is not an object")
    for name, kinds in _KINDS.items():
        # `revoked` must be there: a key does not come back because a line was lost.
        if name not in each or not isinstance(each[name], kinds) or isinstance(each[name], bool):
            raise ValueError(f"key number {number} has no proper {name!r}")
    if each["id"] < 1 or not _DIGEST.fullmatch(each["digest"]) or not _NAME.fullmatch(each["owner"]):
        raise ValueError(f"key number {number} has an id, digest or owner that cannot be")
    return Entry(KeyInfo(**{name: each[name] for name in _KINDS if name != "digest"}), each["digest"])


# ---- one writer at a time

if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> None:
        while True:
            try:
                msvcrt.locking(handle, msvcrt.LK_LOCK, 1)
                return
            except OSError:  # it gives up after ten seconds
                continue

else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        _lock(handle)
        yield
    finally:
        os.close(handle)
