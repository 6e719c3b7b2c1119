"""The base of every plain record: fixed fields, checked when built, tolerant when read.

Records look like the official SDK's pydantic models to user code (`model_dump`, `model_copy`,
`model_validate`, …) and are `msgspec` structs underneath.  This module knows nothing of bytes.
"""

from __future__ import annotations

import base64
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast, dataclass_transform, get_type_hints

import msgspec

from ..errors import InvalidArgumentError, UnknownArgumentError
from .compounds import rule_for
from .rules import Mismatch, Rule, Schema, closest, shown

_REQUIRED = msgspec.NODEFAULT


@dataclass(frozen=True, slots=True)
class FieldInfo:
    """One field of a record: its rule, and the default if it has one."""

    name: str
    annotation: Any
    rule: Rule
    default: Any
    default_factory: Callable[[], Any] | None

    def is_required(self) -> bool:
        """Whether the constructor must be given this field."""
        return self.default is _REQUIRED and self.default_factory is None

    def get_default(self) -> Any:
        """A fresh default value."""
        return self.default_factory() if self.default_factory is not None else self.default


class Duck:
    """The pydantic-style methods user code calls, for records and array-backed types alike."""

    __slots__ = ()

    if TYPE_CHECKING:

        def _items(self) -> Iterator[tuple[str, Any]]: ...

        @classmethod
        def __take__(cls, value: Any, lenient: bool = False) -> Self: ...

        @classmethod
        def __schema__(cls, definitions: Schema) -> Schema: ...

    def model_dump(
        self,
        *,
        mode: str = "python",
        include: Iterable[str] | None = None,
        exclude: Iterable[str] | None = None,
        exclude_none: bool = False,
        exclude_unset: bool = False,
        exclude_defaults: bool = False,
        by_alias: bool | None = None,
        **_ignored: Any,
    ) -> dict[str, Any]:
        """The fields as a dict, nested records too; `mode="json"` makes every value JSON-ready."""
        kept = None if include is None else set(include)
        dropped = set(exclude or ())
        defaults = self._defaults() if exclude_defaults else {}
        return {
            name: dump(value, mode, exclude_none)
            for name, value in self._items()
            if name not in dropped
            and (kept is None or name in kept)
            and not (exclude_none and value is None)
            and not (name in defaults and defaults[name] == value)
        }

    def _defaults(self) -> dict[str, Any]:
        return {}

    def model_dump_json(self, *, indent: int | None = None, **options: Any) -> str:
        """The fields as JSON text."""
        raw = msgspec.json.encode(self.model_dump(**{**options, "mode": "json"}))
        return (msgspec.json.format(raw, indent=indent) if indent else raw).decode()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy, with some fields replaced."""
        fields = {**dict(self._items()), **(update or {})}
        if deep:
            import copy

            fields = copy.deepcopy(fields)
        return type(self)(**fields)

    @classmethod
    def model_construct(cls, **values: Any) -> Self:
        """Build from keyword arguments."""
        return cls(**values)

    @classmethod
    def model_validate(cls, obj: Any, **_ignored: Any) -> Self:
        """Read an instance from a mapping (or an instance), ignoring keys that mean nothing here."""
        if isinstance(obj, cls):
            return obj
        try:
            return cls.__take__(obj, True)
        except Mismatch as problem:
            raise refusal(cls.__name__, problem) from None

    @classmethod
    def model_validate_json(cls, json_data: str | bytes, **_ignored: Any) -> Self:
        """Read an instance from JSON text."""
        return cls.model_validate(msgspec.json.decode(json_data))

    @classmethod
    def model_json_schema(cls, **_ignored: Any) -> Schema:
        """The JSON schema of the wire form."""
        definitions: Schema = {}
        own = cls.__schema__(definitions)
        return {**own, "$defs": definitions} if definitions else own

    def to_dict(self, **options: Any) -> dict[str, Any]:
        """The fields as a JSON-ready dict."""
        return self.model_dump(**{"mode": "json", **options})

    def to_json(self, **options: Any) -> str:
        """The fields as JSON text."""
        return self.model_dump_json(**options)

    dict = model_dump
    json = model_dump_json
    copy = model_copy
    parse_obj = model_validate

    def __str__(self) -> str:
        return repr(self)


def dump(value: Any, mode: str = "python", exclude_none: bool = False) -> Any:
    """A field's value with every record inside turned into a dict."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode=mode, exclude_none=exclude_none)
    if isinstance(value, (list, tuple)):
        return [dump(item, mode, exclude_none) for item in value]
    if isinstance(value, Mapping):
        return {key: dump(item, mode, exclude_none) for key, item in value.items()}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if mode == "json":
        if isinstance(value, datetime):
            return msgspec.to_builtins(value)
        if isinstance(value, Enum):
            return value.value
    return value


