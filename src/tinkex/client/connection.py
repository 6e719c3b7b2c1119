"""A client's link to its server: shared transports and limits, its own settings and events.

Transports and limits are shared by everyone in the process with the same address and credential;
they live as long as somebody holds them.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable
from typing import Any

from .._version import SDK_VERSION
from ..config import Config
from ..errors import ClientClosedError, NotFoundError, TinkerError
from ..net.auth import Auth
from ..net.caller import Caller, read_answer
from ..net.clock import Clock, SystemClock
from ..net.credentials import CredentialStore, is_jwt
from ..net.events import Hooks
from ..net.lanes import Lanes, make_transport
from ..net.limits import Gate, Throttle
from ..net.locks import new_lock
from ..net.metrics import Metrics
from ..net.teller import Teller
from ..net.transport import Transport
from ..types.service import (
    AuthTokenResponse,
    ClientConfigRequest,
    ClientConfigResponse,
    ClientDynamicConfigResponse,
)
from ..wire.jsonbody import encode
from ..wire.routes import route
from .local_server import reached
from .portal import portal

__all__ = ["Connection", "Shared"]

MakeTransport = Callable[[Config], Transport]


class Shared:
    """Transports and limits of one address and credential."""

    def __init__(self, config: Config, clock: Clock, make: MakeTransport) -> None:
        self.lanes: Lanes = Lanes(config, make)
        self.sampling: Throttle = Throttle(clock)
        self.sampling_bytes: Gate = Gate(ClientConfigResponse().sample_dispatch_bytes_semaphore_size)
        self.training_bytes: Gate = Gate(ClientConfigResponse().fwdbwd_dispatch_bytes_semaphore_size)
        self.result_bytes: Gate = Gate(ClientConfigResponse().inflight_response_bytes_semaphore_size)
        self.rest: Gate = Gate(8)
        self.sample_polls: Gate = Gate(_most_polls())
        weakref.finalize(self, _close_later, self.lanes, portal().generation).atexit = False

    def apply(self, settings: ClientConfigResponse) -> None:
        """Take the server's word on sizes."""
        self.sampling_bytes.capacity = max(settings.sample_dispatch_bytes_semaphore_size, 1)
        self.training_bytes.capacity = max(settings.fwdbwd_dispatch_bytes_semaphore_size, 1)
        self.result_bytes.capacity = max(settings.inflight_response_bytes_semaphore_size, 1)


def _most_polls() -> int:
    """How many samples may be polled singly at once: each may hold a connection, which is an open file."""
    try:
        import resource
    except ImportError:
        return 400
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 10_000 if soft == resource.RLIM_INFINITY else max(int(soft * 0.4), 16)


def _close_later(lanes: Lanes, generation: int) -> None:
    here = portal()
    # After a fork the parent's sockets are not ours to say goodbye on.
    if here.generation == generation and lanes._transports:
        with contextlib.suppress(ClientClosedError):
            here.spawn(lanes.close())


_shared: weakref.WeakValueDictionary[Any, Shared] = weakref.WeakValueDictionary()
_shared_lock = new_lock()


