"""Links to engines: real children with a tiny model, and engines in threads."""

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
import uvloop

from tinkex.engine.codec import packed
from tinkex.engine.host import Host
from tinkex.engine.messages import (
    AskStats,
    CreateAdapter,
    Datum,
    OptimStep,
    PartFailure,
    PartResult,
    Sample,
    SampleAccepted,
    SampleDone,
    SamplingParams,
    SaveSampler,
    SaveState,
    ScoreOptions,
    Start,
    Stats,
    TokenStep,
    TrainDone,
)
from tinkex.server.child_process import child_environment
from tinkex.server.engine_link import EngineSpec, EngineStartFailed, LinkClosed, ProcessLink, ThreadLink
from tinkex.testing import NoopEngine, make_tiny_model

from .engine_links import LOOPS, Told, linux, needs_torch, no_process, passing


class Room:
    """A real child, and a loop in a thread that holds the link for several tests."""

    def __init__(self, folder):
        self.model = make_tiny_model(folder / "model")
        self.state = folder / "state"
        self.loop = uvloop.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.told = self.call(self._start())

    async def _start(self):
        told = Told()
        spec = EngineSpec(self.model, self.state, sampling={"kv_bytes": 8 << 20})
        self.link = ProcessLink(spec, 7, told.deliver, told.gone)
        await self.link.start()
        return told

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(120)

    def ask(self, *messages):
        async def send():
            for message in messages:
                self.link.submit(message)
            return [await self.told.answer(message.request_id) for message in messages]

        return self.call(send())

    def close(self):
        self.call(self.link.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKER_API_KEY", "tml-secret")
        patch.setenv("TINKEX_TEST_MARK", "passed on")
        made = Room(tmp_path_factory.mktemp("room"))
    made.ask(CreateAdapter(7, "create", "m", 4, 1))
    yield made
    pid = made.link.pid
    made.close()
    assert no_process(pid)
    assert made.told.lost == []


@needs_torch
def test_the_child_says_what_it_loaded(room):
    facts = room.link.facts
    assert (facts["vocab_size"], facts["context_length"], facts["parameters"]) == (1024, 8192, 205_184)
    assert (facts["threads"], facts["stop_strings"], facts["family"]) == (1, True, "qwen3")
    assert room.link.eos == (258, 256)
    assert room.link.epoch == 7


@needs_torch
def test_train_step_save_and_sample_over_the_wire(room, tmp_path):
    first, step, second, saved, frozen = room.ask(
        passing("t1"),
        OptimStep(7, "o1", "m", {"learning_rate": 0.01}),
        passing("t2"),
        SaveState(7, "s1", "m", str(tmp_path / "ck"), with_gradient=True),
        SaveSampler(7, "f1", "m"),
    )
    assert isinstance(first, TrainDone)
    assert first.parts[0].outputs[0]["logprobs"].shape == (24,)
    assert second.parts[0].metrics["loss:sum"] < first.parts[0].metrics["loss:sum"]
    assert step.metrics["step:max"] == 1.0
    assert saved.facts["bytes"] > 0
    assert (tmp_path / "ck").is_dir()
    assert frozen.facts["path"].startswith(str(room.state))
    params = SamplingParams(max_tokens=6, seed=3, stop=())
    room.ask(Sample(7, "x1", frozen.facts["version"], np.arange(9), 2, params))
    begin = next(i for i, a in enumerate(room.told.answers) if isinstance(a, SampleAccepted))
    *steps, done = room.told.answers[begin + 1 :]
    assert len(steps) >= 6
    assert all(isinstance(answer, TokenStep) for answer in steps)
    assert isinstance(done, SampleDone)
    assert sum(len(answer.tokens) for answer in steps) == 12


@needs_torch
def test_stop_strings_are_read_with_the_models_tokenizer(room):
    params = SamplingParams(max_tokens=200, seed=5, stop=("é",))
    answer = room.ask(Sample(7, "x2", "", np.arange(9), 1, params))[0]
    assert isinstance(answer, SampleDone)


@needs_torch
def test_large_messages_arrive_whole_both_ways(room):
    long = np.zeros(3_000_000, np.int64)
    refused = room.ask(passing("big", Datum(long, {"target_tokens": long})))[0].parts[0]
    assert isinstance(refused, PartFailure)
    assert "3000000 tokens > context 8192" in refused.text
    scores = ScoreOptions(prompt_logprobs=True, topk_prompt=200)
    prompt = np.random.default_rng(0).integers(0, 256, 1000)
    done = room.ask(Sample(7, "x3", "", prompt, 1, SamplingParams(max_tokens=1), scores))[0]
    assert done.topk_prompt_logprobs.shape == (1000, 200)
    logprobs = done.topk_prompt_logprobs[1:]
    assert (np.diff(logprobs, axis=1) <= 0).all()
    assert np.isfinite(done.prompt_logprobs[1:]).all()


@needs_torch
def test_answers_come_in_the_order_of_the_requests(room):
    names = [f"n{i}" for i in range(400)]
    answers = room.ask(*(AskStats(7, name) for name in names))
    assert all(isinstance(answer, Stats) for answer in answers)
    seen = [a.request_id for a in room.told.answers if isinstance(a, Stats)]
    assert seen == names


@needs_torch
def test_a_failed_operation_does_not_end_the_child(room):
    unknown, wrong, stale = room.ask(
        OptimStep(7, "e1", "nobody", {}),
        passing("e2", Datum(np.arange(4), {})),
        OptimStep(6, "e3", "m", {}),
    )
    assert (unknown.category, unknown.text) == ("user", "no model 'nobody' here: create or load it first")
    assert wrong.parts[0].category == "user"
    assert (stale.category, "epoch 6" in stale.text) == ("server", True)
    assert isinstance(room.ask(passing("e4"))[0].parts[0], PartResult)


@needs_torch
@linux
def test_the_child_works_in_its_folder_and_knows_no_secrets(room):
    place = f"/proc/{room.link.pid}"
    assert os.readlink(f"{place}/cwd") == str(room.state)
    with open(f"{place}/environ", "rb") as file:
        names = dict(line.partition(b"=")[::2] for line in file.read().split(b"\0"))
    assert b"TINKER_API_KEY" not in names
    assert names[b"TINKEX_TEST_MARK"] == b"passed on"
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(room.link.pid, number)
    assert isinstance(room.ask(AskStats(7, "still"))[0], Stats)


@needs_torch
def test_two_engines_do_not_share_a_folder(room):
    async def main():
        link = ProcessLink(EngineSpec(room.model, room.state), 8, print, print)
        with pytest.raises(EngineStartFailed, match=f"another engine works in {room.state}"):
            await link.start()
        assert no_process(link.pid)

    asyncio.run(main())


@needs_torch
def test_a_killed_child_is_told_once_with_the_reason(tmp_path):
    async def main():
        told = Told()
        spec = EngineSpec(make_tiny_model(tmp_path / "m"), None, sampling={"kv_bytes": 8 << 20})
        link = ProcessLink(spec, 7, told.deliver, told.gone)
        await link.start()
        link.submit(Sample(7, "x", "", np.arange(5), 1, SamplingParams(max_tokens=3000, stop=())))
        await told.until(lambda: len(told.answers) > 3)
        os.kill(link.pid, signal.SIGKILL)
        await told.until(lambda: told.lost)
        with pytest.raises(LinkClosed, match="gone"):
            link.submit(AskStats(7, "late"))
        count = len(told.answers)
        await link.close()
        assert (len(told.answers), len(told.lost)) == (count, 1)
        assert told.lost[0].startswith("engine 7 was killed by SIGKILL")
        assert no_process(link.pid)

    uvloop.run(main())


@needs_torch
@pytest.mark.parametrize("harm", ["no config", "damaged weights"])
def test_a_model_that_cannot_be_loaded_is_told_in_words(tmp_path, harm):
    folder = make_tiny_model(tmp_path / "m")
    if harm == "no config":
        (folder / "config.json").unlink()
        text = f"{folder} has no config.json"
    else:
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:5000])
        text = "SafetensorError|safetensors"

    async def main():
        told = Told()
        link = ProcessLink(EngineSpec(folder), 7, told.deliver, told.gone)
        with pytest.raises(EngineStartFailed, match=text):
            await link.start()
        assert no_process(link.pid)
        assert told.lost == []
        with pytest.raises(LinkClosed):
            link.submit(AskStats(7, "a"))

    asyncio.run(main())


