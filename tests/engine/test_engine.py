"""The engine behind its host: train and sample together, frozen weights, cancelling, epochs, failures."""

import itertools
import json
import queue
import threading

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tinkex.engine.checkpoints import FILE
from tinkex.engine.desk import CallFailed, Desk
from tinkex.engine.engine import Engine, EngineOptions
from tinkex.engine.faults import ServerFault
from tinkex.engine.host import Host
from tinkex.engine.messages import (
    AskStats,
    CreateAdapter,
    Datum,
    Done,
    DropSampler,
    Export,
    ExportSaved,
    KeepSamplers,
    LoadSampler,
    LoadState,
    OptimStep,
    PartFailure,
    PartResult,
    Sample,
    SamplingParams,
    SaveSampler,
    SaveState,
    ScoreOptions,
    Train,
    TrainPart,
    Unload,
)
from tinkex.engine.sampler import SamplerOptions

from .sampling_models import base_model, prompts, spell

PROMPT = prompts(1, 20, 21, seed=3)[0]
SMALL = SamplerOptions(kv_bytes=4 << 20)


@pytest.fixture(scope="module")
def base():
    return base_model("qwen3")[0]


def datum(seed=0, length=24, media=()):
    tokens = np.random.default_rng(seed).integers(2, 90, length + 1)
    inputs = {"target_tokens": tokens[1:], "weights": np.ones(length, np.float32)}
    return Datum(tokens[:-1], inputs, media)


class Trial:
    """A desk with short names for what tests do."""

    def __init__(self, base, *, as_bytes=True, epoch=3, **options):
        options = {"sampler": SMALL} | options
        self.engine = Engine(base, epoch=epoch, options=EngineOptions(**options), detokenise=spell)
        self.desk = Desk(self.engine, as_bytes=as_bytes)
        self.epoch = epoch

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.desk.host.close()

    def ask(self, kind, *args, **fields):
        return self.desk.call(kind(self.epoch, self.desk.next_id(), *args, **fields), timeout=60)

    def create(self, model, **fields):
        return self.ask(CreateAdapter, model, **({"rank": 4, "seed": 1} | fields))

    def train(self, *models, data=None, loss="cross_entropy", **fields):
        parts = tuple(TrainPart(m, data or (datum(0), datum(1, 11)), loss, **fields) for m in models)
        return self.ask(Train, parts).parts

    def step(self, model, rate=0.05):
        return self.ask(OptimStep, model, {"learning_rate": rate})

    def learn(self, model, steps=1):
        for _ in range(steps):
            self.train(model)
            self.step(model)

    def freeze(self, model, path=None):
        return self.ask(SaveSampler, model, path).facts["version"]

    def start(self, version, samples=1, prompt=PROMPT, scores=None, **params):
        message = Sample(
            self.epoch,
            self.desk.next_id(),
            version,
            prompt,
            samples,
            SamplingParams(**({"seed": 1, "max_tokens": 12, "stop": ()} | params)),
            scores or ScoreOptions(),
        )
        return self.desk.sample(message)

    def sample(self, version, **fields):
        return [(s.tokens, s.logprobs) for s in self.start(version, **fields).result()]


def alike(left, right):
    """The same tokens, and logprobs that differ by rounding at most: what a batch of other rows may do."""
    return all(
        tokens == other and np.allclose(logprobs, others, atol=1e-5)
        for (tokens, logprobs), (other, others) in zip(left, right, strict=True)
    )


@pytest.fixture
def trial(base):
    with Trial(base) as made:
        yield made


def test_train_and_sample_through_the_host(trial):
    trial.create("m")
    first = trial.train("m")[0]
    assert len(first.outputs) == 2
    assert first.outputs[0]["logprobs"].shape == (24,)
    trial.step("m")
    assert trial.train("m", forward_only=True)[0].metrics["loss:sum"] < first.metrics["loss:sum"]
    version = trial.freeze("m")
    sequences = trial.start(version, samples=3).result()
    assert [len(s.tokens) for s in sequences] == [12] * 3
    assert {s.stop_reason for s in sequences} == {"length"}
    figures = trial.ask(AskStats).figures
    assert (figures["models"], figures["sampler_versions"], figures["tokens_drawn"]) == (1, 1, 36)


