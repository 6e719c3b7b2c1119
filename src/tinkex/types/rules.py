"""Field rules: how one value of a record is checked, read from JSON, and described.

A rule is made from a type annotation.  `take(value, lenient=False)` is the constructor's view: common
conversions are made, everything else is refused.  With `lenient=True` it is a decoder's view: null
means absent where null is not allowed, unknown keys and tags are kept, never refused.
Rules know nothing of bytes, HTTP or a particular record.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import difflib
import types as pytypes
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import Meta

Schema = dict[str, Any]


class Mismatch(Exception):
    """A value does not fit; `path` grows outwards as the error leaves nested records."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.path = path

    def inside(self, step: str) -> Mismatch:
        """The same mismatch seen from one level further out."""
        joint = "" if not self.path or self.path.startswith("[") else "."
        return Mismatch(self.message, f"{step}{joint}{self.path}")


def shown(value: object, limit: int = 80) -> str:
    """A value's repr, short enough for an error message."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like a misspelt one, if any is close."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), None)


class Rule:
    """How one kind of value is taken and described."""

    __slots__ = ()
    takes_null = False

    def take(self, value: Any, lenient: bool = False) -> Any:
        """Return the value in its final form, or raise `Mismatch`."""
        raise NotImplementedError

    def schema(self, definitions: Schema) -> Schema:
        """Describe the JSON form, adding named records to `definitions`."""
        raise NotImplementedError


def _plain_number(value: Any) -> Any:
    """Turn a numpy or similar scalar into the Python number it holds."""
    item = getattr(value, "item", None)
    if item is not None and getattr(value, "ndim", None) == 0:
        return item()
    return value


class Text(Rule):
    """A string."""

    __slots__ = ("longest", "shortest")

    def __init__(self, shortest: int | None = None, longest: int | None = None) -> None:
        self.shortest, self.longest = shortest, longest

    def take(self, value: Any, lenient: bool = False) -> str:
        """Accept a string within the length bounds."""
        if not isinstance(value, str):
            raise Mismatch(f"expected a string, got {shown(value)}")
        check_length(len(value), self.shortest, self.longest, "characters")
        return value

    def schema(self, definitions: Schema) -> Schema:
        """Describe a JSON string."""
        return {"type": "string", **length_schema("Length", self.shortest, self.longest)}


def check_length(size: int, shortest: int | None, longest: int | None, what: str) -> None:
    """Refuse a size outside the bounds, naming both numbers."""
    if shortest is not None and size < shortest:
        raise Mismatch(f"has {size} {what}, at least {shortest} needed")
    if longest is not None and size > longest:
        raise Mismatch(f"has {size} {what}, at most {longest} allowed")


def length_schema(suffix: str, shortest: int | None, longest: int | None) -> Schema:
    """The JSON-schema form of length bounds."""
    bounds = {f"min{suffix}": shortest, f"max{suffix}": longest}
    return {key: bound for key, bound in bounds.items() if bound is not None}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on a number; every one that is set must hold."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    finite: bool = False

    def check(self, number: float) -> None:
        """Refuse a number outside the limits."""
        if self.finite and not -float("inf") < number < float("inf"):
            raise Mismatch(f"must be finite, got {number}")
        inside = (
            (self.ge is None or number >= self.ge)
            and (self.gt is None or number > self.gt)
            and (self.le is None or number <= self.le)
            and (self.lt is None or number < self.lt)
        )
        if not inside:
            raise Mismatch(f"must be {self}, got {number}")

    def __str__(self) -> str:
        signs = {"≥": self.ge, ">": self.gt, "≤": self.le, "<": self.lt}
        return " and ".join(f"{sign} {bound}" for sign, bound in signs.items() if bound is not None)

    def schema(self) -> Schema:
        """The JSON-schema form of the limits."""
        names = {
            "minimum": self.ge,
            "exclusiveMinimum": self.gt,
            "maximum": self.le,
            "exclusiveMaximum": self.lt,
        }
        return {name: bound for name, bound in names.items() if bound is not None}


UNBOUNDED = Bounds()


class Integer(Rule):
    """A whole number; a float or numeric string with a whole value is converted."""

    __slots__ = ("bounds",)

    def __init__(self, bounds: Bounds = UNBOUNDED) -> None:
        self.bounds = bounds

    def take(self, value: Any, lenient: bool = False) -> int:
        """Accept a whole number in any common form."""
        if type(value) is int:
            number = value
        else:
            number = self._convert(_plain_number(value))
        if self.bounds is not UNBOUNDED:
            self.bounds.check(number)
        return number

    @staticmethod
    def _convert(value: Any) -> int:
        if isinstance(value, int):
            return int(value)
        try:
            if isinstance(value, float) and value == int(value):
                return int(value)
            if isinstance(value, str):
                return int(value)
        except (ValueError, OverflowError):
            pass
        raise Mismatch(f"expected an integer, got {shown(value)}")

    def schema(self, definitions: Schema) -> Schema:
        """Describe a JSON integer."""
        return {"type": "integer", **self.bounds.schema()}


class Number(Rule):
    """A floating-point number."""

    __slots__ = ("bounds",)

    def __init__(self, bounds: Bounds = UNBOUNDED) -> None:
        self.bounds = bounds

    def take(self, value: Any, lenient: bool = False) -> float:
        """Accept a number in any common form."""
        if type(value) is float:
            number = value
        else:
            number = self._convert(_plain_number(value))
        if self.bounds is not UNBOUNDED:
            self.bounds.check(number)
        return number

    @staticmethod
    def _convert(value: Any) -> float:
        if isinstance(value, (int, float, str)):
            try:
                return float(value)
            except (ValueError, OverflowError):
                pass
        raise Mismatch(f"expected a number, got {shown(value)}")

    def schema(self, definitions: Schema) -> Schema:
        """Describe a JSON number."""
        return {"type": "number", **self.bounds.schema()}


_FLAGS = {
    **dict.fromkeys(("true", "yes", "on", "1", "t", "y"), True),
    **dict.fromkeys(("false", "no", "off", "0", "f", "n"), False),
}


class Flag(Rule):
    """True or false."""

    __slots__ = ()

    def take(self, value: Any, lenient: bool = False) -> bool:
        """Accept a boolean, 0 or 1, or a word for either."""
        if isinstance(value, bool):
            return value
        value = _plain_number(value)
        if isinstance(value, (bool, int, float)) and value in (0, 1):
            return bool(value)
        if isinstance(value, str) and value.lower() in _FLAGS:
            return _FLAGS[value.lower()]
        raise Mismatch(f"expected true or false, got {shown(value)}")

    def schema(self, definitions: Schema) -> Schema:
        """Describe a JSON boolean."""
        return {"type": "boolean"}


class Moment(Rule):
    """A date and time; text is read as RFC 3339, a number as seconds since 1970."""

    __slots__ = ("aware",)

    def __init__(self, aware: bool = False) -> None:
        self.aware = aware

    def take(self, value: Any, lenient: bool = False) -> datetime:
        """Accept a datetime, RFC 3339 text or a Unix time."""
        moment = self._convert(value)
        if self.aware and moment.tzinfo is None:
            raise Mismatch(f"needs a time zone, got {shown(value)}")
        return moment

    @staticmethod
    def _convert(value: Any) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            if isinstance(value, str):
                return datetime.fromisoformat(value)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return datetime.fromtimestamp(value, UTC)
        except (ValueError, OverflowError, OSError):
            pass
        raise Mismatch(f"expected a date and time such as 2026-01-31T12:00:00Z, got {shown(value)}")

    def schema(self, definitions: Schema) -> Schema:
        """Describe RFC 3339 text."""
        return {"type": "string", "format": "date-time"}


class Blob(Rule):
    """Bytes; text is read as standard base64, which is also the JSON form."""

    __slots__ = ()

    def take(self, value: Any, lenient: bool = False) -> bytes:
        """Accept bytes or base64 text."""
        if isinstance(value, bytes):
            return value
        if isinstance(value, (bytearray, memoryview)):
            return bytes(value)
        if isinstance(value, str):
            try:
                return base64.b64decode(value, validate=True)
            except binascii.Error as problem:
                raise Mismatch(f"is not base64 ({problem}), got {shown(value)}") from None
        raise Mismatch(f"expected bytes or base64 text, got {shown(value)}")

    def schema(self, definitions: Schema) -> Schema:
        """Describe base64 text."""
        return {"type": "string", "contentEncoding": "base64"}


class Choice(Rule):
    """One of a few fixed values."""

    __slots__ = ("options",)

    def __init__(self, options: Sequence[Any]) -> None:
        self.options = tuple(options)

    def take(self, value: Any, lenient: bool = False) -> Any:
        """Accept one of the options; a decoder also keeps a word it does not know."""
        if isinstance(value, Enum):
            value = value.value
        if lenient and isinstance(value, float) and value.is_integer():
            value = int(value)
        if value in self.options and type(value) in {type(option) for option in self.options}:
            return value
        if lenient and len(self.options) > 1 and isinstance(value, str):
            return value
        allowed = ", ".join(repr(option) for option in self.options)
        near = closest(value, map(str, self.options)) if isinstance(value, str) else None
        hint = f"; did you mean {near!r}?" if near else ""
        raise Mismatch(f"expected one of {allowed}, got {shown(value)}{hint}")

    def schema(self, definitions: Schema) -> Schema:
        """Describe the fixed values."""
        return {"const": self.options[0]} if len(self.options) == 1 else {"enum": [*self.options]}


class Member(Rule):
    """A member of an enumeration, by value."""

    __slots__ = ("kind",)

    def __init__(self, kind: type[Enum]) -> None:
        self.kind = kind

    def take(self, value: Any, lenient: bool = False) -> Enum:
        """Accept a member or its value."""
        if lenient or isinstance(value, (str, int)):
            with contextlib.suppress(ValueError):
                return self.kind(value)
        allowed = ", ".join(repr(member.value) for member in self.kind)
        raise Mismatch(f"expected one of {allowed}, got {shown(value)}")

    def schema(self, definitions: Schema) -> Schema:
        """Describe the members' values."""
        return {"enum": [member.value for member in self.kind]}


