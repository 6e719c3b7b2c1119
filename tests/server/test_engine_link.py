"""Links to engines: real children with a tiny model, children that misbehave, engines in threads."""

import asyncio
import contextlib
import importlib.util
import logging
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
import uvloop

from tinkex.engine import child
from tinkex.engine.codec import Frames, encode
from tinkex.engine.host import Host
from tinkex.engine.messages import (
    AskStats,
    CreateAdapter,
    Datum,
    Done,
    Failed,
    OptimStep,
    PartFailure,
    PartResult,
    Ready,
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
    Train,
    TrainDone,
    TrainPart,
)
from tinkex.server import engine_link
from tinkex.server.child_process import child_environment
from tinkex.server.engine_link import EngineSpec, EngineStartFailed, LinkClosed, ProcessLink, ThreadLink
from tinkex.testing import NoopEngine, make_tiny_model

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and pidfds")
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


class Told:
    """What a link told, and waiting for more of it."""

    def __init__(self):
        self.answers, self.lost = [], []
        self._news = asyncio.Event()

    def deliver(self, answer):
        self.answers.append(answer)
        self._news.set()

    def gone(self, reason):
        self.lost.append(reason)
        self._news.set()

    async def until(self, condition):
        async with asyncio.timeout(60):
            while not (found := condition()):
                self._news.clear()
                await self._news.wait()
        return found

    async def answer(self, name):
        """The last answer to a request."""
        return await self.until(
            lambda: next(
                (
                    a
                    for a in self.answers
                    if not isinstance(a, (TokenStep, SampleAccepted)) and a.request_id == name
                ),
                None,
            )
        )


def datum(length=24, seed=0):
    tokens = np.random.default_rng(seed).integers(0, 256, length + 1)
    return Datum(tokens[:-1], {"target_tokens": tokens[1:], "weights": np.ones(length, np.float32)})


def passing(name, *data):
    return Train(7, name, (TrainPart("m", data or (datum(),), "cross_entropy"),))


