"""Joined passes: each part as if alone, sums and signs, what fails and what it leaves untouched."""

import json

import numpy as np
import pytest
import torch

from tinkex.engine import trainer as training
from tinkex.engine.messages import Datum, PartFailure, PartResult, SparseRows
from tinkex.engine.trainer import Trainer, TrainState

from .training_models import (
    ALL_FAMILIES,
    VOCAB,
    assert_close,
    engine_model,
    filled_adapter,
    make_data,
    part,
    plain_model,
    reference,
    run_one,
)


@pytest.fixture(scope="module")
def base():
    return engine_model(plain_model("qwen3"))


def states(base, ranks=(4,), size=0.3):
    return [TrainState(filled_adapter(base, rank, seed=i, size=size)) for i, rank in enumerate(ranks)]


def snapshot(state):
    kept = [state.adapter.master.flat.clone()]
    if state.grads is not None:
        kept.append(state.grads.flat.clone())
    if state.moments is not None:
        kept += [state.moments.exp_avg.clone(), state.moments.exp_avg_sq.clone()]
    return kept, state.steps


def same(before, after):
    return before[1] == after[1] and all(
        torch.equal(a, b) for a, b in zip(before[0], after[0], strict=True)
    )


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_adapters_of_mixed_rank_joined_are_each_alone(family):
    base = engine_model(plain_model(family))
    ranks = (1, 4, 8, 3)
    losses = ("cross_entropy", "ppo", "gspo", "cross_entropy")
    parts = [part(make_data([5, 11, 2], seed=i, loss=x), x) for i, x in enumerate(losses)]
    joined = states(base, ranks)
    results = Trainer(base).run(list(zip(joined, parts, strict=True)))
    for i, alone in enumerate(states(base, ranks)):
        (wanted,) = Trainer(base).run([(alone, parts[i])])
        assert results[i].metrics["loss:sum"] == pytest.approx(wanted.metrics["loss:sum"], rel=1e-5)
        assert_close(joined[i].grads.flat, alone.grads.flat, 2e-5, f"{family} {i}")
        for x, y in zip(results[i].outputs, wanted.outputs, strict=True):
            assert_close(x["logprobs"], y["logprobs"], 2e-5)


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_packed_is_padded_is_one_by_one(family):
    plain = plain_model(family)
    base = engine_model(plain)
    adapter = filled_adapter(base, 4)
    data = make_data([13, 4, 9])
    packed, result = run_one(base, adapter, data)
    one = TrainState(adapter)
    singles = [Trainer(base).run([(one, part([datum]))])[0] for datum in data]
    assert_close(packed.grads.flat, one.grads.flat, 2e-5)
    for output, single in zip(result.outputs, singles, strict=True):
        assert_close(output["logprobs"], single.outputs[0]["logprobs"], 2e-5)
    if family == "qwen3_moe":
        return
    model, _ = reference(plain, adapter)
    longest = max(len(datum.tokens) for datum in data)
    ids = torch.zeros(len(data), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, datum in enumerate(data):
        ids[row, : len(datum.tokens)] = torch.as_tensor(datum.tokens)
        mask[row, : len(datum.tokens)] = 1
    with torch.no_grad():
        full = torch.log_softmax(model(input_ids=ids, attention_mask=mask).logits, -1)
    for row, (datum, output) in enumerate(zip(data, result.outputs, strict=True)):
        targets = torch.as_tensor(datum.inputs["target_tokens"])[:, None]
        wanted = full[row, : len(datum.tokens)].gather(1, targets)[:, 0]
        assert_close(output["logprobs"], wanted, 2e-5)


def test_gradient_norms_go_one_ten_two(base):
    data = make_data([6, 9])
    tenfold = [Datum(d.tokens, d.inputs | {"weights": d.inputs["weights"] * 10}) for d in data]
    norms = []
    for chosen in (data, tenfold, [*data, *data]):
        state, result = run_one(base, filled_adapter(base, 4), chosen)
        assert result.metrics["grad_norm:max"] == pytest.approx(float(state.grads.flat.norm()), rel=1e-6)
        norms.append(result.metrics["grad_norm:max"])
    assert norms[1] / norms[0] == pytest.approx(10, rel=1e-4)
    assert norms[2] / norms[0] == pytest.approx(2, rel=1e-4)


def test_calls_accumulate_until_the_step_and_forward_adds_nothing(base):
    data = make_data([6, 9, 3])
    whole, _ = run_one(base, filled_adapter(base, 4), data)
    state = TrainState(filled_adapter(base, 4))
    trainer = Trainer(base)
    for datum in data:
        trainer.run([(state, part([datum]))])
        trainer.run([(state, part([datum], forward_only=True))])
    assert_close(state.grads.flat, whole.grads.flat, 2e-5)
    metrics = trainer.optim_step(state, {"learning_rate": 1e-3})
    assert metrics["grad_norm:max"] == pytest.approx(float(whole.grads.flat.norm()), rel=1e-4)
    assert metrics["update_norm:max"] > 0
    assert state.grads is None
    assert state.steps == 1
    trainer.run([(state, part(data))])
    again = TrainState(state.adapter.frozen())
    trainer.run([(again, part(data))])
    assert torch.equal(state.grads.flat, again.grads.flat)


def test_twenty_steps_follow_peft_and_torch(base):
    plain = plain_model("qwen3")
    state = TrainState(filled_adapter(base, 4))
    model, _ = reference(plain, state.adapter)
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad],
        lr=3e-3,
        betas=(0.9, 0.95),
        eps=1e-8,
        weight_decay=0.01,
    )
    trainer = Trainer(base)
    params = {"learning_rate": 3e-3, "eps": 1e-8, "weight_decay": 0.01, "grad_clip_norm": 2.0}
    for step in range(20):
        data = make_data([8, 5], seed=step % 4)
        (result,) = trainer.run([(state, part(data))])
        total = 0.0
        for datum in data:
            logits = model(torch.as_tensor(datum.tokens)[None]).logits[0]
            lp = torch.log_softmax(logits, -1).gather(
                1, torch.as_tensor(datum.inputs["target_tokens"])[:, None]
            )
            total = total - (lp[:, 0] * torch.as_tensor(datum.inputs["weights"])).sum()
        assert result.metrics["loss:sum"] == pytest.approx(float(total.detach()), rel=1e-3, abs=2e-3)
        total.backward()
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 2.0)
        optimizer.step()
        optimizer.zero_grad()
        trainer.optim_step(state, params)
    parameters = dict(model.named_parameters())
    for name, x in state.adapter.master.named().items():
        assert_close(x, parameters[f"base_model.model.{name}.default.weight"].detach(), 2e-3, name)


