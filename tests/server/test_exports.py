"""Checkpoints in the form other tools read: made by the engine when somebody wants them."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from typing import Any

from tinkex.engine.messages import ExportSaved
from tinkex.server.assembly import pages
from tinkex.server.records import CheckpointRow

from .machine import Machine, running
from .rig import Rig, served

NAMES = {"adapter_config.json", "adapter_model.safetensors"}


def _where(path: str) -> dict[str, str]:
    run, _, rest = path.removeprefix("tinker://").partition("/")
    return {"training_run_id": run, "checkpoint_id": rest}


async def _saved(server: Machine, name: str = "ck") -> str:
    model = await server.ann.model()
    path: str = (await server.ann.done(await server.ann.save(model, 1, name)))["path"]
    return path


async def _fetch(server: Machine, url: str) -> Any:
    assert url.startswith("http://here/files/")
    answer = await server.send("GET", url.removeprefix("http://here"))
    assert answer.status == 200
    return answer.body


def _asked(server: Machine) -> list[ExportSaved]:
    return [each for each in server.engine.seen if isinstance(each, ExportSaved)]


@running(pages=pages())
async def test_training_and_sampler_checkpoints_are_exported_once(server: Machine):
    ann = server.ann
    model = await ann.model()
    for name, ticket in (
        ("ck", await ann.save(model, 1, "ck")),
        ("s", await ann.freeze(model, 2, name="s")),
    ):
        path = (await ann.done(ticket))["path"]
        assert path.endswith(f"/{name}")
        both = await asyncio.gather(
            ann("external_weights_urls", **_where(path)), ann("checkpoint_archive", **_where(path))
        )
        urls = both[0].json["urls"]
        assert set(urls) == NAMES
        config = json.loads(await _fetch(server, urls["adapter_config.json"]))
        assert config["base_model_name_or_path"] == "tiny"
        assert both[1].status == 302
        archive = await _fetch(server, both[1].headers["location"])
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            assert set(tar.getnames()) == {*NAMES, "checkpoint_complete"}
        await ann("external_weights_urls", **_where(path))
    assert len(_asked(server)) == 2
    assert len(list(server.service.exports.root.iterdir())) == 2


@running(pages=pages())
async def test_what_was_saved_external_needs_no_engine(server: Machine):
    ann = server.ann
    model = await ann.model()
    ticket = await ann.ok("save_weights_external", {"model_id": model, "seq_id": 1, "path": "e"})
    path = (await ann.done(ticket["request_id"]))["path"]
    server.refuse_engines = "no room"
    server.kill_engine()
    await server.settle()
    urls = (await ann.ok("external_weights_urls", **_where(path)))["urls"]
    assert set(urls) == NAMES
    assert (
        json.loads(await _fetch(server, urls["adapter_config.json"]))["base_model_name_or_path"] == "tiny"
    )


@running(hold=[ExportSaved])
async def test_an_engine_that_dies_meanwhile_is_asked_again_by_the_client(server: Machine):
    path = await _saved(server)
    server.allowed_5xx = {503}
    asking = asyncio.ensure_future(server.ann("external_weights_urls", **_where(path)))
    await server.until(lambda: _asked(server))
    await server.replace_engine()
    answer = await asking
    assert answer.status == 503
    assert answer.headers["retry-after"] == "5"
    assert set((await server.ann.ok("external_weights_urls", **_where(path)))["urls"]) == NAMES


@running()
async def test_an_export_that_fails_is_the_servers_fault_and_shows_no_paths(server: Machine):
    path = await _saved(server)
    assert server.store is not None
    row = await server.store.get(CheckpointRow, path)
    assert row is not None
    await server.service.remove_folder(server.state / row.folder)
    server.allowed_5xx = {500}
    answer = await server.ann("external_weights_urls", **_where(path))
    assert answer.status == 500
    assert str(server.state) not in answer.detail
    assert (await server.ann("external_weights_urls", **_where(path))).status == 500


@running()
async def test_exports_nobody_asks_for_any_more_go(server: Machine):
    path = await _saved(server)
    await server.ann.ok("external_weights_urls", **_where(path))
    (export,) = server.service.exports.root.iterdir()
    server.clock.advance(6000)
    await server.service.exports.forget_old()
    assert export.exists()
    await server.ann.ok("external_weights_urls", **_where(path))
    server.clock.advance(6000)
    await server.service.exports.forget_old()
    assert export.exists()
    server.clock.advance(6000)
    await server.service.exports.forget_old()
    assert not export.exists()
    await server.ann.ok("external_weights_urls", **_where(path))
    assert len(_asked(server)) == 2


@served(start=True)
async def test_without_an_engine_the_client_is_told_to_come_again(rig: Rig):
    await rig.checkpoint()
    await rig.clock.forward(0)
    for what in ("archive", "external_weights_urls"):
        got = await rig.get(f"training_runs/s-1:train:0/checkpoints/weights/ck/{what}")
        assert got.status == 503
        assert "there is none in this test" in got.detail
        assert got.headers["retry-after"] == "5"
