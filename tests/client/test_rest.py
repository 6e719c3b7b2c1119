"""`RestClient`: what each method sends and gives back, errors, sharing, closing."""

from __future__ import annotations

import asyncio
import gc
import inspect
import warnings
from typing import Any

import pytest
import tinker

from tests.client.rig import WAIT, Rig, eventually
from tinkex import types
from tinkex.client.future import Future
from tinkex.client.rest import RestClient
from tinkex.client.rest_calls import awaited
from tinkex.config import Config
from tinkex.errors import (
    APIConnectionError,
    APIResponseValidationError,
    AuthenticationError,
    ClientClosedError,
    ConflictError,
    ExperimentalWarning,
    InvalidArgumentError,
    NotFoundError,
    TinkerError,
    TraceExportError,
    UnsupportedByServerError,
)
from tinkex.net import http1_transport
from tinkex.net.clock import SystemClock
from tinkex.testing import FakeServer, FakeService, HandlerTransport

RUN, SESSION, SAMPLER = "sess-1:train:0", "sess-1", "sess-1:sample:0"
CKPT, EXPORT = f"tinker://{RUN}/weights/ck", f"tinker://{RUN}/external_weights/ex"
API = "/api/v1"
CHECKPOINT = f"{API}/training_runs/{RUN}/checkpoints"
SEARCH = types.SessionSearchRequest(
    display_name="nightly", statuses=[types.ActiveSessionStatusQuery()], limit=3
)
OWNED = {"access_scope": "owned"}

# method, arguments, and the request: verb, path, query, JSON body (None: no body)
CALLS: list[tuple[str, dict[str, Any], str, str, dict[str, str], Any]] = [
    ("get_training_run", {"training_run_id": RUN}, "GET", f"{API}/training_runs/{RUN}", OWNED, None),
    (
        "get_training_run_by_tinker_path",
        {"tinker_path": CKPT, "access_scope": "accessible"},
        "GET", f"{API}/training_runs/{RUN}", {"access_scope": "accessible"}, None,
    ),
    (
        "get_weights_info_by_tinker_path",
        {"tinker_path": CKPT},
        "POST", f"{API}/weights_info", {}, {"tinker_path": CKPT},
    ),
    (
        "list_training_runs", {}, "GET", f"{API}/training_runs",
        {"limit": "20", "offset": "0", "access_scope": "owned"}, None,
    ),
    (
        "list_training_runs",
        {"limit": 5, "offset": 2, "access_scope": "accessible", "project_id": "p 1"},
        "GET", f"{API}/training_runs",
        {"limit": "5", "offset": "2", "access_scope": "accessible", "project_id": "p 1"}, None,
    ),
    ("list_checkpoints", {"training_run_id": RUN}, "GET", CHECKPOINT, {}, None),
    ("list_user_checkpoints", {}, "GET", f"{API}/checkpoints", {"limit": "100", "offset": "0"}, None),
    (
        "get_external_weights_urls",
        {"tinker_path": EXPORT},
        "GET", f"{CHECKPOINT}/external_weights/ex/external_weights_urls", {}, None,
    ),
    (
        "set_checkpoint_ttl_from_tinker_path",
        {"tinker_path": CKPT, "ttl_seconds": 7200},
        "PUT", f"{CHECKPOINT}/weights/ck/ttl", {}, {"ttl_seconds": 7200},
    ),
    (
        "set_checkpoint_ttl_from_tinker_path",
        {"tinker_path": CKPT, "ttl_seconds": None},
        "PUT", f"{CHECKPOINT}/weights/ck/ttl", {}, {"ttl_seconds": None},
    ),
    (
        "publish_checkpoint_from_tinker_path",
        {"tinker_path": CKPT},
        "POST", f"{CHECKPOINT}/weights/ck/publish", {}, None,
    ),
    (
        "unpublish_checkpoint_from_tinker_path",
        {"tinker_path": CKPT},
        "DELETE", f"{CHECKPOINT}/weights/ck/publish", {}, None,
    ),
    (
        "copy_weights",
        {"path": CKPT, "destination_project_id": "proj", "ttl_seconds": 3600},
        "POST", f"{API}/copy_weights", {},
        {"source_path": CKPT, "destination_project_id": "proj", "ttl_seconds": 3600},
    ),
    (
        "copy_weights",
        {"path": CKPT, "destination_project_id": "proj"},
        "POST", f"{API}/copy_weights", {}, {"source_path": CKPT, "destination_project_id": "proj"},
    ),
    ("get_session", {"session_id": SESSION}, "GET", f"{API}/sessions/{SESSION}", OWNED, None),
    (
        "list_sessions",
        {"limit": 7, "offset": 1, "access_scope": "accessible"},
        "GET", f"{API}/sessions", {"limit": "7", "offset": "1", "access_scope": "accessible"}, None,
    ),
    (
        "assign_session_project",
        {"session_id": SESSION, "project_id": "proj"},
        "PUT", f"{API}/sessions/{SESSION}/project", {}, {"project_id": "proj"},
    ),
    (
        "search_sessions",
        {"request": SEARCH},
        "POST", f"{API}/sessions/search", {},
        {
            "user_metadata": {}, "display_name": "nightly", "owner": {"type": "own"},
            "statuses": [{"type": "active"}], "limit": 3,
        },
    ),
    ("get_sampler", {"sampler_id": SAMPLER}, "GET", f"{API}/samplers/{SAMPLER}", {}, None),
    ("get_audit_log", {}, "GET", f"{API}/audit", {"event_type": "all"}, None),
    (
        "get_billing_usage",
        {"starting_on": "2026-01-01T00:00:00Z", "ending_before": "2026-01-02T00:00:00Z"},
        "GET", f"{API}/billing/usage/events",
        {"starting_on": "2026-01-01T00:00:00Z", "ending_before": "2026-01-02T00:00:00Z"}, None,
    ),
    (
        "get_current_checkpoint_storage_usage", {}, "GET",
        f"{API}/billing/usage/checkpoints/current", {}, None,
    ),
    (
        "delete_checkpoint",
        {"training_run_id": RUN, "checkpoint_id": "weights/ck"},
        "DELETE", f"{CHECKPOINT}/weights/ck", {}, None,
    ),
    (
        "delete_checkpoint_from_tinker_path",
        {"tinker_path": EXPORT},
        "DELETE", f"{CHECKPOINT}/external_weights/ex", {}, None,
    ),
]  # fmt: skip
NAMES = sorted({name for name, *_ in CALLS} | {"whoami", "export_session_trace"})


