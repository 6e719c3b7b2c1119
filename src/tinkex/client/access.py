"""One look at a service: does it answer, does it take this credential, and whose is that?"""

from __future__ import annotations

import contextlib

from .._version import SDK_VERSION
from ..config import Config
from ..errors import APIStatusError, NotFoundError
from ..net.caller import read_answer
from ..net.credentials import find_credential
from ..types.service import ClientConfigRequest, ClientConfigResponse
from ..wire.bodies import ApiKeyResponse
from ..wire.jsonbody import encode
from ..wire.routes import route
from .connection import Connection
from .local_server import reached
from .portal import portal

__all__ = ["check_access", "check_answers", "describe_key", "revoke_key"]


def check_access(config: Config) -> None:
    """Raise what stands in the way of using a service; nothing is tried twice."""
    portal().run(_look(reached(config)))


def check_answers(config: Config) -> None:
    """Raise if a service does not answer at all; whatever it answers is told by the calls that follow."""
    portal().run(_call_out(reached(config)))


async def _call_out(config: Config) -> None:
    with contextlib.suppress(APIStatusError):
        await Connection(config).caller.once(route("client_config"), _ask())


def _ask() -> bytes:
    return encode(ClientConfigRequest(sdk_version=SDK_VERSION))


async def _look(config: Config) -> None:
    # `Connection.settings` would try for minutes, and pause on a 402; here the error is the answer.
    try:
        response = await Connection(config).caller.once(route("client_config"), _ask())
        settings = read_answer(ClientConfigResponse, response)
    except NotFoundError:
        settings = ClientConfigResponse()
    connection = Connection(config, settings=settings)
    await connection.caller.once(route("get_server_capabilities"))


def describe_key(config: Config) -> ApiKeyResponse:
    """What the service knows of the key in use; asked with the key itself, never with a token for it."""
    return portal().run(_described(reached(config)))


async def _described(config: Config) -> ApiKeyResponse:
    response = await Connection(config).caller.once(
        route("get_api_key"), credential=find_credential(config).reveal()
    )
    answer: ApiKeyResponse = read_answer(ApiKeyResponse, response)
    return answer


def revoke_key(config: Config) -> None:
    """Have the service take the key in use no more."""
    portal().run(_revoked(reached(config)))


async def _revoked(config: Config) -> None:
    await Connection(config).caller.once(
        route("delete_api_key"), credential=find_credential(config).reveal()
    )
