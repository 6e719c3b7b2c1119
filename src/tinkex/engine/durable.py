"""Files and folders that a power cut does not take back.

A file's sync keeps its bytes and not its name: that is kept by a sync of the folder it is in.
"""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Return when a file's bytes, or a folder's names, are on the disk."""
    if os.name == "nt" and path.is_dir():  # folders cannot be synced there, and need not be
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_all(folder: Path) -> None:
    """Sync a folder and everything below it."""
    for path in [*folder.rglob("*"), folder]:
        sync(path)


def make_folders(folder: Path, mode: int = 0o777) -> None:
    """Make a folder and those above it, where they are not there; the disk has their names."""
    missing = []
    above = folder
    while not above.is_dir():
        missing.append(above)
        above = above.parent
    for each in reversed(missing):
        each.mkdir(mode=mode, exist_ok=True)
        sync(each.parent)