@pytest.fixture
def rig() -> Rig:
    return rig_with_content()


def rig_with_content() -> Rig:
    """A service that holds a session, a run, a sampler and two checkpoints."""
    rig = Rig()
    client = rig.client(display_name="nightly run")
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B", rank=8)
    trainer.save_state("ck").result(WAIT)
    trainer.save_weights_external("ex").result(WAIT)
    client.create_sampling_client(base_model="Qwen/Qwen3-8B").get_base_model()
    rig.service.calls.clear()
    return rig


def rest_of(rig: Rig, **settings: Any) -> RestClient:
    return RestClient(
        config=Config.resolve(
            base_url="http://fake.test", api_key="tml-test", environ=settings.pop("environ", {}), **settings
        ),
        clock=rig.clock,
        transport=rig.transport,
    )


def requests(rig: Rig) -> list[Any]:
    """Requests as a server sees them, without those every client begins with."""
    return [
        (call.method, call.path, dict(call.query), call.json if call.raw else None)
        for call in rig.service.calls
        if call.route not in ("client_config", "client_dynamic_config")
    ]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("form", ["sync", "async"])
def test_every_method_sends_its_request(rig: Rig, form: str) -> None:
    rest = rest_of(rig)
    for name, arguments, *_ in CALLS:
        if form == "sync" or not hasattr(rest, f"{name}_async"):
            future = getattr(rest, name)(**arguments)
            assert isinstance(future, Future)
            future.result(WAIT)
        else:
            asyncio.run(getattr(rest, f"{name}_async")(**arguments))
    assert requests(rig) == [tuple(row[2:]) for row in CALLS]
    assert rig.service.calls_to("create_session") == []
    sent = [call for call in rig.service.calls if "client" not in call.route]
    assert [call.headers["x-sdk-method"] for call in sent] == [name for name, *_ in CALLS]
    assert {call.headers["x-sdk-version"] for call in sent} == {"0.36.0"}
    for call in sent:
        assert ("x-idempotency-key" in call.headers) == (call.method != "GET")


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_official_client_sends_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    rig = rig_with_content()
    rig.service.clock = SystemClock()
    with FakeServer(rig.service) as server:
        rest = tinker.RestClient(base_url=server.base_url, api_key="tml-test")
        for name, arguments, *_ in CALLS:
            if "request" in arguments:
                found = tinker.types.SessionSearchRequest.model_validate(SEARCH.model_dump())
                arguments = {"request": found}
            getattr(rest, name)(**arguments).result(WAIT)
    assert requests(rig) == [tuple(row[2:]) for row in CALLS]


