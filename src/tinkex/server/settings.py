"""What can be set about a server, read off its options: names, kinds, limits and meanings, and how a text
or a value of a config file becomes one. Where values come from is not known here.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from .. import models
from ..config import Secret
from ..errors import InvalidArgumentError
from . import options

__all__ = ["SETTINGS", "Kind", "Setting", "closest", "meanings"]

Kind: TypeAlias = Literal["flag", "whole", "number", "text", "path", "secret", "rates", "models"]

HIDDEN = frozenset({"in_process"})
"""Options that tests use and nobody else."""

_CHOICES = {"log_level": ("debug", "info", "warning", "error"), "log_format": ("text", "json")}
_LEAST = {
    "port": 0,
    "times.drain": 0.0,
    "wait_for_lock": 0.0,
    "snapshot_seconds": 0.0,
}  # others: 1, or more than 0
_MOST = {"port": 65535}
_WORDS = {"flag": "yes or no", "whole": "a whole number", "number": "a number", "text": "a text",
          "path": "a folder or file that can be"}  # fmt: skip
_TRUTH = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_SIZE = re.compile(r"(-?\d+) *([kmgt]?)(?:i?b)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that can be set: `port`, `limits.tokens`."""

    name: str
    kind: Kind
    default: Any = None
    choices: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """`limits`, `times` or nothing."""
        return self.name.rpartition(".")[0]

    @property
    def short(self) -> str:
        """The name within its group."""
        return self.name.rpartition(".")[2]

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        if self.name == "api_key":
            return "TINKER_API_KEY"
        if self.name == "models":
            return "TINKEX_MODEL"
        return "TINKEX_" + self.name.replace("limits.", "limit_").replace("times.", "time_").upper()

    def read(self, given: object, source: str) -> Any:
        """The value meant by a text or by what a config file holds; `source` is named in a refusal."""
        value = self._converted(given.strip() if isinstance(given, str) else given)
        if value is None:
            # Never quote what may be a credential.
            shown = "" if self.kind == "secret" else f" {given!r}"
            raise InvalidArgumentError(
                f"{source}:{shown} is not {_WORDS.get(self.kind, f'proper {self.kind}')}"
            )
        if self.choices and value not in self.choices:
            raise InvalidArgumentError(f"{source}: {value!r} is not one of {', '.join(self.choices)}")
        if self.kind in ("whole", "number"):
            self._bounded(value, source)
        return value

    def _converted(self, given: object) -> Any:
        match self.kind:
            case "flag":
                return _TRUTH.get(given.lower()) if isinstance(given, str) else _of(given, bool)
            case "whole":
                return self._whole(given) if isinstance(given, str) else _of(given, int)
            case "number":
                return _number(given)
            case "path":
                return _path(given) if isinstance(given, str) and given else None
            case "secret":
                return Secret(given) if isinstance(given, str) and given else None
            case "rates":
                return _rates(given)
            case "models":
                return _models(given)
        return given if isinstance(given, str) and given else None

    def _whole(self, text: str) -> int | None:
        found = _SIZE.fullmatch(text)
        if found is None or (found[0] != found[1] and not self.name.endswith("_bytes")):
            return None
        return int(found[1]) << _UNITS[found[2].lower()]

    def _bounded(self, value: float, source: str) -> None:
        least = _LEAST.get(self.name, 1 if self.kind == "whole" else None)
        most = _MOST.get(self.name, math.inf)
        try:
            value = float(value)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value) or value > most or (value < least if least is not None else value <= 0):
            over = "more than 0" if least is None else f"at least {least:g}"
            upto = f" and at most {most}" if most < math.inf else ""
            raise InvalidArgumentError(f"{source}: {value:g} must be {over}{upto}")


def _of(given: object, kind: type) -> Any:
    return given if type(given) is kind else None


def _path(given: str) -> Path | None:
    try:
        return models.expanded(given)
    except InvalidArgumentError:
        return None


def _number(given: object) -> float | None:
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        return None
    try:
        return float(given)
    except (OverflowError, ValueError):
        return None


def _rates(given: object) -> dict[str, float] | None:
    """`{kind: dollars}`, or `kind=dollars,kind=dollars`."""
    if isinstance(given, str):
        given = dict(each.partition("=")[::2] for each in given.split(","))
    if not isinstance(given, Mapping):
        return None
    rates = {str(kind): _number(rate) for kind, rate in given.items()}
    return (
        {kind: rate for kind, rate in rates.items() if rate is not None}
        if None not in rates.values()
        else None
    )


def _models(given: object) -> tuple[tuple[str, str | None], ...] | None:
    """Pairs of a name and a folder (None: it is found by the name)."""
    if isinstance(given, str):
        given = [each for each in given.split(",") if each]
    if isinstance(given, Mapping):
        pairs = [(str(name), folder) for name, folder in given.items()]
    elif isinstance(given, Iterable):
        split = [str(each).partition("=") for each in given]
        pairs = [(name, folder if equals else None) for name, equals, folder in split]
    else:
        return None
    proper = all(
        name and (folder is None or (isinstance(folder, str) and folder)) for name, folder in pairs
    )
    return tuple(pairs) if proper and pairs else None


# ---- the list


def _kind(hint: Any) -> tuple[Kind, tuple[str, ...]]:
    if isinstance(hint, UnionType):
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    if get_origin(hint) is Literal:
        return "text", get_args(hint)
    kinds: dict[Any, Kind] = {
        bool: "flag",
        int: "whole",
        float: "number",
        str: "text",
        Path: "path",
        Secret: "secret",
        dict[str, float]: "rates",
        tuple[options.ModelSpec, ...]: "models",
    }
    return kinds[hint], ()


def _settings(owner: type, group: str = "") -> Iterator[Setting]:
    hints = get_type_hints(owner)
    for each in fields(owner):
        name = f"{group}{each.name}"
        if each.name in HIDDEN:
            continue
        if is_dataclass(each.default):
            yield from _settings(type(each.default), f"{each.name}.")
            continue
        kind, choices = _kind(hints[each.name])
        default = None if each.default is MISSING else each.default
        yield Setting(name, kind, default, choices or _CHOICES.get(name, ()))


SETTINGS: Mapping[str, Setting] = {each.name: each for each in _settings(options.ServerOptions)}
"""By name, in the order of the options."""


def closest(name: str, known: Iterable[str]) -> str:
    """A hint at the name that was meant, or nothing."""
    import difflib

    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def meanings() -> dict[str, str]:
    """What each setting is for, from the lines below the options' fields (none without the source)."""
    found: dict[str, str] = {}
    try:
        tree = ast.parse(Path(options.__file__).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return found
    groups = {"ServerOptions": "", "Limits": "limits.", "Times": "times."}
    for part in tree.body:
        if not isinstance(part, ast.ClassDef) or part.name not in groups:
            continue
        for line, after in zip(part.body, part.body[1:], strict=False):
            if isinstance(line, ast.AnnAssign) and isinstance(after, ast.Expr):
                name = f"{groups[part.name]}{ast.unparse(line.target)}"
                found[name] = " ".join(str(ast.literal_eval(after.value)).split())
    return found
