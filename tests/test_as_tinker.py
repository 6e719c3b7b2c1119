"""Programs written for the official SDK, run on ours, in processes of their own."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinkex.testing import FakeServer, FakeService

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
WHICH = "import tinker, tinkex; print(tinker.types is tinkex.types, tinker.types.Datum is tinkex.Datum)"


def run(
    *arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None, timeout: float = 60.0
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True, text=True, check=False, timeout=timeout, cwd=cwd,
        env={**os.environ, **(env or {})},
    )  # fmt: skip


def as_tinker(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return run("-m", "tinkex.as_tinker", *arguments, **options)  # type: ignore[arg-type]


def output(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_official_sdk_is_installed_here_and_not_what_is_run():
    assert "True" not in output(run("-c", WHICH))
    assert output(as_tinker("-c", WHICH)) == "True True"


def test_a_program_for_the_official_sdk_trains_and_samples():
    with FakeServer(FakeService()) as server:
        env = {"TINKER_BASE_URL": server.base_url, "TINKER_API_KEY": "tml-test", "TINKER_TELEMETRY": "0"}
        done = as_tinker(str(PROGRAMS / "official_program.py"), "--steps", "3", env=env)
        calls = server.service.calls_to("optim_step")
        agents = {call.headers["user-agent"].split("/")[0] for call in server.service.calls}
    assert output(done).splitlines() == [
        "tokens [5, 5]",
        "loss True",
        "version 0.36.0 0.36.0",
        "arguments ['--steps', '3'] __main__",
    ]
    assert len(calls) == 1
    assert agents == {"tinkex"}


# ---- as python would


@pytest.fixture
def program(tmp_path: Path) -> Path:
    folder = tmp_path / "where it lives"
    folder.mkdir()
    (folder / "beside.py").write_text("import tinker\nVALUE = tinker.types.__name__\n")
    path = folder / "prog.py"
    path.write_text(
        "import sys, pathlib, tinker, beside\n"
        "print(__name__, sys.argv[1:], pathlib.Path(sys.argv[0]).name, pathlib.Path(__file__).name)\n"
        "print(beside.VALUE, sys.modules['__main__'].__dict__ is globals())\n"
    )
    return path


def test_a_file_sees_its_arguments_its_name_and_its_neighbours(program: Path, tmp_path: Path):
    lines = output(as_tinker(str(program), "-x", "y", cwd=tmp_path)).splitlines()
    assert lines == ["__main__ ['-x', 'y'] prog.py prog.py", "tinkex.types True"]


def test_a_module_is_found_from_the_current_folder(program: Path):
    lines = output(as_tinker("-m", "prog", "a", cwd=program.parent)).splitlines()
    assert lines == ["__main__ ['a'] prog.py prog.py", "tinkex.types True"]


def test_a_package_is_run_by_its_main_module(tmp_path: Path):
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("from . import part; print(part.tinker.__name__, __package__)")
    (package / "part.py").write_text("import tinker")
    assert output(as_tinker("-m", "pack", cwd=tmp_path)) == "tinker pack"
    assert output(as_tinker(str(program_folder(tmp_path)), cwd=tmp_path)) == "folder tinker"


def program_folder(where: Path) -> Path:
    folder = where / "folder"
    folder.mkdir()
    (folder / "__main__.py").write_text("import tinker; print('folder', tinker.__name__)")
    return folder


def test_a_module_of_the_sdk_itself_can_be_run():
    contract = (HERE.parent / "docs" / "contract.json").read_text()
    assert output(as_tinker("-m", "tinker.wire.contract")) == contract.strip()


def test_text_is_run_with_its_arguments():
    assert output(as_tinker("-c", "import sys; print(sys.argv, __name__)", "a")) == "['-c', 'a'] __main__"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit(7)", 7),
        ("import sys; sys.exit('sorry')", 1),
        ("raise ValueError('x')", 1),
        ("pass", 0),
    ],
)
def test_exit_codes_are_the_programs(code: str, status: int, tmp_path: Path):
    path = tmp_path / "end.py"
    path.write_text(code)
    assert as_tinker(str(path)).returncode == status
    assert as_tinker("-c", code).returncode == status


@pytest.mark.parametrize("arguments", [[], ["-m"], ["-c"], ["no_such_file.py"]])
def test_nothing_to_run_is_an_error(arguments: list[str]):
    done = as_tinker(*arguments)
    assert done.returncode == 2
    assert "as_tinker" in done.stderr


def test_help_says_how():
    done = as_tinker("--help")
    assert done.returncode == 0
    assert "prog.py | -m module | -c code" in done.stderr


# ---- names and modules


@pytest.mark.parametrize(
    "statement",
    [
        "import tinker.types.tensor_data as a, tinkex.types.tensor_data as b",
        "import tinker.lib.retry_handler as a; b = sys.modules['tinkex.lib.retry_handler']",
        "from tinker.proto import tinker_public_pb2 as a; from tinkex.proto import tinker_public_pb2 as b",
        "import tinker._exceptions as a, tinkex._exceptions as b",
        "from tinker import errors as a; from tinkex import errors as b",
        "from tinker import ServiceClient as a; from tinkex.client.service import ServiceClient as b",
        "import tinker; a = tinker.lib.public_interfaces.APIFuture; from tinkex import APIFuture as b",
        "import tinker.client.portal as a, tinkex.client.portal as b",
    ],
)  # fmt: skip
def test_everything_is_the_same_object(statement: str):
    assert output(as_tinker("-c", f"import sys; {statement}; print(a is b)")) == "True"


def test_every_type_can_be_had_from_the_module_the_official_package_has_for_it():
    official = Path(importlib.util.find_spec("tinker.types").origin or "").parent  # type: ignore[union-attr]
    wanted = {
        path.stem: [
            node.name
            for node in ast.parse(path.read_text("utf-8")).body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        ]
        for path in official.glob("[a-z]*.py")
        if path.stem not in ("billing_usage_request", "current_checkpoint_storage_usage_request")
        and not path.stem.endswith("_test")
    }
    assert len(wanted) > 90
    program = (
        "import importlib, json, sys, tinkex\n"
        "for module, names in json.loads(sys.argv[1]).items():\n"
        "    found = importlib.import_module(f'tinker.types.{module}')\n"
        "    for name in names:\n"
        "        assert getattr(found, name) is getattr(tinkex.types, name), (module, name)\n"
        "from tinker.types.sampling_params import SamplingParams\n"
        "print(SamplingParams is tinkex.SamplingParams)"
    )
    assert output(as_tinker("-c", program, json.dumps(wanted))) == "True"


def test_modules_keep_their_own_names_and_specs():
    code = (
        "import tinker.types.datum, tinkex.types.datum as own, importlib, warnings\n"
        "warnings.simplefilter('error')\n"
        "print(own.__name__, own.__spec__.name, own.__package__, importlib.reload(own) is own)"
    )
    assert output(as_tinker("-c", code)) == "tinkex.types.datum tinkex.types.datum tinkex.types True"


def test_names_that_do_not_exist_fail_as_they_should():
    code = """
