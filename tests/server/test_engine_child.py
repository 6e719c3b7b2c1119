"""The engine's child process by itself: its loop over a socket, without a model."""

import os
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

from tinkex.engine import child
from tinkex.engine.codec import Frames, encode
from tinkex.engine.messages import (
    AskStats,
    CreateAdapter,
    Done,
    Failed,
    Ready,
    Sample,
    SamplingParams,
    ScoreOptions,
    Start,
    Stats,
)
from tinkex.server.child_process import child_environment
from tinkex.testing import NoopEngine

from .engine_links import datum, passing


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
