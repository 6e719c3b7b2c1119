"""Plain versions of operations the framework has on a GPU alone: what is around them then runs on a CPU."""

from __future__ import annotations

from itertools import pairwise

import torch

from tinkex.engine.runner import outcome

_LIBRARY = torch.library.Library("aten", "IMPL")
_NOTHING = torch.zeros(0)


def install() -> None:
    """Have the CPU offer products in a wider type, and attention over packed sequences."""
    _LIBRARY.impl("mm.dtype", _mm, "CPU")
    _LIBRARY.impl("mm.dtype_out", _mm_out, "CPU")
    _LIBRARY.impl("bmm.dtype", _mm, "CPU")
    _LIBRARY.impl("_flash_attention_forward", _attend, "CPU")
    _LIBRARY.impl("_flash_attention_backward", _attend_backward, "CPU")


class DoneAgain:
    """Records work by keeping it, and replays it by doing it again where its result was."""

    usable, replays = True, 0

    def __init__(self, device):
        self.device = device

    def record(self, work):
        found = work()

        class Graph:
            def replay(self):
                DoneAgain.replays += 1
                found.copy_(work())

        return Graph(), found


class Arrived:
    """A draw that is on the host at once."""

    def __init__(self, drawn):
        self.drawn = drawn

    def arrived(self, draws):
        return outcome(draws, self.drawn)


def _mm(a, b, out_dtype):
    return a.to(out_dtype) @ b.to(out_dtype)


def _mm_out(a, b, out_dtype, *, out):
    return out.copy_(_mm(a, b, out_dtype))


def _reference(q, k, v, ends_q, ends_k, scale, window):
    found = []
    for (q0, q1), (k0, k1) in zip(pairwise(ends_q.tolist()), pairwise(ends_k.tolist()), strict=True):
        group = q.shape[1] // k.shape[1]
        keys, values = (x[k0:k1].repeat_interleave(group, 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[q0:q1], keys) * scale
        # The queries are the last of their keys.
        behind = torch.arange(k0 - k1 + q1 - q0, q1 - q0).neg()[None] + torch.arange(q1 - q0)[:, None]
        seen = behind >= 0
        if window is not None:
            seen &= behind <= window
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        found.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(found)


def _attend(
    q, k, v, ends_q, ends_k, longest_q, longest_k, dropout, causal, debug, *, scale=None,
    window_size_left=None, window_size_right=None, **_,
):  # fmt: skip
    assert causal
    assert dropout == 0
    out = _reference(q, k, v, ends_q, ends_k, scale, window_size_left)
    return out, _NOTHING, _NOTHING, _NOTHING, _NOTHING


def _attend_backward(
    dout, q, k, v, out, lse, ends_q, ends_k, longest_q, longest_k, dropout, causal, seed, offset, *,
    scale=None, window_size_left=None, window_size_right=None,
):  # fmt: skip
    with torch.inference_mode(False), torch.enable_grad():
        leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
        found = _reference(*leaves, ends_q.clone(), ends_k.clone(), scale, window_size_left)
        return torch.autograd.grad(found, leaves, dout.clone())
