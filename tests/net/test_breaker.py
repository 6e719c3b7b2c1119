"""The circuit breaker, alone and in a caller's hands."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tinkex.config import Config
from tinkex.errors import APIConnectionError, InternalServerError, TinkerError
from tinkex.net.auth import Auth
from tinkex.net.breaker import Breaker, CircuitOpenError
from tinkex.net.caller import Caller
from tinkex.net.lanes import Lanes
from tinkex.net.policy import Operation
from tinkex.testing.fake_clock import FakeClock
from tinkex.testing.transports import ScriptedTransport, reply
from tinkex.wire.routes import route

HEALTH = route("get_server_capabilities")
OTHER = route("client_config")


def test_it_opens_after_failures_in_a_row_and_lets_one_probe_through() -> None:
    clock = FakeClock()
    breaker = Breaker(clock, "x", failures=3, rest=30.0)

    async def main() -> None:
        for ok in (False, False, True, False, False):
            breaker.before()
            breaker.after(ok)
        breaker.before()  # two in a row are not three
        breaker.after(False)
        with pytest.raises(CircuitOpenError, match="x failed 3 times in a row; it is tried again in 30 s"):
            breaker.before()
        await clock.advance(29)
        with pytest.raises(CircuitOpenError):
            breaker.before()
        await clock.advance(1)
        breaker.before()
        with pytest.raises(CircuitOpenError):
            breaker.before()  # one probe at a time
        breaker.after(False)
        with pytest.raises(CircuitOpenError):
            breaker.before()  # it failed: another rest
        await clock.advance(30)
        breaker.before()
        breaker.after(True)
        for _ in range(3):
            breaker.before()

    asyncio.run(main())


def test_a_probe_that_teaches_nothing_lets_the_next_one_try() -> None:
    clock = FakeClock()
    breaker = Breaker(clock, "x", failures=1, rest=10.0)

    async def main() -> None:
        breaker.before()
        breaker.after(False)
        await clock.advance(10)
        breaker.before()
        breaker.after(None)
        breaker.before()

    asyncio.run(main())


def caller(lines: list[Any], *, breaker: bool = True) -> tuple[Caller, FakeClock, ScriptedTransport]:
    clock = FakeClock()
    transport = ScriptedTransport(lines, clock=clock)
    config = Config.resolve(environ={}, base_url="http://x.test", api_key="tml-x", circuit_breaker=breaker)
    return Caller(config, Lanes(config, lambda _: transport), Auth(config, clock), clock), clock, transport


def test_a_route_that_keeps_failing_is_left_alone_and_others_are_not() -> None:
    made, clock, transport = caller(
        [500, APIConnectionError, 503, 500, 502, reply({}), reply({"supported_models": []})]
    )

    async def main() -> None:
        for _ in range(5):
            with pytest.raises((InternalServerError, APIConnectionError)):
                await made.once(HEALTH)
        for _ in range(10):
            with pytest.raises(CircuitOpenError):
                await made.once(HEALTH)
        assert len(transport.requests) == 5
        await made.once(OTHER, b"{}")
        await clock.advance(30)
        await made.once(HEALTH)

    asyncio.run(main())
    assert transport.left == 0


def test_a_clients_own_mistakes_do_not_open_it() -> None:
    made, _, transport = caller([404, 400, 429, 401, 402, 408, reply({})])

    async def main() -> None:
        for _ in range(6):
            with pytest.raises(TinkerError):
                await made.once(HEALTH)
        await made.once(HEALTH)

    asyncio.run(main())
    assert transport.left == 0


@pytest.mark.parametrize("end", ["cancelled", "odd error"])
def test_a_probe_that_is_broken_off_does_not_keep_the_circuit_open_for_ever(end: str) -> None:
    async def hang(_: Any) -> Any:
        if end == "odd error":
            raise KeyError("odd")
        await asyncio.Event().wait()

    made, clock, _ = caller([*[500] * 5, hang, reply({})])

    async def main() -> None:
        for _ in range(5):
            with pytest.raises(InternalServerError):
                await made.once(HEALTH)
        await clock.advance(30)
        probe = asyncio.ensure_future(made.once(HEALTH))
        await asyncio.sleep(0.01)
        probe.cancel()
        with pytest.raises((asyncio.CancelledError, KeyError)):
            await probe
        await made.once(HEALTH)

    asyncio.run(main())


def test_it_is_off_unless_asked_for() -> None:
    made, _, transport = caller([500] * 20, breaker=False)

    async def main() -> None:
        for _ in range(20):
            with pytest.raises(InternalServerError):
                await made.once(HEALTH)

    asyncio.run(main())
    assert transport.left == 0


def test_an_open_circuit_ends_a_call_at_once() -> None:
    made, clock, _ = caller([500] * 5)

    async def main() -> None:
        working = asyncio.ensure_future(made.call(HEALTH, operation=Operation("x", seconds=1e6)))
        await clock.advance_until(working.done)
        with pytest.raises(CircuitOpenError):
            await working

    asyncio.run(main())
    assert clock.elapsed < 30


def test_a_request_the_library_drops_by_itself_is_a_lost_connection() -> None:
    made, _, _ = caller([asyncio.CancelledError, asyncio.CancelledError], breaker=False)

    async def main() -> None:
        with pytest.raises(APIConnectionError, match="dropped"):
            await made.once(HEALTH)

    asyncio.run(main())
