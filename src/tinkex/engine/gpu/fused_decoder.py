"""Llama-shaped decoder layers on a CUDA device in half precision: large products and few fused kernels.

Sampling passes of few tokens take base outputs and A's products from one matrix product and add LoRA's
second product inside the kernels that follow; larger passes compute A's product apart, which keeps the
large product's tiles whole. For very few tokens that one product is a kernel of ours. A training pass keeps
a layer's inputs, raw projections and attention, and computes what is cheap again. Passes whose adapters do
not fit the border go through the plain decoder.

Shape letters: T tokens, C hidden size, H query heads, K key/value heads, D head size, O outputs, M members
and R ranks of a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch

from ..decoder import Decoder, DecoderLayer, TrainingPass
from ..lora import HEAD, LoraGroup
from ..paged_attention import PagedBatch
from ..plan import Plan, Segment
from ..rotary import Rotation
from .border import Border, Stack
from .decode_kernels import decode_attention
from .few_kernels import few_product, few_sums, fits
from .flash import block_table, flash, flash_backward, prompt_contexts, sequence_spans
from .gradient_sums import Sums
from .head_kernels import split_heads, split_heads_backward
from .mlp_kernels import gated, gated_backward
from .norm_kernels import add_norm, norm_again, norm_backward

FEW = 64
"""Up to so many tokens a kernel of ours reads weights faster than the framework's products do."""

HALVED = 511
"""Beyond those and up to so many, products of few columns are computed as two sums."""

BORDERED = 2048
"""Up to so many, one product with the bordered weights costs less than two."""

_Low: TypeAlias = "torch.Tensor | None"


class _Kept(NamedTuple):
    """What a layer's backward pass needs of its forward pass."""

    x_tc: torch.Tensor
    rstd: torch.Tensor
    raw_to: torch.Tensor
    low_qkv: _Low
    attended_thd: torch.Tensor
    flash: tuple[Any, ...]
    low_out: _Low
    middle_tc: torch.Tensor
    middle_rstd: torch.Tensor
    both_to: torch.Tensor
    low_both: _Low
    low_down: _Low


class _Little(NamedTuple):
    """What is kept of a layer where the rest is computed again: the MLP's way down is not."""

    x_tc: torch.Tensor
    low_down: _Low


