"""The decoder layers of Llama-shaped models as few hand-differentiated steps over transformers' own
weights.

A layer is: normalise, project to q, k, v, (normalise heads,) rotate; attend; project and add; normalise,
gated MLP and add. Autograd sees one node for each of the four. What differs from that shape is left to
transformers' own forward pass (`Decoder.over` answers None).

Shape letters: T tokens, C hidden size, H query heads, K key/value heads, N = H + K, D head size, O outputs,
I the MLP's inner size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from .lora import LoraGroup, LoraLinear
from .plan import Plan, PlanSlot
from .rms_norm import rms_norm, rms_norm_again, rms_norm_backward
from .rotary import Rotary, Rotation


class DecoderLayer:
    """One layer: the frozen tensors it reads and the steps it runs."""

    def __init__(self, layer: Any, index: int, config: Any) -> None:
        self.slot: PlanSlot = layer.self_attn.q_proj.slot
        attn, mlp = layer.self_attn, layer.mlp
        self.index = index
        self.norm_in, self.norm_out = layer.input_layernorm, layer.post_attention_layernorm
        self.eps = float(self.norm_in.variance_epsilon)
        self.qkv: LoraGroup = attn.q_proj.group
        self.out: LoraGroup = attn.o_proj.group
        self.head_size: int = attn.head_dim
        self.q_heads = self.qkv.sizes[0] // self.head_size
        self.heads = self.q_heads + self.qkv.sizes[1] // self.head_size
        self.scaling: float = attn.scaling
        mistral = getattr(config, "model_type", "") == "mistral"
        self.window: int | None = getattr(
            attn, "sliding_window", config.sliding_window if mistral else None
        )
        self.head_norm_nd: torch.Tensor | None = None
        if hasattr(attn, "q_norm"):
            kv_heads = self.heads - self.q_heads
            self.head_norm_nd = torch.cat(
                [
                    attn.q_norm.weight.expand(self.q_heads, -1),
                    attn.k_norm.weight.expand(kv_heads, -1),
                ]
            ).contiguous()
        self.mlp: nn.Module = mlp
        self.dense = hasattr(mlp, "gate_proj")
        if self.dense:
            self.gate_up: LoraGroup = mlp.gate_proj.group
            self.down: LoraGroup = mlp.down_proj.group

    def run(self, x_tc: torch.Tensor, plan: Plan, turn: Rotation) -> torch.Tensor:
        """The layer's output for one row of tokens."""
        anchor = plan.anchor
        if anchor is not None:
            q, k, v = _AttentionIn.apply(x_tc, anchor, self, plan, turn)
        else:
            q, k, v = self.attention_in(x_tc, plan, turn)[0]
        attended = plan.attention(plan, self.index, q, k, v, self.scaling, self.window)
        attended = attended.reshape(x_tc.shape[0], -1)
        if anchor is not None:
            x_tc = _AttentionOut.apply(x_tc, attended, anchor, self, plan)
        else:
            x_tc = self.out.forward(attended, plan)[0].add_(x_tc)
        if not self.dense:
            normed = rms_norm_module(self.norm_out, x_tc, plan)
            # Set here and not for the whole pass: this also runs again inside a checkpointed backward pass.
            self.slot.plan = plan
            return x_tc + self.mlp(normed.unsqueeze(0))[0]
        if anchor is not None:
            out: torch.Tensor = _GatedMlp.apply(x_tc, anchor, self, plan)
            return out
        return self.gated_mlp(x_tc, plan)[0]

    def attention_in(
        self, x_tc: torch.Tensor, plan: Plan, turn: Rotation
    ) -> tuple[tuple[torch.Tensor, ...], list[torch.Tensor | None]]:
        """Rotated q and k, and v, as `[T, heads, D]`; and what the backward pass needs."""
        tokens = x_tc.shape[0]
        normed, rstd = rms_norm(x_tc, self.norm_in.weight, self.eps)
        y_to, lows = self.qkv.forward(normed, plan)
        y_tnd = y_to.view(tokens, -1, self.head_size)
        raw_tnd = y_tnd[:, : self.heads]
        head_rstd = None
        heads_tnd = raw_tnd
        if self.head_norm_nd is not None:
            heads_tnd, head_rstd = rms_norm(raw_tnd, self.head_norm_nd, self.eps)
        qk_tnd = x_tc.new_empty(tokens, self.heads, self.head_size)
        turn.turn(heads_tnd, qk_tnd)
        outputs = (qk_tnd[:, : self.q_heads], qk_tnd[:, self.q_heads :], y_tnd[:, self.heads :])
        keep_raw = raw_tnd if head_rstd is not None else None
        return outputs, [rstd, keep_raw, head_rstd, *lows]

    def gated_mlp(
        self, x_tc: torch.Tensor, plan: Plan
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[Any], list[Any]]:
        """The input plus its gated MLP; and what the backward pass needs."""
        normed, rstd = rms_norm(x_tc, self.norm_out.weight, self.eps)
        both_ti, lows_in = self.gate_up.forward(normed, plan)
        out_tc, lows_out = self.down.forward(self.gated(both_ti), plan)
        return out_tc.add_(x_tc), rstd, both_ti, lows_in, lows_out

    @staticmethod
    def gated(both_ti: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up, of the two side by side."""
        gate, up = both_ti.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)


class _AttentionIn(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        x_tc: torch.Tensor,
        anchor: torch.Tensor,
        layer: DecoderLayer,
        plan: Plan,
        turn: Rotation,
    ) -> Any:
        outputs, kept = layer.attention_in(x_tc, plan, turn)
        ctx.save_for_backward(x_tc, *kept)
        ctx.layer, ctx.plan, ctx.turn = layer, plan, turn
        return outputs

    @staticmethod
    def backward(ctx: Any, dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor) -> Any:
        x_tc, rstd, raw_tnd, head_rstd, *lows = ctx.saved_tensors
        layer, plan = ctx.layer, ctx.plan
        tokens = x_tc.shape[0]
        dy_to = x_tc.new_empty(tokens, sum(layer.qkv.sizes))
        dy_tnd = dy_to.view(tokens, -1, layer.head_size)
        ctx.turn.turn_back(dq, dy_tnd[:, : layer.q_heads])
        ctx.turn.turn_back(dk, dy_tnd[:, layer.q_heads : layer.heads])
        dy_tnd[:, layer.heads :] = dv
        if raw_tnd is not None:
            dqk = dy_tnd[:, : layer.heads]
            unit = raw_tnd.to(head_rstd.dtype) * head_rstd
            dqk.copy_(rms_norm_backward(dqk, unit, head_rstd, layer.head_norm_nd))
        weight = layer.norm_in.weight
        normed, kept = rms_norm_again(x_tc, rstd, weight)
        dnormed = layer.qkv.backward(normed, lows, dy_to, plan, ctx.needs_input_grad[0])
        dx = None if dnormed is None else rms_norm_backward(dnormed, kept, rstd, weight)
        return dx, None, None, None, None


class _AttentionOut(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        x_tc: torch.Tensor,
        attended: torch.Tensor,
        anchor: torch.Tensor,
        layer: DecoderLayer,
        plan: Plan,
    ) -> torch.Tensor:
        y_tc, lows = layer.out.forward(attended, plan)
        ctx.save_for_backward(attended, *lows)
        ctx.layer, ctx.plan = layer, plan
        return y_tc.add_(x_tc)

    @staticmethod
    def backward(ctx: Any, dy_tc: torch.Tensor) -> Any:
        attended, *lows = ctx.saved_tensors
        dattended = ctx.layer.out.backward(attended, lows, dy_tc, ctx.plan, True)
        return dy_tc, dattended, None, None, None


class _GatedMlp(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, x_tc: torch.Tensor, anchor: torch.Tensor, layer: DecoderLayer, plan: Plan
    ) -> torch.Tensor:
        out_tc, rstd, both_ti, lows_in, lows_out = layer.gated_mlp(x_tc, plan)
        ctx.save_for_backward(x_tc, rstd, both_ti, *lows_in, *lows_out)
        ctx.layer, ctx.plan = layer, plan
        return out_tc

    @staticmethod
    def backward(ctx: Any, dy_tc: torch.Tensor) -> Any:
        x_tc, rstd, both_ti, *lows = ctx.saved_tensors
        layer, plan = ctx.layer, ctx.plan
        lows_in, lows_out = lows[: len(lows) // 2], lows[len(lows) // 2 :]
        gate, up = both_ti.chunk(2, dim=-1)
        silu = functional.silu(gate)
        dgated = layer.down.backward(silu * up, lows_out, dy_tc, plan, True)
        dboth = torch.empty_like(both_ti)
        dgate, dup = dboth.chunk(2, dim=-1)
        torch.mul(dgated, silu, out=dup)
        torch.ops.aten.silu_backward.grad_input(dgated.mul_(up), gate, grad_input=dgate)
        normed, kept = rms_norm_again(x_tc, rstd, layer.norm_out.weight)
        dnormed = layer.gate_up.backward(normed, lows_in, dboth, plan, True)
        dx = rms_norm_backward(dnormed, kept, rstd, layer.norm_out.weight).add_(dy_tc)
        return dx, None, None, None


class _RmsNorm(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        y, rstd = rms_norm(x, weight, eps)
        ctx.save_for_backward(x, weight, rstd)
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        x, weight, rstd = ctx.saved_tensors
        return rms_norm_backward(dy, rms_norm_again(x, rstd, weight)[1], rstd, weight), None, None


def rms_norm_module(module: Any, x: torch.Tensor, plan: Plan) -> torch.Tensor:
    """What one of transformers' norm modules gives, as one autograd node."""
    eps = float(module.variance_epsilon)
    if not plan.training:
        return rms_norm(x, module.weight, eps)[0]
    y: torch.Tensor = _RmsNorm.apply(x, module.weight, eps)
    return y


class Decoder:
    """All layers, from token ids to final hidden states."""

    def __init__(self, model: Any, config: Any) -> None:
        self.embed, self.norm = model.embed_tokens, model.norm
        self.layers = [DecoderLayer(layer, i, config) for i, layer in enumerate(model.layers)]
        self.rotary = Rotary(model.rotary_emb, self.layers[0].heads, config.max_position_embeddings)

    @classmethod
    def over(cls, model: Any, config: Any) -> Decoder | None:
        """The decoder of a model of this shape, or None if some layer is of another one."""
        if not all(_known(layer, config) for layer in model.layers):
            return None
        return cls(model, config)

    def run(self, input_ids: torch.Tensor, position_ids: torch.Tensor, plan: Plan) -> torch.Tensor:
        """Final-norm hidden states `[T, C]` of one row."""
        x_tc = self.embed(input_ids[0])
        turn = self.rotary.at(x_tc, position_ids)
        for layer in self.layers:
            if plan.checkpoint and plan.training:
                x_tc = checkpoint(
                    layer.run, x_tc, plan, turn, use_reentrant=False, preserve_rng_state=False
                )
            else:
                x_tc = layer.run(x_tc, plan, turn)
        return rms_norm_module(self.norm, x_tc, plan)


def _known(layer: Any, config: Any) -> bool:
    attn, mlp = layer.self_attn, layer.mlp
    dense = isinstance(getattr(mlp, "gate_proj", None), LoraLinear)
    partial = (getattr(config, "rope_parameters", None) or {}).get("partial_rotary_factor", 1.0)
    return (
        isinstance(getattr(attn, "q_proj", None), LoraLinear)
        and hasattr(layer.input_layernorm, "variance_epsilon")
        and (dense or hasattr(mlp, "experts"))
        and config.hidden_act == "silu"
        and partial == 1.0
    )
