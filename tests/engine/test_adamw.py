"""AdamW against torch.optim.AdamW, its hyperparameters, and what is refused."""

import math

import pytest
import torch

from tinkex.engine.adamw import AdamParams, AdamState, global_norm, shrinkage, take_step
from tinkex.engine.faults import UserFault


@pytest.mark.parametrize("clip", [0.0, 1.5])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_equals_torch_over_twenty_steps_of_changing_hyperparameters(clip, decay):
    torch.manual_seed(0)
    start = torch.randn(1000)
    ours, theirs = start.clone(), torch.nn.Parameter(start.clone())
    state = AdamState.zeros_like(ours)
    optimizer = torch.optim.AdamW([theirs], foreach=False)
    for step in range(20):
        grads = torch.randn(1000) * (10 if step % 3 == 0 else 0.01)
        rate = 1e-2 / (1 + step)
        values = {"learning_rate": rate, "eps": 1e-8, "weight_decay": decay, "grad_clip_norm": clip}
        params = AdamParams.given(values | {"beta2": 0.95 if step < 10 else 0.99})
        norm = float(grads.norm())
        before = ours.clone()
        change = take_step(ours, grads, norm, state, params).change
        assert change == pytest.approx(float((ours - before).norm()), rel=1e-6)
        theirs.grad = grads.clone()
        if clip:
            torch.nn.utils.clip_grad_norm_([theirs], clip)
        optimizer.param_groups[0].update(lr=rate, betas=(0.9, params.beta2), eps=1e-8, weight_decay=decay)
        optimizer.step()
        if clip:
            torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=1e-7)
        else:
            assert torch.equal(ours, theirs.detach())
    assert state.step == 20


def test_defaults_are_the_public_ones():
    params = AdamParams.given({})
    assert (params.learning_rate, params.beta1, params.beta2) == (1e-4, 0.9, 0.95)
    assert (params.eps, params.weight_decay, params.grad_clip_norm) == (1e-12, 0.0, 0.0)
    assert AdamParams.given({"type": "adamw", "weight_decay": None}) == params


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"type": "dimuon", "learning_rate": 1e-3}, "dimuon"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"learning_rate": math.nan}, "learning_rate"),
        ({"learning_rate": math.inf}, "learning_rate"),
        ({"beta1": 1.0}, "beta1"),
        ({"eps": "small"}, "eps"),
        ({"momentum": 0.9}, "momentum"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(values, text):
    with pytest.raises(UserFault, match=text):
        AdamParams.given(values)


def test_without_eps_what_has_no_gradient_stays_and_the_rest_follows_torch():
    weights, grads = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 0.5, -2.0])
    wanted = torch.nn.Parameter(weights[1:].clone())
    torch_step = torch.optim.AdamW([wanted], lr=0.1, betas=(0.9, 0.95), eps=0.0, weight_decay=0.0)
    wanted.grad = grads[1:].clone()
    torch_step.step()
    state = AdamState.zeros_like(weights)
    take_step(
        weights, grads, global_norm(grads), state, AdamParams.given({"eps": 0.0, "learning_rate": 0.1})
    )
    assert weights[0] == 1.0
    assert torch.allclose(weights[1:], wanted.detach())


def test_clipping_only_ever_shrinks():
    assert shrinkage(5.0, 10.0) == 1.0
    assert shrinkage(5.0, 0.0) == shrinkage(5.0, -1.0) == 1.0
    assert 5.0 * shrinkage(5.0, 1.0) == pytest.approx(1.0, abs=1e-6)


def test_a_norm_beyond_float32_is_found():
    assert global_norm(torch.full((4,), 1e30)) == pytest.approx(2e30)
    assert math.isinf(global_norm(torch.tensor([math.inf, 1.0])))