@pytest.mark.parametrize("name", [name for name in NAMES if hasattr(RestClient, f"{name}_async")])
def test_the_async_twin_has_the_same_signature_and_gives_the_value(name: str) -> None:
    method, twin = getattr(RestClient, name), getattr(RestClient, f"{name}_async")
    assert inspect.iscoroutinefunction(twin)
    assert twin.__name__ == f"{name}_async"
    assert twin.__doc__ == method.__doc__
    signature = inspect.signature(twin)
    assert [str(p).split(":")[0] for p in signature.parameters.values()] == [
        str(p).split(":")[0] for p in inspect.signature(method).parameters.values()
    ]
    hinted = inspect.signature(method, eval_str=True).return_annotation
    assert hinted == Future[signature.return_annotation]


def test_a_twin_is_found_by_name_and_can_be_replaced(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(self: RestClient, training_run_id: str) -> str:
        return f"patched {training_run_id}"

    monkeypatch.setattr(RestClient, "list_checkpoints_async", answer)
    rest = rest_of(rig)
    assert asyncio.run(rest.list_checkpoints_async("r")) == "patched r"  # type: ignore[comparison-overlap]
    assert len(rest.list_checkpoints(RUN).result(WAIT).checkpoints) == 2


def test_awaited_passes_arguments_and_errors_on() -> None:
    class Client:
        def get(self, first: int, *, second: int = 2) -> Future[int]:
            if second < 0:
                raise InvalidArgumentError("second: below zero")
            future = Future[int]()
            future.set_result(first * second)
            return future

        get_async = awaited(get)

    assert asyncio.run(Client().get_async(3, second=5)) == 15
    with pytest.raises(InvalidArgumentError, match="below zero"):
        asyncio.run(Client().get_async(3, second=-1))


# ---- what comes back


def test_answers_are_records(rig: Rig) -> None:
    rest = rest_of(rig)
    run = rest.get_training_run(RUN).result(WAIT)
    assert (run.training_run_id, run.lora_rank) == (RUN, 8)
    assert run.last_checkpoint is not None
    assert run.last_checkpoint.tinker_path == CKPT
    listed = rest.list_user_checkpoints().result(WAIT)
    assert [each.tinker_path for each in listed.checkpoints] == [EXPORT, CKPT]
    assert listed.cursor == types.Cursor(offset=0, limit=100, total_count=2)
    assert rest.get_session(SESSION).result(WAIT).training_run_ids == [RUN]
    assert rest.list_sessions().result(WAIT).sessions == [SESSION]
    assert rest.get_sampler(SAMPLER).result(WAIT).base_model == "Qwen/Qwen3-8B"
    assert rest.get_weights_info_by_tinker_path(CKPT).result(WAIT).lora_rank == 8
    urls = rest.get_external_weights_urls(EXPORT).result(WAIT)
    assert set(urls.urls) == {"adapter_config.json", "adapter_model.safetensors", "checkpoint_complete"}


def test_a_ttl_is_set_and_removed_with_an_explicit_null(rig: Rig) -> None:
    rest = rest_of(rig)
    rest.set_checkpoint_ttl_from_tinker_path(CKPT, 3600).result(WAIT)
    assert rest.list_checkpoints(RUN).result(WAIT).checkpoints[1].expires_at is not None
    rest.set_checkpoint_ttl_from_tinker_path(CKPT, None).result(WAIT)
    assert rest.list_checkpoints(RUN).result(WAIT).checkpoints[1].expires_at is None
    assert rig.service.calls_to("set_checkpoint_ttl")[-1].raw == b'{"ttl_seconds":null}'


def test_a_copy_goes_to_the_project_of_the_environment(rig: Rig) -> None:
    rest = rest_of(rig, environ={"TINKER_PROJECT_ID": "from-env"})
    path = rest.copy_weights(CKPT).result(WAIT)
    assert path in [each.tinker_path for each in rest.list_user_checkpoints().result(WAIT).checkpoints]
    assert rig.service.calls_to("copy_weights")[0].json["destination_project_id"] == "from-env"


def test_a_copy_without_a_project_is_refused_before_any_request(rig: Rig) -> None:
    with pytest.raises(ValueError, match="destination_project_id") as caught:
        rest_of(rig).copy_weights(CKPT)
    assert isinstance(caught.value, InvalidArgumentError)
    assert rig.service.calls == []


def test_a_copy_is_made_once_however_often_it_is_sent(rig: Rig) -> None:
    rig.service.faults.add("copy_weights", drop=True, after=True, times=2)
    rest = rest_of(rig)
    path = rest.copy_weights(CKPT, "proj", weights_access_token="tml-test").result(WAIT)
    calls = rig.service.calls_to("copy_weights")
    assert len({call.idempotency_key for call in calls}) == 1
    assert len(calls) == 3
    assert {call.headers["x-tinker-weights-access-token"] for call in calls} == {"tml-test"}
    assert "weights_access_token" not in calls[0].json
    copies = [each for each in rig.service.world.checkpoints if each.startswith("tinker://copy-")]
    assert copies == [path]


def test_a_trace_is_polled_every_five_seconds(rig: Rig) -> None:
    url = rest_of(rig).export_session_trace(SESSION).result(WAIT)
    assert url.endswith("/trace.json")
    assert len(rig.service.calls_to("session_trace_export")) == 2
    assert [seconds for seconds in rig.clock.sleeps if seconds == 5.0] == [5.0]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"status": "failed", "error": "no disk"}, "sess-1: no disk"),
        ({"status": "ready"}, "no address"),
    ],
)
def test_a_trace_that_fails_says_why(rig: Rig, answer: dict[str, Any], text: str) -> None:
    rig.service.faults.add("session_trace_export", status=200, body=answer)
    with pytest.raises(TraceExportError, match=text) as caught:
        rest_of(rig).export_session_trace(SESSION).result(WAIT)
    assert isinstance(caught.value, TinkerError)
    assert isinstance(caught.value, RuntimeError)


