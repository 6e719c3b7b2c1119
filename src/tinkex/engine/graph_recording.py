"""Recording work on a CUDA device, so that one launch replays it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import torch

_WARM_RUNS = 2
T = TypeVar("T")


class Recorder:
    """Records graphs that share their memory: no two of them run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool: Any = None

    @property
    def usable(self) -> bool:
        """Whether the device can replay anything."""
        return bool(self.device.type == "cuda")

    def record(self, work: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        """A graph of some work and where its result will be."""
        device = self.device
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_RUNS):
                work()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            found = work()
        return graph, found


class Recordings(Generic[T]):
    """The recordings last used, up to a number: each holds some megabytes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: OrderedDict[Hashable, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: Hashable, record: Callable[[], T]) -> T:
        """The recording of this key, made now if it is not held."""
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key]
        # One that still runs on the device is let go of when it has ended.
        while len(self._held) >= self.most:
            self._held.popitem(last=False)
        found = self._held[key] = record()
        return found
