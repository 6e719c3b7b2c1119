"""Engines that do not start, or die as soon as they are up: tried again with growing pauses, told why."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tinkex.server.engine_room import AT_ONCE, LONGEST_PAUSE
from tinkex.server.readiness import READY_PAGE, ready_page

from .machine import Machine, base_folder, running


async def readiness(server: Machine) -> dict[str, Any]:
    """What /readyz says."""
    server.allowed_5xx.add(503)
    found: dict[str, Any] = (await server.send("GET", "/readyz")).json
    return found


@running(pages={READY_PAGE: ready_page})
async def test_a_model_that_cannot_be_loaded_is_told_in_readyz_and_to_clients(server: Machine):
    ann = server.ann
    folder = base_folder("tiny")
    server.refuse_engines = f"{folder} has no config.json"
    server.kill_engine("once")
    await server.settle()
    found = await readiness(server)
    assert found["status"] == "failing"
    assert found["reason"].endswith(f"{folder.name} has no config.json")
    assert str(folder) not in found["reason"]  # nobody is told a folder of the server
    assert (await server.send("GET", "/api/v1/healthz")).status == 200
    model = await ann.begin_model(await ann.session())
    poll = ann.begin_poll(f"{model}:0")
    await server.wait(36)
    assert "has no config.json" in poll.result().json["queue_state_reason"]
    tried: list[float] = []
    make = server._link

    def noted(*given: Any) -> Any:
        tried.append(server.clock.passed)
        return make(*given)

    (room,) = server.service.rooms.values()
    room._make_link = noted
    for _ in range(2000):
        await server.wait(1)
    pauses = [later - earlier for earlier, later in pairwise(tried)]
    assert pauses == sorted(pauses)
    assert max(pauses) == LONGEST_PAUSE
    assert len(tried) < 30
    server.refuse_engines = ""
    await server.wait(LONGEST_PAUSE)
    assert (await readiness(server))["status"] == "ready"


@running(pages={READY_PAGE: ready_page})
async def test_an_engine_that_dies_as_soon_as_it_is_up_is_not_started_without_end(server: Machine):
    make, sick = server._link, True

    def link(*given: Any) -> Any:
        made = make(*given)
        start = made.start

        async def begin() -> None:
            await start()
            if sick:
                made.engine.break_down("of no work at all")

        made.start = begin
        return made

    (room,) = server.service.rooms.values()
    room._make_link = link
    before = len(server.engines)
    server.kill_engine("once")
    for _ in range(50):
        await server.settle()
    assert len(server.engines) - before <= AT_ONCE + 1  # no time has passed
    found = await readiness(server)
    assert found["status"] == "failing"
    assert "of no work at all" in found["reason"]
    for _ in range(600):
        await server.wait(1)
    assert len(server.engines) - before < AT_ONCE + 15
    sick = False
    await server.wait(LONGEST_PAUSE)
    assert (await readiness(server))["status"] == "ready"
    model = await server.ann.model()
    await server.ann.done(await server.ann.train(model, 1))
