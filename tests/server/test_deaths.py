"""An engine that dies again and again of the same work is spared it in the end; everything else goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tinkex.engine.messages import Train
from tinkex.server import scheduler
from tinkex.testing import NoopEngine

from .client import datum
from .machine import Machine, running

BAD = 99


@contextmanager
def allergic() -> Iterator[None]:
    """Engines break down when they are told to train on one token."""
    take = NoopEngine.submit

    def submit(engine: NoopEngine, message: Any) -> list[Any]:
        parts = message.parts if isinstance(message, Train) else ()
        if any(BAD in each.tokens for part in parts for each in part.data):
            engine.break_down("of a bad example")
        return take(engine, message)

    NoopEngine.submit = submit  # type: ignore[method-assign]
    try:
        yield
    finally:
        NoopEngine.submit = take  # type: ignore[method-assign]


@running()
async def test_an_operation_the_engine_always_dies_of_fails_and_others_do_not(server: Machine):
    ann, bob = server.ann, server.bob
    bad, good = await ann.model(), await bob.model()
    with allergic():
        fatal = await ann.train(bad, 1, datum([BAD, 1]))
        beside = await bob.train(good, 1, datum([1, 2]))
        after = await ann.train(bad, 2, datum([3, 4]))
        failure = await ann.result(fatal)
    assert "the engine died" in failure["error"]
    assert failure["category"] == "server"
    assert len(server.engines) == scheduler.MOST_DEATHS + 2  # the first death had two suspects
    await bob.done(beside)
    await ann.done(after)
    assert (await ann.result(fatal))["error"] == failure["error"]
