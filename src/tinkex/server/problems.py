"""Refusals: a status, and a text that says what was wrong and what would be right."""

from __future__ import annotations

from ..types.rules import shown


class Problem(Exception):
    """A request that is refused; nothing of it was done."""

    def __init__(self, status: int, text: str, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.text = status, text
        self.headers = headers or {}


class NotFound(Problem):
    """There is no such thing, or it is somebody else's: the answer is the same."""

    def __init__(self, what: str, name: object) -> None:
        super().__init__(404, f"{what} {shown(name, 300)} not found")


class Failure(Exception):
    """Accepted work that did not succeed; `category` says whose fault it was."""

    def __init__(self, text: str, category: str = "user") -> None:
        super().__init__(text)
        self.text, self.category = text, category
