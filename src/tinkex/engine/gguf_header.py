"""The head of a GGUF file, walked before a library reads it: no length in it may reach past the file's end.

Libraries trust these lengths and go on for as long as they say. Knows where things lie, not what they mean.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from .faults import UserFault

__all__ = ["check_lengths"]

_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of each kind of number."""
_STRING, _ARRAY = 8, 9
_DEEPEST, _MOST_DIMENSIONS = 4, 8
_u32, _u64 = struct.Struct("<I"), struct.Struct("<Q")


def check_lengths(path: Path) -> None:
    """Refuse a file whose head is not one, or states more than the file holds."""
    with path.open("rb") as file:
        if path.stat().st_size < 24:
            raise UserFault(f"{path.name} is no GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _Head(data, path.name).walk()


class _Head:
    def __init__(self, data: mmap.mmap, name: str) -> None:
        self.data, self.name, self.place = data, name, 0

    def walk(self) -> None:
        if self.data[:4] != b"GGUF":
            raise UserFault(f"{self.name} is no GGUF file")
        self.place = 4
        version = self._number(_u32)
        if version not in (2, 3):
            raise UserFault(f"{self.name} has GGUF version {version}; 2 and 3 are read")
        tensors, entries = self._count(24), self._count(12)
        for _ in range(entries):
            self._skip(self._count(1))
            self._value(self._number(_u32), 0)
        for _ in range(tensors):
            self._skip(self._count(1))
            dimensions = self._number(_u32)
            if dimensions > _MOST_DIMENSIONS:
                raise UserFault(f"{self.name} is damaged: a tensor has {dimensions} dimensions")
            self._skip(8 * dimensions + 12)

    def _value(self, kind: int, depth: int) -> None:
        if kind in _SCALARS:
            self._skip(_SCALARS[kind])
        elif kind == _STRING:
            self._skip(self._count(1))
        elif kind == _ARRAY and depth < _DEEPEST:
            inner = self._number(_u32)
            if inner in _SCALARS:
                self._skip(self._count(_SCALARS[inner]) * _SCALARS[inner])
                return
            for _ in range(self._count(8)):
                self._value(inner, depth + 1)
        else:
            raise UserFault(f"{self.name} is damaged: it has a value of unknown kind {kind}")

    def _number(self, form: struct.Struct) -> int:
        start = self.place
        self._skip(form.size)
        number: int = form.unpack_from(self.data, start)[0]
        return number

    def _count(self, size: int) -> int:
        """How many things of at least so many bytes come next."""
        count = self._number(_u64)
        if count * size > len(self.data) - self.place:
            raise self._cut()
        return count

    def _skip(self, size: int) -> None:
        self.place += size
        if self.place > len(self.data):
            raise self._cut()

    def _cut(self) -> UserFault:
        return UserFault(f"{self.name} is damaged or cut off: it states more than it holds")
