"""Every kernel against plain torch, on a GPU or as `kernel_modes` tells."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot, rms_norm, silu

from tinkex.engine import gpu
from tinkex.engine.adapters import Adapter, LoraLayout, LoraSite
from tinkex.engine.gpu.border import Border, Entry
from tinkex.engine.lora import HEAD, LoraGroup

from .kernel_modes import COMPILED, DEVICE, HALF, MODE, agree

pytestmark = pytest.mark.skipif(not MODE, reason="needs Triton and a GPU, its interpreter or its compiler")
TOKENS, HEADS, KV, SIZE, INNER = 40, 4, 2, 32, 128
SPANS = [(0, 10, 0, 40), (10, 25, 40, 57), (30, 40, 57, 89)]
"""Tokens from, to, and their own ranks from, to; tokens 25 to 30 have no adapter."""


def normal(*shape, by=1.0):
    return (torch.randn(*shape) * by).to(DEVICE, HALF)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(params=["without", "one adapter", "several"])
def ranks(request):
    """How many ranks, and the spans that say whose."""
    if request.param == "without":
        return 0, None
    if request.param == "one adapter":
        return 32, None
    spans = torch.zeros(TOKENS, 2, dtype=torch.int32)
    for first, last, start, end in SPANS:
        spans[first:last] = torch.tensor([start, end])
    return 96, spans.to(DEVICE)


def lows(ranks, members):
    """A's products, zero where a rank is not a token's own, and the Bs; None without LoRA."""
    count, spans = ranks
    if not count:
        return None
    low = normal(TOKENS, members, count, by=0.3)
    if spans is not None:
        r = torch.arange(count, device=DEVICE)
        low *= ((r >= spans[:, :1]) & (r < spans[:, 1:]))[:, None]
    return low.flatten(1)


def second(low, bt, columns):
    """The products of a group, member by member, in float32."""
    ranks = len(bt)
    parts = [
        low.float()[:, m * ranks : (m + 1) * ranks] @ bt.float()[:, a:b] for m, (a, b) in enumerate(columns)
    ]
    return torch.cat(parts, 1)


@pytest.mark.parametrize("parts", [0, 1, 2, 3])
def test_add_norm(ranks, parts):
    from tinkex.engine.gpu.norm_kernels import add_norm, norm_again, norm_backward

    columns = 48
    x, wide, weight = normal(TOKENS, columns), normal(TOKENS, columns + 8), normal(columns)
    agree(add_norm(x, weight, 1e-6)[1], rms_norm(x.float(), (columns,), weight.float(), 1e-6).to(HALF))
    y, low = wide[:, :columns], lows(ranks, 1)
    bt = normal(ranks[0], columns) if ranks[0] else None
    given = {"y": y, "low": low, "bt": bt, "spans": ranks[1]}
    if parts:
        both = wide if low is None else torch.cat([y, low], 1)
        some = torch.randn(parts - 1, *both.shape, device=DEVICE)
        both = torch.cat([some, both.float()[None] - some.sum(0)])
        given |= {"y": both[..., :columns], "low": None if low is None else both[..., columns:]}
    total, normed, rstd = add_norm(x, weight, 1e-6, **given)
    summed = x.float() + y.float()
    if bt is not None:
        summed += second(low, bt, [(0, columns)])
    summed = summed.to(HALF)
    agree(total, summed)
    agree(normed, rms_norm(summed.float(), (columns,), weight.float(), 1e-6).to(HALF))
    agree(norm_again(total, rstd, weight), normed)
    leaf = summed.float().requires_grad_()
    out = rms_norm(leaf, (columns,), weight.float(), 1e-6)
    dy, dres = normal(TOKENS, columns), normal(TOKENS, columns + 8)
    (grad,) = torch.autograd.grad(out, leaf, dy.float())
    into = torch.zeros(TOKENS, columns + 8, dtype=HALF, device=DEVICE)
    norm_backward(dy, total, rstd, weight, into[:, :columns], dres=dres[:, :columns])
    agree(into[:, :columns], (grad + dres[:, :columns].float()).to(HALF))


@pytest.mark.parametrize("tokens", [1, 17, 64])
@pytest.mark.parametrize(("outputs", "inner"), [(200, 192), (64, 1024), (8448, 128)])
def test_products_of_few_tokens(tokens, outputs, inner):
    from tinkex.engine.gpu.few_kernels import few_product, few_sums, fits

    assert fits(inner) or MODE == "compiled"
    x, weight = normal(tokens, inner + 64)[:, :inner], normal(outputs + 32, inner, by=0.1)[:outputs]
    wanted = x.float() @ weight.float().t()
    agree(few_product(x, weight), wanted.to(HALF))
    sums = few_sums(x, weight)
    assert sums.dtype == torch.float32
    agree(sums.sum(0), wanted)


@pytest.mark.parametrize("tokens", [1, 16, 32, 64])
@pytest.mark.parametrize(
    ("outputs", "inner", "parts"), [(6240, 4096, 1), (24_640, 4096, 1), (4128, 4096, 2), (4128, 12_288, 2)]
)
def test_products_of_few_tokens_fill_the_device_evenly(tokens, outputs, inner, parts, monkeypatch):
    from tinkex.engine.gpu import few_kernels

    monkeypatch.setattr(few_kernels, "_device", lambda: few_kernels._Device(132, 228 << 10))
    few_kernels._cut.cache_clear()
    cut = few_kernels._cut(tokens, outputs, inner, 1 if parts == 1 else 4)
    few_kernels._cut.cache_clear()
    assert cut.parts == parts
    assert inner % (cut.parts * cut.inputs) == 0
    programs = -(-outputs // 64) * cut.parts
    held = cut.stages * (64 + few_kernels._padded(tokens)) * cut.inputs * 2
    assert -(-programs // 132) * (held + 1024) <= 228 << 10
    assert cut.stages >= 3


def turns():
    angle = torch.arange(TOKENS)[:, None].float() * torch.linspace(1, 0.1, SIZE // 2)
    cos, sin = torch.cat([angle.cos()] * 2, 1), torch.cat([-angle.sin(), angle.sin()], 1)
    return cos.to(DEVICE, HALF).contiguous(), sin.to(DEVICE, HALF).contiguous()


@pytest.mark.parametrize("normed", [True, False], ids=["with norms", "without norms"])
def test_heads(ranks, normed):
    from tinkex.engine.gpu.head_kernels import split_heads, split_heads_backward

    outer = (HEADS + 2 * KV) * SIZE
    raw, low = normal(TOKENS, outer + 16), lows(ranks, 3)
    bt = normal(ranks[0], outer, by=0.3) if ranks[0] else None
    norms = (normal(SIZE), normal(SIZE)) if normed else None
    cos, sin = turns()
    ends = [HEADS * SIZE, (HEADS + KV) * SIZE, outer]

    def reference(raw):
        y = raw[:, :outer]
        if bt is not None:
            y = y + second(low, bt, list(zip([0, *ends[:2]], ends, strict=True)))
        y = y.view(TOKENS, -1, SIZE)
        q, k, v = y[:, :HEADS], y[:, HEADS : HEADS + KV], y[:, HEADS + KV :]
        if norms is not None:
            q, k = (rms_norm(x, (SIZE,), w.float(), 1e-6) for x, w in zip((q, k), norms, strict=True))
        c, s = cos.float()[:, None], sin.float()[:, None]
        return *(x * c + x.roll(SIZE // 2, -1) * s for x in (q, k)), v

    leaf = raw.float().requires_grad_()
    wanted = reference(leaf)
    q, k, v = (torch.zeros(TOKENS, n, SIZE, dtype=HALF, device=DEVICE) for n in (HEADS, KV, KV))
    given = (raw, low, bt, norms, (cos, sin))
    split_heads(*given, (q, k, v), HEADS, KV, 1e-6, None, ranks[1])
    for found, want in zip((q, k, v), wanted, strict=True):
        agree(found, want)
    places = torch.randperm(64)[:TOKENS].to(DEVICE)
    pool = torch.zeros(2, 64, KV, SIZE, dtype=HALF, device=DEVICE)
    split_heads(*given, (q, pool[0], pool[1]), HEADS, KV, 1e-6, places, ranks[1])
    agree(pool[0][places], wanted[1])
    agree(pool[1][places], wanted[2])
    grads = tuple(normal(TOKENS, n, SIZE) for n in (HEADS, KV, KV))
    (grad,) = torch.autograd.grad(wanted, leaf, [g.float() for g in grads])
    out = torch.zeros(TOKENS, outer + 16, dtype=HALF, device=DEVICE)
    split_heads_backward(grads, *given, out, 1e-6, ranks[1])
    agree(out[:, :outer], grad[:, :outer])


def test_gated(ranks):
    from tinkex.engine.gpu.mlp_kernels import gated, gated_backward

    raw, low = normal(TOKENS, 2 * INNER + 16), lows(ranks, 2)
    bt = normal(ranks[0], 2 * INNER, by=0.3) if ranks[0] else None

    def reference(raw):
        y = raw[:, : 2 * INNER]
        if bt is not None:
            y = y + second(low, bt, [(0, INNER), (INNER, 2 * INNER)])
        return silu(y[:, :INNER]) * y[:, INNER:]

    leaf = raw.float().requires_grad_()
    wanted = reference(leaf)
    agree(gated(raw, low, bt, INNER, ranks[1]), wanted)
    dout = normal(TOKENS, INNER)
    (grad,) = torch.autograd.grad(wanted, leaf, dout.float())
    into = torch.zeros(TOKENS, 2 * INNER + 16, dtype=HALF, device=DEVICE)
    agree(gated_backward(dout, raw, low, bt, into, ranks[1]), wanted)
    agree(into[:, : 2 * INNER], grad[:, : 2 * INNER])


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize(("rows", "size"), [(5, 32), (5, 128), (150, 32), (150, 128), (600, 128)])
def test_decode_attention(rows, size, window):
    from tinkex.engine.gpu.decode_kernels import decode_attention

    if rows > 5 and MODE == "interpreted":
        rows = 12
    block, width = 16, 24
    k, v = normal(600, KV, size), normal(600, KV, size)
    blocks = torch.stack([torch.randperm(36)[:width] for _ in range(rows)]).to(DEVICE)
    positions = torch.tensor([(0, 15, 16, 200, 383)[i % 5] for i in range(rows)], device=DEVICE)
    q = normal(rows, HEADS, size)
    found = decode_attention(q, k, v, blocks, positions, block, size**-0.5, window)
    for i in range(rows):
        count = int(positions[i]) + 1
        places = (blocks[i][:, None] * block + torch.arange(block, device=DEVICE)).view(-1)[:count]
        if window is not None:
            places = places[max(0, count - window) :]
        keys, values = (x[places].float().repeat_interleave(HEADS // KV, 1) for x in (k, v))
        weight = torch.einsum("hd,lhd->hl", q[i].float(), keys).mul(size**-0.5).softmax(-1)
        agree(found[i], torch.einsum("hl,lhd->hd", weight, values))


@pytest.mark.parametrize("rank", [0, 17])
@pytest.mark.parametrize("targets", [1, 3])
def test_vocabulary(rank, targets):
    from tinkex.engine.gpu.vocab_kernels import logit_gradient, normalisers

    raw = normal(TOKENS, 300, by=3).float()
    low, bt = (normal(TOKENS, rank), normal(rank, 300, by=0.3)) if rank else (None, None)
    whole = raw if bt is None else raw + 0.7 * (low.float() @ bt.float())
    lse = normalisers(raw, low, bt, 0.7)
    agree(lse[:, 0], whole.logsumexp(-1), 3e-3)
    chosen = torch.randint(0, 300, (TOKENS, targets), device=DEVICE)
    slope = torch.randn(TOKENS, targets).to(DEVICE)
    out = torch.zeros(TOKENS, 300, dtype=HALF, device=DEVICE)
    logit_gradient(raw, low, bt, 0.7, lse, slope, chosen, out)
    each = one_hot(chosen, 300).float() - whole.softmax(-1)[:, None]
    agree(out, (each * slope[:, :, None]).sum(1))


def test_placing():
    from tinkex.engine.gpu.place_kernels import Move, Places

    flat = normal(3 + 5 * 7 + 5 * 3000 + 5 * 2)
    small, large, last = flat[3:38].view(5, 7), flat[38:15038].view(5, 3000), flat[15038:].view(5, 2)
    wide, tall, turned = normal(40, 6400), normal(90, 2), normal(3000, 40)
    want_wide, want_tall, want_turned = wide.clone(), tall.clone(), turned.clone()
    moves = [
        Move(3, 5, wide[:, 11:18], 0, False),
        Move(38, 5, wide[:, 200:3200], 0, True),
        Move(15038, 5, tall, 2, False),
        Move(38, 5, turned[:, 4:].t(), 0, True),
    ]
    places = Places(moves)
    for start in (0, 9):
        flat.add_(1.0)
        places.copy(flat, 1.5, start, 32)
        want_wide[start : start + 5, 11:18], want_wide[start : start + 5, 200:3200] = small, large * 1.5
        want_tall[64 + start : 69 + start] = last
        want_turned[:, 4 + start : 9 + start] = large.t() * 1.5
        agree(wide, want_wide, 0.0)
        agree(tall, want_tall, 0.0)
        agree(turned, want_turned, 0.0)


@pytest.mark.skipif(MODE == "gpu", reason="on a GPU nothing else places them")
def test_adapters_in_the_border():
    linears = [("pair.a", nn.Linear(64, 96, bias=False)), ("pair.b", nn.Linear(64, 32, bias=False))]
    group = LoraGroup("pair", linears, gpu.CAPACITY)
    border = Border([group], torch.zeros(80 + gpu.CAPACITY, 64 + gpu.CAPACITY), 80)
    sites = [LoraSite(path, "pair", "mlp", 64, linear.out_features) for path, linear in linears]
    layout = LoraLayout([*sites, LoraSite(HEAD, HEAD, "unembed", 64, 80)])
    adapter = Adapter(layout, 8, seed=0)
    adapter.master.flat.normal_()
    adapter.refresh()
    entry = Entry(adapter, 24, ())
    border._copy(entry, 64)
    wanted = [x.clone() for x in (*border.ext.values(), *border.bt.values())]
    for name in border.ext:
        border.a(name, 64).zero_()
        border.bt[name].zero_()
    border._places_of(adapter).copy(adapter.compute.flat, adapter.scale, 24, 64)
    for found, want in zip((*border.ext.values(), *border.bt.values()), wanted, strict=True):
        agree(found, want, 0.0)
    assert all(x.any() for x in wanted)


@pytest.mark.parametrize("eps", [1e-12, 1e-2])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adamw(eps, decay):
    from tinkex.engine.gpu.adamw_kernels import adamw

    weights = torch.randn(9001).to(DEVICE)
    leaf = weights.clone().requires_grad_()
    settings = {"lr": 0.03, "betas": (0.8, 0.95), "eps": eps, "weight_decay": decay}
    official = torch.optim.AdamW([leaf], **settings)
    moments = torch.zeros_like(weights), torch.zeros_like(weights)
    rounded = torch.empty_like(weights, dtype=HALF)
    for step in range(1, 4):
        grads = torch.randn_like(weights)
        before = leaf.detach().clone()
        leaf.grad = grads * 0.5
        official.step()
        norm, sound = adamw(
            weights, grads, *moments, step=step, learning_rate=0.03, beta1=0.8, beta2=0.95, eps=eps,
            weight_decay=decay, shrink=0.5, rounded=rounded if step > 1 else None,
        )  # fmt: skip
        if MODE != "compiled":
            assert sound
            assert norm == pytest.approx(float((leaf.detach() - before).double().norm()), rel=1e-6)
        agree(weights, leaf.detach(), 3e-7)
        if step > 1:
            agree(rounded, weights.to(HALF), 0.0)
    agree(moments[0], official.state[leaf]["exp_avg"], 3e-7)
    agree(moments[1], official.state[leaf]["exp_avg_sq"], 3e-7)


@pytest.mark.skipif(MODE == "compiled", reason="nothing is computed")
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 3.4e38])
def test_adamw_tells_weights_that_are_not_finite(value):
    from tinkex.engine.gpu.adamw_kernels import adamw

    weights = torch.randn(5000).to(DEVICE)
    weights[4999] = value
    grads, mean, square = (torch.zeros_like(weights) for _ in range(3))
    settings = {"learning_rate": 0.1, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.0}
    rounded = torch.empty_like(weights, dtype=torch.bfloat16 if MODE == "gpu" else HALF)
    _, sound = adamw(weights, grads, mean, square, step=1, shrink=1.0, rounded=rounded, **settings)
    assert sound == bool(torch.isfinite(rounded).all())
    # The largest numbers of float32 are beyond bfloat16's when rounded.
    assert not sound or (value == 3.4e38 and rounded.dtype == torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 2048, 70_001])
def test_names_of_weights(dtype, count):
    from tinkex.engine.gpu.name_kernels import sums_of_mixed
    from tinkex.engine.sampler_weights import _KEYS, _SPREAD, _sums

    weights = torch.randn(count).to(dtype)
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[weights.element_size()]
    found = sums_of_mixed(weights.to(DEVICE).view(whole), _KEYS, _SPREAD)
    if MODE != "compiled":
        assert found == _sums(weights)


def test_many_additions_at_once():
    from tinkex.engine.gpu.sum_kernels import add_all

    sizes = [1, 7, 2048, 70_000, 5]
    into = [torch.randn(size).to(DEVICE) for size in sizes]
    given = [torch.randn(size).to(DEVICE) for size in sizes]
    scales = [1.0, -0.5, 2.0, 0.125, 3.0]
    wanted = [x + y * scale for x, y, scale in zip(into, given, scales, strict=True)]
    add_all(list(zip(into, given, scales, strict=True)))
    for found, want in zip(into, wanted, strict=True):
        agree(found, want, 1e-6)


@pytest.mark.parametrize("members", [1, 3])
def test_only_own_ranks_are_kept(members):
    from tinkex.engine.gpu.mask_kernels import keep_own

    ranks, tokens = 96, 70
    wide = normal(tokens, members * ranks + 16)
    low = wide[:, : members * ranks]
    low[3] = float("nan")
    begin = torch.randint(0, 90, (tokens,))
    spans = torch.stack([begin, begin + 6], 1).int()
    spans[5] = 0
    spans[64:] = torch.tensor([32, 64])
    rank = torch.arange(ranks)
    own = (rank >= spans[:, :1]) & (rank < spans[:, 1:])
    wanted = torch.where(own.repeat(1, members).to(DEVICE), low, 0.0)
    rest = wide[:, members * ranks :].clone()
    keep_own(low, spans.to(DEVICE), ranks)
    if MODE != "compiled":
        torch.testing.assert_close(low, wanted, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(wide[:, members * ranks :], rest)


class Draws:
    """Logits with ties, impossible tokens and whole chunks of them, and what may be drawn."""

    def __init__(self, rows, vocab):
        self.logits = (torch.randn(rows, vocab) * 3).to(DEVICE)
        self.logits[0, : vocab // 2] = float("-inf")
        self.logits[1, :] = float("-inf")
        self.logits[1, vocab - 2] = -300.0
        self.logits[2, [3, vocab - 1]] = 90.0
        self.warmth = torch.linspace(0.3, 2.0, rows, device=DEVICE)[:, None]


def tally(logits, tokens, numbers):
    """Whether each token is the one its number falls on, by running sums in float64."""
    ends = logits.double().softmax(-1).cumsum(-1)
    found = ends.gather(1, tokens[:, None])[:, 0]
    mass = logits.double().softmax(-1).gather(1, tokens[:, None])[:, 0]
    assert (mass > 0).all()
    slack = 1e-5
    assert (found >= numbers - slack).all()
    assert (found - mass <= numbers + slack).all()


@pytest.mark.parametrize("vocab", [50, 1024, 5003])
@pytest.mark.parametrize("tempered", [False, True])
def test_drawing(vocab, tempered):
    from tinkex.engine.gpu.draw_kernels import draw_tokens

    given = Draws(7, vocab)
    inverse = 1 / given.warmth if tempered else None
    scaled = given.logits * inverse if tempered else given.logits
    for number in (0.0, 0.25, 0.5, 0.999, 1 - 2.0**-53, None):
        numbers = (
            torch.rand(7).double() if number is None else torch.full((7,), number, dtype=torch.float64)
        )
        numbers = numbers.to(DEVICE)
        strided = torch.stack([numbers, numbers], 1)[:, 1]
        tokens, logprobs = draw_tokens(given.logits, strided, inverse, None)
        if MODE != "compiled":
            tally(scaled, tokens, numbers)
            agree(logprobs, scaled.log_softmax(-1).gather(1, tokens[:, None])[:, 0], 1e-6)


def test_drawing_the_likeliest():
    from tinkex.engine.gpu.draw_kernels import draw_tokens

    given = Draws(7, 5003)
    wanted = given.logits.cpu().argmax(-1).to(DEVICE)
    tokens, logprobs = draw_tokens(given.logits, None, None, None)
    agree(tokens.double(), wanted.double(), 0.0)
    agree(logprobs, given.logits.log_softmax(-1).max(-1).values, 1e-6)
    some = torch.tensor([True, False] * 3 + [True], device=DEVICE)
    numbers = torch.rand(7, dtype=torch.float64).to(DEVICE)
    mixed, _ = draw_tokens(given.logits, numbers, 1 / given.warmth, some)
    drawn, _ = draw_tokens(given.logits, numbers, 1 / given.warmth, None)
    if MODE != "compiled":
        assert torch.equal(mixed, torch.where(some, (given.logits / given.warmth).argmax(-1), drawn))


def kept_masses(scaled, k, p):
    """The masses that top-k and top-p leave, in the order of the vocabulary, by sorting."""
    mass = (scaled - scaled.max(-1, keepdim=True).values).exp()
    found = torch.zeros(mass.shape, dtype=torch.float64)
    for row, (one, most, share) in enumerate(zip(mass, k, p, strict=True)):
        values, ids = one.sort(descending=True, stable=True)
        values = values[:most].double()
        before = values.cumsum(0) - values
        stays = (before < share * values.sum()) if share < 1 else torch.ones(len(values), dtype=torch.bool)
        stays[0] = True
        found[row, ids[: len(values)][stays]] = values[stays]
    return found


@pytest.mark.parametrize("kind", ["spread", "ties", "flat", "peaked"])
@pytest.mark.parametrize("tempered", [False, True])
def test_drawing_with_top_k_and_top_p(kind, tempered):
    from tinkex.engine.gpu.draw_kernels import draw_tokens

    vocab = 1500
    k = torch.tensor([vocab, 1, 7, 40, vocab, 600, vocab, 30, 3])
    p = torch.tensor([0.9, 1.0, 1.0, 0.5, 1e-9, 0.999, 0.3, 0.95, 1.0], dtype=torch.float64)
    logits = torch.randn(12, vocab) * {"spread": 3.0, "ties": 2.0, "flat": 1e-4, "peaked": 40.0}[kind]
    if kind == "ties":
        logits = logits.round()
    logits[4, 1000:] = float("-inf")
    inverse = torch.linspace(0.5, 3.0, 12)[:, None] if tempered else None
    scaled = logits * inverse if tempered else logits
    rows = torch.tensor([0, 1, 2, 4, 5, 6, 8, 9, 11])
    kept = kept_masses(scaled[rows], k.tolist(), p.tolist())
    ends = kept.cumsum(-1) / kept.sum(-1, keepdim=True)
    narrow = tuple(x.to(DEVICE) for x in (rows, k, p))
    given = logits.to(DEVICE), None if inverse is None else inverse.to(DEVICE)
    for number in (0.0, 0.62, 1 - 2.0**-53):
        u = torch.full((12,), number, dtype=torch.float64, device=DEVICE)
        tokens, logprobs = (x.cpu() for x in draw_tokens(given[0], u, given[1], None, narrow))
        if MODE == "compiled":
            continue
        plain, _ = draw_tokens(given[0], u, given[1])
        others = [row for row in range(12) if row not in rows]
        assert torch.equal(tokens[others], plain.cpu()[others])
        agree(logprobs, scaled.log_softmax(-1).gather(1, tokens[:, None])[:, 0], 1e-6)
        chosen = tokens[rows][:, None]
        share = kept.gather(1, chosen)[:, 0] / kept.sum(-1)
        assert (share > 0).all(), "a token that was cut"
        end = ends.gather(1, chosen)[:, 0]
        assert (end >= number - 1e-5).all()
        assert (end - share <= number + 1e-5).all()


def test_logits_that_are_not_numbers_give_some_token():
    from tinkex.engine.gpu.draw_kernels import draw_tokens

    logits = torch.randn(4, 3000)
    logits[0, 5], logits[1, 2999] = float("nan"), float("inf")
    logits[2] = float("-inf")
    narrow = torch.tensor([0, 1, 2]), torch.tensor([5, 3000, 3000]), torch.tensor([0.5, 0.9, 0.9]).double()
    for which in (None, tuple(x.to(DEVICE) for x in narrow)):
        numbers = torch.rand(4).double().to(DEVICE)
        tokens, _ = draw_tokens(logits.to(DEVICE), numbers, None, None, which)
        if MODE != "compiled":
            assert ((tokens >= 0) & (tokens < 3000)).all()


def test_all_kernels_were_compiled(request):
    """Last in this file: in compiled mode nothing above may have passed without a compiler."""
    if MODE != "compiled":
        pytest.skip("for compiled mode")
    if request.config.option.keyword:
        pytest.skip("only some were asked for")
    from triton.runtime import JITFunction

    launched = set()
    for path in Path(gpu.__file__).parent.glob("*_kernels.py"):
        module = importlib.import_module(f"{gpu.__name__}.{path.stem}")
        source = path.read_text()
        kernels = [name for name, each in vars(module).items() if isinstance(each, JITFunction)]
        launched |= {name for name in kernels if re.search(rf"^ +{name}\[", source, re.MULTILINE)}
    assert launched
    assert launched == set(COMPILED)
