"""`ServiceClient.local()`: one server for all who want it, gone with the last of them, however they end."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import io
import json
import os
import pickle
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import tinkex
from tinkex.client import local_server as starting
from tinkex.client.local_files import LocalFiles, own_state
from tinkex.client.local_server import NEEDED, LocalServerError, local_server
from tinkex.config import Config
from tinkex.errors import InvalidArgumentError, TinkerError
from tinkex.testing import make_tiny_model

MISSING = [name for name in NEEDED if find_spec(name) is None]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no locks that can be shared")
needs_engine = pytest.mark.skipif(bool(MISSING), reason=f"a server needs {', '.join(MISSING)}")
SECONDS = 120


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state folder of the server that most tests share."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def shared(model: Path, state: Path) -> Iterator[tinkex.ServiceClient]:
    """A client of a server started by this process."""
    with tinkex.ServiceClient.local(str(model), state=state, telemetry=False) as client:
        yield client
    let_go(state)


def let_go(state: Path) -> None:
    """What the end of this process would do; the server is then ended by itself."""
    os.close(starting._used.pop(state))
    assert starting._started.pop(state).wait(SECONDS) == 0


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def program(code: str, *words: str | Path, **settings: object) -> subprocess.Popen[str]:
    """A program that starts or joins a server, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **settings,  # type: ignore[call-overload]
    )


JOIN = """
import os, signal, sys, tinkex
from tinkex.client.local_server import local_server
model, state = sys.argv[1:3]
server = local_server(model, state=state)
print(server.pid, flush=True)
"""


def sampled(client: tinkex.ServiceClient) -> int:
    sampler = client.create_sampling_client(base_model="tiny")
    answer = sampler.sample(
        tinkex.ModelInput.from_ints([1, 2, 3]), 2, tinkex.SamplingParams(max_tokens=3)
    ).result(SECONDS)
    return len(answer.sequences)


# ---- one server for everyone


@needs_engine
def test_it_trains_saves_and_samples(shared: tinkex.ServiceClient):
    trainer = shared.create_lora_training_client("tiny", rank=4, seed=1)
    datum = tinkex.Datum(
        tinkex.ModelInput.from_ints([5, 6, 7]), {"target_tokens": [6, 7, 8], "weights": [1.0, 1.0, 1.0]}
    )
    losses = []
    for _ in range(3):
        step = trainer.forward_backward([datum], "cross_entropy")
        trainer.optim_step(tinkex.AdamParams(learning_rate=1e-2))
        losses.append(step.result(SECONDS).metrics["loss:sum"])
    assert losses[2] < losses[0]
    assert trainer.save_state("kept").result(SECONDS).path.startswith("tinker://")
    assert sampled(shared) == 2


@needs_engine
def test_the_same_server_is_meant_wherever_it_is_asked_for(
    shared: tinkex.ServiceClient, model: Path, state: Path, monkeypatch: pytest.MonkeyPatch
):
    url = shared.config.base_url
    assert url.startswith("http://127.0.0.1:")

    async def later() -> str:
        client = await tinkex.ServiceClient.local_async(str(model), state=state)
        assert (await client.get_server_capabilities_async()).supported_models[0].model_name == "tiny"
        return client.config.base_url

    assert asyncio.run(later()) == url
    found: list[str] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(
                tinkex.ServiceClient.local([f"tiny={model}"], state=state).config.base_url
            )
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert found == [url] * 4
    # A proxy and a key for the world outside have nothing to do with it.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("TINKER_API_KEY", "tml-of-another-service")
    monkeypatch.setenv("TINKER_CREDENTIAL_CMD", "exit 1")
    monkeypatch.setenv("TINKER_BASE_URL", "local")
    config = Config.resolve(local_models=(str(model),), local_state=str(state))
    rest = tinkex.RestClient(config=config)
    assert rest.holder.connection.config.base_url == url
    assert rest.list_training_runs().result(SECONDS).cursor.total_count >= 0
    assert sampled(tinkex.ServiceClient(config=config)) == 2