def test_a_custom_loss_with_positive_gradient_is_the_built_in_one_negated(base):
    data = make_data([6, 9])
    plus = [Datum(d.tokens, d.inputs | {"weights": np.full(len(d.tokens), 0.1, np.float32)}) for d in data]
    minus = [
        Datum(d.tokens, d.inputs | {"weights": np.full(len(d.tokens), -0.1, np.float32)}) for d in data
    ]
    nodes = [
        {"op": "placeholder", "name": "lp", "target": "logprobs"},
        {"op": "call_method", "name": "s", "target": "sum", "args": [{"ref": "lp"}]},
        {"op": "call_function", "name": "m", "target": "operator.mul", "args": [{"ref": "s"}, 0.1]},
        {
            "op": "output",
            "name": "output",
            "target": "output",
            "args": [{"tuple": [{"ref": "m"}, {"dict": {}}]}],
        },
    ]
    graph = json.dumps({"inputs": [{"name": "logprobs", "rank": 1}], "nodes": nodes})
    adapter = filled_adapter(base, 4)
    built_in, _ = run_one(base, adapter, plus)
    negative, _ = run_one(base, adapter, minus)
    custom, result = run_one(base, adapter, data, "custom", {"graph": graph})
    assert isinstance(result, PartResult)
    assert_close(custom.grads.flat, -built_in.grads.flat, 1e-5)
    assert_close(custom.grads.flat, negative.grads.flat, 1e-5)


def broken(kind, data):
    first = data[0]
    if kind == "loss":
        inputs = first.inputs | {"logprobs": np.full(len(first.tokens), -1e4, np.float32)}
    else:
        inputs = first.inputs | {"advantages": np.full(len(first.tokens), 3e38, np.float32)}
    return [Datum(first.tokens, inputs), *data[1:]]


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_what_is_not_finite_fails_alone_and_changes_nothing(base, kind):
    trainer = Trainer(base)
    good, bad = states(base, (4, 2))
    data = make_data([6, 4], loss="importance_sampling")
    for state in (good, bad):
        trainer.run([(state, part(data, "importance_sampling"))])
        trainer.optim_step(state, {"learning_rate": 1e-3})
        trainer.run([(state, part(data, "importance_sampling"))])
    twin = TrainState(good.adapter.frozen(), grads=good.grads.like(good.grads.flat.clone()))
    before = snapshot(bad)
    results = trainer.run(
        [
            (bad, part(broken(kind, data), "importance_sampling")),
            (good, part(data, "importance_sampling")),
        ]
    )
    assert isinstance(results[0], PartFailure)
    assert results[0].category == "user"
    assert "not finite" in results[0].text
    assert same(before, snapshot(bad))
    assert isinstance(results[1], PartResult)
    trainer.run([(twin, part(data, "importance_sampling"))])
    assert_close(good.grads.flat, twin.grads.flat, 2e-5)
    trainer.run([(bad, part(data, "importance_sampling"))])
    assert torch.isfinite(bad.grads.flat).all()


