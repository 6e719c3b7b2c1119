"""`tinkex completion`: scripts by which shells complete commands and options, made from the parsers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field

from .main import COMMANDS, Parser, top_parser
from .output import Output
from .tree import below, walk

_HOW = {
    "bash": 'eval "$(tinkex completion bash)"                   # in ~/.bashrc',
    "zsh": 'eval "$(tinkex completion zsh)"                    # in ~/.zshrc',
    "fish": "tinkex completion fish > ~/.config/fish/completions/tinkex.fish",
}


def register(parser: Parser) -> None:
    """Fill the command's parser."""
    parser.add_argument("shell", choices=list(_HOW), metavar="bash|zsh|fish")
    parser.command(_completion, {"shell": "text", "script": "text"}, examples="\n".join(_HOW.values()))


def _completion(arguments: argparse.Namespace, out: Output) -> int:
    script = MAKERS[arguments.shell]()
    out.record({"shell": arguments.shell, "script": script}, essential="script", text=script)
    return 0


# ---- what there is to complete


@dataclass
class Option:
    """An option: its spellings, what it does, and what may follow it."""

    words: list[str]
    does: str
    takes: bool
    choices: list[str] = field(default_factory=list)


@dataclass
class Node:
    """A command: the commands below it, and its options."""

    path: str
    commands: dict[str, str]
    options: list[Option]
    choices: list[str] = field(default_factory=list)
    """Words its argument may be."""


def nodes() -> list[Node]:
    """Every command, the program itself first."""
    found = [Node("", {name: does for name, (_, does) in COMMANDS.items()}, _options(top_parser()))]
    for words, parser in walk():
        inner = {name: (each.description or "").rstrip(".") for name, each in below(parser).items()}
        choices = [
            str(each)
            for action in parser._actions
            if not action.option_strings and not inner
            for each in action.choices or ()
        ]
        found.append(Node(" ".join(words), inner, _options(parser), choices))
    return found


def _options(parser: Parser) -> list[Option]:
    found = []
    for action in parser._actions:
        if action.option_strings and action.help != argparse.SUPPRESS:
            takes = action.nargs != 0 and not isinstance(action, argparse.BooleanOptionalAction)
            choices = [str(each) for each in action.choices or ()] if takes else []
            does = (action.help or "").replace("%%", "%").partition("\n")[0]
            found.append(Option(list(action.option_strings), does, takes, choices))
    return found


# ---- bash


def bash() -> str:
    """The script for bash."""
    words, values, takers = [], [], set()
    for node in nodes():
        offered = [
            *node.commands,
            *node.choices,
            *(word for option in node.options for word in option.words),
        ]
        words.append(f'    "{node.path}") words="{" ".join(offered)}" ;;')
        for option in node.options:
            if option.takes:
                takers.update(option.words)
            if option.choices:
                pattern = "|".join(f'"{node.path}:{word}"' for word in option.words)
                values.append(f'    {pattern}) words="{" ".join(option.choices)}" ;;')
    return _BASH.format(
        paths="|".join(f'"{node.path}"' for node in nodes() if node.path),
        words="\n".join(words),
        values="\n".join(values),
        takers="|".join(sorted(takers)),
    ).strip()


_BASH = """
_tinkex() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" path="" before="" word words="" at
  for ((at = 1; at < COMP_CWORD; at++)); do
    word="${{COMP_WORDS[at]}}"
    case "${{path:+$path }}$word" in
    {paths}) path="${{path:+$path }}$word" ;;
    esac
  done
  before="${{COMP_WORDS[COMP_CWORD - 1]}}"
  case "$path:$before" in
{values}
  esac
  if [[ -z "$words" ]]; then
    case "$before" in
    {takers}) COMPREPLY=($(compgen -f -- "$current")); return ;;
    esac
    case "$path" in
{words}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [[ -z "$COMPREPLY" && "$current" != -* ]]; then COMPREPLY=($(compgen -f -- "$current")); fi
}}
complete -o filenames -F _tinkex tinkex
"""


# ---- zsh


def zsh() -> str:
    """The script for zsh, which completes as bash does."""
    return f"autoload -U +X bashcompinit && bashcompinit\n{bash()}"


# ---- fish


def fish() -> str:
    """The script for fish."""
    lines = [_FISH.strip()]
    for node in nodes():
        at = f"-n '__tinkex_at {_quoted(node.path)}'"
        for name, does in node.commands.items():
            lines.append(f"complete -c tinkex -f {at} -a {name} -d {_quoted(does)}")
        lines += [f"complete -c tinkex -f {at} -a {_quoted(each)}" for each in node.choices]
        for option in node.options:
            spelled = " ".join(
                f"-l {word[2:]}" if word.startswith("--") else f"-s {word[1:]}" for word in option.words
            )
            takes = (
                f" -x -a {_quoted(' '.join(option.choices))}"
                if option.choices
                else " -r"
                if option.takes
                else ""
            )
            lines.append(f"complete -c tinkex {at} {spelled}{takes} -d {_quoted(option.does)}")
    return "\n".join(lines)


_FISH = """
function __tinkex_at
    set -l words
    for word in (commandline -opc)[2..-1]
        string match -q -- '-*' $word; or set -a words $word
    end
    set -l wanted (string split -n ' ' -- $argv[1])
    set -l count (count $wanted)
    test $count -eq 0; and test (count $words) -eq 0; and return 0
    test $count -gt 0; and test (count $words) -ge $count; and test "$words[1..$count]" = "$argv[1]"
end
"""


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("'", "’") + '"'


MAKERS: dict[str, Callable[[], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
