"""How sessions end while the engine is still busy with their models."""

from __future__ import annotations

from tinkex.engine.messages import SaveState

from .machine import Machine, running


async def snapshotting(server: Machine) -> tuple[str, str]:
    """A session whose model is about to be snapshotted: the engine has been told, and waits."""
    session = await server.ann.session()
    model = await server.ann.model(session)
    server.engine.hold(SaveState)
    await server.ann.done(await server.ann.step(model, 1))
    await server.settle()
    assert [type(each) for each in server.engine.seen].count(SaveState) == 1
    return session, model


@running(options={"snapshot_steps": 1})
async def test_a_snapshot_under_way_is_not_taken_from_under_the_engine(server: Machine):
    session, model = await snapshotting(server)
    folder = server.folders.snapshot(model, 1)
    folder.parent.mkdir(parents=True, exist_ok=True)
    await server.ann("finish_session", {"reason": {"type": "success"}}, session_id=session)
    await server.settle()
    assert folder.parent.exists()
    server.engine.release()
    await server.until(lambda: not folder.parent.exists())
    assert model not in server.engine.models


@running(options={"snapshot_steps": 1})
async def test_snapshots_go_also_when_the_engine_dies_over_them(server: Machine):
    session, model = await snapshotting(server)
    folder = server.folders.snapshot(model, 1)
    folder.parent.mkdir(parents=True, exist_ok=True)
    await server.ann("finish_session", {"reason": {"type": "success"}}, session_id=session)
    await server.settle()
    server.kill_engine()
    await server.until(lambda: not folder.parent.exists())