class FusedLayer:
    """One layer, over the frozen tensors a plain one found."""

    def __init__(self, plain: DecoderLayer, border: Border) -> None:
        self.plain, self.border, self.index = plain, border, plain.index
        self.kv_heads = plain.heads - plain.q_heads
        self.norms = None
        if plain.head_norm_nd is not None:
            self.norms = (plain.head_norm_nd[0].contiguous(), plain.head_norm_nd[-1].contiguous())
        self.inner = plain.gate_up.sizes[0]
        self.sums = Sums()

    def project(self, group: LoraGroup, x: torch.Tensor, stack: Stack) -> tuple[torch.Tensor, _Low]:
        """The base outputs (in rows that may lie apart) and A's products of the tokens' own adapters."""
        outer = group.columns[-1][1]
        if x.shape[0] <= BORDERED or not stack.ranks:
            both = _product(x, self.border.weight(group.name, stack.ranks))
            y, low = both[:, :outer], both[:, outer:] if stack.ranks else None
        else:
            y = torch.mm(x, group.weight_oi.t())
            low = torch.mm(x, self.border.a(group.name, stack.ranks).t())
        if low is not None:
            stack.keep_own(low)
        if group.bias_o is not None:
            y.add_(group.bias_o)
        return y, low

    def second(self, group: LoraGroup, stack: Stack) -> _Low:
        """The scaled Bs of a group."""
        return self.border.bt[group.name][: stack.ranks] if stack.ranks else None

    def whole(self, group: LoraGroup, x: torch.Tensor, stack: Stack) -> tuple[torch.Tensor, _Low, _Low]:
        """Outputs of a group of one: whole, or for few tokens with LoRA's second product still to do."""
        y, low = self.project(group, x, stack)
        bt = self.second(group, stack)
        if low is None or bt is None:
            return y, low, None
        if x.shape[0] <= BORDERED:
            return y, low, bt
        return y.addmm_(low, bt), low, None

    def sums_of(self, group: LoraGroup, x: torch.Tensor, stack: Stack) -> tuple[torch.Tensor, _Low, _Low]:
        """Outputs of a group of one as sums over parts of its inputs, to be added in `add_norm`.

        Products of few columns and a few hundred rows have too few tiles for the whole device otherwise.
        """
        tokens, inner = x.shape
        few = tokens <= FEW and fits(inner)
        if group.bias_o is not None or not (few or (FEW < tokens <= HALVED and inner % 128 == 0)):
            return self.whole(group, x, stack)
        outer = group.columns[-1][1]
        weight = self.border.weight(group.name, stack.ranks)
        if few:
            both = few_sums(x, weight)
        else:
            half_2ti = x.view(tokens, 2, -1).transpose(0, 1)
            weight_2ie = weight.view(len(weight), 2, -1).permute(1, 2, 0)
            both = torch.bmm(half_2ti, weight_2ie, out_dtype=torch.float32)
        if not stack.ranks:
            return both, None, None
        stack.keep_own(both.flatten(0, 1)[:, outer:])
        return both[..., :outer], both[..., outer:], self.second(group, stack)

    def heads(
        self,
        raw: torch.Tensor,
        low: _Low,
        stack: Stack,
        turn: Rotation,
        kv: Any = None,
        places: _Low = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k, v of raw projections; k and v go to `places` of `kv` where given."""
        plain, tokens, size = self.plain, raw.shape[0], self.plain.head_size
        q = torch.empty(tokens, plain.q_heads, size, dtype=raw.dtype, device=raw.device)
        k, v = kv or torch.empty(2, tokens, self.kv_heads, size, dtype=raw.dtype, device=raw.device)
        split_heads(
            raw, low, self.second(plain.qkv, stack), self.norms, (turn.cos, turn.sin), (q, k, v),
            plain.q_heads, self.kv_heads, plain.eps, places, stack.spans_t2,
        )  # fmt: skip
        return q, k, v

    def run(
        self, x_tc: torch.Tensor, more: tuple[_Low, _Low, _Low], stack: Stack, plan: Plan, turn: Rotation
    ) -> tuple[torch.Tensor, tuple[_Low, _Low, _Low]]:
        """The residual stream after attention, and the MLP's output still to be added to it."""
        plain = self.plain
        x_tc, normed, _ = add_norm(
            x_tc, plain.norm_in.weight, plain.eps,
            y=more[0], low=more[1], bt=more[2], spans=stack.spans_t2,
        )  # fmt: skip
        raw, low = self.project(plain.qkv, normed, stack)
        attended = self._attended(raw, low, stack, plan, turn)
        y, low, bt = self.sums_of(plain.out, attended, stack)
        x_tc, normed, _ = add_norm(
            x_tc, plain.norm_out.weight, plain.eps, y=y, low=low, bt=bt, spans=stack.spans_t2
        )
        both, low = self.project(plain.gate_up, normed, stack)
        inner = gated(both, low, self.second(plain.gate_up, stack), self.inner, stack.spans_t2)
        return x_tc, self.sums_of(plain.down, inner, stack)

    def _attended(
        self, raw: torch.Tensor, low: _Low, stack: Stack, plan: Plan, turn: Rotation
    ) -> torch.Tensor:
        paged: PagedBatch | None = plan.paged
        tokens = raw.shape[0]
        if paged is None:
            q, k, v = self.heads(raw, low, stack, turn)
            out = flash(q, k, v, sequence_spans(plan), self.plain.scaling, self.plain.window)[0]
            return out.view(tokens, -1)
        pool = paged.cache.pool_y2pkd[self.index]
        q, k, v = self.heads(raw, low, stack, turn, (pool[0], pool[1]), paged.places_t)
        outs = []
        if paged.rows:
            assert paged.positions_r is not None
            outs.append(
                decode_attention(
                    q[: paged.rows],
                    k,
                    v,
                    block_table(plan, paged),
                    paged.positions_r,
                    paged.cache.block_size,
                    self.plain.scaling,
                    self.plain.window,
                )
            )
        if paged.pieces or paged.reads_prompts:
            places, spans = prompt_contexts(plan, paged)
            k, v = k.index_select(0, places), v.index_select(0, places)
            outs.append(flash(q[paged.rows :], k, v, spans, self.plain.scaling, self.plain.window)[0])
        return (outs[0] if len(outs) == 1 else torch.cat(outs)).view(tokens, -1)

    def forward(
        self, x_tc: torch.Tensor, y_tc: _Low, stack: Stack, plan: Plan, turn: Rotation
    ) -> tuple[torch.Tensor, torch.Tensor, _Kept]:
        """As `run` for a training pass, with what its backward pass needs."""
        plain = self.plain
        kept = self.as_far_as_the_gate(x_tc, y_tc, stack, plan, turn)
        inner = gated(
            kept.both_to, kept.low_both, self.second(plain.gate_up, stack), self.inner, stack.spans_t2
        )
        y, low_down, bt = self.whole(plain.down, inner, stack)
        if bt is not None and low_down is not None:
            y = y.addmm(low_down, bt)
        return kept.middle_tc, y, kept._replace(low_down=low_down)

    def as_far_as_the_gate(
        self, x_tc: torch.Tensor, y_tc: _Low, stack: Stack, plan: Plan, turn: Rotation
    ) -> _Kept:
        """What a backward pass needs but for the product of A on the MLP's way down."""
        plain = self.plain
        x_tc, normed, rstd = add_norm(x_tc, plain.norm_in.weight, plain.eps, y=y_tc)
        raw, low_qkv = self.project(plain.qkv, normed, stack)
        q, k, v = self.heads(raw, low_qkv, stack, turn)
        attended, *kept_flash = flash(q, k, v, sequence_spans(plan), plain.scaling, plain.window)
        y, low_out, bt = self.whole(plain.out, attended.view(len(x_tc), -1), stack)
        middle, normed, middle_rstd = add_norm(
            x_tc, plain.norm_out.weight, plain.eps, y=y, low=low_out, bt=bt, spans=stack.spans_t2
        )
        both, low_both = self.project(plain.gate_up, normed, stack)
        return _Kept(
            x_tc,
            rstd,
            raw,
            low_qkv,
            attended,
            tuple(kept_flash),
            low_out,
            middle,
            middle_rstd,
            both,
            low_both,
            None,
        )

    def backward(
        self, dy: torch.Tensor, kept: _Kept, stack: Stack, plan: Plan, turn: Rotation, need_dx: bool
    ) -> torch.Tensor | None:
        """The input's gradient given the output's, both with room for R more columns."""
        plain, ranks = self.plain, stack.ranks
        tokens, size = kept.x_tc.shape
        self.sums = Sums()
        dinner = self._back(plain.down, dy, kept.low_down, stack)
        dboth = _room(dinner, 2 * self.inner + 2 * ranks)
        inner = gated_backward(
            dinner, kept.both_to, kept.low_both, self.second(plain.gate_up, stack), dboth, stack.spans_t2
        )
        self._first_gradient(plain.down, dy, inner, stack)
        del dinner, inner
        dnormed = self._back(plain.gate_up, dboth, kept.low_both, stack)
        if ranks:
            normed = norm_again(kept.middle_tc, kept.middle_rstd, plain.norm_out.weight)
            self._first_gradient(plain.gate_up, dboth, normed, stack)
        del dboth
        dmiddle = _room(dnormed, size + ranks)
        norm_backward(
            dnormed,
            kept.middle_tc,
            kept.middle_rstd,
            plain.norm_out.weight,
            dmiddle[:, :size],
            dres=dy[:, :size],
        )
        dattended = self._back(plain.out, dmiddle, kept.low_out, stack)
        self._first_gradient(plain.out, dmiddle, kept.attended_thd.view(tokens, -1), stack)
        q, k, v = self.heads(kept.raw_to, kept.low_qkv, stack, turn)
        shape = kept.attended_thd.shape
        grads = flash_backward(
            dattended.view(shape),
            q,
            k,
            v,
            kept.attended_thd,
            kept.flash,
            sequence_spans(plan),
            plain.scaling,
            plain.window,
        )
        draw = _room(dattended, plain.qkv.columns[-1][1] + 3 * ranks)
        split_heads_backward(
            grads, kept.raw_to, kept.low_qkv, self.second(plain.qkv, stack), self.norms,
            (turn.cos, turn.sin),            draw, plain.eps, stack.spans_t2,
        )  # fmt: skip
        dnormed = self._back(plain.qkv, draw, kept.low_qkv, stack, need_dx)
        if ranks:
            normed = norm_again(kept.x_tc, kept.rstd, plain.norm_in.weight)
            self._first_gradient(plain.qkv, draw, normed, stack)
        self.sums.add()
        if not need_dx:
            return None
        dx = _room(dnormed, size + ranks)
        norm_backward(
            dnormed, kept.x_tc, kept.rstd, plain.norm_in.weight, dx[:, :size], dres=dmiddle[:, :size]
        )
        return dx

    def _back(
        self, group: LoraGroup, dy: torch.Tensor, low: _Low, stack: Stack, need_dx: bool = True
    ) -> torch.Tensor:
        """The input's gradient; B's are added, those of A's products written behind the columns of `dy`."""
        ranks, outer = stack.ranks, group.columns[-1][1]
        if ranks:
            assert low is not None
            wanted = self.sums.wants(stack, group)
            for share in stack.shares:
                bt_r = self.border.bt[group.name][share.ranks]
                dy_t, low_t = dy[share.tokens], low[share.tokens]
                for member, (start, end) in enumerate(group.columns):
                    first, last = (member * ranks + at for at in (share.ranks.start, share.ranks.stop))
                    into = dy_t[:, outer + first : outer + last]
                    torch.mm(dy_t[:, start:end], bt_r[:, start:end].t(), out=into)
                    if wanted:
                        own = low_t[:, first:last]
                        product = torch.mm(own.t(), dy_t[:, start:end], out_dtype=torch.float32)
                        self.sums.take_b(share, group, member, product)
            stack.keep_own(dy[:, outer : outer + group.members * ranks])
        if not need_dx:
            return dy
        return torch.mm(dy[:, : outer + group.members * ranks], self.border.weight(group.name, ranks))

    def _first_gradient(self, group: LoraGroup, dy: torch.Tensor, x: torch.Tensor, stack: Stack) -> None:
        """Add A's gradients, from what `_back` wrote behind the columns of `dy`."""
        ranks, outer = stack.ranks, group.columns[-1][1]
        if not ranks or not self.sums.wants(stack, group):
            return
        dlow = dy[:, outer : outer + group.members * ranks]
        self.sums.take_a(stack, group, torch.mm(dlow.t(), x, out_dtype=torch.float32))


class FusedDecoder(Decoder):
    """All layers of a dense model whose weights have a border."""

    def __init__(self, model: Any, config: Any, border: Border) -> None:
        super().__init__(model, config)
        self.border = border
        self.fused = [FusedLayer(layer, border) for layer in self.layers]

    def stack(self, plan: Plan) -> Stack | None:
        """The adapters of a pass, loaded; None if they do not fit."""
        if "stack" not in plan.scratch:
            plan.scratch["stack"] = self.border.stack(plan.segments, plan.tokens)
        found: Stack | None = plan.scratch["stack"]
        return found

    def run(self, input_ids: torch.Tensor, position_ids: torch.Tensor, plan: Plan) -> torch.Tensor:
        """Final-norm hidden states `[T, C]` of one row."""
        stack = self.stack(plan)
        if stack is None or (plan.paged is not None and plan.paged.plain):
            return super().run(input_ids, position_ids, plan)
        x_tc = self.embed(input_ids[0])
        turn = self.rotary.at(x_tc, position_ids)
        if plan.paged is not None and plan.paged.rows:
            block_table(
                plan, plan.paged
            )  # attention asks for blocks before the kernels before it have ended
        more: tuple[_Low, _Low, _Low] = (None, None, None)
        for layer in self.fused:
            x_tc, more = layer.run(x_tc, more, stack, plan, turn)
        return add_norm(
            x_tc, self.norm.weight, self.eps, y=more[0], low=more[1], bt=more[2], spans=stack.spans_t2
        )[1]

    def start(self, input_ids: torch.Tensor, position_ids: torch.Tensor, plan: Plan) -> TrainingPass:
        """A forward pass that can be followed by a backward pass."""
        stack = self.stack(plan)
        if stack is None:
            return super().start(input_ids, position_ids, plan)
        with torch.no_grad():
            x_tc = self.embed(input_ids[0])
            turn = self.rotary.at(x_tc, position_ids)
            y_tc: _Low = None
            kept: list[_Kept | _Little] = []
            for layer in self.fused:
                x_tc, y_tc, one = layer.forward(x_tc, y_tc, stack, plan, turn)
                kept.append(_Little(one.x_tc, one.low_down) if plan.checkpoint else one)
            x_tc, hidden, rstd = add_norm(x_tc, self.norm.weight, self.eps, y=y_tc)
        return FusedPass(self, plan, stack, turn, kept, x_tc, rstd, hidden)

    def logits(self, hidden_tc: torch.Tensor, segments: tuple[Segment, ...]) -> torch.Tensor | None:
        """Logits of few tokens in float32; None where their adapters do not fit."""
        stack = self.border.stack(segments, len(hidden_tc))
        if stack is None:
            return None
        size, wide = hidden_tc.shape[1], hidden_tc
        if stack.ranks:
            wide = _room(hidden_tc, size + stack.ranks)
            wide[:, :size] = hidden_tc
            low = torch.mm(hidden_tc, self.border.a(HEAD, stack.ranks).t(), out=wide[:, size:])
            stack.keep_own(low)
        return torch.mm(wide, self.border.head(stack.ranks).t(), out_dtype=torch.float32)


@dataclass(slots=True)
class FusedPass:
    """A forward pass and what it kept; `backward` lets go of each layer as it passes it."""

    decoder: FusedDecoder
    plan: Plan
    stack: Stack
    turn: Rotation
    kept: list[_Kept | _Little]
    last_tc: torch.Tensor
    rstd: torch.Tensor
    hidden: torch.Tensor

    def backward(self, dhidden: torch.Tensor) -> None:
        """Add the adapters' gradients to the plan's buffers, given that of the hidden states."""
        size = dhidden.shape[1]
        with torch.no_grad():
            dx: torch.Tensor | None = _room(dhidden, size + self.stack.ranks)
            assert dx is not None
            norm_backward(dhidden, self.last_tc, self.rstd, self.decoder.norm.weight, dx[:, :size])
            for layer in reversed(self.decoder.fused):
                kept = self.kept.pop()
                if isinstance(kept, _Little):
                    again = layer.as_far_as_the_gate(kept.x_tc, None, self.stack, self.plan, self.turn)
                    kept = again._replace(low_down=kept.low_down)
                assert dx is not None
                dx = layer.backward(dx, kept, self.stack, self.plan, self.turn, bool(self.kept))


def _product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return few_product(x, weight) if len(x) <= FEW and fits(x.shape[1]) else torch.mm(x, weight.t())


def _room(like: torch.Tensor, columns: int) -> torch.Tensor:
    return torch.empty(like.shape[0], columns, dtype=like.dtype, device=like.device)
