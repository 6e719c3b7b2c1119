"""The tree of errors: the official names, whose fault, what may be retried, and no credential anywhere."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest
import tinker
from hypothesis import given
from hypothesis import strategies as st
from tinker import _exceptions as official_errors
from tinker.lib import telemetry as official_telemetry
from tinker.lib.api_future_impl import _rest_status_error_to_transport_error
from tinker.lib.retryable_exception import RetryableException as OfficialRetryable
from tinker.types import RequestErrorCategory as OfficialCategory

import tinkex
from tests.contract.official import http_client
from tests.strategies import examples
from tinkex import errors
from tinkex.errors import Fault, RequestErrorCategory, RequestInfo, ResponseInfo, status_class, status_rule

SECRET = "tml-s3cr3t-do-not-keep"
ADDRESS = f"https://user:{SECRET}@example.com/api/v1/asample?key={SECRET}#{SECRET}"

OFFICIAL = {
    name: kind
    for name, kind in vars(official_errors).items()
    if inspect.isclass(kind) and issubclass(kind, Exception) and not name.startswith("_")
} | {"RetryableException": OfficialRetryable}
OURS = {
    name: kind
    for name in errors.__all__
    if inspect.isclass(kind := getattr(errors, name)) and issubclass(kind, BaseException)
}
RAISED = {name: kind for name, kind in OURS.items() if not issubclass(kind, Warning)}


def request() -> httpx.Request:
    return httpx.Request(
        "POST",
        ADDRESS,
        headers={"X-API-Key": SECRET, "Authorization": f"Bearer {SECRET}", "Cookie": SECRET},
        json={"weights_access_token": SECRET},
    )


def response(status: int = 429, **headers: str) -> httpx.Response:
    return httpx.Response(
        status,
        headers={
            "set-cookie": SECRET,
            "x-echo": SECRET,
            "x-request-id": "req-9",
            "Retry-After": "7",
            **headers,
        },
        json={"detail": "slow down"},
        request=request(),
    )


GIVEN: dict[str, Callable[[], Any]] = {
    "message": lambda: "it went wrong",
    "request": request,
    "response": response,
    "body": lambda: {"detail": "slow down"},
    "request_id": lambda: "req-1",
    "category": lambda: "user",
}


def arguments(kind: Any) -> dict[str, Any]:
    """What a constructor wants, by name; plain exceptions want a message."""
    parameters = inspect.signature(kind.__init__).parameters
    wanted = [name for name in parameters if name in GIVEN]
    return {name: GIVEN[name]() for name in wanted}


def make(kind: Any) -> Any:
    """An error of any of our classes."""
    given = arguments(kind)
    return kind(**given) if given else kind("it went wrong")


# ---- the tree


def test_every_official_error_has_its_namesake() -> None:
    assert set(OFFICIAL) <= set(OURS)
    assert len(OFFICIAL) >= 17


@pytest.mark.parametrize("name", OFFICIAL)
def test_the_official_relations_hold(name: str) -> None:
    for other in OFFICIAL:
        if issubclass(OFFICIAL[name], OFFICIAL[other]):
            assert issubclass(OURS[name], OURS[other]), other
        elif issubclass(OFFICIAL[name], OFFICIAL["TinkerError"]):
            assert not issubclass(OURS[name], OURS[other]), other
    assert getattr(OURS[name], "status_code", None) == getattr(OFFICIAL[name], "status_code", None)


def test_the_package_exports_these_very_classes() -> None:
    exported = [name for name in OFFICIAL if hasattr(tinker, name)]
    assert len(exported) > 10
    for name in exported:
        assert getattr(tinkex, name) is OURS[name]


@pytest.mark.parametrize("name", RAISED)
def test_everything_raised_is_a_tinker_error_with_both_answers(name: str) -> None:
    error = make(RAISED[name])
    assert isinstance(error, errors.TinkerError)
    assert isinstance(error.fault, Fault)
    assert isinstance(error.retryable, bool)
    assert error.retry_after is None
    assert "it went wrong" in str(error)


def test_the_drawing_shows_every_class() -> None:
    drawn = errors.__doc__ or ""
    for name in RAISED:
        shown = "Result*Error" if name.startswith("Result") and name not in drawn else name
        assert shown in drawn, name


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("InvalidArgumentError", ValueError),
        ("UnknownArgumentError", TypeError),
        ("UnknownArgumentError", ValueError),
        ("ResultError", ValueError),
        ("ResultDecodeError", ValueError),
        ("ClientClosedError", RuntimeError),
        ("UnsupportedByServerError", RuntimeError),
        ("TokenizerError", RuntimeError),
        ("ExperimentalWarning", FutureWarning),
    ],
)
def test_code_that_catches_builtins_goes_on_working(name: str, builtin: type) -> None:
    assert issubclass(OURS[name], builtin)


# ---- constructors


@pytest.mark.parametrize("name", OFFICIAL)
@pytest.mark.parametrize("positional", [False, True])
def test_official_calls_build_the_same_error(name: str, positional: bool) -> None:
    official, ours = OFFICIAL[name], OURS[name]
    parameters = inspect.signature(official.__init__).parameters
    given = arguments(official)
    if name == "RequestFailedError":
        given["category"] = OfficialCategory.User
    if not given:
        theirs, own = official("it went wrong"), ours("it went wrong")
    elif positional:
        plain = [n for n in given if parameters[n].kind is not inspect.Parameter.KEYWORD_ONLY]
        rest = {n: value for n, value in given.items() if n not in plain}
        ordered = [given[n] for n in plain]
        theirs, own = official(*ordered, **rest), ours(*ordered, **rest)
    else:
        theirs, own = official(**given), ours(**given)
    assert str(own) == str(theirs)
    for attribute in ("message", "status_code", "body", "request_id"):
        if attribute in vars(theirs):
            assert getattr(own, attribute) == getattr(theirs, attribute), attribute
    if "category" in vars(theirs):
        assert own.category == theirs.category
    if "request" in vars(theirs):
        assert own.request.method == theirs.request.method
        assert own.request.url == "https://example.com/api/v1/asample"
    if "response" in vars(theirs):
        assert own.response.status_code == theirs.response.status_code
        assert own.response.headers["Retry-After"] == theirs.response.headers["retry-after"]
        assert own.response.headers.get("X-Request-Id") == "req-9"


@pytest.mark.parametrize("name", [n for n in OFFICIAL if "message" in arguments(OFFICIAL[n])])
def test_defaults_of_official_calls_are_the_same(name: str) -> None:
    official, ours = OFFICIAL[name], OURS[name]
    parameters = inspect.signature(official.__init__).parameters
    needed = {
        n: value
        for n, value in arguments(official).items()
        if parameters[n].default is inspect.Parameter.empty
    }
    if name == "RequestFailedError":
        needed["category"] = OfficialCategory.User
    assert str(ours(**needed)) == str(official(**needed))


def test_a_response_without_its_request_is_fine() -> None:
    error = errors.NotFoundError("gone", response=httpx.Response(404), body=None)
    assert error.status_code == 404
    assert error.request == RequestInfo()


@pytest.mark.parametrize("address", ["http://[::1", "", None, "not a url", 7])
def test_an_odd_address_does_not_hide_the_error(address: Any) -> None:
    error = errors.APIConnectionError(RequestInfo("GET", address))
    assert str(error) == "Connection error."
    assert isinstance(error.request.url, str)


def test_what_is_known_of_the_server_is_kept() -> None:
    error = errors.RateLimitError("slow", response(), None, retry_after=7.0)
    assert (error.retry_after, error.request_id) == (7.0, "req-9")
    named = errors.RateLimitError("slow", response(), None, request_id="mine")
    assert named.request_id == "mine"


# ---- no credential


def reachable(value: Any, seen: set[int] | None = None) -> list[str]:
    """Every text that can be reached from an object."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return []
    seen.add(id(value))
    if isinstance(value, (str, bytes, bytearray)):
        return [value if isinstance(value, str) else bytes(value).decode("latin-1")]
    inside: list[Any] = []
    if isinstance(value, Mapping):
        inside += [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        inside += value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        inside += [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, BaseException):
        inside += [value.args, value.__cause__, value.__context__]
    inside.append(getattr(value, "__dict__", None))
    return [text for item in inside if item is not None for text in reachable(item, seen)]


def test_the_search_finds_what_is_there() -> None:
    assert any(SECRET in text for text in reachable(official_errors.APIConnectionError(request())))
    assert any(SECRET in text for text in reachable([{"a": (SECRET,)}]))


@pytest.mark.parametrize("name", RAISED)
def test_no_error_holds_a_credential(name: str) -> None:
    error = make(RAISED[name])
    everything = [repr(error), str(error), *reachable(error)]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        everything.append(pickle.dumps(error, protocol).decode("latin-1"))
    assert everything
    assert [text for text in everything if SECRET in text] == []
    assert [text for text in everything if "user:" in text] == []


def test_the_stand_ins_drop_credentials_however_they_are_made() -> None:
    for info in (
        RequestInfo("GET", ADDRESS),
        RequestInfo.of(request()),
        ResponseInfo(200, {"X-API-Key": SECRET, "Authorization": SECRET}, RequestInfo("GET", ADDRESS)),
        ResponseInfo.of(response()),
    ):
        assert SECRET not in repr(info)
        assert [text for text in reachable(info) if SECRET in text] == []
    assert RequestInfo.of(RequestInfo("GET", "http://h/p")) == RequestInfo("GET", "http://h/p")


def test_headers_are_found_in_any_spelling() -> None:
    kept = ResponseInfo(429, {"Retry-After": "7", "X-Secret": "x"}).headers
    assert kept["retry-after"] == kept["Retry-After"] == kept.get("RETRY-AFTER") == "7"
    assert "Retry-AFTER" in kept
    assert "x-secret" not in kept
    assert kept.get("x-secret", "none") == "none"
    with pytest.raises(KeyError):
        _ = kept["x-secret"]


# ---- pickling


@pytest.mark.parametrize("name", RAISED)
@pytest.mark.parametrize(
    "clone",
    [
        *(
            lambda error, p=p: pickle.loads(pickle.dumps(error, p))
            for p in range(pickle.HIGHEST_PROTOCOL + 1)
        ),
        copy.copy,
        copy.deepcopy,
    ],
)
def test_errors_survive_pickling(name: str, clone: Callable[[Any], Any]) -> None:
    error = make(RAISED[name])
    error.retry_after = 2.5
    error.request_id = "req-5"
    again = clone(error)
    assert type(again) is type(error)
    assert again is not error
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))
    assert (again.fault, again.retryable, again.retry_after) == (error.fault, error.retryable, 2.5)


