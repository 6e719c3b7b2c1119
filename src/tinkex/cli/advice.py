"""What to do about an error: the message of a `TinkerError` and the next step, for the command line."""

from __future__ import annotations

from .. import errors
from .output import CommandError

__all__ = ["reason", "told"]

# The first kind that fits counts, so the narrower ones stand first.
_NEXT: tuple[tuple[type[errors.TinkerError], str], ...] = (
    (errors.AuthenticationError, "log in with `tinkex auth login`, or set TINKER_API_KEY"),
    (errors.PermissionDeniedError, "this key may not do that; `tinkex auth whoami` shows whose it is"),
    (errors.BillingError, "the account has a billing problem; look at the service's console"),
    (errors.NotFoundError, "`tinkex run list` and `tinkex checkpoint list` show what there is"),
    (errors.RateLimitError, "wait a moment and try again"),
    (errors.APIConnectionError, "is a server running there? `tinkex doctor` looks closer"),
    (errors.InternalServerError, "the server failed; its log says why. Trying again may help"),
    (errors.TokenizerError, "`tinkex doctor` shows what is installed"),
)


def told(error: errors.TinkerError) -> CommandError:
    """An error as one line and what to do next."""
    return CommandError(reason(error), next((hint for kind, hint in _NEXT if isinstance(error, kind)), ""))


def reason(error: Exception) -> str:
    """What went wrong: in the server's own words, where it gave any."""
    message = str(error)
    if isinstance(error, errors.APIStatusError):
        said = error.body.get("detail") if isinstance(error.body, dict) else None
        message = said if isinstance(said, str) and said else message
    elif isinstance(error, errors.APIConnectionError):
        where = getattr(error.request, "url", "")
        if where and where not in message:
            message = f"no answer from {where.partition('/api/')[0]}: {message}"
    return " ".join(" ".join([message, *getattr(error, "__notes__", ())]).split())
