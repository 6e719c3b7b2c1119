"""Adapters beside the weights: where their factors lie, whose they are, and what does not go together."""

import gc
import weakref

import pytest
import torch
from torch import nn

from tinkex.engine.adapters import Adapter, LoraLayout, LoraSite
from tinkex.engine.gpu import CAPACITY
from tinkex.engine.gpu.border import MANY, STEP, Border
from tinkex.engine.lora import HEAD, LoraGroup
from tinkex.engine.plan import Segment

INNER, VOCAB = 6, 11
PAIR = ("a", 4), ("b", 5)


@pytest.fixture
def border():
    torch.manual_seed(0)
    linears = [(f"pair.{name}", nn.Linear(INNER, outer, bias=False)) for name, outer in PAIR]
    group = LoraGroup("pair", linears, CAPACITY)
    assert torch.equal(group.weight_oi, torch.cat([linear.weight.data for _, linear in linears]))
    return Border([group], torch.randn(VOCAB + CAPACITY, INNER + CAPACITY), VOCAB)


def adapter(rank, seed, *, head=True):
    sites = [LoraSite(f"pair.{name}", "pair", "mlp", INNER, outer) for name, outer in PAIR]
    if head:
        sites.append(LoraSite(HEAD, HEAD, "unembed", INNER, VOCAB))
    made = Adapter(LoraLayout(sites), rank, seed=seed)
    made.master.flat.copy_(
        torch.randn(made.master.flat.shape, generator=torch.Generator().manual_seed(seed))
    )
    made.refresh()
    return made


def products(border, name, x, stack):
    """What one product with the bordered weights and one with the Bs give, each token its own adapter's."""
    outer = border.outer[name]
    both = x @ border.weight(name, stack.ranks).t()
    y, low = both[:, :outer], both[:, outer:]
    stack.keep_own(low)
    for member, (_, start, end) in enumerate(border.members[name]):
        own = low[:, member * stack.ranks : (member + 1) * stack.ranks]
        y[:, start:end] += own @ border.bt[name][: stack.ranks, start:end]
    return y


def wanted(border, name, x, segments):
    y = x @ border.ext[name][: border.outer[name]].t()
    for segment in segments:
        if segment.adapter is None or name not in segment.adapter.layout.groups:
            continue
        rows = slice(segment.start, segment.end)
        for path, start, end in border.members[name]:
            a, bt = segment.adapter.compute.a[path], segment.adapter.compute.bt[path]
            y[rows, start:end] += segment.adapter.scale * (x[rows] @ a.t()) @ bt
    return y


def check(border, segments, tokens=12):
    stack = border.stack(segments, tokens)
    x = torch.randn(tokens, INNER)
    for name in border.ext:
        found = products(border, name, x, stack)
        assert torch.allclose(found, wanted(border, name, x, segments), atol=1e-4), name
    low = x @ border.a(HEAD, stack.ranks).t()
    stack.keep_own(low)
    logits = torch.cat([x, low], 1) @ border.head(stack.ranks).t()
    assert torch.allclose(logits, wanted(border, HEAD, x, segments), atol=1e-4)
    return stack


def test_any_mixture_is_one_product(border):
    first, second, third = adapter(8, 1), adapter(40, 2), adapter(3, 3, head=False)
    alone = check(border, (Segment(first, 0, 12),))
    assert (alone.ranks, alone.spans_t2) == (STEP, None)
    mixed = check(border, (Segment(first, 0, 4), Segment(None, 4, 6), Segment(second, 6, 12)))
    assert mixed.ranks == 2 * STEP
    assert mixed.spans_t2.tolist() == [[0, 8]] * 4 + [[0, 0]] * 2 + [[8, 48]] * 6
    check(border, (Segment(third, 0, 5), Segment(first, 5, 12)))
    check(border, (Segment(third, 0, 12),))
    assert check(border, (Segment(None, 0, 12),)).ranks == 0


def test_adapters_of_even_ranks_come_first(border):
    ranks = (3, 40, 16, 64, 32)
    segments = tuple(Segment(adapter(rank, rank), 2 * i, 2 * i + 2) for i, rank in enumerate(ranks))
    stack = check(border, segments)
    assert [entry.adapter.rank for entry in stack.entries] == [64, 32, 16, 40, 3]
    assert stack.spans_t2[::2].tolist() == [[152, 155], [112, 152], [96, 112], [0, 64], [64, 96], [0, 0]]


