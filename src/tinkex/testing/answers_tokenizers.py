"""Answers about tokenizers: the files a fake service was given for a model."""

from __future__ import annotations

import hashlib

from ..wire.bodies import TokenizerFile, TokenizerFilesResponse
from .exchange import FakeResponse, Problem
from .handlers import Answer, Ask, answers


def _files(ask: Ask) -> dict[str, bytes]:
    name = ask.params["model_name"]
    if name not in ask.service.tokenizer_files:
        raise Problem(404, f"no tokenizer files of {name!r}")
    return ask.service.tokenizer_files[name]


@answers("list_tokenizer_files")
def _list(ask: Ask) -> Answer:
    return TokenizerFilesResponse(
        model_name=ask.params["model_name"],
        files=[
            TokenizerFile(name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
            for name, data in _files(ask).items()
        ],
    )


@answers("get_tokenizer_file")
def _get(ask: Ask) -> Answer:
    data = _files(ask).get(ask.params["file"])
    if data is None:
        raise Problem(404, f"no file {ask.params['file']!r}")
    return FakeResponse(200, {"content-type": "application/octet-stream"}, data)
