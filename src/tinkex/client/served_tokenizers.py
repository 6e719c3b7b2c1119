"""A tokenizer's files from the server that has the model, kept on disk by what is in them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from ..errors import DownloadError, NotFoundError
from ..net.caller import read_answer
from ..net.policy import Operation
from ..net.transport import Response
from ..wire.bodies import TOKENIZER_FILES, TokenizerFile, TokenizerFilesResponse
from ..wire.routes import Route, route
from .connection import Connection
from .portal import portal
from .rest_calls import sdk_headers

__all__ = ["LARGEST", "cache_folder", "fetch_tokenizer"]

LARGEST = 512 << 20
"""Bytes of all files together; what is larger is no tokenizer."""
_LOADABLE = {"tokenizer.json", "tokenizer.model", "vocab.json"}
_SECONDS = 20.0  # other servers may have odd answers to an unknown route: the hub is tried soon


def fetch_tokenizer(connection: Connection, model_name: str) -> str | None:
    """A folder with a model's tokenizer as the server has it; None if it hands out none.  Blocks."""
    return portal().run(_fetch(connection, model_name))


def cache_folder() -> Path:
    """Where files are kept: the platform's place for what can be fetched again."""
    if os.environ.get("TINKEX_CACHE"):
        return Path(os.environ["TINKEX_CACHE"]).expanduser() / "tokenizers"
    if sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches"
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "tinkex" / "tokenizers"


async def _fetch(connection: Connection, model_name: str) -> str | None:
    await connection.settings()
    where = {"model_name": model_name}
    try:
        response = await _ask(connection, route("list_tokenizer_files"), where)
    except NotFoundError:
        return None
    answer: TokenizerFilesResponse = read_answer(TokenizerFilesResponse, response)
    files = [each for each in answer.files if each.name in TOKENIZER_FILES]
    if not _LOADABLE & {each.name for each in files}:
        return None
    if sum(each.size_bytes for each in files) > LARGEST:
        raise DownloadError(f"the tokenizer of {model_name} has more than {LARGEST} bytes")
    folder = cache_folder() / _name(files)
    if await asyncio.to_thread(folder.is_dir):
        return str(folder)
    held: dict[str, bytes] = {}
    for each in files:
        got = await _ask(connection, route("get_tokenizer_file"), {**where, "file": each.name})
        if hashlib.sha256(got.body).hexdigest() != each.sha256:
            raise DownloadError(f"{each.name} of {model_name} is not what the server announced")
        held[each.name] = got.body
    return await asyncio.to_thread(_keep, folder, held)


async def _ask(connection: Connection, origin: Route, where: dict[str, str]) -> Response:
    async with connection.shared.rest.hold():
        return await connection.caller.call(
            origin,
            headers=sdk_headers("get_tokenizer"),
            path=where,
            operation=Operation(origin.name, seconds=_SECONDS),
        )


def _name(files: list[TokenizerFile]) -> str:
    """A folder's name: the same for the same files, whichever server and model they came from."""
    text = "\n".join(sorted(f"{each.name} {each.sha256}" for each in files))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def _keep(folder: Path, files: dict[str, bytes]) -> str:
    """Put files in place, whole or not at all; where there is no place, for this process alone."""
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".part-"))
    except OSError:
        return _write(Path(_own_folder()) / folder.name, files)
    _write(aside, files)
    try:
        aside.rename(folder)
    except OSError:  # another process was faster, with the same files
        shutil.rmtree(aside, ignore_errors=True)
    return str(folder)


_own: list[tempfile.TemporaryDirectory[str]] = []


def _own_folder() -> str:
    if not _own:
        _own.append(tempfile.TemporaryDirectory(prefix="tinkex-"))
    return _own[0].name


def _write(folder: Path, files: dict[str, bytes]) -> str:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return str(folder)
