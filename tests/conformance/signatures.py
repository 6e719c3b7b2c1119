"""How two classes are compared: would a call made for the official one mean the same with ours?"""

from __future__ import annotations

import inspect
from functools import cached_property
from typing import Any

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def accepts(official: inspect.Signature, own: inspect.Signature) -> list[str]:
    """Why a call that the official signature takes would not mean the same with ours."""
    problems = []
    mine = own.parameters
    takes_any = {p.kind for p in mine.values()} & {inspect.Parameter.VAR_KEYWORD}
    positional = [p for p in official.parameters.values() if p.kind in _POSITIONAL]
    own_positional = [p for p in mine.values() if p.kind in _POSITIONAL]
    if any(p.kind is p.VAR_POSITIONAL for p in mine.values()):
        positional = positional[: len(own_positional)]
    for index, parameter in enumerate(positional):
        if index >= len(own_positional) or own_positional[index].name != parameter.name:
            problems.append(f"{parameter.name} cannot be given as argument {index}")
    for name, parameter in official.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            if not any(p.kind is parameter.kind for p in mine.values()):
                problems.append(f"*{name} is missing")
            continue
        held = mine.get(name)
        if held is None or held.kind in (held.VAR_POSITIONAL, held.VAR_KEYWORD):
            if not takes_any:
                problems.append(f"{name} is missing")
            continue
        if parameter.kind is not parameter.POSITIONAL_ONLY and held.kind is held.POSITIONAL_ONLY:
            problems.append(f"{name} cannot be given by name")
        if parameter.default is not parameter.empty:
            if held.default is held.empty:
                problems.append(f"{name} has no default")
            elif _plain(parameter.default) and held.default != parameter.default:
                problems.append(f"{name} defaults to {held.default!r}, not {parameter.default!r}")
    for name, held in mine.items():
        optional = held.kind in (held.VAR_POSITIONAL, held.VAR_KEYWORD) or held.default is not held.empty
        if name not in official.parameters and not optional:
            problems.append(f"{name} is demanded")
    return problems


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _members(kind: type, foreign: type = object) -> dict[str, Any]:
    """Public methods and properties of a class, without what a foreign base brings."""
    machinery = getattr(kind, "__pydantic_decorators__", None)
    hidden: set[str] = set()
    if machinery is not None:
        hidden = {*machinery.field_validators, *machinery.field_serializers, *machinery.model_serializers}
    return {
        name: inspect.getattr_static(kind, name)
        for name in dir(kind)
        if not name.startswith("_") and not hasattr(foreign, name) and name not in hidden
    }


def shape(member: Any) -> tuple[str, Any]:
    """How a member is used: as an attribute, or called in one of several ways."""
    if isinstance(member, (property, cached_property)):
        return "attribute", None
    if isinstance(member, (classmethod, staticmethod)):
        function = member.__func__
        bound = isinstance(member, classmethod)
        return "called on the class", _without_self(function) if bound else inspect.signature(function)
    if inspect.isfunction(member):
        awaited = inspect.iscoroutinefunction(inspect.unwrap(member))
        return ("awaited" if awaited else "called"), _without_self(member)
    return "attribute", None


def _returns_awaitable(member: Any) -> bool:
    """A plain method that returns a future may stand in for a coroutine function."""
    returned = str(getattr(member, "__annotations__", {}).get("return", ""))
    return inspect.isfunction(member) and ("Future" in returned or "Awaitable" in returned)


def _without_self(function: Any) -> inspect.Signature:
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def compare_members(official: type, own: type, foreign: type) -> list[str]:
    problems = []
    for name, member in _members(official, foreign).items():
        try:
            held = inspect.getattr_static(own, name)
        except AttributeError:
            problems.append(f"{name} is missing")
            continue
        how, signature = shape(member)
        own_how, own_signature = shape(held)
        if how != own_how and not (how == "awaited" and _returns_awaitable(held)):
            problems.append(f"{name} is {own_how}, not {how}")
        elif signature is not None:
            problems += [f"{name}: {problem}" for problem in accepts(signature, own_signature)]
    return problems