def test_diverged_weights_are_the_users_and_broken_ones_the_servers(base):
    trainer = Trainer(base)
    state = states(base)[0]
    data = make_data([5])
    state.adapter.master.flat.fill_(float("nan"))
    state.adapter.refresh()
    (result,) = trainer.run([(state, part(data))])
    assert result.category == "server"
    fresh = states(base)[0]
    trainer.run([(fresh, part(data))])
    trainer.optim_step(fresh, {"learning_rate": 1e30})
    (result,) = trainer.run([(fresh, part(data))])
    assert isinstance(result, PartFailure)
    assert result.category == "user"


def bad_requests():
    data = make_data([5, 4])
    first = data[0]

    def change(**inputs):
        return [Datum(first.tokens, first.inputs | inputs)]

    def wide(rows, columns):
        crow = np.array([0] + [1] * rows)
        return SparseRows(np.array([3]), crow, np.array([0]), (rows, columns))

    cut = {key: value for key, value in first.inputs.items() if key != "target_tokens"}
    one = Datum(first.tokens[:1], {"target_tokens": wide(1, 1 << 25)})
    return {
        "no data": ([], "cross_entropy", {}),
        "no tokens": ([Datum(np.array([], np.int64), first.inputs)], "cross_entropy", {}),
        "target_tokens": ([Datum(first.tokens, cut)], "cross_entropy", {}),
        "rows for": (change(target_tokens=np.zeros(3, np.int64)), "cross_entropy", {}),
        "has no targets": (change(target_tokens=np.zeros((5, 0), np.int64)), "cross_entropy", {}),
        f"is 5 x {10**13} >": (change(target_tokens=wide(5, 10**13)), "cross_entropy", {}),
        "not a sound sparse": (change(target_tokens=wide(5, -1)), "cross_entropy", {}),
        f"6 rows of {1 << 25} targets >": (
            [one, Datum(first.tokens, {"target_tokens": first.inputs["target_tokens"]})],
            "cross_entropy",
            {},
        ),
        "has shape": (change(weights=np.zeros(3, np.float32)), "cross_entropy", {}),
        "datum 0: weights": (change(weights=np.full(5, np.nan, np.float32)), "cross_entropy", {}),
        f"vocabulary has {VOCAB}": (change(target_tokens=np.full(5, VOCAB)), "cross_entropy", {}),
        "-1": ([Datum(np.full(5, -1), first.inputs)], "cross_entropy", {}),
        "600 tokens > context 512": (make_data([600]), "cross_entropy", {}),
        "image": ([Datum(first.tokens, first.inputs, ("image",))], "cross_entropy", {}),
        "logprobs": (data, "ppo", {}),
        "stable_reinforce has no public definition": (data, "stable_reinforce", {}),
        "unknown loss": (data, "mystery", {}),
        "clip_high": (make_data([4], loss="ppo"), "ppo", {"clip_high": 1.2}),
        "must be a number": (make_data([4], loss="ppo"), "ppo", {"clip_low_threshold": "low"}),
        "sequence_ratio_mask": (make_data([4], loss="ppo"), "gspo", {}),
        "graph": (data, "custom", {}),
    }


@pytest.mark.parametrize("text", list(bad_requests()))
def test_a_bad_request_says_what_is_wrong_and_harms_nobody(base, text):
    data, loss, config = bad_requests()[text]
    bad, good = states(base, (4, 4))
    results = Trainer(base).run([(bad, part(data, loss, **config)), (good, part(make_data([4])))])
    assert isinstance(results[0], PartFailure)
    assert results[0].category == "user"
    assert text in results[0].text
    assert bad.grads is None
    assert isinstance(results[1], PartResult)
    assert good.grads is not None


def test_weights_may_be_left_out(base):
    data = make_data([5])
    bare = [Datum(data[0].tokens, {"target_tokens": data[0].inputs["target_tokens"]})]
    ones = [Datum(data[0].tokens, data[0].inputs | {"weights": np.ones(5, np.float32)})]
    adapter = filled_adapter(base, 4)
    first, second = run_one(base, adapter, bare)[0], run_one(base, adapter, ones)[0]
    assert torch.equal(first.grads.flat, second.grads.flat)