# ---- who is asking


def test_whoami_reads_the_token_without_a_request(rig: Rig) -> None:
    rig.service.config = types.ClientConfigResponse(pjwt_auth_enabled=True)
    rest = rest_of(rig)
    known = rest.whoami().result(WAIT)
    assert known.user_urn.startswith("user-")
    assert known.org_urn == "tml:organization:fake-org"
    assert known.email == f"{known.user_urn}@example.com"
    before = len(rig.service.calls)
    assert asyncio.run(_wait(rest.whoami())) == known
    assert len(rig.service.calls) == before


async def _wait(future: Future[Any]) -> Any:
    return await future


def test_whoami_reads_a_token_given_as_key(rig: Rig) -> None:
    token = rig.service.issue_token("someone")
    rest = RestClient(base_url="http://fake.test", api_key=token, clock=rig.clock, transport=rig.transport)
    assert rest.whoami().result(WAIT).user_urn == "someone"
    assert [call.route for call in rig.service.calls] == ["client_config", "client_dynamic_config"]


def test_whoami_with_a_plain_key_says_what_to_do(rig: Rig) -> None:
    with pytest.raises(UnsupportedByServerError, match="as api_key") as caught:
        rest_of(rig).whoami().result(WAIT)
    assert isinstance(caught.value, RuntimeError)


# ---- arguments


