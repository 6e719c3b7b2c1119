"""The server's socket: taken ports, free ports, addresses, certificates."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import trustme

from tinkex.server.listening import CannotStart, address, check_tls, is_loopback, listen
from tinkex.server.options import ServerOptions


def test_a_free_port_is_found_and_told():
    with closing(listen("127.0.0.1", 0)) as listener:
        url = address(listener, tls=False)
        port = listener.getsockname()[1]
        assert url == f"http://127.0.0.1:{port}"
        assert address(listener, tls=True) == f"https://127.0.0.1:{port}"
        assert is_loopback(listener)
        with socket.create_connection(("127.0.0.1", port)):  # it waits until the server takes it
            pass


def test_a_taken_port_is_one_clear_line():
    with closing(listen("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(CannotStart, match=f"port {port} of 127.0.0.1 is taken; .*--port 0") as problem:
            listen("127.0.0.1", port)
        assert "\n" not in str(problem.value)


def test_a_port_just_left_can_be_taken_again():
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        accepted = socket.socket(fileno=_accepted(listener))
        accepted.close()  # this side closes first, so the address lingers
    listener.close()
    listen("127.0.0.1", port).close()


def _accepted(listener: socket.socket) -> int:
    listener.setblocking(True)
    return listener.accept()[0].detach()


def test_every_address_is_reached_by_this_machine_under_its_own():
    with closing(listen("0.0.0.0", 0)) as listener:
        assert address(listener, tls=False).startswith("http://127.0.0.1:")
        assert not is_loopback(listener)


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6 here")
def test_addresses_of_six_have_brackets():
    try:
        listener = listen("::1", 0)
    except CannotStart:
        pytest.skip("there is no IPv6 here")
    with closing(listener):
        assert address(listener, tls=False).startswith("http://[::1]:")
        assert is_loopback(listener)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "300.1.1.1"])
def test_an_address_that_is_none(host: str):
    with pytest.raises(CannotStart, match="there is no such address"):
        listen(host, 0)


def test_an_address_of_another_machine():
    with pytest.raises(CannotStart, match="this machine has no such address"):
        listen("192.0.2.1", 0)


def options(tmp_path: Path, cert: Path | None, key: Path | None) -> ServerOptions:
    return ServerOptions((), tmp_path, tls_cert=cert, tls_key=key)


def test_certificates_are_tried_before_the_start(tmp_path: Path):
    issued = trustme.CA().issue_cert("127.0.0.1")
    cert, key, other = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "other.pem"
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    trustme.CA().issue_cert("127.0.0.1").private_key_pem.write_to_path(other)
    check_tls(options(tmp_path, None, None))
    check_tls(options(tmp_path, cert, key))
    for wrong in (other, cert, tmp_path / "missing"):
        with pytest.raises(CannotStart, match=r"TLS: .* do not work"):
            check_tls(options(tmp_path, cert, wrong))


@pytest.mark.skipif(os.name != "posix", reason="bounds are POSIX's")
def test_many_connections_are_allowed():
    code = (
        "import resource; from tinkex.server.listening import allow_many_connections\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 300 if {0} else hard))\n"
        "print(allow_many_connections(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    for bounded in (False, True):
        done = subprocess.run(
            [sys.executable, "-c", code.format(bounded)], capture_output=True, text=True, check=True
        )
        told, soft, hard = map(int, done.stdout.split())
        assert told == soft
        assert soft == 300 if bounded else soft >= min(hard, 65536)