def test_sampled_logprobs_equal_the_training_path(trial):
    trial.create("m")
    trial.learn("m", 2)
    version = trial.freeze("m")
    (tokens, logprobs), *_ = trial.sample(version, max_tokens=40)
    whole = np.concatenate([PROMPT, tokens])
    inputs = {"target_tokens": whole[1:], "weights": np.ones(len(whole) - 1, np.float32)}
    scored = trial.train("m", data=(Datum(whole[:-1], inputs),), forward_only=True)[0]
    assert np.allclose(scored.outputs[0]["logprobs"][len(PROMPT) - 1 :], logprobs, atol=1e-4)
    call = trial.start(version, prompt=whole, max_tokens=1, scores=ScoreOptions(prompt_logprobs=True))
    call.result()
    assert np.allclose(call.done.prompt_logprobs[1:], scored.outputs[0]["logprobs"], atol=1e-4)


@pytest.mark.parametrize("deterministic", [False, True], ids=["fast", "exact"])
def test_frozen_weights_stay_frozen(base, deterministic):
    with Trial(base, deterministic=deterministic) as trial:
        trial.create("m")
        trial.learn("m", 2)
        version = trial.freeze("m")
        before = trial.sample(version, samples=2)
        loss = trial.train("m", forward_only=True)[0].metrics["loss:sum"]
        trial.learn("m", 5)
        after = trial.sample(version, samples=2)
        assert after == before if deterministic else alike(after, before)
        assert trial.train("m", forward_only=True)[0].metrics["loss:sum"] < loss
        newer = trial.freeze("m")
        assert newer != version
        assert not alike(trial.sample(newer, samples=2), before)


def test_sampling_changes_no_training_number(base):
    losses = []
    for sampling in (False, True):
        with Trial(base) as trial:
            trial.create("m")
            trial.learn("m", 2)
            if sampling:
                trial.sample(trial.freeze("m"), samples=4)
            losses.append(trial.train("m")[0].metrics["loss:sum"])
            trial.step("m")
            losses.append(trial.train("m", forward_only=True)[0].metrics["loss:sum"])
    assert losses[:2] == losses[2:]


def test_equal_weights_are_one_version(trial):
    for name in ("one", "two"):
        trial.create(name, seed=5)
    assert trial.freeze("one") == trial.freeze("two")
    trial.create("three", seed=6)
    assert trial.freeze("three") != trial.freeze("one")


def test_ephemeral_versions_beyond_the_newest_are_dropped_with_a_reason(base, tmp_path):
    with Trial(base, keep_ephemeral=2, keep_seconds=0.0, folder=tmp_path) as trial:
        trial.create("m")
        trial.create("other", seed=9)
        other = trial.freeze("other")
        versions = []
        for _ in range(4):
            trial.learn("m")
            versions.append(trial.freeze("m"))
        named = trial.freeze("m", str(tmp_path / "named"))
        assert named == versions[-1]
        for version in (other, *versions[2:]):
            assert len(trial.sample(version)) == 1
        for version in versions[:2]:
            with pytest.raises(CallFailed, match=r"dropped.*newest 2.*save them under a name") as caught:
                trial.sample(version)
            assert caught.value.category == "user"
        trial.engine.weights.settle()
        assert sorted(p.name for p in (tmp_path / "sampler").iterdir()) == sorted({other, *versions[2:]})


def test_versions_used_lately_are_kept(base):
    with Trial(base, keep_ephemeral=1, keep_seconds=1000.0) as trial:
        trial.create("m")
        versions = []
        for _ in range(3):
            trial.learn("m")
            versions.append(trial.freeze("m"))
        assert all(len(trial.sample(version)) == 1 for version in versions)


def test_versions_that_left_memory_come_back_as_they_were(base, tmp_path):
    with Trial(base, resident_samplers=1, folder=tmp_path) as trial:
        trial.create("m")
        answers = {}
        for _ in range(3):
            trial.learn("m")
            version = trial.freeze("m")
            answers[version] = trial.sample(version)
            trial.engine.weights.settle()
        assert trial.engine.weights.in_memory <= 2
        for version, answer in answers.items():
            assert alike(trial.sample(version), answer)


def test_saved_samplers_load_in_another_engine(base, tmp_path):
    with Trial(base) as trial:
        trial.create("m")
        trial.learn("m")
        version = trial.freeze("m", str(tmp_path / "s"))
        answer = trial.sample(version)
        trial.ask(Export, "m", str(tmp_path / "peft"))
    with Trial(base, epoch=4) as trial:
        with pytest.raises(CallFailed, match="save or load them first"):
            trial.sample(version)
        assert trial.ask(LoadSampler, str(tmp_path / "s")).facts["version"] == version
        assert trial.sample(version) == answer
        assert trial.ask(LoadSampler, str(tmp_path / "peft")).facts["version"] == version
        trial.ask(DropSampler, version)
        with pytest.raises(CallFailed, match="unloaded"):
            trial.sample(version)


