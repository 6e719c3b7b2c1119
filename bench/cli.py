"""What the command line costs before it does anything: CPU time of commands, beside the official one.

    python bench/cli.py [--rounds 15] [--check]

`--check` fails if `tinkex --help` takes 100 ms of CPU or more.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile

GOAL = 0.100
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "tinkex --help": ["-m", "tinkex", "--help"],
    "tinkex version": ["-m", "tinkex", "version"],
    "tinkex run list --help": ["-m", "tinkex", "run", "list", "--help"],
    "tinkex train --help": ["-m", "tinkex", "train", "--help"],
    "tinkex serve --help": ["-m", "tinkex", "serve", "--help"],
    "tinker --help": ["-m", "tinker.cli", "--help"],
}


def cost(words: list[str], home: str) -> float:
    """CPU seconds of a process, its children's included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *words], env={**os.environ, "HOME": home}, stdout=subprocess.DEVNULL, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    medians = {}
    with tempfile.TemporaryDirectory() as home:
        for name, words in COMMANDS.items():
            try:
                cost(words, home)  # compiles what is not compiled yet
            except subprocess.CalledProcessError:
                continue
            medians[name] = statistics.median(cost(words, home) for _ in range(given.rounds))
            print(f"{name.ljust(24)} {medians[name] * 1000:7.1f} ms CPU")
    return 1 if given.check and medians["tinkex --help"] >= GOAL else 0


if __name__ == "__main__":
    raise SystemExit(main())
