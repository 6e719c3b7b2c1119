"""Host arrays on their way to a device, and back, without waiting for what the device is doing now.

An ordinary copy to a GPU waits until everything asked of it before is done. From memory the GPU reads by
itself the copy takes its turn, and the host goes on; that memory is kept until it was read.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch


def sent(values: npt.NDArray[Any], device: torch.device | str) -> torch.Tensor:
    """A copy of an array on a device."""
    if torch.device(device).type == "cuda":
        return torch.from_numpy(values).pin_memory().to(device, non_blocking=True)
    return torch.tensor(values, device=device)


def send_into(target: torch.Tensor, values: npt.NDArray[Any]) -> None:
    """Copy an array into a tensor of its shape."""
    source = torch.from_numpy(values)
    if target.is_cuda:
        target.copy_(source.pin_memory(), non_blocking=True)
    else:
        target.copy_(source)


class Coming:
    """Values on their way from a device, which goes on meanwhile."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values
        self._there: Any = None
        if values.is_cuda:
            host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values = host.copy_(values, non_blocking=True)
            self._there = torch.cuda.Event()
            self._there.record()

    def arrived(self) -> torch.Tensor:
        """The values in memory of the host, as soon as they are there."""
        if self._there is not None:
            self._there.synchronize()
        return self._values
