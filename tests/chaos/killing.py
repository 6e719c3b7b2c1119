"""One user's program against a server that is killed again and again, and what came of it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinkex.testing.kill_points import ENGINE_POINTS, RESTART_POINTS, SERVER_POINTS

from .power import COMPILER
from .serving import DETERMINISTIC, KEY, PATIENCE, Served, clean_environment, wait_for

AT_RANDOM = ("engine", "server", "both")
AGAIN = tuple(f"{what}, on its way back" for what in AT_RANDOM)
"""Killed once more before anything was done; never so often that an engine seems to die of its work."""
ONCE = ("model: before its row", "model: after its row", "engine: before a model is made")
"""Moments that come only at the beginning of a program."""
POWER_CUT = "power cut"
CUTS = (
    POWER_CUT,
    f"{POWER_CUT}, operation: after its row",
    f"{POWER_CUT}, operation: after its end is written",
    f"{POWER_CUT}, store: after a body's file",
    f"{POWER_CUT}, store: after a commit",
    f"{POWER_CUT}, snapshot: after its row",
    f"{POWER_CUT}, sample: after it is noted",
    f"{POWER_CUT}, engine: after weights are frozen",
    f"{POWER_CUT}, folder: before it is renamed",
    f"{POWER_CUT}, folder: after it is renamed",
)
"""The machine goes down: at any time, or at a moment of the server or engine."""
EVERYWHERE = (*AT_RANDOM, *SERVER_POINTS, *RESTART_POINTS, *ENGINE_POINTS, *(CUTS if COMPILER else ()))
FAST_WITHIN = 1.3e-6
"""How far apart numbers may lie without determinism: ten times what bench/replay_spread.py measures."""
_REACHED_BY = 20.0


@dataclass(frozen=True)
class Kill:
    """One death: where it was, and after how many seconds the program had done another step."""

    point: str
    seconds: float


@dataclass
class Report:
    """What a program saw and left behind, and how often its server was killed meanwhile."""

    sdk: str
    seen: dict[str, Any] = field(default_factory=dict)
    checkpoints: dict[str, str] = field(default_factory=dict)
    files: Counter[str] = field(default_factory=Counter)
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    kills: list[Kill] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    """Moments that were ordered and never came."""
    findings: list[str] = field(default_factory=list)
    """What is wrong with the state folder in the end."""

    def differences(self, other: Report, within: float = 0.0) -> list[str]:
        """In what two programs differ, though one was never disturbed.

        Where numbers need not be the same bits, they must be within so much, relative to the larger of 1
        and what was expected, and samples must be there, whatever they are.
        """
        found = [
            f"{name}: {self.seen.get(name)!r:.200} is not {other.seen.get(name)!r:.200}"
            for name in sorted({*self.seen, *other.seen})
            if (self.apart(other, name) > within if within else self.seen.get(name) != other.seen.get(name))
        ]
        for what in () if within else ("checkpoints", "files", "ended"):
            mine, theirs = dict(getattr(self, what)), dict(getattr(other, what))
            found += [
                f"{what}, {name}: {mine.get(name)} is not {theirs.get(name)}"
                for name in sorted({*mine, *theirs})
                if mine.get(name) != theirs.get(name)
            ]
        return [*found, *self.findings]

    def apart(self, other: Report, name: str) -> float:
        """How far what two programs saw under a name lies apart; samples are only counted."""
        return _apart(_counted(name, self.seen.get(name)), _counted(name, other.seen.get(name)))

    def furthest(self, other: Report) -> float:
        """How far it lies apart where it lies furthest."""
        return max(self.apart(other, name) for name in {*self.seen, *other.seen})


DRAWN = ("base ", "unnamed ", "named ")


def _counted(name: str, seen: Any) -> Any:
    return [len(seen)] if name.startswith(DRAWN) and isinstance(seen, list) else seen


def _apart(mine: Any, theirs: Any) -> float:
    """The largest relative difference of numbers; infinite where the two are not of one form."""
    if mine == theirs:
        return 0.0
    if isinstance(mine, (int, float)) and isinstance(theirs, (int, float)):
        far = abs(mine - theirs) / max(1.0, abs(theirs))
        return far if far == far else float("inf")
    if isinstance(mine, dict) and isinstance(theirs, dict) and mine.keys() == theirs.keys():
        return max(_apart(mine[name], theirs[name]) for name in mine)
    if isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        return max(map(_apart, mine, theirs))
    return float("inf")


class Program:
    """A user's program in a process of its own, read line by line."""

    def __init__(self, sdk: str, url: str, steps: int, folder: Path, name: str = "program") -> None:
        self.steps_done, self.seen = 0, None
        self.beside: Program | None = None
        """Another that runs at the same time, until this one ends."""
        self._errors = folder / f"{name}.txt"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("workload.py")), sdk, str(steps)],
                env={**clean_environment(), "TINKER_BASE_URL": url, "TINKER_API_KEY": KEY},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            self.seen = said.get("seen")
            self.steps_done += "step" in said

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not."""
        return self._process.poll() is not None

    def result(self) -> dict[str, Any]:
        """Wait for its end; what it saw."""
        code = self._process.wait(PATIENCE)
        self._reader.join()
        if self.beside is not None:
            self.beside.kill()
        assert code == 0, f"the program ended with {code}:\n{self._errors.read_text()[-3000:]}"
        assert self.seen is not None
        return self.seen

    def kill(self) -> None:
        """End it, and what runs beside it."""
        if self.beside is not None:
            self.beside.kill()
        self._process.kill()
        self._process.wait()


@contextmanager
def started(
    folder: Path, model: Path, sdk: str, steps: int, options: Sequence[str], first: str = ""
) -> Iterator[tuple[Served, Program]]:
    """A server and a program that uses it."""
    served = Served(folder, model, options)
    if first:
        served.order.give(first)
    served.start()
    program = Program(sdk, served.url, steps, folder)
    if DETERMINISTIC[-1] not in options:
        # Bits may differ, so let them: passes of another model are joined with the program's.
        program.beside = Program("tinkex", served.url, steps, folder, "beside")
    try:
        yield served, program
    finally:
        program.kill()
        served.destroy()


def undisturbed(
    folder: Path, model: Path, sdk: str, steps: int, options: Sequence[str] = DETERMINISTIC
) -> Report:
    """A program whose server is never killed."""
    with started(folder, model, sdk, steps, options) as (served, program):
        return _report(served, program, Report(sdk))


def disturbed(
    folder: Path,
    model: Path,
    points: Sequence[str],
    steps: int,
    chance: random.Random,
    report: Report,
    options: Sequence[str] = DETERMINISTIC,
) -> list[str]:
    """Fill a report of a program whose server or engine is killed at these points; the points left.

    The power is cut only if the options promise that work survives it.
    """
    left = list(points)
    not_now = ONCE if "power" in options else (*ONCE, *CUTS)
    first = next((each for each in left if each in ONCE), "")
    if first:
        left.remove(first)
    with started(folder, model, report.sdk, steps, options, first) as (served, program):
        killer = Killer(served, program, report, chance)
        if first:
            killer.obeyed(first, None)
        while program.steps_done < steps - 1 and not program.over:
            point = next((each for each in left if each not in not_now), None)
            if point is None:
                break
            left.remove(point)
            killer.kill(point)
        _report(served, program, report)
    return left


def _report(served: Served, program: Program, report: Report) -> Report:
    report.seen = program.result()
    served.stop()
    # What a crash left behind is cleared away by the next start.
    served.start()
    wait_for(lambda: served.engine() is not None, "an engine")
    served.stop()
    report.checkpoints, report.files, report.ended = served.checkpoints(), served.files(), served.ended()
    report.findings = served.findings()
    return report


class Killer:
    """Kills, starts again, and waits for the program to go on."""

    def __init__(self, served: Served, program: Program, report: Report, chance: random.Random) -> None:
        self.served, self.program, self.report, self.chance = served, program, report, chance

    def kill(self, point: str) -> None:
        """Have something die at a point, and see the program through it."""
        time.sleep(self.chance.uniform(0.0, 0.5))
        if point in AT_RANDOM:
            self._at_random(point)
        elif point in RESTART_POINTS:
            self._while_restarting(point)
        elif point in CUTS:
            self._cut_power(point)
        else:
            # Seen before the order is given: a moment later there may be another.
            engine = self.served.engine()
            self.served.order.give(point)
            self.obeyed(point, engine)

    def _at_random(self, what: str) -> None:
        began, engine = time.monotonic(), self.served.engine()
        if self.served.kill(what):
            if what != "engine":
                self.served.start()
            for _ in range(self.chance.choice((0, 1, 2))):
                engine = self._once_more(what) or engine
            self._goes_on(what, began, engine)
        else:
            self.report.missed.append(what)

    def _once_more(self, what: str) -> int | None:
        time.sleep(self.chance.uniform(0.0, 3.0))
        engine = self.served.engine()
        if self.served.kill(what):
            self.report.kills.append(Kill(f"{what}, on its way back", float("nan")))
            if what != "engine":
                self.served.start()
        return engine

    def _while_restarting(self, point: str) -> None:
        began, engine = time.monotonic(), self.served.engine()
        self.served.order.give(point)
        self.served.kill("server")
        self.report.kills.append(Kill("server", float("nan")))
        self.served.start()
        wait_for(lambda: self.served.order.obeyed or self.program.over, point)
        if self.served.order.take_back():
            self.report.missed.append(point)
            return
        self.served.gone(None)
        self.served.start()
        self._goes_on(point, began, engine)

    def _cut_power(self, point: str) -> None:
        served, moment = self.served, point.partition(", ")[2]
        engine = served.engine()
        if moment:
            served.order.give(moment)
            reached, engine = self._reached(point, engine)
            if not reached:
                return
        began = time.monotonic()
        served.cut_power(self.chance)
        served.start()
        self._goes_on(point, began, engine)

    def _reached(self, point: str, engine: int | None) -> tuple[bool, int | None]:
        """Wait until a process has died as ordered; whether one has, and the engine there was."""
        order, until = self.served.order, time.monotonic() + _REACHED_BY
        while not order.obeyed and not self.program.over and time.monotonic() < until:
            engine = engine or self.served.engine()
            time.sleep(0.005)
        if order.take_back():
            self.report.missed.append(point)
            return False, engine
        return True, engine

    def obeyed(self, point: str, engine: int | None) -> None:
        """Wait until a process has died as ordered; start a server again if it was the server."""
        served = self.served
        reached, engine = self._reached(point, engine)
        if not reached:
            return
        began = time.monotonic()
        if point in SERVER_POINTS:
            served.gone(engine)
            served.start()
        self._goes_on(point, began, engine)

    def _goes_on(self, point: str, began: float, engine: int | None) -> None:
        """Wait until the program has done another step, or all of them, with another engine than before."""
        program, done = self.program, 0

        def another_engine() -> bool:
            nonlocal done
            done = program.steps_done
            return self.served.engine() not in (None, engine)

        wait_for(lambda: program.over or another_engine(), f"an engine after {point}")
        wait_for(lambda: program.over or program.steps_done > done, f"a step after {point}")
        self.report.kills.append(Kill(point, time.monotonic() - began))
