"""Whether a JSON document has the shape its command says."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tinkex.cli.shapes import CHECKPOINT


def misfits(document: Any, shape: Any, where: str = "") -> list[str]:
    """What does not fit, each with its place."""
    if isinstance(shape, list):
        if not isinstance(document, list):
            return [f"{where}: not a list"]
        return [
            line for at, each in enumerate(document) for line in misfits(each, shape[0], f"{where}[{at}]")
        ]
    if isinstance(shape, dict):
        return _dict_misfits(document, shape, where)
    return [] if _is(document, shape) else [f"{where}: {document!r} is not {shape}"]


def _dict_misfits(document: Any, shape: dict[str, Any], where: str) -> list[str]:
    if not isinstance(document, dict):
        return [f"{where}: not an object"]
    named = {key.removesuffix("?"): each for key, each in shape.items() if key != "*"}
    needed = {key for key in shape if not key.endswith("?") and key != "*"}
    found = [f"{where}.{key} is missing" for key in needed - document.keys()]
    for key, value in document.items():
        if key in named:
            found += misfits(value, named[key], f"{where}.{key}")
        elif "*" in shape:
            found += misfits(value, shape["*"], f"{where}.{key}")
        else:
            found.append(f"{where}.{key} is not in the shape")
    return found


def _is(value: Any, kind: str) -> bool:
    if kind.endswith("?"):
        return value is None or _is(value, kind[:-1])
    if kind == "checkpoint":
        return misfits(value, CHECKPOINT) == []
    if kind == "time":
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "map":
        return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
    if kind == "any":
        return True
    return isinstance(value, {"text": str, "bool": bool}[kind])
