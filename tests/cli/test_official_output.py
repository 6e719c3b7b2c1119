"""On the same server the official CLI and ours print the same JSON documents."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.matrix.serving import Served

from .conftest import Command, Trained

PROGRAM = """
import json, sys
from click.testing import CliRunner
from tinker.cli.__main__ import main_cli
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(main_cli, ["--format", "json", *words])
    print(json.dumps([done.exit_code, done.stdout]))
"""


def official(served: Served, commands: list[list[str]], home: str) -> list[tuple[int, str]]:
    environ = {**os.environ, "TINKER_BASE_URL": served.url, "TINKER_API_KEY": served.key, "HOME": home,
               "TINKER_TELEMETRY": "0"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)],
        env=environ, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return [tuple(json.loads(line)) for line in done.stdout.splitlines() if line.startswith("[")]


def test_documents_are_the_same(real: Command, served: Served, trained: Trained, home):
    pytest.importorskip("tinker")
    commands = [
        ["run", "list", "--limit", "0"],
        ["run", "info", trained.run],
        ["checkpoint", "list", "--run-id", trained.run],
        ["checkpoint", "list", "--limit", "5"],
        ["checkpoint", "info", trained.state],
        ["model", "list"],
        ["billing", "checkpoint-storage"],
        ["checkpoint", "delete", trained.external, "--yes"],
    ]
    ours = [real(*words, "--json") for words in commands[:-1]]
    theirs = official(served, commands, str(home))
    assert len(theirs) == len(commands)
    for words, mine, (code, printed) in zip(commands, ours, theirs, strict=False):
        assert (mine.code, code) == (0, 0), words
        assert mine.data == json.loads(printed), words
    assert json.loads(theirs[-1][1]) == real("checkpoint", "delete", trained.sampler, "-y", "--json").data
