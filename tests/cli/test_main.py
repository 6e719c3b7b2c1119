"""The command line as a whole: what it loads, how it fails, what it exits with."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tinkex
from tinkex.cli import version
from tinkex.cli.main import COMMANDS
from tinkex.cli.output import CommandError, Output
from tinkex.errors import TinkerError

from .running import run, spawn

HEAVY = {
    "aiohttp", "asyncio", "dataclasses", "google.protobuf", "inspect", "logging", "msgspec", "numpy",
    "orjson", "socket", "ssl", "subprocess", "tomllib", "torch", "transformers", "uvicorn",
}  # fmt: skip


def loaded_by(*words: str) -> set[str]:
    """The modules a fresh interpreter loads for a command."""
    return loaded_by_code(f"from tinkex.cli.main import main\nmain({list(words)!r})")


def loaded_by_code(program: str) -> set[str]:
    """The modules a fresh interpreter loads for a program."""
    code = (
        "import sys, json; bare = set(sys.modules)\n"
        f"{program}\n"
        "sys.stderr.write(json.dumps(sorted(set(sys.modules) - bare)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr))


@pytest.mark.parametrize("words", [["--help"], [], ["--version"], ["--json", "version"]])
def test_help_and_version_load_next_to_nothing(words: list[str]):
    names = loaded_by(*words)
    assert "tinkex.cli.main" in names
    assert names.isdisjoint(HEAVY)
    own = {name for name in names if name.startswith("tinkex.")}
    assert own - {"tinkex._lazy", "tinkex._version"} <= {
        "tinkex.cli", "tinkex.cli.main", "tinkex.cli.output", "tinkex.cli.version"
    }  # fmt: skip


def test_no_parser_loads_a_client():
    names = loaded_by_code(
        "from tinkex.cli.main import COMMANDS, parser_of\n"
        "for name in COMMANDS:\n"
        "    if name not in ('serve', 'conformance', 'doctor'): parser_of(name)"
    )
    assert {"tinkex.cli.train", "tinkex.cli.checkpoint", "tinkex.cli.merge"} <= names
    assert names.isdisjoint(HEAVY - {"dataclasses", "inspect", "logging", "socket", "subprocess"})
    assert not {name for name in names if name.startswith(("tinkex.client", "tinkex.types", "tinkex.wire"))}


def test_keys_load_no_server():
    names = loaded_by("keys", "list", "--state", "does-not-exist")
    assert names.isdisjoint(
        {"asyncio", "numpy", "msgspec", "uvicorn", "torch", "tinkex.wire", "tinkex.types"}
    )


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]):
    done = run(capsys, "--help")
    assert done.code == 0
    assert done.err == ""
    for name, (_, does) in COMMANDS.items():
        assert f"{name} " in done.out
        assert does in done.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str):
    done = spawn(name, "--help")
    assert done.code == 0
    assert f"usage: tinkex {name}" in done.out
    assert "--json" in done.out


def test_without_a_command_it_is_not_understood(capsys: pytest.CaptureFixture[str]):
    done = run(capsys)
    assert done.code == 2
    assert "usage: tinkex" in done.out


def test_the_package_and_the_script_are_the_same_command():
    assert spawn("version").out == f"tinkex {tinkex.__version__}\n"
    done = subprocess.run(
        [sys.executable, "-c", "from tinkex.cli.main import main; raise SystemExit(main(['-V']))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"tinkex {tinkex.__version__}\n"


@pytest.mark.parametrize(
    "words",
    [["--json", "version"], ["version", "--json"], ["-f", "json", "version"], ["--format=json", "version"]],
)
def test_json_may_be_asked_for_anywhere(capsys: pytest.CaptureFixture[str], words: list[str]):
    done = run(capsys, *words)
    assert done.code == 0
    assert done.data["version"] == tinkex.__version__


def test_letters_that_the_output_has_not_are_written_as_numbers(tmp_path: Path):
    place = ("--state", str(tmp_path))
    key = spawn("keys", "add", "ann", "-q", *place).out.strip()
    done = spawn("keys", "list", *place, environ={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.code, done.err) == (0, "")
    assert f"\\u2026{key[-4:]}" in done.out


def test_quiet_says_only_what_matters(capsys: pytest.CaptureFixture[str]):
    assert run(capsys, "-q", "version").out == f"{tinkex.__version__}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sreve"], "no command 'sreve'; did you mean 'serve'?"),
        (["xyzzy"], "no command 'xyzzy' (see"),
        (["keys"], "the following arguments are required: COMMAND"),
        (["keys", "lsit"], "invalid choice: 'lsit'"),
        (["keys", "add"], "the following arguments are required: NAME"),
        (["--wrong"], "unrecognized arguments: --wrong"),
        (["version", "extra"], "unrecognized arguments: extra"),
        (["serve", "--por", "1"], "unrecognized arguments: --por 1"),
        (["-f", "yaml", "version"], "invalid choice: 'yaml'"),
    ],
)
def test_what_is_not_understood_is_one_line_and_exits_with_2(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
):
    done = run(capsys, *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1
    assert "--help`" in done.err
    if "yaml" not in words:
        done = run(capsys, "--json", *words)
        assert (done.code, done.out) == (2, "")
        assert done.problem["exit_code"] == 2
        assert "--help`" in done.problem["hint"]


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(arguments: argparse.Namespace, out: Output) -> int:
        raise error

    monkeypatch.setattr(version, "_version", fail)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (CommandError("it broke", "mend it"), 1, "tinkex: it broke (mend it)\n"),
        (CommandError("two\nlines"), 1, "tinkex: two lines\n"),
        (TinkerError("no such thing"), 1, "tinkex: no such thing\n"),
        (FileNotFoundError(2, "No such file or directory", "some.json"), 1,
         "tinkex: some.json: No such file or directory\n"),
        (KeyError("x"), 1,
         "tinkex: unexpected KeyError: 'x' (set TINKEX_DEBUG=1 to see where it comes from)\n"),
        (KeyboardInterrupt(), 130, "tinkex: interrupted\n"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    said: str,
):
    failing(monkeypatch, error)
    done = run(capsys, "version")
    assert (done.code, done.out, done.err) == (code, "", said)
    done = run(capsys, "version", "--json")
    assert done.code == code
    assert done.problem["error"]


def test_where_a_mistake_comes_from_can_be_seen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    failing(monkeypatch, KeyError("x"))
    monkeypatch.setenv("TINKEX_DEBUG", "1")
    with pytest.raises(KeyError):
        run(capsys, "version")


def test_a_reader_that_goes_away_is_no_traceback():
    code = "import sys; from tinkex.cli.main import main; sys.exit(main(['serve', '--help']))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == ""


# ---- the sink


@pytest.mark.parametrize("mode", ["table", "json", "quiet"])
def test_tables(capsys: pytest.CaptureFixture[str], mode: str):
    rows = [{"id": 1, "name": "ann", "on": True}, {"id": 20, "name": None, "on": False}]
    out = Output(mode)  # type: ignore[arg-type]
    out.table({"id": "ID", "name": "NAME", "on": "ON"}, rows, name="things")
    shown = capsys.readouterr().out
    if mode == "json":
        assert json.loads(shown) == {"things": rows}
    elif mode == "quiet":
        assert shown == "1\n20\n"
    else:
        assert shown == "ID  NAME  ON\n1   ann   yes\n20  -     no\n"


def test_an_empty_table(capsys: pytest.CaptureFixture[str]):
    Output().table({"id": "ID"}, [], name="things", empty="nothing here")
    Output("quiet").table({"id": "ID"}, [], name="things", empty="nothing here")
    assert capsys.readouterr().out == "nothing here\n"


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda out: out.warn("careful"), "careful"),
        (lambda out: out.error(CommandError("bad", "do x")), "bad"),
    ],
)
def test_what_is_not_a_result_goes_to_stderr(
    capsys: pytest.CaptureFixture[str], write: Callable[[Output], None], said: str
):
    write(Output())
    write(Output("json"))
    done = capsys.readouterr()
    assert done.out == ""
    plain, data = done.err.splitlines()
    assert said in plain
    assert said in json.loads(data).values()


def test_a_record_for_people_stands_below_each_other(capsys: pytest.CaptureFixture[str]):
    Output().record({"id": 3, "owner": "ann"}, essential="id")
    assert capsys.readouterr().out == "id     3\nowner  ann\n"
