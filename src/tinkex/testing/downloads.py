"""The files behind download addresses: made up from a checkpoint, the same each time."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile

from ..wire.paths import SEGMENTS
from .exchange import FakeRequest, FakeResponse, Problem
from .state import SavedCheckpoint, World

__all__ = ["ARCHIVE", "FILES", "PREFIX", "answer_download", "file_url", "files_of"]

PREFIX = "/files/"
FILES = ("adapter_config.json", "adapter_model.safetensors", "checkpoint_complete")
ARCHIVE = "archive.tar"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


def file_url(host: str, saved: SavedCheckpoint, name: str) -> str:
    """Where one file of a checkpoint can be fetched, without a credential."""
    return f"http://{host}{PREFIX}{saved.run}/{SEGMENTS[saved.kind]}/{saved.name}/{name}"


def files_of(saved: SavedCheckpoint) -> dict[str, bytes]:
    """The files of a checkpoint."""
    config = {
        "base_model_name_or_path": saved.base_model,
        "peft_type": "LORA",
        "r": saved.lora.rank,
        "lora_alpha": 32,
        "target_modules": ["q_proj", "v_proj"],
    }
    return {
        "adapter_config.json": json.dumps(config).encode(),
        "adapter_model.safetensors": _safetensors(saved),
        "checkpoint_complete": b"",
    }


def _safetensors(saved: SavedCheckpoint) -> bytes:
    """One float32 vector in the safetensors layout: header length, header, bytes."""
    seed = hashlib.sha256(f"{saved.path} {saved.steps}".encode()).digest()
    data = (seed * (saved.size // len(seed) + 1))[: saved.size // 4 * 4]
    header = {"weights": {"dtype": "F32", "shape": [len(data) // 4], "data_offsets": [0, len(data)]}}
    written = json.dumps(header).encode()
    written += b" " * (-len(written) % 8)
    return len(written).to_bytes(8, "little") + written + data


def _archive(saved: SavedCheckpoint) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files_of(saved).items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def answer_download(world: World, request: FakeRequest) -> FakeResponse:
    """A file, whole or (with a Range header) from a byte on; a strong etag says whether it changed."""
    try:
        data = _find(world, request.path.partition(PREFIX)[2])
    except Problem as problem:
        return problem.response()
    etag = f'"{hashlib.sha256(data).hexdigest()}"'
    headers = {"content-type": "application/octet-stream", "etag": etag, "accept-ranges": "bytes"}
    wanted = _RANGE.fullmatch(request.headers.get("range", ""))
    if wanted is None or request.headers.get("if-range", etag) != etag:
        return FakeResponse(200, headers, data)
    first = int(wanted[1])
    last = min(int(wanted[2] or len(data) - 1), len(data) - 1)
    if first > last:
        return FakeResponse(416, {**headers, "content-range": f"bytes */{len(data)}"})
    headers["content-range"] = f"bytes {first}-{last}/{len(data)}"
    return FakeResponse(206, headers, data[first : last + 1])


def _find(world: World, where: str) -> bytes:
    run, *rest = where.split("/")
    if rest == ["trace.json"] and run in world.sessions:
        return json.dumps({"session_id": run, "traceEvents": []}).encode()
    saved = world.checkpoints.get(f"tinker://{run}/{'/'.join(rest[:2])}") if len(rest) == 3 else None
    if saved is None:
        raise Problem(404, f"no file {where!r}")
    if rest[2] == ARCHIVE:
        return _archive(saved)
    data = files_of(saved).get(rest[2])
    if data is None:
        raise Problem(404, f"no file {where!r}")
    return data
