"""Mixture-of-experts layers with LoRA: the experts' forward and backward pass in place of transformers'
own.

The factor on the hidden side is shared by all experts (gate and up: A; down: B), the other is each expert's
own. Pairs of token and expert are sorted by expert; inside an expert they stay in token order, so an
adapter's tokens are a run there too. Sums over a token's experts go through the inverse order, never
through atomic adds.

Shape letters: T tokens, X experts a token, P = T X pairs, C hidden size, I inner size, E experts, R rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from .adapters import Adapter, LoraSite, LoraTensors
from .lora import add_product
from .plan import Plan, PlanSlot, Segment

EXPERTS = "tinkex"


@dataclass(slots=True)
class ExpertPaths:
    """The names of an experts module's three sites, and of the group of the two on its input."""

    gate: str
    up: str
    down: str
    inputs: str

    @classmethod
    def under(cls, path: str) -> ExpertPaths:
        """The names for the experts module at `path`."""
        gate, up, down = (f"{path}.{name}_proj" for name in ("gate", "up", "down"))
        return cls(gate, up, down, inputs=f"{path}.gate_proj+up_proj")


def install_experts(experts: nn.Module, path: str, slot: PlanSlot) -> list[LoraSite]:
    """Give an experts module its names and the running plan; the sites it has."""
    paths = ExpertPaths.under(path)
    count, double, hidden = experts.gate_up_proj.shape
    inner = double // 2
    experts.tinkex_paths, experts.tinkex_slot = paths, slot
    return [
        LoraSite(paths.gate, paths.inputs, "mlp", hidden, inner, count, "a"),
        LoraSite(paths.up, paths.inputs, "mlp", hidden, inner, count, "a"),
        LoraSite(paths.down, paths.down, "mlp", inner, hidden, count, "b"),
    ]


