"""A server that means harm: what it cannot do to those who ask it."""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import lzma
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tinkex
from tests.net.test_transport_errors import exchange
from tinkex.client.archives import unpack
from tinkex.client.local_files import LocalFiles
from tinkex.config import is_this_machine
from tinkex.errors import APIConnectionError, DownloadError, InvalidArgumentError
from tinkex.net import aiohttp_transport, http1_transport
from tinkex.net.transport import Request

LIMIT = 2**40  # what a download may have when nobody says otherwise


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def peak() -> int:
    """The most memory this process ever had, in bytes."""
    resource = pytest.importorskip("resource")
    unit = 1 if sys.platform == "darwin" else 1024
    most: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return most


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, bytes])
def test_an_archive_is_read_however_it_is_packed(tmp_path: Path, pack: Callable[[bytes], bytes]):
    data = header("a", 5) + b"hello".ljust(512, b"\0") + bytes(1024)
    (tmp_path / "a").write_bytes(pack(data))
    (tmp_path / "out").mkdir()
    assert unpack(tmp_path / "a", tmp_path / "out", LIMIT) == {"a": 5}


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_small_archive_cannot_fill_the_disk(
    tmp_path: Path, pack: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tinkex.client.archives._AT_LEAST", 1 << 20)
    size = 16 << 20
    (tmp_path / "bomb").write_bytes(pack(header("zeros", size) + bytes(size)))
    assert (tmp_path / "bomb").stat().st_size < size // 200
    (tmp_path / "out").mkdir()
    with pytest.raises(DownloadError, match="unpacks to more than"):
        unpack(tmp_path / "bomb", tmp_path / "out", LIMIT)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
@pytest.mark.parametrize("size", [32 << 20, 7 << 30])
def test_a_header_cannot_fill_the_memory(tmp_path: Path, kind: bytes, size: int):
    before = peak()
    (tmp_path / "bomb").write_bytes(gzip.compress(header("x", size, kind) + bytes(33 << 20)))
    (tmp_path / "out").mkdir()
    with pytest.raises(DownloadError, match="header too large"):
        unpack(tmp_path / "bomb", tmp_path / "out", LIMIT)
    assert peak() - before < 256 << 20


def test_folders_without_end_are_not_counted_to_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tinkex.client.archives._MOST_ENTRIES", 100)
    data = b"".join(header(f"folder{number}/", 0, tarfile.DIRTYPE) for number in range(101))
    (tmp_path / "bomb").write_bytes(gzip.compress(data + bytes(1024)))
    (tmp_path / "out").mkdir()
    with pytest.raises(DownloadError, match="more than 100 entries"):
        unpack(tmp_path / "bomb", tmp_path / "out", LIMIT)


def test_a_file_that_jumps_over_more_than_there_is(tmp_path: Path):
    buffer = io.BytesIO(header("x", 1 << 62, tarfile.DIRTYPE) + bytes(2048))
    (tmp_path / "bomb").write_bytes(buffer.getvalue())
    (tmp_path / "out").mkdir()
    with pytest.raises(DownloadError):
        unpack(tmp_path / "bomb", tmp_path / "out", LIMIT)


# ---- answers


@pytest.mark.parametrize("made", [http1_transport.Http1Transport, aiohttp_transport.AiohttpTransport])
@pytest.mark.parametrize("how", ["stated", "not stated", "in pieces", "packed"])
def test_an_answer_cannot_fill_the_memory(
    made: Callable[[], Any], how: str, monkeypatch: pytest.MonkeyPatch
):
    for module in (http1_transport, aiohttp_transport):
        monkeypatch.setattr(module, "MOST_BYTES", 100_000)
    monkeypatch.setattr(http1_transport, "_MOST_UNPACKED", 100_000)
    body = bytes(200_000)
    head = b"HTTP/1.1 200 OK\r\n"
    answer = {
        "stated": head + b"content-length: 200000\r\n\r\n" + body,
        "not stated": head + b"connection: close\r\n\r\n" + body,
        "in pieces": head + b"transfer-encoding: chunked\r\n\r\n30d40\r\n" + body + b"\r\n0\r\n\r\n",
        "packed": head + b"content-encoding: gzip\r\nconnection: close\r\n\r\n" + gzip.compress(body),
    }[how]
    with pytest.raises(APIConnectionError):
        exchange(made(), answer, lambda port: Request("GET", f"http://127.0.0.1:{port}/", {}, None, 5, 5))


# ---- handles


def handle(**holder: Any) -> str:
    held = {"default_headers_overrides": {}, "client_config": {}, "client_dynamic_config": {}, **holder}
    state = {"session_id": "s-1", "sampling_session_id": "s-1:sample:0", "holder": held}
    return base64.urlsafe_b64encode(json.dumps(state).encode()).decode()


def test_a_handle_does_not_have_ones_key_sent_elsewhere(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-mine-and-nobody-elses")
    monkeypatch.setenv("TINKER_BASE_URL", "https://mine.example")
    for url in ("https://evil.example", "https://mine.example.evil.example", "http://mine.example",
                "https://mine.example:444", "https://mine.example@evil.example"):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match="pass api_key"):
            tinkex.SamplingClient.from_sampler_handle(handle(base_url=url))
    # For the server one uses, for this machine, and with a key that is meant for it, it is a sampler.
    for url, given in (
        ("https://mine.example/", None), ("http://127.0.0.1:1", None), ("http://localhost:1", None),
        ("https://other.example", "tml-meant-for-the-other"),
    ):  # fmt: skip
        made = tinkex.SamplingClient.from_sampler_handle(handle(base_url=url), api_key=given)
        assert made.sampling_session_id == "s-1:sample:0"


def test_a_handle_does_not_have_a_local_servers_key_sent_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    files = LocalFiles(tmp_path / "state")
    files.make()
    key = files.key()
    monkeypatch.setenv("TINKER_BASE_URL", "https://evil.example")  # even if it were one's own
    held = {"base_url": "https://evil.example", "local_state": str(tmp_path / "state")}
    made = tinkex.SamplingClient.from_sampler_handle(handle(**held))
    assert made.holder.connection.config.api_key is None
    here = tinkex.SamplingClient.from_sampler_handle(handle(**{**held, "base_url": "http://127.0.0.1:1"}))
    assert here.holder.connection.config.api_key == key


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:8787", True), ("http://127.5.5.5", True), ("http://[::1]:1", True),
        ("http://localhost", True), ("http://localhost.evil.example", False), ("http://10.0.0.1", False),
        ("http://127.0.0.1.evil.example", False), ("http://0x7f000001", False),
        ("http://[::ffff:10.0.0.1]", False),
    ],
)  # fmt: skip
def test_what_this_machine_is(url: str, here: bool):
    assert is_this_machine(url) is here
