"""Which transport a request takes: lanes keep slow traffic away from the rest."""

from __future__ import annotations

from collections.abc import Callable

from ..config import Config
from ..wire.routes import Lane
from .transport import Request, Response, Transport

__all__ = ["Lanes", "make_transport"]

# An HTTP/2 connection has a limited number of streams, so what may hang has its own connections.
_GROUPS: dict[Lane, str] = {
    "config": "control",
    "auth": "control",
    "session": "control",
    "telemetry": "telemetry",
    "rest": "rest",
    "train": "train",
    "sample": "sample",
    "poll": "poll",
    "poll_many": "poll",
}


def make_transport(config: Config) -> Transport:
    """The transport for a server: HTTP/1.1 on cleartext, HTTP/2 on TLS, aiohttp through a proxy."""
    secure, proxy = config.base_url.startswith("https://"), config.proxied
    if secure or (proxy is not None and proxy.startswith("socks")):
        from .pyqwest_transport import PyqwestTransport, works_here

        if works_here():
            return PyqwestTransport(ca_file=config.ca_file, proxy=proxy)
    if secure or proxy is not None:
        from .aiohttp_transport import AiohttpTransport

        return AiohttpTransport(ca_file=config.ca_file, proxy=proxy)
    from .http1_transport import Http1Transport

    return Http1Transport()


class Lanes:
    """One transport per group of lanes, made when first used."""

    def __init__(self, config: Config, make: Callable[[Config], Transport] = make_transport) -> None:
        self._config, self._make = config, make
        # Cleartext transports open as many connections as are needed: one serves all lanes.
        self._split = config.base_url.startswith("https://")
        self._transports: dict[str, Transport] = {}

    def transport(self, lane: Lane) -> Transport:
        """The transport of a lane."""
        group = _GROUPS[lane] if self._split else "all"
        known = self._transports.get(group)
        if known is None:
            known = self._transports[group] = self._make(self._config)
        return known

    async def send(self, lane: Lane, request: Request) -> Response:
        """Send one request in a lane."""
        return await self.transport(lane).send(request)

    async def close(self) -> None:
        """Free every connection."""
        transports, self._transports = self._transports, {}
        for transport in transports.values():
            await transport.close()
