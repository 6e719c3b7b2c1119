"""Answers about tokenizers: the files of a base model's tokenizer, so that no hub is needed to load it."""

from __future__ import annotations

import asyncio
import os
from io import FileIO
from pathlib import Path

from ..wire.bodies import TokenizerFile, TokenizerFilesResponse
from .asks import Answer, Ask, answers
from .base_models import BaseFacts
from .downloads import DIGESTS, file_reply, file_tag
from .file_pieces import Body
from .problems import NotFound

LARGEST = 256 << 20
"""Bytes of a tokenizer's file; what is larger is none."""


@answers("list_tokenizer_files")
async def _list(ask: Ask) -> Answer:
    facts = _model(ask)
    files = []
    for name in await asyncio.to_thread(lambda: facts.tokenizer_files):
        file = await asyncio.to_thread(_open, facts.folder, name)
        if file is not None:
            with file:
                digest, size = await DIGESTS.of(file), os.fstat(file.fileno()).st_size
            files.append(TokenizerFile(name=name, size_bytes=size, sha256=digest.hex()))
    return TokenizerFilesResponse(model_name=facts.name, files=files)


@answers("get_tokenizer_file")
async def _get(ask: Ask) -> Answer:
    facts, name = _model(ask), ask.params["file"]
    # Only names of the list are ever joined to the folder.
    known = name in await asyncio.to_thread(lambda: facts.tokenizer_files)
    file = await asyncio.to_thread(_open, facts.folder, name) if known else None
    if file is None:
        raise NotFound("tokenizer file", name)
    digest = await DIGESTS.of(file)
    kind = b"application/json" if name.endswith(".json") else b"application/octet-stream"
    body = Body(((file, os.fstat(file.fileno()).st_size),))
    return file_reply(body, file_tag(file), ask.headers, kind, digest)


def _model(ask: Ask) -> BaseFacts:
    facts = ask.service.catalogue.by_name.get(ask.params["model_name"])
    if facts is None:
        raise NotFound("base model", ask.params["model_name"])
    return facts


def _open(folder: Path, name: str) -> FileIO | None:
    """A file of the model folder; a link may lead to the hub's blobs beside it, and nowhere else."""
    try:
        real, root = (folder / name).resolve(strict=True), folder.resolve()
        blobs = root.parent.parent / "blobs" if root.parent.name == "snapshots" else root
        if not real.is_relative_to(root) and not real.is_relative_to(blobs):
            return None  # whoever made the folder may have meant another file of this machine
        file = FileIO(real, "rb")
    except (OSError, RuntimeError):
        return None
    if os.fstat(file.fileno()).st_size > LARGEST:
        file.close()
        return None
    return file
