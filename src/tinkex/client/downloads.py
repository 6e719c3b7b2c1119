"""Downloading a checkpoint: file by file where the server offers that, else as an archive."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urljoin

from ..errors import BadRequestError, DownloadError, InvalidArgumentError, NotFoundError
from ..net.caller import read_answer
from ..net.transport import Response
from ..types.checkpoint import ExternalWeightsUrlsResponse, ParsedCheckpointTinkerPath
from ..types.rules import shown
from ..wire.bodies import ArchiveUrlResponse
from ..wire.routes import Route, route
from .archives import OWN_PREFIX, SafeNames, unpack
from .connection import Connection
from .file_fetch import FileFetcher, SignedUrls, in_thread
from .rest_calls import sdk_headers
from .staging import Staging

__all__ = ["MOST_BYTES", "Download", "DownloadProgress", "DownloadedCheckpoint"]

T = TypeVar("T")

MOST_BYTES = 2**40  # a bound against servers gone mad, not against checkpoints
_ARCHIVE = f"{OWN_PREFIX}archive"
_ARCHIVE_LIFE = timedelta(minutes=15)  # when the server does not say
_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """How far a download is."""

    file: str
    file_bytes: int  # of this file, so far
    file_size: int | None  # None if the server does not say
    total_bytes: int  # of all files, so far
    files: int  # how many there are


@dataclass(frozen=True, slots=True)
class DownloadedCheckpoint:
    """A checkpoint on disk: its folder, and the size of each file in it."""

    tinker_path: str
    folder: Path
    files: dict[str, int]

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(self.files.values())


class Download:
    """One download; arguments are checked when it is made, everything else happens in `run`."""

    def __init__(
        self,
        connection: Connection,
        source: ParsedCheckpointTinkerPath,
        folder: str | os.PathLike[str],
        overwrite: bool = False,
        on_progress: Callable[[DownloadProgress], object] | None = None,
        max_bytes: int = MOST_BYTES,
    ) -> None:
        if not isinstance(max_bytes, int) or max_bytes < 1:
            raise InvalidArgumentError(f"max_bytes: expected a whole number from 1, got {shown(max_bytes)}")
        self._connection, self._source = connection, source
        self._where = {"training_run_id": source.training_run_id, "checkpoint_id": source.checkpoint_id}
        route("checkpoint_archive").url_path(**self._where)
        self._staging = Staging(folder, source.tinker_path, overwrite=overwrite)
        self._on_progress, self._most = on_progress, max_bytes
        self._telling = threading.Lock()
        self._so_far: dict[str, int] = {}
        self._count = 0

    async def run(self) -> DownloadedCheckpoint:
        """Fetch everything, check it, and put it in place."""
        connection = self._connection
        await connection.settings()
        config = connection.config
        fetcher = FileFetcher(
            connection.clock,
            lambda origin: connection._make(config.with_(base_url=origin)),
            self._most,
            config.retry_seconds,
            config.timeout,
            config.connect_timeout,
            self._tell,
        )
        try:
            files = await self._exported(fetcher)
        finally:
            await fetcher.close()
        return DownloadedCheckpoint(self._source.tinker_path, self._staging.destination, files)

    async def _ask(self, origin: Route, *, follow_redirects: bool = True) -> Response:
        connection = self._connection
        async with connection.shared.rest.hold():
            return await connection.caller.call(
                origin,
                headers=sdk_headers("download_checkpoint"),
                path=self._where,
                follow_redirects=follow_redirects,
            )

    # ---- one address a file, with a digest to check it by; some servers offer it for exports alone

    async def _exported(self, fetcher: FileFetcher) -> dict[str, int]:
        urls = SignedUrls(self._sign_files, self._connection.clock)
        external = self._source.checkpoint_type == "external"
        try:
            listed = await urls.names()
        except (NotFoundError, BadRequestError) as refused:
            if external and not isinstance(refused, NotFoundError):
                raise
            try:  # a server that knows the checkpoint but not this way to it
                return await self._archived(fetcher)
            except NotFoundError:
                if external:
                    raise refused from None
                raise
        if not listed:
            raise DownloadError(f"{self._source.tinker_path} has no files")
        safe = SafeNames()
        names = {name: safe.file(name) for name in listed}
        self._count = len(names)
        staging, width = self._staging, asyncio.Semaphore(_AT_ONCE)

        async def fetch(name: str) -> int:
            place = names[name]
            async with width:
                return await fetcher.fetch(
                    name, urls, staging.path(place), staging.mark(place), staging.save
                )

        try:
            await in_thread(staging.open)
            await in_thread(staging.keep, names.values())
            sizes = await _together([fetch(name) for name in listed])
            files = dict(sorted(zip((names[name] for name in listed), sizes, strict=True)))
            await in_thread(staging.finish, files)
        finally:
            staging.close()
        return files

    async def _sign_files(self) -> tuple[Mapping[str, str], datetime]:
        response = await self._ask(route("external_weights_urls"))
        answer: ExternalWeightsUrlsResponse = read_answer(ExternalWeightsUrlsResponse, response)
        return answer.urls, answer.expires

    # ---- an archive, where the server still has that route

    async def _archived(self, fetcher: FileFetcher) -> dict[str, int]:
        urls = SignedUrls(self._sign_archive, self._connection.clock)
        try:
            await urls.names()
        except NotFoundError as missing:
            missing.add_note(
                "If the checkpoint exists, this server gives it out only when exported: save it with "
                "save_weights_external() and download that path."
            )
            raise
        self._count = 1
        staging = self._staging
        try:
            await in_thread(staging.open)
            await in_thread(staging.keep, [_ARCHIVE])
            archive = staging.path(_ARCHIVE)
            await fetcher.fetch(_ARCHIVE, urls, archive, staging.mark(_ARCHIVE), staging.save)
            files = await in_thread(unpack, archive, staging.folder, self._most)
            await in_thread(staging.finish, files)
        finally:
            staging.close()
        return dict(sorted(files.items()))

    async def _sign_archive(self) -> tuple[Mapping[str, str], datetime]:
        origin = route("checkpoint_archive")
        response = await self._ask(origin, follow_redirects=False)
        location = response.headers.get("location")
        expires = response.headers.get("expires")
        if location is None:
            answer: ArchiveUrlResponse = read_answer(ArchiveUrlResponse, response)
            location, expires = answer.url, answer.expires
        base = self._connection.config.base_url + origin.url_path(**self._where)
        return {_ARCHIVE: urljoin(base, location)}, self._moment(expires)

    def _moment(self, text: str | None) -> datetime:
        """When an address expires: a date as HTTP or JSON writes it."""
        for read in (parsedate_to_datetime, datetime.fromisoformat):
            try:
                moment = read(text or "")
            except (ValueError, TypeError):
                continue
            if moment.tzinfo is not None:
                return moment
        return self._connection.clock.now() + _ARCHIVE_LIFE

    # ---- progress

    def _tell(self, name: str, position: int, size: int | None) -> None:
        """Called in worker threads; the user's function is called by one of them at a time."""
        if self._on_progress is None:
            return
        with self._telling:
            self._so_far[name] = position
            shown_name = "archive" if name == _ARCHIVE else name
            total = sum(self._so_far.values())
            self._on_progress(DownloadProgress(shown_name, position, size, total, self._count))


async def _together(works: list[Coroutine[Any, Any, T]]) -> list[T]:
    """All results; the first failure stops the rest and is raised as it is."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
