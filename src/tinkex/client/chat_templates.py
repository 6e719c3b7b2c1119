"""Chat templates: foreign code, run in Jinja's sandbox with a bound on its steps, its time and its sizes.

The sandbox keeps a template from reaching anything but what it is given. It does not keep it from counting
for ever or from making a text that fills the memory; this module does.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from ..errors import TokenizerError

__all__ = ["render"]

STEPS = 5_000_000
"""Turns of loops and calls in one rendering."""
SECONDS = 20.0
"""Seconds of a processor one rendering may take."""
LARGEST = 64 << 20
"""Characters of a text that a template may make."""
MOST_ITEMS = 4 << 20
"""Items of a list that it may make."""
LONGEST_TEMPLATE = 1 << 20
_LARGEST_NUMBER = 1_000_000
_MOST_BITS = 4096
_WIDTH = re.compile(r"[0-9]{4}|\*|\{[^{}]*\{")  # in a format: wide fields, and widths from elsewhere
_LOOK_EVERY = 32


class _Budget:
    """What one rendering has left."""

    def __init__(self) -> None:
        self.steps, self.ends = STEPS, time.thread_time() + SECONDS

    def spend(self) -> None:
        """One step more."""
        self.steps -= 1
        if self.steps < 0 or (self.steps % _LOOK_EVERY == 0 and time.thread_time() > self.ends):
            raise TokenizerError(f"the chat template takes more than {STEPS:,} steps or {SECONDS:g} s")


_budget: ContextVar[_Budget] = ContextVar("tinkex_template_budget")


def render(template: str, given: Mapping[str, Any]) -> str:
    """What a template makes of what it is given."""
    if len(template) > LONGEST_TEMPLATE:
        raise TokenizerError(
            f"the chat template has {len(template)} characters, at most {LONGEST_TEMPLATE}"
        )
    held = _budget.set(_Budget())
    try:
        text: str = _compiled(template).render(given)
    except RecursionError:
        raise TokenizerError("the chat template calls itself without end") from None
    finally:
        _budget.reset(held)
    return text


def _spend() -> None:
    _budget.get().spend()


def _fits(size: int, kind: object = "") -> None:
    if size > (LARGEST if isinstance(kind, (str, bytes)) else MOST_ITEMS):
        raise TokenizerError(
            f"the chat template makes more than {LARGEST} characters, or than {MOST_ITEMS} items"
        )


def _counted(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _spend()
        yield item


def _joined(pieces: Iterable[str]) -> str:
    held, size = [], 0
    for piece in pieces:
        size += len(piece)
        _fits(size)
        held.append(piece)
    return "".join(held)


def _combined(operator: str, left: Any, right: Any) -> None:
    """Refuse what would become too large, before it is made."""
    numbers = isinstance(left, int) and isinstance(right, int)
    if operator == "*":
        for sequence, count in ((left, right), (right, left)):
            if hasattr(sequence, "__len__") and isinstance(count, int):
                _fits(len(sequence) * count, sequence)
        if numbers:
            _fits_number(left.bit_length() + right.bit_length())
    elif operator == "**":
        if numbers:
            _fits_number(left.bit_length() * abs(right))
    elif operator == "+":
        if hasattr(left, "__len__") and hasattr(right, "__len__"):
            _fits(len(left) + len(right), left)
    elif isinstance(left, str):  # `%`, which formats a text
        _fits_format(left)


def _fits_number(bits: int) -> None:
    if bits > _MOST_BITS:
        raise TokenizerError("the chat template computes with numbers no conversation has")


def _fits_format(text: str) -> None:
    if _WIDTH.search(text):
        raise TokenizerError("the chat template formats into fields wider than any text")


def _checked(name: str, first: Any, rest: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Refuse a filter or a method of texts and lists whose result would be too large."""
    others = (*rest, *named.values())
    if not isinstance(first, (str, bytes, list, tuple, range)):
        return
    lines = 1 + first.count("\n") + first.count("\t") if isinstance(first, str) else 1
    for each in others:
        if isinstance(each, int) and not isinstance(each, bool):
            if abs(each) > _LARGEST_NUMBER:
                raise TokenizerError(f"the chat template gives {name} a number no conversation has")
            _fits(abs(each) * lines)
    if name in ("format", "format_map", "strftime_now"):
        _fits_format(str(first))
    if name == "join" and others:
        separator, items = (others[0], first) if not isinstance(first, str) else (first, others[0])
        if isinstance(separator, str) and hasattr(items, "__len__"):
            _fits(len(separator) * len(items))
    if name == "replace" and isinstance(first, str) and len(others) >= 2:
        old, new = str(others[0]), str(others[1])
        _fits(len(first) + first.count(old) * len(new))


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is a step, and whose result has a bound."""
    skip = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def bounded(*given: Any, **named: Any) -> Any:
        if _budget.get(None) is not None:  # constants are folded when a template is read
            _spend()
        if len(given) > skip:
            _checked(name, given[skip], given[skip + 1 :], named)
        made = function(*given, **named)
        if isinstance(made, (str, list, tuple)):
            _fits(len(made), made)
        return made

    return bounded


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _strftime_now(form: str) -> str:
    _fits_format(form)
    return datetime.now().astimezone().strftime(form)


@functools.lru_cache(maxsize=64)
def _compiled(template: str) -> Any:
    return _environment().from_string(template)


@functools.cache
def _environment() -> Any:
    """Jinja as chat templates expect it."""
    try:
        from jinja2 import TemplateError, nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from jinja2.visitor import NodeTransformer
    except ImportError:
        raise TokenizerError("chat templates need Jinja: pip install jinja2") from None

    class Generation(Extension):  # type: ignore[misc]
        """`{% generation %}` marks what the model says; here it changes nothing."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Bounds(NodeTransformer):  # type: ignore[misc]
        """Has every turn of a loop counted, and texts that are put together measured."""

        def visit_For(self, node: Any) -> Any:  # noqa: N802 - Jinja's names
            self.generic_visit(node)
            node.iter = nodes.Filter(node.iter, "_counted", [], [], None, None, lineno=node.lineno)
            return node

        def visit_Concat(self, node: Any) -> Any:  # noqa: N802
            self.generic_visit(node)
            together = nodes.List(node.nodes, lineno=node.lineno)
            return nodes.Filter(together, "_together", [], [], None, None, lineno=node.lineno)

    class Sandbox(ImmutableSandboxedEnvironment):  # type: ignore[misc]
        """The sandbox, with bounds."""

        intercepted_binops = frozenset({"*", "**", "+", "%"})
        concat = staticmethod(_joined)

        def _parse(self, source: str, name: Any, filename: Any) -> Any:
            return Bounds().visit(super()._parse(source, name, filename))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _combined(operator, left, right)
            return super().call_binop(context, operator, left, right)

        def call(self, context: Any, function: Any, *given: Any, **named: Any) -> Any:
            _spend()
            method = getattr(function, "__wrapped__", function)  # the sandbox wraps `format`
            name = getattr(method, "__name__", "")
            _checked(name, getattr(method, "__self__", None), given, named)
            made = super().call(context, function, *given, **named)
            if isinstance(made, (str, list, tuple)):
                _fits(len(made), made)
            return made

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    made = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = _tojson
    made.filters = {name: _guarded(name, function) for name, function in made.filters.items()}
    made.filters |= {"_counted": _counted, "_together": lambda items: _joined(map(str, items))}
    made.globals = {name: each for name, each in made.globals.items() if name != "lipsum"}
    made.globals |= {"raise_exception": raise_exception, "strftime_now": _strftime_now}
    return made