class Anything(Rule):
    """Any JSON value."""

    __slots__ = ()
    takes_null = True

    def take(self, value: Any, lenient: bool = False) -> Any:
        """Accept everything."""
        return value

    def schema(self, definitions: Schema) -> Schema:
        """Describe nothing."""
        return {}


class Maybe(Rule):
    """A value or null."""

    __slots__ = ("inner",)
    takes_null = True

    def __init__(self, inner: Rule) -> None:
        self.inner = inner

    def take(self, value: Any, lenient: bool = False) -> Any:
        """Accept null, or what the inner rule accepts."""
        return None if value is None else self.inner.take(value, lenient)

    def schema(self, definitions: Schema) -> Schema:
        """Describe the value or null."""
        return {"anyOf": [self.inner.schema(definitions), {"type": "null"}]}


class Items(Rule):
    """A list of values of one kind."""

    __slots__ = ("inner", "longest", "shortest")

    def __init__(self, inner: Rule, shortest: int | None = None, longest: int | None = None) -> None:
        self.inner, self.shortest, self.longest = inner, shortest, longest

    def take(self, value: Any, lenient: bool = False) -> list[Any]:
        """Accept a list or tuple and make a new list."""
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
            raise Mismatch(f"expected a list, got {shown(value)}")
        taken = []
        for index, item in enumerate(value):
            try:
                taken.append(self.inner.take(item, lenient))
            except Mismatch as problem:
                raise problem.inside(f"[{index}]") from None
        check_length(len(taken), self.shortest, self.longest, "items")
        return taken

    def schema(self, definitions: Schema) -> Schema:
        """Describe a JSON array."""
        return {
            "type": "array",
            "items": self.inner.schema(definitions),
            **length_schema("Items", self.shortest, self.longest),
        }


