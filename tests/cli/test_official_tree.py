"""Every command, argument and option of the official CLI is here under the same name."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import click
import pytest
from tinker.cli.__main__ import main_cli
from tinker.types import Checkpoint, TrainingRun

from tinkex.cli.main import COMMANDS, Parser, parser_of
from tinkex.cli.shapes import CHECKPOINT, RUN
from tinkex.cli.tree import below


def official(
    group: click.Group, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from official(command, (*words, name))
        else:
            yield (*words, name), command


OFFICIAL = dict(official(main_cli))


def ours(words: tuple[str, ...]) -> Parser:
    parser = parser_of(words[0])
    for word in words[1:]:
        parser = below(parser)[word]
    return parser


def test_the_official_commands_were_found():
    assert len(OFFICIAL) == 19
    assert ("checkpoint", "push-hf") in OFFICIAL


@pytest.mark.parametrize("words", OFFICIAL, ids=" ".join)
def test_a_command_takes_what_the_official_one_takes(words: tuple[str, ...]):
    assert words[0] in COMMANDS
    parser = ours(words)
    actions = {word: action for action in parser._actions for word in action.option_strings}
    positional = [
        a for a in parser._actions if not a.option_strings and not isinstance(a, argparse._HelpAction)
    ]
    arguments = [p for p in OFFICIAL[words].params if isinstance(p, click.Argument)]
    assert [a.dest for a in positional] == [a.name for a in arguments]
    for mine, theirs in zip(positional, arguments, strict=True):
        assert (mine.nargs in ("*", "+")) is (theirs.nargs == -1)
        assert (mine.nargs in ("*", "?")) is (not theirs.required)
    for option in OFFICIAL[words].params:
        if not isinstance(option, click.Option):
            continue
        for word in option.opts:
            assert word in actions, f"{' '.join(words)} {word}"
            mine = actions[word]
            assert (mine.nargs == 0) is option.is_flag, word
            assert isinstance(mine, argparse._AppendAction) is option.multiple, word
            if not (option.is_flag or option.multiple or word in ("--output", "-o")):
                theirs = option.default if isinstance(option.default, int) else None
                assert mine.default == theirs, word


def test_the_format_option_of_the_whole():
    options = {word for p in main_cli.params if isinstance(p, click.Option) for word in p.opts}
    assert options == {"--format", "-f"}  # told in test_main


def test_documents_have_the_official_fields():
    assert set(CHECKPOINT) == set(Checkpoint.model_fields)
    assert set(RUN) == set(TrainingRun.model_fields)