def refusal(owner: str, problem: Mismatch) -> InvalidArgumentError:
    """The user's error for a value that does not fit a field."""
    where = f"{owner}.{problem.path}" if problem.path else owner
    return InvalidArgumentError(f"{where}: {problem.message}")


def refuse_unknown(owner: str, unknown: Iterable[str], known: Iterable[str]) -> None:
    """Raise for keyword arguments no field has, naming the nearest; warn only if asked to.

    `TINKEX_UNKNOWN_ARGUMENTS=warn` keeps code going that relies on typos being ignored.
    """
    names = sorted(unknown)
    known = list(known)
    parts = []
    for name in names:
        near = closest(name, known)
        parts.append(f"{name!r}" + (f" (did you mean {near!r}?)" if near else ""))
    text = f"{owner} has no field {', '.join(parts)}; its fields are: {', '.join(known)}"
    if os.environ.get("TINKEX_UNKNOWN_ARGUMENTS", "").lower() == "warn":
        warnings.warn(text, FutureWarning, stacklevel=3)
        return
    raise UnknownArgumentError(text)


_FIELDS: dict[type, dict[str, FieldInfo]] = {}


def fields_of(cls: type[Record]) -> dict[str, FieldInfo]:
    """The fields of a record class, compiled from its annotations on first use."""
    known = _FIELDS.get(cls)
    if known is None:
        hints = get_type_hints(cls, include_extras=True)
        known = {
            spec.name: FieldInfo(
                spec.name,
                hints[spec.name],
                rule_for(hints[spec.name]),
                spec.default,
                None if spec.default_factory is _REQUIRED else cast("Any", spec.default_factory),
            )
            for spec in msgspec.structs.fields(cast("type[msgspec.Struct]", cls))
        }
        _FIELDS[cls] = known
    return known


if TYPE_CHECKING:
    # Type checkers see a keyword-only frozen dataclass; msgspec's own declaration would make them
    # insist on `kw_only=True` in every class.
    class _StructMeta(type):
        pass

    class _Struct:
        __struct_fields__: ClassVar[tuple[str, ...]]

else:
    _StructMeta = msgspec.StructMeta

    class _Struct(msgspec.Struct, frozen=True, dict=True):
        pass


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class RecordMeta(_StructMeta):
    """Checks what a record's constructor is given before msgspec builds it."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: Any, **options: Any) -> Any:
        """Make the class; msgspec does not hand `kw_only` down to subclasses."""
        return super().__new__(cls, name, bases, namespace, **{"kw_only": True, **options})

    def __call__(self, /, *args: Any, **given: Any) -> Any:
        """Build a record from keyword arguments, refusing unknown names and unfit values."""
        name = self.__name__
        if args:
            raise TypeError(f"{name} takes keyword arguments only, e.g. {name}(field=value)")
        kind = cast("type[Record]", self)
        fields = fields_of(kind)
        given = kind._renamed(given)
        taken = {}
        unknown = []
        for key, value in given.items():
            info = fields.get(key)
            if info is None:
                unknown.append(key)
                continue
            try:
                taken[key] = info.rule.take(value)
            except Mismatch as problem:
                raise refusal(name, problem.inside(key)) from None
        extra: dict[str, Any] = {}
        if unknown:
            if kind.__open__:
                extra = {key: given[key] for key in unknown}
            else:
                refuse_unknown(name, unknown, fields)
        return kind._build(taken, extra)

    def make(self, values: dict[str, Any]) -> Any:
        """Build a record from values already known to fit."""
        return super().__call__(**values)

    @property
    def model_fields(self) -> dict[str, FieldInfo]:
        """The fields by name, as pydantic's `model_fields`."""
        return fields_of(cast("type[Record]", self))


