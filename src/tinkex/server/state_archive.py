"""State folders as archives: a tar file, or a folder, whose last entry lists all others with their digests.

Whoever made an archive is not trusted with anything but what is in it: names, kinds, numbers and sizes are
checked before a byte is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Protocol, TypeAlias

import msgspec

from ..errors import TinkerError

__all__ = ["LIST", "BadArchive", "Contents", "Listed", "members", "pack", "tar_named"]

LIST = "tinkex-state.json"
"""The entry that lists the others; an archive without it was cut off."""
FORMAT = 1
MOST_FILES = 200_000
_LONGEST_LIST = 64 << 20
_LONGEST_NAME_RECORD = 64 << 10
_PIECE = 1 << 20
_PART = r"(?!\.\.?(?:/|$))[A-Za-z0-9_.%-]{1,220}"
_NAMES = re.compile(
    rf"keys\.json|samples\.log|store/store\.db|store/bodies/{_PART}|checkpoints/{_PART}/{_PART}/{_PART}(/{_PART}){{1,3}}"
    rf"|snapshots/{_PART}/[0-9]{{1,19}}/{_PART}|engine/{_PART}/sampler/{_PART}/{_PART}"
)


Found: TypeAlias = Generator[tuple[str, int, Callable[[], IO[bytes]]], None, None]


class Readable(Protocol):
    """Something bytes are read from."""

    def read(self, size: int = -1, /) -> bytes:
        """So many bytes, or all."""


class BadArchive(TinkerError):
    """This is no archive of a state folder, or it was damaged or made up."""


class Listed(msgspec.Struct, forbid_unknown_fields=True):
    """A file as the list has it."""

    size: int
    sha256: str


class Contents(msgspec.Struct, forbid_unknown_fields=True):
    """The list."""

    format: int
    tinkex: str
    made: str
    files: dict[str, Listed]


def tar_named(path: Path) -> bool:
    """Whether an archive of this name is a tar file; others are folders."""
    return path.suffix == ".tar"


# ---- writing


class _Hashed(io.RawIOBase):
    """A file that is hashed as it is read."""

    def __init__(self, file: Readable) -> None:
        self._file, self.digest, self.size = file, hashlib.sha256(), 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.digest.update(data)
        self.size += len(data)
        return data

    @property
    def listed(self) -> Listed:
        return Listed(self.size, self.digest.hexdigest())


def pack(source: Path, names: Iterable[str], target: Path, version: str, made: str) -> Contents:
    """Write files of a folder as an archive, in place whole or not at all, for its owner alone."""
    aside = target.with_name(f".{target.name}.{os.getpid()}.part")
    contents = Contents(FORMAT, version, made, {})
    try:
        if tar_named(target):
            with open(aside, "xb", opener=_private) as file:
                with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                    _write(source, names, contents, lambda name, size, data: _to_tar(tar, name, size, data))
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                raise FileExistsError(17, "it exists", str(target))
        else:
            aside.mkdir(mode=0o700)
            _write(source, names, contents, lambda name, size, data: put_file(aside, name, data, sync=True))
        aside.rename(target)
    except BaseException:
        if aside.is_dir():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.unlink(missing_ok=True)
        raise
    return contents


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _write(
    source: Path, names: Iterable[str], contents: Contents, add: Callable[[str, int, Any], object]
) -> None:
    for name in sorted(names):
        with (source / name).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            hashed = _Hashed(file)
            add(name, size, hashed)
        contents.files[name] = hashed.listed
    text = msgspec.json.encode(contents)
    add(LIST, len(text), io.BytesIO(text))


def _to_tar(tar: tarfile.TarFile, name: str, size: int, data: IO[bytes]) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o600
    tar.addfile(entry, data)


def put_file(folder: Path, name: str, data: Readable, *, sync: bool = False) -> Listed:
    """Write one file below a folder, for its owner alone; its size and digest."""
    place = folder / name
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    hashed = _Hashed(data)
    with open(place, "xb", opener=_private) as file:
        shutil.copyfileobj(hashed, file, _PIECE)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    return hashed.listed


# ---- reading


class _Content:
    """A file of an archive; that it ends too early is the archive's fault."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        try:
            return self._file.read(size)
        except (tarfile.TarError, EOFError) as problem:
            raise BadArchive(f"the archive was cut off: {problem}") from None


