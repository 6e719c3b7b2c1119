"""`tinkex chat`: a conversation with a model, word by word; lines from a pipe are turns too."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .conversation import Conversation
from .main import Parser
from .output import CommandError, Output
from .reaching import add_server, service
from .weights import add_sampling, add_weights, open_weights, wanted_weights

USUAL = 512
_SHAPE = {
    "model": "text",
    "messages": [{"role": "text", "content": "text"}],
    "turns": [
        {
            "model": "text",
            "tokens": "int",
            "seconds": "number",
            "tokens_per_second": "number",
            "stop_reason": "text",
        }
    ],
}
_COMMANDS = {
    "/checkpoint PATH": "go on with other weights: a checkpoint's path or a base model's name",
    "/checkpoints": "show checkpoints to choose from",
    "/system TEXT": "set the system message; without a text, take it away",
    "/temperature T": "sample with this temperature",
    "/max-tokens N": "answer with at most so many tokens",
    "/undo": "forget the last question and its answer",
    "/reset": "begin anew",
    "/save FILE": "write the conversation as a line of JSONL, for `tinkex train`",
    "/help": "show this",
    "/quit": "leave",
}


def register(parser: Parser) -> None:
    """Fill the command's parser."""
    add_weights(parser)
    parser.add_argument("--system", metavar="TEXT", help="a system message to begin with")
    add_sampling(parser, temperature=0.7, usual=USUAL)
    add_server(parser)
    parser.command(
        _chat,
        _SHAPE,
        examples="tinkex chat --model nano\n"
        "tinkex chat --checkpoint tinker://s-1f3a:train:0/sampler_weights/final --temperature 0\n"
        "printf 'Hello!\\nAnd what is your name?\\n' | tinkex chat --quiet",
    )
    listed = "\n".join(f"  {name.ljust(18)}{does}" for name, does in _COMMANDS.items())
    parser.epilog = f"while chatting:\n{listed}\n\n{parser.epilog}"


def _chat(arguments: argparse.Namespace, out: Output) -> int:
    word = wanted_weights(arguments)
    with service(arguments, out) as client:
        talk = Conversation(arguments, out, open_weights(client, word), USUAL)
        out.say(f"Talking to {talk.weights.name}. /help shows what can be done, /quit leaves.")
        failed = False
        for line in _lines(out):
            try:
                if line.startswith("/"):
                    if not _do(line, talk, client, out):
                        break
                elif line:
                    talk.say(line)
            except CommandError as error:
                out.error(error)
                failed = True
            except Exception as error:  # a turn that fails ends neither the conversation nor the command
                _report(error, out)
                failed = True
    if out.mode == "json":
        out.document({"model": talk.weights.name, "messages": talk.messages, "turns": talk.turns})
    return 1 if failed and not sys.stdin.isatty() else 0


def _report(error: Exception, out: Output) -> None:
    from ..errors import TinkerError
    from .advice import told

    if not isinstance(error, TinkerError):
        raise error
    out.error(told(error))


def _lines(out: Output) -> Iterator[str]:
    """What is said, line by line, until there is no more; Ctrl-C at the prompt leaves too."""
    if not sys.stdin.isatty():
        yield from (line.strip() for line in sys.stdin)
        return
    with contextlib.suppress(ImportError):  # there is none on this platform
        import readline  # noqa: F401 (gives `input` editing and history)
    while True:
        if not (prompt := "\n> " if out.stdout.isatty() else ""):  # results go elsewhere, and nothing else
            out.aside("\n> ", end="")
        try:
            yield input(prompt).strip()
        except (EOFError, KeyboardInterrupt):
            return


# ---- commands


def _do(line: str, talk: Conversation, client: Any, out: Output) -> bool:
    """Obey a command; whether the conversation goes on."""
    name, _, rest = line.partition(" ")
    rest = rest.strip()
    if name in ("/quit", "/exit"):
        return False
    if name == "/checkpoint" and rest:
        talk.switch(open_weights(client, rest))
        out.say(f"Now talking to {talk.weights.name}.")
    elif name == "/checkpoints":
        _show_checkpoints(client, out)
    elif name == "/system":
        talk.system(rest)
        out.say("The system message is set." if rest else "There is no system message.")
    elif name == "/temperature":
        talk.arguments.temperature = _number(rest, float)
    elif name == "/max-tokens":
        talk.arguments.max_tokens = _number(rest, int)
    elif name == "/undo":
        talk.undo()
    elif name == "/reset":
        talk.reset()
        out.say("Begun anew.")
    elif name == "/save" and rest:
        talk.save(Path(rest).expanduser())
        out.say(f"Saved to {rest}.")
    elif name == "/help":
        for command, does in _COMMANDS.items():
            out.say(f"{command.ljust(18)}{does}")
    else:
        raise CommandError(f"no command {line!r}", "/help shows them")
    return True


def _number(text: str, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(text)
    except ValueError:
        raise CommandError(f"{text!r} is not a number") from None


def _show_checkpoints(client: Any, out: Output) -> None:
    from ..client.rest import RestClient

    found = RestClient(client.holder).list_user_checkpoints(limit=50).result().checkpoints
    paths = [one.tinker_path for one in found if one.checkpoint_type != "external"]
    for path in paths:
        out.say(path)
    if not paths:
        out.say("There are no checkpoints.")
