"""`tinkex serve`: the options of a server as arguments, over the environment and a config file."""

from __future__ import annotations

import argparse
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..client.local_server import NEEDED
from ..errors import InvalidArgumentError
from ..server import config_file
from ..server.config_file import Layer, Value
from ..server.settings import SETTINGS, Setting, closest, meanings
from .main import Parser
from .output import CommandError, Output, UsageError

__all__ = ["NEEDED"]

_WRITTEN = {"flag": None, "whole": "N", "number": "N", "path": "PATH", "text": "TEXT", "secret": "KEY"}
_GROUPS = {"limits": ("--limit", "VALUE"), "times": ("--time", "SECONDS")}


def register(parser: Parser) -> None:
    """Fill the command's parser."""
    said = meanings()
    parser.add_argument("--config", metavar="FILE", type=Path, help="a TOML file with the same names")
    for setting in SETTINGS.values():
        if not setting.group:
            _add(parser, setting, said.get(setting.name, ""))
    for group, (option, what) in _GROUPS.items():
        parser.add_argument(option, metavar=f"NAME={what}", action="append", default=[], dest=group,
                            help=f"one of the {group} below; may be given several times")  # fmt: skip
    parser.add_argument("--print-config", action="store_true", help="show what would be used, and leave")
    parser.usage = "tinkex serve --model NAME[=FOLDER] [option ...]"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n\n".join([_ORDER, *(_listed(group, said) for group in _GROUPS)])
    parser.command(_serve)


_ORDER = """An argument counts before the environment (TINKEX_PORT, TINKEX_LIMIT_TOKENS, ...; the key is
TINKER_API_KEY), the environment before the config file, the file before the default."""


def _add(parser: Parser, setting: Setting, meaning: str) -> None:
    option = "--" + setting.name.replace("_", "-")
    settings: dict[str, Any] = {"help": _help(setting, meaning), "dest": setting.name, "default": None}
    if setting.name == "models":
        option = "--model"
        settings |= {"action": "append", "metavar": "NAME[=FOLDER]"}
    elif setting.kind == "flag":
        settings["action"] = argparse.BooleanOptionalAction
    elif setting.kind == "rates":
        settings["metavar"] = "KIND=DOLLARS,..."
    else:
        settings["metavar"] = "|".join(setting.choices) or _WRITTEN[setting.kind]
    parser.add_argument(option, **settings)


def _help(setting: Setting, meaning: str) -> str:
    if setting.name == "models":
        meaning = "A base model on offer; several names may share a folder. May be given several times."
    if setting.name == "api_key":
        meaning += " Better in TINKER_API_KEY: arguments can be seen by other users of the machine."
    default = (
        "" if setting.default in (None, False, "") or setting.kind == "rates" else f" [{setting.default}]"
    )
    return (meaning[:1].lower() + meaning[1:]).replace("%", "%%").rstrip(".") + default


def _listed(group: str, said: dict[str, str]) -> str:
    rows = [setting for setting in SETTINGS.values() if setting.group == group]
    width = max(len(f"{setting.short}={setting.default}") for setting in rows)
    lines = [f"  {f'{s.short}={s.default}'.ljust(width)}  {said.get(s.name, '')}".rstrip() for s in rows]
    return f"{group} and their defaults:\n" + "\n".join(lines)


def _arguments(chosen: argparse.Namespace) -> Layer:
    """What the arguments say."""
    found = {}
    for setting in SETTINGS.values():
        given = getattr(chosen, setting.name, None)
        if given is not None and not setting.group:
            option = "--model" if setting.name == "models" else "--" + setting.name.replace("_", "-")
            found[setting.name] = Value(setting.read(given, option), option)
    for group, (option, what) in _GROUPS.items():
        for each in getattr(chosen, group):
            name, equals, text = each.partition("=")
            known = SETTINGS.get(f"{group}.{name.replace('-', '_')}")
            if known is None:
                near = closest(name, [s.short for s in SETTINGS.values() if s.group == group])
                raise InvalidArgumentError(f"{option}: there is no {name!r}{near}")
            if not equals:
                raise InvalidArgumentError(f"{option} {name}: write {name}={what}")
            found[known.name] = Value(known.read(text, f"{option} {name}"), option)
    return found


def _serve(chosen: argparse.Namespace, out: Output) -> int:
    try:
        layers = [_arguments(chosen), config_file.from_environment(os.environ)]
        if chosen.config is not None:
            layers.append(config_file.from_file(chosen.config))
        values = config_file.lay(layers)
        if chosen.print_config:
            return _show(values, out)
        options = config_file.build(values)
    except InvalidArgumentError as error:
        raise UsageError(str(error), "see `tinkex serve --help`") from None
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise CommandError(
            f"a server needs what is not installed here ({', '.join(missing)})",
            'pip install "tinkex[server]"',
        )
    if values.get("api_key", Value(None, "")).source == "--api-key":
        out.warn("a key in an argument can be seen by other users of this machine; TINKER_API_KEY cannot")
    from ..server.serve import run

    return run(options, mode=out.mode, stdout=out.stdout)


def _show(values: Layer, out: Output) -> int:
    if out.mode == "json":
        shown = {
            name: s.default if name not in values else values[name].value for name, s in SETTINGS.items()
        }
        shown["api_key"] = None if shown["api_key"] is None else "****"
        out.document({name: {"value": value, "source": getattr(values.get(name), "source", "default")}
                      for name, value in shown.items()})  # fmt: skip
    else:
        out.line(config_file.written(values))
    return 0
