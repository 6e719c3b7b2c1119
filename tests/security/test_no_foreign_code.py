"""Nothing that comes with data is run: no pickle, no code of a folder, of a checkpoint or of a model."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tinkex.cli import merge
from tinkex.cli.diagnosis import machine
from tinkex.models import adding, package_index

SOURCE = Path(__file__).parents[2] / "src" / "tinkex"
UNPICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
ASKED_FOR = {
    ("as_tinker.py", "exec"),  # `python -m tinkex.as_tinker program.py` runs the program it is given
    ("net/credentials.py", "shell"),  # the command of the user's own settings
}
HOSTILE = "import pathlib; pathlib.Path(__file__).parent.joinpath('was-run').touch()\n"


@functools.cache
def source() -> dict[str, ast.AST]:
    """Every module of the package, taken apart."""
    return {
        path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text())
        for path in sorted(SOURCE.rglob("*.py"))
    }


def calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            yield (
                node,
                function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", ""),
            )


def dangers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """What in a module would run or rebuild what it is given."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        yield from ((name, node.lineno) for name in names if name.split(".")[0] in UNPICKLERS)
    for call, name in calls(tree):
        bare = isinstance(call.func, ast.Name)
        owner = getattr(getattr(call.func, "value", None), "id", "")
        if bare and name in ("eval", "exec", "__import__"):
            yield name, call.lineno
        if (owner == "torch" and name in ("load", "jit")) or name in ("unsafe_load", "full_load"):
            yield f"{owner}.{name}", call.lineno
        if owner == "os" and name in ("system", "popen"):
            yield f"os.{name}", call.lineno
        if owner in ("np", "numpy") and name == "load":
            yield "numpy.load", call.lineno
        for keyword in call.keywords:
            if keyword.arg in ("shell", "allow_pickle", "trust_remote_code") and not (
                isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            ):
                yield keyword.arg, call.lineno


def test_the_source_runs_and_unpickles_nothing_it_is_given():
    found = {}
    for place, tree in source().items():
        for what, line in dangers(tree):
            if (place, what) not in ASKED_FOR and what != "trust_remote_code":
                found[f"{place}:{line}"] = what
    assert found == {}


@pytest.mark.parametrize(
    "text",
    ["import pickle", "from cloudpickle import loads", "torch.load(f)", "eval(x)", "exec(x)", "os.popen(x)",
     "subprocess.run(x, shell=True)", "np.load(f, allow_pickle=True)", "yaml.unsafe_load(f)",
     "auto.from_pretrained(x, trust_remote_code=True)"],
)  # fmt: skip
def test_the_walk_through_the_source_finds_what_it_looks_for(text: str):
    assert list(dangers(ast.parse(text)))


def test_code_of_a_model_is_trusted_only_where_somebody_said_so():
    """Every `trust_remote_code` is handed on from an option that is off, never written as True."""
    seen = 0
    for place, tree in source().items():
        for call, name in calls(tree):
            given = {keyword.arg: keyword.value for keyword in call.keywords}
            if name == "from_pretrained":
                seen += 1
                if "trust_remote_code" not in given:
                    continue  # off by default
                value = given["trust_remote_code"]
                assert not isinstance(value, ast.Constant) or value.value is False, f"{place}:{call.lineno}"
    assert seen >= 4
    from tinkex.server.options import ServerOptions

    assert ServerOptions((), Path("x")).trust_remote_code is False


def test_only_the_tokenizers_that_were_looked_at_are_code():
    from tinkex.client import tokenizers

    trusted = [
        (node.lineno, [keyword.arg for keyword in node.keywords])
        for node, name in calls(ast.parse(Path(tokenizers.__file__).read_text()))
        if name == "TokenizerSource"
        for keyword in node.keywords
        if keyword.arg == "trust_remote_code" and getattr(keyword.value, "value", None) is True
    ]
    assert len(trusted) == 1
    for source in tokenizers._PINS.values():
        assert source.revision is not None
        assert len(source.revision) == 40


# ---- programs of one's own do not look for their parts in the folder they are started in


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with modules under the names of others, as a checkpoint somebody gave could have."""
    folder = tmp_path / "given"
    folder.mkdir()
    for name in (
        "torch",
        "json",
        "pip",
        "numpy",
        "safetensors",
        "transformers",
        "gguf",
        "argparse",
        "tinkex",
    ):
        (folder / f"{name}.py").write_text(HOSTILE)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.slow
def test_merging_runs_nothing_in_the_working_folder(hostile: Path, tmp_path: Path):
    with pytest.raises(Exception, match="merg"):
        merge._child(tmp_path / "base", hostile, tmp_path / "out")
    assert not (hostile / "was-run").exists()


@pytest.mark.slow
def test_converting_runs_nothing_in_the_working_folder(hostile: Path, tmp_path: Path):
    (hostile / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(Exception, match="could not be converted"):
        adding._convert(hostile / "x.gguf", tmp_path / "out")
    assert not (hostile / "was-run").exists()


@pytest.mark.slow
def test_asking_pip_and_looking_at_the_machine_run_nothing_in_the_working_folder(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
):
    assert package_index.configured({"PIP_CONFIG_FILE": "/dev/null"}).addresses
    monkeypatch.setattr(machine, "find_spec", lambda name: object())
    assert len(list(machine.checks())) >= 2
    assert not (hostile / "was-run").exists()


def test_every_python_that_is_started_leaves_the_working_folder_out():
    seen = 0
    for place, tree in source().items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.List, ast.Tuple)) and node.elts:
                first = node.elts[0]
                if isinstance(first, ast.Attribute) and first.attr == "executable":
                    seen += 1
                    assert isinstance(node.elts[1], ast.Constant), f"{place}:{node.lineno}"
                    assert node.elts[1].value == "-P", f"{place}:{node.lineno}"
    assert seen >= 6
