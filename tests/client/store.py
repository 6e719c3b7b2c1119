"""A checkpoint to download: a service that signs addresses, and the file store they lead to."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.client.rig import WAIT
from tinkex.client.rest import RestClient
from tinkex.config import Config
from tinkex.testing import FakeClock, FakeRequest, FakeResponse, FakeService, HandlerTransport
from tinkex.testing.exchange import json_response

PATH = "tinker://run/external_weights/ex"
TRAINING = "tinker://run/weights/ck"
MEGABYTE = 2**20
FILES = {
    "adapter_config.json": b'{"r": 8}',
    "deep/er/model.safetensors": bytes(range(256)) * 12_000,  # three blocks
    "checkpoint_complete": b"",
}
BIG = "deep/er/model.safetensors"


class Store:
    """A service with one exported checkpoint, and the file store its addresses lead to."""

    def __init__(self, files: dict[str, bytes] | None = None, **options: Any) -> None:
        self.files = dict(FILES) if files is None else files
        self.clock = FakeClock(auto=True)
        self.service = FakeService(clock=self.clock)
        self.life = timedelta(minutes=15)
        self.signatures = 0
        self.signs_all = False  # also the files of checkpoints that were not exported
        self.asked: list[FakeRequest] = []
        self.spoil: Callable[[str, FakeRequest, FakeResponse], FakeResponse | None] = lambda *_: None
        self.archive: bytes | None = None
        self.archive_as = "redirect"
        self.ranges = True
        self.digests: dict[str, str] = {}
        self.rest = RestClient(
            config=Config.resolve(base_url="http://fake.test", api_key="tml-test", environ={}, **options),
            clock=self.clock,
            transport=self.transport,
        )

    def transport(self, _: Config) -> HandlerTransport:
        return HandlerTransport(self.handle, clock=self.clock)

    async def handle(self, request: FakeRequest) -> FakeResponse:
        if request.headers["host"] == "store.test":
            return self.serve(request)
        exported = self.signs_all or "/external_weights/" in request.path
        if request.path.endswith("/external_weights_urls") and self.files and exported:
            return self.sign()
        if request.path.endswith("/archive") and self.archive is not None:
            return self.sign_archive()
        return await self.service.handle(request)

    def expires(self) -> str:
        return (self.clock.now() + self.life).isoformat()

    def sign(self) -> FakeResponse:
        self.signatures += 1
        urls = {
            name: f"http://store.test/{number}?signature={self.signatures}"
            for number, name in enumerate(self.files)
        }
        return json_response({"urls": urls, "expires": self.expires()})

    def sign_archive(self) -> FakeResponse:
        self.signatures += 1
        url = f"http://store.test/archive?signature={self.signatures}"
        if self.archive_as == "redirect":
            return FakeResponse(302, {"location": url, "expires": "Thu, 01 Jan 2099 00:00:00 GMT"})
        return json_response({"url": url, "expires": self.expires()})

    def serve(self, request: FakeRequest) -> FakeResponse:
        self.asked.append(request)
        place = request.path.strip("/")
        name = place if place == "archive" else list(self.files)[int(place)]
        data = self.archive if place == "archive" else self.files[name]
        assert data is not None
        answer = self.answer(request, data, self.digests.get(name))
        return self.spoil(name, request, answer) or answer

    def answer(self, request: FakeRequest, data: bytes, digest: str | None) -> FakeResponse:
        etag = f'"{hashlib.md5(data).hexdigest()}"'
        headers = {"etag": etag, "content-length": str(len(data))}
        if digest is not None:
            header, _, value = digest.partition(": ")
            headers[header] = value
        wanted = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))
        if wanted is None or not self.ranges or request.headers["if-range"] != etag:
            return FakeResponse(200, headers, data)
        begin = int(wanted[1])
        if begin >= len(data):
            return FakeResponse(416, {"content-range": f"bytes */{len(data)}"})
        headers["content-range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        headers["content-length"] = str(len(data) - begin)
        return FakeResponse(206, headers, data[begin:])

    def requests_for(self, name: str) -> list[FakeRequest]:
        number = str(list(self.files).index(name)) if name != "archive" else name
        return [request for request in self.asked if request.path == f"/{number}"]

    def get(self, folder: Path, path: str = PATH, **options: Any) -> Any:
        return self.rest.download_checkpoint(path, folder, **options).result(WAIT)


def on_disk(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def cut_once(name: str, at: int) -> Callable[[str, FakeRequest, FakeResponse], FakeResponse | None]:
    """Break the connection after so many bytes of a file, the first time only."""
    left = [1]

    def spoil(asked: str, _: FakeRequest, answer: FakeResponse) -> FakeResponse | None:
        if asked != name or not left:
            return None
        left.pop()
        return FakeResponse(answer.status, answer.headers, answer.body, cut=at)

    return spoil
