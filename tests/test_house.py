"""The house rules no linter knows: who may import whom, what an import costs, what is exported."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tinkex.wire import contract
from tinkex.wire import tinker_public_pb2 as pb

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "tinkex"

# ---- the ladder

# Modules at the top of the package that every room but the engine may use.
FLOOR = {"_lazy", "_version", "errors", "config", "notices"}
_CLIENT_SIDE = {"types", "wire", "net", "losses", "client"}
_ENGINE_SIDE = ("messages", "codec", "durable", "kill_points")
# Room -> the rooms below it. `engine` stands alone: it runs in a process of its own.
LADDER: dict[str, set[str]] = {
    "types": set(),
    "wire": {"types"},
    "net": {"types", "wire"},
    "losses": {"types", "wire", "net"},
    "client": {"types", "wire", "net", "losses", "models"},
    "auth": {"net", "client"},
    "conformance": {*_CLIENT_SIDE},
    "demo": {""},  # written as a user would
    "cli": {*_CLIENT_SIDE, "auth", "conformance", "demo", "server", "models"},
    "server": {"types", "wire", "models", *(f"engine.{name}" for name in _ENGINE_SIDE)},
    "engine": set(),
    "models": set(),
    "testing": {*_CLIENT_SIDE, "auth", "server", "engine.messages", "engine.codec", "models"},
    # Module paths kept for other packages' imports.
    "lib": {*_CLIENT_SIDE, "auth"},
    "proto": {"types", "wire"},
    "__main__": {"cli"},
    "_exceptions": set(),
    "_types": {*_CLIENT_SIDE},
    "_client": {*_CLIENT_SIDE, "_types"},
    "_base_client": {*_CLIENT_SIDE},
    # The package under its other name, and what sends other processes there.
    "as_tinker": {""},
    "_shadow": {"as_tinker"},
}
FLOOR_LADDER: dict[str, set[str]] = {
    "_lazy": set(),
    "_version": set(),
    "errors": set(),
    "notices": {"errors", "_version"},
    "config": {"errors", "_lazy", "_version", "notices"},
}


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below `tinkex`."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imported(name: str, tree: ast.AST, is_package: bool) -> Iterator[str]:
    """The modules of ours that a module imports anywhere: at the top, in functions, for type checkers."""
    package = name.split(".") if is_package else name.split(".")[:-1]
    package = [part for part in package if part]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root, _, rest = alias.name.partition(".")
                if root == "tinkex":
                    yield rest
        elif isinstance(node, ast.ImportFrom):
            stem = node.module.split(".") if node.module else []
            if node.level == 0:
                if stem[0] != "tinkex":
                    continue
                base = stem[1:]
            else:
                base = package[: len(package) - node.level + 1] + stem
            for alias in node.names:
                inner = ".".join([*base, alias.name])
                yield inner if inner in MODULES else ".".join(base)


def room(module: str) -> str:
    return module.split(".")[0]


def climbs(name: str, target: str) -> bool:
    """Whether an import goes anywhere but down."""
    here, there = room(name), room(target)
    if here == there:
        return False
    if here == "":  # the package's own front door
        return there in ("testing", "server", "engine")
    if here in FLOOR_LADDER:
        return there not in FLOOR_LADDER[here]
    if there in FLOOR:
        return here == "engine"
    allowed = LADDER[here]
    return there not in allowed and not any(target == a or target.startswith(f"{a}.") for a in allowed)


def test_every_module_lives_in_a_known_room():
    assert {room(name) for name in MODULES} <= {"", *FLOOR, *LADDER}
    assert len(MODULES) > 40


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_go_down_the_ladder(name: str):
    path = MODULES[name]
    tree = ast.parse(path.read_text())
    edges = set(imported(name, tree, path.name == "__init__.py"))
    assert [target for target in sorted(edges) if climbs(name, target)] == []


@pytest.mark.parametrize(
    ("name", "source", "caught"),
    [
        ("types.x", "from ..wire import paths", ["wire.paths"]),
        ("types.x", "from .. import net", ["net"]),
        ("types.x", "def f():\n  import tinkex.client.portal", ["client.portal"]),
        ("types.x", "if TYPE_CHECKING:\n  from tinkex.net import clock", ["net.clock"]),
        ("types.x", "from ..errors import TinkerError\nfrom .._lazy import np", []),
        ("types.x", "from .record import Record\nimport json", []),
        ("engine.x", "from ..errors import TinkerError", ["errors"]),
        ("engine.x", "from .messages import M", []),
        ("server.x", "from ..engine.messages import M", []),
        ("server.x", "from ..engine.model import M", ["engine.model"]),
        ("client.x", "from ..server import app", ["server.app"]),
        ("client.x", "from ..testing import FakeClock", ["testing"]),
        ("errors", "from .types import Datum", ["types"]),
        ("", "from .testing import FakeClock", ["testing"]),
    ],
)
def test_the_ladder_check_can_fail(
    name: str, source: str, caught: list[str], monkeypatch: pytest.MonkeyPatch
):
    known = {**MODULES, "engine.messages": Path(), "engine.model": Path(), "client.portal": Path()}
    monkeypatch.setitem(globals(), "MODULES", known)
    edges = imported(name, ast.parse(source), name in ("", "types"))
    assert [target for target in edges if climbs(name, target)] == caught


# ---- the weight of an import

HEAVY = ("numpy", "torch", "msgspec", "pydantic", "aiohttp", "asyncio", "orjson", "google.protobuf")


def loaded(code: str) -> set[str]:
    """The modules a fresh interpreter loads to run some code."""
    script = (
        f"import sys, json; bare = set(sys.modules); {code}; print(json.dumps([*set(sys.modules) - bare]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_importing_the_package_is_light():
    names = loaded("import tinkex")
    assert "tinkex" in names
    assert names.isdisjoint(HEAVY)
    assert len(names) <= 60


@pytest.mark.parametrize(
    "touch",
    [
        "tinkex.types.Datum",
        "tinkex.types.SamplingParams",
        "tinkex.types.ModelInput.from_ints([1, 2, 3])",
        "tinkex.SamplingParams(max_tokens=3, stop=['a'])",
        "tinkex.AdamParams()",
        "tinkex.errors.TinkerError",
        "dir(tinkex), dir(tinkex.types)",
    ],
)
def test_touching_a_type_does_not_load_numpy(touch: str):
    names = loaded(f"import tinkex; {touch}")
    assert names.isdisjoint({"numpy", "torch", "pydantic", "aiohttp", "orjson", "google.protobuf"})


def test_errors_do_not_load_the_types():
    assert not {name for name in loaded("import tinkex.errors") if name.startswith("tinkex.types")}


# ---- what is exported


def for_type_checkers(tree: ast.Module) -> set[str]:
    """The names a module imports under `if TYPE_CHECKING`, each re-exported by `as`."""
    (block,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    names = [alias for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert [alias.name for alias in names if alias.asname != alias.name] == []
    assert len(names) == len({alias.name for alias in names})
    return {alias.name for alias in names}


@pytest.mark.parametrize("package", ["tinkex", "tinkex.types"])
def test_the_three_export_lists_agree(package: str):
    module: Any = importlib.import_module(package)
    written = for_type_checkers(ast.parse(Path(module.__file__).read_text()))
    versions = {"__title__", "__version__"} if package == "tinkex" else set()
    assert written == set(module._TABLE)
    assert set(module.__all__) == written | versions
    assert list(module.__all__) == sorted(module.__all__)
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("package", ["tinkex", "tinkex.types"])
def test_type_checkers_are_sent_to_the_same_modules(package: str):
    module: Any = importlib.import_module(package)
    tree = ast.parse(Path(module.__file__).read_text())
    places = {
        alias.name: node.module or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level == 1
        for alias in node.names
        if alias.name in module._TABLE
    }
    assert places == {name: where.strip(".:") for name, where in module._TABLE.items()}


@pytest.mark.parametrize("package", ["tinkex", "tinkex.types"])
def test_a_name_that_does_not_exist_is_an_attribute_error(package: str):
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Datun'"):
        _ = importlib.import_module(package).Datun


@pytest.mark.parametrize("package", ["tinkex", "tinkex.types"])
def test_every_exported_name_loads(package: str):
    module = importlib.import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_the_package_is_marked_as_typed():
    assert (SOURCE / "py.typed").is_file()


def test_images_travel_in_the_request_and_there_is_no_other_upload():
    assert [name for name, path in MODULES.items() if "multipart" in path.read_text().lower()] == []


# ---- generated files


def test_the_published_contract_is_the_one_in_the_code():
    assert (ROOT / "docs" / "contract.json").read_text() == contract.render()


_SCALARS = {
    "double": 1,
    "float": 2,
    "int64": 3,
    "uint64": 4,
    "int32": 5,
    "bool": 8,
    "string": 9,
    "bytes": 12,
    "uint32": 13,
}


def _read_proto(text: str) -> tuple[dict[str, Any], dict[str, dict[str, int]]]:
    """Messages and enums of a proto3 file without options, services or nesting."""
    text = re.sub(r"//[^\n]*", "", text)
    enums = {
        name: {key: int(number) for key, number in re.findall(r"(\w+)\s*=\s*(\d+)\s*;", body)}
        for name, body in re.findall(r"enum\s+(\w+)\s*\{([^}]*)\}", text)
    }
    messages = {}
    for name, body in re.findall(r"message\s+(\w+)\s*\{((?:[^{}]|\{[^{}]*\})*)\}", text):
        fields: dict[str, tuple[Any, ...]] = {}
        for oneof, inner in re.findall(r"oneof\s+(\w+)\s*\{([^}]*)\}", body):
            for kind, field, number in re.findall(r"(\w+)\s+(\w+)\s*=\s*(\d+)\s*;", inner):
                fields[field] = (int(number), "", kind, oneof)
        plain = re.sub(r"oneof\s+\w+\s*\{[^}]*\}", "", body)
        pattern = r"(?:(optional|repeated)\s+)?(map\s*<[^>]*>|\w+)\s+(\w+)\s*=\s*(\d+)\s*;"
        for label, kind, field, number in re.findall(pattern, plain):
            fields[field] = (int(number), label, kind.replace(" ", ""), None)
        assert body.count("=") == len(fields), name
        messages[name] = fields
    return messages, enums


def _type_name(field: Any) -> str:
    if field.message_type is not None:
        entry = field.message_type
        if entry.GetOptions().map_entry:
            key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
            return f"map<{_type_name(key)},{_type_name(value)}>"
        return entry.name
    if field.enum_type is not None:
        return field.enum_type.name
    return next(name for name, number in _SCALARS.items() if number == field.type)


def _described(field: Any) -> tuple[Any, ...]:
    kind = _type_name(field)
    oneof = field.containing_oneof
    optional = oneof is not None and oneof.name == f"_{field.name}"
    repeated = _is_repeated(field) and not kind.startswith("map<")
    label = "optional" if optional else "repeated" if repeated else ""
    return field.number, label, kind, None if oneof is None or optional else oneof.name


def _is_repeated(field: Any) -> bool:
    # `label` is gone from newer runtimes, `is_repeated` missing in older ones.
    known = getattr(field, "is_repeated", None)
    return field.label == field.LABEL_REPEATED if known is None else known


def test_the_protobuf_module_is_what_its_source_says():
    messages, enums = _read_proto((SOURCE / "wire" / "tinker_public.proto").read_text())
    file = pb.DESCRIPTOR
    assert file.package == "tinkex.wire"
    assert len(messages) > 15
    assert {
        name: {field.name: _described(field) for field in message.fields}
        for name, message in file.message_types_by_name.items()
    } == messages
    assert {
        name: {value.name: value.number for value in enum.values}
        for name, enum in file.enum_types_by_name.items()
    } == enums
