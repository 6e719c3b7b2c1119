"""State folders and credentials from elsewhere: backups, databases, logins, tokens, package indexes."""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import io
import json
import shutil
import sqlite3
import tarfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.server.live_requests import GRAPH
from tests.server.machine import Machine
from tinkex.config import Secret
from tinkex.errors import TinkerError
from tinkex.models.package_index import _listed
from tinkex.net.auth import _life_of, claims_of
from tinkex.net.credentials import CredentialStore, StoredKey
from tinkex.server.keys import KeyRing
from tinkex.server.sqlite_store import SqliteStore
from tinkex.server.state_archive import LIST
from tinkex.server.state_backup import export_state, import_state
from tinkex.server.state_check import look
from tinkex.server.store import Page, StoreFailed
from tinkex.server.tokens import Tokens

from .file_targets import place, written_to
from .mutation import NUMBERS, TEXTS, changed, damaged, json_text
from .net_targets import awaited
from .running import Target

# ---- state folders


@functools.cache
def state() -> Path:
    """The folder of a server that has done something and was killed."""
    folder = place() / "server"
    folder.mkdir()

    async def main() -> None:
        server = Machine(folder, "sqlite")
        await server.start()
        ann = server.ann
        session = await ann.session(user_metadata={"a": 1})
        model = await ann.model(session)
        for number in (1, 2):
            await ann.done(await ann.train(model, number))
        await ann.done(await ann.step(model, 3))
        loss = {"session_id": session, "custom_loss_seq_id": 0, "name": "sum", "graph": GRAPH}
        inputs = [{"name": "logprobs", "rank": 1}]
        await ann.done(ann.ticket(await ann("create_custom_loss", {**loss, "inputs": inputs})))
        await ann.done(await ann.sample(await ann.sampler(session), 0))
        await server.crash()

    asyncio.run(main())
    return folder / "state"


@functools.cache
def _backups() -> tuple[bytes, ...]:
    export_state(state(), place() / "backup.tar", 0.0)
    return ((place() / "backup.tar").read_bytes(),)


