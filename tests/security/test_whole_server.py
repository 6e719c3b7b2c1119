"""A server of its own process through a workload, then everything it left behind looked through."""

from __future__ import annotations

import http.client
import json
import os
import signal
import stat
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("uvicorn")

import tinkex
from tests.server.test_credentials import files_with
from tinkex import types
from tinkex.testing import make_tiny_model

ROOT = Path(__file__).parents[2]
WATCH = Path(__file__).parent / "watch"
ELSEWHERE = ["http://169.254.169.254/latest/meta-data", "http://127.0.0.1:1/x.png", "file:///etc/passwd",
             "https://example.com/x.png", "s3://bucket/x", "/etc/passwd", "../../keys.json"]  # fmt: skip
TORCH = find_spec("torch") is not None and find_spec("transformers") is not None


@dataclass
class Ran:
    """What a server was and said, after its end."""

    folder: Path
    state: Path
    key: str
    other: str
    log: str
    attempts: list[str]
    refusals: dict[str, tuple[int, str]]


def ask(url: str, path: str, key: str | None, body: Any) -> tuple[int, str]:
    """One request; its status and text."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    headers = {"content-type": "application/json"} | ({"X-API-Key": key} if key else {})
    connection.request("POST", f"/api/v1/{path}", json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read().decode("utf-8", "replace")
    connection.close()
    return answer.status, text


def work(url: str, key: str, other: str, folder: Path) -> dict[str, tuple[int, str]]:
    """A bit of everything, and the requests that name places elsewhere."""
    service = tinkex.ServiceClient(base_url=url, api_key=key)
    trainer = service.create_lora_training_client("tiny", rank=4)
    datum = types.Datum(
        model_input=types.ModelInput.from_ints([1, 2, 3]),
        loss_fn_inputs={
            "target_tokens": types.TensorData(data=[2, 3, 4], dtype="int64", shape=[3]),
            "weights": types.TensorData(data=[1.0] * 3, dtype="float32", shape=[3]),
        },
    )
    trainer.forward_backward([datum], "cross_entropy").result()
    trainer.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    saved = trainer.save_state("one").result().path
    named = trainer.save_weights_for_sampler("two").result().path
    sampler = trainer.save_weights_and_get_sampling_client()
    sampler.sample(types.ModelInput.from_ints([1, 2]), 1, types.SamplingParams(max_tokens=4)).result()
    rest = tinkex.RestClient(base_url=url, api_key=key)
    rest.publish_checkpoint_from_tinker_path(saved).result()
    rest.download_checkpoint(named, folder / "download").result()
    model, refusals = trainer.model_id, {}
    for number, place in enumerate(ELSEWHERE):
        image = {"type": "image_asset_pointer", "format": "png", "location": place, "expected_tokens": 1}
        prompt = {"chunks": [image]}
        sample = {
            "base_model": "tiny",
            "prompt": prompt,
            "num_samples": 1,
            "sampling_params": {"max_tokens": 1},
        }
        refusals[f"image {place}"] = ask(url, "asample", key, sample)
        load = {"model_id": model, "seq_id": 100 + number, "path": place, "optimizer": False}
        refusals[f"path {place}"] = ask(url, "load_weights", key, load)
        made = {"session_id": model.partition(":")[0], "model_seq_id": 50 + number, "base_model": place}
        refusals[f"model {place}"] = ask(url, "create_model", key, made)
        sampling = {"session_id": made["session_id"], "sampling_session_seq_id": 50 + number}
        refusals[f"sampler {place}"] = ask(
            url, "create_sampling_session", key, {**sampling, "model_path": place}
        )
        refusals[f"weights {place}"] = ask(url, "weights_info", key, {"tinker_path": place})
        copy = {"source_path": place, "destination_project_id": "p", "weights_access_token": other}
        refusals[f"copy {place}"] = ask(url, "copy_weights", key, copy)
    # What an official SDK reports when it fails: request headers and all.
    event = {"event": "UNHANDLED_EXCEPTION", "traceback": f"X-API-Key: {key}", "exception_message": key}
    ask(url, "telemetry", key, {"events": [event], "platform": "x", "sdk_version": "1", "session_id": "s"})
    ask(url, "get_info", f"{key}x", {"model_id": key})
    ask(url, f"sessions/{key}/finish", key, {"reason": {"type": "success"}})
    session = ask(url, "create_session", key, {"sdk_version": "1", "tags": []})
    assert session[0] == 200, session
    return refusals


def serve(folder: Path, words: list[str]) -> Ran:
    """Start a server that is watched, work with it, stop it."""
    state, watched = folder / "state", folder / "watched"
    model = make_tiny_model(folder / "model", context=512)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TINKER_", "TINKEX_"))}
    env |= {
        "PYTHONPATH": os.pathsep.join([str(WATCH), str(ROOT), str(ROOT / "src")]), "WATCHED": str(watched),
        "TINKEX_MODEL": f"tiny={model}", "TINKEX_STATE": str(state), "TINKEX_PORT": "0",
        "TINKEX_LOG_LEVEL": "debug", "TINKEX_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "no_proxy": "*",
    }  # fmt: skip
    old = os.umask(0)
    try:
        log = (folder / "log").open("w+")
        child = subprocess.Popen(words, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
    finally:
        os.umask(old)
    assert child.stdout is not None
    try:
        first = json.loads(child.stdout.readline() or "{}")
        assert first, (folder / "log").read_text()
        made = subprocess.run(
            [sys.executable, "-P", "-m", "tinkex", "keys", "add", "other", "--owner", "bob", "--state",
             str(state), "-q"], env=env, capture_output=True, text=True, check=True, cwd=folder,
        )  # fmt: skip
        other = made.stdout.split()[-1]
        assert other.startswith("tml-")
        refusals = work(first["url"], first["api_key"], other, folder)
        child.send_signal(signal.SIGTERM)
        rest = child.communicate(timeout=60)[0]
        assert child.returncode == 0, (folder / "log").read_text()
    finally:
        child.kill()
        child.wait()
        log.close()
    attempts = watched.read_text().splitlines() if watched.exists() else []
    text = (folder / "log").read_text() + rest
    return Ran(folder, state, first["api_key"], other, text, attempts, refusals)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return serve(tmp_path_factory.mktemp("served"), [sys.executable, "-m", "tests.security.noop_server"])


def test_no_key_lies_in_the_state_folder_or_the_log(ran: Ran):
    for secret in (ran.key, ran.other):
        assert files_with(ran.state, secret) == []
        assert files_with(ran.folder / "download", secret) == []
        assert secret not in ran.log
    digests = json.loads((ran.state / "keys.json").read_text())["keys"]
    assert [len(each["digest"]) for each in digests] == [64, 64]
    assert ran.log.count("\n") > 3  # there was something to look through


def test_everything_in_the_state_folder_is_its_owners_alone_whatever_the_umask(ran: Ran):
    seen = 0
    for path in (ran.state, *ran.state.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert mode & 0o077 == 0, f"{path.relative_to(ran.folder)} {mode:o}"
        seen += 1
    assert seen > 15
    # The server was told to be lax: what it is not asked to keep to itself shows it.
    assert stat.S_IMODE((ran.folder / "log").stat().st_mode) & 0o066


def test_a_server_reaches_out_to_nobody_and_unpickles_nothing(ran: Ran):
    assert ran.attempts == []


def test_places_elsewhere_are_refused_unread(ran: Ran):
    for what, (status, text) in ran.refusals.items():
        assert status in (400, 403, 404, 422), (what, status, text)
        assert "root:" not in text


def test_the_watch_sees_what_it_watches_for(tmp_path: Path):
    program = (
        "import pickle, socket, os, collections, subprocess, sys\n"
        "for attempt in (lambda: socket.create_connection(('127.0.0.1', 9)),\n"
        "                lambda: socket.getaddrinfo('example.invalid', 80),\n"
        "                lambda: pickle.loads(pickle.dumps(collections.Counter)),\n"
        "                lambda: os.system('true'), lambda: subprocess.run(['true'])):\n"
        "    try: attempt()\n"
        "    except Exception: pass\n"
    )
    env = {**os.environ, "PYTHONPATH": str(WATCH), "WATCHED": str(tmp_path / "watched")}
    subprocess.run([sys.executable, "-c", program], env=env, check=True)
    seen = {line.split()[0] for line in (tmp_path / "watched").read_text().splitlines()}
    wanted = {"socket.connect", "socket.getaddrinfo", "pickle.find_class", "os.system", "subprocess.Popen"}
    assert seen >= wanted


@pytest.mark.slow
@pytest.mark.skipif(not TORCH, reason="the engine is not installed")
def test_with_a_real_engine_too(tmp_path: Path):
    ran = serve(tmp_path, [sys.executable, "-m", "tinkex", "serve", "--json"])
    reached = [line for line in ran.attempts if not line.startswith("subprocess.Popen ")]
    assert reached == []
    test_no_key_lies_in_the_state_folder_or_the_log(ran)
    test_everything_in_the_state_folder_is_its_owners_alone_whatever_the_umask(ran)
    test_places_elsewhere_are_refused_unread(ran)
