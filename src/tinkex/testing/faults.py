"""Making a service misbehave on purpose: wrong answers, late ones, none at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..errors import RequestErrorCategory
from ..wire.jsonbody import encode
from .calls import Call
from .exchange import FakeResponse
from .routing import check_names

__all__ = ["Fate", "Fault", "Faults", "RateLimit"]

When: TypeAlias = int | Callable[[Call], object] | None


@dataclass(frozen=True, slots=True)
class Fate:
    """How accepted work will end: with this error, or lost."""

    error: str = ""
    category: str = "server"
    lost: bool = False


@dataclass(slots=True, eq=False)
class Fault:
    """One thing that goes wrong, on some calls, so many times; as a context manager, while inside."""

    routes: frozenset[str]
    when: When = None
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    times: int | None = None
    delay: float = 0.0
    hang: bool = False
    drop: bool = False
    cut: int | None = None
    after: bool = False
    fate: Fate | None = None
    then: Fault | None = None
    seen: int = 0  # calls to its routes so far
    used: int = 0  # calls it struck
    _owner: Faults | None = None

    def concerns(self, call: Call) -> bool:
        """Whether a call goes to one of its routes; it counts those."""
        concerned = "*" in self.routes or call.route in self.routes
        self.seen += concerned
        return concerned

    def strikes(self, call: Call) -> bool:
        """Whether this call of its routes is one to go wrong."""
        if isinstance(self.when, int):
            wanted = self.seen == self.when
        else:
            wanted = self.when is None or bool(self.when(call))
        self.used += wanted
        return wanted

    @property
    def over(self) -> bool:
        """Whether it will never strike again."""
        spent = self.times is not None and self.used >= self.times
        return spent or (isinstance(self.when, int) and self.seen >= self.when)

    @property
    def replaces(self) -> bool:
        """Whether it answers in the service's place."""
        return self.status is not None or self.body is not None or self.hang or self.drop

    def response(self) -> FakeResponse:
        """The answer that goes out instead."""
        status = 200 if self.status is None else self.status
        headers = {name.lower(): value for name, value in self.headers.items()}
        if isinstance(self.body, bytes):
            body = self.body
        elif isinstance(self.body, str):
            body = self.body.encode()
        else:
            body = encode({"detail": f"injected {status}"} if self.body is None else self.body)
            headers.setdefault("content-type", "application/json")
        return FakeResponse(status, headers, body, self.delay, self.hang, self.drop, self.cut)

    def remove(self) -> None:
        """Stop striking."""
        if self._owner is not None:
            self._owner.remove(self)

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class Faults:
    """The faults in force; the first added that strikes a call decides."""

    def __init__(self) -> None:
        self._active: list[Fault] = []

    def __bool__(self) -> bool:
        return bool(self._active)

    def __len__(self) -> int:
        return len(self._active)

    def add(
        self,
        route: str | Iterable[str],
        *,
        when: When = None,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
        times: int | None = None,
        delay: float = 0.0,
        hang: bool = False,
        drop: bool = False,
        cut: int | None = None,
        after: bool = False,
        fail: tuple[str, str] | str | None = None,
        lose: bool = False,
        then: Fault | Mapping[str, Any] | None = None,
    ) -> Fault:
        """Let calls to `route` (a name, several, or "*") go wrong.

        `when` picks them: the n-th from now on, or a function of the `Call`; `times` bounds how
        often.  What happens: `status`, `headers` and `body` (bytes, text, or JSON data) are sent
        instead of the answer, or the connection is closed (`drop`) or left open (`hang`), after
        `delay` seconds.  A delay alone only slows the true answer, headers alone are added to it,
        and `cut` closes the connection after so many bytes of its body.  With `after=True` the service does
        its work first and only the answer is lost.  `fail=("text", "user")` accepts the work but
        makes it end in that error; `lose=True` makes its result vanish (410).  When the fault is
        spent, `then` (another fault, or its arguments) takes its place.
        """
        fate = None
        if fail is not None or lose:
            error, category = (fail, "server") if isinstance(fail, str) else fail or ("", "server")
            fate = Fate(error, str(RequestErrorCategory(category)), lose)
        if isinstance(then, Mapping):
            then = Faults().add(then.get("route", route), **{k: v for k, v in then.items() if k != "route"})
        routes = check_names(route, "*", "")
        fault = Fault(
            routes,
            when,
            status,
            dict(headers or {}),
            body,
            times,
            delay,
            hang,
            drop,
            cut,
            after,
            fate,
            then,
        )
        fault._owner = self
        self._active.append(fault)
        return fault

    def strike(self, call: Call) -> Fault | None:
        """The fault that decides this call, if any; all that concern it count it."""
        decided = None
        for fault in list(self._active):
            if fault.concerns(call) and decided is None and fault.strikes(call):
                decided = fault
            if fault.over:
                self._replace(fault)
        return decided

    def _replace(self, spent: Fault) -> None:
        position = self._active.index(spent)
        if spent.then is None:
            del self._active[position]
        else:
            spent.then._owner = self
            self._active[position] = spent.then

    def remove(self, fault: Fault) -> None:
        """Take one away, with what would have followed it."""
        chain = set()
        link: Fault | None = fault
        while link is not None:
            chain.add(link)
            link = link.then
        self._active = [each for each in self._active if each not in chain]

    def clear(self) -> None:
        """Take all away."""
        self._active = []


@dataclass(slots=True)
class RateLimit:
    """So many calls a second; what is above gets 429."""

    per_second: float
    burst: float
    retry_after: float | None
    _level: float = 0.0
    _at: float | None = None

    def refuse(self, now: float) -> FakeResponse | None:
        """A 429 if there is no room at this moment."""
        if self._at is None:
            self._level = self.burst
        else:
            self._level = min(self.burst, self._level + (now - self._at) * self.per_second)
        self._at = now
        if self._level >= 1:
            self._level -= 1
            return None
        headers = {"content-type": "application/json"}
        if self.retry_after is not None:
            headers["retry-after"] = f"{self.retry_after:g}"
        return FakeResponse(429, headers, encode({"detail": "too many requests"}))
