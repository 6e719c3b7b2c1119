"""One look at a service: does it answer, and does it take this credential?"""

from __future__ import annotations

from .._version import SDK_VERSION
from ..config import Config
from ..errors import NotFoundError
from ..net.caller import read_answer
from ..types.service import ClientConfigRequest, ClientConfigResponse
from ..wire.jsonbody import encode
from ..wire.routes import route
from .connection import Connection
from .portal import portal

__all__ = ["check_access"]


def check_access(config: Config) -> None:
    """Raise what stands in the way of using a service; nothing is tried twice."""
    portal().run(_look(config))


async def _look(config: Config) -> None:
    # `Connection.settings` would try for minutes, and pause on a 402; here the error is the answer.
    body = encode(ClientConfigRequest(sdk_version=SDK_VERSION))
    try:
        response = await Connection(config).caller.once(route("client_config"), body)
        settings = read_answer(ClientConfigResponse, response)
    except NotFoundError:
        settings = ClientConfigResponse()
    connection = Connection(config, settings=settings)
    await connection.caller.once(route("get_server_capabilities"))
