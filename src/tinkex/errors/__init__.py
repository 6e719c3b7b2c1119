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
Nothing here knows of HTTP libraries, types or the wire.
"""

from __future__ import annotations

from .exchanges import RequestInfo, ResponseInfo
from .faults import Fault, RequestErrorCategory, status_rule
from .finding import is_user_error, status_class
from .tree import (
    APIConnectionError,
    APIError,
    APIResponseValidationError,
    APIStatusError,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    BillingError,
    ClientClosedError,
    ConflictError,
    DownloadError,
    ExperimentalWarning,
    InternalServerError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    PromiseExpiredError,
    RateLimitError,
    RequestFailedError,
    ResultAuthenticationError,
    ResultBadRequestError,
    ResultBillingError,
    ResultConflictError,
    ResultDecodeError,
    ResultError,
    ResultNotFoundError,
    ResultPermissionDeniedError,
    ResultUnprocessableError,
    RetryableException,
    StuckError,
    TinkerError,
    TokenizerError,
    TraceExportError,
    UnknownArgumentError,
    UnprocessableEntityError,
    UnsupportedByServerError,
)

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

# Users know them by this name: in tracebacks, and in what they have pickled.
for _name in __all__:
    globals()[_name].__module__ = __name__
del _name
