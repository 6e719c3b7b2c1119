"""Forked processes: clients made before a fork work after it, on both sides, and neither ends the other."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from tinkex.testing.fake_service import FakeService
from tinkex.testing.http_server import FakeServer

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

START = """
import asyncio, os, signal, sys, threading, tinkex, traceback, warnings
from tinkex import types
warnings.simplefilter("ignore")
url = sys.argv[1]
client = tinkex.ServiceClient(base_url=url, api_key="tml-x", telemetry=False)
sampler = client.create_sampling_client(base_model="Qwen/Qwen3-8B")
prompt, params = types.ModelInput.from_ints([1, 2]), types.SamplingParams(max_tokens=1)

def sample():
    return sampler.sample(prompt, 1, params).result(10).sequences[0].sequence_id

def in_child(work, *, exit=os._exit):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        code = 1
        try:
            code = work() or 0
        except BaseException:
            traceback.print_exc()
        exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def server(service: FakeService) -> Iterator[FakeServer]:
    with FakeServer(service) as running:
        yield running


def program(server: FakeServer, code: str) -> str:
    """Run a program; gives what it printed, which is nothing on the side of errors."""
    done = subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(code), server.base_url],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr[-1500:]
    assert done.stderr == ""
    return done.stdout.strip()


def test_a_child_that_ends_does_not_end_the_parents_session(
    server: FakeServer, service: FakeService
) -> None:
    told = program(
        server,
        """
        sample()
        print(in_child(lambda: sample() and 0, exit=sys.exit))  # runs the exit handlers
        sample()
        client.close("success").result(10)
        """,
    )
    assert told.splitlines()[-1] == "0"
    (finish,) = service.calls.to("finish_session")
    assert finish.json["reason"] == {"type": "success"}
    assert len(service.calls.to("create_session")) == 1
    numbers = [call.seq_id for call in service.calls.to("asample")]
    assert len(set(numbers)) == 3


def test_a_child_that_makes_models_has_a_session_of_its_own(
    server: FakeServer, service: FakeService
) -> None:
    told = program(
        server,
        """
        def train():
            model = client.create_lora_training_client("Qwen/Qwen3-8B").model_id
            print(model, flush=True)
        train()
        in_child(train, exit=sys.exit)
        train()
        """,
    )
    models = told.split()
    assert len(set(models)) == 3
    assert len(service.calls.to("create_session")) == 2
    reasons = sorted(call.json["reason"]["type"] for call in service.calls.to("finish_session"))
    assert reasons == ["interrupted", "interrupted"], "each process ends its own"


def test_a_future_made_before_a_fork_fails_in_the_child_at_once(server: FakeServer) -> None:
    told = program(
        server,
        """
        held = type(sampler.sample(prompt, 1, params))()
        go = threading.Event()

        async def late():
            while not go.is_set():
                await asyncio.sleep(0.01)
            return "late"

        work = client.holder.start(late())
        done = sampler.sample(prompt, 1, params)
        done.result(10)

        def look():
            try:
                work.result(5)
            except tinkex.ClientClosedError as error:
                print("fork" in str(error), work.done(), work.cancel(), flush=True)
            print(len(done.result(5).sequences), held.done(), flush=True)

        print(in_child(look))
        go.set()
        print(work.result(10))
        """,
    )
    assert told.split() == ["True", "True", "False", "1", "True", "0", "late"]


def test_a_stream_begun_before_a_fork_ends_in_the_child(server: FakeServer) -> None:
    told = program(
        server,
        """
        stream = sampler.sample_stream(prompt, types.SamplingParams(max_tokens=3))
        many = sampler.sample_many([prompt] * 3, params)
        next(many)

        def read():
            for each in (stream, many):
                try:
                    next(each)
                except tinkex.ClientClosedError as error:
                    print("fork" in str(error), flush=True)

        print(in_child(read))
        print(sum(len(item.tokens) for item in stream), len(list(many)))
        """,
    )
    assert told.split() == ["True", "True", "0", "3", "2"]


def test_events_that_waited_at_a_fork_are_reported_once(server: FakeServer, service: FakeService) -> None:
    program(
        server,
        """
        talker = tinkex.ServiceClient(base_url=url, api_key="tml-x", telemetry=True)
        talker.create_sampling_client(base_model="Qwen/Qwen3-8B")
        talker.get_telemetry().log("before")

        def report():
            talker.get_telemetry().log("in the child")
            talker.close("success").result(10)

        print(in_child(report))
        talker.close("success").result(10)
        """,
    )
    events = [event for call in service.calls.to("telemetry") for event in call.json["events"]]
    names = sorted(event["event_name"] for event in events if event["event"] == "GENERIC_EVENT")
    assert names == ["before", "in the child"]
    assert len({event["event_id"] for event in events}) == len(events)


def test_locks_held_by_other_threads_do_not_hang_the_child(server: FakeServer) -> None:
    told = program(
        server,
        """
        from tinkex.client import connection, handles
        from tinkex import notices
        trainer = client.create_lora_training_client("Qwen/Qwen3-8B")
        many = sampler.sample_many([prompt] * 3, params)
        next(many)
        locks = [
            many._ended._changed,
            client.holder.connection.metrics._lock, client.holder.connection.hooks._lock,
            trainer._line._line._lock, connection._shared_lock, handles._lock, notices._lock,
        ]
        held, go = threading.Event(), threading.Event()

        def hold():
            for lock in locks:
                lock.acquire()
            held.set()
            go.wait(30)
            for lock in locks:
                lock.release()

        threading.Thread(target=hold, daemon=True).start()
        held.wait(10)

        def work():
            client.on_event(lambda event: None)
            sample()
            trainer.optim_step(types.AdamParams(learning_rate=1e-4)).result(10)
            client.metrics()
            many.close()

        print(in_child(work))
        go.set()
        """,
    )
    assert told == "0"


def test_operations_in_line_at_a_fork_do_not_hold_up_the_child(
    server: FakeServer, service: FakeService
) -> None:
    told = program(
        server,
        """
        trainer = client.create_lora_training_client("Qwen/Qwen3-8B")
        params = types.AdamParams(learning_rate=1e-4)
        ahead = trainer._line.enter()  # an operation of the parent that is not sent yet
        mine = trainer.optim_step(params)

        def work():
            trainer.optim_step(params).result(10)

        print(in_child(work), mine.done())
        ahead.leave()
        mine.result(10)
        """,
    )
    assert told == "0 False"
    assert len(service.calls.to("optim_step")) == 2


def test_forking_in_the_middle_of_heavy_traffic(server: FakeServer) -> None:
    told = program(
        server,
        """
        stop = threading.Event()

        def traffic():
            while not stop.is_set():
                sample()

        threads = [threading.Thread(target=traffic) for _ in range(4)]
        for thread in threads:
            thread.start()
        codes = [in_child(lambda: sample() and 0) for _ in range(8)]
        stop.set()
        for thread in threads:
            thread.join(10)
        print(codes)
        """,
    )
    assert told == str([0] * 8)
