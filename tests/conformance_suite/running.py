"""Running the checks on a server, without the command line."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from tinkex.config import Config
from tinkex.conformance.checks import chosen
from tinkex.conformance.report import Outcome
from tinkex.conformance.runner import run_checks
from tinkex.conformance.suite import all_checks
from tinkex.conformance.surroundings import Surroundings
from tinkex.testing import FakeServer, FakeService

KEY = "tml-conformance"
MODEL = "tiny/model"
ALL = {check.name for check in all_checks()}
FAST = {check.name for check in all_checks() if not check.slow}

# A fake trains nothing: its numbers follow the number of steps, whatever the gradients and settings.
MADE_UP = {
    "journey/2.4/load-weights-alone",
    "numerics/3.3/custom-loss",
    "numerics/3.3/ppo",
    "numerics/3.4/adam-first-step",
    "numerics/3.5/seed",
    "numerics/8/peft-files",
}
UNSAID = {"numerics/3.3/importance-sampling", "numerics/6.4/accumulation", "numerics/6.4/token-sum"}
"""Skipped on a fake: it reports no gradient norm."""


def check_server(
    url: str, only: Sequence[str] = (), *, key: str = KEY, slow: bool = False, seconds: float = 60.0
) -> dict[str, Outcome]:
    """The outcome of every check on a server, by name."""
    config = Config.resolve(base_url=url, api_key=key, environ={})
    here = Surroundings(config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            checks = chosen(all_checks(), only, slow=slow)
            return {each.check: each for each in run_checks(here, checks, seconds=seconds)}
        finally:
            here.close()


def check_fake(
    service: FakeService, only: Sequence[str] = (), *, slow: bool = False, seconds: float = 60.0
) -> dict[str, Outcome]:
    """The same on a fake, over HTTP."""
    with FakeServer(service) as server:
        return check_server(server.base_url, only, slow=slow, seconds=seconds)


def ended(outcomes: dict[str, Outcome], result: str) -> dict[str, str]:
    """The checks that ended so, and what they saw."""
    return {name: outcome.seen for name, outcome in outcomes.items() if outcome.result == result}
