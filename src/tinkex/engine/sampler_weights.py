"""Weights frozen for sampling: named by their content, kept in memory while used, dropped when stale.

Saving copies the adapter, so that nothing which happens to the model later changes what is sampled. Weights
saved to a folder stay loadable from it. Ephemeral ones are written in the background, if there is a folder
for them, and leave memory first; each model keeps its newest `keep` and any used within `keep_seconds`, and
sampling from a dropped one fails with a text that says so.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch

from .adapters import Adapter
from .faults import ServerFault, UserFault
from .gpu import kernels_at_hand

log = logging.getLogger(__name__)
Write = Callable[[Adapter, Path], object]
Read = Callable[[Path], Adapter]
REMEMBERED = 4096
"""Dropped versions whose names are remembered, for a better text."""

_STRETCH = 1 << 24
_KEYS = ((0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9), (0x51B54A32D192ED03, 0x14D049BB133111EB))
_SPREAD = 0x2545F4914F6CDD1D


@dataclass(slots=True)
class Frozen:
    """One version: where it is now and who keeps it."""

    version: str
    used: float
    adapter: Adapter | None = None
    paths: list[Path] = field(default_factory=list)
    """Folders it was put in, the latest last; who owns one may have removed it since."""
    ephemeral_of: set[str] = field(default_factory=set)
    durable: bool = False
    """Saved under a name or loaded from a folder: never dropped for its age."""
    writing: Future[None] | None = None

    def put(self, path: Path) -> None:
        """Remember that a folder has it."""
        self.paths = [*(each for each in self.paths if each != path), path]

    @property
    def path(self) -> Path | None:
        """The folder it was put in last."""
        return self.paths[-1] if self.paths else None

    def found(self) -> Path | None:
        """A folder that has it still."""
        return next((path for path in reversed(self.paths) if path.is_dir()), None)


class SamplerWeights:
    """All frozen versions of one engine."""

    def __init__(
        self,
        device: torch.device,
        write: Write,
        read: Read,
        *,
        folder: Path | None = None,
        keep: int = 8,
        keep_seconds: float = 6 * 3600.0,
        resident: int = 32,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.device, self._write, self._read, self.folder = device, write, read, folder
        self.keep, self.keep_seconds, self.resident, self._clock = keep, keep_seconds, resident, clock
        self._versions: OrderedDict[str, Frozen] = OrderedDict()
        self._newest: dict[str, list[str]] = {}
        self._dropped: OrderedDict[str, str] = OrderedDict()
        self._writer: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._versions)

    @property
    def in_memory(self) -> int:
        """Versions whose tensors are held."""
        return sum(entry.adapter is not None for entry in self._versions.values())

    def freeze(self, model: str, adapter: Adapter, path: Path | None) -> str:
        """Copy a model's weights as they are now; the version they are sampled by."""
        version = digest(adapter)
        entry = self._versions.get(version) or Frozen(version, self._clock())
        if entry.adapter is None:
            entry.adapter = adapter.sampled_copy()
        if path is not None:
            self._write(entry.adapter, path)
            with self._lock:
                entry.put(path)
            entry.durable = True
        self._versions[version] = entry
        self._dropped.pop(version, None)
        self._touch(entry)
        if path is None:
            self._keep_ephemeral(model, entry)
        self._make_room(entry)
        return version

    def load(self, path: Path, *, version: str | None = None, ephemeral_of: str | None = None) -> str:
        """Take in weights from a folder; if they are not the `version` expected, nothing is kept.

        As `ephemeral_of` a model they count as its newest and go the way of ephemeral ones.
        """
        entry = None if version is None else self._versions.get(version) or self._by_older_name(version)
        if entry is None:
            entry = self._read_in(path, version)
        self._touch(entry)
        if ephemeral_of is not None:
            self._keep_ephemeral(ephemeral_of, entry)
        elif path.is_dir():  # the version may be held already, and its folder still be on its way
            with self._lock:
                entry.put(path)
            entry.durable = True
        self._make_room(entry)
        return entry.version

    def _by_older_name(self, version: str) -> Frozen | None:
        """Weights that are here, asked for by a name of the older kind: a replay froze them again."""
        if _is_older(version):
            for held in list(self._versions.values()):
                if held.adapter is not None and digest(held.adapter, like=version) == version:
                    self._versions[version] = found = Frozen(version, self._clock(), held.adapter)
                    if not held.durable:
                        self._drop(held.version, f"sampler weights {held.version} are {version}")
                    return found
        return None

    def _read_in(self, path: Path, expected: str | None) -> Frozen:
        try:
            adapter = slim(self._read(path))
        except UserFault as fault:
            if expected is None:
                raise
            raise ServerFault(f"sampler weights {expected} are lost: {fault}") from fault
        version = digest(adapter, like=expected)
        if expected not in (None, version):
            raise ServerFault(f"the sampler weights at {path} are {version}, expected {expected}")
        entry = self._versions.setdefault(version, Frozen(version, self._clock()))
        entry.adapter = entry.adapter or adapter
        with self._lock:
            entry.paths = entry.paths or [path]
        self._dropped.pop(version, None)
        return entry

    def get(self, version: str) -> Adapter:
        """The weights of a version, brought back to the device if they had left it."""
        entry = self._versions.get(version)
        if entry is None:
            reason = self._dropped.get(version)
            if reason is not None:
                raise UserFault(reason)
            raise UserFault(f"no sampler weights {version!r} here: save or load them first")
        if entry.adapter is None:
            place = entry.found()
            if place is None:
                raise ServerFault(f"sampler weights {version} could not be read back: their files are gone")
            try:
                entry.adapter = slim(self._read(place))
            except (OSError, UserFault) as error:
                raise ServerFault(f"sampler weights {version} could not be read back: {error}") from error
            self._make_room(entry)
        self._touch(entry)
        entry.adapter.move(self.device)
        return entry.adapter

    def drop(self, version: str) -> None:
        """Forget a version; rows already sampling from it go on."""
        if self._versions.get(version) is None:
            raise UserFault(f"no sampler weights {version!r} here")
        self._drop(version, f"sampler weights {version} were unloaded")

    def drop_stale(self) -> list[str]:
        """Drop ephemeral versions that are neither among a model's newest nor used lately."""
        now = self._clock()
        stale = []
        for model, versions in self._newest.items():
            for version in versions[: -self.keep] if self.keep else list(versions):
                entry = self._versions.get(version)
                if entry is None:
                    versions.remove(version)
                elif now - entry.used >= self.keep_seconds:
                    versions.remove(version)
                    entry.ephemeral_of.discard(model)
                    if not entry.ephemeral_of and not entry.durable:
                        stale.append(version)
        for version in stale:
            self._drop(
                version,
                f"sampler weights {version} were dropped: the newest {self.keep} unnamed ones of a model"
                f" and those used in the last {self.keep_seconds / 3600:g} h stay; save them under a name",
            )
        return stale

    def where(self, version: str) -> Path | None:
        """The folder an ephemeral version is in, or will be in soon; None: it is in memory alone."""
        return self._versions[version].path if self.folder is None else self.folder / version

    def remove_others(self, versions: Iterable[str]) -> int:
        """Remove what is in the folder of ephemeral ones but for these and those held; how many."""
        if self.folder is None or not self.folder.is_dir():
            return 0
        kept = {*versions, *self._versions}
        # A folder being written has its version in a name that begins with a dot.
        others = [p for p in self.folder.iterdir() if not kept & {p.name, *p.name.split(".")[1:2]}]
        for place in others:
            shutil.rmtree(place, ignore_errors=True)
        return len(others)

    def settle(self) -> None:
        """Wait for background writes; the first that failed raises."""
        for entry in list(self._versions.values()):
            if entry.writing is not None:
                entry.writing.result()

    def wait(self) -> None:
        """Wait for background writes; one that failed is tried again, and raises if it fails again."""
        for entry in list(self._versions.values()):
            writing = entry.writing
            if writing is None or writing.exception() is None or self.folder is None:
                continue
            if entry.ephemeral_of and entry.adapter is not None:
                self._write_later(entry, self.folder / entry.version).result()

    def close(self) -> None:
        """Finish background writes and stop their thread."""
        if self._writer is not None:
            self._writer.shutdown()

    def _keep_ephemeral(self, model: str, entry: Frozen) -> None:
        versions = self._newest.setdefault(model, [])
        if entry.version in versions:
            versions.remove(entry.version)
        versions.append(entry.version)
        entry.ephemeral_of.add(model)
        # A folder of its own, even beside a named one: that one may be deleted.
        own = None if self.folder is None else self.folder / entry.version
        idle = entry.writing is None or entry.writing.done()
        if own is not None and own != entry.path and idle and entry.adapter is not None:
            self._write_later(entry, own)
        self.drop_stale()

    def _write_later(self, entry: Frozen, path: Path) -> Future[None]:
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="sampler-weights")
        adapter = entry.adapter
        assert adapter is not None

        def write() -> None:
            try:
                if not path.exists():
                    self._write(adapter, path)
            except Exception:
                log.exception("sampler weights %s could not be written; they stay in memory", entry.version)
                raise
            with self._lock:
                entry.put(path)

        writing = entry.writing = self._writer.submit(write)
        return writing

    def _touch(self, entry: Frozen) -> None:
        entry.used = self._clock()
        self._versions.move_to_end(entry.version)

    def _make_room(self, newest: Frozen) -> None:
        """Let go of the tensors unused for the longest, if a folder has them."""
        held = self.in_memory
        for entry in list(self._versions.values()):
            if held <= self.resident:
                return
            if entry is newest or entry.adapter is None:
                continue
            with self._lock:
                written = entry.found() is not None
            if written:
                entry.adapter = None
                held -= 1
            elif self.device.type != "cpu" and entry.adapter.device == self.device:
                # A copy moves: rows in the middle of a sequence go on with the one they have.
                entry.adapter = slim(entry.adapter.frozen())
                entry.adapter.move("cpu")

    def _drop(self, version: str, reason: str) -> None:
        entry = self._versions.pop(version)
        for model in entry.ephemeral_of:
            versions = self._newest.get(model, [])
            if version in versions:
                versions.remove(version)
            if not versions:  # the last of a model that may be long gone
                self._newest.pop(model, None)
        self._dropped[version] = reason
        if len(self._dropped) > REMEMBERED:
            self._dropped.popitem(last=False)
        # Loaded from there under a name it is somebody's; beside a folder that has a name it is ours.
        if self.folder is not None and not (entry.durable and entry.paths == [self.folder / version]):
            if entry.writing is not None:
                entry.writing.exception()
            shutil.rmtree(self.folder / version, ignore_errors=True)


