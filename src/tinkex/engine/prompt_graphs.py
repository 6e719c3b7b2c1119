"""Passes over few prompt tokens as recorded CUDA graphs: launching them one by one takes the host longer
than the device needs.

A graph is recorded for a number of tokens, a number of prompts and the longest of them, all rounded up;
tokens beyond the last prompt write to the cache's sink and see each other alone. Only prompts that begin in
the pass are read by a graph, and only with adapters that lie beside the weights.

Shape letters: T tokens of the graph, P prompts of it, C hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from .base_model import BaseModel
from .decode_batch import Ints
from .graph_recording import Recorder, Recordings
from .kv_cache import KvCache
from .paged_attention import PagedBatch, paged_attention
from .plan import Plan, Segment
from .sending import send_into

if TYPE_CHECKING:
    from .gpu.border import Stack

MOST_TOKENS = 2048
"""Passes of more keep the device busy for as long as the host needs to launch them."""
_MOST_PROMPTS, _MOST_GRAPHS = 64, 48


@dataclass(slots=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    given_3t: torch.Tensor
    ends_p: torch.Tensor
    stack: Stack
    hidden_tc: torch.Tensor


class PromptGraphs:
    """The graphs of one base model and cache, recorded when first needed."""

    def __init__(self, base: BaseModel, cache: KvCache, recorder: Recorder) -> None:
        self.base, self.cache, self.recorder = base, cache, recorder
        self.border = base.decoder.border if base.decoder is not None else None
        self._graphs: Recordings[_Recorded] = Recordings(_MOST_GRAPHS)

    def fits(self, tokens: int, prompts: int) -> bool:
        """Whether prompts that begin in a pass can be read by a graph, if their adapters can."""
        usable = self.recorder.usable and self.border is not None
        return usable and tokens <= MOST_TOKENS and prompts <= _MOST_PROMPTS

    def run(
        self, given: Ints, lengths: Sequence[int], segments: tuple[Segment, ...]
    ) -> torch.Tensor | None:
        """Hidden states of ids, positions and places `[3, T]`, good until the next pass.

        None where the adapters do not lie beside the weights.
        """
        assert self.border is not None
        tokens = given.shape[1]
        stack = self.border.stack(segments, tokens)
        if stack is None:
            return None
        room, most = rounded(tokens), rounded_prompts(len(lengths))
        longest = rounded_length(max(*lengths, room - tokens))
        key = (room, most, longest, stack.ranks, stack.spans_t2 is not None)
        recorded = self._graphs.get(key, lambda: self._record(room, most, longest, stack.apart(room)))
        padded, ends = laid_out(given, lengths, room, most, self.cache.sink)
        send_into(recorded.given_3t, padded)
        send_into(recorded.ends_p, ends)
        recorded.stack.take_spans(stack)
        recorded.graph.replay()
        return recorded.hidden_tc[:tokens]

    def _record(self, room: int, most: int, longest: int, stack: Stack) -> _Recorded:
        from .gpu.flash import Spans

        device = self.base.device
        given_3t = torch.zeros(3, room, dtype=torch.int64, device=device)
        given_3t[2].fill_(self.cache.sink)
        ends_p = torch.full((most + 2,), room, dtype=torch.int32, device=device)
        ends_p[0] = 0

        def once() -> torch.Tensor:
            ids, positions, places = given_3t
            paged = PagedBatch(self.cache, places, reads_prompts=True)
            plan = Plan(paged_attention, (), (0, room), paged)
            plan.scratch["stack"] = stack
            plan.scratch["contexts"] = (places, Spans(ends_p, ends_p, longest, longest))
            return self.base.hidden_states(ids[None], positions[None], plan)

        graph, hidden_tc = self.recorder.record(once)
        return _Recorded(graph, given_3t, ends_p, stack, hidden_tc)


def laid_out(
    given: Ints, lengths: Sequence[int], room: int, most: int, sink: int
) -> tuple[Ints, npt.NDArray[np.int32]]:
    """Ids, positions and places with padding, and where each of `most` prompts and the padding ends.

    Prompts there are none of are empty; the padding is one more.
    """
    tokens = given.shape[1]
    padded = np.zeros((3, room), np.int64)
    padded[2] = sink
    padded[:, :tokens] = given
    padded[1, tokens:] = np.arange(room - tokens)
    ends = np.full(most + 2, tokens, np.int32)
    ends[0] = 0
    ends[1 : len(lengths) + 1] = np.cumsum(lengths)
    ends[-1] = room
    return padded, ends


def rounded(tokens: int) -> int:
    """The next power of two from 32 on, or beyond 256 the next multiple of 256."""
    if tokens > 256:
        return -(-tokens // 256) * 256
    return max(1 << max(tokens - 1, 0).bit_length(), 32)


def rounded_length(longest: int) -> int:
    """The next power of two from 256 on: attention is launched for as many tokens of every prompt."""
    return max(1 << max(longest - 1, 0).bit_length(), 256)


def rounded_prompts(count: int) -> int:
    """One, eight or all there may be: what is empty costs little."""
    return 1 if count == 1 else 8 if count <= 8 else _MOST_PROMPTS