def test_a_subclass_of_a_users_own_survives_too() -> None:
    again = pickle.loads(pickle.dumps(OwnError("mine", response(503), {"x": 1}, retry_after=1.0)))
    assert type(again) is OwnError
    assert (again.status_code, again.body, again.retry_after) == (503, {"x": 1}, 1.0)


class OwnError(errors.InternalServerError):
    """An error as a user's code may derive it."""


# ---- statuses


def expected_fault(status: int) -> Fault:
    if status == 408:
        return Fault.NETWORK
    if status in (409, 410) or status >= 500:
        return Fault.SERVER
    return Fault.USER


@pytest.mark.parametrize("status", range(400, 600))
def test_every_status_has_its_rule(status: int) -> None:
    rule = status_rule(status)
    assert rule.fault is expected_fault(status)
    assert rule.retryable is (status in (402, 408, 409, 429) or status >= 500)
    client = http_client(lambda _: httpx.Response(200))
    if status != 402:  # the official client pauses on it, elsewhere
        assert rule.retryable == client._should_retry(httpx.Response(status))
    error = status_class(status)("x", httpx.Response(status), None)
    assert (error.fault, error.status_code) == (rule.fault, status)
    assert error.retryable == rule.retryable


@pytest.mark.parametrize("status", range(400, 600))
def test_every_status_has_its_class(status: int) -> None:
    client = http_client(lambda _: httpx.Response(200))
    answer = httpx.Response(status, request=request())
    official = client._make_status_error("x", body=None, response=answer)
    assert status_class(status).__name__ == type(official).__name__

    waiting = status_class(status, result=True)
    assert issubclass(waiting, OURS[type(official).__name__])
    kind = _rest_status_error_to_transport_error(official).kind.value
    if kind in ("fatal", "retry_if_budget"):
        assert issubclass(waiting, ValueError)
    if kind == "retryable_exception":
        assert issubclass(waiting, errors.RetryableException)
        assert waiting("x", answer, None).retryable


