"""A folder with model and data, a server, and recipes that are run there as the page has them."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from .environment import Environment
from .page import ROOT, log_folder, recipes, sections, serving, with_our_client

LONGEST = 600.0
"""Seconds after which a recipe counts as stuck."""


class Served:
    """A running server."""

    def __init__(self, url: str, key: str) -> None:
        self.url, self.key = url, key


class Kitchen:
    """Recipes are run here once each, with one client."""

    def __init__(self, folder: Path, environment: Environment, served: Served, *, ours: bool) -> None:
        self.folder, self.ours = folder, ours
        self.variables = environment.variables(
            TINKER_BASE_URL=served.url, TINKER_API_KEY=served.key, HF_HOME=str(folder / "hf")
        )
        make_folder(folder, environment)
        self.cooked = cache(self._cook)

    def command(self, recipe: str) -> list[str]:
        """What runs a recipe as the page has it."""
        text = recipes()[recipe]
        return ["bash", "-euo", "pipefail", "-c", with_our_client(text) if self.ours else text]

    def _cook(self, recipe: str) -> str:
        """Run a recipe to its end; all it said."""
        return self.run(self.command(recipe))

    def run(self, command: list[str]) -> str:
        """Run a command here that must succeed; all it said."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST,
        )
        assert done.returncode == 0, f"ended with {done.returncode}:\n{done.stdout[-4000:]}"
        return done.stdout

    def file(self, recipe: str, name: str) -> Path:
        """A file in the log folder of a recipe."""
        return self.folder / log_folder(recipes()[recipe]) / name

    def rows(self, recipe: str, name: str) -> list[dict[str, Any]]:
        """A log of a recipe, one JSON object a line."""
        return [json.loads(line) for line in self.file(recipe, name).read_text().splitlines()]

    def metric(self, recipe: str, name: str) -> list[float]:
        """A metric, step by step."""
        return [row[name] for row in self.rows(recipe, "metrics.jsonl") if name in row]


def make_folder(folder: Path, environment: Environment) -> None:
    """Make the page's folder to work in."""
    (command,) = sections()["A folder to work in"]
    assert command.split()[-1] == "work"
    words = [*command.split()[:-1], str(folder)]
    words[0] = str(environment.programs / words[0])
    subprocess.run(words, cwd=ROOT, env=environment.variables(), check=True, timeout=LONGEST)


@contextmanager
def server(folder: Path, environment: Environment) -> Iterator[Served]:
    """The page's server, on a free port, until left; it must not have made a mistake on the way."""
    make_folder(folder, environment)
    variables, (program, *words) = serving()
    log = folder / "log.txt"
    with log.open("w") as file:
        process = subprocess.Popen(
            [str(environment.programs / program), *words, "--port", "0", "--device", "cpu"],
            cwd=folder,
            env=environment.variables(**variables),
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )
    try:
        assert process.stdout is not None
        url = ""
        for line in process.stdout:
            if "TINKER_BASE_URL=" in line:
                url = line.partition("=")[2].strip()
            if line.startswith("ready:"):
                break
        assert url, f"the server did not start:\n{log.read_text()[-4000:]}"
        yield Served(url, variables["TINKER_API_KEY"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    mistakes = [line for line in log.read_text().splitlines() if " error " in line]
    assert not mistakes, "\n".join(mistakes[:5])
