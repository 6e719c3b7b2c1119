"""`tinkex`: finds the command, loads its file alone, runs it, and turns what goes wrong into one line.

A command file has `register(parser)`: it fills the parser, with `parser.commands()` for commands below it,
and names what runs, a function of the arguments and the output that returns the exit code.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

from .output import CommandError, Mode, Output, UsageError

__all__ = ["COMMANDS", "Parser", "Run", "main", "parser_of", "top_parser"]

Run: TypeAlias = Callable[[argparse.Namespace, Output], int]

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "watch a small model learn, on this machine"),
    "chat": ("chat", "talk to a model, token by token"),
    "sample": ("sample", "continue a prompt, or many"),
    "train": ("train", "fine-tune a model on a file of conversations"),
    "export": ("export", "write a checkpoint as a PEFT adapter, for transformers and vLLM"),
    "merge": ("merge", "write an adapter into its base model, as a plain model"),
    "models": ("models", "list and add the models on this machine"),
    "serve": ("serve", "run a server for models on this machine"),
    "keys": ("keys", "add, list and revoke the keys of a server"),
    "state": ("state", "check, compact, back up and restore the state folder of a server"),
    "conformance": ("conformance", "check whether a server speaks the protocol"),
    "auth": ("auth", "log in and out, and see whose key is in use"),
    "model": ("model", "list the base models a server offers"),
    "run": ("run", "list, show and delete training runs"),
    "checkpoint": ("checkpoint", "list, publish, download and delete saved weights"),
    "session": ("session", "list sessions and export their timelines"),
    "billing": ("billing", "show usage and storage"),
    "doctor": ("doctor", "check the installation, this machine and the server"),
    "bench": ("bench", "measure how fast a server trains and samples"),
    "completion": ("completion", "print a script that completes commands in bash, zsh or fish"),
    "version": ("version", "show the version"),
}
"""Command -> the file it is in, and what it does."""

INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """Reads arguments; what it cannot read is an error like any other."""

    shape: Any = None
    examples = ""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("allow_abbrev", False)
        super().__init__(**settings)

    def error(self, message: str) -> NoReturn:
        """Say what was not understood."""
        raise UsageError(message, f"see `{self.prog} --help`")

    def command(self, run: Run, shape: Any = None, *, examples: str = "") -> None:
        """Make this the parser of a command that can be run; `shape` is that of its JSON document."""
        self.set_defaults(run=run)
        self.shape, self.examples = shape, examples
        if examples:
            self.formatter_class = argparse.RawDescriptionHelpFormatter
            lines = (f"  {line}" for line in examples.splitlines())
            self.epilog = "examples:\n" + "\n".join(lines)
        add_modes(self)

    def commands(self) -> argparse._SubParsersAction[Parser]:
        """Commands below this one."""
        add_modes(self)
        return self.add_subparsers(
            title="commands", metavar="COMMAND", required=True, parser_class=Parser, action=_Commands
        )


class _Commands(argparse._SubParsersAction):  # type: ignore[type-arg]
    """Commands whose own help begins with what the list says of them."""

    def add_parser(self, name: str, **settings: Any) -> Any:
        if settings.get("help"):
            settings.setdefault("description", _sentence(settings["help"]))
        return super().add_parser(name, **settings)


def _sentence(does: str) -> str:
    return f"{does[0].upper()}{does[1:]}{'' if does.endswith('?') else '.'}"


def add_modes(parser: argparse.ArgumentParser) -> None:
    """The options every command has."""
    modes = parser.add_argument_group("output")
    keep = argparse.SUPPRESS  # what stands before the command holds unless it is said again
    modes.add_argument("--json", dest="mode", action="store_const", const="json", default=keep,
                       help="print JSON, also for errors")  # fmt: skip
    modes.add_argument("--quiet", "-q", dest="mode", action="store_const", const="quiet", default=keep,
                       help="print only what matters")  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and give its exit code: 0 done, 1 failed, 2 not understood, 130 interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _write_anything()
    out = Output(_mode(given))
    try:
        code = _run(given, out)
        out.stdout.flush()
        return code
    except CommandError as error:
        out.error(error)
        return error.code
    except KeyboardInterrupt:
        out.error(CommandError("interrupted"))
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has gone; nothing more is written, not even at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        out.error(_told(error))
        return 1
    finally:
        out.end()


def _write_anything() -> None:
    """Have a letter that stdout's encoding lacks written as its number, as stderr does."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _run(given: list[str], out: Output) -> int:
    top = top_parser()
    at = _where(given)
    before = top.parse_args(given[:at])
    if before.help or (at == len(given) and not before.version):
        _help(top, out)
        return 0 if before.help else 2
    if before.version:
        return _command("version", [], out)
    return _command(given[at], given[at + 1 :], out)


def top_parser() -> Parser:
    """The parser of what stands before a command."""
    top = Parser(prog="tinkex", description="Fine-tune language models from a plain Python loop, anywhere.",
                 add_help=False, usage="tinkex [--json | --quiet] COMMAND ...")  # fmt: skip
    top.add_argument("-h", "--help", action="store_true", help="show this and leave")
    top.add_argument("-V", "--version", action="store_true", help="show the version and leave")
    top.add_argument(
        "-f", "--format", dest="mode", choices=["table", "json"], help="the same as --json, or not"
    )
    add_modes(top)
    return top


def _command(name: str, rest: list[str], out: Output) -> int:
    if name not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, 1)
        raise UsageError(
            f"no command {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""), "see `tinkex --help`"
        )
    chosen = parser_of(name).parse_args(rest)
    run: Run = chosen.run
    return run(chosen, out)


def parser_of(name: str) -> Parser:
    """The parser of a command, with those of the commands below it."""
    file, does = COMMANDS[name]
    parser = Parser(prog=f"tinkex {name}", description=_sentence(does))
    importlib.import_module(f".{file}", __package__).register(parser)
    return parser


def _where(given: Sequence[str]) -> int:
    """Where the command stands: at the first word that belongs to no option."""
    skip = False
    for at, word in enumerate(given):
        if not skip and not word.startswith("-"):
            return at
        skip = word in ("-f", "--format")
    return len(given)


def _help(top: Parser, out: Output) -> None:
    width = max(map(len, COMMANDS))
    lines = [f"  {name.ljust(width)}  {does}" for name, (_, does) in COMMANDS.items()]
    out.line(top.format_help())
    out.line("\ncommands:\n" + "\n".join(lines))
    out.line("\n`tinkex COMMAND --help` tells more about each.")


def _mode(given: Sequence[str]) -> Mode:
    """How to print; needed before the arguments are read, since they may be wrong."""
    mode: Mode = "table"
    for before, word in zip(["", *given], given, strict=False):
        if word == "--":
            break
        if before in ("-f", "--format") or word.startswith("--format="):
            mode = "json" if word.endswith("json") else "table"
        elif word == "--json":
            mode = "json"
        elif word in ("--quiet", "-q"):
            mode = "quiet"
    return mode


def _told(error: Exception) -> CommandError:
    """What went wrong, for somebody who does not read Python."""
    from ..errors import TinkerError

    if os.environ.get("TINKEX_DEBUG"):
        raise error
    if isinstance(error, TinkerError):
        from .advice import told

        return told(error)
    if isinstance(error, OSError) and error.strerror:
        return CommandError(f"{error.filename or 'the system'}: {error.strerror}")
    return CommandError(
        f"unexpected {type(error).__name__}: {error}", "set TINKEX_DEBUG=1 to see where it comes from"
    )
