"""Real servers for transport tests: HTTP/2 over TLS, and a CONNECT proxy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI app that tells what it was sent."""
    if scope["type"] != "http":
        return
    body = b""
    while True:
        event = await receive()
        body += event.get("body", b"")
        if not event.get("more_body"):
            break
    path = scope["path"]
    status, headers = 200, [(b"content-type", b"application/json"), (b"x-request-id", b"r1")]
    if path == "/slow":
        await asyncio.sleep(30)
    if path == "/redirect":
        status, headers = 302, [(b"location", b"/landed")]
    if path == "/refuse":
        status = 429
    answer = json.dumps(
        {
            "version": scope["http_version"],
            "method": scope["method"],
            "path": path,
            "query": scope["query_string"].decode(),
            "size": len(body),
            "header": dict(scope["headers"]).get(b"x-test", b"").decode(),
        }
    ).encode()
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if path == "/stream":
        for index in range(5):
            await send({"type": "http.response.body", "body": b"piece%d;" % index, "more_body": True})
            await asyncio.sleep(0.01)
        answer = b"end"
    await send({"type": "http.response.body", "body": answer})


@contextlib.contextmanager
def in_thread(serve: Any) -> Iterator[Any]:
    """Run an async context manager in a thread; gives what it yields."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    held = serve()
    try:
        yield asyncio.run_coroutine_threadsafe(held.__aenter__(), loop).result(20)
    finally:
        asyncio.run_coroutine_threadsafe(held.__aexit__(None, None, None), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)


@contextlib.asynccontextmanager
async def tls_server(folder: Path) -> AsyncIterator[tuple[str, str]]:
    """An HTTP/2 server on TLS; gives its URL and the file of its authority."""
    import trustme
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    names = {name: str(folder / name) for name in ("ca.pem", "cert.pem", "key.pem")}
    authority.cert_pem.write_to_path(names["ca.pem"])
    certificate.cert_chain_pems[0].write_to_path(names["cert.pem"])
    certificate.private_key_pem.write_to_path(names["key.pem"])
    with contextlib.closing(__import__("socket").socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.certfile, config.keyfile = names["cert.pem"], names["key.pem"]
    config.errorlog = None
    stop = asyncio.Event()
    running = asyncio.ensure_future(serve(echo, config, shutdown_trigger=stop.wait))  # type: ignore[arg-type]
    for _ in range(200):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            break
        await asyncio.sleep(0.02)
    try:
        yield f"https://127.0.0.1:{port}", names["ca.pem"]
    finally:
        stop.set()
        await running


@contextlib.asynccontextmanager
async def connect_proxy() -> AsyncIterator[tuple[str, list[str]]]:
    """A proxy that knows CONNECT and absolute addresses; gives its URL and what it was asked."""
    asked: list[str] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line = head.split(b"\r\n")[0].decode()
        asked.append(line)
        method, target, _ = line.split()
        place = target if method == "CONNECT" else target.split("/")[2]
        host, _, port = place.partition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port or 80))
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
        else:
            path = "/" + "/".join(target.split("/")[3:])
            far_writer.write(head.replace(target.encode(), path.encode(), 1))
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}", asked
    finally:
        server.close()
