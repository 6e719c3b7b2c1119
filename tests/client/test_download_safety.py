"""What a download refuses: names that escape, links, archives that lie, folders in use."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.store import FILES, MEGABYTE, TRAINING, Store, cut_once, on_disk
from tinkex.client.archives import SafeNames, unpack
from tinkex.client.downloads import DownloadProgress
from tinkex.errors import DownloadError, InvalidArgumentError, NotFoundError

# ---- names

UNSAFE = [
    "/etc/passwd", "../x", "a/../../x", "a/..", "..", ".", "", "a//b", "a/", "C:\\x", "C:x",
    "\\\\host\\share", "a\\b", "a\0b", "a\nb", ".tinkex-lock", "./.tinkex-download.json", "x" * 2000,
]  # fmt: skip


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_names_are_refused_before_anything_is_fetched(tmp_path: Path, name: str) -> None:
    store = Store({"fine": b"1", name: b"2"})
    with pytest.raises(DownloadError, match="unsafe file name"):
        store.get(tmp_path / "ex")
    assert store.asked == []
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "names",
    [
        ["a", "./a"],
        ["a", "A"],
        ["a", "a/b"],
        ["a/b", "a"],
        ["é", "e\N{COMBINING ACUTE ACCENT}"],
        ["A/x", "a"],
    ],
)
def test_two_files_in_one_place_are_refused(tmp_path: Path, names: list[str]) -> None:
    store = Store(dict.fromkeys(names, b"1"))
    with pytest.raises(DownloadError, match="two files"):
        store.get(tmp_path / "ex")
    assert os.listdir(tmp_path) == []


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("ab./\\:~ \0-"), max_size=12))
def test_an_accepted_name_stays_in_its_folder(name: str) -> None:
    try:
        accepted = SafeNames().file(name)
    except DownloadError:
        return
    folder = Path("/base/folder")
    place = Path(os.path.normpath(folder / accepted))
    assert place != folder
    assert place.is_relative_to(folder)
    assert os.path.normpath(accepted) == accepted


# ---- the folder


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    store, folder = Store(), tmp_path / "ex"
    folder.mkdir()
    (folder / "mine").write_text("keep")
    with pytest.raises(InvalidArgumentError, match="not empty"):
        store.get(folder)
    assert store.service.calls == []
    (folder / "adapter_config.json").write_text("old")
    store.get(folder, overwrite=True)
    assert on_disk(folder) == {**FILES, "mine": b"keep"}
    assert os.listdir(tmp_path) == ["ex"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    store = Store()
    store.get(tmp_path / "ex")
    (tmp_path / "empty").mkdir()
    store.get(tmp_path / "empty")
    assert on_disk(tmp_path / "empty") == FILES


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "ex").write_text("a file")
    with pytest.raises(InvalidArgumentError, match="not a folder"):
        Store().get(tmp_path / "ex")
    with pytest.raises(InvalidArgumentError, match="folder"):
        Store().get(Path("/"))


def test_links_are_not_written_through(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "ex"
    (outside / "er").mkdir(parents=True)
    folder.mkdir()
    (folder / "deep").symlink_to(outside)
    (folder / "checkpoint_complete").symlink_to(outside / "target")
    with pytest.raises(DownloadError, match="is a link"):
        Store().get(folder, overwrite=True)
    assert on_disk(outside) == {}
    (folder / "deep").unlink()
    Store().get(folder, overwrite=True)
    assert on_disk(folder) == FILES
    assert on_disk(outside) == {}


def test_a_part_folder_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    part = tmp_path / "ex.part"
    part.mkdir()
    (part / "mine").write_text("keep")
    with pytest.raises(DownloadError, match="not made by a download"):
        Store().get(tmp_path / "ex")
    assert on_disk(part) == {"mine": b"keep"}
    (part / "mine").unlink()
    part.rmdir()
    part.symlink_to(tmp_path)
    with pytest.raises(DownloadError, match="is a link"):
        Store().get(tmp_path / "ex")


@pytest.mark.parametrize("most", [0, -1, "9", 1.5])
def test_bad_limits_are_refused(tmp_path: Path, most: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="max_bytes"):
        Store().get(tmp_path / "ex", max_bytes=most)
    with pytest.raises(InvalidArgumentError, match="Invalid tinker path"):
        Store().get(tmp_path / "ex", "run/external_weights/ex")


# ---- archives


def tar(members: dict[str, bytes], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
@pytest.mark.parametrize("answer", ["redirect", "json"])
def test_other_checkpoints_come_as_an_archive(tmp_path: Path, mode: str, answer: str) -> None:
    store = Store()
    store.archive, store.archive_as = tar({f"./{name}": data for name, data in FILES.items()}, mode), answer
    told: list[DownloadProgress] = []
    done = store.get(tmp_path / "ck", TRAINING, on_progress=told.append)
    assert on_disk(tmp_path / "ck") == FILES
    assert dict(done.files) == {name: len(data) for name, data in FILES.items()}
    assert os.listdir(tmp_path) == ["ck"]
    assert {progress.file for progress in told} == {"archive"}
    (request,) = store.asked
    assert "x-api-key" not in request.headers


def test_an_archive_is_resumed_too(tmp_path: Path) -> None:
    store = Store()
    store.archive = tar(FILES)
    store.spoil = cut_once("archive", 1_234_567)
    store.get(tmp_path / "ck", TRAINING)
    assert on_disk(tmp_path / "ck") == FILES
    assert store.requests_for("archive")[1].headers["range"] == "bytes=1234567-"


def test_an_old_server_gives_exported_checkpoints_as_an_archive(tmp_path: Path) -> None:
    store = Store(files={})
    store.archive = tar(FILES)
    store.get(tmp_path / "ex")
    assert on_disk(tmp_path / "ex") == FILES


def test_a_checkpoint_that_is_nowhere_is_not_found(tmp_path: Path) -> None:
    store = Store(files={})
    with pytest.raises(NotFoundError):
        store.get(tmp_path / "ex")
    with pytest.raises(NotFoundError) as caught:
        store.get(tmp_path / "ck", TRAINING)
    assert "save_weights_external" in caught.value.__notes__[0]
    assert os.listdir(tmp_path) == []


def special(kind: bytes, name: str = "x", target: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        archive.addfile(info)
    return buffer.getvalue()


def twice() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for data in (b"1", b"2"):
            info = tarfile.TarInfo("same")
            info.size = 1
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


HOSTILE = {
    "absolute": (tar({"/etc/evil": b"x"}), "unsafe"),
    "escaping": (tar({"a/../../evil": b"x"}), "unsafe"),
    "symlink": (special(tarfile.SYMTYPE, target="/etc"), "link or device"),
    "hard link": (special(tarfile.LNKTYPE, target="/etc/passwd"), "link or device"),
    "device": (special(tarfile.CHRTYPE), "link or device"),
    "pipe": (special(tarfile.FIFOTYPE), "link or device"),
    "escaping folder": (special(tarfile.DIRTYPE, "../evil"), "unsafe"),
    "twice": (twice(), "two files"),
    "large": (tar({"a": bytes(3 * MEGABYTE)}, "w:gz"), "more than"),
    "truncated": (tar({"a": bytes(100_000)})[:50_000], "damaged|ends within"),
    "truncated gzip": (tar({"a": os.urandom(100_000)}, "w:gz")[:50_000], "damaged|ends within"),
    "no archive": (b"<html>not found</html>" * 100, "damaged"),
    "empty": (tar({}), "empty"),
}


@pytest.mark.parametrize("case", sorted(HOSTILE))
def test_hostile_archives_are_refused(tmp_path: Path, case: str) -> None:
    content, text = HOSTILE[case]
    store = Store()
    store.archive = content
    with pytest.raises(DownloadError, match=text):
        store.get(tmp_path / "sub" / "ck", TRAINING, max_bytes=2 * MEGABYTE)
    assert not (tmp_path / "sub" / "ck").exists()
    assert os.listdir(tmp_path) == ["sub"]
    assert list(tmp_path.rglob("*evil*")) == []
    store.archive = tar({"fine": b"1"})
    store.get(tmp_path / "sub" / "ck", TRAINING)
    assert on_disk(tmp_path / "sub" / "ck") == {"fine": b"1"}


def test_permissions_in_an_archive_are_ignored(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo("tool")
        info.mode, info.size = 0o4777, 1
        archive.addfile(info, io.BytesIO(b"x"))
    (tmp_path / "a.tar").write_bytes(buffer.getvalue())
    (tmp_path / "out").mkdir()
    assert unpack(tmp_path / "a.tar", tmp_path / "out", 10) == {"tool": 1}
    assert (tmp_path / "out" / "tool").stat().st_mode & 0o7111 == 0
