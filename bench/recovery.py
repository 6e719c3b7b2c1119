"""How soon a killed server goes on, and what being able to costs while nothing happens.

    python bench/recovery.py [--only start|back|cost] [--model FOLDER]
                             [--models 1 16 64] [--steps 8] [--turns 30] [--turn-steps 32]

Three things, with a model of 205 thousand parameters unless a folder is given:

start   a server on its way: when health answers, and when its model is loaded
back    so many live models, each so many steps past its snapshot: SIGKILL, start again, and every model is
        given its next step at once; seconds from the start to health, the first and the last step's end
cost    two servers in turns, one that takes snapshots as by default and one that never does: steps a
        second, and CPU seconds of server and engine together
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.chaos.serving import KEY, MODEL, Served

import tinkex
from tinkex import types
from tinkex.testing import make_tiny_model

NEVER = ("--snapshot-steps", "1000000000", "--snapshot-bytes", "1000000 GiB")
ROWS, LENGTH, RANK = 8, 64, 8
SNAPSHOT_STEPS = 16
"""Between two snapshots, as by default."""
GOAL = 0.05
"""The most that snapshots may cost of training's throughput."""


def answers(url: str) -> int:
    """The status of a page, 0 if nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as found:
            return int(found.status)
    except urllib.error.HTTPError as problem:
        return problem.code
    except OSError:
        return 0


def wait(url: str) -> float:
    """When a page first answers 200."""
    while answers(url) != 200:
        time.sleep(0.01)
    return time.monotonic()


def data() -> list[types.Datum]:
    """A batch."""
    batch = []
    for row in range(ROWS):
        tokens = [(7 * i + 13 * row * i + row) % 250 for i in range(LENGTH + 1)]
        weights = [1.0] * LENGTH
        inputs: dict[str, Any] = {"target_tokens": tokens[1:], "weights": weights}
        batch.append(
            types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)
        )
    return batch


ADAM = types.AdamParams(learning_rate=1e-4)


def step(client: Any, batch: list[types.Datum]) -> Any:
    """One step on its way; its end is the step's end."""
    client.forward_backward(batch, "cross_entropy")
    return client.optim_step(ADAM)


# ---- start


def start(folder: Path, model: Path) -> None:
    """When health answers, and when the model is loaded."""
    served = Served(folder, model, ())
    began = time.monotonic()
    served.start()
    health = wait(f"{served.url}/api/v1/healthz") - began
    loaded = answers(f"{served.url}/readyz") == 200
    ready = wait(f"{served.url}/readyz") - began
    served.stop()
    order = "AFTER the model was loaded" if loaded else "before the model was loaded"
    print(f"health answers after {health:.2f} s, {order}: {ready:.2f} s", flush=True)


# ---- back


def back(folder: Path, model: Path, count: int, steps: int) -> None:
    """Kill a server with so many models and see them all do another step."""
    served = Served(folder, model, ())
    served.start()
    service = tinkex.ServiceClient(base_url=served.url, api_key=KEY)
    clients = [service.create_lora_training_client(MODEL, rank=RANK, seed=n) for n in range(count)]
    batch = data()
    for _ in range(steps):
        for future in [step(client, batch) for client in clients]:
            future.result()
    served.kill("server")
    began = time.monotonic()
    served.start()
    health = wait(f"{served.url}/api/v1/healthz") - began
    going = [step(client, batch) for client in clients]
    ready = wait(f"{served.url}/readyz") - began
    ends = [time.monotonic() - began for _ in as_completed(going)]
    for future in going:
        future.result()
    service.close()
    served.stop()
    print(
        f"{count:4} models, {steps} steps each to replay: health {health:5.2f} s, engine {ready:5.2f} s, "
        f"first step {ends[0]:5.2f} s, last {ends[-1]:5.2f} s",
        flush=True,
    )


# ---- cost