class Connection:
    """One client's view of a server."""

    hooks: Hooks
    metrics: Metrics
    teller: Teller

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock | None = None,
        make_transport: MakeTransport = make_transport,
        store: CredentialStore | None = None,
        settings: ClientConfigResponse | None = None,
        dynamic: ClientDynamicConfigResponse | None = None,
    ) -> None:
        self.config: Config = reached(config)
        self.clock: Clock = clock or SystemClock()
        self._own_clock = clock
        self.hooks, self.metrics, self.teller = Hooks(), Metrics(), Teller(self.clock)
        self.closed = False
        self._make, self._store = make_transport, store
        self._known, self.dynamic = settings, dynamic or ClientDynamicConfigResponse()
        self._generation = -1
        self._caller: Caller | None = None
        self._held: Shared | None = None
        self._ready: asyncio.Task[ClientConfigResponse] | None = None
        self._auth: Auth | None = None

    # ---- parts that must be made anew after a fork

    def _parts(self) -> tuple[Caller, Shared]:
        generation = portal().generation
        if self._caller is None or self._held is None or self._generation != generation:
            auth = Auth(self.config, self.clock, self._store)
            key = (
                generation, self.config.base_url, auth.digest, self.config.proxied,
                self.config.ca_file, self.config.limit_group, self._make, self._own_clock,
            )  # fmt: skip
            with _shared_lock:
                held = _shared.get(key)
                if held is None:
                    held = _shared[key] = Shared(self.config, self.clock, self._make)
            self._caller = Caller(
                self.config, held.lanes, auth, self.clock, self.hooks, self.metrics, self.teller
            )
            self._held, self._auth, self._generation = held, auth, generation
            self._ready = None
            if self._known is not None:
                self._use(self._known)
        return self._caller, self._held

    @property
    def caller(self) -> Caller:
        """Makes calls; raises once the client was closed."""
        if self.closed:
            raise ClientClosedError("ServiceClient is closed")
        return self._parts()[0]

    @property
    def shared(self) -> Shared:
        """Limits shared with everyone who has the same address and credential."""
        return self._parts()[1]

    @property
    def auth(self) -> Auth:
        """The credential's keeper."""
        return self._parts()[0].auth

    def measured(self) -> Metrics:
        """The client's numbers, with gauges of this moment; safe from any thread."""
        held = self._held
        if held is not None:
            self.metrics.gauge("sampling.under_way", held.sampling.inside)
            self.metrics.gauge("sampling.waiting", held.sampling.waiting)
            self.metrics.gauge("sampling.limit", held.sampling.limit)
            self.metrics.gauge("sampling.bytes", held.sampling_bytes.inside)
            self.metrics.gauge("training.bytes", held.training_bytes.inside)
            self.metrics.gauge("results.bytes", held.result_bytes.inside)
        return self.metrics

    # ---- the server's settings

    @property
    def known_settings(self) -> ClientConfigResponse:
        """The server's settings as far as they are known; nothing is asked."""
        return self._known or ClientConfigResponse()

    async def settings(self) -> ClientConfigResponse:
        """How the server wants us to behave; asked once, however many want to know."""
        caller, _ = self._parts()
        if self._known is not None and self._ready is None:
            return self._known
        if self._ready is None or (self._ready.done() and self._failed(self._ready)):
            if self.closed:
                raise ClientClosedError("ServiceClient is closed")
            self._ready = asyncio.get_running_loop().create_task(self._fetch(caller))
        return await asyncio.shield(self._ready)

    @staticmethod
    def _failed(task: asyncio.Task[ClientConfigResponse]) -> bool:
        return task.cancelled() or task.exception() is not None

    async def _fetch(self, caller: Caller) -> ClientConfigResponse:
        body = encode(ClientConfigRequest(sdk_version=SDK_VERSION))
        try:
            known: ClientConfigResponse = await caller.read(
                ClientConfigResponse, route("client_config"), body
            )
        except NotFoundError:  # an older server: what it does not say is the default
            known = ClientConfigResponse(parallel_fwdbwd_chunks=False)
        self._known = known
        self._use(known)
        await self.refresh_dynamic()
        return known

    def _use(self, known: ClientConfigResponse) -> None:
        caller, held = self._caller, self._held
        assert caller is not None
        assert held is not None
        held.apply(known)
        if known.pjwt_auth_enabled:
            force = known.credential_default_source == "credential_cmd"
            caller.auth.use_tokens(self._exchange, force_command=force)

    async def _exchange(self, raw: str) -> str:
        caller, _ = self._parts()
        response = await caller.once(route("auth_token"), b"{}", credential=raw)
        answer: AuthTokenResponse = read_answer(AuthTokenResponse, response)
        return answer.jwt

    async def credential_of(self, token: str | None) -> str | None:
        """Another account's credential as the server wants to see it; None is our own."""
        if token is None or not (await self.settings()).pjwt_auth_enabled or is_jwt(token):
            return token
        return await self._exchange(token)

    async def refresh_dynamic(self) -> None:
        """Ask again for the settings that may change; failures keep what is known."""
        body = encode(ClientConfigRequest(sdk_version=SDK_VERSION))
        with contextlib.suppress(TinkerError):
            response = await self.caller.once(route("client_dynamic_config"), body, timeout=10.0)
            self.dynamic = read_answer(ClientDynamicConfigResponse, response)
