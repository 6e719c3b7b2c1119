"""The look at what the package brings along: it passes here, and finds what is wrong where something is."""

from __future__ import annotations

import importlib.util
import json
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "tools" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["audit"] = made
    spec.loader.exec_module(made)
    return made


def test_nothing_is_wrong_here(audit: ModuleType, capsys: pytest.CaptureFixture[str]):
    assert audit.main([]) == 0, capsys.readouterr().out
    names = set(audit.closure("tinkex"))
    assert {"tinkex", "numpy", "aiohttp", "msgspec"} <= names
    assert not names & {"torch", "transformers", "pydantic", "httpx"}


def test_a_new_dependency_is_seen(audit: ModuleType):
    found = audit.closure("tinkex")
    said = list(audit.offline(set(found) - {"numpy"}, found))
    assert len(said) == 1
    assert said[0].startswith("numpy is new")


@pytest.mark.parametrize(
    ("told", "fine"),
    [
        ("MIT", True), ("Apache-2.0", True), ("BSD-3-Clause AND MIT", True), ("3-Clause BSD License", True),
        ("License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)", True),
        ("GPL-3.0-or-later", False), ("AGPLv3", False), ("LGPL-2.1", False), ("", False),
        ("License :: OSI Approved :: GNU General Public License v3", False), ("MIT OR GPL-2.0", False),
        ("License :: Other/Proprietary License", False),
    ],
)  # fmt: skip
def test_licences(audit: ModuleType, told: str, fine: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(audit, "licence", lambda found: told)
    found = {"attrs": audit.closure("attrs")["attrs"]}
    assert (list(audit.offline({"attrs"}, found)) == []) is fine


def test_a_heavy_dependency_is_seen(audit: ModuleType, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(audit, "MOST_BYTES", 1000)
    found = audit.closure("tinkex")
    assert any("MiB" in each for each in audit.offline(set(found), found))


def test_bounds_that_are_missing_are_seen(audit: ModuleType):
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert list(audit.declared(project)) == []
    about = project["project"]
    about["requires-python"] = ">=3.11"
    about["dependencies"] = ["numpy", "aiohttp>=3"]
    about["optional-dependencies"]["torch"] = ["torch>=2"]
    said = list(audit.declared(project))
    assert [each.split()[0] for each in said] == ["requires-python", "numpy", "torch"]


def test_what_pip_audit_reports_is_understood(audit: ModuleType):
    bad = {"id": "PYSEC-1", "fix_versions": ["2.0"], "aliases": [], "description": ""}
    report = {
        "dependencies": [
            {"name": "a", "version": "1.0", "vulns": [bad]},
            {"name": "b", "version": "1.0", "vulns": []},
            {"name": "c", "skip_reason": "not on PyPI"},
        ]
    }
    assert audit.asked(json.dumps(report)) == (["a 1.0: PYSEC-1, mended in 2.0"], 2)


def test_a_database_that_cannot_be_reached_is_no_finding(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    class Done:
        stdout = ""

    monkeypatch.setattr(audit.subprocess, "run", lambda *a, **k: Done())
    findings, how = audit.ask()
    assert findings == []
    assert "nobody was asked" in how
    skipped = {"dependencies": [{"name": "c", "skip_reason": "not on PyPI"}]}
    Done.stdout = json.dumps(skipped)
    findings, how = audit.ask()
    assert findings == []
    assert "nobody was asked" in how
