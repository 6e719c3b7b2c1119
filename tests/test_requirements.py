"""Every requirement is proved by a test that exists."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
ROWS: list[dict[str, Any]] = tomllib.loads((ROOT / "tests" / "requirements.toml").read_text())["row"]
SPECIFICATION = ROOT.parent / "shared" / "spec" / "requirements.md"


def name(row: dict[str, Any]) -> str:
    return f"{row['id']}: {row['point']}"


@functools.cache
def functions_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(
        node.name for node in tree.body if isinstance(node, functions) and node.name.startswith("test_")
    )


def problems(row: dict[str, Any]) -> list[str]:
    """What is wrong with a row of the list."""
    found = []
    if not row.get("tests"):
        found.append("no test")
    if row.keys() - {"id", "point", "tests"}:
        found.append("unknown keys")
    for test in row.get("tests", ()):
        path, _, function = test.partition("::")
        if not (ROOT / path).is_file() or function not in functions_in(path):
            found.append(f"there is no {test}")
    return found


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_a_requirement_is_proved(row: dict[str, Any]):
    assert problems(row) == []


def test_no_requirement_is_listed_twice():
    assert len({name(row) for row in ROWS}) == len(ROWS)
    assert len(ROWS) > 90


@pytest.mark.skipif(not SPECIFICATION.is_file(), reason="the specification is not beside this checkout")
def test_the_list_is_the_specifications():
    rows = []
    for line in SPECIFICATION.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if line.startswith("|") and len(cells) == 5 and cells[0] != "seed" and set(cells[0]) != {"-"}:
            rows.append(f"{cells[0]}: {cells[1]}")
    assert [name(row) for row in ROWS] == rows


HERE = "tests/test_requirements.py::test_no_requirement_is_listed_twice"


@pytest.mark.parametrize(
    ("row", "count"),
    [
        ({"tests": [HERE]}, 0),
        ({}, 1),
        ({"tests": []}, 1),
        ({"tests": [HERE + "_x"]}, 1),
        ({"tests": ["tests/nowhere.py::test_x"]}, 1),
        ({"tests": ["tests/test_requirements.py"]}, 1),
        ({"tests": ["tests/test_requirements.py::problems"]}, 1),
        ({"tests": [HERE], "test": HERE}, 1),
    ],
)
def test_a_bad_row_is_noticed(row: dict[str, Any], count: int):
    assert len(problems({"id": "x", "point": "y", **row})) == count
