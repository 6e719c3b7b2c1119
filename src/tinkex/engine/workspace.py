"""Memory that training passes on a CPU use again, by name.

A pass works in tensors of hundreds of kilobytes. Asked of the system anew, their pages cost as much as the
arithmetic on them; kept from pass to pass they also stay in the caches. Whoever takes a name writes over
what was there: a name belongs to one value at a time, and a value lives until the next pass at most.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch

LIMIT = 96 << 20
"""Bytes kept; what does not fit is left to the ordinary allocator."""

_VIEWS = 4096


class Workspace:
    """Named buffers that grow as needed, up to a limit in all."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.held = 0
        self._buffers: dict[Hashable, torch.Tensor] = {}
        self._views: dict[tuple[Hashable, tuple[int, ...], torch.dtype], torch.Tensor] = {}

    def take(self, name: Hashable, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """The buffer of this name in this shape, whatever is in it; None where there is no room for it."""
        key = (name, shape, dtype)
        found = self._views.get(key)
        return self._made(key) if found is None else found

    def _made(self, key: tuple[Hashable, tuple[int, ...], torch.dtype]) -> torch.Tensor | None:
        name, shape, dtype = key
        count = 1
        for size in shape:
            count *= size
        name = (name, dtype)
        buffer = self._buffers.get(name)
        old = 0 if buffer is None else buffer.numel()
        if buffer is None or old < count:
            more = (count - old) * dtype.itemsize
            if self.held + more > self.limit:
                return None
            self.held += more
            self._views = {k: v for k, v in self._views.items() if (k[0], k[2]) != name}
            buffer = self._buffers[name] = torch.empty(count, dtype=dtype)
        if len(self._views) >= _VIEWS:
            self._views.clear()
        view = self._views[key] = buffer[:count].view(shape)
        return view