@pytest.mark.parametrize("status", [0, 100, 200, 302, 399])
def test_what_is_no_error_status_is_nobodys_fault(status: int) -> None:
    assert status_rule(status).fault is Fault.UNKNOWN
    assert not status_rule(status).retryable


# ---- categories


@pytest.mark.parametrize(
    ("text", "category", "fault", "retryable"),
    [
        ("user", RequestErrorCategory.User, Fault.USER, False),
        ("User", RequestErrorCategory.User, Fault.USER, False),
        ("USER", RequestErrorCategory.User, Fault.USER, False),
        ("server", RequestErrorCategory.Server, Fault.SERVER, True),
        ("Server", RequestErrorCategory.Server, Fault.SERVER, True),
        ("unknown", RequestErrorCategory.Unknown, Fault.UNKNOWN, False),
        ("weird", RequestErrorCategory.Unknown, Fault.UNKNOWN, False),
        ("", RequestErrorCategory.Unknown, Fault.UNKNOWN, False),
        (None, RequestErrorCategory.Unknown, Fault.UNKNOWN, False),
    ],
)
def test_a_category_is_read_and_its_text_kept(
    text: Any, category: RequestErrorCategory, fault: Fault, retryable: bool
) -> None:
    error = errors.RequestFailedError("m", "req-1", text)
    assert (error.category, error.fault, error.retryable) == (category, fault, retryable)
    assert error.category_text == str(text)
    assert pickle.loads(pickle.dumps(error)).category_text == str(text)


