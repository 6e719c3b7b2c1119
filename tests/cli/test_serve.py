"""`tinkex serve`: from arguments, environment and file to a server's options."""

from __future__ import annotations

import dataclasses
import io
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tinkex.config import Secret
from tinkex.server import serve as serve_module
from tinkex.server.options import Limits, ModelSpec, ServerOptions, Times
from tinkex.server.settings import HIDDEN, SETTINGS, meanings

from .running import Ran, run, spawn


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path
):
    """Run `tinkex serve` up to the point where the server would start, and give its options."""
    monkeypatch.setattr("tinkex.cli.serve.find_spec", lambda name: object())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    seen: list[tuple[ServerOptions, str]] = []

    def start(options: ServerOptions, *, mode: str, stdout: io.TextIOBase) -> int:
        seen.append((options, mode))
        return 0

    monkeypatch.setattr(serve_module, "run", start)

    def serve(*words: str, models: bool = True) -> tuple[Ran, ServerOptions | None]:
        seen.clear()
        given = ["--model", f"tiny={model}"] if models else []
        done = run(capsys, "serve", *given, *words)
        return done, seen[0][0] if seen else None

    return serve


def options_of(started: Any, *words: str) -> ServerOptions:
    done, options = started(*words)
    assert (done.code, done.out) == (0, ""), done.err
    assert options is not None
    return options


# ---- every option


def test_there_is_an_argument_for_every_option(started, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as left:
        run(capsys, "serve", "--help")
    assert left.value.code == 0
    shown = capsys.readouterr().out
    for field in dataclasses.fields(ServerOptions):
        if field.name in HIDDEN | {"limits", "times", "models"}:
            continue
        assert f"--{field.name.replace('_', '-')}" in shown
    for field in (*dataclasses.fields(Limits), *dataclasses.fields(Times)):
        assert f"  {field.name}={field.default}" in shown
    assert "--model NAME[=FOLDER]" in shown
    flat = " ".join(shown.split())
    for setting, meaning in meanings().items():
        if setting not in {"models", *HIDDEN}:
            assert meaning[1:].rstrip(".").split("; ")[0] in flat


def test_every_option_says_what_it_is_for():
    assert set(meanings()) - {f"{name}" for name in HIDDEN} == set(SETTINGS)


def test_without_arguments_all_is_as_the_options_say(started, model: Path, tmp_path: Path):
    options = options_of(started)
    assert options == ServerOptions((ModelSpec("tiny", model),), tmp_path / "xdg" / "tinkex")


def test_all_arguments_arrive(started, tmp_path: Path):
    for name in ("cert", "key"):
        (tmp_path / name).write_text("x")
    options = options_of(
        started,
        *("--host", "0.0.0.0", "--port", "0", "--state", str(tmp_path / "s"), "--owner", "ann"),
        *("--public-url", "HTTPS://Gpu.Example:443/tinkex/", "--device", "cuda:1", "--dtype", "bfloat16"),
        *("--threads", "3", "--deterministic", "--trust-remote-code", "--durability", "power", "--jwt"),
        *("--parallel-chunks", "--no-server-losses", "--snapshot-steps", "4", "--snapshot-bytes", "64MiB"),
        *("--snapshot-seconds", "0.5"),
        *("--log-level", "debug", "--rates", "training=1.5,sampling_sample=2", "--api-key", "tml-abc"),
        *("--limit", "tokens=1000", "--limit", "body_bytes=1 GB", "--limit", "queued-bytes=10k"),
        *("--time", "hold=2.5", "--time", "drain=0"),
        *("--tls-cert", str(tmp_path / "cert"), "--tls-key", str(tmp_path / "key")),
    )
    assert options == ServerOptions(
        models=options.models,
        state=tmp_path / "s",
        host="0.0.0.0",
        port=0,
        public_url="https://gpu.example/tinkex",
        tls_cert=tmp_path / "cert",
        tls_key=tmp_path / "key",
        api_key=Secret("tml-abc"),
        owner="ann",
        device="cuda:1",
        dtype="bfloat16",
        threads=3,
        deterministic=True,
        trust_remote_code=True,
        durability="power",
        parallel_chunks=True,
        jwt=True,
        server_losses=False,
        snapshot_steps=4,
        snapshot_seconds=0.5,
        snapshot_bytes=64 << 20,
        log_level="debug",
        rates={"training": 1.5, "sampling_sample": 2.0},
        limits=Limits(tokens=1000, body_bytes=1 << 30, queued_bytes=10 << 10),
        times=Times(hold=2.5, drain=0.0),
    )


def test_a_key_as_an_argument_is_warned_of_and_not_shown(started):
    done, options = started("--api-key", "tml-secret-thing")
    assert options is not None
    assert "TINKER_API_KEY" in done.err
    assert "secret-thing" not in done.err + done.out + repr(options)


# ---- models


def test_several_names_may_share_a_folder(started, model: Path):
    options = options_of(started, "--model", f"Qwen/Qwen3-8B={model}", "--model", str(model))
    assert [spec.name for spec in options.models] == ["tiny", "Qwen/Qwen3-8B", "model"]
    assert {spec.folder for spec in options.models} == {model}


def test_a_model_by_name_is_found_on_the_shelf(
    started, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TINKEX_MODELS", str(tmp_path))
    done, options = started("--model", "model", models=False)
    assert done.code == 0
    assert options is not None
    assert options.models == (ModelSpec("model", model),)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no model was named; say --model NAME=FOLDER"),
        (["--model", "nope"], "'nope': no such folder"),
        (["--model", "a=/does/not/exist"], "there is no folder /does/not/exist"),
        (["--model", "=x"], "--model: ['=x'] is not"),
        (["--model", "a="], "--model: ['a='] is not"),
    ],
)
def test_models_that_are_not_there(started, words: list[str], said: str):
    done, options = started(*words, models=False)
    assert done.code == 2
    assert options is None
    assert said in done.err
    assert done.err.count("\n") == 1


