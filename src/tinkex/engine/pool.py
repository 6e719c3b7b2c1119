"""Which adapters are on the device: a bounded set, the least recently used moved to host memory, then to
disk.

Whatever is asked for comes back as it was. The pool knows nothing of what its items are for.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch

from .faults import ServerFault

log = logging.getLogger(__name__)


class Movable(Protocol):
    """Something that takes bytes and can change device."""

    def move(self, device: torch.device | str) -> None:
        """Bring everything to a device."""

    def nbytes(self) -> int:
        """Bytes taken."""


Item = TypeVar("Item", bound=Movable)


class AdapterPool(Generic[Item]):
    """Items by name, at most `device_bytes` of them on the device and `host_bytes` in host memory.

    With `folder` and the two functions, the rest lies on disk; without, host memory is not bounded. On a
    CPU the device is host memory, and only the second bound counts.
    """

    def __init__(
        self,
        device: torch.device | str,
        *,
        device_bytes: int,
        host_bytes: int | None = None,
        folder: Path | None = None,
        write: Callable[[Path, Item], object] | None = None,
        read: Callable[[Path], Item] | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.bounds = {"device": device_bytes, "host": host_bytes}
        self.folder, self.write, self.read = folder, write, read
        self._tiers: dict[str, OrderedDict[str, Item]] = {"device": OrderedDict(), "host": OrderedDict()}
        self._disk: set[str] = set()
        if self.device.type == "cpu":
            self.bounds["device"] = host_bytes if host_bytes is not None else device_bytes

    def __contains__(self, name: str) -> bool:
        return name in self._disk or any(name in tier for tier in self._tiers.values())

    def __len__(self) -> int:
        return len(self._disk) + sum(len(tier) for tier in self._tiers.values())

    def where(self, name: str) -> str:
        """On which tier an item is: device, host or disk."""
        for tier, items in self._tiers.items():
            if name in items:
                return tier
        if name in self._disk:
            return "disk"
        raise KeyError(name)

    def add(self, name: str, item: Item) -> None:
        """Put an item on the device, in place of one of the same name."""
        item.move(self.device)
        self.drop(name)
        self._tiers["device"][name] = item
        self._shrink(keep={name})

    def use(self, names: Iterable[str]) -> list[Item]:
        """Items by name, all on the device at once; more than fit there are an error."""
        wanted = list(names)
        found = [self._bring(name) for name in wanted]
        self._shrink(keep=set(wanted))
        return found

    def get(self, name: str) -> Item:
        """One item, on the device."""
        return self.use([name])[0]

    def drop(self, name: str) -> None:
        """Forget an item wherever it is; unknown names are left alone."""
        for tier in self._tiers.values():
            tier.pop(name, None)
        if name in self._disk:
            self._disk.discard(name)
            _remove(self._path(name))

    def _bring(self, name: str) -> Item:
        items = self._tiers["device"]
        if name in items:
            items.move_to_end(name)
            return items[name]
        cold = self._tiers["host"].get(name)
        if cold is not None:
            item = cold
        elif name in self._disk:
            assert self.read is not None
            item = self.read(self._path(name))
        else:
            raise KeyError(name)
        # Forgotten where it was only once it is here: the device may have no room.
        item.move(self.device)
        items[name] = item
        if cold is not None:
            del self._tiers["host"][name]
        else:
            self._disk.discard(name)
            _remove(self._path(name))
        return item

    def _shrink(self, keep: set[str]) -> None:
        on_disk = self.folder is not None and self.write is not None
        below = {"device": "disk" if self.device.type == "cpu" else "host", "host": "disk"}
        for tier, items in self._tiers.items():
            bound = self.bounds[tier]
            if bound is None or (below[tier] == "disk" and not on_disk):
                continue
            used = sum(item.nbytes() for item in items.values())
            for name in [name for name in items if name not in keep]:
                if used <= bound:
                    break
                item = items[name]
                if below[tier] == "host":
                    item.move("cpu")
                    self._tiers["host"][name] = item
                else:
                    assert self.write is not None
                    try:
                        self.write(self._path(name), item)
                    except OSError as problem:
                        log.error("%s stays in memory, the disk does not take it: %s", name, problem)
                        break
                    self._disk.add(name)
                used -= item.nbytes()
                del items[name]
            if tier == "device" and used > bound and len(keep) > 1:
                raise ServerFault(f"{len(keep)} adapters together need {used} bytes > {bound}")

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / name.encode().hex()


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