def test_a_saved_state_goes_on_bit_for_bit(base, tmp_path):
    with Trial(base) as trial:
        trial.create("m")
        trial.learn("m", 2)
        trial.ask(SaveState, "m", str(tmp_path / "ck"))
        trial.learn("m", 2)
        whole = trial.freeze("m")
        assert trial.ask(LoadState, "n", str(tmp_path / "ck"), True).facts["step"] == 2
        trial.learn("n", 2)
        assert trial.freeze("n") == whole
        trial.ask(LoadState, "w", str(tmp_path / "ck"), False)
        trial.learn("w", 2)
        assert trial.freeze("w") != whole
        trial.ask(Unload, "m")
        with pytest.raises(CallFailed, match="no model 'm'"):
            trial.step("m")


def test_cold_models_come_back_with_their_gradients(base, tmp_path):
    def run(**options):
        with Trial(base, **options) as trial:
            names = ["a", "b", "c"]
            for i, name in enumerate(names):
                trial.create(name, seed=i)
            for name in names * 2:
                trial.train(name)
                trial.learn(name)
                trial.train(name)
            for name in names:
                trial.step(name)
            return [trial.freeze(name) for name in names]

    assert run() == run(device_bytes=1, host_bytes=1, folder=tmp_path)


def test_parts_of_a_joined_call_fail_alone(trial):
    trial.create("m")
    trial.create("n", seed=2)
    good = TrainPart("m", (datum(),), "cross_entropy")
    parts = (
        good,
        TrainPart("nobody", (datum(),), "cross_entropy"),
        TrainPart("n", (datum(media=("image",)),), "cross_entropy"),
        TrainPart("n", (datum(),), "no_such_loss"),
    )
    found = trial.ask(Train, parts).parts
    assert found[0].metrics["loss:sum"] == trial.ask(Train, (good,)).parts[0].metrics["loss:sum"]
    assert [part.category for part in found[1:]] == ["user"] * 3
    assert "no model 'nobody'" in found[1].text
    assert "image input; this model reads text only" in found[2].text
    assert isinstance(found[3], PartFailure)


def test_joined_models_that_do_not_fit_side_by_side_are_trained_one_after_the_other(base, tmp_path):
    def run(**options):
        with Trial(base, **options) as trial:
            names = ["a", "b", "c"]
            for i, name in enumerate(names):
                trial.create(name, seed=i)
            found = trial.train("a", "b", "nobody", "a", "c")
            for name in names:
                trial.step(name)
            return [part.metrics["loss:sum"] for part in found if isinstance(part, PartResult)], found[2]

    wanted, _ = run()
    assert len(wanted) == 4
    found, unknown = run(device_bytes=1, host_bytes=1, folder=tmp_path)
    assert found == pytest.approx(wanted, rel=1e-6)
    assert "no model 'nobody'" in unknown.text


def test_a_cold_model_that_cannot_be_read_fails_its_part_alone(base, tmp_path):
    with Trial(base, device_bytes=1, host_bytes=1, folder=tmp_path) as trial:
        for i, name in enumerate("abc"):
            trial.create(name, seed=i)
        (lost,) = (tmp_path / "states").glob("61/*.safetensors")
        lost.write_bytes(b"what the disk has made of it")
        found = trial.train("b", "a", "c")
        assert found[1].category == "server"
        assert "cannot be read" in found[1].text
        assert isinstance(found[0], PartResult)
        assert isinstance(found[2], PartResult)


