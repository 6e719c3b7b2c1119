"""The engine that computes nothing: shapes, names and histories as an engine has them."""

import asyncio

import numpy as np
import pytest

from tinkex.engine.desk import CallFailed, Desk
from tinkex.engine.messages import (
    AskStats,
    CreateAdapter,
    Datum,
    DropSampler,
    Export,
    ExportSaved,
    KeepSamplers,
    LoadSampler,
    LoadState,
    OptimStep,
    PartFailure,
    Sample,
    SamplingParams,
    SaveSampler,
    SaveState,
    ScoreOptions,
    SparseRows,
    Train,
    TrainPart,
    Unload,
)
from tinkex.server.engine_link import EngineStartFailed, LinkClosed
from tinkex.testing import DirectLink, NoopEngine

PROMPT = np.arange(9)


def datum(seed=0, length=6):
    tokens = np.random.default_rng(seed).integers(0, 1000, length + 1)
    return Datum(tokens[:-1], {"target_tokens": tokens[1:], "weights": np.ones(length, np.float32)})


class Trial:
    def __init__(self, **options):
        self.engine = NoopEngine(5, **options)
        self.desk = Desk(self.engine, as_bytes=True)
        self.engine.wake = self.desk.host.wake

    def ask(self, kind, *args, **fields):
        return self.desk.call(kind(5, self.desk.next_id(), *args, **fields), timeout=30)

    def train(self, model, *data, **fields):
        return self.ask(Train, (TrainPart(model, data or (datum(),), "cross_entropy", **fields),)).parts[0]

    def step(self, model):
        return self.ask(OptimStep, model, {"learning_rate": 0.1})

    def sample(self, version="", samples=1, scores=None, **params):
        message = Sample(
            5,
            self.desk.next_id(),
            version,
            PROMPT,
            samples,
            SamplingParams(**params),
            scores or ScoreOptions(),
        )
        return self.desk.sample(message)


@pytest.fixture
def trial(tmp_path):
    made = Trial(folder=tmp_path / "state")
    with made.desk:
        yield made


def test_passes_answer_in_the_shapes_of_their_targets(trial):
    trial.ask(CreateAdapter, "m", 4, 1)
    wide = np.zeros((6, 3), np.int64)
    sparse = SparseRows(np.ones(2), np.array([0, 1, 1, 1, 1, 1, 2]), np.array([0, 1]), (6, 2))
    found = trial.train(
        "m",
        datum(),
        Datum(np.arange(6), {"target_tokens": wide}),
        Datum(np.arange(6), {"target_tokens": sparse}),
    )
    assert [out["logprobs"].shape for out in found.outputs] == [(6,), (6, 3), (6, 2)]
    assert set(found.outputs[0]["logprobs"].tolist()) == {-0.5}
    assert found.metrics["loss:sum"] == 0.5 * (6 + 18 + 12)


def test_what_a_model_went_through_shows_in_its_numbers(trial, tmp_path):
    def run(name, passes):
        trial.ask(CreateAdapter, name, 4, 1)
        for seed in passes:
            trial.train(name, datum(seed))
        trial.step(name)
        return trial.train(name).metrics["loss:sum"], trial.ask(SaveSampler, name).facts["version"]

    first = run("a", [1, 2])
    assert run("b", [1, 2]) == first
    assert run("c", [2, 1]) != first
    assert run("d", [1, 2, 2]) != first
    trial.train("a", datum(3))
    trial.ask(SaveState, "a", str(tmp_path / "with"), with_gradient=True)
    trial.ask(SaveState, "a", str(tmp_path / "without"))
    trial.step("a")
    after = trial.ask(SaveSampler, "a").facts["version"]
    for name, same in (("with", True), ("without", False)):
        trial.ask(LoadState, name, str(tmp_path / name), True)
        trial.step(name)
        assert (trial.ask(SaveSampler, name).facts["version"] == after) is same


def test_samples_have_the_shapes_asked_for(trial):
    targets = np.full((8, 2), 3)
    targets[0, 0] = -1
    scores = ScoreOptions(True, None, 2, 3, 1, targets)
    call = trial.sample(samples=3, scores=scores, max_tokens=5, stop=(), seed=1)
    sequences = call.result()
    assert [len(s.tokens) for s in sequences] == [5] * 3
    assert len({tuple(s.tokens) for s in sequences}) == 3
    assert [len(s.top) for s in sequences] == [5] * 3
    assert sequences[0].top[0][0].shape == (3,)
    done = call.done
    assert np.isnan(done.prompt_logprobs[0])
    assert done.prompt_logprobs[1:].tolist() == [-0.5] * 8
    assert done.topk_prompt_tokens.shape == done.topk_prompt_logprobs.shape == (9, 2)
    assert done.target_logprobs.tolist()[0] == [0.0, -0.5]
    assert done.alt_tokens.shape == (8, 1)
    again = trial.sample(samples=3, max_tokens=5, stop=(), seed=1).result()
    assert [s.tokens for s in again] == [s.tokens for s in sequences]


def test_sequences_end_at_their_length_at_a_stop_or_by_themselves(trial):
    long = trial.sample(max_tokens=40, stop=(), seed=2).result()[0]
    assert long.stop_reason == "length"
    stopped = trial.sample(max_tokens=40, stop=(long.tokens[7],), seed=2).result()[0]
    assert (stopped.tokens, stopped.stop_reason) == (long.tokens[:8], "stop")
    free = trial.sample(seed=2).result()[0]
    assert (len(free.tokens), free.tokens[-1], free.stop_reason) == (16, 258, "stop")
    nothing = trial.sample(max_tokens=0).result()[0]
    assert (nothing.tokens, nothing.stop_reason) == ([], "length")