class Record(_Struct, Duck, metaclass=RecordMeta):
    """A frozen record with named fields; build it with keyword arguments."""

    __open__: ClassVar[bool] = False  # keeps unknown names in `extra` instead of refusing them
    writes_null: ClassVar[frozenset[str]] = frozenset()  # fields whose None is sent as null
    __tag__: ClassVar[str] = ""  # the value of `type` (or `state`) that names this record

    @classmethod
    def _build(cls, taken: dict[str, Any], extra: Mapping[str, Any]) -> Self:
        try:
            record = cast("Self", RecordMeta.make(cls, taken))
        except TypeError:
            fields = fields_of(cls).items()
            absent = [name for name, info in fields if name not in taken and info.is_required()]
            raise InvalidArgumentError(f"{cls.__name__} needs {', '.join(absent)}") from None
        if extra:
            record.__dict__["_extra"] = dict(extra)
        record._checked()
        return record

    def _checked(self) -> None:
        """Checks over several fields; raise `InvalidArgumentError`."""

    @classmethod
    def _renamed(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Map accepted alternative names to field names."""
        return given

    @classmethod
    def __take__(cls, value: Any, lenient: bool = False) -> Self:
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise Mismatch(f"expected {cls.__name__} or a mapping, got {shown(value)}")
        value = cls._renamed(dict(value))
        if not lenient:
            try:
                return cls(**value)
            except InvalidArgumentError as problem:
                raise Mismatch(str(problem)) from None
        fields = fields_of(cls)
        taken: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for key, item in value.items():
            info = fields.get(key)
            if info is None:
                extra[key] = item
            elif item is not None or info.rule.takes_null:
                try:
                    taken[key] = info.rule.take(item, True)
                except Mismatch as problem:
                    raise problem.inside(key) from None
        for name, info in fields.items():
            if name not in taken and info.is_required():
                raise Mismatch("is missing", name)
        try:
            return cls._build(taken, extra)
        except InvalidArgumentError as problem:
            raise Mismatch(str(problem)) from None

    @classmethod
    def __schema__(cls, definitions: Schema) -> Schema:
        fields = fields_of(cls)
        properties = {name: info.rule.schema(definitions) for name, info in fields.items()}
        required = [name for name, info in fields.items() if info.is_required()]
        schema: Schema = {"type": "object", "title": cls.__name__, "properties": properties}
        if cls.__doc__:
            schema["description"] = cls.__doc__.strip().split("\n")[0]
        if required:
            schema["required"] = required
        return schema

    @property
    def extra(self) -> Mapping[str, Any]:
        """What a newer peer sent besides the known fields."""
        return cast("Mapping[str, Any]", self.__dict__.get("_extra", {}))

    @property
    def model_extra(self) -> Mapping[str, Any]:
        """The same as `extra`."""
        return self.extra

    @property
    def model_fields_set(self) -> set[str]:
        """All field names: a record does not tell given values from defaults."""
        return set(self.__struct_fields__)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy, with some fields replaced."""
        made = super().model_copy(update=update, deep=deep)
        if self.extra and not self.__open__:
            made.__dict__["_extra"] = dict(self.extra)
        return made

    copy = model_copy

    @classmethod
    def model_construct(cls, **values: Any) -> Self:
        """Build without any check."""
        return cast("Self", RecordMeta.make(cls, values))

    def _items(self) -> Iterator[tuple[str, Any]]:
        for name in self.__struct_fields__:
            yield name, getattr(self, name)
        if self.__open__:
            yield from self.extra.items()

    def _defaults(self) -> dict[str, Any]:
        return {
            name: info.get_default()
            for name, info in fields_of(type(self)).items()
            if not info.is_required()
        }

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return self._items()

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return _rebuild, (type(self), values, dict(self.extra))

    def __copy__(self) -> Self:
        rebuild, parts = self.__reduce__()
        return cast("Self", rebuild(*parts))


class OpenRecord(Record):
    """A record of which only some fields are known; the others are kept as they came."""

    __open__ = True

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_extra"][name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}") from None

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self._items())
        return f"{type(self).__name__}({inside})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and dict(self._items()) == dict(cast("Self", other)._items())

    def __hash__(self) -> int:
        return hash((type(self), getattr(self, "type", None)))


def _rebuild(kind: type[Record], values: dict[str, Any], extra: dict[str, Any]) -> Record:
    return kind._build(values, extra)
