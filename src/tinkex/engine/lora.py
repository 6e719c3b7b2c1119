"""Multi-adapter LoRA in place of the base model's linear layers.

Linears that read the same input (q, k, v; gate, up) form a `LoraGroup`: their weights become one matrix, of
which the modules keep views, and a pass computes them together. Each run of tokens adds its own adapter's
low-rank product, of whatever rank; or, where the plan says `fold`, its adapter's product is first added to
the weights, which costs less than applying it to many tokens of a small model. Gradients of the factors are
added in place to the buffers the plan names; autograd sees activations only.

Shape letters: T tokens, I inputs, O outputs, R rank, M members of a group, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from .adapters import Adapter
from .plan import Plan, PlanSlot, Segment

HEAD = "lm_head"


class LoraGroup:
    """Linears over one input, computed as one matmul plus each segment's low-rank products."""

    def __init__(self, name: str, linears: list[tuple[str, nn.Linear]], border: int = 0) -> None:
        """`border` leaves room behind the weights for so many ranks of each member's A."""
        self.name = name
        self.backward_name = f"d {name.rpartition('.')[2]}"
        """Where the input's gradient goes: one place for the groups of this kind in all layers."""
        self.paths = tuple(path for path, _ in linears)
        self.sizes = [linear.out_features for _, linear in linears]
        self.members = len(linears)
        self.inner = linears[0][1].in_features
        ends = torch.tensor(self.sizes).cumsum(0).tolist()
        self.columns = tuple(zip([0, *ends[:-1]], ends, strict=True))
        self.ext_ei: torch.Tensor | None = None
        """The weights with the border behind them."""
        weights = [linear.weight.data for _, linear in linears]
        if border:
            self.ext_ei = weights[0].new_zeros(ends[-1] + border * self.members, self.inner)
            self.weight_oi = self.ext_ei[: ends[-1]]
            torch.cat(weights, out=self.weight_oi)
        else:
            self.weight_oi = weights[0] if len(weights) == 1 else torch.cat(weights)
        if len(linears) == 1:
            self.bias_o = linears[0][1].bias
        else:
            biases = [linear.bias for _, linear in linears]
            self.bias_o = torch.cat([b.data for b in biases]) if biases[0] is not None else None
        self._input: torch.Tensor | None = None
        self._outputs: tuple[torch.Tensor, ...] = ()

    def view(self, member: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The weight and bias of one member, as views of the group's."""
        start, end = self.columns[member]
        return self.weight_oi[start:end], None if self.bias_o is None else self.bias_o[start:end]

    def output(self, member: int, x: torch.Tensor, plan: Plan) -> torch.Tensor:
        """One member's output; the first one asked computes all, and the last one asked lets go of them."""
        if self._input is not x:
            flat = x.reshape(-1, self.inner)
            if plan.anchor is not None:
                outputs = _Linears.apply(flat, plan.anchor, self, plan)
                outputs = (outputs,) if len(self.sizes) == 1 else outputs
            else:
                outputs = self.forward(flat, plan)[0].split(self.sizes, dim=-1)
            self._input = x
            self._outputs = tuple(y.view(*x.shape[:-1], -1) for y in outputs)
        found = self._outputs[member]
        if member == len(self.sizes) - 1:
            self._input, self._outputs = None, ()
        return found

    def forward(self, x_ti: torch.Tensor, plan: Plan) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        """All outputs side by side, and per segment A's product with the input, `[members * R, tokens]`."""
        if plan.fold:
            return self._folded_forward(x_ti, plan), [None] * len(plan.segments)
        y_to = functional.linear(x_ti, self.weight_oi, self.bias_o)
        name = self.name
        lows: list[torch.Tensor | None] = []
        for segment in plan.segments:
            adapter = segment.adapter
            if adapter is None or name not in adapter.layout.groups:
                lows.append(None)
                continue
            tensors, scale, rank = adapter.compute, adapter.scale, adapter.rank
            x, y = (x_ti, y_to) if len(plan.segments) == 1 else _rows(segment, x_ti, y_to)
            low_rt = functional.linear(tensors.group_a[name], x)
            if segment.foreign_rt is not None:
                low_rt.view(self.members, rank, -1).masked_fill_(segment.foreign_rt, 0.0)
            lows.append(low_rt)
            if self.members == 1:
                y.addmm_(low_rt.t(), tensors.group_bt[name][0], alpha=scale)
                continue
            low_tr, at = low_rt.t(), 0
            for (start, end), bt in zip(self.columns, tensors.group_bt[name], strict=True):
                y[:, start:end].addmm_(low_tr[:, at : at + rank], bt, alpha=scale)
                at += rank
        return y_to, lows

    def backward(
        self,
        x_ti: torch.Tensor,
        lows: list[torch.Tensor | None],
        dy_to: torch.Tensor,
        plan: Plan,
        need_dx: bool,
    ) -> torch.Tensor | None:
        """The input's gradient; each segment's factor gradients are added to its buffer."""
        if plan.fold:
            return self._folded_backward(x_ti, dy_to, plan, need_dx)
        dx_ti = torch.mm(dy_to, self.weight_oi) if need_dx else None
        for segment, low_rt in zip(plan.segments, lows, strict=True):
            if low_rt is None:
                continue
            adapter = segment.adapter
            assert adapter is not None
            x, dy = (x_ti, dy_to) if len(plan.segments) == 1 else _rows(segment, x_ti, dy_to)
            dlow_rt = self._factor_gradients(segment, x, dy, low_rt)
            if dx_ti is not None:
                dx = dx_ti if len(plan.segments) == 1 else dx_ti[segment.start : segment.end]
                dx.addmm_(dlow_rt.t(), adapter.compute.group_a[self.name], alpha=adapter.scale)
        return dx_ti

    def _factor_gradients(
        self, segment: Segment, x: torch.Tensor, dy: torch.Tensor, low_rt: torch.Tensor
    ) -> torch.Tensor:
        """Add one segment's factor gradients to its buffer; the gradient of A's product, not yet scaled."""
        adapter, grads, name = segment.adapter, segment.grads, self.name
        assert adapter is not None
        scale, bts = adapter.scale, adapter.compute.group_bt[name]
        if self.members == 1:
            dlow_rt = functional.linear(bts[0], dy)
            if grads is not None:
                add_product(grads.group_bt[name][0], low_rt, dy, scale)
        else:
            dlow_rt = torch.empty_like(low_rt)
            lows, dlows = low_rt.chunk(self.members), dlow_rt.chunk(self.members)
            members = zip(bts, lows, dlows, dy.split_with_sizes(self.sizes, 1), strict=True)
            for m, (bt, low, dlow, dy_m) in enumerate(members):
                torch.mm(bt, dy_m.t(), out=dlow)
                if grads is not None:
                    add_product(grads.group_bt[name][m], low, dy_m, scale)
        if grads is not None:
            add_product(grads.group_a[name], dlow_rt, x, scale)
        return dlow_rt

    def _folded_forward(self, x_ti: torch.Tensor, plan: Plan) -> torch.Tensor:
        y_to = plan.place(self.name, (x_ti.shape[0], self.columns[-1][1]), x_ti)
        for segment, x, y in zip(plan.segments, plan.pieces(x_ti), plan.pieces(y_to), strict=True):
            torch.mm(x, self.folded(segment.adapter).t(), out=y)
        return y_to if self.bias_o is None else y_to.add_(self.bias_o)

    def _folded_backward(
        self, x_ti: torch.Tensor, dy_to: torch.Tensor, plan: Plan, need_dx: bool
    ) -> torch.Tensor | None:
        dx_ti = plan.place(self.backward_name, x_ti.shape, x_ti) if need_dx else None
        xs, dys = plan.pieces(x_ti), plan.pieces(dy_to)
        if dx_ti is not None:
            for segment, dx, dy in zip(plan.segments, plan.pieces(dx_ti), dys, strict=True):
                torch.mm(dy, self.folded(segment.adapter), out=dx)
        for segment, x, dy in zip(plan.segments, xs, dys, strict=True):
            adapter = segment.adapter
            if adapter is not None and segment.grads is not None and self.name in adapter.layout.groups:
                low_rt = functional.linear(adapter.compute.group_a[self.name], x)
                self._factor_gradients(segment, x, dy, low_rt)
        return dx_ti

    def folded(self, adapter: Adapter | None) -> torch.Tensor:
        """The group's weight with an adapter's product in it, kept with the adapter until it changes."""
        name = self.name
        if adapter is None or name not in adapter.layout.groups:
            return self.weight_oi
        if name not in adapter.folded:
            tensors, scale, weight_oi = adapter.compute, adapter.scale, self.weight_oi
            bts = tensors.group_bt[name]
            if self.members == 1:
                folded = torch.addmm(weight_oi, bts[0].t(), tensors.group_a[name], alpha=scale)
            else:
                folded = torch.empty_like(weight_oi)
                places = zip(*(x.split_with_sizes(self.sizes) for x in (weight_oi, folded)), strict=True)
                for (weight, out), path, bt in zip(places, self.paths, bts, strict=True):
                    torch.addmm(weight, bt.t(), tensors.a[path], alpha=scale, out=out)
            adapter.folded[name] = folded
        return adapter.folded[name]


def evenness(rank: int) -> int:
    """The largest power of two, up to 32, that divides a rank.

    With such ranks first, kernels that go through the ranks in steps meet each adapter in as few as can be.
    """
    return min(rank & -rank, 32)


def _rows(segment: Segment, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(x[segment.start : segment.end] for x in tensors)


def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor, scale: float) -> None:
    """Add `scale * left @ right` to a buffer that may be of wider dtype."""
    if total.dtype == left.dtype:
        total.addmm_(left, right, alpha=scale)
    else:
        total.add_(left @ right, alpha=scale)


class _Linears(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x_ti: torch.Tensor, anchor: torch.Tensor, group: LoraGroup, plan: Plan) -> Any:
        y_to, lows = group.forward(x_ti, plan)
        ctx.save_for_backward(x_ti, *lows)
        ctx.group, ctx.plan = group, plan
        return y_to if len(group.sizes) == 1 else y_to.split(group.sizes, dim=-1)

    @staticmethod
    def backward(ctx: Any, *dys: torch.Tensor) -> Any:
        x_ti, *lows = ctx.saved_tensors
        dy_to = dys[0] if len(dys) == 1 else torch.cat(dys, dim=-1)
        dx = ctx.group.backward(x_ti, lows, dy_to, ctx.plan, ctx.needs_input_grad[0])
        return dx, None, None, None


class LoraLinear(nn.Module):  # type: ignore[misc]
    """Takes a linear's place: the base product plus the running plan's adapters."""

    def __init__(self, group: LoraGroup, member: int, slot: PlanSlot) -> None:
        super().__init__()
        weight, bias = group.view(member)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.out_features, self.in_features = weight.shape
        self.group, self.member, self.slot = group, member, slot

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The linear's output for the running plan, or the base model's when none runs."""
        plan = self.slot.plan
        if plan is None:
            return functional.linear(x, self.weight, self.bias)
        return self.group.output(self.member, x, plan)


def head_logits(
    weight_vi: torch.Tensor, hidden_ti: torch.Tensor, segments: tuple[Segment, ...]
) -> torch.Tensor:
    """Logits `[T, V]` in float32 or wider, each segment with its adapter's unembedding factors."""
    wide = torch.float64 if weight_vi.dtype == torch.float64 else torch.float32
    logits_tv = torch.empty(len(hidden_ti), len(weight_vi), dtype=wide, device=hidden_ti.device)
    wide_product(hidden_ti, weight_vi, logits_tv)
    for segment in segments:
        adapter = segment.adapter
        if adapter is not None and HEAD in adapter.layout.paths:
            span = slice(segment.start, segment.end)
            low_rt = adapter.compute.a[HEAD] @ hidden_ti[span].t()
            if segment.foreign_rt is not None:
                low_rt.masked_fill_(segment.foreign_rt, 0.0)
            add_product(logits_tv[span], low_rt.t(), adapter.compute.bt[HEAD], adapter.scale)
    return logits_tv


def wide_product(x_ti: torch.Tensor, weight_oi: torch.Tensor, out_to: torch.Tensor) -> None:
    """Write `x @ weight.T` to a buffer of the same or a wider dtype, rounding once where the device can."""
    if out_to.dtype == x_ti.dtype:
        torch.mm(x_ti, weight_oi.t(), out=out_to)
    elif x_ti.is_cuda:
        torch.mm(x_ti, weight_oi.t(), out_dtype=out_to.dtype, out=out_to)
    else:
        out_to.copy_(x_ti @ weight_oi.t())