@needs_engine
def test_another_process_joins_and_leaves(shared: tinkex.ServiceClient, model: Path, state: Path):
    pid = LocalFiles(state).holder()
    other = program(JOIN + "print(len(tinkex.RestClient(base_url=server.url, api_key=server.key.reveal())"
                    ".list_training_runs().result().training_runs) >= 0)", model, state)  # fmt: skip
    out, err = other.communicate(timeout=SECONDS)
    assert (out.split(), err) == ([str(pid), "True"], "")
    assert sampled(shared) == 2


@needs_engine
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_uses_it_too(model: Path, state: Path, shared: tinkex.ServiceClient):
    done = program(
        JOIN
        + """
client = tinkex.ServiceClient.local(model, state=state, telemetry=False)
sampler = client.create_sampling_client(base_model="tiny")
prompt, params = tinkex.ModelInput.from_ints([1, 2]), tinkex.SamplingParams(max_tokens=1)
child = os.fork()
again = tinkex.ServiceClient.local(model, state=state, telemetry=False)
assert again.config.base_url == client.config.base_url
assert len(sampler.sample(prompt, 1, params).result(60).sequences) == 1
if child == 0:
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""",
        model,
        state,
    )
    _, err = done.communicate(timeout=SECONDS)
    assert (done.returncode, err) == (0, "")


@needs_engine
def test_a_pickled_sampler_finds_the_key(shared: tinkex.ServiceClient, tmp_path: Path):
    sampler = shared.create_sampling_client(base_model="tiny")
    assert shared.config.api_key is not None
    assert shared.config.api_key.reveal().encode() not in pickle.dumps(sampler)
    (tmp_path / "sampler").write_bytes(pickle.dumps(sampler))
    done = program(
        """
        import pickle, sys, tinkex
        sampler = pickle.loads(open(sys.argv[1], "rb").read())
        params = tinkex.SamplingParams(max_tokens=2)
        print(len(sampler.sample(tinkex.ModelInput.from_ints([1]), 1, params).result(60).sequences))
        """,
        tmp_path / "sampler",
    )
    assert done.communicate(timeout=SECONDS) == ("1\n", "")


