"""What `RestClient` and `AdminClient` share: one request, one answer, and no session."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, get_args

from .._version import SDK_VERSION
from ..config import Config
from ..errors import ClientClosedError, InvalidArgumentError
from ..net.caller import read_answer
from ..net.clock import Clock
from ..net.lanes import make_transport
from ..net.policy import Operation
from ..types.record import Record
from ..wire.bodies import Nothing, query_of
from ..wire.jsonbody import encode
from ..wire.routes import Route, route
from .connection import Connection, MakeTransport
from .future import Future, owned
from .session import Session

if TYPE_CHECKING:
    from .telemetry import Telemetry

__all__ = ["RestCalls", "awaited", "sdk_headers", "warn_user"]

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def awaited(
    method: Callable[Concatenate[S, P], Future[T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The `_async` twin of a method that returns a future: same arguments, the value itself."""

    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await owned(method(self, *args, **kwargs))

    signature = inspect.signature(method, eval_str=True)  # the twin cannot see the names of its module
    (value,) = get_args(signature.return_annotation)
    twin.__name__ = f"{method.__name__}_async"
    twin.__qualname__ = f"{method.__qualname__}_async"
    twin.__module__ = method.__module__
    twin.__doc__ = method.__doc__
    types = {
        name: parameter.annotation for name, parameter in signature.parameters.items() if name != "self"
    }
    twin.__annotations__ = {**types, "return": value}
    vars(twin)["__signature__"] = signature.replace(return_annotation=value)
    return twin


def sdk_headers(method: str) -> dict[str, str]:
    """The headers by which the service knows which method a request was made for."""
    return {"x-sdk-version": SDK_VERSION, "x-sdk-method": method}


def warn_user(text: str, category: type[Warning]) -> None:
    """Warn at the line outside this package that led here."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("tinkex."):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


class RestCalls:
    """A client whose methods are single requests; making one does no I/O.

    Without a session to work in (`_holder`, as a `ServiceClient` gives it) it has a connection of
    its own, which shares its transports with everyone who has the same address and credential.
    """

    def __init__(
        self,
        _holder: Session | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        config: Config | None = None,
        clock: Clock | None = None,
        transport: MakeTransport | None = None,
    ) -> None:
        name = type(self).__name__
        if _holder is not None:
            if any(given is not None for given in (base_url, api_key, config, clock, transport)):
                raise InvalidArgumentError(
                    f"{name}: give a session or base_url/api_key, not both; a session has its own"
                )
            self.holder: Session = _holder
            return
        resolved = config or Config.resolve(base_url=base_url, api_key=api_key)
        self.holder = Session(Connection(resolved, clock=clock, make_transport=transport or make_transport))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(base_url={self.holder.connection.config.base_url!r})"

    def get_telemetry(self) -> Telemetry | None:
        """What reports events to the server, unless it is off."""
        return self.holder.telemetry

    def _ask(
        self,
        name: str,
        method: str,
        *,
        body: Record | None = None,
        query: Record | None = None,
        headers: Mapping[str, str] | None = None,
        final: frozenset[int] = frozenset(),
        done: frozenset[int] = frozenset(),
        **path: str,
    ) -> Future[Any]:
        """Send one request for the public method of that name; the answer is the future's result."""
        origin = route(name)
        origin.url_path(**path)  # refuses here what cannot stand in an address
        content = None if body is None else encode(body)
        return self._start(self._call(origin, method, content, query, headers, final, path, done))

    def _start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self.holder.finished or self.holder.connection.closed:
            work.close()
            raise ClientClosedError(f"the ServiceClient behind this {type(self).__name__} is closed")
        return self.holder.start(work)

    async def _call(
        self,
        origin: Route,
        method: str,
        body: bytes | None = None,
        query: Record | None = None,
        headers: Mapping[str, str] | None = None,
        final: frozenset[int] = frozenset(),
        path: Mapping[str, str] | None = None,
        done: frozenset[int] = frozenset(),
    ) -> Any:
        connection = self.holder.connection
        await connection.settings()  # says which credential to send
        async with connection.shared.rest.hold():
            response = await connection.caller.call(
                origin,
                body,
                headers={**sdk_headers(method), **(headers or {})},
                path=path,
                query=None if query is None else query_of(query),
                operation=Operation(
                    origin.name, seconds=connection.config.retry_seconds, final=final, done=done
                ),
            )
        return None if origin.response is Nothing else read_answer(origin.response, response)
