"""Many damaged inputs for everything that reads foreign bytes: does any of it fail as it should not?

    python bench/fuzz.py [--inputs 1000000] [--seed N] [--only NAME ...] [--minutes M] [--keep FOLDER]
                         [--at NUMBER] [--input FILE] [--list]

Each decoder gets valid inputs that were changed: bits, lengths, numbers, nesting, repetition, text. It must
answer a value or raise an error it is documented to raise, within two seconds of computing and without
taking memory. Anything else is a finding, told with the seed and number that make its input again (`--only
NAME --seed N --at NUMBER` runs that one alone and shows where it fails). `--only` takes names' beginnings.
Where valid inputs are new each time (state folders), only a kept one is the same again: `--input FILE`.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.fuzz.running import Report, Target, input_of, run, save, unlike
from tests.fuzz.targets import known


def one(target: Target, data: bytes) -> int:
    """Run a single input, its error as it is."""
    print(f"{target.name}: {len(data)} bytes: {data[:400]!r}")
    print(repr(target.read(data))[:2000])
    return 0


def main() -> int:
    """Run, print a line a target and the findings; exit 1 if there are any."""
    parser = argparse.ArgumentParser(description="Fuzz every decoder.")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="targets whose names begin so")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so long")
    parser.add_argument("--keep", type=Path, help="a folder for inputs that are findings")
    parser.add_argument("--at", type=int, help="run the input of this number alone")
    parser.add_argument("--input", type=Path, help="run the input in this file alone")
    parser.add_argument("--list", action="store_true", help="name the targets")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    targets = [each for each in known() if not given.only or each.name.startswith(tuple(given.only))]
    if given.list or not targets:
        print("\n".join(each.name for each in targets) or "no such target")
        return not targets
    if given.input is not None:
        return one(targets[0], given.input.read_bytes())
    if given.at is not None:
        return one(targets[0], input_of(targets[0], given.seed, given.at, targets[0].corpus()))
    until = time.monotonic() + 60 * given.minutes
    shares = sum(each.share for each in targets)
    print(f"{'target':44} {'inputs':>9} {'refused':>8} {'per second':>10} {'findings':>8}")
    reports: list[Report] = []
    for target in targets:
        report = run(target, max(1, round(given.inputs * target.share / shares)), given.seed, until=until)
        reports.append(report)
        gc.collect()
        share = report.refused / max(report.inputs, 1)
        rate = report.inputs / max(report.seconds, 1e-9)
        print(
            f"{target.name:44} {report.inputs:9,} {share:8.0%} {rate:10,.0f} {len(report.findings):8}",
            flush=True,
        )
    found = unlike([finding for report in reports for finding in report.findings])
    print(f"{'all':44} {sum(report.inputs for report in reports):9,} {'':8} {'':10} {len(found):8}")
    for kind, findings in found.items():
        first = min(findings, key=lambda each: len(each.data))
        print(f"\n{kind} ({len(findings)} inputs)\n  {first.what}\n  {first.data[:300]!r}")
        print(f"  --only {first.target!r} --seed {first.seed} --at {first.number}")
        if given.keep:
            print(f"  kept as {save(given.keep, first)}")
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main())
