"""One tree of errors; each says whose fault it is, and whether and when a retry may help.

    TinkerError
    ├── InvalidArgumentError            a value the library refuses before any request  (ValueError)
    │   └── UnknownArgumentError        a keyword no type has                           (TypeError)
    ├── APIError
    │   ├── APIResponseValidationError  the server's answer has the wrong shape
    │   │   └── ResultDecodeError       a finished result cannot be read               (ValueError)
    │   ├── APIStatusError              the server answered 4xx or 5xx
    │   │   ├── BadRequestError 400, AuthenticationError 401, BillingError 402, PermissionDeniedError 403,
    │   │   │   NotFoundError 404, ConflictError 409, UnprocessableEntityError 422, RateLimitError 429,
    │   │   │   InternalServerError 5xx
    │   │   ├── ResultError             waiting for a result was refused for good       (ValueError)
    │   │   │   └── Result*Error        the same, and the status class above
    │   │   └── PromiseExpiredError 410 the server no longer has the result
    │   └── APIConnectionError          no answer came
    │       ├── APITimeoutError         not within the time allowed
    │       └── StuckError              nothing moved for as long as the caller accepts
    ├── RequestFailedError              the server ran the work and it failed
    ├── RetryableException              a result is lost, but asking again may work
    ├── ClientClosedError               the client was closed                           (RuntimeError)
    ├── UnsupportedByServerError        the server ignored something it was asked for   (RuntimeError)
    ├── TokenizerError                  no tokenizer could be loaded                    (RuntimeError)
    ├── TraceExportError                a session's trace could not be exported         (RuntimeError)
    └── DownloadError                   a checkpoint could not be downloaded safely

Errors hold plain data only: no credential, no connection, no live request.  They survive pickling.
This module knows nothing of HTTP libraries, types or the wire.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit, urlunsplit

__all__ = [
    "APIConnectionError",
    "APIError",
    "APIResponseValidationError",
    "APIStatusError",
    "APITimeoutError",
    "AuthenticationError",
    "BadRequestError",
    "BillingError",
    "ClientClosedError",
    "ConflictError",
    "DownloadError",
    "ExperimentalWarning",
    "Fault",
    "InternalServerError",
    "InvalidArgumentError",
    "NotFoundError",
    "PermissionDeniedError",
    "PromiseExpiredError",
    "RateLimitError",
    "RequestErrorCategory",
    "RequestFailedError",
    "RequestInfo",
    "ResponseInfo",
    "ResultAuthenticationError",
    "ResultBadRequestError",
    "ResultBillingError",
    "ResultConflictError",
    "ResultDecodeError",
    "ResultError",
    "ResultNotFoundError",
    "ResultPermissionDeniedError",
    "ResultUnprocessableError",
    "RetryableException",
    "StuckError",
    "TinkerError",
    "TokenizerError",
    "TraceExportError",
    "UnknownArgumentError",
    "UnprocessableEntityError",
    "UnsupportedByServerError",
    "is_user_error",
    "status_class",
    "status_rule",
]


class Fault(StrEnum):
    """Who has to act to make an error go away."""

    USER = auto()
    SERVER = auto()
    NETWORK = auto()
    UNKNOWN = auto()


class RequestErrorCategory(StrEnum):
    """Whose fault a failed request was, as the server says."""

    Unknown = auto()
    Server = auto()
    User = auto()

    @classmethod
    def _missing_(cls, value: object) -> RequestErrorCategory:
        text = str(value).lower()
        return next((member for member in cls if member.value == text), cls.Unknown)


@dataclass(frozen=True, slots=True)
class StatusRule:
    """What one HTTP status means: whose fault, and whether the same request may be sent again."""

    fault: Fault
    retryable: bool


# The one table from which retrying, error classes and the user-error flag all follow.
_STATUS_RULES: Mapping[int, StatusRule] = MappingProxyType(
    {
        402: StatusRule(Fault.USER, retryable=True),  # a pause, until the account is in order
        408: StatusRule(Fault.NETWORK, retryable=True),
        409: StatusRule(Fault.SERVER, retryable=True),
        410: StatusRule(Fault.SERVER, retryable=False),
        429: StatusRule(Fault.USER, retryable=True),
    }
)


def status_rule(status: int) -> StatusRule:
    """Whose fault an HTTP status is, and whether it is worth another try."""
    rule = _STATUS_RULES.get(status)
    if rule is not None:
        return rule
    if 400 <= status < 500:
        return StatusRule(Fault.USER, retryable=False)
    if status >= 500:
        return StatusRule(Fault.SERVER, retryable=True)
    return StatusRule(Fault.UNKNOWN, retryable=False)


# Headers worth keeping on an error; everything else, credentials above all, is dropped.
_KEPT_HEADERS = frozenset(
    {
        "content-length",
        "content-type",
        "date",
        "retry-after",
        "retry-after-ms",
        "server",
        "traceparent",
        "x-deprecation-level",
        "x-deprecation-note",
        "x-request-id",
        "x-should-retry",
    }
)


class _Headers(dict[str, str]):
    """Headers by lower-case name, found in any spelling."""

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(name.lower())

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)


def _kept(headers: Any) -> Mapping[str, str]:
    try:
        pairs = [(str(name).lower(), str(value)) for name, value in dict(headers or {}).items()]
    except (TypeError, ValueError):
        pairs = []
    return _Headers((name, value) for name, value in pairs if name in _KEPT_HEADERS)


def _bare_url(url: object) -> str:
    try:
        parts = urlsplit(str(url or ""))
    except ValueError:
        return ""
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """The method and address of a request, without its headers, query or body."""

    method: str = ""
    url: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", _bare_url(self.url))

    @classmethod
    def of(cls, request: object) -> RequestInfo:
        """Take what is safe to keep from any HTTP library's request object."""
        if isinstance(request, cls):
            return request
        if request is None:
            return cls()
        return cls(str(getattr(request, "method", "")), str(getattr(request, "url", "")))


