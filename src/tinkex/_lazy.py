"""Names loaded on first use, so that importing the package stays cheap."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any


def lazy_exports(
    package: str, table: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make a module's `__getattr__` and `__dir__` from a table of name -> module.

    A value of `".x"` loads the name from that submodule; `".x:"` loads the submodule itself.
    """

    def load(name: str) -> Any:
        where = table.get(name)
        if where is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(where.rstrip(":"), package)
        value = module if where.endswith(":") else getattr(module, name)
        vars(importlib.import_module(package))[name] = value
        return value

    def names() -> list[str]:
        return sorted({*vars(importlib.import_module(package)), *table})

    return load, names


class LazyModule:
    """Stands in for a module that is imported when one of its attributes is first read."""

    def __init__(self, name: str) -> None:
        self.__name = name

    def __getattr__(self, attribute: str) -> Any:
        module: ModuleType = importlib.import_module(self.__name)
        value = getattr(module, attribute)
        self.__dict__[attribute] = value
        return value


if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

__all__ = ["LazyModule", "lazy_exports", "np"]
