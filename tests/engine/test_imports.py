"""The engine stands alone: torch, transformers, numpy, safetensors and itself; messages need no torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tinkex.engine

FOLDER = Path(tinkex.engine.__file__).parent
ALLOWED = {"torch", "transformers", "numpy", "safetensors"}
OPTIONAL = {"gguf.py": {"gguf", "tokenizers"}, "detokenise.py": {"tokenizers"}}


def imported(path):
    """Every top-level package a module imports from outside the engine, and what it imports of ours."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level <= 1, f"{path.name} imports from outside the engine"
            if node.level == 0:
                yield node.module.split(".")[0]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_module_imports_nothing_else(path):
    allowed = ALLOWED | set(sys.stdlib_module_names) | OPTIONAL.get(path.name, set())
    assert set(imported(path)) <= allowed


@pytest.mark.parametrize(
    "name", ["messages", "codec", "faults", "host", "desk", "child", "model_folder", "fresh_folder"]
)
def test_what_a_control_plane_reads_needs_no_torch(name):
    code = (
        f"import sys, tinkex.engine.{name}; print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
