"""What docs/server.md says about the command line and the settings is so."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from tinkex.cli import keys, serve, state
from tinkex.cli.main import Parser
from tinkex.server import config_file
from tinkex.server.http_server import HEAD_BYTES
from tinkex.server.readiness import READY_PAGE
from tinkex.server.settings import SETTINGS
from tinkex.server.state_folder import ROOMS
from tinkex.wire.routes import ROUTES

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "server.md").read_text()


def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_tables", ROOT / "tools" / "make_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def options(parser: Parser) -> set[str]:
    words = {word for action in parser._actions for word in action.option_strings}
    for action in parser._actions:
        for below in (action.choices or {}).values() if isinstance(action.choices, dict) else ():
            words |= options(below)
    return words


def test_the_tables_are_those_of_the_code():
    assert tables().server_page(PAGE) == PAGE, "run python tools/make_tables.py"


def test_every_option_on_the_page_exists():
    known: set[str] = set()
    for command in (serve, keys, state):
        parser = Parser()
        command.register(parser)
        known |= options(parser)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE))
    assert len(named) > 20
    assert named <= known


def test_every_variable_on_the_page_exists():
    named = set(re.findall(r"\bTINKEX_[A-Z_]+\b", PAGE))
    assert len(named) >= 5
    assert named <= {setting.variable for setting in SETTINGS.values()} | {"TINKEX_MODELS"}


def test_the_config_file_on_the_page_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    path = tmp_path / "server.toml"
    path.write_text(block("toml").replace("/models/qwen3-8b", str(folder)))
    made = config_file.build(config_file.from_file(path))
    assert [spec.name for spec in made.models] == ["Qwen/Qwen3-8B"]
    assert made.public_url == "https://gpu.example/tinkex"
    assert (made.limits.storage_bytes, made.times.drain) == (200 << 30, 60)


def test_addresses_folders_and_bounds_on_the_page_are_the_server_s():
    assert f"GET {ROUTES['health'].full_path}" in PAGE
    assert f"GET /{READY_PAGE}" in PAGE
    assert f"{HEAD_BYTES >> 10} KiB" in PAGE
    for room in ROOMS:
        assert f"| `{room}/` |" in PAGE
