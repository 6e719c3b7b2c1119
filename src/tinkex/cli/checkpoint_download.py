"""`tinkex checkpoint download`, and fetching a checkpoint's files for other commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .main import Parser
from .output import CommandError, Output
from .paths import checkpoint_path
from .progress import ProgressLine
from .reaching import rest, service
from .readable import size

if TYPE_CHECKING:
    from ..client.downloads import DownloadedCheckpoint, DownloadProgress
    from ..client.rest import RestClient

__all__ = ["fetch_files", "fill"]

_EXPORT_LIFE = 3600
"""Seconds after which an export made for a download goes by itself, should nobody delete it."""


def fill(parser: Parser) -> None:
    """Fill the command's parser."""
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, default=Path(),
        help="where the checkpoint's folder is made (default: here)",
    )  # fmt: skip
    parser.add_argument("--force", action="store_true", help="write over a folder that is there")
    parser.command(
        _download,
        {"checkpoint_path": "text", "destination": "text", "file_size_bytes": "int"},
        examples="tinkex checkpoint download tinker://s-1f3a:train:0/weights/final -o models",
    )


def _download(arguments: argparse.Namespace, out: Output) -> int:
    path = checkpoint_path(arguments)
    target = arguments.output.expanduser() / path.tinker_path.removeprefix("tinker://").replace("/", "_")
    if target.exists() and not arguments.force:
        raise CommandError(
            f"{target} is there already", "pass --force to write over it, or another --output"
        )
    done = fetch_files(arguments, out, target, overwrite=arguments.force)
    fields = {
        "Checkpoint Path": path.tinker_path,
        "Total Size": size(done.size_bytes),
        "Downloaded to": done.folder,
    }
    data = {
        "checkpoint_path": path.tinker_path,
        "destination": str(done.folder),
        "file_size_bytes": done.size_bytes,
    }
    out.record(fields, essential="Downloaded to", data=data)
    return 0


def fetch_files(
    arguments: argparse.Namespace, out: Output, folder: Path, *, overwrite: bool = False
) -> DownloadedCheckpoint:
    """Download the checkpoint that was named into a folder.

    Where a server gives out exported checkpoints only, one is exported, fetched and deleted again.
    """
    from ..errors import NotFoundError

    path, client = checkpoint_path(arguments), rest(arguments, out)
    with ProgressLine(out) as line:
        show = _shown_on(line)
        try:
            return client.download_checkpoint(
                path.tinker_path, folder, overwrite=overwrite, on_progress=show
            ).result()
        except NotFoundError as missing:
            client.get_weights_info_by_tinker_path(path.tinker_path).result()  # there is one at all
            if path.checkpoint_type != "training":
                raise CommandError(
                    f"this server does not give out {path.checkpoint_type} checkpoints: {path.tinker_path}",
                    "save it with save_state() or save_weights_external() and download that",
                ) from missing
        line.show("exporting the checkpoint, which starts a training session …", now=True)
        return _by_export(arguments, out, client, folder, overwrite, show)


def _shown_on(line: ProgressLine) -> Callable[[DownloadProgress], None]:
    def show(at: DownloadProgress) -> None:
        of = f" of {size(at.file_size)}" if at.file_size is not None else ""
        line.show(f"{at.file}: {size(at.file_bytes)}{of}")

    return show


def _by_export(
    arguments: argparse.Namespace,
    out: Output,
    client: RestClient,
    folder: Path,
    overwrite: bool,
    show: Callable[[DownloadProgress], None],
) -> DownloadedCheckpoint:
    from ..errors import TinkerError

    path = checkpoint_path(arguments).tinker_path
    with service(arguments, out) as session:
        trainer = session.create_training_client_from_state(
            path, user_metadata={"created_by": "tinkex checkpoint download"}
        )
        export = trainer.save_weights_external("download", ttl_seconds=_EXPORT_LIFE).result().path
        try:
            return client.download_checkpoint(
                export, folder, overwrite=overwrite, on_progress=show
            ).result()
        finally:
            try:
                client.delete_checkpoint_from_tinker_path(export).result()
            except TinkerError as error:
                out.warn(f"{export} could not be deleted ({error}); it expires within an hour")
