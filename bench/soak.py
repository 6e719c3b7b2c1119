"""A server under everything at once, for a while: does it leak, fail, stall or favour anybody?

    python bench/soak.py [--minutes 30] [--tenants 50] [--engine tiny|noop] [--out FOLDER]

One real server and engine (a model of 205 thousand parameters, one thread) on loopback. Fifty tenants, each
with a key of its own, train and sample with our client, some with the official SDK; one more sends bursts
of samples; others are slow, vanish in the middle or make mistakes; the server's date jumps an hour ahead
and back, and an hour behind. What is kept for a while (sessions nobody keeps alive, results nobody fetches)
is kept for a shorter while than by default, so that a third of the run is enough to come to a steady state.
Every few seconds memory, handles, latencies, progress, queues and files are written to samples.jsonl; at
the end come a summary, a page with plots, and exit code 1 if a check has failed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from soak_report import ALIVE, checks, page, summary
from soak_rude import Rude
from soak_worker import MODEL, Tally, memory

from tinkex.server.keys import KeyRing
from tinkex.server.places import KEY_FILE
from tinkex.server.state_folder import StateFolder
from tinkex.testing import make_tiny_model

HERE = Path(__file__).parent
HOUR = 3600.0
LOCK = "engine.lock"
"""What an engine's folder holds as long as there is one."""


class Plan:
    """How long and how much."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.seconds = 60.0 * chosen.minutes
        self.tenants, self.noop, self.burst = chosen.tenants, chosen.engine == "noop", chosen.burst
        self.every = max(1.0, min(5.0, self.seconds / 60))
        official = find_spec("tinker") is not None and not chosen.ours
        self.official = max(1, self.tenants // 12) if official else 0
        # An official client's heartbeats are ten seconds apart.
        self.session = max(30.0, min(120.0, self.seconds / 15))
        self.jump = max(5.0, self.seconds / 40)

    @property
    def variables(self) -> dict[str, str]:
        """What the server is told."""
        return {
            "TINKEX_PORT": "0", "TINKEX_DEVICE": "cpu", "TINKEX_THREADS": "1",
            "TINKEX_TIME_SESSION": str(self.session), "TINKEX_TIME_SAMPLES": str(self.session),
            "TINKEX_TIME_RESULTS": str(2 * self.session), "TINKEX_TIME_HOUSEKEEPING": "2",
            "TINKEX_LIMIT_SHORTEST_TTL": "1", "OMP_NUM_THREADS": "1",
        }  # fmt: skip

    @property
    def worker(self) -> dict[str, Any]:
        """What tenants are told."""
        return {
            "burst": self.burst, "burst_pause": max(2.0, self.seconds / 60), "burst_key": None,
            "stagger": min(10.0, self.seconds / 12), "short_ttl": 5, "long_ttl": 1800,
            "rude_pause": 1.0,
        }  # fmt: skip


# ---- processes


class Worker:
    """A process of clients, and the last thing it said."""

    def __init__(self, name: str, plan: dict[str, Any], log: Path, *arguments: str) -> None:
        self.name = name
        self.said: dict[str, Any] = {"steps": {}, "did": {}, "errors": {}, "memory": 0.0}
        self._milliseconds: dict[str, list[float]] = {}
        self._lock = threading.Lock()
        with log.open("a") as file:
            self._process = subprocess.Popen(
                [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file,
                text=True, cwd=HERE, env=clean_environment(),
            )  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(plan) + "\n")
        self._process.stdin.flush()
        self._reader = threading.Thread(target=self._listen)
        self._reader.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._lock:
                self.said = json.loads(line)
                for name, found in self.said.pop("milliseconds").items():
                    self._milliseconds.setdefault(name, []).extend(found)

    def taken(self) -> dict[str, list[float]]:
        """Latencies since the last time."""
        with self._lock:
            found, self._milliseconds = self._milliseconds, {}
        return found

    def end(self, seconds: float) -> None:
        """Have it come to its end; one that does not is stuck."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            code = -9
        self._reader.join(10)
        if code:
            self.said["errors"] = {**self.said["errors"], f"{self.name} ended with {code}": 1}


