"""Multi-adapter LoRA in place of the base model's linear layers.

Linears that read the same input (q, k, v; gate, up) form a `LoraGroup`: their weights become one matrix, of
which the modules keep views, and a pass computes them together. Each run of tokens adds its own adapter's
low-rank product, of whatever rank. Gradients of the factors are added in place to the buffers the plan
names; autograd sees activations only.

Shape letters: T tokens, I inputs, O outputs, R rank, M members of a group, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from .plan import Plan, PlanSlot, Segment

HEAD = "lm_head"


class LoraGroup:
    """Linears over one input, computed as one matmul plus each segment's low-rank products."""

    def __init__(self, name: str, linears: list[tuple[str, nn.Linear]]) -> None:
        self.name = name
        self.paths = tuple(path for path, _ in linears)
        self.sizes = [linear.out_features for _, linear in linears]
        self.members = len(linears)
        self.inner = linears[0][1].in_features
        ends = torch.tensor(self.sizes).cumsum(0).tolist()
        self.columns = tuple(zip([0, *ends[:-1]], ends, strict=True))
        if len(linears) == 1:
            self.weight_oi = linears[0][1].weight
            self.bias_o = linears[0][1].bias
        else:
            self.weight_oi = torch.cat([linear.weight.data for _, linear in linears])
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
        y_to = functional.linear(x_ti, self.weight_oi, self.bias_o)
        lows: list[torch.Tensor | None] = []
        for segment in plan.segments:
            adapter = segment.adapter
            if adapter is None or self.name not in adapter.layout.groups:
                lows.append(None)
                continue
            tensors, scale = adapter.compute, adapter.scale
            low_rt = torch.mm(tensors.group_a[self.name], x_ti[segment.start : segment.end].t())
            outputs = y_to[segment.start : segment.end].split_with_sizes(self.sizes, 1)
            each = low_rt.t().chunk(self.members, 1)
            for y, low_tr, bt in zip(outputs, each, tensors.group_bt[self.name], strict=True):
                y.addmm_(low_tr, bt, alpha=scale)
            lows.append(low_rt)
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
        dx_ti = torch.mm(dy_to, self.weight_oi) if need_dx else None
        name = self.name
        for segment, low_rt in zip(plan.segments, lows, strict=True):
            if low_rt is None:
                continue
            adapter, grads = segment.adapter, segment.grads
            assert adapter is not None
            tensors, scale = adapter.compute, adapter.scale
            span = slice(segment.start, segment.end)
            dys = dy_to[span].split_with_sizes(self.sizes, 1)
            dlow_rt = torch.empty_like(low_rt)
            for dy, dlow, bt in zip(dys, dlow_rt.chunk(self.members), tensors.group_bt[name], strict=True):
                torch.mm(bt, dy.t(), out=dlow)
            dlow_rt *= scale
            if grads is not None:
                for dy, low, grad in zip(
                    dys, low_rt.chunk(self.members), grads.group_bt[name], strict=True
                ):
                    add_product(grad, low, dy, scale)
                add_product(grads.group_a[name], dlow_rt, x_ti[span], 1.0)
            if dx_ti is not None:
                dx_ti[span].addmm_(dlow_rt.t(), tensors.group_a[name])
        return dx_ti


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
