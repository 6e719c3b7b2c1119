"""Writing safetensors files, with the disk's own word on why that failed."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from .faults import EngineFault

DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG})
"""What a full, failing or locked disk says; all of them may pass."""
_NUMBER = re.compile(r"(?:os error |code: )(\d+)")


class DiskFault(EngineFault):
    """The disk could not be written; the same may succeed later, and nothing was left behind."""

    category = "disk"


def write_tensors(path: Path, tensors: dict[str, torch.Tensor], facts: dict[str, str]) -> None:
    """Write a file; what stood in the way is an OSError."""
    try:
        save_file(tensors, path, metadata=facts)
    except SafetensorError as problem:
        # The library is written in another language and tells the system's error in words alone.
        found = _NUMBER.search(str(problem))
        if found is None:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number), str(path)) from None


def in_words(error: BaseException) -> EngineFault | None:
    """A failure that the disk is at fault for; None: it is not."""
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        return DiskFault(f"the server's disk cannot be written: {error.strerror}")
    return None