SERVER = """
import asyncio, sys
from pathlib import Path
from tinkex.server.engine_link import EngineSpec, ProcessLink

async def main():
    link = ProcessLink(EngineSpec(Path(sys.argv[1])), 7, print, print)
    await link.start()
    print(link.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@needs_torch
@linux
def test_a_child_goes_when_its_server_is_killed(tmp_path):
    folder = make_tiny_model(tmp_path / "m")
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(folder)],
        stdout=subprocess.PIPE,
        env=child_environment(os.environ),
    )
    with server:
        pid = int(server.stdout.readline())
        handle = os.pidfd_open(pid)
        server.kill()
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        assert ended.poll(60_000), "the child is still there"
        os.close(handle)


# ---- an engine in a thread


def thread_link(engine, told):
    def open_host(deliver, ended):
        host = Host(engine, deliver, ended=ended)
        engine.wake = host.wake
        return host

    return ThreadLink(open_host, engine.epoch, told.deliver, told.gone)


@LOOPS
def test_an_engine_in_a_thread_answers_on_the_loop(run):
    async def main():
        told = Told()
        here, threads = threading.get_ident(), set()
        deliver = told.deliver
        told.deliver = lambda answer: (threads.add(threading.get_ident()), deliver(answer))
        link = thread_link(NoopEngine(7), told)
        with pytest.raises(LinkClosed, match="not started"):
            link.submit(AskStats(7, "early"))
        await link.start()
        assert (link.facts["vocab_size"], link.eos) == (1024, (258, 256))
        link.submit(CreateAdapter(7, "c", "m", 4))
        for number in range(200):
            link.submit(passing(f"t{number}"))
        await told.answer("t199")
        assert [a.request_id for a in told.answers] == ["c", *(f"t{number}" for number in range(200))]
        assert threads == {here}
        await link.close()
        with pytest.raises(LinkClosed, match="closed"):
            link.submit(AskStats(7, "late"))
        assert told.lost == []

    run(main())


def test_what_is_open_when_a_thread_link_closes_is_not_answered():
    async def main():
        told = Told()
        engine = NoopEngine(7, hold=[CreateAdapter])
        link = thread_link(engine, told)
        await link.start()
        link.submit(CreateAdapter(7, "c", "m", 4))
        await link.close()
        await asyncio.sleep(0)
        assert told.answers == told.lost == []

    asyncio.run(main())


def test_an_engine_that_breaks_in_its_thread_is_told():
    async def main():
        told = Told()
        engine = NoopEngine(7)
        link = thread_link(engine, told)
        await link.start()
        engine.break_down("a bug")
        await told.until(lambda: told.lost)
        assert told.lost == ["the engine's thread ended: RuntimeError: a bug"]
        assert told.answers == []
        with pytest.raises(LinkClosed):
            link.submit(AskStats(7, "late"))
        await link.close()

        def fails(deliver, ended):
            raise OSError("no model there")

        with pytest.raises(EngineStartFailed, match="OSError: no model there"):
            await ThreadLink(fails, 7, told.deliver, told.gone).start()

    asyncio.run(main())


def test_a_spec_says_everything_in_its_first_message(tmp_path):
    spec = EngineSpec(
        tmp_path / "m",
        tmp_path / "s",
        "cpu",
        "float32",
        2,
        True,
        True,
        "debug",
        {"max_rank": 9},
        {"max_rows": 3},
    )
    message = spec.message(4)
    assert (message.training, message.sampling) == ({"max_rank": 9}, {"max_rows": 3})
    assert (message.epoch, message.folder, message.state) == (4, str(tmp_path / "m"), str(tmp_path / "s"))
    assert (message.device, message.dtype, message.threads) == ("cpu", "float32", 2)
    assert (message.deterministic, message.trust_remote_code, message.log_level) == (True, True, "debug")


def test_an_engine_whose_server_died_before_it_could_ask_to_die_with_it_begins_nothing(tmp_path):
    ours, theirs = socket.socketpair()
    nobody = 1 << 30
    with ours:
        with theirs:
            words = [sys.executable, "-m", "tinkex.engine.child", str(theirs.fileno()), str(nobody)]
            ours.sendall(b"".join(packed([Start(7, str(tmp_path / "no model"))])))
            child = subprocess.Popen(words, pass_fds=[theirs.fileno()])
        assert child.wait(60) == 0  # and not that of an engine that could not start
