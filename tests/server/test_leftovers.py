"""What a dead engine leaves half-written goes when the next one is up; what others write stays."""

from __future__ import annotations

import os
from pathlib import Path

from .machine import Machine, running

DEAD, OTHER = 4_100_000, 4_100_001


def half_written(state: Path, pid: int) -> list[Path]:
    """Folders that the process with this number was writing."""
    places = [
        state / "checkpoints" / "run" / "training" / f".a.b-3.{pid}.part",
        state / "checkpoints" / "run" / "sampler" / f".a-4.{pid}.old",
        state / "snapshots" / "run" / f".16.{pid}.part",
        state / "engine" / "tiny-1" / "sampler" / f".0abc.{pid}.part",
        state / "exports" / f".0abc.{pid}.part",
    ]
    for place in places:
        place.mkdir(parents=True)
        (place / "adapter.safetensors").write_bytes(b"half of")
    return places


@running()
async def test_what_a_dead_engine_was_writing_goes_with_the_next(server: Machine):
    ann = server.ann
    model = await ann.model()
    await ann.done(await ann.save(model, 1, "whole"))
    dead, ours = half_written(server.state, DEAD), half_written(server.state, os.getpid())
    copying = server.state / "checkpoints" / "run" / "training" / ".a.5-7.part"
    copying.mkdir()
    await server.replace_engine()
    await server.until(lambda: not any(place.exists() for place in dead))
    assert all(place.exists() for place in ours)
    assert copying.exists()
    whole = server.folders.checkpoint(model, "training", "whole", 1)
    assert whole.is_dir()


@running(bases=("tiny", "other"))
async def test_what_another_engine_is_writing_stays(server: Machine):
    rooms = list(server.service.rooms.values())
    rooms[1]._link.pid = OTHER
    dead, others = half_written(server.state, DEAD), half_written(server.state, OTHER)
    next(link for link in server.links if link is rooms[0]._link).die("killed")
    await server.until(lambda: not any(place.exists() for place in dead))
    await server.settle()
    assert all(place.exists() for place in others)