class Trained:
    """A server with one model in training, and what its steps took."""

    def __init__(self, folder: Path, model: Path, options: Sequence[str]) -> None:
        self.served = Served(folder, model, options)
        self.served.start()
        self.service = tinkex.ServiceClient(base_url=self.served.url, api_key=KEY)
        self.client = self.service.create_lora_training_client(MODEL, rank=RANK, seed=1)
        self.seconds: list[float] = []
        self.cpu: list[float] = []
        self.engine_cpu: list[float] = []

    def train(self, steps: int) -> None:
        """So many steps, two of them on their way at any time."""
        batch, spent, began = data(), self._spent(), time.monotonic()
        under_way: list[Any] = []
        for _ in range(steps):
            under_way.append(step(self.client, batch))
            if len(under_way) > 1:
                under_way.pop(0).result()
        under_way.pop().result()
        self.seconds.append((time.monotonic() - began) / steps)
        server, engine = ((b - a) / steps for a, b in zip(spent, self._spent(), strict=True))
        self.cpu.append(server)
        self.engine_cpu.append(engine)

    def _spent(self) -> tuple[float, float]:
        """CPU seconds of the server and of its engine."""
        return _cpu(self.served.pid), _cpu(self.served.engine())

    def stop(self) -> None:
        """Let go of it."""
        self.service.close()
        self.served.stop()


def _cpu(process: int | None) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cost(folder: Path, model: Path, turns: int, steps: int) -> bool:
    """Compare; whether the goal is met."""
    with_, without = Trained(folder / "with", model, ()), Trained(folder / "without", model, NEVER)
    for each in (with_, without):
        # Half a snapshot's time further, so that all that a turn begins is done before it ends.
        each.train(steps + SNAPSHOT_STEPS // 2)
        for measured in (each.seconds, each.cpu, each.engine_cpu):
            measured.clear()
    for turn in range(turns):
        # Who begins changes, so that a machine that slows down meanwhile is no one's fault.
        for each in (with_, without) if turn % 2 else (without, with_):
            each.train(steps)
    for each in (with_, without):
        each.stop()
    for name, each in (("snapshots", with_), ("none", without)):
        rate = 1 / fastest(each.seconds)
        server, engine = (1000 * statistics.median(found) for found in (each.cpu, each.engine_cpu))
        print(f"{name:>10}: {rate:6.1f} steps/s, CPU ms a step {server:5.2f} server, {engine:5.2f} engine")
    overhead = fastest(with_.seconds) / fastest(without.seconds) - 1
    middle = statistics.median(a / b for a, b in zip(with_.seconds, without.seconds, strict=True)) - 1
    spent = [sum(map(statistics.median, (each.cpu, each.engine_cpu))) for each in (with_, without)]
    busy = spent[0] / spent[1] - 1
    print(
        f"snapshots cost {100 * overhead:+.1f} % of time (goal {100 * GOAL:.0f} %), "
        f"{100 * middle:+.1f} % in the median of neighbouring turns, {100 * busy:+.1f} % of CPU",
        flush=True,
    )
    return overhead <= GOAL


def fastest(seconds: Sequence[float]) -> float:
    """The mean of the fastest third: what other work on the machine slowed down does not count."""
    return statistics.mean(sorted(seconds)[: max(1, len(seconds) // 3)])


def main() -> int:
    """Run what was chosen; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--steps", type=int, default=8, help="replayed steps of each model")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--turn-steps", type=int, default=32)
    parser.add_argument("--model", type=Path, help="a model folder instead of the tiny one")
    parser.add_argument("--only", choices=["start", "back", "cost"])
    chosen = parser.parse_args()
    well = True
    with tempfile.TemporaryDirectory(prefix="tinkex-recovery-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        model = chosen.model or make_tiny_model(folder / "model")
        if chosen.only in (None, "start"):
            start(folder / "start", model)
        if chosen.only in (None, "back"):
            for count in chosen.models:
                back(folder / f"back-{count}", model, count, chosen.steps)
        if chosen.only in (None, "cost"):
            well = cost(folder / "cost", model, chosen.turns, chosen.turn_steps)
    return not well


if __name__ == "__main__":
    sys.exit(main())
