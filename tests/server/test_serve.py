"""A server from start to end: what it says, what keeps it from starting, how it stops."""

from __future__ import annotations

import asyncio
import dataclasses
import http.client
import importlib.util
import io
import json
import logging
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
import trustme

pytest.importorskip("uvicorn")

from tinkex.config import Secret
from tinkex.server import banner
from tinkex.server.keys import KeyFileError, KeyInfo, KeyRing
from tinkex.server.listening import CannotStart, listen
from tinkex.server.options import ModelSpec, ServerOptions
from tinkex.server.serve import Ready, run
from tinkex.server.state_folder import StateFolder
from tinkex.testing import make_tiny_model

KEY = re.compile(r"tml-[\w-]{32}")


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], level = before
    root.setLevel(level)


class Bare:
    """An application that starts, says that its model is ready, and stops the server by a signal."""

    def __init__(self, ready: Ready, *, fails: bool = False) -> None:
        self.ready, self.fails = ready, fails

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "lifespan"
        await receive()
        if self.fails:
            await send({"type": "lifespan.startup.failed", "message": "no"})
            return
        await send({"type": "lifespan.startup.complete"})
        asyncio.get_running_loop().call_later(0.01, self._up)
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    def _up(self) -> None:
        self.ready("tiny", "cpu", "float32")
        self.ready("tiny", "cpu", "float32")  # its engine died and came back
        signal.raise_signal(signal.SIGTERM)

    async def drain(self) -> None:
        return

    def release(self) -> None:
        return


def serve(options: ServerOptions, mode: Any = "table", *, fails: bool = False) -> tuple[int, str]:
    async def make(
        options: ServerOptions, keys: KeyRing, url: str, ready: Ready, folder: StateFolder
    ) -> Bare:
        assert folder.path == options.state
        assert url.startswith("http")
        return Bare(ready, fails=fails)

    stdout = io.StringIO()
    code = run(options, mode=mode, stdout=stdout, make=make)
    return code, stdout.getvalue()


@pytest.fixture
def options(tmp_path: Path) -> ServerOptions:
    return ServerOptions((ModelSpec("tiny", tmp_path / "model"),), tmp_path / "state", port=0)


def changed(options: ServerOptions, **changes: Any) -> ServerOptions:
    return dataclasses.replace(options, **changes)


# ---- what it says


def test_a_first_start_shows_its_key_this_once(options: ServerOptions):
    code, said = serve(options)
    assert code == 0
    (key,) = KEY.findall(said)
    info = KeyRing(options.state / "keys.json").owner_of(key)
    assert info is not None
    assert info.owner == "local"
    assert re.search(r"export TINKER_BASE_URL=http://127\.0\.0\.1:\d+\n", said)
    assert f"export TINKER_API_KEY={key} " in said
    assert f"tiny  ({options.models[0].folder})" in said
    assert str(options.state) in said
    assert said.count("ready: tiny on cpu, float32") == 1
    code, again = serve(options)
    assert code == 0
    assert KEY.findall(again) == []
    assert f"…{key[-4:]}" in again


def test_programs_get_one_line_of_json(options: ServerOptions):
    _, said = serve(options, "json")
    (line,) = said.splitlines()
    facts = json.loads(line)
    assert set(facts) == {"url", "state", "pid", "api_key"}
    assert facts["pid"] == os.getpid()
    assert facts["state"] == str(options.state)
    _, again = serve(options, "json")
    assert "api_key" not in json.loads(again)


def test_quietly_only_what_is_needed(options: ServerOptions):
    _, said = serve(options, "quiet")
    url, key = said.splitlines()
    assert url.startswith("http://127.0.0.1:")
    assert KEY.fullmatch(key)


def test_a_key_given_at_the_start_is_not_shown(options: ServerOptions):
    key = Secret("tml-given-at-the-start-of-it")
    code, said = serve(changed(options, api_key=key, owner="ann"))
    assert code == 0
    assert key.reveal() not in said
    assert "ad-hoc …f-it (ann)" in said
    assert not (options.state / "keys.json").exists()