@pytest.mark.parametrize(
    ("kind", "args", "text"),
    [
        (OptimStep, ("nobody", {"learning_rate": 0.1}), "no model 'nobody'"),
        (CreateAdapter, ("m",), "exists already"),
        (CreateAdapter, ("x", 0), "rank must be between 1 and 1024, got 0"),
        (CreateAdapter, ("x", 4, 1, False, False, False), "at least one of"),
        (CreateAdapter, ("x", 4, 1, True, True, True, "dimuon"), "'dimuon' is not supported"),
        (Train, ((),), "at least one part"),
        (LoadState, ("x", "nowhere"), "no checkpoint"),
        (SaveSampler, ("nobody",), "no model"),
        (DropSampler, ("nothing",), "no sampler weights"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_wrong_operations_fail_with_a_reason_and_the_engine_goes_on(trial, kind, args, text):
    trial.create("m")
    with pytest.raises(CallFailed, match=text) as caught:
        trial.ask(kind, *args)
    assert caught.value.category == "user"
    trial.learn("m")


def test_images_in_a_prompt_are_refused(trial):
    message = Sample(3, "x", "", PROMPT, media=("image", "image"))
    with pytest.raises(CallFailed, match="the prompt holds image input; this model reads text only"):
        trial.desk.sample(message).result()


def test_messages_of_another_epoch_are_refused(trial):
    trial.create("m")
    with pytest.raises(CallFailed, match="epoch 2, this engine is epoch 3") as caught:
        trial.desk.call(OptimStep(2, "stale", "m", {}), timeout=60)
    assert caught.value.category == "server"
    with pytest.raises(CallFailed, match="epoch"):
        trial.desk.sample(Sample(4, "early", "", PROMPT)).result()


def test_tokens_stream_and_a_cancelled_call_ends(trial):
    call = trial.start("", samples=2, max_tokens=200, prompt=PROMPT[:5])
    seen = list(itertools.islice(call, 7))
    assert {index for index, _, _ in seen} == {0, 1}
    call.cancel()
    with pytest.raises(CallFailed, match="cancelled"):
        call.result()
    assert trial.ask(AskStats).figures["rows"] == 0
    assert trial.ask(AskStats).figures["blocks_free"] == trial.engine.sampler.pool.count


def test_training_and_sampling_run_side_by_side(base):
    with Trial(base, token_budget=16) as trial:
        trial.create("m")
        version = trial.freeze("m")
        alone = [trial.sample(version, seed=i) for i in range(3)]
        calls = [trial.start(version, seed=i) for i in range(3)]
        trial.train("m", data=tuple(datum(i) for i in range(40)))
        for call, answer in zip(calls, alone, strict=True):
            assert alike([(s.tokens, s.logprobs) for s in call.result()], answer)
        figures = trial.ask(AskStats).figures
        assert figures["train_seconds"] > 0
        assert figures["sample_seconds"] > 0


def test_a_long_pass_lets_samples_finish_before_it(base):
    engine = Engine(base, options=EngineOptions(sampler=SMALL, token_budget=16))
    engine.submit(CreateAdapter(0, "c", "m", 4))
    while engine.busy:
        engine.step()
    order = []
    engine.submit(Train(0, "long", (TrainPart("m", tuple(datum(i) for i in range(80)), "cross_entropy"),)))
    engine.submit(Sample(0, "short", "", PROMPT, 1, SamplingParams(max_tokens=3)))
    while engine.busy:
        order += [type(answer).__name__ for answer in engine.step()]
    assert order.index("SampleDone") < order.index("TrainDone")
    assert isinstance(engine.submit(AskStats(0, "s"))[0].figures["train_seconds"], float)


def test_what_is_open_when_the_host_closes_is_answered(base):
    trial = Trial(base)
    call = trial.start("", max_tokens=230, prompt=PROMPT[:4], samples=8)
    next(iter(call))
    threading.Thread(target=trial.desk.host.close).start()
    with pytest.raises(CallFailed, match="stopped"):
        call.result()


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_determinism_mode_is_exact_under_load(family):
    base, _ = base_model(family)

    def run(*, crowd):
        with Trial(base, deterministic=True, as_bytes=False) as trial:
            trial.create("m")
            trial.create("noise", seed=8)
            calls = []
            if crowd:
                version = trial.freeze("noise")
                calls = [trial.start(version, samples=3, prompt=p, seed=9) for p in prompts(4)]
            versions, answers = [], []
            for _ in range(3):
                trial.train(*(("noise", "m") if crowd else ("m",)))
                trial.step("m")
                versions.append(trial.freeze("m"))
                answers.append(trial.sample(versions[-1], samples=2))
            for call in calls:
                call.result()
            return versions, answers

    assert run(crowd=False) == run(crowd=True)


def test_a_half_collected_gradient_is_saved_on_request(base, tmp_path):
    with Trial(base) as trial:
        trial.create("m")
        trial.learn("m")
        trial.train("m")
        trial.ask(SaveState, "m", str(tmp_path / "with"), with_gradient=True)
        trial.ask(SaveState, "m", str(tmp_path / "without"))
        trial.step("m")
        after = trial.freeze("m")
    with Trial(base) as trial:
        for name, with_optimizer, same in (
            ("with", True, True),
            ("with", False, False),
            ("without", True, False),
        ):
            trial.ask(LoadState, "n", str(tmp_path / name), with_optimizer)
            trial.step("n")
            assert (trial.freeze("n") == after) is same


def test_a_model_is_saved_as_it_was_while_it_trains_on(base, tmp_path):
    with Trial(base) as trial:
        trial.create("m")
        trial.learn("m", 2)
        trial.train("m")
        trial.ask(SaveState, "m", str(tmp_path / "before"), with_gradient=True)
        answers = []
        # Its writer waits for these, as it does for samplers' weights.
        writing = threading.Event()
        trial.engine.weights.wait = writing.wait
        message = SaveState(3, "later", "m", str(tmp_path / "later"), with_gradient=True, background=True)
        thread = threading.Thread(target=lambda: answers.append(trial.desk.call(message, timeout=60)))
        thread.start()
        trial.step("m")
        trial.learn("m", 2)
        assert not answers
        assert not (tmp_path / "later").exists()
        writing.set()
        thread.join()
        assert answers[0].facts["step"] == 2
        assert answers[0].facts["bytes"] == (tmp_path / "later" / FILE).stat().st_size
    first, second = (load_file(tmp_path / name / FILE) for name in ("before", "later"))
    assert first.keys() == second.keys()
    assert {"weights", "exp_avg", "exp_avg_sq", "gradient"} == first.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_unloaded_model_is_written_no_more(base, tmp_path):
    engine = Engine(base, options=EngineOptions(sampler=SMALL))
    engine.submit(CreateAdapter(0, "c", "m", rank=4, seed=1))
    for n in range(3):
        engine.submit(SaveState(0, f"s{n}", "m", str(tmp_path / str(n)), background=True))
    engine.submit(Unload(0, "u", "m"))
    answered = []
    while "u" not in answered:
        answered += [answer.request_id for answer in engine.step()]
    assert [(tmp_path / str(n) / FILE).is_file() for n in range(3)] == [True] * 3
    while engine.busy:
        answered += [answer.request_id for answer in engine.step()]
    assert sorted(answered) == ["c", "s0", "s1", "s2", "u"]
    engine.close()


def test_what_cannot_be_written_in_the_background_is_told(base, tmp_path):
    (tmp_path / "file").write_text("")
    with Trial(base) as trial:
        trial.create("m")
        with pytest.raises(CallFailed, match="file"):
            trial.ask(SaveState, "m", str(tmp_path / "file" / "x"), background=True)
        trial.learn("m")


def test_a_seed_makes_the_same_adapter_in_another_engine(base):
    versions = set()
    for epoch in (3, 4):
        with Trial(base, epoch=epoch) as trial:
            trial.create("m", seed=11, train_mlp=False)
            versions.add(trial.freeze("m"))
    assert len(versions) == 1


def test_ephemeral_weights_come_back_after_a_restart(base, tmp_path):
    with Trial(base, folder=tmp_path) as trial:
        trial.create("m")
        facts = []
        for _ in range(3):
            trial.learn("m")
            facts.append(trial.ask(SaveSampler, "m").facts)
        answers = [trial.sample(fact["version"]) for fact in facts]
        assert facts[0]["path"] == str(tmp_path / "sampler" / facts[0]["version"])
    with Trial(base, epoch=4, folder=tmp_path, keep_ephemeral=1, keep_seconds=0.0) as trial:
        assert trial.ask(KeepSamplers, tuple(f["version"] for f in facts[1:])).facts["removed"] == 1
        for fact in facts[1:]:
            loaded = trial.ask(LoadSampler, fact["path"], fact["version"], "m").facts
            assert loaded == fact
        assert trial.sample(facts[2]["version"]) == answers[2]
        with pytest.raises(CallFailed, match="dropped: the newest 1"):
            trial.sample(facts[1]["version"])
        with pytest.raises(CallFailed, match="are lost") as caught:
            trial.ask(LoadSampler, facts[0]["path"], facts[0]["version"], "m")
        assert caught.value.category == "server"


def test_ephemeral_weights_without_a_folder_have_no_path(trial):
    trial.create("m")
    assert trial.ask(SaveSampler, "m").facts["path"] is None


def test_saved_folders_are_exported_as_the_live_model_is(trial, tmp_path):
    trial.create("m")
    trial.learn("m")
    trial.ask(SaveState, "m", str(tmp_path / "state"))
    version = trial.freeze("m", str(tmp_path / "sampler"))
    trial.ask(Export, "m", str(tmp_path / "live"), "org/base")
    trial.learn("m")
    for kind in ("state", "sampler", "live"):
        trial.ask(ExportSaved, str(tmp_path / kind), str(tmp_path / f"{kind}-peft"), "org/base")
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            assert (tmp_path / f"{kind}-peft" / name).read_bytes() == (
                tmp_path / "live" / name
            ).read_bytes()
    config = json.loads((tmp_path / "live" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "org/base"
    assert trial.ask(LoadSampler, str(tmp_path / "state-peft")).facts["version"] == version
    with pytest.raises(CallFailed, match="no checkpoint"):
        trial.ask(ExportSaved, str(tmp_path / "nowhere"), str(tmp_path / "x"))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (torch.OutOfMemoryError("tried to allocate 7 GiB"), "the device is out of memory: tried"),
        (KeyError("a bug"), "KeyError: 'a bug'"),
    ],
    ids=["memory", "bug"],
)
def test_an_operation_that_breaks_fails_alone(trial, monkeypatch, error, text):
    def broken(*_, **__):
        raise error

    trial.create("m")
    trial.train("m")
    with monkeypatch.context() as patched:
        patched.setattr(trial.engine.operations.trainer, "optim_step", broken)
        with pytest.raises(CallFailed, match=text) as caught:
            trial.step("m")
        assert caught.value.category == "server"
    with monkeypatch.context() as patched:
        patched.setattr(trial.engine.base, "training_pass", broken)
        if isinstance(error, torch.OutOfMemoryError):
            assert "does not fit the device's memory" in trial.train("m")[0].text
        else:
            with pytest.raises(CallFailed, match=text):
                trial.train("m")
    with monkeypatch.context() as patched:
        patched.setattr(trial.engine.sampler.runner, "run", broken)
        memory = isinstance(error, torch.OutOfMemoryError)
        what = "sampling does not fit the device's memory" if memory else "sampling failed"
        with pytest.raises(CallFailed, match=what) as caught:
            trial.sample("")
        assert caught.value.category == "server"
    assert len(trial.sample("")) == 1
    trial.step("m")
    with Trial(trial.engine.base) as other:
        other.create("m")
        other.learn("m")
        assert other.freeze("m") == trial.freeze("m"), "what failed left no trace"


def test_a_host_tells_when_its_engine_breaks_and_what_is_open(base, monkeypatch):
    for told in (True, False):
        engine = Engine(base, options=EngineOptions(sampler=SMALL))
        answers, ended = queue.SimpleQueue(), queue.SimpleQueue()
        host = Host(engine, answers.put, ended=ended.put if told else None)
        monkeypatch.setattr(engine, "step", lambda: 1 / 0)
        host.submit(CreateAdapter(0, "c", "m", 4))
        if told:
            assert "ZeroDivisionError" in ended.get(timeout=30)
        else:
            assert "stopped" in answers.get(timeout=30).text
        host.close()
        assert answers.empty()
        with pytest.raises(ServerFault, match="closed"):
            host.submit(CreateAdapter(0, "c", "m", 4))


def test_facts_say_what_a_control_plane_must_know(trial):
    ready = trial.engine.ready()
    assert ready.epoch == 3
    assert ready.eos.tolist() == [1]
    base = trial.engine.base
    assert ready.facts["vocab_size"] == base.vocab_size == 96
    assert ready.facts["context_length"] == 256
    assert ready.facts["parameters"] == sum(p.numel() for p in base.model.parameters())
    assert ready.facts["tied"] is True
    assert ready.facts["stop_strings"] is True


def test_done_answers_say_what_was_made(trial, tmp_path):
    made = trial.create("m", rank=2)
    assert isinstance(made, Done)
    assert made.facts["rank"] == 2
    assert made.facts["parameters"] == 2 * trial.engine.base.layout().per_rank
    trial.learn("m")
    saved = trial.ask(SaveState, "m", str(tmp_path / "ck"))
    assert saved.facts["bytes"] > 0
    assert saved.facts["step"] == 1
    assert torch.isfinite(torch.tensor(trial.step("m").metrics["update_norm:max"]))