def test_a_name_is_taken_once(started, model: Path):
    done, _ = started("--model", f"tiny={model}")
    assert done.code == 2
    assert "'tiny' was named twice" in done.err


# ---- who wins


def test_an_argument_wins_over_the_environment_and_that_over_the_file(
    started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = tmp_path / "server.toml"
    config.write_text(
        'port = 1\nhost = "file"\nowner = "file"\n[limits]\ntokens = 1\nrank = 1\ndatums = 1\n'
    )
    monkeypatch.setenv("TINKEX_PORT", "2")
    monkeypatch.setenv("TINKEX_HOST", "environment")
    monkeypatch.setenv("TINKEX_LIMIT_TOKENS", "2")
    monkeypatch.setenv("TINKEX_LIMIT_RANK", "2")
    monkeypatch.setenv("TINKEX_TIME_HOLD", "")  # says nothing
    options = options_of(started, "--config", str(config), "--port", "3", "--limit", "tokens=3")
    assert (options.port, options.host, options.owner) == (3, "environment", "file")
    assert (options.limits.tokens, options.limits.rank, options.limits.datums) == (3, 2, 1)
    assert options.times == Times()


def test_a_flag_can_be_switched_off_again(started, tmp_path: Path):
    config = tmp_path / "server.toml"
    config.write_text("jwt = true\n")
    assert options_of(started, "--config", str(config)).jwt
    assert not options_of(started, "--config", str(config), "--no-jwt").jwt


def test_the_key_and_the_state_folder_come_from_the_environment(
    started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TINKER_API_KEY", "tml-from-environment")
    monkeypatch.setenv("TINKEX_STATE", str(tmp_path / "elsewhere"))
    done, options = started()
    assert done.err == ""
    assert options is not None
    assert options.api_key == Secret("tml-from-environment")
    assert options.state == tmp_path / "elsewhere"


def test_models_from_file_and_environment(
    started, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = tmp_path / "server.toml"
    for text in (f'models = ["a={model}", "{model}"]', f'[models]\na = "{model}"\nmodel = "{model}"'):
        config.write_text(text)
        _, options = started("--config", str(config), models=False)
        assert options is not None
        assert options.models == (ModelSpec("a", model), ModelSpec("model", model))
    monkeypatch.setenv("TINKEX_MODEL", f"b={model},c={model}")
    _, options = started("--config", str(config), models=False)
    assert options is not None
    assert [spec.name for spec in options.models] == ["b", "c"]


# ---- what is refused


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "abc"], "--port: 'abc' is not a whole number"),
        (["--port", "70000"], "--port: 70000 must be at least 0 and at most 65535"),
        (["--port", "1k"], "--port: '1k' is not a whole number"),
        (["--state", "~no-such-user/x"], "--state: '~no-such-user/x' is not a folder or file that can be"),
        (["--threads", "0"], "--threads: 0 must be at least 1"),
        (["--durability", "none"], "--durability: 'none' is not one of process, power"),
        (["--log-level", "loud"], "not one of debug, info, warning, error"),
        (["--limit", "tokenz=3"], "--limit: there is no 'tokenz'; did you mean 'tokens'?"),
        (["--limit", "tokens"], "--limit tokens: write tokens=VALUE"),
        (["--limit", "tokens=0"], "--limit tokens: 0 must be at least 1"),
        (["--limit", "tokens=-5"], "--limit tokens: -5 must be at least 1"),
        (["--limit", "body_bytes=1x"], "'1x' is not a whole number"),
        (["--time", "hold=nan"], "--time hold: nan must be more than 0"),
        (["--time", "hold=0"], "--time hold: 0 must be more than 0"),
        (["--time", "drain=-1"], "--time drain: -1 must be at least 0"),
        (["--public-url", "gpu.example"], "is not an http:// or https:// address"),
        (["--public-url", "local"], "--public-url: public_url: an http:// or https:// address"),
        (["--owner", "a/b"], "--owner: owner 'a/b'"),
        (["--api-key", "sk-wrong"], "--api-key: a key must begin with 'tml-'"),
        (["--rates", "training=x"], "--rates: 'training=x' is not proper rates"),
        (["--tls-cert", "x"], "needs both a certificate"),
        (["--tls-cert", "x", "--tls-key", "y"], "--tls-cert: tls_cert: there is no file x"),
        (["--config", "/does/not/exist"], "config file /does/not/exist: No such file or directory"),
    ],
)
def test_what_cannot_be_is_one_line(started, words: list[str], said: str):
    done, options = started(*words)
    assert options is None
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "sk-wrong" not in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", "no setting 'prot'; did you mean 'port'?"),
        ("[limits]\ntokns = 1", "no setting 'limits.tokns'; did you mean 'limits.tokens'?"),
        ("[limit]\ntokens = 1", "no setting 'limit'; did you mean 'limits"),
        ("in_process = true", "no setting 'in_process'"),
        ("limits = 3", "no setting 'limits'"),
        ("port = 'x'", ": port: 'x' is not a whole number"),
        ("port = 1.5", ": port: 1.5 is not a whole number"),
        ("port = true", ": port: True is not a whole number"),
        ("jwt = 1", ": jwt: 1 is not yes or no"),
        ("host = 3", ": host: 3 is not a text"),
        ("models = 3", ": models: 3 is not proper models"),
        ("models = []", "is not proper models"),
        ("rates = 3", "is not proper rates"),
        ("port = ", "is not TOML"),
    ],
)
def test_what_a_file_cannot_say(started, tmp_path: Path, text: str, said: str):
    config = tmp_path / "server.toml"
    config.write_text(text)
    done, options = started("--config", str(config))
    assert options is None
    assert done.code == 2
    assert said in done.err
    assert str(config) in done.err