def test_the_address_clients_use_is_the_one_to_copy(options: ServerOptions):
    _, said = serve(changed(options, public_url="https://gpu.example/tinkex"))
    assert "export TINKER_BASE_URL=https://gpu.example/tinkex\n" in said
    assert re.search(r"listens +http://127\.0\.0\.1:\d+\n", said)


@pytest.mark.parametrize(
    ("changes", "loopback", "said"),
    [
        ({}, True, []),
        ({}, False, ["unencrypted", "--public-url"]),
        ({"tls_cert": Path("c"), "public_url": "https://x"}, False, []),
        (
            {"tls_cert": Path("c"), "public_url": "https://x", "api_key": Secret("tml-dummy")},
            False,
            ["guessed"],
        ),
        ({"api_key": Secret("tml-dummy")}, True, []),
    ],
)
def test_what_is_dangerous_is_said(
    options: ServerOptions, changes: dict[str, Any], loopback: bool, said: list[str]
):
    found = banner.warnings(changed(options, **changes), loopback=loopback)
    assert len(found) == len(said)
    assert all(part in warning for part, warning in zip(said, found, strict=True))


def test_the_banner_names_every_key(options: ServerOptions):
    shown = banner.banner(options, "http://x", [KeyInfo(1, "a", "ann", "", "wxyz"), KeyInfo(0, "b", "bob")])
    assert "a …wxyz (ann), b (bob)" in shown


# ---- what keeps it from starting


def test_one_state_folder_one_server(options: ServerOptions):
    with StateFolder(options.state), pytest.raises(CannotStart, match=r"in use by .*--state"):
        serve(options)
    assert serve(options)[0] == 0


def test_the_next_server_can_wait_for_the_folder(options: ServerOptions, monkeypatch: pytest.MonkeyPatch):
    held, looks = StateFolder(options.state), []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            held.close()

    monkeypatch.setattr("tinkex.server.serve.time.sleep", pause)
    assert serve(changed(options, wait_for_lock=60.0))[0] == 0
    assert len(looks) == 3
    monkeypatch.undo()
    with StateFolder(options.state), pytest.raises(CannotStart, match="in use by"):
        serve(changed(options, wait_for_lock=0.1))


def test_a_taken_port(options: ServerOptions):
    with closing(listen("127.0.0.1", 0)) as listener:
        taken = changed(options, port=listener.getsockname()[1])
        with pytest.raises(CannotStart, match="is taken"):
            serve(taken)
    assert serve(taken)[0] == 0  # nothing was left locked


def test_a_damaged_key_file_is_no_open_server(options: ServerOptions):
    options.state.mkdir()
    (options.state / "keys.json").write_text("{")
    (options.state / "keys.json").chmod(0o600)
    with pytest.raises(KeyFileError, match="damaged"):
        serve(options)


def test_a_state_folder_that_cannot_be(options: ServerOptions, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotStart, match="state folder"):
        serve(changed(options, state=tmp_path / "file" / "state"))


def test_an_application_that_does_not_start_is_a_failure(options: ServerOptions):
    code, said = serve(options, fails=True)
    assert (code, said) == (1, "")
    assert serve(options)[0] == 0


# ---- the real one

needs_engine = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None,
    reason="the engine is not installed",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


Command = Callable[..., list[str]]


@pytest.fixture
def command(model: Path, tmp_path: Path) -> Command:
    def words(*more: str) -> list[str]:
        return [
            *(sys.executable, "-m", "tinkex", "serve", "--model", f"tiny/model={model}", "--port", "0"),
            *("--state", str(tmp_path / "state"), "--json", "--device", "cpu", *more),
        ]

    return words