def no_process(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


# ---- a real child


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


# ---- children that misbehave

ODD = """
import socket, sys, time, os
import numpy as np
from tinkex.engine.codec import encode
from tinkex.engine.messages import AskStats, Ready, Stats

wire = socket.socket(fileno=int(sys.argv[1]))
wire.recv(1 << 20)
"""
READY = "wire.sendall(encode(Ready(7, {}, np.array([1]))))\n"
ANSWER = "wire.sendall(encode(Stats(7, 'a', {})))\n"
MISDEEDS = {
    "garbage": (
        READY + ANSWER + "wire.sendall(b'x' * 100)\ntime.sleep(600)",
        r"what is no message \(not a message.*killed by SIGKILL",
    ),
    "half a message": (
        READY + "wire.sendall(encode(Stats(7, 'a', {}))[:20])\nos._exit(9)",
        "engine 7 ended with exit code 9",
    ),
    "crash": (
        READY + "wire.recv(1 << 20)\nraise RuntimeError('boom')",
        r"(?s)ended with exit code 1.*RuntimeError: boom",
    ),
    "silent end": (READY + "os._exit(0)", "ended with exit code 0"),
    "closed wire": (READY + "wire.close()\ntime.sleep(600)", "killed by SIGKILL"),
}
FALSE_STARTS = {
    "crash": ("raise RuntimeError('no luck')", r"(?s)ended with exit code 1.*RuntimeError: no luck"),
    "garbage": ("wire.sendall(b'x' * 100)\ntime.sleep(600)", "no message"),
}


@pytest.fixture
def odd(tmp_path, monkeypatch):
    """Have links start a module with this code in place of an engine."""

    def prepare(code):
        (tmp_path / "odd_child.py").write_text(ODD + code)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(engine_link, "CHILD", "odd_child")
        monkeypatch.setattr(engine_link, "GRACE", 0.3)
        return EngineSpec(tmp_path)

    return prepare


@LOOPS
@pytest.mark.parametrize("misdeed", MISDEEDS)
def test_a_child_that_misbehaves_is_ended_and_told(odd, run, misdeed):
    code, text = MISDEEDS[misdeed]

    async def main():
        told = Told()
        link = ProcessLink(odd(code), 7, told.deliver, told.gone)
        await link.start()
        with contextlib.suppress(LinkClosed):
            link.submit(AskStats(7, "a"))
        await told.until(lambda: told.lost)
        assert no_process(link.pid)
        assert len(told.answers) == code.count("Stats(7, 'a', {})))\n")
        await link.close()
        assert len(told.lost) == 1
        return told.lost[0]

    assert re.search(text, run(main()))


@LOOPS
@pytest.mark.parametrize("misdeed", FALSE_STARTS)
def test_a_child_that_never_gets_ready_fails_to_start(odd, run, misdeed):
    code, text = FALSE_STARTS[misdeed]

    async def main():
        told = Told()
        link = ProcessLink(odd(code), 7, told.deliver, told.gone)
        with pytest.raises(EngineStartFailed, match=text):
            await link.start()
        assert no_process(link.pid)
        assert told.lost == []

    run(main())


@LOOPS
def test_closing_twice_at_once_waits_for_the_same_end(odd, run, tmp_path, monkeypatch):
    code = READY + "wire.recv(1)\nopen(sys.argv[0] + '.done', 'w').close()"
    spec = odd(code)
    monkeypatch.setattr(engine_link, "GRACE", 60.0)

    async def main():
        link = ProcessLink(spec, 7, print, print)
        await link.start()
        await asyncio.gather(link.close(), link.close())
        await link.close()

    run(main())
    assert (tmp_path / "odd_child.py.done").exists(), "it was killed before it could end by itself"


@LOOPS
def test_a_child_that_does_not_end_is_killed(odd, run):
    async def main():
        told = Told()
        link = ProcessLink(odd(READY + "time.sleep(600)"), 7, told.deliver, told.gone)
        await link.start()
        await asyncio.gather(link.close(), link.close())
        assert no_process(link.pid)
        assert told.lost == []

    run(main())


@LOOPS
def test_a_start_that_is_cancelled_leaves_no_process(odd, run):
    async def main():
        link = ProcessLink(odd("time.sleep(600)"), 7, print, print)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await link.start()
        assert no_process(link.pid)
        other = ProcessLink(odd("time.sleep(600)"), 7, print, print)
        starting = asyncio.create_task(other.start())
        await asyncio.sleep(0)
        await other.close()
        with pytest.raises(EngineStartFailed, match="killed by SIGKILL"):
            await starting

    run(main())


@LOOPS
def test_what_a_child_logs_is_passed_on(odd, run, caplog):
    caplog.set_level(logging.DEBUG, "tinkex.server.child_process")
    code = READY + "print('WARNING a.b: careful')\nprint('plain', 'x' * 20000, flush=True)\nwire.recv(1)"

    async def main():
        link = ProcessLink(odd(code), 7, print, print)
        await link.start()
        await link.close()

    run(main())
    (level, first), (next_level, second), *_ = [(r.levelname, r.getMessage()) for r in caplog.records]
    assert (level, first) == ("WARNING", "engine 7: a.b: careful")
    assert next_level == "WARNING", "a traceback is as important as what it belongs to"
    assert second.startswith("engine 7: plain xxx")
    assert max(map(len, caplog.messages)) < 9000


def test_a_delivery_that_fails_does_not_stop_the_others(odd, caplog):
    async def main():
        told = Told()

        def deliver(answer):
            told.deliver(answer)
            if len(told.answers) == 1:
                raise ValueError("cannot take it")

        link = ProcessLink(odd(READY + "wire.recv(1)\n" + ANSWER * 3), 7, deliver, told.gone)
        await link.start()
        link.submit(AskStats(7, "a"))
        await told.until(lambda: len(told.answers) == 3)
        await link.close()

    asyncio.run(main())
    assert "cannot take it" in caplog.text


def test_secrets_are_left_out_of_an_environment():
    given = {
        "TINKER_API_KEY": "1",
        "HF_TOKEN": "1",
        "AWS_SECRET_ACCESS_KEY": "1",
        "db_password": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "0",
        "MONKEY": "1",
    }
    kept = child_environment(given)
    kept.pop("PYTHONPATH", None)
    assert sorted(kept) == ["CUDA_VISIBLE_DEVICES", "MONKEY", "TOKENIZERS_PARALLELISM"]


# ---- the child's own loop, without a model


class Serving:
    """`serve` with an engine that computes nothing, in a thread, and the server's end of its wire."""

    def __init__(self, engine=None):
        self.engine = engine or NoopEngine(7)
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(60)
        self.code = None
        self.thread = threading.Thread(target=self._run, args=(child.Wire(theirs), theirs))
        self.frames = Frames()
        self.thread.start()
        self.ready = self.read(1)[0]

    def _run(self, wire, end):
        self.code = child.serve(self.engine, wire)
        end.close()

    def read(self, count):
        found = []
        while len(found) < count:
            found += self.frames.filled(self.socket.recv_into(self.frames.space()))
        return found

    def end(self):
        self.thread.join(60)
        self.socket.close()
        return self.code


def test_a_child_answers_until_its_wire_is_closed():
    serving = Serving()
    assert isinstance(serving.ready, Ready)
    serving.socket.sendall(encode(CreateAdapter(7, "c", "m", 4)) + encode(passing("t", datum(8000))))
    created, trained = serving.read(2)
    assert isinstance(created, Done)
    assert trained.parts[0].outputs[0]["logprobs"].shape == (8000,)
    serving.socket.shutdown(socket.SHUT_WR)
    assert serving.end() == 0


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", encode(Stats(7, "s", {}))], ids=["bytes", "answer"]
)
def test_a_child_ends_when_it_is_sent_no_request(data, caplog):
    serving = Serving()
    serving.socket.sendall(data)
    assert serving.end() == child.BAD_MESSAGE
    assert "what arrived is no message" in caplog.text


