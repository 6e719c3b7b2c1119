"""Files behind signed addresses: whole, in ranges, as archives; nothing else can be reached."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinkex.server.file_pieces import Body, FilePieces, open_inside, tar_body
from tinkex.server.problems import Problem
from tinkex.server.signing import SignedUrls

from .rig import Got, Rig, served

FILES = {
    "adapter_config.json": b'{"r": 8}',
    "adapter_model.safetensors": bytes(range(256)) * 10,
    "deep/x y": b"z",
}
WHERE = "training_runs/s-1:train:0/checkpoints/external_weights/ck"


async def _urls(rig: Rig, key: str = "ann") -> dict[str, str]:
    got = await rig.get(f"{WHERE}/external_weights_urls", key=key)
    assert got.status == 200
    urls: dict[str, str] = got.json["urls"]
    return urls


# ---- files


@served
async def test_every_file_has_an_address_that_needs_no_key(rig: Rig):
    await rig.checkpoint(kind="external", files=FILES)
    got = await rig.get(f"{WHERE}/external_weights_urls", headers={"host": "evil.example"})
    assert got.json["expires"] == "2027-01-15T09:00:00Z"
    assert set(got.json["urls"]) == set(FILES)
    for name, url in got.json["urls"].items():
        assert url.startswith("http://127.0.0.1:8787/files/")
        assert url.endswith("/" + quote(name))
        file = await rig.fetch(url)
        assert (file.status, file.body) == (200, FILES[name])
        assert file.headers["content-length"] == str(len(FILES[name]))
        digest = base64.b64encode(hashlib.sha256(FILES[name]).digest()).decode()
        assert file.headers["repr-digest"] == f"sha-256=:{digest}:"
        assert file.headers["accept-ranges"] == "bytes"
        head = await rig.fetch(url, method="HEAD")
        same = {**file.headers, "x-request-id": head.headers["x-request-id"]}
        assert (head.status, head.body, head.headers) == (200, b"", same)


@served(public_url="https://tinker.example/prefix/")
async def test_addresses_are_those_of_the_public_url(rig: Rig):
    await rig.checkpoint(kind="external", files=FILES)
    url = (await _urls(rig))["adapter_config.json"]
    assert url.startswith("https://tinker.example/prefix/files/")
    assert (await rig.fetch(url)).body == FILES["adapter_config.json"]


@pytest.mark.parametrize(
    ("asked", "status", "first", "last"),
    [
        ("bytes=0-9", 206, 0, 9),
        ("bytes=100-", 206, 100, 2559),
        ("bytes=-5", 206, 2555, 2559),
        ("bytes=-9999", 206, 0, 2559),
        ("bytes=2559-9999", 206, 2559, 2559),
        ("bytes=2560-", 416, 0, 0),
        ("bytes=-0", 416, 0, 0),
        ("bytes=9-5", 200, 0, 0),
        ("bytes=0-1,5-6", 200, 0, 0),
        ("lines=0-1", 200, 0, 0),
        ("bytes=a-b", 200, 0, 0),
        ("", 200, 0, 0),
    ],
)
@served
async def test_ranges(rig: Rig, asked: str, status: int, first: int, last: int):
    whole = FILES["adapter_model.safetensors"]
    await rig.checkpoint(kind="external", files=FILES)
    url = (await _urls(rig))["adapter_model.safetensors"]
    got = await rig.fetch(url, headers={"range": asked})
    assert got.status == status
    if status == 206:
        assert got.body == whole[first : last + 1]
        assert got.headers["content-range"] == f"bytes {first}-{last}/{len(whole)}"
        assert int(got.headers["content-length"]) == len(got.body)
    elif status == 416:
        assert got.headers["content-range"] == f"bytes */{len(whole)}"
    else:
        assert got.body == whole


@served
async def test_a_range_of_a_file_that_is_another_now_is_the_whole_file(rig: Rig):
    row = await rig.checkpoint(kind="external", files=FILES)
    url = (await _urls(rig))["adapter_model.safetensors"]
    tag = (await rig.fetch(url)).headers["etag"]
    assert tag.startswith('"')
    same = await rig.fetch(url, headers={"range": "bytes=5-", "if-range": tag})
    assert same.status == 206
    assert (await rig.fetch(url, headers={"if-none-match": f'"x", {tag}'})).status == 304
    path = rig.state / row.folder / "adapter_model.safetensors"
    path.with_suffix(".new").write_bytes(b"other")
    path.with_suffix(".new").rename(path)
    other = await rig.fetch(url, headers={"range": "bytes=5-", "if-range": tag})
    assert (other.status, other.body) == (200, b"other")
    assert other.headers["etag"] != tag


@served
async def test_addresses_end(rig: Rig):
    await rig.checkpoint(kind="external", files=FILES)
    url = (await _urls(rig))["adapter_config.json"]
    await rig.clock.forward(3599)
    assert (await rig.fetch(url)).status == 200
    await rig.clock.forward(1)
    got = await rig.fetch(url)
    assert got.status == 410
    assert "expired" in got.detail


@served
async def test_the_files_of_a_deleted_checkpoint_are_gone(rig: Rig):
    await rig.checkpoint(kind="external", files=FILES)
    url = (await _urls(rig))["adapter_config.json"]
    await rig.ask("DELETE", WHERE)
    await rig.clock.forward(1)
    assert (await rig.fetch(url)).status == 410
    assert (await rig.get(f"{WHERE}/external_weights_urls")).status == 404


@served
async def test_who_gets_addresses(rig: Rig):
    await rig.checkpoint(kind="external", files=FILES)
    assert (await rig.get(f"{WHERE}/external_weights_urls", key="bob")).status == 404
    await rig.post(f"{WHERE}/publish")
    assert set(await _urls(rig, "bob")) == set(FILES)


@served
async def test_an_address_opens_its_own_file_alone(rig: Rig):
    await rig.checkpoint(kind="external", files=FILES)
    await rig.checkpoint("other", kind="external", files={"adapter_config.json": b"secret"})
    (rig.state / "keys").write_text("secret")
    url = (await _urls(rig))["adapter_config.json"]
    token = urlsplit(url).path.split("/")[2]
    when, where, mark = token.split(".")
    elsewhere = base64.urlsafe_b64encode(b"..").rstrip(b"=").decode()
    for path in (
        f"/files/{token}/adapter_model.safetensors",
        f"/files/{token}/../../../keys",
        f"/files/{token}/",
        f"/files/{token}",
        f"/files/{int(when, 16) + 1:x}.{where}.{mark}/adapter_config.json",
        f"/files/{when}.{elsewhere}.{mark}/keys",
        f"/files/{when}.{where}.{'B' if mark[0] == 'A' else 'A'}{mark[1:]}/adapter_config.json",
        f"/files/{when}.{where}./adapter_config.json",
        "/files/x/adapter_config.json",
        "/files/é.é.é/adapter_config.json",
        "/files/",
        "/files",
    ):
        got: Got = await rig.ask("GET", path, key=None)
        assert got.status in (403, 404), path
        assert b"secret" not in got.body
    assert (await rig.ask("POST", urlsplit(url).path, {}, key=None)).status == 404


# ---- archives


@served
async def test_an_archive_for_sdks_that_ask_for_one(rig: Rig):
    await rig.checkpoint(kind="external", files=FILES)
    got = await rig.get(f"{WHERE}/archive", headers={"accept": "application/gzip"})
    assert got.status == 302
    assert got.headers["expires"] == "Fri, 15 Jan 2027 09:00:00 GMT"
    url = got.headers["location"]
    assert got.json == {"url": url, "expires": "2027-01-15T09:00:00+00:00"}
    archive = await rig.fetch(url)
    assert archive.status == 200
    assert int(archive.headers["content-length"]) == len(archive.body)
    with tarfile.open(fileobj=io.BytesIO(archive.body), mode="r:*") as tar:
        found = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
        assert all(member.isreg() for member in tar.getmembers())
    assert found == {**FILES, "checkpoint_complete": b""}
    tag = archive.headers["etag"]
    rest = await rig.fetch(url, headers={"range": "bytes=700-", "if-range": tag})
    assert (rest.status, rest.body) == (206, archive.body[700:])


@served
async def test_links_are_no_files(rig: Rig):
    row = await rig.checkpoint(kind="external", files=FILES)
    secret = rig.state / "secret"
    secret.write_text("secret")
    (rig.state / row.folder / "link").symlink_to(secret)
    (rig.state / row.folder / "loop").symlink_to(rig.state)
    os.mkfifo(rig.state / row.folder / "pipe")
    assert set(await _urls(rig)) == set(FILES)
    for name in ("link", "loop/secret", "pipe", "deep"):
        url, _ = rig.service.downloads.sign(row.folder, name)
        assert (await rig.fetch(url)).status == 410


# ---- pieces


def test_a_secret_is_made_once_and_is_its_owners_alone(tmp_path: Path):
    now = [100.0]
    signer = SignedUrls(tmp_path, "http://x", 60, lambda: now[0])
    url, expires = signer.sign("folder", "a/b c")
    assert expires == 160
    token = url.split("/")[4]
    assert SignedUrls(tmp_path, "http://y", 60, lambda: now[0]).folder_of(token, "a/b c") == "folder"
    path = tmp_path / "download-secret"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes().hex() not in repr(signer)
    path.write_bytes(b"short")
    other = SignedUrls(tmp_path, "http://x", 60, lambda: now[0])
    with pytest.raises(Problem) as refused:
        other.folder_of(token, "a/b c")
    assert refused.value.status == 403
    assert len(path.read_bytes()) == 32


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_part_of_a_body_is_that_part(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory):
    import asyncio

    folder = tmp_path_factory.mktemp("files")
    names = data.draw(st.lists(st.sampled_from("abcdé").map("folder/{}".format), unique=True, max_size=3))
    content = {name: data.draw(st.binary(max_size=1500)) for name in names}
    for name, each in content.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(each)
    body = tar_body([*((name, open_inside(folder, name)) for name in names), ("last", None)])
    first = data.draw(st.integers(0, body.size - 1))
    last = data.draw(st.integers(first, body.size - 1))

    async def read(begin: int, end: int) -> bytes:
        return b"".join([piece async for piece in FilePieces(Body(body.parts), begin, end)])

    async def both() -> tuple[bytes, bytes]:
        part = FilePieces(body, first, last)
        some = b""
        while len(some) < last - first + 1:
            some += await part.__anext__()
        return some, await read(0, body.size - 1)

    some, whole = asyncio.run(both())
    assert len(whole) == body.size
    assert some == whole[first : last + 1]
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        assert {m.name: tar.extractfile(m).read() for m in tar} == {**content, "last": b""}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/../b", "/etc/passwd", "a//b", "a\0b", "no", "folder", "a\\b"]
)
def test_names_that_open_nothing(tmp_path: Path, name: str):
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotFoundError):
        open_inside(tmp_path, name)


def test_a_file_that_grows_shorter_breaks_the_answer_off(tmp_path: Path):
    import asyncio

    (tmp_path / "a").write_bytes(b"12345")
    file = open_inside(tmp_path, "a")
    pieces = FilePieces(Body(((file, 10),)), 0, 9)
    with pytest.raises(EOFError):
        asyncio.run(pieces.__anext__())  # type: ignore[arg-type]
    asyncio.run(pieces.aclose())
    assert file.closed


@served
async def test_a_file_is_not_read_on_for_a_client_that_has_left(rig: Rig):
    await rig.checkpoint(kind="external", files={"large": bytes(8 << 20)})
    url = (await _urls(rig))["large"]
    sent = []
    inbox = [{"type": "http.disconnect"}, {"type": "http.request", "body": b""}]

    async def receive() -> Any:
        return inbox.pop()

    async def send(message: Any) -> None:
        sent.append(len(message.get("body", b"")))

    scope = {
        "type": "http",
        "method": "GET",
        "path": urlsplit(url).path,
        "query_string": b"",
        "headers": [],
    }
    await rig.app(scope, receive, send)
    assert sum(sent) < 8 << 20
