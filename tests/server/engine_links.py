"""What the tests of engine links share: who is told, what is asked, which loops run it."""

import asyncio
import importlib.util
import os
import sys

import numpy as np
import pytest
import uvloop

from tinkex.engine.messages import (
    Datum,
    SampleAccepted,
    TokenStep,
    Train,
    TrainPart,
)

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
