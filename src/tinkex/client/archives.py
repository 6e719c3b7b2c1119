"""File names and archives from a server, taken with care: nothing lands outside its folder."""

from __future__ import annotations

import unicodedata
from pathlib import Path, PureWindowsPath
from typing import IO, cast

from ..errors import DownloadError
from ..types.rules import shown

__all__ = ["OWN_PREFIX", "SafeNames", "unpack"]

OWN_PREFIX = ".tinkex-"  # names a download keeps for itself
_MOST_FILES = 100_000
_LONGEST_NAME = 1024
_MOST_ENTRIES = 2 * _MOST_FILES  # folders too
_BLOCK = 2**20
_LARGEST_READ = 2**24  # nothing in an archive but the files themselves is as large
_RATIO, _AT_LEAST = 200, 2**26  # weights hardly get smaller: what unpacks to so much more is a bomb


class SafeNames:
    """Checks relative file names one by one: each must stay in its folder and be the only one there."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def file(self, name: object) -> str:
        """The name of a file in its simplest spelling, or a refusal."""
        parts = _parts(name)
        own = _folded("/".join(parts))
        above = {_folded("/".join(parts[:depth])) for depth in range(1, len(parts))}
        if own in self._files or own in self._folders or above & self._files:
            raise DownloadError(f"the checkpoint has two files at {shown(name)}")
        if len(self._files) >= _MOST_FILES:
            raise DownloadError(f"the checkpoint has more than {_MOST_FILES} files")
        self._files.add(own)
        self._folders |= above
        return "/".join(parts)


def _parts(name: object) -> list[str]:
    if not isinstance(name, str) or not name or len(name) > _LONGEST_NAME:
        raise DownloadError(f"unsafe file name in the checkpoint: {shown(name)}")
    parts = [part for part in name.split("/") if part != "."]
    windows = PureWindowsPath(name)
    if (
        not parts
        or any(part in ("", "..") for part in parts)
        or parts[0].startswith(OWN_PREFIX)
        or windows.drive
        or "\\" in name
        or any(unicodedata.category(letter) == "Cc" for letter in name)
    ):
        raise DownloadError(f"unsafe file name in the checkpoint: {shown(name)}")
    return parts


def _folded(name: str) -> str:
    # Some file systems take these for the same name.
    return unicodedata.normalize("NFC", name).casefold()


def unpack(archive: Path, folder: Path, limit: int) -> dict[str, int]:
    """Unpack a tar archive, compressed or not, into a folder; returns names and sizes.

    Links and devices, names that leave the folder or come twice, and more than `limit` bytes are
    refused.  Owners and permissions in the archive are ignored.
    """
    import gzip
    import lzma
    import tarfile
    import zlib

    damages = (
        tarfile.TarError,
        EOFError,
        zlib.error,
        lzma.LZMAError,
        gzip.BadGzipFile,
        ValueError,
        OverflowError,
    )
    names, sizes, entries = SafeNames(), {}, 0
    most = min(limit, _RATIO * archive.stat().st_size + _AT_LEAST)
    left = most
    try:
        with _opened(archive) as stream:
            bounded = cast("IO[bytes]", _Bounded(stream, most))
            tar = tarfile.open(fileobj=bounded, mode="r:")  # noqa: SIM115 - the stream is closed
            for member in tar:
                entries += 1
                if entries > _MOST_ENTRIES:
                    raise DownloadError(f"the archive has more than {_MOST_ENTRIES} entries")
                if member.isdir():
                    if member.name not in (".", "./"):
                        _parts(member.name.rstrip("/"))
                    continue
                if not member.isreg():
                    raise DownloadError(f"the archive has a link or device: {shown(member.name)}")
                name = names.file(member.name)
                left -= member.size
                if left < 0:
                    raise DownloadError(f"the archive unpacks to more than {most} bytes")
                source = tar.extractfile(member)
                assert source is not None
                sizes[name] = _copy(source, folder / name, member.size)
    except damages as problem:
        raise DownloadError(f"the archive is damaged: {problem}") from None
    if not sizes:
        raise DownloadError("the archive is empty")
    return sizes


class _Bounded:
    """What tarfile reads from: so many bytes and their headers at most, and never many at once.

    It would read a header of any size it is told into memory.
    """

    def __init__(self, stream: IO[bytes], most: int) -> None:
        self._stream, self._most = stream, most + _MOST_ENTRIES * 2048

    def read(self, size: int) -> bytes:
        """The next bytes."""
        if not 0 <= size <= _LARGEST_READ:
            raise DownloadError("the archive has a header too large to be one")
        return self._checked(self._stream.read(size))

    def seek(self, place: int) -> int:
        """Go somewhere, backwards or forwards."""
        if not 0 <= place <= self._most:
            raise DownloadError(f"the archive unpacks to more than {self._most} bytes")
        return self._stream.seek(place)

    def tell(self) -> int:
        """Where it is."""
        return self._stream.tell()

    def _checked(self, data: bytes) -> bytes:
        if self._stream.tell() > self._most:
            raise DownloadError(f"the archive unpacks to more than {self._most} bytes")
        return data


def _opened(archive: Path) -> IO[bytes]:
    """The archive's bytes, unpacked as they are read."""
    with archive.open("rb") as file:
        begins = file.read(6)
    if begins.startswith(b"\x1f\x8b"):
        import gzip

        return cast("IO[bytes]", gzip.open(archive, "rb"))
    if begins.startswith(b"BZh"):
        import bz2

        return bz2.open(archive, "rb")
    if begins == b"\xfd7zXZ\x00":
        import lzma

        return lzma.open(archive, "rb")
    return archive.open("rb")


def _copy(source: IO[bytes], target: Path, size: int) -> int:
    target.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with target.open("xb") as file:
        while block := source.read(_BLOCK):
            written += file.write(block)
    if written != size:
        raise DownloadError(f"the archive ends within {target.name}")
    return written
