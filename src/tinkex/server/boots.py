"""Whether the machine has gone down since a server last worked on a state folder.

A note in the folder says in which run of the machine its server works; a server that is stopped takes it
away. One left by a server of another run, which did not wait for the disk, means that the last things its
clients were told may be gone. It stays until a server is stopped: the next may be killed before anybody
has noticed what is missing.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from ..engine.durable import sync
from .key_file import write_private
from .options import Durability

BOOT = "boot"
_ID = Path("/proc/sys/kernel/random/boot_id")


def this_boot() -> str:
    """What Linux calls this run of the machine; elsewhere nothing, which is the same in every run."""
    try:
        return _ID.read_text().strip()
    except OSError:
        return ""


def note_boot(state: Path, durability: Durability) -> bool:
    """Leave a note; whether acknowledged work may have been lost with the machine since the last one."""
    path, boot = state / BOOT, this_boot()
    before = ""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        before = path.read_text()
    last, _, promised = before.strip().rpartition(" ")
    if promised == "process" and last != boot:
        return True
    # On the disk at once: a machine that goes down soon after must find it.
    write_private(path, f"{boot} {durability}\n")
    return False


def forget_boot(state: Path) -> None:
    """Take the note away: everything is where it should be."""
    with contextlib.suppress(OSError):
        (state / BOOT).unlink()
        sync(state)
