"""Links to children that misbehave: they are ended and told, and leave nothing."""

import asyncio
import contextlib
import logging
import re

import pytest

from tinkex.engine.messages import (
    AskStats,
)
from tinkex.server import engine_link
from tinkex.server.child_process import child_environment
from tinkex.server.engine_link import EngineSpec, EngineStartFailed, LinkClosed, ProcessLink

from .engine_links import LOOPS, Told, no_process

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
