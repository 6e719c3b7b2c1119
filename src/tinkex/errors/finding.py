"""From a status to its class of errors, and from an error to whose it is to mend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .faults import RequestErrorCategory
from .tree import (
    APIStatusError,
    AuthenticationError,
    BadRequestError,
    BillingError,
    ConflictError,
    InternalServerError,
    NotFoundError,
    PermissionDeniedError,
    PromiseExpiredError,
    RateLimitError,
    RequestFailedError,
    ResultAuthenticationError,
    ResultBadRequestError,
    ResultBillingError,
    ResultConflictError,
    ResultError,
    ResultNotFoundError,
    ResultPermissionDeniedError,
    ResultUnprocessableError,
    UnprocessableEntityError,
)

__all__ = ["is_user_error", "status_class"]

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
