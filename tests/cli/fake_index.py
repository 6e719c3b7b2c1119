"""A package index, and a hub, on this machine: pages, files with ranges, and breaks on the way."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """What is served, what was asked, and what goes wrong."""

    pages: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Path -> kind and content."""
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Path and Range of every request."""
    logins: list[str | None] = field(default_factory=list)
    breaks: int = 0
    """How many answers end half way."""
    ranges: bool = True
    url: str = ""


def _handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET(head=True)

        def do_GET(self, head: bool = False) -> None:
            path = self.path.partition("?")[0]
            site.asked.append((path, self.headers.get("Range", "")))
            site.logins.append(self.headers.get("Authorization"))
            if path in site.pages:
                kind, body = site.pages[path]
                self._answer(200, kind, body, head=head)
            elif path in site.files:
                self._file(site.files[path], head=head)
            else:
                self._answer(404, "application/json", b"{}", head=head)

        def _file(self, body: bytes, *, head: bool) -> None:
            wanted = self.headers.get("Range", "")
            extra = {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Repo-Commit": "c" * 40}
            if wanted and site.ranges and not head:
                first = int(wanted.removeprefix("bytes=").partition("-")[0])
                extra["Content-Range"] = f"bytes {first}-{len(body) - 1}/{len(body)}"
                self._answer(206, "application/octet-stream", body[first:], extra)
            else:
                self._answer(200, "application/octet-stream", body, extra, head=head)

        def _answer(
            self, code: int, kind: str, body: bytes, extra: dict[str, str] | None = None, head: bool = False
        ) -> None:
            self.send_response(code)
            for name, value in {
                "Content-Type": kind,
                "Content-Length": str(len(body)),
                **(extra or {}),
            }.items():
                self.send_header(name, value)
            self.end_headers()
            if head:
                return
            if site.breaks and code in (200, 206) and kind == "application/octet-stream":
                site.breaks -= 1
                self.wfile.write(body[: len(body) // 2])
                self.close_connection = True
                return
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return

    return Handler


@contextmanager
def serving() -> Iterator[Site]:
    """A site on a free port."""
    site = Site()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(site))
    site.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def publish(site: Site, project: str, name: str, body: bytes, *, as_json: bool = False) -> None:
    """Put a file on the index."""
    site.files[f"/files/{name}"] = body
    if as_json:
        page = json.dumps({"files": [{"filename": name, "url": f"{site.url}/files/{name}"}]}).encode()
        site.pages[f"/simple/{project}/"] = ("application/vnd.pypi.simple.v1+json", page)
    else:
        page = (
            f'<html><a href="../../files/other.whl">x</a><a href="../../files/{name}#sha256=0">y</a></html>'
        )
        site.pages[f"/simple/{project}/"] = ("text/html; charset=utf-8", page.encode())


def publish_on_hub(site: Site, name: str, files: dict[str, bytes]) -> None:
    """Put a model on the hub."""
    commit = "c" * 40
    about = {"id": name, "sha": commit, "siblings": [{"rfilename": file} for file in files]}
    for revision in ("main", commit):
        site.pages[f"/api/models/{name}/revision/{revision}"] = (
            "application/json",
            json.dumps(about).encode(),
        )
    tree = [
        {"type": "file", "path": file, "size": len(body), "oid": "0" * 40} for file, body in files.items()
    ]
    site.pages[f"/api/models/{name}/tree/{commit}"] = ("application/json", json.dumps(tree).encode())
    for file, body in files.items():
        site.files[f"/{name}/resolve/{commit}/{file}"] = body