def experts_forward(
    module: nn.Module, hidden: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """The weighted sum of each token's experts, for the plan now running."""
    plan: Plan | None = module.tinkex_slot.plan
    if plan is None:
        raise RuntimeError("the model was called without a plan; use BaseModel.hidden_states")
    route = _Route(module, top_k_index, plan)
    out: torch.Tensor
    if plan.anchor is not None:
        out = _Experts.apply(hidden, top_k_weights, plan.anchor, route)
    else:
        out = route.forward(hidden, top_k_weights)[0]
    return out


ALL_EXPERTS_FUNCTIONS.register(EXPERTS, experts_forward)


class _Run:
    """The pairs of one expert and one adapter: rows `rows` of the sorted pairs, `local` of the expert's
    own.
    """

    __slots__ = ("adapter", "grads", "local", "rows", "segment")

    def __init__(self, segment: int, piece: Segment, first: int, rows: slice) -> None:
        assert piece.adapter is not None
        self.adapter: Adapter = piece.adapter
        self.grads: LoraTensors | None = piece.grads
        self.segment = segment
        self.rows = rows
        self.local = slice(rows.start - first, rows.stop - first)


class _Route:
    """Which pairs go to which expert under which adapter."""

    def __init__(self, module: Any, top_k_index: torch.Tensor, plan: Plan) -> None:
        self.paths: ExpertPaths = module.tinkex_paths
        self.gate_up_ehc: torch.Tensor = module.gate_up_proj
        self.down_eci: torch.Tensor = module.down_proj
        self.plan = plan
        self.tokens, self.width = top_k_index.shape
        flat = top_k_index.reshape(-1)
        self.order_p = torch.argsort(flat, stable=True)
        self.back_p = torch.empty_like(self.order_p)
        self.back_p[self.order_p] = torch.arange(len(flat), device=flat.device)
        self.token_p = self.order_p // self.width
        # Where each (expert, segment) begins among the sorted pairs: one trip to the host for all of them.
        starts = [piece.start for piece in plan.segments]
        keys_p = flat[self.order_p] * self.tokens + self.token_p
        marks = torch.arange(len(self.down_eci), device=flat.device)[:, None] * self.tokens
        marks = marks + torch.tensor(starts, device=flat.device)
        self.bounds = [*torch.searchsorted(keys_p, marks.reshape(-1)).tolist(), len(flat)]

    def experts(self) -> Iterator[tuple[int, slice, list[_Run]]]:
        """Every expert that has tokens: its number, its rows and its adapters' runs."""
        pieces = self.plan.segments
        count = len(pieces)
        for expert in range(len(self.down_eci)):
            at = self.bounds[expert * count : (expert + 1) * count + 1]
            if at[0] == at[-1]:
                continue
            runs = [
                _Run(i, piece, at[0], slice(at[i], at[i + 1]))
                for i, piece in enumerate(pieces)
                if at[i] < at[i + 1]
                and piece.adapter is not None
                and self.paths.down in piece.adapter.layout.paths
            ]
            yield expert, slice(at[0], at[-1]), runs

    def lows(self, x_tc: torch.Tensor) -> list[torch.Tensor | None]:
        """Per segment, the shared As of gate and up times its tokens, `[tokens, 2 R]`."""
        found: list[torch.Tensor | None] = []
        for piece in self.plan.segments:
            adapter = piece.adapter
            if adapter is None or self.paths.inputs not in adapter.layout.groups:
                found.append(None)
            else:
                found.append(x_tc[piece.start : piece.end] @ adapter.compute.group_a[self.paths.inputs].t())
        return found

    def low_of(self, run: _Run, lows: list[torch.Tensor | None]) -> torch.Tensor:
        """The rows of `lows` that belong to a run's pairs."""
        low = lows[run.segment]
        assert low is not None
        return low[self.token_p[run.rows] - self.plan.segments[run.segment].start]

    def inner(
        self, x_mc: torch.Tensor, expert: int, runs: list[_Run], lows: list[torch.Tensor | None]
    ) -> torch.Tensor:
        """Gate and up of an expert's rows, side by side."""
        both = x_mc @ self.gate_up_ehc[expert].t()
        half = both.shape[1] // 2
        for run in runs:
            tensors, scale, rank = run.adapter.compute, run.adapter.scale, run.adapter.rank
            low = self.low_of(run, lows)
            both[run.local, :half].addmm_(low[:, :rank], tensors.bt[self.paths.gate][expert], alpha=scale)
            both[run.local, half:].addmm_(low[:, rank:], tensors.bt[self.paths.up][expert], alpha=scale)
        return both

    def forward(
        self, x_tc: torch.Tensor, weights_tx: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor | None], torch.Tensor]:
        """The layer's output; per segment the products with the shared As; gate and up of all pairs."""
        lows = self.lows(x_tc)
        both_ph = x_tc.new_empty(len(self.order_p), self.gate_up_ehc.shape[1])
        out_pc = x_tc.new_empty(len(self.order_p), x_tc.shape[1])
        for expert, rows, runs in self.experts():
            both = self.inner(x_tc[self.token_p[rows]], expert, runs, lows)
            both_ph[rows] = both
            gated = _gated(both)
            out = gated @ self.down_eci[expert].t()
            for run in runs:
                tensors = run.adapter.compute
                low = gated[run.local] @ tensors.a[self.paths.down][expert].t()
                out[run.local].addmm_(low, tensors.bt[self.paths.down], alpha=run.adapter.scale)
            out_pc[rows] = out
        return self.gather(out_pc * weights_tx.reshape(-1, 1)[self.order_p]).to(x_tc.dtype), lows, both_ph

    def gather(self, rows_pc: torch.Tensor) -> torch.Tensor:
        """The sum over each token's experts of rows in sorted order."""
        return rows_pc[self.back_p].view(self.tokens, self.width, -1).sum(1)


