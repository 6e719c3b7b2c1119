"""What tests read off a page: its fenced blocks, what a block is said to print, its shell commands."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

PRINTS = "<!-- prints -->"
"""Stands before a text block that shows what the code above it prints."""
_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_INLINE = re.compile(r"`([^`\n]+)`")
NEAR, SMALL = 0.3, 0.06
"""How far a measured number may lie from the page's: a share of the larger, or so much at least."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, its text, the line it begins on, and whether it is printed output."""

    language: str
    text: str
    line: int
    printed: bool


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        before = text[: match.start()].rstrip("\n").rpartition("\n")[2]
        line = text.count("\n", 0, match.start(2))
        found.append(Block(match[1].strip(), match[2], line, before == PRINTS))
    return found


def inline(page: Path) -> list[str]:
    """Everything in the running text that is set as code."""
    return _INLINE.findall(_FENCE.sub("", page.read_text()))


def commands(text: str) -> list[list[str]]:
    """The commands of a shell block, each as its words; comments are left out."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words:
            end = next((at for at, word in enumerate(words) if word in ("&&", "|", ";")), len(words))
            found.append(words[:end])
            words = words[end + 1 :]
    return [each for each in found if each]


def differences(shown: str, printed: str) -> list[str]:
    """Where what was printed is not what the page shows.

    Numbers with a point need only be near; `…` stands for any text, on a line of its own for any lines.
    """
    left, problems = printed.rstrip().splitlines(), []
    lines = shown.rstrip().splitlines()
    for at, line in enumerate(lines):
        if line.strip() == "…":
            following = lines[at + 1] if at + 1 < len(lines) else None
            while left and (following is None or not _alike(following, left[0])):
                left.pop(0)
            continue
        if not left or not _alike(line, left[0]):
            problems.append(f"the page has {line!r}, printed was {left[0] if left else 'nothing more'!r}")
        if left:
            left.pop(0)
    return problems + [f"printed, but not on the page: {line!r}" for line in left]


def _alike(shown: str, printed: str) -> bool:
    pattern, numbers, end = "", [], 0
    for match in _NUMBER.finditer(shown):
        pattern += _text(shown[end : match.start()]) + r"\s*(-?[\d.]+(?:e[+-]?\d+)?)"
        numbers.append(match[0])
        end = match.end()
    found = re.fullmatch(pattern + _text(shown[end:]), printed.rstrip())
    if found is None:
        return False
    return all(_near(*pair) for pair in zip(numbers, found.groups(), strict=True))


def _near(shown: str, printed: str) -> bool:
    if shown.lstrip("-").isdecimal():  # counted, not measured
        return shown == printed
    a, b = float(shown), float(printed)
    return abs(a - b) <= max(NEAR * max(abs(a), abs(b)), SMALL)


def _text(text: str) -> str:
    """A pattern for text whose spaces may be more or fewer, as columns are."""
    parts = (re.sub(r"(?:\\ )+", r"\\s+", re.escape(part)) for part in text.rstrip("\n").split("…"))
    return ".*".join(parts).replace(r"\s+", r"\s*")
