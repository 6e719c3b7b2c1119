"""What came of the checks: one outcome each, and all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

__all__ = ["Outcome", "Report", "Result"]

Result: TypeAlias = Literal["pass", "fail", "skip"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One check's result, and what was seen."""

    check: str
    title: str
    result: Result
    seen: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """The outcomes of a run on one server."""

    base_url: str
    model: str
    outcomes: Sequence[Outcome]
    seconds: float

    def count(self, result: Result) -> int:
        """How many checks ended so."""
        return sum(outcome.result == result for outcome in self.outcomes)

    @property
    def good(self) -> bool:
        """Whether no check failed."""
        return self.count("fail") == 0

    @property
    def summary(self) -> str:
        """All in one line."""
        counts = f"{self.count('pass')} passed, {self.count('fail')} failed, {self.count('skip')} skipped"
        return f"{counts} in {self.seconds:.0f} s: {self.base_url} with {self.model}"

    def document(self) -> dict[str, Any]:
        """The report as JSON-ready data."""
        return {
            "base_url": self.base_url,
            "model": self.model,
            "passed": self.count("pass"),
            "failed": self.count("fail"),
            "skipped": self.count("skip"),
            "seconds": round(self.seconds, 3),
            "checks": [asdict(outcome) for outcome in self.outcomes],
        }