def _files(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {each.name: tar.extractfile(each).read() for each in tar.getmembers()}  # type: ignore[union-attr]


def _repacked(rng: Random, corpus: Sequence[bytes]) -> bytes:
    """A backup with some file changed, and mostly a list that fits all the same."""
    if rng.random() < 0.3:
        return changed(rng, corpus[0], corpus)
    files = _files(corpus[0])
    listed = json.loads(files.pop(LIST))
    name = rng.choice(["store/store.db", *files])
    draw = rng.random()
    if draw < 0.5:
        spoil = _rows_changed if name == "store/store.db" and rng.random() < 0.7 else changed
        files[name] = spoil(rng, files[name])
    elif draw < 0.7:
        odd = ("../x", "/etc/x", "store/bodies/a/b", "keys.json ", "x" * 300, "store/store.db-wal", "é")
        files[rng.choice(odd)] = files[name] if rng.random() < 0.5 else files.pop(name)
    elif draw < 0.8:
        del files[name]
    if rng.random() < 0.8:
        digests = {each: hashlib.sha256(data).hexdigest() for each, data in files.items()}
        listed["files"] = {each: {"size": len(files[each]), "sha256": digests[each]} for each in files}
    text = json.dumps(listed).encode()
    files[LIST] = json_text(rng, [text]) if rng.random() < 0.2 else text
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for each, data in files.items():
            entry = tarfile.TarInfo(each)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return made.getvalue()


def _import(data: bytes) -> object:
    archive, folder = written_to("other.tar", data), place() / "imported"
    before = sorted(each.name for each in place().iterdir() if each.name != "imported")
    try:
        return import_state(archive, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        after = sorted(each.name for each in place().iterdir())
        assert after == before, set(after) - set(before)


@functools.cache
def _databases() -> tuple[bytes, ...]:
    return (_files(_backups()[0])["store/store.db"],)


def _rows_changed(rng: Random, database: bytes) -> bytes:
    """A database that is sound, with odd values in its rows."""
    path = written_to("rows.db", database)
    opened = sqlite3.connect(path, isolation_level=None)
    try:
        opened.execute("PRAGMA journal_mode = DELETE")
        tables = [name for (name,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for _ in range(rng.randrange(1, 4)):
            table = rng.choice([each for each in tables if not each.startswith("sqlite_")])
            columns = [column[1] for column in opened.execute(f"PRAGMA table_info({table})")]
            texts = [each for each in TEXTS if each.isascii()]
            value = rng.choice((None, rng.choice(NUMBERS[:20]), 0.5, b"\xff\x00", rng.choice(texts), "[[["))
            try:
                opened.execute(f"UPDATE {table} SET {rng.choice(columns)} = ?", (value,))
            except sqlite3.Error:
                continue  # the table does not allow it
    finally:
        opened.close()
    return path.read_bytes()


def _database_changed(rng: Random, corpus: Sequence[bytes]) -> bytes:
    return _rows_changed(rng, corpus[0]) if rng.random() < 0.5 else changed(rng, corpus[0], corpus)


def _read_database(data: bytes) -> object:
    folder = place() / "spoilt"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "store" / "bodies").mkdir(parents=True)
    (folder / "store" / "store.db").write_bytes(data)
    look(folder, None)

    async def read() -> None:
        store = await SqliteStore.open(folder / "store")
        try:
            page = Page(100)
            await store.models("ann", page)
            await store.checkpoints("ann", page, now=0.0)
        finally:
            await store.close()

    return awaited(read())


# ---- credentials


def _logins() -> list[bytes]:
    key = {"type": "manual", "key": "tml-a", "name": "n", "note": "x", "details": {"a": 1}}
    return [json.dumps({"version": 1, "default": "k", "keys": {"k": key}}).encode()]


def _login(data: bytes) -> object:
    store = CredentialStore(written_to("credentials.json", data))
    held = store.default()
    store.save(StoredKey("other", Secret("tml-b")))
    assert store.default() is not None
    store.remove_default()
    return held


@functools.cache
def _ring() -> tuple[Tokens, str]:
    ring = KeyRing(place() / "ring.json")
    info, _ = ring.add("first", "ann")
    tokens = Tokens(place() / "token-secret", ring)
    made = tokens.issue(info, 3600, 1000.0)
    assert made is not None
    return tokens, made


def _token(data: bytes) -> object:
    text = data.decode("latin-1")
    tokens, right = _ring()
    found = tokens.verify(text, 2000.0)
    # Padding bits at the end of base64 mean nothing: the same bytes may be written in several ways.
    assert found is None or text.rpartition(".")[0] == right.rpartition(".")[0]
    claims_of(text)
    assert _life_of(text, 2000.0) >= 0
    return found


def _tokens() -> list[bytes]:
    claims = base64.urlsafe_b64encode(json.dumps({"iat": 1, "exp": 2, "key": 1}).encode()).rstrip(b"=")
    return [_ring()[1].encode(), b"eyJh." + claims + b".sig"]


def _token_changed(rng: Random, corpus: Sequence[bytes]) -> bytes:
    head, _, rest = rng.choice(corpus).partition(b".")
    payload, _, signature = rest.partition(b".")
    if rng.random() < 0.4:
        return changed(rng, rng.choice(corpus), corpus, 2)
    claims = json_text(rng, [base64.urlsafe_b64decode(payload + b"==")])
    return b".".join((head, base64.urlsafe_b64encode(claims).rstrip(b"="), signature))


# ---- package indexes


def _pages() -> list[bytes]:
    files = [{"filename": "a-1.whl", "url": "https://127.0.0.1/a-1.whl", "hashes": {}}]
    return [
        b"json " + json.dumps({"files": files}).encode(),
        b'html <a href="../a-1.whl#sha256=0">a-1.whl</a>',
    ]


def _index(data: bytes) -> object:
    kind, _, body = data.partition(b" ")
    found = list(_listed(body, kind.decode("latin-1")))
    assert all(isinstance(name, str) and isinstance(address, str) for name, address in found)
    return found


TARGETS = [
    Target("state backup", _backups, _import, (TinkerError,), _repacked, 0.02),
    Target(
        "state database", _databases, _read_database, (StoreFailed, TinkerError), _database_changed, 0.02
    ),
    Target("login file", _logins, _login, (TinkerError,), json_text, 0.2),
    Target("token", _tokens, _token, (), _token_changed, 0.5),
    Target("package index", _pages, _index, (ValueError,), damaged, 0.3),
]
