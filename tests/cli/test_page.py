"""docs/cli.md says what the parsers say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from tinkex.cli.main import COMMANDS
from tinkex.cli.tree import below, walk

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "cli.md").read_text()


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_cli_page", ROOT / "tools" / "make_cli_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_that_of_the_parsers():
    assert maker().filled(PAGE) == PAGE, "run python tools/make_cli_page.py"


def test_every_command_has_a_place():
    for words, _ in walk():
        assert f"# tinkex {' '.join(words)}\n" in PAGE
    assert {words[0] for words, _ in walk()} == set(COMMANDS)


def test_every_option_in_the_text_exists():
    known = {word for _, parser in walk() for action in parser._actions for word in action.option_strings}
    text = PAGE.partition("## All commands")[0]
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))
    assert len(named) >= 10
    assert named <= known | {"--help"}


LEAVES = [(words, parser) for words, parser in walk() if not below(parser)]


@pytest.mark.parametrize(
    ("words", "parser"), LEAVES, ids=lambda each: " ".join(each) if isinstance(each, tuple) else ""
)
def test_every_command_describes_itself_its_options_and_its_document(words, parser):
    assert parser.description
    for action in parser._actions:
        if action.option_strings:
            assert action.help, action.option_strings
    if words not in {("serve",), ("conformance",)}:  # those print as they go
        assert parser.shape is not None
    for line in parser.examples.splitlines():
        assert "tinkex" in line
