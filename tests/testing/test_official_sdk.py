"""The official SDK 0.36.0 goes its whole way against the fake, over real HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.testing.official_journey import DATUMS
from tinkex.testing import FakeServer, FakeService
from tinkex.types import ClientConfigResponse, ClientDynamicConfigResponse

pytest.importorskip("tinker")

JOURNEY = Path(__file__).with_name("official_journey.py")
CHUNKS = 5
FLAGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunks in order": {"parallel_fwdbwd_chunks": False},
    "tokens and zstd": {"pjwt_auth_enabled": True, "proto_compress_fwdbwd": True},
    "many results at once": {"sample_use_retrieve_futures": True, "sample_join_sampling_session": True},
    "models created by loading": {"create_model_via_load_weights": True, "use_pyqwest_transport": False},
}


def travel(server: FakeServer) -> dict[str, Any]:
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("TINKER")}
    done = subprocess.run(
        [sys.executable, str(JOURNEY), server.base_url],
        env={**kept, "TINKER_API_KEY": "tml-test", "TINKER_TELEMETRY": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_the_whole_journey(flags: dict[str, Any]) -> None:
    service = FakeService(
        config=ClientConfigResponse(fwdbwd_max_chunk_len=CHUNKS, **flags),
        dynamic=ClientDynamicConfigResponse(sample_cancel_enabled=True),
        api_keys=["tml-test"],
        large_result=200,
    )
    with FakeServer(service) as server:
        saw = travel(server)
    assert {call.status for call in service.calls} <= {200, None}
    _check_training(saw, service, flags)
    _check_sampling(saw, service, flags)
    _check_rest(saw)
    assert service.world.sessions["sess-1"].ended == "success"
    assert service.world.sessions["sess-1"].detail == "done"
    assert service.calls_to("telemetry")


def _check_training(saw: dict[str, Any], service: FakeService, flags: dict[str, Any]) -> None:
    assert saw["outputs"] == DATUMS
    assert saw["metrics"]["tokens:sum"] == 3 * DATUMS
    assert saw["metrics"]["loss:sum"] == pytest.approx(-sum(sum(row[1:]) for row in saw["logprobs"]), 1e-5)
    assert saw["optim"] == {"step": 1, "passes": DATUMS / CHUNKS, "learning_rate": 1e-3}
    assert saw["loss after a step"] < saw["loss before a step"]
    model = "sess-1:train:0"
    arrived, executed = service.seq_ids(model), service.executed(model)
    assert executed == sorted(executed) == list(range(1, len(executed) + 1))
    chunks = DATUMS // CHUNKS
    if flags.get("parallel_fwdbwd_chunks", True):
        assert sorted(arrived[: chunks - 1]) == list(range(2, chunks + 1))
        assert arrived[chunks - 1 : chunks + 1] == [1, chunks + 1]
    else:
        assert arrived == executed
    packed = {call.headers.get("content-encoding") for call in service.calls_to("forward_backward")}
    assert packed == {"zstd" if flags.get("proto_compress_fwdbwd") else None}
    assert saw["info"]["lora_rank"] == 8
    if "custom" in saw:
        assert saw["custom"]["half:sum"] == pytest.approx(saw["custom"]["loss:sum"] / 2)
    by_loading = service.calls_to("load_weights")[-1].body.session_id is not None
    assert by_loading == bool(flags.get("create_model_via_load_weights"))
    assert saw["resumed"] == "sess-1:train:1"
    assert service.world.models["sess-1:train:1"].steps == service.world.models[model].steps == 1


def _check_sampling(saw: dict[str, Any], service: FakeService, flags: dict[str, Any]) -> None:
    assert [len(tokens) for tokens in saw["sampled"]] == [4, 4]
    assert saw["prompt logprobs"][0] is None
    assert saw["prompt logprobs"][4:] == pytest.approx(saw["sampled logprobs"][0])
    assert [value is None for value in saw["last two"]] == [True, True, False, False]
    assert len({tuple(tokens) for tokens in saw["many"]}) == 20
    assert saw["sequence ids"] == ["sess-1:sample:0:0:0", "sess-1:sample:0:0:1"]
    assert [len(row or ()) for row in saw["topk prompt"]] == [0, 2, 2, 2]
    assert [len(row) for row in saw["topk sample"]] == [3, 3, 3]
    assert (saw["targets"][0][1], saw["targets"][1][0]) == (0, 0)
    assert saw["alternatives"] == [3, 2]
    assert len(saw["fresh"]) == 2
    polled = bool(service.calls_to("retrieve_futures"))
    assert polled == bool(flags.get("sample_use_retrieve_futures"))
    exchanged = bool(service.calls_to("auth_token"))
    assert exchanged == bool(flags.get("pjwt_auth_enabled"))


def _check_rest(saw: dict[str, Any]) -> None:
    assert saw["models"][0] == "Qwen/Qwen3-8B"
    assert saw["runs"]["cursor"]["total_count"] == 2
    assert saw["run"]["last_checkpoint"]["tinker_path"] == saw["saved"]
    listed = {each["checkpoint_id"]: each for each in saw["checkpoints"]["checkpoints"]}
    assert set(listed) == {"weights/ck1", "sampler_weights/s1", "external_weights/e1"}
    assert listed["weights/ck1"]["public"] is True
    assert listed["weights/ck1"]["expires_at"] is None
    assert saw["weights info"]["base_model"] == "Qwen/Qwen3-8B"
    assert len(saw["all checkpoints"]) == 3
    assert saw["copied"] not in saw["all checkpoints"]
    assert saw["session"]["training_run_ids"] == ["sess-1:train:0", "sess-1:train:1"]
    (found,) = saw["found"]["sessions"]
    assert (found["session_id"], found["project_id"]) == ("sess-1", "project-1")
    assert saw["sampler"]["model_path"] == saw["named"]
    assert saw["audit"][-1] == "checkpoint.deleted"
    assert saw["usage"] == ["sampling_prefill", "sampling_sample", "training"]
    assert saw["storage"] == 3
    assert set(saw["urls"]) == {"adapter_config.json", "adapter_model.safetensors", "checkpoint_complete"}


def test_the_official_sdk_survives_a_bad_day() -> None:
    service = FakeService(config=ClientConfigResponse(fwdbwd_max_chunk_len=CHUNKS), api_keys=["tml-test"])
    add = service.faults.add
    add("retrieve_future", status=503, times=3)
    add("forward_backward", drop=True, after=True, times=1)
    add("optim_step", status=429, headers={"Retry-After-Ms": "5"}, times=1)
    add("asample", status=429, times=1)
    add("telemetry", status=500, times=1)
    with FakeServer(service) as server:
        saw = travel(server)
    assert saw["optim"]["passes"] == DATUMS / CHUNKS  # nothing was applied twice
    assert not service.faults
    assert service.executed("sess-1:train:0") == sorted(set(service.seq_ids("sess-1:train:0")))
