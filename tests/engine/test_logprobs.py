"""Chunked logprobs and their gradients against full logits, in float64 and float32."""

import pytest
import torch

from tinkex.engine.adapters import LoraTensors
from tinkex.engine.logprobs import Head, Rows

from .training_models import engine_model, filled_adapter, plain_model


def setup(dtype, width, unembed=True):
    base = engine_model(plain_model("llama", dtype))
    adapter = filled_adapter(base, 3, unembed=unembed)
    torch.manual_seed(1)
    hidden = torch.randn(29, base.hidden_size, dtype=dtype)
    targets = torch.randint(0, base.vocab_size, (29, width))
    slope = torch.randn(29, width, dtype=dtype)
    return base, adapter, hidden, targets, slope


def full(base, adapter, hidden, targets, slope):
    """Autograd through the whole logits matrix."""
    hidden = hidden.clone().requires_grad_()
    a, bt = (
        x.clone().requires_grad_() for x in (adapter.compute.a["lm_head"], adapter.compute.bt["lm_head"])
    )
    logits = hidden @ base.unembed_weight.t() + adapter.scale * (hidden @ a.t()) @ bt
    lp = torch.log_softmax(logits, -1).gather(1, targets)
    (lp * slope).sum().backward()
    return lp.detach(), hidden.grad, a.grad, bt.grad


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("chunk_rows", [1, 7, 29, 100])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 2e-5)])
def test_chunked_equals_full(dtype, tolerance, chunk_rows, width):
    base, adapter, hidden, targets, slope = setup(dtype, width)
    wanted = full(base, adapter, hidden, targets, slope)
    head = Head(base.unembed_weight, chunk_rows=chunk_rows)
    for sweeps in (1, 2):
        grads = LoraTensors.zeros(adapter.layout, adapter.rank, "cpu", dtype)
        rows = Rows(hidden, targets, adapter, grads)
        dhidden = torch.full_like(hidden, torch.nan)
        if sweeps == 1:
            lp = head.score_and_backward(rows, lambda lp, at: slope[at], dhidden)
        else:
            lp, lse = head.score(rows)
            head.backward(rows, lse, slope, dhidden)
        found = (lp, dhidden, grads.a["lm_head"], grads.bt["lm_head"])
        for x, y in zip(found, wanted, strict=True):
            torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance * float(y.abs().max()))


def test_gradients_are_added_to_what_is_there():
    base, adapter, hidden, targets, slope = setup(torch.float64, 1)
    head = Head(base.unembed_weight)
    grads = LoraTensors.zeros(adapter.layout, adapter.rank, "cpu", torch.float64)
    rows = Rows(hidden, targets, adapter, grads)
    head.score_and_backward(rows, lambda lp, at: slope[at], torch.empty_like(hidden))
    once = grads.flat.clone()
    head.score_and_backward(rows, lambda lp, at: slope[at], torch.empty_like(hidden))
    torch.testing.assert_close(grads.flat, 2 * once, rtol=1e-12, atol=1e-12)


def test_an_adapter_without_unembedding_is_left_out():
    base, adapter, hidden, targets, _ = setup(torch.float64, 1, unembed=False)
    lp, _ = Head(base.unembed_weight).score(Rows(hidden, targets, adapter))
    plain = torch.log_softmax(hidden @ base.unembed_weight.t(), -1).gather(1, targets)
    torch.testing.assert_close(lp, plain, rtol=1e-12, atol=1e-12)


def test_improbable_targets_keep_their_precision():
    weight = torch.zeros(50, 2)
    weight[0, 0] = 1.0
    head = Head(weight)
    hidden = torch.tensor([[300.0, 0.0]])
    rows = Rows(hidden, torch.tensor([[7]]))
    lp = head.score_and_backward(rows, lambda lp, at: torch.ones_like(lp), torch.empty_like(hidden))
    assert lp.item() == pytest.approx(-300.0, abs=1e-4)


def test_no_matrix_of_all_logits_is_made():
    base, adapter, hidden, targets, slope = setup(torch.float32, 1)
    head = Head(base.unembed_weight, chunk_rows=4)
    head.score_and_backward(
        Rows(hidden, targets, adapter), lambda lp, at: slope[at], torch.empty_like(hidden)
    )
    assert all(buffer.shape == (4, base.vocab_size) for buffer in head._buffers)
