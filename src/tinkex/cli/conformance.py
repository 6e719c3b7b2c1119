"""`tinkex conformance`: does a server speak the protocol, and are its numbers right?"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from typing import TYPE_CHECKING

from ..config import Config
from .main import Parser
from .output import Output, UsageError
from .progress import ProgressLine

if TYPE_CHECKING:
    from ..conformance.checks import Check
    from ..conformance.report import Outcome, Report

_RESULT_WIDTH = 6
_SHAPE = {
    "base_url": "text",
    "model": "text",
    "passed": "int",
    "failed": "int",
    "skipped": "int",
    "seconds": "number",
    "checks": [{"check": "text", "title": "text", "result": "text", "seen": "text", "seconds": "number"}],
}
_EXAMPLES = """\
tinkex conformance --base-url http://127.0.0.1:8787
tinkex conformance --only wire/5 --only numerics --json
tinkex conformance --list"""


def register(parser: Parser) -> None:
    """Fill the command's parser."""
    parser.add_argument("--base-url", metavar="URL", help="the server (default: TINKER_BASE_URL)")
    parser.add_argument("--api-key", metavar="KEY", help="a key for it (better: TINKER_API_KEY)")
    parser.add_argument(
        "--model", metavar="NAME", help="the base model to use (default: the first on offer)"
    )
    parser.add_argument("--only", metavar="PATTERN", action="append", default=[],
                        help="only checks with this in their name; may be said several times")  # fmt: skip
    parser.add_argument(
        "--slow", action="store_true", help="also what waits for a server's own time limits"
    )
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=60.0,
                        help="how long one check may take [60]")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="show the checks, run none")
    parser.command(_conformance, _SHAPE, examples=_EXAMPLES)


def _conformance(arguments: argparse.Namespace, out: Output) -> int:
    from ..conformance.checks import chosen
    from ..conformance.suite import all_checks

    checks = chosen(all_checks(), arguments.only, slow=arguments.slow or arguments.list)
    if not checks:
        raise UsageError(f"no check has {' or '.join(arguments.only)} in its name", "--list shows them all")
    if arguments.list:
        rows = [{"check": each.name, "slow": each.slow, "title": each.title} for each in checks]
        out.table({"check": "CHECK", "slow": "SLOW", "title": "WHAT MUST HOLD"}, rows, name="checks")
        return 0
    config = Config.resolve(base_url=arguments.base_url, api_key=arguments.api_key)
    # What goes wrong is told in the table; the client's own words would come in between.
    logger = logging.getLogger("tinkex")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = _run(config, arguments, checks, out)
    finally:
        logger.setLevel(level)
    if out.mode == "json":
        out.document(report.document())
    elif out.mode == "quiet":
        for outcome in report.outcomes:
            if outcome.result == "fail":
                out.line(f"{outcome.check}: {outcome.seen}")
    out.say(f"\n{report.summary}")
    return 0 if report.good else 1


def _run(config: Config, arguments: argparse.Namespace, checks: list[Check], out: Output) -> Report:
    from ..conformance.report import Report
    from ..conformance.runner import run_checks
    from ..conformance.surroundings import Surroundings

    started = time.monotonic()
    here = Surroundings(config, arguments.model)
    table = _Table(out, checks)
    outcomes = []
    try:
        for outcome in run_checks(here, checks, seconds=arguments.timeout, starting=table.starting):
            outcomes.append(outcome)
            table.ended(outcome)
    finally:
        here.close()
    return Report(config.base_url, here.base_model, outcomes, time.monotonic() - started)


class _Table:
    """Rows as they come, and on a terminal what is being checked."""

    def __init__(self, out: Output, checks: list[Check]) -> None:
        self._out, self._count, self._begun = out, len(checks), 0
        self._width = max(len(check.name) for check in checks)
        self._line = ProgressLine(out)
        out.say(f"{'CHECK'.ljust(self._width)}  {'RESULT'.ljust(_RESULT_WIDTH)}  WHAT WAS SEEN")

    def starting(self, check: Check) -> None:
        """Say what is being checked."""
        self._begun += 1
        self._line.show(f"[{self._begun}/{self._count}] {check.name} …", now=True)

    def ended(self, outcome: Outcome) -> None:
        """Show a row."""
        self._line.clear()
        result = outcome.result.upper() if outcome.result == "fail" else outcome.result
        self._out.say(f"{outcome.check.ljust(self._width)}  {result.ljust(_RESULT_WIDTH)}  {outcome.seen}")
        self._out.stdout.flush()