@dataclass(frozen=True, slots=True)
class ResponseInfo:
    """The status and harmless headers of a response."""

    status_code: int
    headers: Mapping[str, str] = field(default_factory=dict)
    request: RequestInfo = field(default_factory=RequestInfo)

    def __post_init__(self) -> None:
        object.__setattr__(self, "headers", _kept(self.headers))

    @classmethod
    def of(cls, response: object) -> ResponseInfo:
        """Take what is safe to keep from any HTTP library's response object."""
        if isinstance(response, cls):
            return response
        try:
            request: object = getattr(response, "request", None)
        except RuntimeError:  # httpx raises when no request was attached
            request = None
        return cls(
            int(getattr(response, "status_code", 0)),
            getattr(response, "headers", {}),
            RequestInfo.of(request),
        )


def _restore(kind: type[TinkerError], args: tuple[Any, ...], state: dict[str, Any]) -> TinkerError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class TinkerError(Exception):
    """Base of every error this library raises for what happens outside the caller's own code."""

    fault: Fault = Fault.UNKNOWN
    retryable: bool = False
    retry_after: float | None = None
    request_id: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, dict(self.__dict__))


class InvalidArgumentError(TinkerError, ValueError):
    """A value was refused before anything was sent; the text names field, value and what is allowed."""

    fault = Fault.USER


class UnknownArgumentError(InvalidArgumentError, TypeError):
    """A keyword argument that the type does not have."""