def shares_of(border, ranks, lengths, order=None):
    """The shares of adapters of these ranks with so many tokens each, in some order of tokens."""
    adapters = [adapter(rank, i) for i, rank in enumerate(ranks)]
    segments, at = [], 0
    for i in order or range(len(ranks)):
        segments.append(Segment(adapters[i], at, at + lengths[i]))
        at += lengths[i]
    stack = border.stack(tuple(segments), at)
    for share in stack.shares:
        for entry in share.entries:
            assert share.ranks.start <= entry.start
            assert entry.start + entry.adapter.rank <= share.ranks.stop
            for segment in entry.segments:
                assert share.tokens.start <= segment.start
                assert segment.end <= share.tokens.stop
    assert [entry for share in stack.shares for entry in share.entries] == list(stack.entries)
    return [(s.tokens.start, s.tokens.stop, s.ranks.start, s.ranks.stop) for s in stack.shares]


def test_many_tokens_of_several_adapters_are_shared_out(border):
    few, many = 8, MANY // 2
    assert shares_of(border, (32, 32), (few, few)) == [(0, 16, 0, 64)], "too few to be worth it"
    assert shares_of(border, (32, 32), (many, many)) == [(0, many, 0, 32), (many, 2 * many, 32, 64)]
    assert shares_of(border, (64, 16, 8, 40), (many,) * 4) == [
        (0, many, 0, 64),
        (many, 4 * many, 64, 128),
    ]
    assert shares_of(border, (24, 8), (many, many)) == [(0, 2 * many, 0, 32)], "both lie in one step"
    assert shares_of(border, (32, 64), (many, many), (1, 0)) == [(0, many, 0, 64), (many, 2 * many, 64, 96)]
    mixed = (32, 32, 24)
    assert shares_of(border, mixed, (many,) * 3, (2, 0, 1)) == [(0, 3 * many, 0, 96)], "other order"


def test_a_step_of_training_reaches_the_border(border):
    trained = adapter(8, 1)
    segments = (Segment(trained, 0, 12),)
    check(border, segments)
    trained.master.flat.mul_(1.5)
    trained.refresh()
    check(border, segments)


def test_two_parts_of_one_model_collect_their_gradients_apart(border):
    shared = adapter(8, 1)
    grads = [torch.zeros(1), torch.zeros(1)]
    stack = border.stack(tuple(Segment(shared, 6 * i, 6 * i + 6, grads[i]) for i in range(2)), 12)
    assert [entry.start for entry in stack.entries] == [0, 8]
    assert [entry.segments[0].grads is grads[i] for i, entry in enumerate(stack.entries)] == [True, True]


def test_what_does_not_fit_is_left_to_others(border):
    large = [adapter(CAPACITY // 2, 1), adapter(CAPACITY // 2, 2), adapter(1, 3)]
    segments = tuple(Segment(each, 4 * i, 4 * i + 4) for i, each in enumerate(large))
    assert border.stack(segments, 12) is None
    check(border, (Segment(large[0], 0, 6), Segment(large[1], 6, 12)))


@pytest.mark.parametrize("factor", ["a", "bt"])
def test_an_adapter_that_is_not_finite_shares_no_pass(border, factor):
    good, bad = adapter(8, 1), adapter(8, 2)
    getattr(bad.master, factor)["pair.a"][0, 0] = float("nan")
    bad.refresh()
    mixed = (Segment(good, 0, 6), Segment(bad, 6, 12))
    assert border.stack(mixed, 12) is None
    assert border.stack((Segment(bad, 0, 12),), 12) is not None, "alone it harms only itself"
    check(border, (Segment(good, 0, 12),))
    bad.master.flat.nan_to_num_()
    bad.refresh()
    check(border, mixed)


def test_an_adapter_that_nobody_uses_any_more_is_let_go(border):
    first = adapter(8, 1)
    gone = weakref.ref(first), weakref.ref(first.compute.flat)
    check(border, (Segment(first, 0, 12),))
    del first
    check(border, (Segment(adapter(8, 2), 0, 12),))
    gc.collect()
    assert [each() for each in gone] == [None, None]
