"""State folders with all that a server leaves in one, made by the real store and hand-written weights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path

from tinkex.server.keys import KeyRing
from tinkex.server.sqlite_store import SqliteStore
from tinkex.server.state_folder import StateFolder, file_name
from tinkex.server.store import Change, Finish, ForgetBodies, Put
from tinkex.types import Datum, ModelInput
from tinkex.wire.passes import PassRequest, encode_request

from .rows import checkpoint, model, operation, sampler, session

RUN = "s:train:0"
VERSION = "ab" * 16
CHECKPOINT = f"checkpoints/{file_name(RUN)}/training/b-3"
SNAPSHOT = f"snapshots/{file_name(RUN)}/2"
SAMPLER = f"engine/tiny-0123456789ab/sampler/{VERSION}"


def weights(numbers: int = 8) -> bytes:
    """A safetensors file."""
    header = {"weights": {"dtype": "F32", "shape": [numbers], "data_offsets": [0, 4 * numbers]}}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(4 * numbers)


def put_weights(folder: Path, numbers: int = 8) -> int:
    """A folder with weights; their bytes."""
    folder.mkdir(parents=True)
    data = weights(numbers)
    (folder / "adapter.safetensors").write_bytes(data)
    return len(data)


def long_pass(seq: int) -> bytes:
    """A pass whose body is kept in a file."""
    tokens = [7] * 70_000
    datum = Datum(ModelInput.from_ints(tokens), {"target_tokens": tokens, "weights": [1.0] * len(tokens)})
    return encode_request(PassRequest(RUN, seq, [datum], "cross_entropy", None, False))


def store_rows(state: Path, changes: Iterable[Change]) -> None:
    """Write rows as the server does."""

    async def write() -> None:
        store = await SqliteStore.open(state / "store")
        try:
            for change in changes:
                await store.write(change)
        finally:
            await store.close()

    asyncio.run(write())


def changed(state: Path, *changes: Change) -> None:
    """Change rows of a state that is there."""
    store_rows(state, changes)


def make_state(state: Path) -> Path:
    """A live model with a snapshot, a pass after it, a checkpoint, an unnamed sampler, an ended session."""
    with StateFolder(state) as folders:
        KeyRing(state / "keys.json").add("ann", "ann")
        (state / "samples.log").write_text("+s:sample:0:1\n")
        (state / "samples.log").chmod(0o600)
        size = put_weights(state / CHECKPOINT)
        put_weights(state / SNAPSHOT)
        put_weights(state / SAMPLER)
        assert folders.snapshot(RUN, 2) == state / SNAPSHOT
        steps = [operation(n, kind="optim_step", body=b"{}") for n in (1, 2)]
        passes = operation(3, kind="forward_backward", body=long_pass(3), content="protobuf")
        store_rows(
            state,
            [
                Put(session()),
                Put(session("old", status="finished", ended=2.0)),
                Put(model(watermark=3, snapshot=2)),
                Put(model("old:train:0", "old", state="unloaded")),
                Put(sampler(model_id=RUN, version=VERSION)),
                Put(checkpoint(folder=CHECKPOINT, size=size)),
                *(Put(each) for each in [*steps, passes]),
                *(Finish(f"{RUN}:{n}", "done", 3.0, RUN, n, b"{}") for n in (1, 2, 3)),
                ForgetBodies(RUN, 2),
            ],
        )
    return state


def add_checkpoints(state: Path, names: Iterable[str]) -> list[str]:
    """More checkpoints of the live model, by these names; their folders."""
    folders, rows = [], []
    with StateFolder(state) as places:
        for seq, name in enumerate(names, 11):
            folder = str(places.checkpoint(RUN, "training", name, seq).relative_to(state))
            size = put_weights(state / folder)
            path = f"tinker://{RUN}/weights/{name}"
            rows.append(Put(checkpoint(path, run_id=RUN, name=name, folder=folder, size=size)))
            folders.append(folder)
    changed(state, *rows)
    return folders
