"""The folder of a training run, laid out as tinker-cookbook lays out its own.

`config.json` says how it was started, `metrics.jsonl` has an object for each step, `checkpoints.jsonl` one
for each checkpoint, and `logs.log` what was said.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from .output import CommandError

__all__ = ["RunFolder", "default_folder"]

_CONFIG, _METRICS, _CHECKPOINTS, _LOG = "config.json", "metrics.jsonl", "checkpoints.jsonl", "logs.log"


def default_folder(name: str) -> Path:
    """A new folder below TINKER_COOKBOOK_RUNS_DIR, else below ~/tinker-runs."""
    root = Path(os.environ.get("TINKER_COOKBOOK_RUNS_DIR") or "~/tinker-runs").expanduser()
    stem = f"{name.replace('/', '-')}-{time.strftime('%Y-%m-%d-%H-%M-%S')}"
    place, number = root / stem, 1
    while place.exists():
        number += 1
        place = root / f"{stem}-{number}"
    return place


class RunFolder:
    """A run's folder: what is there, and what is added."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def is_used(self) -> bool:
        """Whether a run has begun here."""
        return (self.path / _CONFIG).exists()

    def begin(self, config: dict[str, Any]) -> None:
        """Make the folder and write down how the run was started."""
        self.path.mkdir(parents=True, exist_ok=True)
        _write(self.path / _CONFIG, json.dumps(config, indent=2) + "\n")

    def config(self) -> dict[str, Any]:
        """How the run was started."""
        try:
            held: dict[str, Any] = json.loads((self.path / _CONFIG).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CommandError(
                f"{self.path} holds no run to resume",
                "name its folder with --log-path, or leave out --resume",
            ) from None
        except ValueError as error:
            raise CommandError(f"{self.path / _CONFIG} cannot be read: {error}") from None
        return held

    def last_checkpoint(self) -> dict[str, Any] | None:
        """The newest checkpoint from which training can go on."""
        whole = [each for each in _lines(self.path / _CHECKPOINTS) if each.get("state_path")]
        return whole[-1] if whole else None

    def go_back_to(self, step: int) -> None:
        """Forget the metrics of steps that will be done again, and lines that were cut off."""
        kept = [each for each in _lines(self.path / _METRICS) if each.get("step", 0) < step]
        for name, lines in ((_METRICS, kept), (_CHECKPOINTS, _lines(self.path / _CHECKPOINTS))):
            _write(self.path / name, "".join(json.dumps(each) + "\n" for each in lines))

    def metrics(self, step: int, values: dict[str, Any]) -> None:
        """Add what was measured at a step."""
        self._add(_METRICS, {"step": step, **values})

    def checkpoint(self, values: dict[str, Any]) -> None:
        """Add a checkpoint."""
        self._add(_CHECKPOINTS, values)

    def log(self, text: str) -> None:
        """Add a line to the log."""
        with (self.path / _LOG).open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def _add(self, name: str, values: dict[str, Any]) -> None:
        # One write a line, so that whoever watches the file never reads half of one.
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


def _lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file; a last line that was cut off is no object."""
    found: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                break
    return found


def _write(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.part")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)
