"""Checkpoint downloads: resumed where they broke off, checked, and in place only when whole."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.client.rig import WAIT, Rig, eventually
from tests.client.store import BIG, FILES, MEGABYTE, PATH, TRAINING, Store, cut_once, on_disk
from tinkex.client.downloads import DownloadProgress
from tinkex.client.portal import portal
from tinkex.client.rest import RestClient
from tinkex.errors import APIConnectionError, DownloadError, InternalServerError, PermissionDeniedError
from tinkex.testing import FakeRequest, FakeResponse, FakeServer, FakeService
from tinkex.testing.downloads import files_of
from tinkex.testing.exchange import json_response

# ---- all goes well


@pytest.mark.parametrize("form", ["sync", "async"])
def test_a_checkpoint_arrives_whole(tmp_path: Path, form: str) -> None:
    store, folder = Store(), tmp_path / "new" / "ex"
    if form == "sync":
        done = store.get(folder)
    else:
        done = asyncio.run(store.rest.download_checkpoint_async(PATH, str(folder)))
    assert on_disk(folder) == FILES
    assert (done.tinker_path, done.folder) == (PATH, folder)
    assert dict(done.files) == {name: len(data) for name, data in FILES.items()}
    assert done.size_bytes == sum(map(len, FILES.values()))
    assert os.listdir(folder.parent) == ["ex"]
    assert store.signatures == 1
    for request in store.asked:
        assert not {name for name in request.headers if name.startswith(("x-", "authorization"))}
        assert request.headers["accept-encoding"] == "identity"


def test_other_checkpoints_come_file_by_file_where_the_server_offers_that(tmp_path: Path) -> None:
    store = Store()
    store.signs_all = True
    store.archive = b"not asked for"
    digest = base64.b64encode(hashlib.sha256(FILES["adapter_config.json"]).digest()).decode()
    store.digests["adapter_config.json"] = f"repr-digest: sha-256=:{digest}:"
    store.get(tmp_path / "ck", TRAINING)
    assert on_disk(tmp_path / "ck") == FILES
    assert store.requests_for("archive") == []
    store.digests["adapter_config.json"] = "repr-digest: sha-256=:" + "A" * 43 + "=:"
    with pytest.raises(DownloadError):
        store.get(tmp_path / "other", TRAINING)


def test_it_works_over_http(tmp_path: Path) -> None:
    service = FakeService()
    rig = Rig()
    rig.service = service
    trainer = rig.trainer()
    exported = trainer.save_weights_external("ex").result(WAIT).path
    trained = trainer.save_state("ck").result(WAIT).path
    with FakeServer(service) as server:
        rest = RestClient(base_url=server.base_url, api_key="tml-test")
        rest.download_checkpoint(exported, tmp_path / "ex").result(WAIT)
        rest.download_checkpoint(trained, tmp_path / "ck").result(WAIT)
    assert on_disk(tmp_path / "ex") == files_of(service.world.checkpoints[exported])
    assert on_disk(tmp_path / "ck") == files_of(service.world.checkpoints[trained])


def test_progress_is_told_outside_the_loop(tmp_path: Path) -> None:
    store = Store()
    told: list[DownloadProgress] = []
    threads = set()

    def tell(progress: DownloadProgress) -> None:
        told.append(progress)
        threads.add(threading.current_thread())

    store.spoil = lambda name, _, answer: FakeResponse(
        200,
        answer.headers,
        chunks=[answer.body[at : at + 70_000] for at in range(0, len(answer.body), 70_000)],
    )
    store.get(tmp_path / "ex", on_progress=tell)
    assert portal()._thread not in threads
    sizes = [progress.file_bytes for progress in told if progress.file == BIG]
    assert sizes == sorted(sizes)
    assert len(sizes) >= 3
    assert sizes[-1] == len(FILES[BIG])
    assert {progress.file_size for progress in told if progress.file == BIG} == {len(FILES[BIG])}
    assert told[-1].files == 3
    assert max(progress.total_bytes for progress in told) == sum(map(len, FILES.values()))


def test_an_error_in_the_progress_function_stops_the_download(tmp_path: Path) -> None:
    store = Store()

    def tell(progress: DownloadProgress) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        store.get(tmp_path / "ex", on_progress=tell)
    assert not (tmp_path / "ex").exists()
    store.get(tmp_path / "ex")
    assert on_disk(tmp_path / "ex") == FILES


# ---- resuming


@pytest.mark.parametrize("at", [0, 1, 1000, MEGABYTE, MEGABYTE + 1, 3_000_000])
def test_a_broken_transfer_goes_on_where_it_stopped(tmp_path: Path, at: int) -> None:
    store = Store()
    store.spoil = cut_once(BIG, at)
    store.get(tmp_path / "ex")
    assert on_disk(tmp_path / "ex") == FILES
    first, second = store.requests_for(BIG)
    assert "range" not in first.headers
    assert second.headers.get("range") == (f"bytes={at}-" if at else None)


def test_a_later_call_goes_on_with_what_is_there(tmp_path: Path) -> None:
    store = Store(retry_seconds=0.0)
    store.spoil = cut_once(BIG, 2_000_000)
    with pytest.raises(APIConnectionError):
        store.get(tmp_path / "ex")
    assert not (tmp_path / "ex").exists()
    assert (tmp_path / "ex.part" / BIG).stat().st_size == 2_000_000
    store.asked.clear()
    store.get(tmp_path / "ex")
    assert on_disk(tmp_path / "ex") == FILES
    assert os.listdir(tmp_path) == ["ex"]
    (again,) = store.requests_for(BIG)
    assert again.headers["range"] == "bytes=2000000-"
    (whole,) = store.requests_for("adapter_config.json")
    # A file that was whole is asked for its last byte, to see that it is still the same file.
    assert whole.headers.get("range") in (f"bytes={len(FILES['adapter_config.json']) - 1}-", None)


def test_a_file_that_changed_meanwhile_is_fetched_anew(tmp_path: Path) -> None:
    store = Store(retry_seconds=0.0)
    store.spoil = cut_once(BIG, 2_000_000)
    with pytest.raises(APIConnectionError):
        store.get(tmp_path / "ex")
    store.files[BIG] = b"other" * 300_000
    store.get(tmp_path / "ex")
    assert on_disk(tmp_path / "ex") == store.files


def test_a_store_without_ranges_sends_it_all_again(tmp_path: Path) -> None:
    store = Store()
    store.ranges = False
    store.spoil = cut_once(BIG, 2_000_000)
    store.get(tmp_path / "ex")
    assert on_disk(tmp_path / "ex") == FILES


def test_a_store_without_tags_is_not_resumed(tmp_path: Path) -> None:
    store = Store()
    cut = cut_once(BIG, 2_000_000)

    def spoil(name: str, request: FakeRequest, answer: FakeResponse) -> FakeResponse:
        answer = cut(name, request, answer) or answer
        headers = {key: value for key, value in answer.headers.items() if key != "etag"}
        return FakeResponse(answer.status, headers, answer.body, cut=answer.cut)

    store.spoil = spoil
    store.get(tmp_path / "ex")
    assert on_disk(tmp_path / "ex") == FILES
    assert ["range" in request.headers for request in store.requests_for(BIG)] == [False, False]


def test_a_file_that_shrank_is_fetched_anew(tmp_path: Path) -> None:
    store = Store(retry_seconds=0.0)
    store.spoil = cut_once(BIG, 2_000_000)
    with pytest.raises(APIConnectionError):
        store.get(tmp_path / "ex")
    part = tmp_path / "ex.part" / BIG
    part.write_bytes(b"x" * (len(FILES[BIG]) + 1))
    store.get(tmp_path / "ex")
    assert on_disk(tmp_path / "ex") == FILES


@pytest.mark.parametrize("range_", ["bytes 5-9/10", "bytes */10", "nonsense", ""])
def test_a_wrong_range_is_not_pasted_in(tmp_path: Path, range_: str) -> None:
    store = Store()
    cut = cut_once(BIG, 2_000_000)

    def spoil(name: str, request: FakeRequest, answer: FakeResponse) -> FakeResponse | None:
        if "range" in request.headers:
            return FakeResponse(206, {"content-range": range_}, b"wrong")
        return cut(name, request, answer)

    store.spoil = spoil
    store.get(tmp_path / "ex")
    assert on_disk(tmp_path / "ex") == FILES


def test_another_checkpoint_into_the_same_folder_starts_anew(tmp_path: Path) -> None:
    store = Store(retry_seconds=0.0)
    store.spoil = cut_once(BIG, 2_000_000)
    with pytest.raises(APIConnectionError):
        store.get(tmp_path / "ex")
    store.asked.clear()
    store.get(tmp_path / "ex", "tinker://run/external_weights/other")
    assert on_disk(tmp_path / "ex") == FILES
    assert not [request for request in store.asked if "range" in request.headers]


def test_files_no_longer_in_the_checkpoint_are_left_out(tmp_path: Path) -> None:
    store = Store({"old/a": b"1", "z": b"2"}, retry_seconds=0.0)
    store.spoil = lambda name, *_: FakeResponse(500, {}, b"no") if name == "z" else None
    with pytest.raises(InternalServerError):
        store.get(tmp_path / "ex")
    store.files, store.spoil = {"b": b"3"}, lambda *_: None
    store.get(tmp_path / "ex")
    assert on_disk(tmp_path / "ex") == {"b": b"3"}
    assert os.listdir(tmp_path / "ex") == ["b"]


@pytest.mark.parametrize("how", ["cancel", "await"])
def test_a_cancelled_download_can_be_taken_up_again(how: str, tmp_path: Path) -> None:
    store = Store()
    before = set(portal()._tasks)
    reached, go_on = threading.Event(), threading.Event()

    def tell(progress: DownloadProgress) -> None:
        if progress.file == BIG:
            reached.set()
            go_on.wait(WAIT)

    pieces = [FILES[BIG][at : at + MEGABYTE] for at in range(0, len(FILES[BIG]), MEGABYTE)]
    store.spoil = lambda name, _, answer: (
        FakeResponse(200, answer.headers, chunks=pieces) if name == BIG else None
    )

    async def give_up() -> None:
        awaiting = asyncio.ensure_future(
            store.rest.download_checkpoint_async(PATH, tmp_path / "ex", on_progress=tell)
        )
        assert await asyncio.to_thread(reached.wait, WAIT)
        awaiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await awaiting

    if how == "await":
        asyncio.run(give_up())
    else:
        future = store.rest.download_checkpoint(PATH, tmp_path / "ex", on_progress=tell)
        assert reached.wait(WAIT)
        with pytest.raises(DownloadError, match="another download"):
            store.get(tmp_path / "ex")
        assert future.cancel()
    go_on.set()
    assert eventually(lambda: portal()._tasks <= before)
    assert (tmp_path / "ex.part" / BIG).stat().st_size == MEGABYTE
    store.asked.clear()
    store.spoil = lambda *_: None
    store.get(tmp_path / "ex")
    assert on_disk(tmp_path / "ex") == FILES
    assert store.requests_for(BIG)[0].headers["range"] == f"bytes={MEGABYTE}-"


# ---- addresses


def test_addresses_are_renewed_before_they_expire(tmp_path: Path) -> None:
    store = Store({f"file-{number}": b"x" * 10 for number in range(12)})

    def spoil(name: str, request: FakeRequest, answer: FakeResponse) -> FakeResponse:
        return FakeResponse(answer.status, answer.headers, answer.body, delay=50.0)

    store.spoil = spoil
    store.life = timedelta(seconds=100)
    store.get(tmp_path / "ex")
    assert on_disk(tmp_path / "ex") == store.files
    used = [int(request.query["signature"]) for request in store.asked]
    assert used == sorted(used)
    # How many fit into one life depends on how the four fetches fall; never one for each file.
    assert 1 < store.signatures < len(store.files) / 2
    assert not [request for request in store.asked if request.headers.get("range")]


def test_an_address_that_is_refused_is_renewed(tmp_path: Path) -> None:
    store = Store()
    store.spoil = lambda name, request, _: (
        FakeResponse(403, {}, b"<Error>expired</Error>") if request.query["signature"] == "1" else None
    )
    store.get(tmp_path / "ex")
    assert on_disk(tmp_path / "ex") == FILES
    assert store.signatures == 2


def test_a_store_that_refuses_for_good_is_told(tmp_path: Path) -> None:
    store = Store()
    store.spoil = lambda *_: FakeResponse(403, {}, b"<Error>no</Error>")
    with pytest.raises(PermissionDeniedError) as caught:
        store.get(tmp_path / "ex")
    assert "signature" not in caught.value.request.url
    assert 1 < store.signatures <= 16


def test_a_store_that_is_down_is_tried_again(tmp_path: Path) -> None:
    store = Store()
    down = [3]

    def spoil(*_: Any) -> FakeResponse | None:
        down[0] -= 1
        return FakeResponse(503, {"retry-after": "7"}, b"later") if down[0] >= 0 else None

    store.spoil = spoil
    store.get(tmp_path / "ex")
    assert on_disk(tmp_path / "ex") == FILES
    assert [seconds for seconds in store.clock.sleeps if seconds >= 7]


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/y", "/relative", "http://", ""])
def test_only_http_addresses_are_followed(tmp_path: Path, url: str) -> None:
    store = Store()
    answer = json_response({"urls": {"a": url}, "expires": store.expires()})
    store.sign = lambda: answer  # type: ignore[method-assign]
    with pytest.raises(DownloadError, match="not http"):
        store.get(tmp_path / "ex")


# ---- what is checked


def sha(data: bytes) -> str:
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


DIGESTS = ["repr-digest: sha-256=:{}:", "digest: SHA-256={}", "x-amz-checksum-sha256: {}",
           "repr-digest: sha-512=:AAAA:, sha-256=:{}:"]  # fmt: skip


@pytest.mark.parametrize("form", DIGESTS)
def test_a_checksum_is_verified_where_the_server_tells_it(tmp_path: Path, form: str) -> None:
    store = Store()
    store.digests[BIG] = form.format(sha(FILES[BIG]))
    store.get(tmp_path / "good")
    store.digests[BIG] = form.format(sha(b"something else"))
    with pytest.raises(DownloadError, match="SHA-256"):
        store.get(tmp_path / "bad")
    assert not (tmp_path / "bad").exists()
    assert not (tmp_path / "bad.part" / BIG).exists()
    assert on_disk(tmp_path / "good") == FILES


def test_a_resumed_file_that_does_not_fit_together_is_fetched_anew(tmp_path: Path) -> None:
    store = Store(retry_seconds=0.0)
    store.digests[BIG] = f"repr-digest: sha-256=:{sha(FILES[BIG])}:"
    store.spoil = cut_once(BIG, 2_000_000)
    with pytest.raises(APIConnectionError):
        store.get(tmp_path / "ex")
    part = tmp_path / "ex.part" / BIG
    part.write_bytes(b"?" * 2_000_000)
    with pytest.raises(APIConnectionError, match="fetched anew"):
        store.get(tmp_path / "ex")
    store.get(tmp_path / "ex")
    assert on_disk(tmp_path / "ex") == FILES


@pytest.mark.parametrize(
    "digest", ["repr-digest: sha-256=:AAAA:", "digest: md5=AAAA", "x-amz-checksum-sha256: ?"]
)
def test_a_checksum_that_cannot_be_read_is_no_checksum(tmp_path: Path, digest: str) -> None:
    store = Store()
    store.digests[BIG] = digest
    store.get(tmp_path / "ex")
    assert on_disk(tmp_path / "ex") == FILES


def test_more_bytes_than_announced_are_refused(tmp_path: Path) -> None:
    store = Store()
    store.spoil = lambda name, _, answer: (
        FakeResponse(200, {**answer.headers, "content-length": "5"}, answer.body) if name == BIG else None
    )
    with pytest.raises(DownloadError, match="longer than the 5 bytes"):
        store.get(tmp_path / "ex")
    assert not (tmp_path / "ex").exists()


def test_fewer_bytes_than_announced_are_asked_for_again(tmp_path: Path) -> None:
    store = Store()
    short = [1]

    def spoil(name: str, _: FakeRequest, answer: FakeResponse) -> FakeResponse | None:
        if name == BIG and short:
            short.pop()
            return FakeResponse(200, answer.headers, answer.body[:999])
        return None

    store.spoil = spoil
    store.get(tmp_path / "ex")
    assert on_disk(tmp_path / "ex") == FILES
    assert store.requests_for(BIG)[1].headers["range"] == "bytes=999-"


@pytest.mark.parametrize("announced", [True, False])
def test_sizes_are_bounded(tmp_path: Path, announced: bool) -> None:
    store = Store()
    if not announced:
        store.spoil = lambda name, _, answer: FakeResponse(
            200, {"transfer-encoding": "chunked"}, chunks=[answer.body[:MEGABYTE], answer.body[MEGABYTE:]]
        )
    with pytest.raises(DownloadError, match="max_bytes"):
        store.get(tmp_path / "ex", max_bytes=2_000_000)
    assert not (tmp_path / "ex").exists()
    part = tmp_path / "ex.part" / BIG
    assert not part.exists() or part.stat().st_size <= 2_000_000
    store.get(tmp_path / "ex", max_bytes=4_000_000)
    assert on_disk(tmp_path / "ex") == FILES


def test_a_silent_store_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    store = Store(timeout=0.2)
    silent = [1]

    async def stall() -> Any:
        yield FILES[BIG][:5000]
        await asyncio.Event().wait()

    def spoil(name: str, _: FakeRequest, answer: FakeResponse) -> FakeResponse | None:
        if name == BIG and silent:
            silent.pop()
            return FakeResponse(200, answer.headers, chunks=stall())
        return None

    store.spoil = spoil
    store.get(tmp_path / "ex")
    assert on_disk(tmp_path / "ex") == FILES
    assert store.requests_for(BIG)[1].headers["range"] == "bytes=5000-"


def test_a_checkpoint_without_files_is_an_error(tmp_path: Path) -> None:
    store = Store()
    answer = json_response({"urls": {}, "expires": store.expires()})
    store.sign = lambda: answer  # type: ignore[method-assign]
    with pytest.raises(DownloadError, match="no files"):
        store.get(tmp_path / "ex")


def test_the_notes_of_an_unfinished_download_hold_no_address(tmp_path: Path) -> None:
    store = Store(retry_seconds=0.0)
    store.spoil = cut_once(BIG, 2_000_000)
    with pytest.raises(APIConnectionError):
        store.get(tmp_path / "ex")
    notes = (tmp_path / "ex.part" / ".tinkex-download.json").read_text()
    assert "signature" not in notes
    assert json.loads(notes)["source"] == PATH