def test_left_out_weights_count_no_cell_without_a_target(base):
    adapter = filled_adapter(base, 4)
    narrow, wide = make_data([5])[0], make_data([4], width=3, seed=1)[0]
    crow, col = np.array([0, 2, 3, 3, 4]), np.array([0, 2, 1, 0])
    listed = np.arange(4, dtype=np.int64) + 7
    sparse = Datum(wide.tokens, {"target_tokens": SparseRows(listed, crow, col, (4, 3))})
    ones = SparseRows(np.ones(4, np.float32), crow, col, (4, 3))
    bare = [Datum(x.tokens, {"target_tokens": x.inputs["target_tokens"]}) for x in (narrow, wide)]
    full = [
        Datum(x.tokens, x.inputs | {"weights": np.ones(x.inputs["target_tokens"].shape, np.float32)})
        for x in (narrow, wide)
    ]
    found, result = run_one(base, adapter, [*bare, sparse])
    wanted, expected = run_one(
        base, adapter, [*full, Datum(sparse.tokens, sparse.inputs | {"weights": ones})]
    )
    assert result.metrics["loss:sum"] == pytest.approx(expected.metrics["loss:sum"], rel=1e-6)
    assert torch.equal(found.grads.flat, wanted.grads.flat)
    alone = [run_one(base, adapter, [each])[1].metrics["loss:sum"] for each in (*bare, sparse)]
    assert result.metrics["loss:sum"] == pytest.approx(sum(alone), rel=1e-5)


@pytest.mark.parametrize("loss", ["cross_entropy", "ppo", "gspo"])
def test_data_of_several_widths_is_each_datum_alone(base, loss):
    adapter = filled_adapter(base, 4)
    data = [make_data([n], seed=n, width=k, loss=loss)[0] for n, k in ((6, None), (5, 3), (7, 1), (4, 2))]
    state, result = run_one(base, adapter, data, loss)
    alone = [run_one(base, adapter, [datum], loss) for datum in data]
    assert result.metrics["loss:sum"] == pytest.approx(
        sum(each.metrics["loss:sum"] for _, each in alone), rel=1e-4, abs=1e-3
    )
    assert_close(state.grads.flat, sum(each.grads.flat for each, _ in alone), 1e-4, "gradient")
    for found, (_, each) in zip(result.outputs, alone, strict=True):
        assert found["logprobs"].shape == each.outputs[0]["logprobs"].shape
        assert_close(found["logprobs"], each.outputs[0]["logprobs"], 1e-5, "logprobs")


def test_a_part_that_breaks_while_it_is_laid_out_fails_alone(base, monkeypatch):
    real = training.lay_out

    def breaks(data, **given):
        if len(data) == 2:
            raise MemoryError("so much is not there")
        return real(data, **given)

    monkeypatch.setattr(training, "lay_out", breaks)
    bad, good = states(base, (4, 4))
    results = Trainer(base).run([(bad, part(make_data([4, 5]))), (good, part(make_data([4])))])
    assert results[0] == PartFailure("server", "MemoryError: so much is not there")
    assert isinstance(results[1], PartResult)


@pytest.mark.parametrize("masked", [1, 15])
@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo"])
def test_a_token_without_advantage_adds_nothing_whatever_its_logprob(base, loss, masked):
    adapter = filled_adapter(base, 4)
    found = []
    for given in (0.0, -999.0):
        data = make_data([30], loss=loss)
        data[0].inputs["advantages"][:masked] = 0
        data[0].inputs["logprobs"][:masked] = given
        state, result = run_one(base, adapter, data, loss)
        (forward,) = Trainer(base).run([(TrainState(adapter), part(data, loss, forward_only=True))])
        found.append((state.grads.flat, result.metrics["loss:sum"], forward.metrics["loss:sum"]))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]
    assert found[0][1] == pytest.approx(found[0][2], rel=1e-4, abs=1e-3)


def test_weights_that_are_all_zero_give_logprobs_and_a_zero_gradient(base):
    data = make_data([5, 3])
    zeros = [Datum(d.tokens, d.inputs | {"weights": np.zeros(len(d.tokens), np.float32)}) for d in data]
    adapter = filled_adapter(base, 4)
    state, result = run_one(base, adapter, zeros)
    assert result.metrics["loss:sum"] == 0
    assert not state.grads.flat.any()
    _, wanted = run_one(base, adapter, data)
    for x, y in zip(result.outputs, wanted.outputs, strict=True):
        assert_close(x["logprobs"], y["logprobs"], 1e-5)