def test_a_child_ends_when_its_engine_breaks(caplog):
    serving = Serving()
    serving.engine.break_down("a bug")
    serving.socket.sendall(encode(CreateAdapter(7, "c", "m", 4)))
    assert serving.end() == child.BROKEN
    assert "a bug" in caplog.text


def test_a_server_that_vanishes_ends_the_child_in_the_middle_of_an_answer():
    engine = NoopEngine(7, vocab=100_000)
    serving = Serving(engine)
    scores = ScoreOptions(topk_prompt=5000)
    serving.socket.sendall(
        encode(Sample(7, "x", "", np.arange(2000), 1, SamplingParams(max_tokens=1), scores))
    )
    serving.socket.recv(1)
    serving.socket.close()
    assert serving.end() == 0


def test_an_answer_that_cannot_be_written_fails_its_request_alone(monkeypatch):
    engine = NoopEngine(7)
    monkeypatch.setattr(engine, "figures", lambda: {"a": object()})
    serving = Serving(engine)
    serving.socket.sendall(encode(AskStats(7, "s")) + encode(CreateAdapter(7, "c", "m", 4)))
    answers = {answer.request_id: answer for answer in serving.read(2)}
    assert isinstance(answers["s"], Failed)
    assert "cannot be sent" in answers["s"].text
    assert isinstance(answers["c"], Done)
    serving.socket.close()
    assert serving.end() == 0


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", 0),
        (b"x" * 64, child.BAD_MESSAGE),
        (encode(AskStats(7, "early")), child.BAD_MESSAGE),
        (encode(Start(7, "nowhere")), child.NOT_STARTED),
    ],
    ids=["nothing", "garbage", "no start", "no model"],
)
def test_exit_codes_of_a_child_that_does_not_start(data, code, tmp_path):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tinkex.engine.child", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=tmp_path,
            env=child_environment(os.environ),
            stderr=subprocess.PIPE,
        )
        theirs.close()
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        process.communicate(timeout=120)
        assert process.returncode == code


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