import tinker
for statement in (
    "import tinker.nothing", "from tinker import nothing", "tinker.nothing", "import tinker._base_client"
):
    try:
        exec(statement)
    except (ImportError, AttributeError) as error:
        print(type(error).__name__, error)
"""
    lines = output(as_tinker("-c", code)).splitlines()
    assert lines[0] == "ModuleNotFoundError No module named 'tinker.nothing'"
    assert lines[1].startswith("ImportError cannot import name 'nothing' from 'tinker'")
    assert lines[2] == "AttributeError module 'tinker' has no attribute 'nothing'"
    assert lines[3].startswith("ImportError tinkex has no _base_client")


def test_importing_stays_light():
    heavy = "['numpy', 'torch', 'pydantic', 'httpx', 'aiohttp']"
    code = f"import sys, tinker, tinker.types; print([name for name in {heavy} if name in sys.modules])"
    assert output(as_tinker("-c", code)) == "[]"


def test_a_replaced_name_is_seen_by_the_program():
    code = "import tinker; tinker.ServiceClient = 5; from tinker import ServiceClient; print(ServiceClient)"
    assert output(as_tinker("-c", code)) == "5"


def test_star_import_gives_the_official_names():
    code = "from tinker import *; print(ServiceClient.__name__, types.__name__, Datum.__name__)"
    assert output(as_tinker("-c", code)) == "ServiceClient tinkex.types Datum"


# ---- in one's own program, and in its children


def test_install_before_the_first_import():
    code = "import tinkex.as_tinker as a; a.install(); a.install(); " + WHICH
    assert output(run("-c", code)) == "True True"


def test_install_after_the_official_one_was_imported_is_refused():
    done = run("-c", "import tinker, tinkex.as_tinker; tinkex.as_tinker.install()")
    assert done.returncode == 1
    assert "ImportError: tinker is imported already" in done.stderr


def test_a_program_may_install_it_again():
    assert (
        output(as_tinker("-c", f"import tinker, tinkex.as_tinker as a; a.install(); {WHICH}"))
        == "True True"
    )


def test_processes_the_program_starts_are_included(tmp_path: Path):
    path = tmp_path / "pool.py"
    path.write_text(
        "import concurrent.futures, multiprocessing, subprocess, sys\n"
        "import tinker, tinkex\n"
        "def check(_):\n"
        "    return tinker.types is tinkex.types\n"
        "if __name__ == '__main__':\n"
        "    spawn = multiprocessing.get_context('spawn')\n"
        "    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:\n"
        "        print(list(pool.map(check, [1])))\n"
        f"    subprocess.run([sys.executable, '-c', {WHICH!r}], check=True)\n"
    )
    assert output(as_tinker(str(path))).splitlines() == ["[True]", "True True"]


def test_an_interpreter_without_this_package_gets_the_official_one(tmp_path: Path):
    import tinkex

    shadow = Path(tinkex.__file__).parent / "_shadow"
    hidden = (
        "import sys; sys.modules['tinkex'] = None; import tinker; print('site-packages' in tinker.__file__)"
    )
    assert output(run("-c", hidden, env={"PYTHONPATH": str(shadow)})) == "True"


# ---- other people's code


@pytest.fixture(scope="session")
def cookbook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cookbook")
    command = ["-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), "tinker-cookbook==0.5.8"]
    try:
        done = run(*command, timeout=180)
    except subprocess.TimeoutExpired:
        pytest.skip("tinker-cookbook cannot be installed here: pip took too long")
    if done.returncode != 0:
        pytest.skip(f"tinker-cookbook cannot be installed here: {done.stderr[-200:]}")
    return folder


@pytest.mark.slow
def test_every_name_the_cookbook_takes_from_the_sdk_is_there(cookbook: Path):
    found = json.loads(output(as_tinker(str(PROGRAMS / "resolve_names.py"), str(cookbook))))
    assert found["files"] > 100
    assert found["names"] > 700
    assert found["missing"] == {}


@pytest.mark.slow
def test_the_cookbooks_modules_import_as_far_as_their_other_needs_are_met(cookbook: Path):
    done = as_tinker(
        str(PROGRAMS / "import_all.py"), str(cookbook), timeout=300, env={"HF_HUB_OFFLINE": "1"}
    )
    found = json.loads(output(done))
    assert found["failed"] == {}
    assert len(found["imported"]) >= 30
    assert {"tinker_cookbook.checkpoint_utils", "tinker_cookbook.capture.instrument"} <= {
        *found["imported"]
    }
