"""Answers about the credential a request came with: its key, its end, and tokens that stand for it."""

from __future__ import annotations

import asyncio

from ..types import AuthTokenResponse
from ..wire.bodies import ApiKeyDetails, ApiKeyResponse, OrganizationDetails, UserDetails
from ..wire.headers import API_KEY
from .asks import Answer, Ask, answers
from .keys import KeyInfo, KeyRing, KeysError
from .problems import Problem
from .records import AuditRow
from .store import Note

TOKEN_SECONDS = 3600.0
"""How long a token is good; clients ask for the next one five minutes before it ends."""


@answers("auth_token")
async def _token(ask: Ask) -> Answer:
    ring, info = _ring(ask), _key(ask)
    token = (
        None if ring.tokens is None else ring.tokens.issue(info, TOKEN_SECONDS, ask.service.clock.time())
    )
    if token is None:
        raise Problem(403, "this server gives no tokens; use the API key itself")
    return AuthTokenResponse(jwt=token)


@answers("get_api_key")
async def _shown(ask: Ask) -> Answer:
    info = _key(ask)
    return ApiKeyResponse(
        key_id=info.id,
        name=info.name,
        note=info.note,
        details=ApiKeyDetails(
            org_details=OrganizationDetails(name=info.owner),
            user_details=UserDetails(email=info.owner if "@" in info.owner else ""),
        ),
    )


@answers("delete_api_key")
async def _revoked(ask: Ask) -> Answer:
    try:
        # Off the loop: the file is locked, written and synced.
        gone = await asyncio.to_thread(_ring(ask).revoke_key, ask.header(API_KEY) or "")
    except KeysError as problem:
        raise Problem(409, str(problem)) from None
    if gone is not None:
        now, details = ask.service.clock.time(), {"key_id": gone.id, "name": gone.name}
        await ask.service.write(Note(AuditRow(now, gone.owner, "api_key.revoked", details=details)))
    return {}


def _ring(ask: Ask) -> KeyRing:
    ring = ask.service.keys
    if not isinstance(ring, KeyRing):
        raise Problem(501, "the keys of this server are kept elsewhere")
    return ring


def _key(ask: Ask) -> KeyInfo:
    found = _ring(ask).live(ask.key_id)
    if found is None:  # revoked since the request was let in
        raise Problem(401, "the API key is not known here")
    return found.info