class Table(Rule):
    """A mapping from text to values of one kind."""

    __slots__ = ("inner",)

    def __init__(self, inner: Rule) -> None:
        self.inner = inner

    def take(self, value: Any, lenient: bool = False) -> dict[str, Any]:
        """Accept a mapping and make a new dict."""
        if not isinstance(value, Mapping):
            raise Mismatch(f"expected a mapping, got {shown(value)}")
        taken = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise Mismatch(f"keys must be strings, got {shown(key)}")
            try:
                taken[key] = self.inner.take(item, lenient)
            except Mismatch as problem:
                raise problem.inside(f"[{key!r}]") from None
        return taken

    def schema(self, definitions: Schema) -> Schema:
        """Describe a JSON object used as a table."""
        return {"type": "object", "additionalProperties": self.inner.schema(definitions)}


class Own(Rule):
    """A class that reads itself through `__take__` and describes itself through `__schema__`."""

    __slots__ = ("kind",)

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def take(self, value: Any, lenient: bool = False) -> Any:
        """Accept an instance, or what the class can be read from."""
        return value if type(value) is self.kind else self.kind.__take__(value, lenient)

    def schema(self, definitions: Schema) -> Schema:
        """Refer to the class's own description."""
        name = self.kind.__name__
        if name not in definitions:
            definitions[name] = {}
            definitions[name] = self.kind.__schema__(definitions)
        return {"$ref": f"#/$defs/{name}"}


class OneOf:
    """Annotation mark: a union told apart by the value of one key.

    `infer` finds the arm of an object without the key; `unknown` is the class that keeps an object
    whose key has a value no arm has.
    """

    def __init__(
        self,
        key: str,
        *,
        infer: Callable[[Mapping[str, Any]], str | None] | None = None,
        unknown: Any = None,
    ) -> None:
        self.key, self.infer, self.unknown = key, infer, unknown