def test_the_categories_are_the_official_ones() -> None:
    assert {member.name: member.value for member in RequestErrorCategory} == {
        member.name: member.value for member in OfficialCategory
    }


# ---- whose fault, through causes

STATUSES = [400, 401, 402, 403, 404, 408, 409, 410, 422, 429, 499, 500, 503]
NODES: list[tuple[str, Callable[[], BaseException], Callable[[], BaseException]]] = [
    ("plain", lambda: ValueError("x"), lambda: ValueError("x")),
    ("odd status", lambda: with_status("404"), lambda: with_status("404")),
    ("foreign 404", lambda: with_status(404), lambda: with_status(404)),
    ("foreign 302", lambda: with_status(302), lambda: with_status(302)),
    (
        "connection",
        lambda: errors.APIConnectionError(request()),
        lambda: tinker.APIConnectionError(request()),
    ),
    ("timeout", lambda: errors.APITimeoutError(request()), lambda: tinker.APITimeoutError(request())),
    *(
        (
            f"status {status}",
            lambda status=status: status_class(status)("x", response(status), None),
            lambda status=status: http_client(lambda _: None)._make_status_error(
                "x", body=None, response=response(status)
            ),
        )
        for status in STATUSES
    ),
    *(
        (
            f"failed {category}",
            lambda category=category: errors.RequestFailedError("x", "r", category),
            lambda category=category: tinker.RequestFailedError("x", "r", OfficialCategory(category)),
        )
        for category in ("user", "server", "unknown")
    ),
]


def with_status(status: Any) -> Exception:
    error = Exception("x")
    error.status_code = status  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("ours", "official"), [node[1:] for node in NODES], ids=[node[0] for node in NODES]
)
def test_a_single_error_is_judged_as_the_official_sdk_judges_it(
    ours: Callable[[], BaseException], official: Callable[[], BaseException]
) -> None:
    verdict = official_telemetry.is_user_error(official())
    assert errors.is_user_error(ours()) == verdict


def linked(
    kinds: list[int], causes: list[int | None], contexts: list[int | None], side: int
) -> BaseException:
    """Errors of one side joined by cause and context; links may form rings."""
    made = [NODES[kind][side]() for kind in kinds]
    for error, cause, context in zip(made, causes, contexts, strict=True):
        error.__cause__ = None if cause is None else made[cause]
        error.__context__ = None if context is None else made[context]
    return made[0]


@examples(300)
@given(drawn=st.data())
def test_chains_and_rings_are_judged_as_the_official_sdk_judges_them(drawn: st.DataObject) -> None:
    kinds = drawn.draw(st.lists(st.integers(0, len(NODES) - 1), min_size=1, max_size=5))
    link = st.none() | st.integers(0, len(kinds) - 1)
    links = st.lists(link, min_size=len(kinds), max_size=len(kinds))
    causes, contexts = drawn.draw(links), drawn.draw(links)
    verdict = official_telemetry.is_user_error(linked(kinds, causes, contexts, 2))
    assert errors.is_user_error(linked(kinds, causes, contexts, 1)) == verdict


def test_both_verdicts_occur() -> None:
    found = {errors.is_user_error(node[1]()) for node in NODES}
    assert found == {True, False}


def test_a_cause_deep_down_counts_and_a_long_chain_does_not_overflow() -> None:
    error: BaseException = errors.NotFoundError("x", httpx.Response(404), None)
    for _ in range(5000):
        outer = RuntimeError("wrapped")
        outer.__cause__ = error
        error = outer
    assert errors.is_user_error(error)
