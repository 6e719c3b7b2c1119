"""Field rules: how one value of a record is checked, read from JSON, and described.

A rule is made from a type annotation.  `take(value, lenient=False)` is the constructor's view: common
conversions are made, everything else is refused.  With `lenient=True` it is a decoder's view: null
means absent where null is not allowed, unknown keys and tags are kept, never refused.
Rules know nothing of bytes, HTTP or a particular record.
"""

from __future__ import annotations

import base64
import contextlib
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

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

    longest: int | None
    shortest: int | None

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
        self.bounds: Bounds = bounds

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
        self.bounds: Bounds = bounds

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
        self.aware: bool = aware

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
            except ValueError as problem:
                raise Mismatch(f"is not base64 ({problem}), got {shown(value)}") from None
        raise Mismatch(f"expected bytes or base64 text, got {shown(value)}")

    def schema(self, definitions: Schema) -> Schema:
        """Describe base64 text."""
        return {"type": "string", "contentEncoding": "base64"}


class Choice(Rule):
    """One of a few fixed values."""

    __slots__ = ("options",)

    def __init__(self, options: Sequence[Any]) -> None:
        self.options: tuple[Any, ...] = tuple(options)

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
        self.kind: type[Enum] = kind

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
