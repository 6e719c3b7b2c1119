"""Every loss and every adapter gradient against transformers + PEFT + a plain torch formula, and by
differences.

Tolerances are relative to the largest value: 1e-4 in float32, 6e-2 in bfloat16, 1e-6 for differences in
float64.
"""

import numpy as np
import pytest
import torch

from tinkex.engine import base_model, query_blocks
from tinkex.engine.messages import SparseRows
from tinkex.engine.trainer import Trainer, TrainState

from .training_models import (
    ALL_FAMILIES,
    FAMILIES,
    assert_close,
    engine_model,
    filled_adapter,
    gradient,
    make_data,
    part,
    plain_model,
    reference,
    reference_logprobs,
    run_one,
)

LOSSES = ["cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo"]
SETTINGS = {"dro": {"beta": 0.3}, "ppo": {"clip_low_threshold": 0.7, "clip_high_threshold": 1.4}}
LENGTHS = [9, 1, 14, 5]


def plain_loss(loss, lp, inputs, config):
    """The published formulas, for autograd to differentiate."""
    get = {
        key: torch.as_tensor(value).to(lp.dtype) for key, value in inputs.items() if key != "target_tokens"
    }
    if loss == "cross_entropy":
        return -(lp * get["weights"]).sum()
    q, adv = get["logprobs"], get["advantages"]
    low = get.get("clip_low_threshold", config.get("clip_low_threshold", 0.0 if loss == "cispo" else 0.8))
    high = get.get(
        "clip_high_threshold", config.get("clip_high_threshold", 4.0 if loss == "cispo" else 1.2)
    )
    low, high = (torch.as_tensor(x, dtype=lp.dtype) for x in (low, high))
    ratio = torch.exp(lp - q)
    if loss == "importance_sampling":
        return -(ratio * adv).sum()
    if loss == "ppo":
        return -torch.min(ratio * adv, torch.clamp(ratio, low, high) * adv).sum()
    if loss == "cispo":
        return -(torch.clamp(ratio, low, high).detach() * lp * adv).sum()
    if loss == "dro":
        return -(lp * adv - 0.5 * config.get("beta", 0.05) * (lp - q) ** 2).sum()
    mask = get["sequence_ratio_mask"]
    s = torch.exp(((lp - q) * mask).sum() / mask.sum()).detach()
    token = s * torch.exp(lp - lp.detach())
    return -torch.min(token * adv, torch.clamp(token, low, high) * adv).sum()


def reference_gradients(plain, adapter, data, loss, config):
    model, grads = reference(plain, adapter)
    total = 0.0
    for datum in data:
        lp = reference_logprobs(model, datum.tokens, datum.inputs["target_tokens"])
        total = total + plain_loss(loss, lp, datum.inputs, config)
    total.backward()
    return float(total.detach()), grads()


def check(plain, data, loss, config, tolerance, generic=False, **options):
    base = engine_model(plain, generic)
    adapter = filled_adapter(base, 4)
    state, result = run_one(base, adapter, data, loss, config, **options)
    value, wanted = reference_gradients(plain, adapter, data, loss, config)
    assert result.metrics["loss:sum"] == pytest.approx(value, rel=tolerance * 3, abs=1e-3)
    for name, found in gradient(state).items():
        assert_close(found, wanted[name], tolerance, f"{loss} {name}")


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_cross_entropy_gradients_of_every_family(family):
    check(plain_model(family), make_data(LENGTHS), "cross_entropy", {}, 1e-4)


@pytest.mark.parametrize("family", ["qwen2", "mistral", "qwen3_moe"])
def test_the_generic_path_gives_the_same_gradients(family):
    check(plain_model(family), make_data(LENGTHS), "cross_entropy", {}, 1e-4, generic=True)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_on_qwen3(loss):
    check(plain_model("qwen3"), make_data(LENGTHS, loss=loss), loss, SETTINGS.get(loss, {}), 1e-4)


@pytest.mark.parametrize("loss", SETTINGS)
def test_the_published_settings_hold_where_none_are_given(loss):
    check(plain_model("qwen3"), make_data(LENGTHS, loss=loss), loss, {}, 1e-4)