def test_unknown_names_fail_as_in_an_engine(trial, tmp_path):
    trial.ask(CreateAdapter, "m", 4, 1)
    for kind, args, text in [
        (OptimStep, ("nobody", {}), "no model 'nobody' here"),
        (Unload, ("nobody",), "no model 'nobody' here"),
        (SaveSampler, ("nobody",), "no model"),
        (CreateAdapter, ("m",), "exists already"),
        (CreateAdapter, ("x", 5000), "rank must be between 1 and 1024, got 5000"),
        (LoadState, ("x", str(tmp_path / "nowhere")), "no checkpoint at"),
        (DropSampler, ("nothing",), "no sampler weights"),
    ]:
        with pytest.raises(CallFailed, match=text) as caught:
            trial.ask(kind, *args)
        assert caught.value.category == "user"
    with pytest.raises(CallFailed, match="save or load them first"):
        trial.sample("nothing").result()
    with pytest.raises(CallFailed, match="> context 8192"):
        trial.sample(max_tokens=8190).result()
    assert isinstance(trial.train("nobody"), PartFailure)
    with pytest.raises(CallFailed, match="epoch 4, this engine is epoch 5"):
        trial.desk.call(AskStats(4, "s"), timeout=30)


def test_sampler_weights_come_back_from_their_folder(trial, tmp_path):
    trial.ask(CreateAdapter, "m", 4, 1)
    kept = trial.ask(SaveSampler, "m").facts
    trial.step("m")
    other = trial.ask(SaveSampler, "m").facts
    with Desk(NoopEngine(5, folder=tmp_path / "state")) as desk:
        assert desk.call(KeepSamplers(5, "k", (kept["version"],))).facts["removed"] == 1
        assert desk.call(LoadSampler(5, "l", kept["path"], kept["version"])).facts == kept
        with pytest.raises(CallFailed, match="no checkpoint"):
            desk.call(LoadSampler(5, "o", other["path"]))
        with pytest.raises(CallFailed, match=r"are .*, expected x") as caught:
            desk.call(LoadSampler(5, "w", kept["path"], "x"))
        assert caught.value.category == "server"
        desk.call(ExportSaved(5, "e", kept["path"], str(tmp_path / "peft"), "some/base"))
    trial.ask(Export, "m", str(tmp_path / "live"))
    for name in ("peft", "live"):
        found = sorted(path.name for path in (tmp_path / name).iterdir())
        assert found == ["adapter_config.json", "adapter_model.safetensors"]


def test_held_operations_wait_and_keep_their_order(trial):
    trial.ask(CreateAdapter, "m", 4, 1)
    trial.engine.hold(Train)
    done = []
    host = trial.desk.host
    for message in (
        Train(5, "t1", (TrainPart("m", (datum(),), "cross_entropy"),)),
        OptimStep(5, "o1", "m", {}),
        Train(5, "t2", (TrainPart("m", (datum(),), "cross_entropy"),)),
    ):
        host.submit(message)
    assert trial.ask(AskStats).figures["operations_queued"] == 3
    assert len(trial.sample(max_tokens=2).result()[0].tokens) == 2, "samples do not wait for operations"
    trial.engine.release(1)
    while len(done) < 1:
        figures = trial.ask(AskStats).figures
        done = [1] if figures["operations_queued"] == 1 else []
    assert trial.engine.models["m"].steps == 1
    trial.engine.release()
    trial.step("m")
    assert trial.engine.models["m"].steps == 2


def test_operations_fail_on_request(trial):
    trial.engine.fail_next(CreateAdapter, "out of memory")
    with pytest.raises(CallFailed, match="out of memory") as caught:
        trial.ask(CreateAdapter, "m", 4, 1)
    assert caught.value.category == "server"
    trial.ask(CreateAdapter, "m", 4, 1)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


def test_a_direct_link_answers_in_order_and_stops_when_closed():
    async def main():
        answers, lost = [], []
        engine = NoopEngine(5)
        link = DirectLink(lambda: engine, 5, answers.append, lost.append, as_bytes=True)
        with pytest.raises(LinkClosed, match="not started"):
            link.submit(AskStats(5, "s"))
        await link.start()
        assert (link.facts["vocab_size"], link.eos) == (1024, (258, 256))
        link.submit(CreateAdapter(5, "c", "m", 4))
        link.submit(AskStats(5, "s"))
        assert answers == []
        link.submit(Sample(5, "x", "", PROMPT, 2, SamplingParams(max_tokens=3, stop=())))
        for _ in range(20):
            await asyncio.sleep(0)
        names = [type(answer).__name__ for answer in answers]
        assert names == ["Stats", "SampleAccepted", "Done", *["TokenStep"] * 3, "SampleDone"]
        engine.hold(OptimStep)
        link.submit(OptimStep(5, "o", "m", {}))
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(answers) == 7
        engine.release()
        await asyncio.sleep(0)
        assert answers[-1].request_id == "o"
        link.submit(AskStats(5, "late"))
        await link.close()
        await asyncio.sleep(0)
        assert answers[-1].request_id == "o"
        assert lost == []
        with pytest.raises(LinkClosed, match="gone"):
            link.submit(AskStats(5, "s"))

    run(main())


def test_a_direct_link_tells_when_its_engine_breaks():
    async def main():
        lost = []
        link = DirectLink(lambda: NoopEngine(5), 5, lambda _: None, lost.append)
        await link.start()
        link.engine.break_down("a bug")
        await asyncio.sleep(0)
        assert lost == ["the engine ended: RuntimeError: a bug"]
        with pytest.raises(LinkClosed):
            link.submit(AskStats(5, "s"))

        def fails():
            raise OSError("no model there")

        with pytest.raises(EngineStartFailed, match="OSError: no model there"):
            await DirectLink(fails, 5, lambda _: None, lost.append).start()

    run(main())
