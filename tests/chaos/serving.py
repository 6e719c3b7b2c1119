"""A `tinkex serve` that can be killed and started again on the same state and port, and what it leaves."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tinkex.server.state_check import check
from tinkex.testing.kill_points import KillOrder

from .power import Power

KEY = "tml-killed-and-killed-again"
MODEL = "tiny/model"
PATIENCE = 120.0
SNAPSHOTS = ("--snapshot-steps", "3", "--snapshot-seconds", "0")
DETERMINISTIC = (*SNAPSHOTS, "--deterministic")
_ID = re.compile(r"\bs-[0-9a-f]{16}")


def clean_environment() -> dict[str, str]:
    """This process's environment without what clients and servers read."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TINKER", "TINKEX"))}
    return {**kept, "OMP_NUM_THREADS": "1"}


def wait_for(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Look again and again until something holds."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.01)


class Served:
    """One state folder and port, and the server that has it at the moment."""

    def __init__(self, folder: Path, model: Path, options: Sequence[str] = DETERMINISTIC) -> None:
        self.folder, self.model, self.options = folder, model, options
        folder.mkdir(parents=True, exist_ok=True)
        self.state, self.log = folder / "state", folder / "log.txt"
        # Nothing else is said to survive a power cut.
        self.power = Power(self.state, folder / "power") if "power" in options else None
        self.order = KillOrder(folder / "order")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start a server; it listens when this returns, or has died of an order."""
        words = [
            *("--json", "serve", "--model", f"{MODEL}={self.model}", "--state", str(self.state)),
            *("--port", str(self.port), "--device", "cpu", "--threads", "1", "--time", "drain=5"),
            *self.options,
        ]
        environment = {**clean_environment(), **self.order.environment, "TINKER_API_KEY": KEY}
        if self.power is not None:
            environment |= self.power.environment
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tinkex", *words],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said or self._process.wait() == -signal.SIGKILL, self.last_words()

    @property
    def running(self) -> bool:
        """Whether there is a server."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._process is not None
        return self._process.pid

    def engine(self) -> int | None:
        """The engine's process id, if there is one."""
        if self._process is None:
            return None
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and _parent(entry) == self._process.pid:
                return int(entry.name)
        return None

    def kill(self, what: str) -> bool:
        """SIGKILL the engine, the server (which takes its engine along), or both; whether there was one."""
        engine = self.engine()
        if what in ("engine", "both"):
            if engine is None:
                return False
            os.kill(engine, signal.SIGKILL)
        if what in ("server", "both"):
            assert self._process is not None
            self._process.kill()
            self.gone(engine)
        else:
            assert engine is not None
            wait_for(lambda: not _alive(engine), "the engine's end")
        return True

    def cut_power(self, chance: random.Random) -> None:
        """End all that still runs, and leave on disk what was synced and some of what was not."""
        assert self._process is not None
        assert self.power is not None
        engine = self.engine()
        self._process.kill()
        self.gone(engine)
        self.power.cut(chance, chance.choice((0.0, 0.5)))

    def gone(self, engine: int | None) -> None:
        """Wait for the end of a server that was killed, and see that its engine ended too."""
        assert self._process is not None
        assert self._process.wait() == -signal.SIGKILL, self.last_words()
        assert self._process.stdout is not None
        self._process.stdout.close()
        if engine is not None:
            wait_for(lambda: not _alive(engine), "the engine to die with its server")

    def stop(self) -> None:
        """Stop as Ctrl-C does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0, self.last_words()

    def left(self) -> int:
        """Wait until it has left; its exit code."""
        assert self._process is not None
        self._process.communicate(timeout=60)
        return self._process.returncode

    def destroy(self) -> None:
        """End whatever still runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        """The end of the log."""
        return self.log.read_text()[-3000:]

    # ---- what is on disk

    def checkpoints(self) -> dict[str, str]:
        """What was saved, by place: what is said of it, and a digest of the numbers' bytes."""
        place = self.state / "checkpoints"
        return {
            _anonymous(str(path.relative_to(place))): _content(path)
            for path in place.rglob("*.safetensors")
        }

    def files(self) -> Counter[str]:
        """Every file by its place; ids of sessions and numbers of snapshots and bodies are left out."""
        found: Counter[str] = Counter()
        for path in self.state.rglob("*"):
            if path.is_dir():
                continue
            name = _anonymous(str(path.relative_to(self.state)))
            name = re.sub(r"^snapshots/([^/]+)/\d+/", r"snapshots/\1/N/", name)
            found[re.sub(r"^store/bodies/.*", "store/bodies/N", name)] += 1
        return found

    def findings(self) -> list[str]:
        """What `tinkex state check` has to say: files nobody needs, rows without files, runs given up."""
        report = check(self.state)
        return [*(f"{each.kind} {each.place}: {each.text}" for each in report.findings), *report.notes]

    def ended(self) -> Counter[tuple[str, str]]:
        """How many operations there are of each kind and state."""
        (path,) = (self.state / "store").glob("*.db")
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
            rows = database.execute(
                "SELECT kind, coalesce(state, 'queued'), count(*)"
                " FROM operations LEFT JOIN outcomes USING (n) GROUP BY 1, 2"
            )
            return Counter({(kind, state): count for kind, state, count in rows})


def _content(path: Path) -> str:
    """The header in one order, whatever order it was written in, and a digest of the rest."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:end]), sort_keys=True)
    return f"{header} {hashlib.sha256(data[end:]).hexdigest()}"


def _anonymous(name: str) -> str:
    return _ID.sub("ID", name)


def _parent(entry: Path) -> int | None:
    try:
        stat = (entry / "stat").read_text()
    except OSError:
        return None
    state, parent = stat.rpartition(")")[2].split()[:2]
    return None if state == "Z" else int(parent)


def _alive(process: int) -> bool:
    return _parent(Path("/proc") / str(process)) is not None
