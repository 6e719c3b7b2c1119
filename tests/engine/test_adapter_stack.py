"""Adapters stacked as one give each row what its own adapter gives, whatever the others hold."""

import pytest
import torch

from tinkex.engine.adapter_stack import AdapterStack, AdapterStacks
from tinkex.engine.plan import Plan, Segment

from .sampling_models import base_model, trained_adapter


@pytest.fixture(scope="module")
def base():
    return base_model("qwen3")[0]


@pytest.fixture
def adapters(base):
    return [
        trained_adapter(base, 4, seed=1),
        trained_adapter(base, 7, seed=2, unembed=False),
        trained_adapter(base, 1, seed=3, attn=False),
    ]


def outputs(base, owners, segments):
    """What a group of each kind and the unembedding make of the same random rows."""
    generator = torch.Generator().manual_seed(0)
    layer = base.decoder.layers[0]
    plan = Plan(lambda *_: None, segments, (0, len(owners)))
    found = []
    for group in (layer.qkv, layer.out, layer.gate_up, layer.down):
        found.append(group.forward(torch.randn(len(owners), group.inner, generator=generator), plan)[0])
    found.append(base.logits(torch.randn(len(owners), base.hidden_size, generator=generator), segments))
    return found


def test_rows_of_several_adapters(base, adapters):
    one, two, three = adapters
    owners = [two, None, one, three, one, None, two]
    alone = outputs(base, owners, tuple(Segment(owner, i, i + 1) for i, owner in enumerate(owners)))
    together = outputs(base, owners, (AdapterStack(adapters).segment(owners),))
    for left, right in zip(alone, together, strict=True):
        assert torch.allclose(left, right, atol=1e-5)


def test_an_adapter_that_overflows_spoils_only_its_own_rows(base, adapters):
    broken = trained_adapter(base, 4, seed=4)
    broken.master.flat.fill_(3e37)
    broken.refresh()
    owners = [adapters[0], broken, None, adapters[0]]
    stack = AdapterStack([adapters[0], broken])
    assert stack.sound
    alone = outputs(base, owners, tuple(Segment(owner, i, i + 1) for i, owner in enumerate(owners)))
    together = outputs(base, owners, (stack.segment(owners),))
    for left, right in zip(alone, together, strict=True):
        assert torch.allclose(left[[0, 2, 3]], right[[0, 2, 3]], atol=1e-5)
        assert not torch.isfinite(right[1]).all()


def test_an_adapter_that_is_not_finite_is_not_stacked(base, adapters):
    adapters[1].master.flat.fill_(float("inf"))
    adapters[1].refresh()
    assert not AdapterStack(adapters[:2]).sound
    assert AdapterStacks(base).segment(adapters[:2]) is None


def test_stacks_are_made_once_and_only_for_several_adapters(base, adapters):
    stacks = AdapterStacks(base)
    one, two, _ = adapters
    assert stacks.segment([one, None, one]) is None
    first, again = stacks.segment([one, two]), stacks.segment([two, None, one])
    assert first.adapter is again.adapter
    two.refresh()
    assert stacks.segment([one, two]).adapter is not first.adapter
    wide = [base.new_adapter(200, seed=i) for i in range(3)]
    assert stacks.segment(wide) is None


def test_models_with_experts_are_not_stacked():
    assert not AdapterStacks(base_model("qwen3_moe")[0]).usable