class _Entry(tarfile.TarInfo):
    """An entry of a tar file: plain files, and the records that hold long names, are all there may be."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str | None, errors: str) -> Any:
        entry = super().frombuf(buf, encoding, errors)  # type: ignore[arg-type]
        record = entry.type == tarfile.XHDTYPE
        if not record and entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise BadArchive(f"{entry.name!r} in the archive is no plain file")
        if entry.size < 0 or (record and entry.size > _LONGEST_NAME_RECORD):
            raise BadArchive(f"{entry.name!r} in the archive cannot have {entry.size} bytes")
        return entry


def members(archive: Path, most_bytes: int) -> Iterator[tuple[str, Readable]]:
    """Names and contents of an archive's files in turn; the list comes last.

    Raises BadArchive at the first thing that no archive of ours has; `most_bytes` bounds all of it.
    """
    seen: set[str] = set()
    left = most_bytes
    found = _in_tar(archive) if archive.is_file() else _in_folder(archive)
    with contextlib.closing(found):
        for name, size, open_file in found:
            if LIST in seen:
                raise BadArchive("the archive goes on after its list")
            if name != LIST and not _NAMES.fullmatch(name):
                raise BadArchive(f"{name!r} is no file of a state folder")
            if name.casefold() in seen:
                raise BadArchive(f"{name!r} is in the archive twice")
            seen.add(name.casefold())
            left -= size
            if left < 0 or len(seen) > MOST_FILES + 1:
                raise BadArchive(f"the archive is larger than {most_bytes} bytes or {MOST_FILES} files")
            if name == LIST and size > _LONGEST_LIST:
                raise BadArchive("the archive's list is too long")
            with open_file() as file:
                yield name, _Content(file)
    if LIST not in seen:
        raise BadArchive("the archive has no list of its files: it was cut off, or is none of ours")


def read_list(file: Readable) -> Contents:
    """The list of an archive's files."""
    try:
        contents = msgspec.json.decode(file.read(_LONGEST_LIST), type=Contents)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise BadArchive(f"the archive's list cannot be read: {problem}") from None
    if contents.format != FORMAT:
        raise BadArchive(f"the archive has format {contents.format}, this version reads {FORMAT}")
    return contents


def _in_tar(archive: Path) -> Found:
    try:
        with tarfile.open(archive, "r:", tarinfo=_Entry) as tar:
            while (entry := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # else all are remembered
                if not entry.isreg() or entry.issparse() or entry.size < 0:
                    raise BadArchive(f"{entry.name!r} in the archive is no plain file")
                yield entry.name, entry.size, lambda entry=entry: _content(tar, entry)  # type: ignore[misc]
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as problem:
        raise BadArchive(f"the archive cannot be read: {problem}") from None


def _content(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    file = tar.extractfile(entry)
    assert file is not None
    return file


def _in_folder(archive: Path) -> Found:
    folders, last = [""], None
    while folders:
        folder = folders.pop()
        for entry in sorted(os.scandir(archive / folder), key=lambda each: each.name):
            name = f"{folder}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                folders.append(f"{name}/")
            elif not entry.is_file(follow_symlinks=False):
                raise BadArchive(f"{name!r} in the archive is no plain file")
            else:
                found = name, entry.stat(follow_symlinks=False).st_size, _opener(archive / name)
                if name == LIST:
                    last = found
                else:
                    yield found
    if last is not None:
        yield last


def _opener(path: Path) -> Callable[[], IO[bytes]]:
    def follow_no_link(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0))

    return lambda: open(path, "rb", opener=follow_no_link)
