"""Other users of the machine: what they find of a local server, and folders that are theirs."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from tinkex.client.local_files import LocalFiles

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


def test_temporary_files_are_made_where_nobody_can_guess_them():
    """No fixed place that others may write, no name that can be taken before: `tempfile`'s own makers."""
    source = Path(__file__).parents[2] / "src" / "tinkex"
    for path in source.rglob("*.py"):
        text = path.read_text()
        assert not re.search(r"""["'](/tmp|/var/tmp|/dev/shm)\b""", text), path.name
        for called in re.findall(r"tempfile\.(\w+)\(", text):
            assert called in {"mkstemp", "mkdtemp", "TemporaryDirectory", "TemporaryFile"}, path.name
