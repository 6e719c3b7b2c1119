"""Prints, as JSON, which of the names that a folder's modules take from `tinker` cannot be had.

Run it under `tinkex.as_tinker`: it reads the sources, so the other things they import need not exist.
"""

from __future__ import annotations

import ast
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import tinker


def attribute_chain(node: ast.AST) -> list[str]:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if isinstance(node, ast.Name) else []


class Module:
    """The names one source file takes from the SDK."""

    def __init__(self, tree: ast.Module) -> None:
        self.known: dict[str, Any] = {}
        self.missing: set[str] = set()
        self.count = 0
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._import(node)
            elif (
                isinstance(node, ast.ImportFrom)
                and not node.level
                and (node.module or "").split(".")[0] == "tinker"
            ):
                self._import_from(node)
        for node in ast.walk(tree):
            chain = attribute_chain(node)
            if len(chain) > 1 and chain[0] in self.known:
                self._look(chain)

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.split(".")[0] == "tinker":
                self.count += 1
                module = importlib.import_module(alias.name)
                self.known[alias.asname or "tinker"] = module if alias.asname else tinker

    def _import_from(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self.count += 1
            full = f"{node.module}.{alias.name}"
            try:
                value = getattr(importlib.import_module(str(node.module)), alias.name)
            except (ImportError, AttributeError):
                try:
                    value = importlib.import_module(full)
                except ImportError:
                    self.missing.add(full)
                    continue
            self.known[alias.asname or alias.name] = value

    def _look(self, chain: list[str]) -> None:
        """Follow `tinker.types.X.y` through modules and classes; what calls return is not known."""
        self.count += 1
        value = self.known[chain[0]]
        for place, name in enumerate(chain[1:], 2):
            if (
                not isinstance(value, type)
                and not hasattr(value, "__path__")
                and not hasattr(value, "__spec__")
            ):
                return
            if not hasattr(value, name):
                if not (isinstance(value, type) and name in getattr(value, "__annotations__", {})):
                    self.missing.add(".".join(chain[:place]))
                return
            value = getattr(value, name)


def main(folder: str) -> None:
    report: dict[str, Any] = {"files": 0, "names": 0, "missing": {}}
    for path in sorted(Path(folder).rglob("*.py")):
        text = path.read_text()
        if "tinker" not in text:
            continue
        found = Module(ast.parse(text))
        report["files"] += bool(found.count)
        report["names"] += found.count
        if found.missing:
            report["missing"][str(path.relative_to(folder))] = sorted(found.missing)
    print(json.dumps(report))


main(sys.argv[1])
