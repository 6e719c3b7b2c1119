"""Lists of training runs and checkpoints: whose, in which order, and what old SDKs can read."""

from __future__ import annotations

from typing import Any

import pytest

from .rig import MODEL, START, Rig, served

RUN = "s-1:train:0"


@served
async def test_a_run_and_its_last_checkpoints(rig: Rig):
    await rig.session()
    await rig.run(user_metadata={"n": 1, "deep": {"a": True}})
    await rig.checkpoint("old")
    await rig.clock.forward(1)
    await rig.checkpoint("new")
    await rig.checkpoint("sampler", kind="sampler")
    await rig.checkpoint("elsewhere", run="s-1:train:1")
    got = await rig.get(f"training_runs/{RUN}")
    assert got.status == 200
    run = got.json
    assert run["training_run_id"] == RUN
    assert run["base_model"] == MODEL
    assert run["model_owner"] == "ann"
    assert (run["is_lora"], run["lora_rank"], run["corrupted"]) == (True, 8, False)
    assert run["last_request_time"].startswith("2027-01-15T08:00:00")
    assert run["last_checkpoint"]["tinker_path"] == f"tinker://{RUN}/weights/new"
    assert run["last_sampler_checkpoint"]["checkpoint_id"] == "sampler_weights/sampler"
    assert run["user_metadata"] == {"n": "1", "deep": "{'a': True}"}
    assert "note" not in run
    listed = (await rig.get("training_runs")).json
    assert listed == {"training_runs": [run], "cursor": {"offset": 0, "limit": 20, "total_count": 1}}


@served
async def test_a_corrupted_run_says_why(rig: Rig):
    await rig.session()
    await rig.run(state="corrupted", note="replaying operation 3 gave another loss")
    run = (await rig.get(f"training_runs/{RUN}")).json
    assert run["corrupted"] is True
    assert run["note"] == "replaying operation 3 gave another loss"


@served
async def test_pages_of_runs_newest_first_and_by_project(rig: Rig):
    await rig.session("s-1", project_id="p")
    await rig.session("s-2")
    for number in range(3):
        await rig.run(f"s-1:train:{number}")
        await rig.clock.forward(1)
    await rig.run("s-2:train:0")
    await rig.run("s-3:train:0", owner="bob")
    page = (await rig.get("training_runs?limit=2&offset=1&access_scope=accessible")).json
    assert [run["training_run_id"] for run in page["training_runs"]] == ["s-1:train:2", "s-1:train:1"]
    assert page["cursor"] == {"offset": 1, "limit": 2, "total_count": 4}
    of_project = (await rig.get("training_runs?project_id=p")).json
    assert of_project["cursor"]["total_count"] == 3
    assert (await rig.get("training_runs?limit=0")).json["training_runs"] == []


@served
async def test_others_see_a_run_only_through_what_is_published(rig: Rig):
    await rig.session()
    await rig.run()
    private = await rig.checkpoint("private")
    for path in (f"training_runs/{RUN}?access_scope=accessible", f"training_runs/{RUN}/checkpoints"):
        got = await rig.get(path, key="bob")
        assert got.status == 404
        assert RUN in got.detail
    public = await rig.checkpoint("public", public=True)
    run = (await rig.get(f"training_runs/{RUN}?access_scope=accessible", key="bob")).json
    assert run["last_checkpoint"]["tinker_path"] == public.path
    assert (await rig.get(f"training_runs/{RUN}", key="bob")).status == 404
    listed = (await rig.get(f"training_runs/{RUN}/checkpoints", key="bob")).json["checkpoints"]
    assert [each["tinker_path"] for each in listed] == [public.path]
    mine = (await rig.get(f"training_runs/{RUN}/checkpoints")).json["checkpoints"]
    assert {each["tinker_path"] for each in mine} == {private.path, public.path}


@served
async def test_a_checkpoint_as_lists_show_it(rig: Rig):
    await rig.session()
    await rig.run()
    row = await rig.checkpoint("ck.1", user_metadata={"k": "v"}, expires=START + 7200)
    (listed,) = (await rig.get(f"training_runs/{RUN}/checkpoints")).json["checkpoints"]
    assert listed == {
        "checkpoint_id": "weights/ck.1",
        "checkpoint_type": "training",
        "time": "2027-01-15T08:00:00Z",
        "tinker_path": row.path,
        "size_bytes": row.size,
        "public": False,
        "user_metadata": {"k": "v"},
        "expires_at": "2027-01-15T10:00:00Z",
    }
    await rig.clock.forward(7200)
    assert (await rig.get(f"training_runs/{RUN}/checkpoints")).json["checkpoints"] == []


@pytest.mark.parametrize(
    ("version", "sees"),
    [("0.27.0", False), ("0.3.0", False), ("0.28.0", True), ("0.36.0", True), ("1.0", True), ("?", True)],
)
@served
async def test_sdks_that_know_no_external_checkpoints_are_not_shown_any(rig: Rig, version: str, sees: bool):
    await rig.session()
    await rig.run()
    for name, kind in (("a", "training"), ("b", "external"), ("c", "external"), ("d", "sampler")):
        await rig.checkpoint(name, kind=kind)
        await rig.clock.forward(1)
    said = {"X-Stainless-Package-Version": version}

    async def kinds(path: str) -> tuple[list[str], Any]:
        answer = (await rig.get(path, headers=said)).json
        return [each["checkpoint_type"] for each in answer["checkpoints"]], answer.get("cursor")

    whole = ["sampler", "external", "external", "training"] if sees else ["sampler", "training"]
    assert await kinds(f"training_runs/{RUN}/checkpoints") == (whole, None)
    assert await kinds(f"models/{RUN}/checkpoints") == (whole, None)
    page = await kinds("checkpoints?limit=1&offset=1")
    assert page == (whole[1:2], {"offset": 1, "limit": 1, "total_count": len(whole)})


@served
async def test_all_checkpoints_of_an_owner(rig: Rig):
    await rig.session()
    await rig.checkpoint("mine")
    await rig.checkpoint("copied", run="copy-1")
    await rig.checkpoint("theirs", run="s-9:train:0", owner="bob", public=True)
    got = (await rig.get("checkpoints")).json
    assert {each["checkpoint_id"] for each in got["checkpoints"]} == {"weights/mine", "weights/copied"}
    assert got["cursor"] == {"offset": 0, "limit": 100, "total_count": 2}
    # A run that is only copies has no model, but its checkpoints are listed.
    assert len((await rig.get("training_runs/copy-1/checkpoints")).json["checkpoints"]) == 1


@pytest.mark.parametrize("path", ["training_runs/no:train:0", "training_runs/no:train:0/checkpoints"])
@served
async def test_what_is_not_there(rig: Rig, path: str):
    got = await rig.get(path)
    assert got.status == 404
    assert "no:train:0" in got.detail
    assert int(got.headers["content-length"]) == len(got.body)
