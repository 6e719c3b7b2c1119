"""The classes of errors."""

from __future__ import annotations

from typing import Any

from .exchanges import RequestInfo, ResponseInfo
from .faults import Fault, RequestErrorCategory, status_rule

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
    "InternalServerError",
    "InvalidArgumentError",
    "NotFoundError",
    "PermissionDeniedError",
    "PromiseExpiredError",
    "RateLimitError",
    "RequestFailedError",
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
]


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
