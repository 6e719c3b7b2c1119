"""Other users of the machine: what they find of a local server, and folders that are theirs."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from tinkex.client.local_files import LocalFiles
from tinkex.server.keys import KeyRing
from tinkex.server.state_folder import StateFolder

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes and owners are POSIX's")


def test_the_files_of_a_local_server_are_its_users_alone(tmp_path: Path):
    old = os.umask(0)
    try:
        files = LocalFiles(tmp_path / "state")
        files.make()
        key = files.key()
        os.close(files.use(lambda: None))
    finally:
        os.umask(old)
    assert files.key() == key
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    for path in (tmp_path / "state").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path.name


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "state"
    folder.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="somebody else"):
        LocalFiles(folder).make()
    assert list(folder.iterdir()) == []


# ---- a state folder prepared by somebody else


def test_a_state_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "state"
    folder.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="somebody else"):
        StateFolder(folder)
    assert list(folder.iterdir()) == []


def test_a_link_for_a_lock_is_not_written_through(tmp_path: Path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "lock").symlink_to(victim)
    with pytest.raises(OSError, match="lock"):
        StateFolder(folder)
    (folder / "keys.lock").symlink_to(victim)
    with pytest.raises(OSError, match=r"keys\.lock"):
        KeyRing(folder / "keys.json").add("a", "ann")
    assert victim.read_text() == "precious"


def test_links_of_somebody_else_are_not_followed_by_the_superuser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").touch()
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "tmp").symlink_to(victim)
    theirs, real = folder.stat().st_uid + 1, os.lstat

    def lstat(path, *more, **named):
        found = list(real(path, *more, **named))
        return (
            os.stat_result([*found[:4], theirs, *found[5:]]) if str(path).endswith("/tmp") else real(path)
        )

    monkeypatch.setattr(os, "geteuid", lambda: 0 if theirs else theirs)
    monkeypatch.setattr(os, "lstat", lstat)
    with pytest.raises(PermissionError, match="somebody else"):
        StateFolder(folder)
    assert (victim / "precious").exists()


def test_ones_own_link_to_a_larger_disk_is_followed(tmp_path: Path):
    large, folder = tmp_path / "large", tmp_path / "state"
    large.mkdir()
    folder.mkdir()
    (folder / "checkpoints").symlink_to(large)
    with StateFolder(folder):
        assert (folder / "checkpoints").is_dir()


def test_temporary_files_are_made_where_nobody_can_guess_them():
    """No fixed place that others may write, no name that can be taken before: `tempfile`'s own makers."""
    source = Path(__file__).parents[2] / "src" / "tinkex"
    for path in source.rglob("*.py"):
        text = path.read_text()
        assert not re.search(r"""["'](/tmp|/var/tmp|/dev/shm)\b""", text), path.name
        for called in re.findall(r"tempfile\.(\w+)\(", text):
            assert called in {"mkstemp", "mkdtemp", "TemporaryDirectory", "TemporaryFile"}, path.name
