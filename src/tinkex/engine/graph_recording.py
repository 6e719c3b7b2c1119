"""Recording work on a CUDA device, so that one launch replays it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_WARM_RUNS = 2


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
