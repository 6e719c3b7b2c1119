"""Who is let in: whose credential a request has, or a refusal."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .key_file import KeyFileError
from .problems import Problem
from .wrong_keys import GUESSABLE

if TYPE_CHECKING:
    from .service import KeyInfo, Service

__all__ = ["identify", "lender"]

log = logging.getLogger(__name__)
_HOW = "send it as X-API-Key (see `tinkex keys list`)"


def identify(service: Service, credential: bytes | None, peer: str) -> KeyInfo:
    """Whose credential it is; anything else is a 401, or a 429 to an address that goes on trying."""
    if credential is None:
        raise Problem(401, f"the API key is missing; {_HOW}")
    try:
        known = service.keys.owner_of(credential.decode("latin-1"))
    except KeyFileError as problem:
        log.error("nobody is let in: %s", problem)
        raise Problem(503, "the server cannot read its keys; its log says why") from None
    if known is not None and len(credential) >= GUESSABLE:
        return known
    now = service.clock.monotonic()
    seconds = service.wrong_keys.wait(peer, now)
    if seconds:
        raise Problem(
            429,
            f"too many wrong keys came from this address; try again in {seconds} s",
            headers={"retry-after": str(seconds)},
        )
    if known is None:
        service.wrong_keys.note(peer, now)
        raise Problem(401, f"the API key is not known here; {_HOW}")
    return known


def lender(service: Service, credential: str, peer: str, field: str) -> str:
    """Whose things a lent credential opens; it is looked at and forgotten."""
    try:
        return identify(service, credential.encode("latin-1", "replace"), peer).owner
    except Problem as problem:
        if problem.status != 401:
            raise
        raise Problem(403, f"{field}: this credential is not known here") from None
