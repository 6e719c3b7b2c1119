"""Deleting many checkpoints: as many as can be, several at a time, with a report on each that could not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .output import CommandError, Output
from .progress import ProgressLine
from .readable import plural

if TYPE_CHECKING:
    from ..client.rest import RestClient

__all__ = ["FAILED", "delete_checkpoints", "report"]

FAILED = {"tinker_path": "text", "error": "text"}


def delete_checkpoints(client: RestClient, paths: Sequence[str], out: Output) -> dict[str, str]:
    """Delete all that can be deleted; the others, and why not."""
    from ..errors import TinkerError
    from .advice import reason

    failures: dict[str, str] = {}
    # All are started at once; the client sends a few at a time.
    started = {path: client.delete_checkpoint_from_tinker_path(path) for path in dict.fromkeys(paths)}
    with ProgressLine(out) as line:
        for number, (path, future) in enumerate(started.items(), 1):
            try:
                future.result()
            except TinkerError as error:
                failures[path] = reason(error)
            line.show(f"deleting {number:,} of {len(started):,}")
    return failures


def report(out: Output, asked: int, failures: Mapping[str, str], **more: Any) -> int:
    """Say what was deleted and what was not; the exit code."""
    deleted = asked - len(failures)
    failed = [{"tinker_path": path, "error": why} for path, why in failures.items()]
    if out.mode == "json":
        out.document({**more, "deleted_count": deleted, "failed": failed})
    out.say(f"Deleted {plural(deleted, 'checkpoint')}")
    for path, why in failures.items():
        out.error(CommandError(f"{path}: {why}"))
    return 1 if failures else 0
