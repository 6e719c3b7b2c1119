"""Many kills of real servers and engines: does a user's program ever notice, and how soon does it go on?

    python bench/kills.py [--kills 200] [--seed 1] [--sdk tinker tinkex] [--steps 40] [--minutes 60]
                          [--at "engine: in a sample" ...] [--notes FILE] [--fast]

Programs with each SDK in turn train, sample, save and load on a model of 205 thousand parameters while
their server (`--deterministic`) is killed with SIGKILL: at random times, the engine, the server or both,
and at every named moment. What each saw and left on disk is compared with a program that was never
disturbed. Seconds are from the kill to the first step that ends with the new engine. With `--notes` the
kills are added to those of earlier runs in that file, and the table is of all of them. With `--fast` the
server is not deterministic: every number a program saw must lie within a tolerance of what the undisturbed
program saw, and the largest difference is told.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.chaos.killing import (
    AGAIN,
    AT_RANDOM,
    CUTS,
    EVERYWHERE,
    FAST_WITHIN,
    Kill,
    Report,
    disturbed,
    undisturbed,
)
from tests.chaos.serving import DETERMINISTIC, SNAPSHOTS

from tinkex.testing import make_tiny_model


def table(kills: list[Kill], missed: Counter[str]) -> str:
    """A line for each point."""
    lines = [f"{'killed':44} {'kills':>5} {'median s':>8} {'worst s':>8} {'not reached':>11}"]
    for point in [*AT_RANDOM, *AGAIN, *EVERYWHERE[len(AT_RANDOM) :], None]:
        found = [each.seconds for each in kills if point in (None, each.point)]
        seconds = sorted(each for each in found if not math.isnan(each)) or [math.nan]
        absent = missed.total() if point is None else missed[point]
        middle, worst = statistics.median(seconds), seconds[-1]
        lines.append(f"{point or 'all':44} {len(found):5} {middle:8.1f} {worst:8.1f} {absent:11}")
    return "\n".join(lines)


def note(path: Path, report: Report, differences: int) -> None:
    """Add what came of a program to a file, a line for each."""
    line = {
        "sdk": report.sdk,
        "differences": differences,
        "kills": [[kill.point, kill.seconds] for kill in report.kills],
        "missed": report.missed,
    }
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def noted(path: Path) -> str:
    """The table of all programs in a file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kills = [Kill(point, seconds) for line in lines for point, seconds in line["kills"]]
    missed = Counter(point for line in lines for point in line["missed"])
    by_sdk = Counter(dict.fromkeys(("tinker", "tinkex"), 0))
    for line in lines:
        by_sdk[line["sdk"]] += len(line["kills"])
    wrong = sum(line["differences"] for line in lines)
    heading = f"{len(lines)} programs so far, {dict(by_sdk)} kills, {wrong} mismatches"
    return f"{heading}\n{table(kills, missed)}"


def main() -> int:
    """Kill until there were enough kills or time is up; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sdk", nargs="+", default=["tinker", "tinkex"], choices=["tinker", "tinkex"])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--at", nargs="+", default=EVERYWHERE, choices=EVERYWHERE, metavar="POINT")
    parser.add_argument("--notes", type=Path)
    parser.add_argument("--fast", action="store_true")
    chosen = parser.parse_args()
    chance = random.Random(chosen.seed)
    kills: list[Kill] = []
    missed: Counter[str] = Counter()
    wrong: list[str] = []
    points: list[str] = []
    plain, within, furthest = (SNAPSHOTS, FAST_WITHIN, 0.0) if chosen.fast else (DETERMINISTIC, 0.0, 0.0)
    expected: dict[str, Report] = {}
    until = time.monotonic() + 60 * chosen.minutes
    with tempfile.TemporaryDirectory(prefix="tinkex-kills-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        model = make_tiny_model(folder / "model")
        programs = 0
        while len(kills) < chosen.kills and time.monotonic() < until:
            sdk = chosen.sdk[programs % len(chosen.sdk)]
            if sdk not in expected:
                expected[sdk] = undisturbed(folder / f"expected-{sdk}", model, sdk, chosen.steps, plain)
            while len(points) < chosen.steps:
                points += chance.sample(chosen.at, len(chosen.at))
            report = Report(sdk)
            # Every other program with each SDK, where other kills are asked for too; an even seed begins.
            cuts = [each in CUTS for each in chosen.at]
            power = any(cuts) and (all(cuts) or (programs // len(chosen.sdk) + chosen.seed) % 2 == 0)
            options = (*plain, "--durability", "power") if power else plain
            place = folder / str(programs)
            try:
                points = disturbed(place, model, points, chosen.steps, chance, report, options)
                found = report.differences(expected[sdk], within)
                furthest = max(furthest, report.furthest(expected[sdk]))
            except AssertionError as problem:
                found = [str(problem)]
            wrong += [f"program {programs} ({sdk}): {each}" for each in found]
            kills += report.kills
            missed.update(report.missed)
            programs += 1
            print(f"{sdk}: {len(report.kills)} kills, {len(found)} differences", flush=True)
            if chosen.notes:
                note(chosen.notes, report, len(found))
    print(table(kills, missed))
    print(f"{programs} programs, {len(kills)} kills, {len(wrong)} mismatches")
    if chosen.notes:
        print(noted(chosen.notes))
    if chosen.fast:
        print(f"largest difference of a number {furthest:.2e}, allowed are {within:.1e}")
    print("\n".join(wrong))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
