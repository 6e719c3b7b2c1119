"""The decoder layers of Llama-shaped models as few hand-differentiated steps over transformers' own
weights.

A layer is: normalise, project to q, k, v, (normalise heads,) rotate; attend; project and add; normalise,
gated MLP and add. A training pass keeps what each layer's backward pass needs and runs it by hand; autograd
is asked only inside routers of experts and GPU attention. What differs from that shape is left to
transformers' own forward pass (`Decoder.over` answers None).

Shape letters: T tokens, C hidden size, H query heads, K key/value heads, N = H + K, D head size, O outputs,
I the MLP's inner size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.nn import functional

from .lora import LoraGroup, LoraLinear
from .packed_attention import attend, attend_backward
from .plan import Plan, PlanSlot, Segment
from .rms_norm import rms_norm, rms_norm_again, rms_norm_backward
from .rotary import Rotary, Rotation


class TrainingPass(Protocol):
    """A forward pass that can be followed by its backward pass."""

    hidden: torch.Tensor

    def backward(self, dhidden: torch.Tensor) -> None:
        """Add the adapters' gradients to the plan's buffers, given that of the hidden states, used up."""


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
        """The layer's output for one row of tokens, nothing kept."""
        (q, k, v), _ = self.attention_in(x_tc, plan, turn)
        attended = plan.attention(plan, self.index, q, k, v, self.scaling, self.window)
        x_tc = self.out.forward(attended.reshape(x_tc.shape[0], -1), plan)[0].add_(x_tc)
        if self.dense:
            return self.gated_mlp(x_tc, plan)[0]
        return self.experts(rms_norm(x_tc, self.norm_out.weight, self.eps)[0], plan).add_(x_tc)

    def forward(self, x_tc: torch.Tensor, plan: Plan, turn: Rotation) -> tuple[torch.Tensor, _Kept]:
        """The layer's output, and what its backward pass needs."""
        qkv, kept_in = self.attention_in(x_tc, plan, turn)
        q, k, v = qkv
        attended, kept_attention = attend(plan, q, k, v, self.scaling, self.window, self.index)
        attended_tc = attended.view(x_tc.shape[0], -1)
        out_tc, lows = self.out.forward(attended_tc, plan)
        middle_tc = out_tc.add_(x_tc)
        if self.dense:
            y_tc, kept_mlp = self.gated_mlp(middle_tc, plan)
        else:
            normed, rstd = rms_norm(middle_tc, self.norm_out.weight, self.eps)
            leaf = normed.requires_grad_()
            with torch.enable_grad():
                mixed = self.experts(leaf, plan)
            y_tc, kept_mlp = mixed.detach() + middle_tc, (rstd, leaf, mixed)
        return y_tc, _Kept(x_tc, kept_in, qkv, kept_attention, attended, lows, middle_tc, kept_mlp)

    def backward(
        self, dy_tc: torch.Tensor, kept: _Kept, plan: Plan, turn: Rotation, need_dx: bool
    ) -> torch.Tensor | None:
        """The gradient of the input; the adapters' gradients are added to the plan's buffers."""
        back = self._gated_mlp_backward if self.dense else self._experts_backward
        dmiddle_tc = back(dy_tc, kept.middle_tc, kept.mlp, plan)
        attended = kept.attended
        tokens = attended.shape[0]
        dattended = self.out.backward(attended.view(tokens, -1), kept.lows, dmiddle_tc, plan, True)
        assert dattended is not None
        dy_to = plan.place("dqkv", (tokens, self.qkv.columns[-1][1]), dy_tc)
        dy_tnd = dy_to.view(tokens, -1, self.head_size)
        found = attend_backward(
            plan,
            kept.qkv,
            attended,
            dattended.view(attended.shape),
            kept.attention,
            self.scaling,
            self.window,
            dv=dy_tnd[:, self.heads :],
        )
        start = 0
        for turned_tnd in found:
            end = start + turned_tnd.shape[1]
            turn.turn_back(turned_tnd, dy_tnd[:, start:end])
            start = end
        rstd, raw_tnd, head_rstd, lows = kept.attention_in
        if self.head_norm_nd is not None:
            dqk = dy_tnd[:, : self.heads]
            room = plan.spare("unit", raw_tnd.shape, raw_tnd)
            head_unit = torch.mul(raw_tnd.to(head_rstd.dtype), head_rstd, out=room)
            back_tnd = rms_norm_backward(
                dqk, head_unit, head_rstd, self.head_norm_nd,
                out=dqk if dqk.dtype == head_rstd.dtype else None,
                work=plan.spare("heads", dqk.shape, dqk),
            )  # fmt: skip
            if back_tnd is not dqk:
                dqk.copy_(back_tnd)
        normed, unit = self._norm_again(kept.x_tc, rstd, self.norm_in.weight, plan)
        dnormed = self.qkv.backward(normed, lows, dy_to, plan, need_dx)
        if dnormed is None:
            return None
        return self._norm_backward(dnormed, unit, rstd, self.norm_in.weight, plan).add_(dmiddle_tc)

    def attention_in(
        self, x_tc: torch.Tensor, plan: Plan, turn: Rotation
    ) -> tuple[tuple[torch.Tensor, ...], tuple[Any, ...]]:
        """Rotated q and k, and v, as `[T, heads, D]`; and what the backward pass needs."""
        tokens = x_tc.shape[0]
        normed, rstd = self._norm(x_tc, self.norm_in.weight, plan)
        y_to, lows = self.qkv.forward(normed, plan)
        y_tnd = y_to.view(tokens, -1, self.head_size)
        heads_tnd = raw_tnd = y_tnd[:, : self.heads]
        head_rstd = None
        if self.head_norm_nd is not None:
            heads_tnd, head_rstd = self._norm(raw_tnd, self.head_norm_nd, plan)
        qk_tnd = plan.place((self.index, "qk"), heads_tnd.shape, x_tc)
        turn.turn(heads_tnd, qk_tnd)
        outputs = (qk_tnd[:, : self.q_heads], qk_tnd[:, self.q_heads :], y_tnd[:, self.heads :])
        return outputs, (rstd, raw_tnd, head_rstd, lows)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor, plan: Plan) -> tuple[torch.Tensor, torch.Tensor]:
        return rms_norm(x, weight, self.eps, out=plan.spare("normed", x.shape, x))

    def _norm_again(
        self, x: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor, plan: Plan
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, unit = plan.spare("normed", x.shape, x), plan.spare("unit", x.shape, x)
        return rms_norm_again(x, rstd, weight, out=out, unit=unit)

    def _norm_backward(
        self, dy: torch.Tensor, unit: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor, plan: Plan
    ) -> torch.Tensor:
        """The gradient of a norm's input, written over its output's."""
        work = plan.spare("norm", dy.shape, dy)
        return rms_norm_backward(dy, unit, rstd, weight, out=dy, work=work)

    def gated_mlp(self, x_tc: torch.Tensor, plan: Plan) -> tuple[torch.Tensor, Any]:
        """The input plus its gated MLP; and what the backward pass needs."""
        normed, rstd = self._norm(x_tc, self.norm_out.weight, plan)
        both_ti, lows_in = self.gate_up.forward(normed, plan)
        gate, up = both_ti.chunk(2, dim=-1)
        out_tc, lows_out = self.down.forward(_silu(gate, plan).mul_(up), plan)
        return out_tc.add_(x_tc), (rstd, both_ti, lows_in, lows_out)

    def _gated_mlp_backward(
        self, dy_tc: torch.Tensor, x_tc: torch.Tensor, kept: Any, plan: Plan
    ) -> torch.Tensor:
        rstd, both_ti, lows_in, lows_out = kept
        gate, up = both_ti.chunk(2, dim=-1)
        silu = _silu(gate, plan)
        gated = torch.mul(silu, up, out=plan.spare("gated", silu.shape, silu))
        dgated = self.down.backward(gated, lows_out, dy_tc, plan, True)
        assert dgated is not None
        dboth = plan.place("dboth", both_ti.shape, both_ti)
        dgate, dup = dboth.chunk(2, dim=-1)
        torch.mul(dgated, silu, out=dup)
        torch.ops.aten.silu_backward.grad_input(dgated.mul_(up), gate, grad_input=dgate)
        weight = self.norm_out.weight
        normed, unit = self._norm_again(x_tc, rstd, weight, plan)
        dnormed = self.gate_up.backward(normed, lows_in, dboth, plan, True)
        assert dnormed is not None
        return self._norm_backward(dnormed, unit, rstd, weight, plan).add_(dy_tc)

    def experts(self, normed: torch.Tensor, plan: Plan) -> torch.Tensor:
        """The mixture of experts, by transformers' own router and our experts function."""
        self.slot.plan = plan
        mixed: torch.Tensor = self.mlp(normed.unsqueeze(0))[0]
        return mixed

    def _experts_backward(
        self, dy_tc: torch.Tensor, x_tc: torch.Tensor, kept: Any, plan: Plan
    ) -> torch.Tensor:
        rstd, leaf, mixed = kept
        (dnormed,) = torch.autograd.grad(mixed, [leaf], dy_tc)
        weight = self.norm_out.weight
        unit = rms_norm_again(x_tc, rstd, weight)[1]
        return rms_norm_backward(dnormed, unit, rstd, weight).add_(dy_tc)


class _Kept(NamedTuple):
    """What a layer's backward pass needs of its forward pass."""

    x_tc: torch.Tensor
    attention_in: tuple[Any, ...]
    qkv: tuple[torch.Tensor, ...]
    attention: Any
    attended: torch.Tensor
    lows: list[torch.Tensor | None]
    middle_tc: torch.Tensor
    mlp: tuple[Any, ...]


class Decoder:
    """All layers, from token ids to final hidden states."""

    border: Any = None
    """The room for adapters beside the weights, where a device has it."""

    def __init__(self, model: Any, config: Any) -> None:
        self.embed, self.norm = model.embed_tokens, model.norm
        self.layers = [DecoderLayer(layer, i, config) for i, layer in enumerate(model.layers)]
        self.rotary = Rotary(model.rotary_emb, self.layers[0].heads, config.max_position_embeddings)
        self.eps = float(self.norm.variance_epsilon)
        self.dense = all(layer.dense for layer in self.layers)

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
            x_tc = layer.run(x_tc, plan, turn)
        return rms_norm(x_tc, self.norm.weight, self.eps)[0]

    def logits(self, hidden_tc: torch.Tensor, segments: tuple[Segment, ...]) -> torch.Tensor | None:
        """Logits where this decoder has a way of its own to compute them."""
        return None

    def start(self, input_ids: torch.Tensor, position_ids: torch.Tensor, plan: Plan) -> TrainingPass:
        """A forward pass that can be followed by a backward pass."""
        x_tc = self.embed(input_ids[0])
        turn = self.rotary.at(x_tc, position_ids)
        kept: list[tuple[torch.Tensor, _Kept | None]] = []
        for layer in self.layers:
            before = x_tc
            x_tc, one = layer.forward(before, plan, turn)
            kept.append((before, None if plan.checkpoint else one))
        room = plan.spare("hidden", x_tc.shape, x_tc)
        hidden, rstd = rms_norm(x_tc, self.norm.weight, self.eps, out=room)
        return DecoderPass(self, plan, turn, kept, x_tc, rstd, hidden)


@dataclass(slots=True)
class DecoderPass:
    """A forward pass and what it kept, layer by layer; `backward` lets go of each layer as it passes it."""

    decoder: Decoder
    plan: Plan
    turn: Rotation
    kept: list[tuple[torch.Tensor, _Kept | None]]
    last_tc: torch.Tensor
    rstd: torch.Tensor
    hidden: torch.Tensor

    def backward(self, dhidden: torch.Tensor) -> None:
        """Add the adapters' gradients to the plan's buffers, given that of the hidden states, used up."""
        weight = self.decoder.norm.weight
        shape, spare = dhidden.shape, self.plan.spare
        unit = rms_norm_again(self.last_tc, self.rstd, weight, unit=spare("unit", shape, dhidden))[1]
        dx: torch.Tensor | None = rms_norm_backward(
            dhidden, unit, self.rstd, weight, out=dhidden, work=spare("norm", shape, dhidden)
        )
        for layer in reversed(self.decoder.layers):
            x_tc, kept = self.kept.pop()
            if kept is None:
                kept = layer.forward(x_tc, self.plan, self.turn)[1]
            assert dx is not None
            dx = layer.backward(dx, kept, self.plan, self.turn, bool(self.kept))


def _silu(x: torch.Tensor, plan: Plan) -> torch.Tensor:
    room = plan.spare("silu", x.shape, x)
    if room is None:
        return functional.silu(x)
    found: torch.Tensor = torch.ops.aten.silu.out(x, out=room)
    return found


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