class APIError(TinkerError):
    """Base of the errors that come from talking to a server."""

    message: str
    request: RequestInfo
    body: object | None

    def __init__(self, message: str, request: object = None, *, body: object | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.request = RequestInfo.of(request)
        self.body = body


class APIResponseValidationError(APIError):
    """The server's answer does not have the agreed shape."""

    fault = Fault.SERVER
    response: ResponseInfo
    status_code: int

    def __init__(self, response: object, body: object | None, message: str | None = None) -> None:
        self.response = ResponseInfo.of(response)
        self.status_code = self.response.status_code
        super().__init__(
            message or "Data returned by API invalid for expected schema.",
            self.response.request,
            body=body,
        )


class ResultDecodeError(APIResponseValidationError, ValueError):
    """A finished result cannot be read."""


class APIStatusError(APIError):
    """The server answered with a 4xx or 5xx status."""

    response: ResponseInfo
    status_code: int

    def __init__(
        self,
        message: str,
        response: object,
        body: object | None,
        *,
        retry_after: float | None = None,
        request_id: str | None = None,
    ) -> None:
        self.response = ResponseInfo.of(response)
        self.status_code = self.response.status_code
        rule = status_rule(self.status_code)
        self.fault: Fault = rule.fault
        self.retryable: bool = rule.retryable
        self.retry_after = retry_after
        self.request_id: str | None = request_id or self.response.headers.get("x-request-id")
        super().__init__(message, self.response.request, body=body)


class APIConnectionError(APIError):
    """No answer came: refused, reset, unreachable or cut off."""

    fault = Fault.NETWORK
    retryable = True

    def __init__(self, request: object = None, message: str = "Connection error.") -> None:
        super().__init__(message, request, body=None)


class APITimeoutError(APIConnectionError):
    """No answer came within the time allowed."""

    def __init__(self, request: object = None, message: str = "Request timed out.") -> None:
        super().__init__(request, message)


class StuckError(APIConnectionError):
    """Nothing moved for as long as the caller was ready to wait."""

    retryable = False


class BadRequestError(APIStatusError):
    """400: the request is invalid."""

    status_code: int = 400


class AuthenticationError(APIStatusError):
    """401: the credential is missing or wrong."""

    status_code: int = 401


class BillingError(APIStatusError):
    """402: the account has a billing problem."""

    status_code: int = 402


class PermissionDeniedError(APIStatusError):
    """403: the credential may not do this."""

    status_code: int = 403


class NotFoundError(APIStatusError):
    """404: there is no such thing, or it belongs to someone else."""

    status_code: int = 404


class ConflictError(APIStatusError):
    """409: the request clashes with the present state."""

    status_code: int = 409


class UnprocessableEntityError(APIStatusError):
    """422: the request is well formed but makes no sense."""

    status_code: int = 422


class RateLimitError(APIStatusError):
    """429: too many requests; `retry_after` has the server's advice, if it gave any."""

    status_code: int = 429


class InternalServerError(APIStatusError):
    """5xx: the server failed."""


class RetryableException(TinkerError):
    """A result is lost, but asking for the work again may succeed."""

    fault = Fault.SERVER
    retryable = True

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message


class PromiseExpiredError(APIStatusError, RetryableException):
    """410 while waiting: the server no longer has the result."""

    status_code: int = 410

    def __init__(self, message: str, response: object, body: object | None, **known: Any) -> None:
        APIStatusError.__init__(self, message, response, body, **known)
        self.retryable = True


class ResultError(APIStatusError, ValueError):
    """Waiting for a result was refused for good."""


class ResultBadRequestError(BadRequestError, ResultError):
    """400 while waiting for a result."""


class ResultAuthenticationError(AuthenticationError, ResultError):
    """401 while waiting for a result."""


class ResultBillingError(BillingError, ResultError):
    """402 while waiting for a result."""


class ResultPermissionDeniedError(PermissionDeniedError, ResultError):
    """403 while waiting for a result."""


class ResultNotFoundError(NotFoundError, ResultError):
    """404 while waiting for a result."""


class ResultConflictError(ConflictError, ResultError):
    """409 while waiting for a result."""


class ResultUnprocessableError(UnprocessableEntityError, ResultError):
    """422 while waiting for a result."""


class RequestFailedError(TinkerError):
    """The server ran the work and it failed; `category` says whose fault that was."""

    def __init__(self, message: str, request_id: str, category: RequestErrorCategory | str) -> None:
        super().__init__(message)
        self.message = message
        self.request_id: str = request_id
        self.category: RequestErrorCategory = RequestErrorCategory(category)
        self.category_text: str = str(category)
        self.fault: Fault = _CATEGORY_FAULTS[self.category]
        self.retryable: bool = self.category is RequestErrorCategory.Server


_CATEGORY_FAULTS = {
    RequestErrorCategory.User: Fault.USER,
    RequestErrorCategory.Server: Fault.SERVER,
    RequestErrorCategory.Unknown: Fault.UNKNOWN,
}


class ClientClosedError(TinkerError, RuntimeError):
    """The client, or the service client it came from, was closed."""

    fault = Fault.USER


class UnsupportedByServerError(TinkerError, RuntimeError):
    """The server cannot do, or silently ignored, what was asked."""

    fault = Fault.SERVER


class TokenizerError(TinkerError, RuntimeError):
    """No tokenizer could be loaded; the text names the id and how to supply one."""

    fault = Fault.USER


class TraceExportError(TinkerError, RuntimeError):
    """The server could not export a session's trace."""

    fault = Fault.SERVER


class DownloadError(TinkerError):
    """What was to be downloaded is damaged, unsafe, too large, or not what was announced."""

    fault = Fault.SERVER


class ExperimentalWarning(FutureWarning):
    """The feature may change without notice."""


_STATUS_CLASSES: Mapping[int, type[APIStatusError]] = {
    400: BadRequestError,
    401: AuthenticationError,
    402: BillingError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    422: UnprocessableEntityError,
    429: RateLimitError,
}

_RESULT_CLASSES: Mapping[int, type[APIStatusError]] = {
    400: ResultBadRequestError,
    401: ResultAuthenticationError,
    402: ResultBillingError,
    403: ResultPermissionDeniedError,
    404: ResultNotFoundError,
    409: ResultConflictError,
    410: PromiseExpiredError,
    422: ResultUnprocessableError,
    429: RateLimitError,
}


def status_class(status: int, *, result: bool = False) -> type[APIStatusError]:
    """The error class for an HTTP status, on a submit or (`result`) while waiting for a result."""
    if status >= 500:
        return InternalServerError
    if result:
        return _RESULT_CLASSES.get(status, ResultError)
    return _STATUS_CLASSES.get(status, APIStatusError)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop(0)
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        waiting += [current.__cause__, current.__context__]


def is_user_error(error: BaseException) -> bool:
    """Whether an error, or anything that led to it, is the caller's to mend.

    The rule of the service's telemetry: any 4xx but 408 counts, 429 included.
    """
    for link in _chain(error):
        if isinstance(link, RequestFailedError) and link.category is RequestErrorCategory.User:
            return True
        status = getattr(link, "status_code", None)
        if isinstance(status, int) and 400 <= status < 500 and status != 408:
            return True
    return False
