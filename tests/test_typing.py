"""The types a user's checker sees are the real ones, and there is one for everything public."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
# Programs and what runs inside them: nobody imports from these.
NOT_PUBLIC = (
    "tinkex.cli.",
    "tinkex.conformance.",
    "tinkex.demo.",
    "tinkex.engine.",
    "tinkex.server.",
    "tinkex.testing.watched_server.",
)


def test_a_type_checker_sees_what_calls_return(tmp_path: Path):
    command = [
        sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", "--cache-dir", str(tmp_path),
        str(ROOT / "tests" / "programs" / "typed_calls.py"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def symbols(package: str, source: Path, tmp_path: Path) -> list[dict[str, Any]]:
    """Everything a package exports, with what pyright has to say about its type."""
    command = [
        sys.executable, "-m", "pyright", "--pythonpath", sys.executable,
        "--verifytypes", package, "--ignoreexternal", "--outputjson",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=600
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    return [symbol for symbol in found if symbol["isExported"]]


def without_a_type(found: list[dict[str, Any]]) -> list[str]:
    """The symbols whose type is unknown in part, or is left to each checker to guess."""
    return [
        f"{symbol['name']}: {[problem['message'] for problem in symbol['diagnostics']]}"
        for symbol in found
        if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]
    ]


@pytest.mark.slow
def test_every_public_name_has_a_type(tmp_path: Path):
    pytest.importorskip("pyright")
    found = symbols("tinkex", ROOT / "src", tmp_path)
    public = [symbol for symbol in found if not symbol["name"].startswith(NOT_PUBLIC)]
    assert len(public) > 4000
    assert without_a_type(public) == []


@pytest.mark.slow
def test_a_name_without_a_type_would_be_noticed(tmp_path: Path):
    pytest.importorskip("pyright")
    package = tmp_path / "wrong"
    package.mkdir()
    (package / "py.typed").touch()
    (package / "__init__.py").write_text(
        "def fine(a: int) -> int:\n    return a\n\n\ndef bad(a):\n    return a\n"
    )
    named = [text.partition(":")[0] for text in without_a_type(symbols("wrong", tmp_path, tmp_path))]
    assert named == ["wrong.bad"]


@pytest.mark.slow
def test_the_examples_pass_a_strict_checker(tmp_path: Path):
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), "examples"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