def test_determinism_mode_gives_the_same_bits_whatever_is_joined(base):
    trainer = Trainer(base, deterministic=True)
    data = make_data([7, 12, 3])
    alone = states(base)[0]
    (wanted,) = trainer.run([(alone, part(data))])
    for others in ([3], [40, 2, 9], [1, 1]):
        mine, extra = states(base, (4, 8))
        results = trainer.run([(extra, part(make_data(others))), (mine, part(data))])
        assert torch.equal(mine.grads.flat, alone.grads.flat)
        for x, y in zip(results[1].outputs, wanted.outputs, strict=True):
            assert np.array_equal(x["logprobs"], y["logprobs"])


def test_a_frozen_copy_does_not_follow_training(base):
    trainer = Trainer(base)
    state = states(base)[0]
    frozen = state.adapter.frozen()
    data = make_data([6])
    before = trainer.run([(TrainState(frozen), part(data, forward_only=True))])[0].outputs[0]["logprobs"]
    for _ in range(5):
        trainer.run([(state, part(data))])
        trainer.optim_step(state, {"learning_rate": 1e-2})
    after = trainer.run([(TrainState(frozen), part(data, forward_only=True))])[0].outputs[0]["logprobs"]
    assert np.array_equal(before, after)
    moved = trainer.run([(state, part(data, forward_only=True))])[0].outputs[0]["logprobs"]
    assert not np.allclose(before, moved, atol=1e-3)


def test_metrics_have_one_colon_each(base):
    state, result = run_one(base, filled_adapter(base, 4), make_data([5]))
    step = Trainer(base).optim_step(state, {})
    for name in [*result.metrics, *step]:
        assert name.count(":") == 1
    assert result.metrics["tokens:sum"] == 5


def test_a_pass_that_lacks_memory_is_done_in_smaller_pieces(monkeypatch):
    base = engine_model(plain_model("qwen3"))
    data = make_data([20, 30, 25, 10])
    wanted, whole = run_one(base, filled_adapter(base, 4), data)
    real, sizes = Trainer._micro_batch, []

    def scarce(self, parts, batch):
        tokens = sum(sum(parts[r.part].data.lengths[r.first : r.end]) for r in batch)
        sizes.append(tokens)
        real(self, parts, batch)
        if tokens > 40:
            raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(Trainer, "_micro_batch", scarce)
    state, result = run_one(base, filled_adapter(base, 4), data, token_budget=128)
    assert max(sizes) > 40
    assert sizes[-1] <= 40
    assert_close(state.grads.flat, wanted.grads.flat, 1e-5, "gradient")
    assert result.metrics["loss:sum"] == pytest.approx(whole.metrics["loss:sum"], rel=1e-5)


def test_a_sequence_that_never_fits_fails_and_leaves_everything_as_it_was(monkeypatch):
    base = engine_model(plain_model("qwen3"))
    state, _ = run_one(base, filled_adapter(base, 4), make_data([9]))
    before = state.grads.flat.clone()

    def full(self, parts, batch):
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(Trainer, "_micro_batch", full)
    (failure,) = Trainer(base).run([(state, part(make_data([30, 12])))])
    assert isinstance(failure, PartFailure)
    assert "a sequence of 30 tokens does not fit the device's memory" in failure.text
    assert torch.equal(state.grads.flat, before)


def test_only_the_part_that_does_not_fit_fails(base, monkeypatch):
    real = Trainer._micro_batch

    def scarce(self, parts, batch):
        if max(length for r in batch for length in parts[r.part].data.lengths[r.first : r.end]) > 20:
            raise torch.OutOfMemoryError("no memory left")
        real(self, parts, batch)

    alone, _ = run_one(base, filled_adapter(base, 4, seed=1, size=0.3), make_data([9, 8]))
    monkeypatch.setattr(Trainer, "_micro_batch", scarce)
    long, short = states(base, (4, 4))
    results = Trainer(base).run([(long, part(make_data([30]))), (short, part(make_data([9, 8])))])
    assert "a sequence of 30 tokens does not fit" in results[0].text
    assert long.grads is None
    assert isinstance(results[1], PartResult)
    assert_close(short.grads.flat, alone.grads.flat, 1e-5, "gradient")


def test_every_buffer_a_model_holds_is_counted(base):
    state = states(base)[0]
    runner, weights = Trainer(base), state.nbytes()
    runner.run([(state, part(make_data([5])))])
    assert state.nbytes() == 2 * weights
    runner.run([(state, part(make_data([5])))])
    assert state.spare is not None
    assert state.nbytes() == 3 * weights
    runner.optim_step(state, {})
    assert (state.grads, state.spare) != (None, None)
    assert state.nbytes() == 4 * weights
