"""The command line, run in this process and in one of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tinkex.cli.main import main


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The JSON document on stdout, which must be the only thing there."""
        return json.loads(self.out)

    @property
    def problem(self) -> dict[str, Any]:
        """The JSON object on stderr, which must be one line."""
        (line,) = self.err.splitlines()
        return json.loads(line)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> Ran:
    """Run a command here."""
    capsys.readouterr()
    code = main(words)
    done = capsys.readouterr()
    return Ran(code, done.out, done.err)


def spawn(*words: str, environ: Mapping[str, str] | None = None) -> Ran:
    """Run a command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tinkex", *words], capture_output=True, text=True, env=environ, check=False
    )
    return Ran(done.returncode, done.stdout, done.stderr)