@contextmanager
def started(words: list[str]) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A server of its own, and what its first line says."""
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    line = child.stdout.readline()
    try:
        assert line, child.stderr and child.stderr.read()
        yield child, json.loads(line)
    finally:
        child.kill()
        child.communicate()


def ask(url: str, path: str, key: str | None = None, body: Any = None) -> tuple[int, dict[str, str], Any]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    headers = {"X-API-Key": key} if key else {}
    if body is not None:
        headers["content-type"] = "application/json"
    sent = None if body is None else json.dumps(body)
    connection.request("GET" if body is None else "POST", parts.path + path, sent, headers)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, json.loads(data)


@needs_engine
@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_a_real_server_answers_and_stops_with_0(command: Command, told: signal.Signals):
    with started(command()) as (child, facts):
        status, headers, _ = ask(facts["url"], "/api/v1/healthz")
        assert status == 200
        assert "server" not in headers
        assert ask(facts["url"], "/api/v1/get_server_capabilities")[0] == 401
        assert ask(facts["url"], "/api/v1/get_server_capabilities", "tml-wrong")[0] == 401
        status, _, known = ask(facts["url"], "/api/v1/get_server_capabilities", facts["api_key"])
        assert status == 200
        assert [each["model_name"] for each in known["supported_models"]] == ["tiny/model"]
        child.send_signal(told)
        out, err = child.communicate(timeout=60)
        assert child.returncode == 0, err
        assert out == ""
        assert facts["api_key"] not in err


@needs_engine
def test_ready_is_more_than_there(command: Command):
    words = [word for word in command() if word != "--json"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        lines = iter(child.stdout.readline, "")
        url = next(line for line in lines if "TINKER_BASE_URL=" in line).strip().partition("=")[2]
        assert ask(url, "/api/v1/healthz")[0] == 200
        starting = {"status": "starting", "engines": 1, "engines_up": 0}
        assert ask(url, "/readyz")[::2] == (503, starting)
        assert next(line for line in lines if line.startswith("ready: ")).startswith(
            "ready: tiny/model on cpu, "
        )
        assert ask(url, "/readyz")[::2] == (200, {"status": "ready", "engines": 1, "engines_up": 1})
        child.send_signal(signal.SIGINT)
        assert list(lines) == []
        assert child.wait() == 0
    finally:
        child.kill()
        child.communicate()


@needs_engine
def test_a_real_server_tells_of_its_engine_and_logs_objects(command: Command):
    with started(command("--log-format", "json", "--log-level", "debug")) as (child, facts):
        headers = {"Authorization": f"Bearer {facts['api_key']}", "X-Request-ID": "look-for-me"}
        assert child.stderr is not None
        said = iter(child.stderr.readline, "")
        until_ready = next(line for line in said if "engine ready" in line)
        assert json.loads(until_ready)["part"] == "server.engine_room"
        with urlopen(Request(f"{facts['url']}/metrics", headers=headers), timeout=60) as answer:
            assert answer.headers["x-request-id"] == "look-for-me"
            text = answer.read().decode()
        found = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        engine = '{model="tiny/model"}'
        assert float(found[f"tinkex_engine_up{engine}"]) == 1
        assert 0 < float(found[f"tinkex_engine_blocks_free{engine}"])
        assert float(found[f"tinkex_engine_resident_memory_bytes{engine}"]) > 10 << 20
        child.send_signal(signal.SIGTERM)
        _, err = child.communicate(timeout=60)
    records = [json.loads(line) for line in err.splitlines()]
    (about,) = (each for each in records if each.get("request") == "look-for-me")
    assert about["message"].startswith("GET /metrics 200 in ")
    assert facts["api_key"] not in err


@needs_engine
def test_a_real_server_with_a_certificate(command: Command, tmp_path: Path):
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with started(command("--tls-cert", str(cert), "--tls-key", str(key))) as (_, facts):
        assert facts["url"].startswith("https://127.0.0.1:")
        connection = http.client.HTTPSConnection(
            "127.0.0.1", urlsplit(facts["url"]).port, timeout=60, context=trusting
        )
        connection.request("GET", "/api/v1/healthz")
        assert connection.getresponse().status == 200
        connection.close()


@needs_engine
def test_keys_change_while_it_runs(command: Command, tmp_path: Path):
    with started(command()) as (_, facts):
        words = [sys.executable, "-m", "tinkex", "keys"]
        state = ["--state", str(tmp_path / "state"), "--quiet"]
        done = subprocess.run([*words, "add", "ann", *state], capture_output=True, text=True, check=True)
        key = done.stdout.strip()
        assert ask(facts["url"], "/api/v1/get_server_capabilities", key)[0] == 200
        subprocess.run([*words, "revoke", "ann", *state], check=True)
        assert ask(facts["url"], "/api/v1/get_server_capabilities", key)[0] == 401
        assert ask(facts["url"], "/api/v1/get_server_capabilities", facts["api_key"])[0] == 200


@needs_engine
def test_a_second_server_on_the_same_state_or_port_is_refused(command: Command, tmp_path: Path):
    with started(command()) as (_, facts):
        second = subprocess.run(command(), capture_output=True, text=True, check=False)
        assert (second.returncode, second.stdout) == (1, "")
        assert f"in use by process {facts['pid']}" in json.loads(second.stderr)["error"]
        port = str(urlsplit(facts["url"]).port)
        words = [*command("--state", str(tmp_path / "other")), "--port", port]
        third = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (third.returncode, third.stdout) == (1, "")
        assert f"port {port} of 127.0.0.1 is taken" in json.loads(third.stderr)["error"]


@needs_engine
def test_a_path_prefix_works_whether_the_proxy_keeps_it_or_not(command: Command):
    with started(command("--public-url", "https://gpu.example/tinkex")) as (_, facts):
        for path in ("/api/v1/healthz", "/tinkex/api/v1/healthz"):
            assert ask(facts["url"], path)[0] == 200
        assert ask(facts["url"], "/other/api/v1/healthz")[0] == 404


@needs_engine
def test_the_official_sdk_trades_its_key_for_a_token_behind_a_prefix(command: Command):
    tinker = pytest.importorskip("tinker")
    with started(command("--jwt", "--public-url", "https://gpu.example/tinkex")) as (_, facts):
        client = tinker.ServiceClient(base_url=f"{facts['url']}/tinkex", api_key=facts["api_key"])
        models = client.get_server_capabilities().supported_models
        assert [each.model_name for each in models] == ["tiny/model"]
        me = (
            tinker.RestClient(base_url=f"{facts['url']}/tinkex", api_key=facts["api_key"]).whoami().result()
        )
        assert (me.user_urn, me.org_urn, me.email) == ("tml:user:local", "tml:organization:local", None)
        client.close("success").result()


@needs_engine
def test_a_held_poll_is_answered_when_the_server_stops(command: Command):
    with started(command("--time", "drain=0")) as (child, facts):
        key = facts["api_key"]

        def post(route: str, body: Any) -> Any:
            status, _, answer = ask(facts["url"], f"/api/v1/{route}", key, body)
            assert status == 200, answer
            return answer

        session = post("create_session", {"tags": [], "user_metadata": None, "sdk_version": "0.36.0"})
        # The engine is still being loaded: the model's creation waits for it.
        made = post(
            "create_model",
            {"session_id": session["session_id"], "model_seq_id": 0, "base_model": "tiny/model",
             "lora_config": {"rank": 4}},
        )  # fmt: skip
        parts = urlsplit(facts["url"])
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        connection.request(
            "POST", "/api/v1/retrieve_future", json.dumps({"request_id": made["request_id"]}),
            {"X-API-Key": key, "content-type": "application/json"},
        )  # fmt: skip
        child.send_signal(signal.SIGINT)
        status = connection.getresponse().status
        assert status in (200, 408)
        connection.close()
        child.communicate(timeout=60)
        assert child.returncode == 0
