"""The files of checkpoints: copied, listed, and removed when no row and no sampling session needs them."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.durable import make_folders, sync, sync_all
from .records import CheckpointRow, SamplerRow

if TYPE_CHECKING:
    from .service import Service

__all__ = ["copy_folder", "discard", "files_in", "release", "thaw"]


async def discard(service: Service, folder: str, version: str = "") -> None:
    """Remove the files of a checkpoint that is no more; a sampling session that uses them keeps them.

    Weights for sampling, which have a version, leave the engine too.
    """
    await service.exports.forget(folder)
    samplers = service.world.samplers
    for id, sampler in list(samplers.items()):
        if sampler.row.folder == folder and sampler.session is None:
            del samplers[id]  # made for a request without a session, and made again by the next
            sampler.wake()
    if not _sampled(service, folder):
        thaw(service, version)
        await service.remove_folder(service.options.state / folder)


def thaw(service: Service, version: str) -> None:
    """Have engines forget weights nobody samples from; who comes back to them has them loaded again."""
    if any(sampler.row.version == version for sampler in service.world.samplers.values()):
        return
    for desk in service.desks.values():
        if desk.knows(version):
            desk.thaw(version)


async def release(service: Service, ended: Iterable[SamplerRow]) -> None:
    """Remove the files of deleted checkpoints that these ended sampling sessions were the last to use."""
    for folder, path, version in {(row.folder, row.model_path, row.version) for row in ended if row.folder}:
        saved = None if path is None else await service.store.get(CheckpointRow, path)
        if (saved is None or saved.folder != folder) and not _sampled(service, folder):
            thaw(service, version)
            await service.remove_folder(service.options.state / folder)


def _sampled(service: Service, folder: str) -> bool:
    return any(sampler.row.folder == folder for sampler in service.world.samplers.values())


def files_in(folder: Path) -> dict[str, int]:
    """The files below a folder, by relative name, and their sizes; links are left out."""
    found: dict[str, int] = {}
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(place, name)
            if path.is_file() and not path.is_symlink():
                found[path.relative_to(folder).as_posix()] = path.stat().st_size
    return found


async def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder, whole or not at all; its files never change, so they are linked where possible."""
    await asyncio.to_thread(_copy, source, target)


def _copy(source: Path, target: Path) -> None:
    names = files_in(source)
    if not names:
        raise FileNotFoundError(source.name)
    aside = target.with_name(f".{target.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    make_folders(target.parent, 0o700)
    aside.mkdir(mode=0o700)
    try:
        for name in names:
            place = aside / name
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                os.link(source / name, place, follow_symlinks=False)
            except FileNotFoundError:
                raise
            except (OSError, NotImplementedError):
                shutil.copyfile(source / name, place, follow_symlinks=False)
        sync_all(aside)
        aside.rename(target)
        sync(target.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
