"""The servers under test: where they are, what they were told, and how they are started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest

from tinkex.cli.serve import NEEDED
from tinkex.testing import FakeServer, FakeService
from tinkex.testing.tiny_models import make_tiny_model
from tinkex.types import ClientConfigResponse

KEY = "tml-matrix-of-versions"
MODEL = "tiny/model"
HOLD = 0.5  # seconds a poll is held
HOLE = 3.0  # seconds a missing operation is waited for

REAL = {"in order": ("server", False), "at once": ("server", True)}
FAKE = {"fake, in order": ("fake", False), "fake, at once": ("fake", True)}
if any(find_spec(name) is None for name in NEEDED):
    REAL = {}
KINDS = {**REAL, **FAKE}


@dataclass(frozen=True)
class Served:
    """A running server."""

    url: str
    other_key: str = field(repr=False)
    """A key of somebody else."""
    parallel: bool
    """Whether clients are told to send the pieces of a pass in parallel."""
    fake: FakeService | None = None
    """What only makes believe to train and sample, if it is that."""
    model: str = MODEL
    key: str = field(default=KEY, repr=False)


def start(kind: str, parallel: bool, folders: pytest.TempPathFactory) -> AbstractContextManager[Served]:
    """Run a server, or a fake of one, until left."""
    if kind == "fake":
        return start_fake(parallel=parallel)
    return start_server(folders.mktemp("server"), parallel=parallel)


@contextmanager
def start_fake(*, parallel: bool) -> Iterator[Served]:
    """Serve a fake from this process."""
    other = "tml-somebody-else"
    service = FakeService(
        config=ClientConfigResponse(parallel_fwdbwd_chunks=parallel),
        models=[MODEL],
        api_keys=[KEY, other],
        hold=HOLD,
        skip_after=HOLE,
    )
    with FakeServer(service) as server:
        yield Served(server.base_url, other, parallel, service)


@contextmanager
def start_server(folder: Path, *, parallel: bool) -> Iterator[Served]:
    """Run `tinkex serve` with one tiny model, with all its files under `folder`."""
    model, state = make_tiny_model(folder / "model"), folder / "state"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TINKER", "TINKEX"))}
    surroundings = {**kept, "TINKER_API_KEY": KEY, "OMP_NUM_THREADS": "1"}
    other = subprocess.run(
        [sys.executable, "-m", "tinkex", "--quiet", "keys", "add", "other", "--state", str(state)],
        env=surroundings,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    flags = [
        *("--model", f"{MODEL}={model}", "--state", str(state), "--port", "0", "--device", "cpu"),
        "--parallel-chunks" if parallel else "--no-parallel-chunks",
        *("--time", f"hold={HOLD}", "--time", f"hole={HOLE}", "--time", f"parallel-hole={HOLE}"),
        *("--time", "drain=1"),
    ]
    log = folder / "log.txt"
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "tinkex", "serve", *flags],
            env=surroundings,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )
    try:
        url = first_words(process)
        assert url, f"the server did not start:\n{log.read_text()[-4000:]}"
        yield Served(url, other, parallel)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    # A client would have tried again, and nobody would have noticed.
    mistakes = [line for line in log.read_text().splitlines() if " error " in line]
    assert not mistakes, "\n".join(mistakes[:5])


def first_words(process: subprocess.Popen[str]) -> str:
    """The address a starting server tells, once its model is ready; empty if it ended before that."""
    url = ""
    assert process.stdout is not None
    for line in process.stdout:
        if "TINKER_BASE_URL=" in line:
            url = line.partition("=")[2].strip()
        if line.startswith("ready:"):
            return url
    return ""