def clean_environment() -> dict[str, str]:
    """This process's environment without what clients and servers read."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TINKER", "TINKEX"))}
    return {**kept, "TINKER_TELEMETRY": "0"}


class Server:
    """The server and its engine, seen from outside and a little from inside."""

    def __init__(self, folder: Path, plan: Plan, key: str) -> None:
        self.state, self.log = folder / "state", folder / "server.log"
        model = make_tiny_model(folder / "model")
        words = ["--noop"] if plan.noop else []
        variables = {"TINKEX_MODEL": f"{MODEL}={model}", "TINKEX_STATE": str(self.state)}
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tinkex.testing.watched_server", *words],
                stdout=subprocess.PIPE, stderr=log, text=True,
                env={**clean_environment(), **plan.variables, **variables, "TINKER_API_KEY": key},
            )  # fmt: skip
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            raise SystemExit(self.log.read_text())
        self.url: str = json.loads(said)["url"]
        self.processes = {"server": self._process.pid}
        self._sizes: dict[str, float] = {}
        self._sized = 0.0

    def ready(self) -> None:
        """Wait for the engine."""
        until = time.monotonic() + 120
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.url}/readyz", timeout=10).close()
                break
            time.sleep(0.2)
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        if children:
            self.processes["engine"] = int(children[0])

    def inside(self, query: str = "") -> dict[str, Any]:
        """What the server says of itself."""
        with urllib.request.urlopen(f"{self.url}/inside{query}", timeout=120) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def outside(self) -> dict[str, Any]:
        """Memory, handles and threads by process."""
        found: dict[str, Any] = {}
        for name, process in self.processes.items():
            found[name] = {
                "memory": memory(process),
                "handles": len(os.listdir(f"/proc/{process}/fd")),
                "threads": len(os.listdir(f"/proc/{process}/task")),
            }
        return found

    def opened(self) -> dict[str, Counter[str]]:
        """What the processes have open."""
        found: dict[str, Counter[str]] = {}
        for name, process in self.processes.items():
            found[name] = Counter()
            for entry in os.scandir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):
                    place = os.readlink(entry.path).replace(str(self.state), "state")
                    found[name][place.partition(":[")[0]] += 1
        return found

    def disk(self) -> dict[str, float]:
        """Megabytes by part of the state folder; looked up now and then."""
        if time.monotonic() - self._sized > 15:
            sizes: Counter[str] = Counter()
            for place, _, names in os.walk(self.state):
                inside = Path(place).relative_to(self.state).parts
                for name in names:
                    with contextlib.suppress(OSError):
                        part = inside[0] if inside else name
                        sizes[part] += os.stat(Path(place, name)).st_size
            self._sizes = {name: round(size / 1e6, 3) for name, size in sizes.items()}
            self._sized = time.monotonic()
        return self._sizes

    def files(self) -> dict[str, int]:
        """How many files lie where those of models, samplers and checkpoints are."""
        found: Counter[str] = Counter()
        for part in ("checkpoints", "snapshots", "engine"):
            for place, _, names in os.walk(self.state / part):
                found.update(
                    f"{Path(place).relative_to(self.state)}/{name}" for name in names if name != LOCK
                )
        return dict(found)

    def complaints(self) -> Counter[str]:
        """What its log says went wrong."""
        found: Counter[str] = Counter()
        for line in self.log.read_text(errors="replace").splitlines():
            level, _, text = line.partition(" ")[2].partition(" ")
            if level in ("error", "critical"):
                found[f"log: {text[:160]}"] += 1
        return found

    def stop(self) -> int:
        """Stop as Ctrl-C does."""
        self._process.terminate()
        try:
            return self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


# ---- the run


class Soak:
    """One soak from start to end."""

    def __init__(self, plan: Plan, folder: Path, out: Path) -> None:
        self.plan, self.out = plan, out
        state = StateFolder(folder / "state")
        ring = KeyRing(state.path / KEY_FILE)
        state.close()
        names = [f"tenant-{number:02}" for number in range(plan.tenants)]
        self.keys = {
            name: ring.add(name, name)[1].reveal() for name in [*names, "burst", "rude-1", "rude-2"]
        }
        self.server = Server(folder, plan, "tml-soak")
        self.workers: list[Worker] = []
        self.records: list[dict[str, Any]] = []
        self.shift = 0.0
        self.opened: dict[str, Counter[str]] = {}
        self.began = time.monotonic()

    def run(self) -> dict[str, Any]:
        """All of it; the facts the checks need."""
        self.server.ready()
        idle = self.warm()
        self.began = time.monotonic()
        self.start()
        with (self.out / "samples.jsonl").open("w") as file:
            while (passed := time.monotonic() - self.began) < self.plan.seconds:
                time.sleep(self.plan.every)
                self.jump(passed)
                record = self.look()
                self.records.append(record)
                file.write(json.dumps(record) + "\n")
                file.flush()
        self.jump(0.0)
        for worker in self.workers:
            worker.end(300)
        left, rest = self.settle(idle)
        code = self.server.stop()
        return {
            "idle": idle, "rest": rest, "left": left, "records": self.records, "exit": code,
            "errors": self.merged("errors") + self.server.complaints(), "did": self.merged("did"),
            "steps": self.merged("steps"), "seconds": self.plan.seconds,
        }  # fmt: skip

    def warm(self) -> dict[str, Any]:
        """Use everything once, so that what is opened once is open; then what an idle server holds."""

        async def once() -> None:
            rude = Rude({"url": self.server.url, "keys": [self.keys["rude-1"]]}, Tally())
            await asyncio.gather(*(rude.loads_and_unloads() for _ in range(8)))
            await asyncio.gather(*(rude.mistaken() for _ in range(8)))
            await rude.vanishes_in_stream()

        asyncio.run(once())
        time.sleep(2.0)
        self.opened = self.server.opened()
        return self.server.outside()

    def start(self) -> None:
        """Let the clients loose."""
        common = {"url": self.server.url, **self.plan.worker}
        log = self.out / "clients.log"
        names = [name for name in self.keys if name.startswith("tenant")]
        mine, theirs = names[self.plan.official :], names[: self.plan.official]
        tenants = str(HERE / "soak_tenants.py")
        self.workers.append(
            Worker("tinkex", {**common, "keys": {name: self.keys[name] for name in mine},
                   "burst_key": self.keys["burst"]}, log, tenants, "tinkex")
        )  # fmt: skip
        if theirs:
            keys = {name: self.keys[name] for name in theirs}
            self.workers.append(Worker("tinker", {**common, "keys": keys}, log, tenants, "tinker"))
        rude = [self.keys["rude-1"], self.keys["rude-2"]]
        self.workers.append(Worker("rude", {**common, "keys": rude}, log, str(HERE / "soak_rude.py")))

    def jump(self, passed: float) -> None:
        """The server's date: an hour ahead for a while, right, an hour behind, right, and so on."""
        part = int(passed / self.plan.jump) % 8
        shift = HOUR if part == 3 else -HOUR if part == 6 else 0.0
        if shift != self.shift:
            self.shift = shift
            self.server.inside(f"?shift={shift}")

    def look(self) -> dict[str, Any]:
        """How it is now."""
        taken: dict[str, list[float]] = {"train": [], "sample": []}
        for worker in self.workers:
            for name, found in worker.taken().items():
                taken[name] += found
        return {
            "at": round(time.monotonic() - self.began, 1), "shift": self.shift, **self.server.outside(),
            "inside": self.server.inside(), "disk": self.server.disk(),
            "latency": {name: [at(found, 0.5), at(found, 0.99)] for name, found in taken.items()},
            "clients": {worker.name: worker.said["memory"] for worker in self.workers},
            "steps": dict(self.merged("steps")), "did": dict(self.merged("did")),
            "errors": dict(self.merged("errors")),
        }  # fmt: skip

    def merged(self, what: str) -> Counter[str]:
        """What all workers have counted."""
        found: Counter[str] = Counter()
        for worker in self.workers:
            found.update(worker.said[what])
        return found

    def settle(self, idle: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Wait until nobody is left, or ought to have been; what is left, and what the processes hold."""
        until = time.monotonic() + 1.5 * self.plan.session + 30
        while time.monotonic() < until:
            time.sleep(1.0)
            # Before a connection is opened to look inside.
            rest, opened = self.server.outside(), self.server.opened()
            left = self.server.inside()
            left["files"] = self.server.files()
            left["opened"] = {name: dict(found - self.opened[name]) for name, found in opened.items()}
            same = all(rest[name]["handles"] == idle[name]["handles"] for name in idle)
            if same and not any(left[name] for name in ALIVE) and not any(left["files"].values()):
                break
        (self.out / "objects.json").write_text(json.dumps(self.server.inside("?objects"), indent=1))
        return left, rest


def at(found: list[float], part: float) -> float | None:
    """The value below which this part of them lies."""
    return sorted(found)[min(len(found) - 1, int(part * len(found)))] if found else None


def main() -> int:
    """Soak, report; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--tenants", type=int, default=50)
    parser.add_argument("--burst", type=int, default=2000, help="samples sent at once")
    parser.add_argument("--engine", choices=["tiny", "noop"], default="tiny")
    parser.add_argument("--ours", action="store_true", help="our client alone")
    parser.add_argument("--out", type=Path, default=Path("soak"), help="where the figures go")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tinkex-soak-", ignore_cleanup_errors=True) as place:
        soak = Soak(Plan(chosen), Path(place), chosen.out)
        try:
            facts = soak.run()
        finally:
            for worker in soak.workers:
                worker.end(1)
            soak.server.stop()
            (chosen.out / "server.log").write_bytes(soak.server.log.read_bytes())
    found = checks(facts)
    (chosen.out / "summary.json").write_text(json.dumps(summary(facts, found), indent=1))
    (chosen.out / "soak.html").write_text(page(facts, found))
    for each in found:
        print(f"{'ok  ' if each.good else 'FAIL'} {each.name}: {each.text}")
    return not all(each.good for each in found)


if __name__ == "__main__":
    sys.exit(main())