class _Experts(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, x_tc: torch.Tensor, weights_tx: torch.Tensor, anchor: torch.Tensor, route: _Route
    ) -> torch.Tensor:
        out, lows, both_ph = route.forward(x_tc, weights_tx)
        ctx.save_for_backward(x_tc, weights_tx, both_ph, *lows)
        ctx.route = route
        return out

    @staticmethod
    def backward(ctx: Any, dy_tc: torch.Tensor) -> Any:
        x_tc, weights_tx, both_ph, *lows = ctx.saved_tensors
        route: _Route = ctx.route
        names = route.paths
        weights_p = weights_tx.reshape(-1, 1)[route.order_p]
        dx_pc = torch.empty(len(both_ph), x_tc.shape[1], dtype=x_tc.dtype, device=x_tc.device)
        dweights_p = torch.empty(len(both_ph), dtype=weights_tx.dtype, device=x_tc.device)
        dlows_p: list[torch.Tensor | None] = [
            None
            if low is None
            else torch.zeros(len(both_ph), low.shape[1], dtype=low.dtype, device=low.device)
            for low in lows
        ]
        for expert, rows, runs in route.experts():
            tokens = route.token_p[rows]
            dout, weight = dy_tc[tokens], weights_p[rows].to(dy_tc.dtype)
            gate, up = both_ph[rows].chunk(2, dim=-1)
            silu = functional.silu(gate)
            gated = silu * up
            # Before the routing weight: this gradient's product with the output is that weight's gradient.
            dgated = dout @ route.down_eci[expert]
            for run in runs:
                tensors, grads, scale = run.adapter.compute, run.grads, run.adapter.scale
                a = tensors.a[names.down][expert]
                low_rm = a @ gated[run.local].t()
                dlow_rm = (tensors.bt[names.down] @ dout[run.local].t()).mul_(scale)
                dgated[run.local].addmm_(dlow_rm.t(), a)
                if grads is not None:
                    weighted = dout[run.local] * weight[run.local]
                    add_product(grads.bt[names.down], low_rm, weighted, scale)
                    scaled = dlow_rm * weight[run.local].t()
                    add_product(grads.a[names.down][expert], scaled, gated[run.local], 1.0)
            dweights_p[rows] = (dgated * gated).sum(-1).to(dweights_p.dtype)
            dgated = dgated * weight
            dboth = torch.cat([torch.ops.aten.silu_backward(dgated * up, gate), dgated * silu], dim=-1)
            half = gate.shape[1]
            for run in runs:
                tensors, grads = run.adapter.compute, run.grads
                scale, rank = run.adapter.scale, run.adapter.rank
                low = route.low_of(run, lows)
                into = dlows_p[run.segment]
                assert into is not None
                for path, side, part in (
                    (names.gate, slice(0, half), slice(0, rank)),
                    (names.up, slice(half, None), slice(rank, None)),
                ):
                    d = dboth[run.local, side]
                    into[run.rows, part] = (d @ tensors.bt[path][expert].t()).mul_(scale)
                    if grads is not None:
                        add_product(grads.bt[path][expert], low[:, part].t(), d, scale)
            dx_pc[rows] = dboth @ route.gate_up_ehc[expert]
        dx_tc = route.gather(dx_pc)
        for piece, dlow_p in zip(route.plan.segments, dlows_p, strict=True):
            if dlow_p is None:
                continue
            assert piece.adapter is not None
            dlow = route.gather(dlow_p)[piece.start : piece.end]
            dx_tc[piece.start : piece.end].addmm_(dlow, piece.adapter.compute.group_a[names.inputs])
            if piece.grads is not None:
                x = x_tc[piece.start : piece.end]
                add_product(piece.grads.group_a[names.inputs], dlow.t(), x, 1.0)
        return dx_tc, dweights_p[route.back_p].view_as(weights_tx), None, None


def _gated(both: torch.Tensor) -> torch.Tensor:
    gate, up = both.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)
