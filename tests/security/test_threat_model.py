"""The page about security: every line names the test that shows it, and every test named is there."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
UNTESTED = {"What is worth protecting", "Left open"}
"""Sections that promise nothing."""
ATTACKERS = [
    "A stranger on the network",
    "A holder of a key",
    "Another owner of the same server",
    "Whoever gives you a file",
    "A server that means harm",
    "A user of the same machine",
]
_DEFINED = re.compile(r"^\[(test_\w+)\]: (\S+)$", re.MULTILINE)
_NAMED = re.compile(r"\[test\]\[(test_\w+)\]")


@functools.cache
def functions_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(
        node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )


def lines_of(text: str) -> list[tuple[str, str]]:
    """Every line that says something, with the section it stands in."""
    found, section = [], ""
    for block in re.split(r"\n(?=- |#|\n)", text):
        if block.startswith("#"):
            section = block.lstrip("# ").strip()
        elif block.lstrip("\n").startswith("- "):
            found.append((section, block.strip()))
    return found


def problems(text: str, page: Path = PAGE) -> list[str]:
    """What is wrong with a threat model."""
    defined = dict(_DEFINED.findall(text))
    found = [
        f"{section}: no test shows {line[:60]!r}"
        for section, line in lines_of(text)
        if section not in UNTESTED and not _NAMED.search(line)
    ]
    named = set(_NAMED.findall(text))
    found += [f"{name} is not said where" for name in sorted(named - defined.keys())]
    found += [f"{name} shows nothing" for name in sorted(defined.keys() - named)]
    for name, link in sorted(defined.items()):
        place = page.parent / link
        if not place.is_file():
            found.append(f"there is no {link}")
        elif name not in functions_in(place):
            found.append(f"there is no {name} in {link}")
    return found


def test_every_line_is_shown_by_a_test():
    assert problems(PAGE.read_text()) == []


def test_every_attacker_has_a_section():
    sections = [section for section, _ in lines_of(PAGE.read_text())]
    for who in ATTACKERS:
        assert sections.count(who) >= 4, who
    assert sections.count("Left open") >= 3


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("## A holder of a key\n", "## A holder of a key\n\n- Does no harm.\n", "no test"),
        ("\n[test_a_head_that_drips]:", "\n[test_new]: x\n[test_a_head_that_drips]:", "shows nothing"),
        ("[test_a_head_that_drips]: ", "[test_a_head_that_rips]: ", "not said where"),
        ("/test_slow_clients.py", "/test_slow.py", "there is no ../tests"),
        ("test_a_head_that_drips", "test_a_head_that_rips", "there is no test_a_head_that_rips"),
    ],
)
def test_a_line_that_is_not_shown_would_be_noticed(old: str, new: str, said: str):
    text = PAGE.read_text()
    assert old in text
    found = problems(text.replace(old, new))
    assert any(said in each for each in found), found