class Tagged(Rule):
    """A value of one of several records."""

    __slots__ = ("arms", "kinds", "mark")

    def __init__(self, kinds: Sequence[Any], mark: OneOf) -> None:
        self.kinds, self.mark = tuple(kinds), mark
        self.arms = {kind.__tag__: kind for kind in kinds if kind is not mark.unknown}

    def take(self, value: Any, lenient: bool = False) -> Any:
        """Accept an instance of an arm, or a mapping that names one."""
        if isinstance(value, self.kinds) or (
            self.mark.unknown is not None and isinstance(value, self.mark.unknown)
        ):
            return value
        if not isinstance(value, Mapping):
            names = ", ".join(kind.__name__ for kind in self.kinds)
            raise Mismatch(f"expected one of {names}, got {shown(value)}")
        tag = value.get(self.mark.key)
        if tag is None and self.mark.infer is not None:
            tag = self.mark.infer(value)
        kind = self.arms.get(tag) if isinstance(tag, str) else None
        if kind is None and isinstance(tag, str) and (lenient or self.mark.unknown in self.kinds):
            kind = self.mark.unknown
        if kind is None:
            allowed = ", ".join(repr(arm) for arm in self.arms)
            raise Mismatch(f"expected one of {allowed}, got {shown(tag)}", self.mark.key)
        return kind.__take__(value, lenient)

    def schema(self, definitions: Schema) -> Schema:
        """Describe every arm."""
        return {"anyOf": [Own(kind).schema(definitions) for kind in self.kinds]}


class AnyOf(Rule):
    """The first of several rules that fits."""

    __slots__ = ("rules",)

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)

    def take(self, value: Any, lenient: bool = False) -> Any:
        """Try each rule in turn."""
        problems = []
        for rule in self.rules:
            try:
                return rule.take(value, lenient)
            except Mismatch as problem:
                problems.append(problem.message)
        raise Mismatch("; or ".join(problems))

    def schema(self, definitions: Schema) -> Schema:
        """Describe every alternative."""
        return {"anyOf": [rule.schema(definitions) for rule in self.rules]}


_SIMPLE: dict[Any, Callable[[], Rule]] = {
    str: Text,
    int: Integer,
    float: Number,
    bool: Flag,
    datetime: Moment,
    bytes: Blob,
    Any: Anything,
    object: Anything,
}


def _bounds(marks: Sequence[Any]) -> Bounds:
    known: dict[str, Any] = {}
    for mark in marks:
        if isinstance(mark, Bounds):
            return mark
        if isinstance(mark, Meta):
            known |= {k: getattr(mark, k) for k in ("ge", "gt", "le", "lt") if getattr(mark, k) is not None}
    return Bounds(**known) if known else UNBOUNDED


def _lengths(marks: Sequence[Any]) -> tuple[int | None, int | None]:
    for mark in marks:
        if isinstance(mark, Meta):
            return mark.min_length, mark.max_length
    return None, None


def _union(parts: Sequence[Any], marks: Sequence[Any]) -> Rule:
    mark = next((m for m in marks if isinstance(m, OneOf)), None)
    kinds = [part for part in parts if part is not type(None)]
    inner: Rule
    if mark is not None:
        inner = Tagged(kinds, mark)
    elif len(kinds) == 1:
        inner = rule_for(kinds[0], marks)
    else:
        inner = AnyOf([rule_for(kind) for kind in kinds])
    return Maybe(inner) if len(kinds) < len(parts) else inner


def rule_for(annotation: Any, marks: Sequence[Any] = ()) -> Rule:
    """Make the rule for a type annotation; a rule given as a mark is used as it is."""
    given = next((mark for mark in marks if isinstance(mark, Rule)), None)
    if given is not None:
        return given
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *own = get_args(annotation)
        return rule_for(inner, [*own, *marks])
    if origin is Literal:
        return Choice(get_args(annotation))
    if origin in (Union, pytypes.UnionType):
        return _union(get_args(annotation), marks)
    if origin in (list, Sequence, typing.Sequence):
        return Items(rule_for(get_args(annotation)[0]), *_lengths(marks))
    if origin in (dict, Mapping):
        return Table(rule_for(get_args(annotation)[1]))
    if hasattr(annotation, "__take__"):
        return Own(annotation)
    if annotation in (int, float):
        return _SIMPLE[annotation](_bounds(marks))  # type: ignore[call-arg]
    if annotation is str:
        return Text(*_lengths(marks))
    if annotation is datetime:
        return Moment(any(isinstance(m, Meta) and m.tz for m in marks))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return Member(annotation)
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]()
    raise TypeError(f"no rule for a field of type {annotation!r}")
