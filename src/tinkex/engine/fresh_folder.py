"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from .durable import make_folders, sync, sync_all
from .kill_points import reach


class fresh_folder:  # noqa: N801
    """A context that writes a folder aside and puts it in place, whole and on disk, when it ends well."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.aside = folder.with_name(f".{folder.name}.{os.getpid()}.part")

    def __enter__(self) -> Path:
        shutil.rmtree(self.aside, ignore_errors=True)
        try:
            make_folders(self.folder.parent)
            self.aside.mkdir()
        except BaseException:
            shutil.rmtree(self.aside, ignore_errors=True)
            raise
        return self.aside

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is not None:
            shutil.rmtree(self.aside, ignore_errors=True)
            return
        old = self.folder.with_name(f".{self.folder.name}.{os.getpid()}.old")
        try:
            reach("folder: before it is synced")
            sync_all(self.aside)
            if self.folder.exists():
                self.folder.rename(old)
            reach("folder: before it is renamed")
            self.aside.rename(self.folder)
            reach("folder: after it is renamed")
            sync(self.folder.parent)
        except BaseException:
            if old.exists() and not self.folder.exists():
                old.rename(self.folder)
            shutil.rmtree(self.aside, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)
            raise
        shutil.rmtree(old, ignore_errors=True)
