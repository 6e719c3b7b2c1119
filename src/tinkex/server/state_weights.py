"""Weights looked at without loading them: is a safetensors file whole, and are its numbers those saved?"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import IO, Any

__all__ = ["wrong_weights"]

_LONGEST_HEADER = 100 << 20
_PIECE = 1 << 20
_ABOUT = "__metadata__"
_CHECKSUM = "checksum"
_DTYPES = {
    "F64": "torch.float64",
    "F32": "torch.float32",
    "F16": "torch.float16",
    "BF16": "torch.bfloat16",
    "I64": "torch.int64",
    "I32": "torch.int32",
}
"""What the engine, which makes the checksum, calls them."""


def wrong_weights(path: Path, *, quick: bool = False) -> str:
    """What is wrong with a file of weights; nothing: all is well. Quickly, its numbers are not read."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        whole = os.fstat(file.fileno()).st_size
        if not 2 <= length <= min(_LONGEST_HEADER, whole - 8):
            return "the file is cut off"
        try:
            header = json.loads(file.read(length))
            facts = header.pop(_ABOUT, {})
            places = {name: _place(tensor) for name, tensor in header.items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return "the file's header cannot be read"
        start = 8 + length
        right = start + max((end for _, end in places.values()), default=0)
        if whole != right:
            return f"the file has {whole} bytes, its header says {right}"
        told = facts.get(_CHECKSUM)
        if quick or told is None or any(tensor["dtype"] not in _DTYPES for tensor in header.values()):
            return ""
        found = zlib.crc32(_said({name: each for name, each in facts.items() if name != _CHECKSUM}))
        for name, tensor in sorted(header.items()):
            about = f"{name} {_DTYPES[tensor['dtype']]} {tensor['shape']}"
            begin, end = places[name]
            found = _crc(file, start + begin, end - begin, zlib.crc32(about.encode(), found))
    return "" if f"{found:08x}" == told else "its numbers are not those that were saved"


def _place(tensor: Any) -> tuple[int, int]:
    begin, end = tensor["data_offsets"]
    if not (isinstance(begin, int) and isinstance(end, int) and 0 <= begin <= end):
        raise ValueError("offsets that cannot be")
    if not (isinstance(tensor["dtype"], str) and isinstance(tensor["shape"], list)):
        raise ValueError("a tensor without a form")
    return begin, end


def _said(facts: Any) -> bytes:
    return json.dumps(facts, sort_keys=True).encode()


def _crc(file: IO[bytes], start: int, length: int, found: int) -> int:
    file.seek(start)
    while length:
        piece = file.read(min(length, _PIECE))
        if not piece:
            break
        length -= len(piece)
        found = zlib.crc32(piece, found)
    return found