@pytest.mark.parametrize("loss", ["ppo", "cispo", "gspo"])
def test_clip_bounds_token_by_token(loss):
    data = make_data(LENGTHS, loss=loss)
    random = np.random.default_rng(5)
    for datum in data:
        n = len(datum.tokens)
        datum.inputs["clip_low_threshold"] = random.uniform(0.1, 0.9, n).astype(np.float32)
        datum.inputs["clip_high_threshold"] = random.uniform(1.0, 3.0, n).astype(np.float32)
    check(plain_model("llama"), data, loss, {}, 1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_in_bfloat16(family):
    check(plain_model(family, torch.bfloat16), make_data([40, 33], seed=2), "cross_entropy", {}, 6e-2)


@pytest.mark.parametrize(
    "options", [{"checkpoint_activations": True}, {"token_budget": 10}, {"chunk_rows": 3}]
)
@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_memory_saving_changes_no_gradient(family, options):
    check(plain_model(family), make_data(LENGTHS), "cross_entropy", {}, 1e-4, **options)


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_adapters_folded_into_the_weights_give_the_same_gradients(family):
    plain = plain_model(family)
    base = engine_model(plain)
    assert base.foldable
    data = make_data([40, 25])
    check(plain, data, "cross_entropy", {}, 1e-4)
    parts = [part(data), part(make_data([33], seed=3))]
    found = []
    for limit in (base_model.FOLDABLE, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(base_model, "FOLDABLE", limit)
            assert base.foldable == bool(limit)
            states = [TrainState(filled_adapter(base, rank, seed=rank)) for rank in (4, 2)]
            Trainer(base).run(list(zip(states, parts, strict=True)))
            assert not states[0].adapter.folded
            found.append([state.grads.flat for state in states])
    for folded, plain_sum in zip(*found, strict=True):
        assert_close(folded, plain_sum, 2e-5, family)


def test_long_and_windowed_sequences_have_right_gradients():
    for family in ("qwen3", "mistral"):
        check(plain_model(family), make_data([180, 20, 131]), "cross_entropy", {}, 1e-4)


def test_scores_that_are_not_kept_are_computed_again(monkeypatch):
    found = []
    for kept in (query_blocks.KEPT, 0):
        monkeypatch.setattr(query_blocks, "KEPT", kept)
        for family in ("qwen3", "mistral"):
            base = engine_model(plain_model(family))
            state, _ = run_one(base, filled_adapter(base, 4), make_data([180, 20, 131]))
            found.append(state.grads.flat)
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


def test_two_dimensional_targets():
    check(plain_model("qwen3"), make_data(LENGTHS, width=3), "cross_entropy", {}, 1e-4)


def test_sparse_targets_are_their_dense_form():
    base = engine_model(plain_model("qwen3"))
    adapter = filled_adapter(base, 4)
    data = make_data([8, 5], width=4)
    for datum in data:
        datum.inputs["weights"][np.random.default_rng(1).random((len(datum.tokens), 4)) < 0.6] = 0
        datum.inputs["target_tokens"][datum.inputs["weights"] == 0] = 0
    dense_state, dense = run_one(base, adapter, data)
    sparse = []
    for datum in data:
        inputs = {}
        for name, x in datum.inputs.items():
            listed = torch.from_numpy(x).to_sparse_csr()
            crow, col = listed.crow_indices().numpy(), listed.col_indices().numpy()
            inputs[name] = SparseRows(listed.values().numpy(), crow, col, x.shape)
        sparse.append(type(datum)(datum.tokens, inputs))
    state, result = run_one(base, adapter, sparse)
    assert result.metrics["loss:sum"] == dense.metrics["loss:sum"]
    assert torch.equal(state.grads.flat, dense_state.grads.flat)
    assert result.outputs[0]["logprobs"].shape == (8, 4)


def test_tokens_without_weight_are_scored_and_skipped():
    data = make_data([30, 12])
    for datum in data:
        datum.inputs["weights"][: len(datum.tokens) // 2] = 0
    check(plain_model("qwen3"), data, "cross_entropy", {}, 1e-4)


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_parts_can_be_left_out(family):
    plain = plain_model(family)
    base = engine_model(plain)
    data = make_data([7, 4])
    for chosen in ({"mlp": False}, {"attn": False, "unembed": False}, {"attn": False, "mlp": False}):
        adapter = filled_adapter(base, 2, **chosen)
        state, _ = run_one(base, adapter, data)
        _, wanted = reference_gradients(plain, adapter, data, "cross_entropy", {})
        assert gradient(state).keys() == wanted.keys()
        for name, found in gradient(state).items():
            assert_close(found, wanted[name], 1e-4, name)


@pytest.mark.parametrize("loss", LOSSES)
def test_by_differences_in_float64(loss):
    base = engine_model(plain_model("qwen3", torch.float64))
    adapter = filled_adapter(base, 2)
    data = make_data([6, 4], loss=loss)
    config = SETTINGS.get(loss, {})
    state, _ = run_one(base, adapter, data, loss, config)
    grads = state.grads.flat
    # Stopped ratios have no derivative: the formula is taken with them held at today's values.
    today = logprobs64(base, adapter, data)

    def value():
        adapter.refresh()
        if loss not in ("cispo", "gspo"):
            return run_one(base, adapter, data, loss, config)[1].metrics["loss:sum"]
        lps = logprobs64(base, adapter, data)
        parts = zip(lps, today, data, strict=True)
        return float(sum(surrogate(loss, lp, start, datum.inputs) for lp, start, datum in parts))

    random = np.random.default_rng(0)
    flat = adapter.master.flat
    for index in random.choice(len(flat), 12, replace=False).tolist():
        step, kept = 1e-5, float(flat[index])
        flat[index] = kept + step
        above = value()
        flat[index] = kept - step
        below = value()
        flat[index] = kept
        slope = (above - below) / (2 * step)
        assert slope == pytest.approx(float(grads[index]), rel=1e-4, abs=1e-6 * float(grads.abs().max()))


def logprobs64(base, adapter, data):
    """Logprobs in float64, before they are rounded for the answer."""
    trainer = Trainer(base)
    kept = []
    score = trainer.head.score

    def listen(rows):
        lp, lse = score(rows)
        kept.append(lp[:, 0].clone())
        return lp, lse

    trainer.head.score = listen
    trainer.run([(TrainState(adapter), part(data, forward_only=True))])
    return list(torch.cat(kept).split([len(datum.tokens) for datum in data]))


def surrogate(loss, lp, start, inputs):
    """The loss with what has no gradient held at `start`."""
    q, adv = (torch.as_tensor(inputs[key]).double() for key in ("logprobs", "advantages"))
    if loss == "cispo":
        return -(torch.clamp(torch.exp(start - q), 0, 4) * lp * adv).sum()
    mask = torch.as_tensor(inputs["sequence_ratio_mask"]).double()
    token = torch.exp(((start - q) * mask).sum() / mask.sum()) * torch.exp(lp - start)
    return -torch.min(token * adv, torch.clamp(token, 0.8, 1.2) * adv).sum()
