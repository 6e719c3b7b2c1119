"""A whole Tinker service in memory: it speaks every route, records every call, fails on demand.

The same object answers in process (`HandlerTransport(service.handle)`) and over HTTP
(`FakeServer(service)`).  It trains nothing: see `fake_model` for the numbers it makes up.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from ..errors import InvalidArgumentError
from ..net.clock import Clock, SystemClock
from ..types import (
    AuditLogEntry,
    ClientConfigResponse,
    ClientDynamicConfigResponse,
    SampleRequest,
    SupportedModel,
)
from ..wire.headers import API_KEY, should_retry
from ..wire.jsonbody import convert
from ..wire.routes import Route
from . import (
    answers_admin,
    answers_checkpoints,
    answers_sampling,
    answers_sessions,
    answers_tokenizers,
    answers_training,
)
from .calls import Call, Calls, read_body
from .downloads import PREFIX as DOWNLOADS
from .downloads import answer_download
from .exchange import FakeRequest, FakeResponse, Problem, json_response
from .faults import Fault, Faults, RateLimit
from .handlers import HANDLERS, Ask, Reply
from .identity import Identity
from .routing import check_names, find_route
from .state import World
from .tickets import Ticket, Tickets, WorkFailed
from .timers import start_timer

__all__ = ["FakeService"]

_ANSWERS = (
    answers_admin,
    answers_checkpoints,
    answers_sampling,
    answers_sessions,
    answers_tokenizers,
    answers_training,
)
_OPEN_ROUTES = frozenset({"health"})
_RAW_KEY_ROUTES = frozenset({"client_config", "auth_token", "get_api_key", "delete_api_key"})
_FINAL = frozenset({400, 401, 403, 404, 413, 422})  # a refusal the client will not send again
_DEFAULT_MODELS = ("Qwen/Qwen3-8B", "Qwen/Qwen3-4B-Instruct-2507", "meta-llama/Llama-3.1-8B")
_DEFAULT_CONTEXT = 32768
_COUNTS = frozenset({"limit", "offset"})  # the query values that are numbers

QueueState = Literal["active", "paused_capacity", "paused_rate_limit"]


class FakeService:
    """A stateful stand-in for the service, from the first SDK to the latest.

    `config` and `dynamic` are what clients are told; None makes their routes answer 404, as do all
    routes named in `without`.  `models` (names or `SupportedModel`s) limits base models to these,
    otherwise any name will do; `api_keys` (keys, or key -> owner) limits credentials.

    `hold` is how long a poll waits before it is told to try again, `latency` how long work takes
    (seconds, or a dict by route name), `skip_after` how long a missing training operation is waited
    for; all pass on `clock`.  Results of `large_result` bytes are announced before they are sent, to
    clients that allow it; `json_only` and `sample_sequence_ids=False` make it an old server.
    """

    def __init__(
        self,
        *,
        config: ClientConfigResponse | None = ClientConfigResponse(),  # noqa: B008 - frozen
        dynamic: ClientDynamicConfigResponse | None = ClientDynamicConfigResponse(),  # noqa: B008
        models: Iterable[str | SupportedModel] | None = None,
        api_keys: Mapping[str, str] | Iterable[str] | None = None,
        clock: Clock | None = None,
        hold: float = 30.0,
        latency: float | Mapping[str, float] = 0.0,
        skip_after: float = 30.0,
        large_result: int = 1_000_000,
        token_seconds: float = 3600.0,
        json_only: bool = False,
        sample_sequence_ids: bool = True,
        without: Iterable[str] = (),
        record: bool = True,
        keep_results: int = 100_000,
    ) -> None:
        self.config = config
        self.dynamic = dynamic
        self.models: list[SupportedModel] = [
            _supported(model) for model in (_DEFAULT_MODELS if models is None else models)
        ]
        self.clock: Clock = clock or SystemClock()
        self.hold = hold
        self.latency = latency
        self.skip_after = skip_after
        self.large_result = large_result
        self.json_only = json_only
        self.sample_sequence_ids = sample_sequence_ids
        self.without: frozenset[str] = check_names(without)
        self.record = record
        self.queue_state: tuple[QueueState, str | None] = ("active", None)
        self.stream_pace: float = 0.0  # seconds between two events of a streamed sample
        self.tokenizer_files: dict[str, dict[str, bytes]] = {}  # by model, what clients may fetch
        self.session_messages: dict[str, str] = {}  # info_message, warning_message, error_message

        self.calls: Calls = Calls()
        self.faults: Faults = Faults()
        self.identity: Identity = Identity(api_keys, token_seconds)
        self.world: World = World()
        self.tickets: Tickets = Tickets(keep_results)
        self.events: list[AuditLogEntry] = []
        self.session_keys: dict[tuple[str, str], str] = {}
        self.copy_keys: dict[tuple[str, str], str] = {}
        self._any_model = models is None
        self._limits: dict[str, RateLimit] = {}
        self._paused: set[str] = set()
        self._parked: list[tuple[Ticket, Callable[[], Any], Callable[[], None]]] = []
        self._numbers = itertools.count(1)
        self._arrivals = itertools.count()
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None

    # ---- answering

    async def handle(self, request: FakeRequest) -> FakeResponse:
        """Answer one request."""
        answer = self.answer(request)
        return answer if isinstance(answer, FakeResponse) else await answer

    def answer(self, request: FakeRequest) -> Reply:
        """The answer, or (for a poll that is held) something to await; needs a running loop."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
            found = find_route(request.method, request.path)
            route, params = found if found is not None else (None, {})
            call = None
            if self.record or self.faults:
                index = next(self._arrivals)
                call = Call.of(request, route, params, index, self.clock.monotonic())
                if self.record:
                    self.calls.note(call)
            fault = self.faults.strike(call) if self.faults and call is not None else None
            answer = self._answer(request, route, params, fault)
            if fault is not None:
                answer = _spoilt(answer, fault)
        return answer if call is None else _noted(answer, call)

    def _answer(
        self, request: FakeRequest, route: Route | None, params: Mapping[str, str], fault: Fault | None
    ) -> Reply:
        if fault is not None and fault.replaces and not fault.after:
            answer = fault.response()
            final = answer.status in _FINAL and answer.body and not should_retry(answer.headers)
            if route is not None and final:
                self._use_up(route, request)
            return answer
        if route is None:
            if request.method == "GET" and DOWNLOADS in request.path:
                return answer_download(self.world, request)
            return Problem(404, f"no route for {request.method} {request.path}").response()
        limit = self._limits.get(route.name)
        refused = limit.refuse(self.clock.monotonic()) if limit is not None else None
        if refused is not None:
            return refused
        try:
            ask = self._understand(route, request, params)
            if fault is not None:
                ask.fate = fault.fate
            answer = HANDLERS[route.name](ask)
        except Problem as problem:
            if problem.status in _FINAL:
                self._use_up(route, request)
            return problem.response()
        if isinstance(answer, FakeResponse) or hasattr(answer, "__await__"):
            return answer  # type: ignore[no-any-return]
        return json_response(answer)

    def _understand(self, route: Route, request: FakeRequest, params: Mapping[str, str]) -> Ask:
        if route.name in self.without:
            raise Problem(404, "Not Found")
        owner = self._authenticate(route, request.headers.get(API_KEY.lower(), ""))
        try:
            body = read_body(route, request.headers, request.body)
            query = None if route.query is None else convert(route.query, _numbers(request.query))
        except InvalidArgumentError as problem:
            raise Problem(422, str(problem)) from None
        return Ask(self, route, request, params, body, query, owner)

    def _authenticate(self, route: Route, credential: str) -> str:
        if route.name in _OPEN_ROUTES:
            return ""
        owner = self.owner_of(credential)
        if owner is None:
            raise Problem(401, "the API key is missing, unknown or expired")
        exchanged = self.config is not None and self.config.pjwt_auth_enabled
        if exchanged and route.name not in _RAW_KEY_ROUTES and not credential.startswith("eyJ"):
            raise Problem(401, "this route wants a token; trade the API key for one at /auth/token")
        return owner

    def _use_up(self, route: Route, request: FakeRequest) -> None:
        """A refused training operation keeps its number: the next one must not wait for it."""
        if route.lane != "train":
            return
        try:
            body = read_body(route, request.headers, request.body)
        except InvalidArgumentError:
            return
        model = self.world.models.get(getattr(body, "model_id", None) or "")
        if model is not None and body.seq_id:
            model.line.arrived.append(body.seq_id)
            model.line.use_up(body.seq_id)

    # ---- what tests look at

    def calls_to(self, *routes: str) -> list[Call]:
        """The calls to these routes, in order of arrival."""
        check_names(routes)
        return self.calls.to(*routes)

    def seq_ids(self, model_id: str) -> list[int]:
        """The numbers of a model's operations in order of arrival, repeats included."""
        return list(self.world.models[model_id].line.arrived)

    def executed(self, model_id: str) -> list[int]:
        """The numbers of a model's operations in the order they were run."""
        return [number for number in self.world.models[model_id].line.executed if number]

    # ---- what tests do

    def rate_limit(
        self,
        route: str,
        per_second: float,
        *,
        burst: float | None = None,
        retry_after: float | None = None,
    ) -> None:
        """Answer 429 to calls of a route above this rate; `burst` may come at once (default: 1 s worth)."""
        check_names(route)
        self._limits[route] = RateLimit(per_second, max(1.0, burst or per_second), retry_after)

    def pause(self, *routes: str) -> None:
        """Accept work on these routes but do not begin it until `resume`."""
        self._paused |= check_names(routes)

    def resume(self) -> None:
        """Do what was put off, and pause no more; safe from any thread."""
        self._on_loop(self._resume)

    def _resume(self) -> None:
        with self._lock:
            self._paused.clear()
            parked, self._parked = self._parked, []
            for ticket, work, after in parked:
                self.run(ticket, work, after)

    def lose(self, request_id: str) -> None:
        """Forget a result: asking for it is a 410 from now on."""
        ticket = self.tickets.get(request_id)
        if ticket is None:
            raise KeyError(request_id)
        with self._lock:
            ticket.lose()

    def end_session(self, session_id: str, detail: str = "heartbeats stopped") -> None:
        """End a session from the server's side: heartbeats get 410, new work is refused."""
        session = self.world.sessions[session_id]
        session.ended, session.detail = "expired", detail

    def issue_token(self, owner: str) -> str:
        """A token for an owner, as `/auth/token` gives out."""
        return self.identity.issue(owner, self.clock.now().timestamp())

    def owner_of(self, credential: str) -> str | None:
        """The owner a key or token stands for, or None."""
        return self.identity.owner_of(credential, self.clock.now().timestamp())

    # ---- what the answers need

    def check_base_model(self, name: str) -> None:
        """Refuse a base model that is not on offer."""
        if not self._any_model and name not in [model.model_name for model in self.models]:
            raise Problem(400, f"base_model: {name!r} is not supported")

    def check_context(self, base_model: str, request: SampleRequest) -> None:
        """Refuse a prompt that leaves no room for what it asks for."""
        known = next((model for model in self.models if model.model_name == base_model), None)
        if known is None or known.max_context_length is None:
            return
        length = sum(
            chunk.length
            for chunk in request.prompt.chunks
            if getattr(chunk, "expected_tokens", 1) is not None
        )
        wanted = request.sampling_params.max_tokens or 0
        if length + wanted > known.max_context_length:
            raise Problem(
                400, f"prompt {length} + max_tokens {wanted} > context {known.max_context_length}"
            )

    def note_event(self, event: str, **details: Any) -> None:
        """Add a line to the audit log."""
        model_id, path = details.pop("model_id", None), details.pop("tinker_path", None)
        self.events.append(
            AuditLogEntry(
                timestamp=self.clock.now(),
                event=event,
                event_details=details,
                model_id=model_id,
                tinker_path=path,
            )
        )

    def next_number(self) -> int:
        """A number not given out before."""
        return next(self._numbers)

    def open_ticket(self, id: str, route: str, ask: Ask) -> Ticket:
        """A ticket for new work."""
        ticket = Ticket(id, route, ask.owner, ask.fate)
        self.tickets.put(ticket)
        return ticket

    def run(
        self, ticket: Ticket, work: Callable[[], Any], after: Callable[[], None] = lambda: None
    ) -> None:
        """Do a ticket's work: now, after its latency, or when resumed; `after` is called at its end."""
        if ticket.route in self._paused:
            self._parked.append((ticket, work, after))
            return
        latency = self.latency
        seconds = latency.get(ticket.route, 0.0) if isinstance(latency, Mapping) else latency
        if seconds > 0:
            self.later(seconds, lambda: self._do(ticket, work, after))
        else:
            self._do(ticket, work, after)

    def _do(self, ticket: Ticket, work: Callable[[], Any], after: Callable[[], None]) -> None:
        with self._lock:
            if ticket.state == "pending":
                fate = ticket.fate
                if fate is not None and not fate.lost:
                    ticket.fail(fate.error, fate.category)
                else:
                    self._work(ticket, work)
                if fate is not None and fate.lost:
                    ticket.lose()
            after()

    def _work(self, ticket: Ticket, work: Callable[[], Any]) -> None:
        try:
            result = work()
        except WorkFailed as problem:
            ticket.fail(problem.error, problem.category)
        else:
            if ticket.fate is None:
                ticket.finish(result)

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Call `action` after so many seconds of the clock."""
        self._on_loop(lambda: start_timer(self.clock, seconds, action))

    def _on_loop(self, action: Callable[[], object]) -> None:
        loop = self._loop
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is not None or loop is None or loop.is_closed():
            action()
        else:
            loop.call_soon_threadsafe(action)


def _supported(model: str | SupportedModel) -> SupportedModel:
    if isinstance(model, SupportedModel):
        return model
    return SupportedModel(
        model_name=model, max_context_length=_DEFAULT_CONTEXT, trainable=True, sampleable=True
    )


def _numbers(query: Mapping[str, str]) -> dict[str, Any]:
    """Query values as JSON would have them."""
    return {
        name: int(value) if name in _COUNTS and value.isdecimal() else value
        for name, value in query.items()
    }


def _spoilt(answer: Reply, fault: Fault) -> Reply:
    """An answer after a fault has had its way with it."""
    if fault.replaces and not fault.after:
        return answer
    if not isinstance(answer, FakeResponse):
        return _spoilt_later(answer, fault)
    return _spoil(answer, fault)


async def _spoilt_later(answer: Awaitable[FakeResponse], fault: Fault) -> FakeResponse:
    return _spoil(await answer, fault)


def _spoil(answer: FakeResponse, fault: Fault) -> FakeResponse:
    if fault.replaces:
        return fault.response()
    headers = {**answer.headers, **{name.lower(): value for name, value in fault.headers.items()}}
    return replace(answer, headers=headers, delay=fault.delay, cut=fault.cut)


def _noted(answer: Reply, call: Call) -> Reply:
    if isinstance(answer, FakeResponse):
        call.status = answer.status
        return answer
    return _noted_later(answer, call)


async def _noted_later(answer: Awaitable[FakeResponse], call: Call) -> FakeResponse:
    made = await answer
    call.status = made.status
    return made
