"""Slotted classes whose attributes are set once."""

from __future__ import annotations

from typing import Any, NoReturn


class Frozen:
    """Refuses assignment after construction; `_set` is for constructors and caches."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot set {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot delete {name!r}")

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        self._set(**state[1])
