"""Answers about where a checkpoint can be downloaded: as an archive, or file by file."""

from __future__ import annotations

import asyncio

from ..types import ExternalWeightsUrlsResponse
from ..wire.bodies import ArchiveUrlResponse
from ..wire.jsonbody import encode
from .asks import JSON_TYPE, Answer, Ask, Reply, answers
from .checkpoint_files import files_in
from .dates import http_date, moment
from .downloads import ARCHIVE
from .handlers_checkpoints import addressed
from .problems import NotFound


@answers("checkpoint_archive")
async def _archive(ask: Ask) -> Answer:
    row = await addressed(ask, own=False)
    folder = await ask.service.exports.folder(row)
    url, expires = ask.service.downloads.sign(folder, ARCHIVE)
    # Every SDK that asks reads these headers; the body is for those who do not follow.
    told = [JSON_TYPE, (b"location", url.encode()), (b"expires", http_date(expires).encode())]
    return Reply(302, encode(ArchiveUrlResponse(url=url, expires=moment(expires).isoformat())), told)


@answers("external_weights_urls")
async def _urls(ask: Ask) -> Answer:
    service = ask.service
    row = await addressed(ask, own=False)
    folder = await service.exports.folder(row)
    names = await asyncio.to_thread(files_in, service.options.state / folder)
    if not names:
        raise NotFound("checkpoint", row.path)
    signed = {name: service.downloads.sign(folder, name) for name in names}
    first = min(expires for _, expires in signed.values())
    return ExternalWeightsUrlsResponse(
        urls={name: url for name, (url, _) in signed.items()}, expires=moment(first)
    )