def slim(adapter: Adapter) -> Adapter:
    """Keep an adapter only in the dtype it is sampled in; it is not trained any more."""
    adapter.master = adapter.compute
    return adapter


def digest(adapter: Adapter, like: str | None = None) -> str:
    """A name that follows from the numbers sampled with and their shape alone.

    Names that do not begin with an s are of an older kind, whose numbers travelled to the host; `like` one
    of them gives one of them.
    """
    found = hashlib.sha256()
    sites = "\n".join(site.path for site in adapter.layout.sites)
    found.update(f"{adapter.rank} {adapter.alpha} {adapter.dtype}\n{sites}\n".encode())
    flat = adapter.compute.flat.detach().contiguous()
    if like is not None and _is_older(like):
        found.update(flat.cpu().view(torch.uint8).numpy().data)
        return found.hexdigest()[:32]
    found.update(json.dumps(_sums(flat)).encode())
    return "s" + found.hexdigest()[:31]


def _is_older(version: str) -> bool:
    return not version.startswith("s")


def _sums(flat: torch.Tensor) -> list[int]:
    """Two sums over hashes of every number's bits and place: the same on every device, where they lie."""
    bits = flat.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
    if bits.is_cuda and kernels_at_hand():
        from .gpu.name_kernels import sums_of_mixed

        return sums_of_mixed(bits, _KEYS, _SPREAD)
    totals = torch.zeros(len(_KEYS), dtype=torch.int64, device=flat.device)
    for start in range(0, len(bits), _STRETCH):
        part = bits[start : start + _STRETCH].to(torch.int64)
        at = torch.arange(start, start + len(part), device=flat.device)
        for i, (place, odd) in enumerate(_KEYS):
            mixed = (at * place).add_(part).mul_(odd)
            mixed ^= mixed >> 31
            mixed.mul_(_SPREAD)
            mixed ^= mixed >> 29
            totals[i] += mixed.sum()
    found: list[int] = totals.tolist()
    return found