def test_a_key_in_a_file_others_may_read_is_refused(started, tmp_path: Path):
    config = tmp_path / "server.toml"
    config.write_text('api_key = "tml-in-a-file"\n')
    config.chmod(0o644)
    done, options = started("--config", str(config))
    assert options is None
    assert "chmod 600" in done.err
    assert "in-a-file" not in done.err
    config.chmod(0o600)
    assert options_of(started, "--config", str(config)).api_key == Secret("tml-in-a-file")


def test_errors_as_json(started):
    done, _ = started("--json", "--port", "abc")
    assert done.problem == {
        "error": "--port: 'abc' is not a whole number",
        "hint": "see `tinkex serve --help`",
        "exit_code": 2,
    }


def test_what_is_missing_is_told_before_anything_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path
):
    monkeypatch.setattr("tinkex.cli.serve.find_spec", lambda name: None if name == "torch" else object())
    done = run(capsys, "serve", "--model", f"tiny={model}", "--state", str(tmp_path / "state"))
    assert (done.code, done.out) == (1, "")
    assert 'pip install "tinkex[server]"' in done.err
    assert "(torch)" in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "state").exists()


# ---- showing


def test_what_would_be_used_can_be_shown_and_used_again(started, tmp_path: Path, model: Path):
    words = [
        "--port",
        "9",
        "--limit",
        "tokens=7",
        "--rates",
        "training=1.5",
        "--jwt",
        "--api-key",
        "tml-zzz",
    ]
    done, options = started("--print-config", *words)
    assert options is None
    assert done.code == 0
    assert "zzz" not in done.out
    assert "port = 9  # --port" in done.out
    shown = tomllib.loads(done.out)
    assert shown["limits"] == {**dataclasses.asdict(Limits()), "tokens": 7}
    assert shown["times"] == dataclasses.asdict(Times())
    config = tmp_path / "again.toml"
    config.write_text(done.out)
    _, again = started("--config", str(config), models=False)
    expected = dataclasses.replace(options_of(started, *words), api_key=None)
    assert again == expected


def test_what_would_be_used_as_json(started):
    done, _ = started("--print-config", "--json", "--port", "9", "--api-key", "tml-zzz")
    assert done.data["port"] == {"value": 9, "source": "--port"}
    assert done.data["host"] == {"value": "127.0.0.1", "source": "default"}
    assert done.data["api_key"]["value"] == "****"
    assert set(done.data) == set(SETTINGS)


def test_showing_needs_no_model_and_nothing_installed():
    done = spawn("serve", "--print-config", "--json")
    assert done.code == 0
    assert json.loads(done.out)["models"]["value"] is None
