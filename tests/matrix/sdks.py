"""Official SDKs, many versions side by side: each alone in a folder, over one folder of what they need.

Nothing is installed before it is asked for, and what is there is used again: in the folder that
TINKEX_SDK_CACHE names, or in the one given.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

NEWEST = "0.36.0"
VERSIONS = (
    "0.3.0", "0.6.3", "0.12.0", "0.16.1", "0.18.2", "0.20.0", "0.22.7",
    "0.24.1", "0.25.0", "0.26.2", "0.30.4", "0.35.0", NEWEST,
)  # fmt: skip
NEEDED = (
    "anyio", "distro", "grpcio", "httpx[http2]", "numpy", "orjson", "protobuf",
    "pydantic", "pyqwest", "sniffio", "typing-extensions", "zstandard",
)  # fmt: skip
# The first versions import torch for the sake of one class; the real one takes longer than a journey.
STAND_IN = {"torch/__init__.py": "class Tensor:\n    pass\n"}

# As they were when this was imported: tests run with proxies and our own variables taken away.
SURROUNDINGS = dict(os.environ)
CHOSEN = SURROUNDINGS.get("TINKEX_SDK_CACHE")


class Sdks:
    """The versions installed under one folder, and how to run a program with one of them."""

    def __init__(self, folder: Path) -> None:
        # Compiled packages fit one interpreter only.
        self.folder = folder / (sys.implementation.cache_tag or "python")

    def path_of(self, version: str) -> list[str]:
        """The folders a program needs on its path to import this version, and nothing else."""
        sdk = self._installed(f"tinker-{version}", "--no-deps", f"tinker=={version}")
        needed = self._installed("needed", *NEEDED)
        return [str(sdk), str(needed), str(self._stand_in())]

    def _installed(self, name: str, *wanted: str) -> Path:
        place = self.folder / name
        if not place.is_dir():
            self.folder.mkdir(parents=True, exist_ok=True)
            # Another test run may be at the same thing: whoever is first to rename wins.
            with tempfile.TemporaryDirectory(dir=self.folder) as fresh:
                target = Path(fresh, name)
                pip("install", "--quiet", "--target", str(target), *wanted)
                try:
                    target.rename(place)
                except OSError:
                    if not place.is_dir():
                        raise
        return place

    def _stand_in(self) -> Path:
        place = self.folder / "stand-in"
        for name, text in STAND_IN.items():
            file = place / name
            if not file.is_file():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
        return place


def pip(*arguments: str) -> str:
    """What pip prints."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    done = subprocess.run(command, env=SURROUNDINGS, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"pip {' '.join(arguments)}:\n{done.stderr[-2000:]}")
    return done.stdout


def published() -> list[str]:
    """Every released version from the oldest supported one on, oldest first."""
    listing = pip("index", "versions", "tinker")
    found = re.search(r"Available versions: (.*)", listing)
    if found is None:
        raise RuntimeError(f"pip lists no versions:\n{listing[:2000]}")
    known = [each.strip() for each in found[1].split(",")]
    released = [each for each in known if re.fullmatch(r"\d+\.\d+\.\d+", each)]
    return sorted((each for each in released if order(each) >= order(VERSIONS[0])), key=order)


def order(version: str) -> tuple[int, ...]:
    """A version as something to sort by."""
    return tuple(int(part) for part in version.split("."))


def another(seed: int) -> str:
    """A published version that is none of the usual ones, by a seed."""
    others = [each for each in published() if each not in VERSIONS]
    return random.Random(seed).choice(others)
