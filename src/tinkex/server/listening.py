"""The socket a server listens on, and the address it is reached under."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import ssl
import sys

from ..errors import TinkerError
from .options import ServerOptions

__all__ = ["CannotStart", "address", "allow_many_connections", "check_tls", "is_loopback", "listen"]

BACKLOG = 2048
OPEN_FILES = 65536
"""As many connections and files as this may be open, where the system allows it."""


class CannotStart(TinkerError):
    """The server cannot start; the text says why and what to do."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; connections wait in it until the server takes them."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        raise CannotStart(f"--host {host}: there is no such address") from None
    family, kind, protocol, _, place = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # elsewhere it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(BACKLOG)
    except OSError as problem:
        listener.close()
        raise CannotStart(_why(problem, host, port)) from None
    listener.setblocking(False)
    return listener


def _why(problem: OSError, host: str, port: int) -> str:
    if problem.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is taken; choose another with --port, or --port 0 for a free one"
    if problem.errno == errno.EACCES:
        return f"port {port} of {host} may not be used by this user; choose one above 1023 with --port"
    if problem.errno == errno.EADDRNOTAVAIL:
        return (
            f"--host {host}: this machine has no such address; 127.0.0.1 is this machine alone, 0.0.0.0 all"
        )
    return f"cannot listen on port {port} of {host}: {problem.strerror}"


def address(listener: socket.socket, *, tls: bool) -> str:
    """The URL a client on this machine reaches a socket under."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can reach a socket."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def check_tls(options: ServerOptions) -> None:
    """Refuse a certificate that does not work, before anything is started."""
    if options.tls_cert is None:
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            options.tls_cert, options.tls_key
        )
    except (OSError, ssl.SSLError) as problem:
        raise CannotStart(f"TLS: {options.tls_cert} and {options.tls_key} do not work: {problem}") from None


def allow_many_connections() -> int | None:
    """Raise this process's bound on open files, which is low by default; the bound, where there is one."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return None if soft == resource.RLIM_INFINITY else soft
