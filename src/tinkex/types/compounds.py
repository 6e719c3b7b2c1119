"""Rules made of other rules: optional values, lists, tables, records, unions; and a rule from a type."""

from __future__ import annotations

import types as pytypes
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import Meta

from .rules import (
    UNBOUNDED,
    Anything,
    Blob,
    Bounds,
    Choice,
    Flag,
    Integer,
    Member,
    Mismatch,
    Moment,
    Number,
    Rule,
    Schema,
    Text,
    check_length,
    length_schema,
    shown,
)


class Maybe(Rule):
    """A value or null."""

    __slots__ = ("inner",)
    takes_null = True

    def __init__(self, inner: Rule) -> None:
        self.inner: Rule = inner

    def take(self, value: Any, lenient: bool = False) -> Any:
        """Accept null, or what the inner rule accepts."""
        return None if value is None else self.inner.take(value, lenient)

    def schema(self, definitions: Schema) -> Schema:
        """Describe the value or null."""
        return {"anyOf": [self.inner.schema(definitions), {"type": "null"}]}


class Items(Rule):
    """A list of values of one kind."""

    inner: Rule
    longest: int | None
    shortest: int | None

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
        self.inner: Rule = inner

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
        self.kind: Any = kind

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

    infer: Callable[[Mapping[str, Any]], str | None] | None
    key: str
    unknown: Any

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

    kinds: tuple[Any, ...]
    mark: OneOf

    __slots__ = ("arms", "kinds", "mark")

    def __init__(self, kinds: Sequence[Any], mark: OneOf) -> None:
        self.kinds, self.mark = tuple(kinds), mark
        self.arms: dict[Any, Any] = {kind.__tag__: kind for kind in kinds if kind is not mark.unknown}

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
        self.rules: tuple[Rule, ...] = tuple(rules)

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
