"""Whether the machine has gone down since a server last worked on a state folder.

A note in the folder says in which run of the machine its server works; a server that is stopped takes it
away. One left by a server of another run, which did not wait for the disk, means that the last things its
clients were told may be gone.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

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
    path.write_text(f"{boot} {durability}\n")
    path.chmod(0o600)
    last, _, promised = before.strip().rpartition(" ")
    return promised == "process" and last != boot


def forget_boot(state: Path) -> None:
    """Take the note away: everything is where it should be."""
    with contextlib.suppress(OSError):
        (state / BOOT).unlink()