@pytest.mark.parametrize(
    "path",
    ["", "ck", "tinker://", f"tinker://{RUN}", f"tinker://{RUN}/weights", f"tinker://{RUN}/other/ck", None],
)
@pytest.mark.parametrize(
    "name",
    [
        "get_training_run_by_tinker_path",
        "delete_checkpoint_from_tinker_path",
        "publish_checkpoint_from_tinker_path",
        "unpublish_checkpoint_from_tinker_path",
        "get_external_weights_urls",
    ],
)
def test_bad_paths_are_refused_before_any_request(rig: Rig, name: str, path: Any) -> None:
    rest = rest_of(rig)
    with pytest.raises(InvalidArgumentError, match="Invalid tinker path"):
        getattr(rest, name)(path)
    with pytest.raises(ValueError, match="Invalid tinker path"):
        asyncio.run(getattr(rest, f"{name}_async")(path))
    assert rig.service.calls == []


@pytest.mark.parametrize(
    "call",
    [
        lambda rest: rest.get_external_weights_urls(CKPT),
        lambda rest: rest.get_weights_info_by_tinker_path("ck"),
        lambda rest: rest.copy_weights("ck", "proj"),
        lambda rest: rest.get_training_run(""),
        lambda rest: rest.get_session(".."),
        lambda rest: rest.get_sampler(None),
        lambda rest: rest.export_session_trace(""),
        lambda rest: rest.delete_checkpoint(RUN, "../../x"),
        lambda rest: rest.list_training_runs(limit=-1),
        lambda rest: rest.list_sessions(access_scope="all"),
        lambda rest: rest.list_user_checkpoints(offset="x"),
    ],
)
def test_bad_arguments_are_refused_before_any_request(rig: Rig, call: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        call(rest_of(rig))
    assert rig.service.calls == []


def test_ids_are_escaped_but_keep_their_colons(rig: Rig) -> None:
    with pytest.raises(NotFoundError):
        rest_of(rig).get_session("a b?c:d").result(WAIT)
    assert rig.service.calls.to("get_session")[-1].path == f"{API}/sessions/a%20b%3Fc:d"


def test_a_session_and_an_address_exclude_each_other(rig: Rig) -> None:
    holder = rig.client().holder
    assert RestClient(holder).holder is holder
    for more in ({"base_url": "http://other.test"}, {"api_key": "tml-x"}, {"clock": rig.clock}):
        with pytest.raises(ValueError, match="not both"):
            RestClient(holder, **more)


def test_making_a_client_asks_nothing_and_needs_no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TINKER_API_KEY", "TINKER_CREDENTIAL_CMD", "TINKER_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    assert "tinker.thinkingmachines.dev" in repr(RestClient())


# ---- errors


def test_errors_are_typed(rig: Rig) -> None:
    rest = rest_of(rig)
    with pytest.raises(NotFoundError) as caught:
        rest.get_training_run("nobody").result(WAIT)
    assert caught.value.status_code == 404
    with pytest.raises(NotFoundError):
        asyncio.run(rest.get_training_run_async("nobody"))
    rig.service.faults.add("list_sessions", status=401)
    with pytest.raises(AuthenticationError):
        rest.list_sessions().result(WAIT)
    rig.service.faults.add("get_session", status=200, body={"training_run_ids": 5})
    with pytest.raises(APIResponseValidationError, match="training_run_ids"):
        rest.get_session(SESSION).result(WAIT)
    strict = rest_of(rig, retry_seconds=0.0)
    strict.list_checkpoints(RUN).result(WAIT)
    rig.offline()
    with pytest.raises(APIConnectionError):
        strict.list_checkpoints(RUN).result(WAIT)


def test_what_may_pass_is_tried_again(rig: Rig) -> None:
    rig.service.faults.add("list_sessions", status=503, times=3)
    assert rest_of(rig).list_sessions().result(WAIT).sessions == [SESSION]
    assert len(rig.service.calls_to("list_sessions")) == 4


def test_publishing_twice_is_a_conflict_at_once(rig: Rig) -> None:
    rest = rest_of(rig)
    rest.publish_checkpoint_from_tinker_path(CKPT).result(WAIT)
    with pytest.raises(ConflictError, match="already public"):
        rest.publish_checkpoint_from_tinker_path(CKPT).result(WAIT)
    rest.unpublish_checkpoint_from_tinker_path(CKPT).result(WAIT)
    with pytest.raises(ConflictError, match="already private"):
        rest.unpublish_checkpoint_from_tinker_path(CKPT).result(WAIT)
    assert len(rig.service.calls_to("publish_checkpoint", "unpublish_checkpoint")) == 4


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_closed_client_refuses_everything(rig: Rig) -> None:
    client = rig.client()
    rest = client.create_rest_client()
    rest.list_sessions().result(WAIT)
    other = rest_of(rig)
    client.close().result(WAIT)
    rig.service.calls.clear()
    for name, arguments, *_ in [*CALLS, ("whoami", {}), ("export_session_trace", {"session_id": "s"})]:
        with pytest.raises(ClientClosedError):
            getattr(rest, name)(**arguments)
        if hasattr(rest, f"{name}_async"):
            with pytest.raises(RuntimeError):
                asyncio.run(getattr(rest, f"{name}_async")(**arguments))
    for pages in (
        rest.iter_sessions(),
        rest.iter_training_runs(),
        rest.iter_user_checkpoints(),
        rest.iter_search_sessions(),
    ):
        with pytest.raises(ClientClosedError):
            list(pages)
    assert rig.service.calls == []
    assert other.list_sessions().result(WAIT).sessions == [SESSION]


# ---- warnings


def warned(rest: RestClient, name: str, arguments: dict[str, Any]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        getattr(rest, name)(**arguments).result(WAIT)
        asyncio.run(getattr(rest, f"{name}_async")(**arguments))
    return caught


@pytest.mark.parametrize(
    "name", ["get_audit_log", "get_billing_usage", "get_current_checkpoint_storage_usage"]
)
def test_what_moved_to_the_admin_client_warns_at_the_callers_line(rig: Rig, name: str) -> None:
    (arguments,) = [row[1] for row in CALLS if row[0] == name]
    caught = warned(rest_of(rig), name, arguments)
    assert [each.category for each in caught] == [FutureWarning, FutureWarning]
    assert all("AdminClient" in str(each.message) for each in caught)
    assert caught[0].filename == __file__


def test_searching_is_experimental(rig: Rig) -> None:
    caught = warned(rest_of(rig), "search_sessions", {"request": SEARCH})
    assert [each.category for each in caught] == [ExperimentalWarning, ExperimentalWarning]
    with pytest.warns(ExperimentalWarning), pytest.raises(InvalidArgumentError):
        rest_of(rig).search_sessions({"limit": 3})  # type: ignore[arg-type]


# ---- sharing


def test_clients_with_the_same_key_share_transports() -> None:
    rig, made = Rig(), []

    def transport(config: Config) -> HandlerTransport:
        made.append(rig.transport(config))
        return made[-1]

    def client(key: str) -> RestClient:
        return RestClient(base_url="http://shared.test", api_key=key, clock=rig.clock, transport=transport)

    first, second, third = client("tml-one"), client("tml-one"), client("tml-two")
    for rest in (first, second, first):
        rest.list_sessions().result(WAIT)
    assert len(made) == 1
    third.list_sessions().result(WAIT)
    assert len(made) == 2
    del first
    gc.collect()
    assert not made[0].closed
    second.list_sessions().result(WAIT)
    del second, rest
    gc.collect()
    assert eventually(lambda: made[0].closed)
    assert not made[1].closed


def test_many_calls_at_once_use_few_connections_which_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1_transport, "_IDLE_SECONDS", 0.2)
    with FakeServer(FakeService()) as server:
        rest = RestClient(base_url=server.base_url, api_key="tml-test")
        server.service.faults.add("list_sessions", delay=0.01)
        for _ in range(3):
            for future in [rest.list_sessions() for _ in range(32)]:
                future.result(WAIT)
        assert server.accepted < 16
        assert eventually(lambda: not server.connections)
        assert rest.list_sessions().result(WAIT).sessions == []


def test_connections_go_with_the_last_client() -> None:
    with FakeServer(FakeService()) as server:
        rest = RestClient(base_url=server.base_url, api_key="tml-gone")
        rest.list_sessions().result(WAIT)
        assert server.connections
        del rest
        gc.collect()
        assert eventually(lambda: not server.connections)
