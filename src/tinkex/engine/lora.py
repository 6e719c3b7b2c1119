"""Multi-adapter LoRA in place of the base model's linear layers.

Linears that read the same input (q, k, v; gate, up) form a `LoraGroup`: their weights become one matrix, of
which the modules keep views, and a pass computes them together. Each run of tokens adds its own adapter's
low-rank product, of whatever rank. Gradients of the factors are added in place to the buffers the plan
names; autograd sees activations only.

Shape letters: T tokens, I inputs, O outputs, R rank, M members of a group, V vocabulary.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from .adapters import LoraSite
from .plan import Plan, PlanSlot, Segment

HEAD = "lm_head"
_ATTENTION: tuple[tuple[str, ...], ...] = (("q_proj", "k_proj", "v_proj"), ("o_proj",))
_MLP: tuple[tuple[str, ...], ...] = (("gate_proj", "up_proj"), ("down_proj",))


class LoraGroup:
    """Linears over one input, computed as one matmul plus each segment's low-rank products."""

    def __init__(self, name: str, linears: list[tuple[str, nn.Linear]]) -> None:
        self.name = name
        self.paths = tuple(path for path, _ in linears)
        self.sizes = tuple(linear.out_features for _, linear in linears)
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
            span = slice(segment.start, segment.end)
            low_rt = adapter.compute.group_a[self.name] @ x_ti[span].t()
            rank, bt = adapter.rank, adapter.compute.bt
            for m, path in enumerate(self.paths):
                start, end = self.columns[m]
                low_tr = low_rt[m * rank : (m + 1) * rank].t()
                y_to[span, start:end].addmm_(low_tr, bt[path], alpha=adapter.scale)
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
        dx_ti = dy_to @ self.weight_oi if need_dx else None
        for segment, low_rt in zip(plan.segments, lows, strict=True):
            if low_rt is None:
                continue
            adapter, grads = segment.adapter, segment.grads
            assert adapter is not None
            rank, scale, bt = adapter.rank, adapter.scale, adapter.compute.bt
            span = slice(segment.start, segment.end)
            dlow_rt = torch.empty_like(low_rt)
            for m, path in enumerate(self.paths):
                start, end = self.columns[m]
                dy = dy_to[span, start:end]
                rows = slice(m * rank, (m + 1) * rank)
                torch.mm(bt[path], dy.t(), out=dlow_rt[rows])
                if grads is not None:
                    add_product(grads.bt[path], low_rt[rows], dy, scale)
            dlow_rt *= scale
            if grads is not None:
                add_product(grads.group_a[self.name], dlow_rt, x_ti[span], 1.0)
            if dx_ti is not None:
                dx_ti[span].addmm_(dlow_rt.t(), adapter.compute.group_a[self.name])
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


def install(model: nn.Module, slot: PlanSlot) -> tuple[LoraSite, ...]:
    """Replace the model's attention and MLP linears; the sites found, the unembedding's last."""
    sites: list[LoraSite] = []
    for index, layer in enumerate(cast("Any", model).model.layers):
        path = f"model.layers.{index}"
        for names in _ATTENTION:
            sites += _replace(layer.self_attn, f"{path}.self_attn", names, "attn", slot)
        for names in _MLP:
            sites += _replace(layer.mlp, f"{path}.mlp", names, "mlp", slot)
    head = cast("nn.Linear", cast("Any", model).lm_head)
    sites.append(LoraSite(HEAD, HEAD, "unembed", head.in_features, head.out_features))
    return tuple(sites)


def _replace(
    parent: nn.Module, path: str, names: tuple[str, ...], part: str, slot: PlanSlot
) -> list[LoraSite]:
    linears = [(f"{path}.{name}", cast("nn.Linear", getattr(parent, name))) for name in names]
    group = LoraGroup(f"{path}.{'+'.join(names)}", linears)
    for member, name in enumerate(names):
        setattr(parent, name, LoraLinear(group, member, slot))
    return [
        LoraSite(site_path, group.name, part, linear.in_features, linear.out_features)
        for site_path, linear in linears
    ]


def head_logits(
    weight_vi: torch.Tensor, hidden_ti: torch.Tensor, segments: tuple[Segment, ...]
) -> torch.Tensor:
    """Logits `[T, V]` of hidden states, each segment with its adapter's unembedding factors."""
    logits_tv = functional.linear(hidden_ti, weight_vi)
    for segment in segments:
        adapter = segment.adapter
        if adapter is not None and HEAD in adapter.layout.paths:
            span = slice(segment.start, segment.end)
            low_rt = adapter.compute.a[HEAD] @ hidden_ti[span].t()
            logits_tv[span].addmm_(low_rt.t(), adapter.compute.bt[HEAD], alpha=adapter.scale)
    return logits_tv
