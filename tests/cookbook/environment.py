"""The environment the page describes: this project's server, the official SDK and the cookbook in one.

TINKEX_COOKBOOK_VENV names one that is there; otherwise it is built once and kept in pytest's cache.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .page import ROOT, sections

# As they were when this was imported: tests run with proxies and our own variables taken away.
SURROUNDINGS = dict(os.environ)
CHOSEN = SURROUNDINGS.get("TINKEX_COOKBOOK_VENV")
WANTED = sections()["Install"][0]


class Environment:
    """A virtual environment and how programs are run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "bin"

    def variables(self, **more: str) -> dict[str, str]:
        """What programs find around them: no proxies, no hub, none of our settings but those given."""
        kept = {
            name: value
            for name, value in SURROUNDINGS.items()
            if not name.startswith(("TINKER", "TINKEX", "HF_")) and not name.lower().endswith("_proxy")
        }
        return {
            **kept,
            "PATH": f"{self.programs}{os.pathsep}{kept.get('PATH', os.defpath)}",
            # The code of this checkout, and not what was installed when the environment was built.
            "PYTHONPATH": str(ROOT / "src"),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            **more,
        }


def chosen_or_built(cache: Path) -> Environment:
    """The environment somebody named, or one of our own."""
    if CHOSEN:
        return Environment(Path(CHOSEN))
    cache.mkdir(parents=True, exist_ok=True)
    built = cache / f"venv-{sys.implementation.cache_tag}"
    done = built / "complete"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test run may be at the same thing
        if not done.is_file() or done.read_text() != WANTED:
            _need_an_index(cache)
            shutil.rmtree(built, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(built)])
            _run(["bash", "-euc", WANTED], PATH=f"{built / 'bin'}{os.pathsep}{SURROUNDINGS['PATH']}")
            done.write_text(WANTED)
    return Environment(built)


def _need_an_index(cache: Path) -> None:
    """Skip where pip reaches no packages at all; anything that fails after this is a defect."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(cache / "probe")]
    try:
        _run([*pip, "tinker==0.36.0"])
    except RuntimeError as problem:
        pytest.skip(
            f"pip finds no packages to build the cookbook's environment from: {str(problem)[-300:]}"
        )


def _run(command: list[str], **variables: str) -> None:
    done = subprocess.run(
        command, cwd=ROOT, env={**SURROUNDINGS, **variables}, capture_output=True, text=True, timeout=1800
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr[-3000:]}")
