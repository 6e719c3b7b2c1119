"""The memory keys and values live in: paged for good, and on a CPU also in one piece while decoded.

The pool is one tensor of places, `block * size + offset`; one block more than the manager hands out takes
what padding writes. On a CPU a copy of each decoded row's keys and values is kept in one piece, so that a
step reads them without gathering; it is filled from the pool when a row takes a slot and grows by one token
a step. Which block belongs to whom is `blocks`' business.

Shape letters: Y layers, P places, S slots, N tokens of a slot, K key/value heads, D head size, T tokens of
a pass, R rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .blocks import Copy


def kv_shape(config: Any) -> tuple[int, int, int]:
    """Layers, key/value heads and head size of a model."""
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return config.num_hidden_layers, getattr(config, "num_key_value_heads", None) or heads, size


def bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """What one token's keys and values take."""
    layers, heads, size = kv_shape(config)
    return int(2 * layers * heads * size * dtype.itemsize)


class KvCache:
    """Keys and values of all layers by place."""

    def __init__(
        self, config: Any, blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.layers, self.heads, self.head_size = kv_shape(config)
        self.blocks, self.block_size = blocks, block_size
        shape = (self.layers, 2, (blocks + 1) * block_size, self.heads, self.head_size)
        # Zeros, not whatever memory held: a masked place is multiplied by a weight of 0 and must be finite.
        self.pool_y2pkd = torch.zeros(shape, device=device, dtype=dtype)
        self._k = [self.pool_y2pkd[layer, 0] for layer in range(self.layers)]
        self._v = [self.pool_y2pkd[layer, 1] for layer in range(self.layers)]

    @property
    def sink(self) -> int:
        """Where padding writes."""
        return self.blocks * self.block_size

    @property
    def blank(self) -> int:
        """What padding reads: never written, so always finite."""
        return self.sink + 1

    def write(self, layer: int, places_t: torch.Tensor, k_tkd: torch.Tensor, v_tkd: torch.Tensor) -> None:
        """Store the keys and values of a pass's tokens."""
        self._k[layer].index_copy_(0, places_t, k_tkd)
        self._v[layer].index_copy_(0, places_t, v_tkd)

    def read(self, layer: int, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values at places of any shape, `[*shape, K, D]`."""
        if places.dim() == 1:
            return self._k[layer].index_select(0, places), self._v[layer].index_select(0, places)
        shape = (*places.shape, self.heads, self.head_size)
        flat = places.reshape(-1)
        return (
            self._k[layer].index_select(0, flat).view(shape),
            self._v[layer].index_select(0, flat).view(shape),
        )

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy whole blocks, one after the other."""
        size = self.block_size
        for source, target in copies:
            self.pool_y2pkd[:, :, target * size : (target + 1) * size] = self.pool_y2pkd[
                :, :, source * size : (source + 1) * size
            ]

    def scrub(self, blocks: Iterable[int]) -> None:
        """Make blocks finite again whose contents may not be, before somebody else gets them."""
        for block in (*blocks, self.blocks):
            self.pool_y2pkd[:, :, block * self.block_size : (block + 1) * self.block_size] = 0


class DenseRows:
    """Keys and values of the rows being decoded, each row's in one piece."""

    def __init__(self, cache: KvCache, limit_bytes: int) -> None:
        self.cache, self.limit_bytes = cache, limit_bytes
        self.slots = self.capacity = 0
        self.k_yskn: list[torch.Tensor] = []
        self.v_yskn: list[torch.Tensor] = []
        self._k_flat: list[torch.Tensor] = []
        self._v_flat: list[torch.Tensor] = []
        self._all: torch.Tensor | None = None

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        found: torch.device = self.cache.pool_y2pkd.device
        return found

    def fits(self, slots: int, tokens: int) -> bool:
        """Whether this many rows of this length may be held."""
        pool = self.cache.pool_y2pkd
        each = 2 * self.cache.layers * self.cache.heads * self.cache.head_size * pool.element_size()
        return bool(slots * _rounded(tokens) * each <= self.limit_bytes)

    def grow(self, slots: int, tokens: int) -> bool:
        """Make room; True when the memory is new, so that every row must be loaded again."""
        if slots <= self.slots and tokens <= self.capacity:
            return False
        if slots > self.slots:
            self.slots = 1 << (slots - 1).bit_length()
        if tokens > self.capacity:
            self.capacity = _rounded(tokens)
        if not self.fits(self.slots, self.capacity):
            self.slots, self.capacity = slots, _rounded(tokens)
        cache, pool = self.cache, self.cache.pool_y2pkd
        shape = (cache.layers, 2, self.slots, cache.heads, self.capacity, cache.head_size)
        self._all = None
        self._all = torch.zeros(shape, dtype=pool.dtype, device=pool.device)
        self.k_yskn = [self._all[layer, 0] for layer in range(cache.layers)]
        self.v_yskn = [self._all[layer, 1] for layer in range(cache.layers)]
        self._k_flat = [k.view(-1, cache.head_size) for k in self.k_yskn]
        self._v_flat = [v.view(-1, cache.head_size) for v in self.v_yskn]
        return True

    def load(self, slot: int, places: torch.Tensor) -> None:
        """Fill a slot with the tokens at these places."""
        assert self._all is not None
        rows = self.cache.pool_y2pkd.index_select(2, places)
        self._all[:, :, slot, :, : len(places)] = rows.permute(0, 1, 3, 2, 4)

    def scrub(self) -> None:
        """Forget every row, and make what is left of them finite."""
        if self._all is not None:
            self._all.zero_()

    def targets(self, slots_r: torch.Tensor, positions_r: torch.Tensor) -> torch.Tensor:
        """Where the next token's keys and values of each row and head go, for `write`."""
        heads = torch.arange(self.cache.heads, device=slots_r.device)
        lines_rk = slots_r[:, None] * self.cache.heads + heads
        return (lines_rk * self.capacity + positions_r[:, None]).view(-1)

    def write(self, layer: int, targets: torch.Tensor, k_rkd: torch.Tensor, v_rkd: torch.Tensor) -> None:
        """Append one token to each row."""
        size = self.cache.head_size
        self._k_flat[layer].index_copy_(0, targets, k_rkd.reshape(-1, size))
        self._v_flat[layer].index_copy_(0, targets, v_rkd.reshape(-1, size))


def _rounded(tokens: int) -> int:
    """A little more than asked, so that growing is rare."""
    return -(-(tokens + tokens // 4) // 64) * 64