@needs_engine
def test_only_its_owner_can_read_the_key(shared: tinkex.ServiceClient, state: Path):
    assert stat.S_IMODE((state / "local" / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    key = (state / "local" / "key").read_text().strip()
    assert (
        key
        not in (state / "local" / "server.json").read_text() + (state / "local" / "server.log").read_text()
    )


@needs_engine
def test_while_it_runs_it_is_what_it_is(shared: tinkex.ServiceClient, model: Path, state: Path):
    with pytest.raises(InvalidArgumentError, match=r"was started with --model tiny=.*state=…"):
        tinkex.ServiceClient.local(f"other={model}", state=state)
    with pytest.raises(InvalidArgumentError, match="was started with"):
        tinkex.ServiceClient.local(str(model), state=state, options=["--threads", "2"])
    assert sampled(shared) == 2


# ---- the end


@needs_engine
def test_it_goes_with_the_last_of_those_who_use_it_even_if_they_crash(model: Path, tmp_path: Path):
    hold = JOIN + "sys.stdin.readline(); os.kill(os.getpid(), signal.SIGKILL)"
    # Both at once: only one of them starts a server.
    users = [program(hold, model, tmp_path) for _ in range(2)]
    told = [user.stdout.readline().strip() for user in users if user.stdout is not None]
    assert told[0] == told[1], [user.stderr.read() for user in users if user.stderr is not None]
    server = int(told[0])
    users[0].communicate("go\n", timeout=SECONDS)
    assert users[0].returncode == -signal.SIGKILL
    # The server is there for the other, and for whoever comes.
    assert local_server(str(model), state=tmp_path).pid == server
    users[1].communicate("go\n", timeout=SECONDS)
    assert sampled(tinkex.ServiceClient.local(str(model), state=tmp_path, telemetry=False)) == 2
    os.close(starting._used.pop(tmp_path))
    until(lambda: not alive(server))
    assert LocalFiles(tmp_path).running() is None
    assert "nobody uses this server any more" in (tmp_path / "local" / "server.log").read_text()


@needs_engine
def test_an_interrupt_of_the_program_is_not_one_of_the_server(model: Path, tmp_path: Path):
    user = program(
        JOIN
        + """
import time
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    client = tinkex.ServiceClient.local(model, state=state, telemetry=False)
    print(len(client.get_server_capabilities().supported_models))
""",
        model,
        tmp_path,
        start_new_session=True,
    )
    assert user.stdout is not None
    server = int(user.stdout.readline())
    assert user.stdout.readline() == "ready\n"
    os.killpg(user.pid, signal.SIGINT)  # as a terminal does
    assert user.communicate(timeout=SECONDS) == ("1\n", "")
    until(lambda: not alive(server))


@needs_engine
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_one_that_died_is_started_again_with_what_was_saved(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
):
    first = tinkex.ServiceClient.local(str(model), state=tmp_path, telemetry=False)
    trainer = first.create_lora_training_client("tiny", rank=4)
    saved = trainer.save_state("kept").result(SECONDS).path
    server, facts = LocalFiles(tmp_path).holder(), LocalFiles(tmp_path).running()
    assert server is not None
    os.kill(server, signal.SIGKILL)
    until(lambda: LocalFiles(tmp_path).holder() is None)
    if when == "meanwhile":  # it was still there when it was looked for
        seen, running = [facts], LocalFiles.running
        monkeypatch.setattr(LocalFiles, "running", lambda self: seen.pop() if seen else running(self))
    with tinkex.ServiceClient.local(str(model), state=tmp_path, telemetry=False) as client:
        assert LocalFiles(tmp_path).holder() not in (server, None)
        again = client.create_training_client_from_state(saved)
        assert again.get_info().model_data.model_name == "tiny"
    first.close().result(SECONDS)
    let_go(tmp_path)


# ---- what keeps it from starting


class Notebook(io.StringIO):
    """What a kernel has for stderr, as far as it can be told."""

    __module__ = "ipykernel.iostream"


@pytest.mark.parametrize(("stream", "told"), [(Notebook, True), (io.StringIO, False)])
def test_a_notebook_is_told_how_long_it_takes(
    stream: type[io.StringIO], told: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "stderr", stream())
    with starting._telling("nano") as waiting:
        for _ in range(5):
            waiting()
    said = sys.stderr.getvalue()
    assert bool(said) == told
    if told:
        assert said.startswith("\rloading nano… 0 s ")
        assert said.count("loading") == 2, "a line that changes, not one for each look"
        assert said.endswith(" s\n")


def test_what_is_not_installed_is_named_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(starting, "find_spec", lambda name: None if name in ("torch", "uvicorn") else 1)
    with pytest.raises(
        TinkerError, match=r'not installed here \(uvicorn, torch\): pip install "tinkex\[server\]"'
    ):
        tinkex.ServiceClient.local(state=tmp_path / "s")
    assert not (tmp_path / "s").exists()


@needs_engine
def test_a_model_that_is_not_there_is_refused_at_once(tmp_path: Path):
    with pytest.raises(InvalidArgumentError, match=r"'nope'.*Known here: .*nano"):
        tinkex.ServiceClient.local("nope", state=tmp_path / "s")
    with pytest.raises(InvalidArgumentError, match="needs a model"):
        tinkex.ServiceClient.local([], state=tmp_path / "s")
    assert not (tmp_path / "s").exists()


@needs_engine
def test_a_model_that_cannot_be_loaded_is_told_with_the_log(model: Path, tmp_path: Path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in model.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    (broken / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(
        LocalServerError, match=r"its engine does not start; the end of .*(?s:.*)SafetensorError"
    ):
        tinkex.ServiceClient.local(str(broken), state=tmp_path / "s")
    assert LocalFiles(tmp_path / "s").holder() is None
    assert tmp_path / "s" not in starting._used


@needs_engine
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--port", "70000"], r"--port: 70000 must be .* at most 65535 \(see"),
        (["--no-such"], "unrecognized"),
    ],
)
def test_what_the_server_refuses_is_its_own_word(
    model: Path, tmp_path: Path, options: list[str], said: str
):
    with pytest.raises(LocalServerError, match=f"^the local server could not start: .*{said}"):
        tinkex.ServiceClient.local(str(model), state=tmp_path, options=options)


def test_a_folder_somebody_else_s_server_has_is_refused(tmp_path: Path, model: Path):
    if MISSING:
        pytest.skip("needs a server")
    (tmp_path / "lock").write_text(f"{os.getpid()}\n")
    with (tmp_path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(LocalServerError, match=f"in use by process {os.getpid()}"):
            tinkex.ServiceClient.local(str(model), state=tmp_path)


def test_without_a_home_a_state_folder_must_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(starting, "find_spec", lambda name: 1)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    with pytest.raises(LocalServerError, match="pass state="):
        local_server("nano")


@needs_engine
def test_what_takes_too_long_is_ended(model: Path, tmp_path: Path):
    with pytest.raises(LocalServerError, match="it took too long"):
        local_server(str(model), state=tmp_path, timeout=0)
    assert LocalFiles(tmp_path).holder() is None


# ---- names and places


def test_each_set_of_models_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    one, two = Path("/m/one"), Path("/m/two")
    here = own_state({"a/b": one})
    assert here.name.startswith("a_b-")
    assert tmp_path in here.parents
    assert here == own_state({"a/b": one})
    assert (
        len({here, own_state({"a/b": two}), own_state({"a": one}), own_state({"a/b": one, "a": one})}) == 4
    )
    assert own_state({"a": one, "b": two}) == own_state({"b": two, "a": one})
    monkeypatch.setenv("TINKEX_STATE", str(tmp_path / "elsewhere"))
    assert tmp_path / "elsewhere" in own_state({"a": one}).parents


def test_the_environment_says_which_models():
    assert Config.resolve(environ={"TINKER_BASE_URL": "local"}).local_models == ("nano",)
    environ = {"TINKER_BASE_URL": "local", "TINKEX_MODEL": "nano,other=/m/other"}
    assert Config.resolve(environ=environ).local_models == ("nano", "other=/m/other")


def test_what_is_for_other_servers_is_not_passed_on(monkeypatch: pytest.MonkeyPatch):
    for name in ("TINKER_API_KEY", "TINKEX_PUBLIC_URL", "TINKEX_TLS_CERT", "TINKEX_STATE", "TINKEX_DEVICE"):
        monkeypatch.setenv(name, "x")
    passed = starting._environment()
    assert {name for name in passed if name.startswith(("TINKER_", "TINKEX_"))} == {"TINKEX_DEVICE"}


def test_the_folders_above_are_for_this_user_alone_too(tmp_path: Path):
    before = os.umask(0)
    try:
        LocalFiles(tmp_path / "state" / "tinkex" / "local" / "nano-1").make()
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")} == {0o700}


def test_a_record_of_a_server_that_is_gone_is_no_server(tmp_path: Path):
    files = LocalFiles(tmp_path)
    files.make()
    files.said.write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": os.getpid()}))
    assert files.running() is None  # nobody has the lock
    (tmp_path / "lock").write_text("1\n")
    with (tmp_path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert files.running() is None  # another process has
        (tmp_path / "lock").write_text(f"{os.getpid()}\n")
        assert files.running() == {"url": "http://127.0.0.1:1", "pid": os.getpid()}
        files.said.write_text('{"url": ')
        assert files.running() is None  # it is being written
    assert files.key() == files.key()
