"""What lies in a state folder, held against what its rows need: damage, and what is left over.

Left over is what a crash leaves between a file and its row; a starting server removes it by itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from ..errors import TinkerError
from ..wire.passes import decode_output, decode_request
from .body_files import read_body
from .boots import BOOT
from .checkpoint_files import files_in
from .exports import EXPORTS
from .key_file import KeysError, read
from .leftovers import SAMPLERS, snapshot_before
from .places import KEY_FILE, TOKEN_SECRET
from .signing import DOWNLOAD_SECRET
from .state_folder import ROOMS
from .state_rows import DATABASE, Body, Needed, Rows
from .state_weights import wrong_weights
from .traces import TRACES

__all__ = ["Finding", "access", "damage", "is_alive", "leftovers", "strangers"]

Kind: TypeAlias = Literal["damage", "leftover", "access"]
STATES = "states"
"""Where in its folder an engine keeps models that do not fit into memory; the next one starts afresh."""
_SINGLE = frozenset({"lock", KEY_FILE, "keys.lock", TOKEN_SECRET, DOWNLOAD_SECRET, "samples.log", BOOT})
_BESIDE = frozenset({*ROOMS, EXPORTS, TRACES, "local"})
_DATABASE_FILES = frozenset({"store.db", "store.db-wal", "store.db-shm", "store.db-journal"})


class Finding(NamedTuple):
    """Something that is not as it should be."""

    kind: Kind
    place: str
    text: str


# ---- what is needed and not there, or not right


def damage(state: Path, rows: Rows, *, quick: bool = False) -> Iterator[Finding]:
    """What a row needs and does not find; quickly, only sizes and forms of weights are looked at."""
    for place, text in rows.problems:
        yield Finding("damage", place, text)
    seen: set[str] = set()
    for needed in rows.needed:
        if needed.folder not in seen or needed.size is not None:
            seen.add(needed.folder)
            yield from _wrong_folder(state, needed, quick)
    for room in (state / "engine").glob(f"*/{SAMPLERS}"):
        for version in rows.samplers:
            folder = room / version
            if folder.is_dir():
                needed = Needed(str(folder.relative_to(state)), f"unnamed sampler weights {version}")
                yield from _wrong_folder(state, needed, quick)
    for body in rows.bodies:
        text = _wrong_body(state / "store" / "bodies" / body.name, body)
        if text:
            what = "result" if body.result else "body"
            yield Finding("damage", f"store/bodies/{body.name}", f"the {what} of {body.operation} {text}")
    try:
        read(state / KEY_FILE)
    except KeysError as problem:
        yield Finding("damage", KEY_FILE, str(problem))


def _wrong_folder(state: Path, needed: Needed, quick: bool) -> Iterator[Finding]:
    try:
        yield from _wrong_files(state, needed, quick)
    except FileNotFoundError:  # it went while it was looked at
        yield Finding("damage", needed.folder, f"{needed.by} has no weights here")


def _wrong_files(state: Path, needed: Needed, quick: bool) -> Iterator[Finding]:
    folder = state / needed.folder
    files = files_in(folder) if folder.is_dir() and not folder.is_symlink() else {}
    weights = [name for name in files if name.endswith(".safetensors")]
    if not weights:
        yield Finding("damage", needed.folder, f"{needed.by} has no weights here")
        return
    if needed.size is not None and sum(files.values()) != needed.size:
        text = f"{needed.by} has {sum(files.values())} bytes, {needed.size} were saved"
        yield Finding("damage", needed.folder, text)
        return
    for name in weights:
        text = wrong_weights(folder / name, quick=quick)
        if text:
            yield Finding("damage", f"{needed.folder}/{name}", f"{needed.by}: {text}")


def _wrong_body(path: Path, body: Body) -> str:
    try:
        data = read_body(path)
        if body.form == "protobuf":
            decode_request(data)
        elif body.form == "pass":
            decode_output(data)
        else:
            json.loads(data)
    except FileNotFoundError:
        return "is missing"
    except (TinkerError, ValueError, RecursionError):
        return "cannot be read: the file is damaged"
    return ""


# ---- what is there and not needed


def leftovers(state: Path, rows: Rows, *, in_use: bool) -> Iterator[Finding]:
    """Files and folders that nothing refers to; what a running server has at hand is none of them."""
    known = {needed.folder for needed in rows.needed} | rows.checkpoints
    for place in [place for place in known if place.startswith("snapshots/")]:
        known |= {str(each.relative_to(state)) for each in snapshot_before(state / place)}
    for room, depth in (("checkpoints", 3), ("snapshots", 2)):
        for place in _below(state, room, depth):
            if place not in known and not (in_use and _in_the_making(place)):
                yield Finding("leftover", place, "no row knows of it")
    for place in _below(state, "engine", 3):
        room, name = place.split("/")[2:]
        if room == SAMPLERS and name not in rows.samplers and not (in_use and _in_the_making(place)):
            yield Finding("leftover", place, "no open sampling session uses it")
        elif room == STATES and not in_use:
            yield Finding("leftover", place, "it belonged to an engine that has ended")
    bodies = {body.name for body in rows.bodies}
    for place in _entries(state, "store/bodies"):
        if place.rpartition("/")[2] not in bodies:
            yield Finding("leftover", place, "no operation knows of it")
    exports = {hashlib.sha256(folder.encode()).hexdigest()[:32] for folder in rows.checkpoints}
    for place in _entries(state, EXPORTS):
        if place.rpartition("/")[2] not in exports and not (in_use and _in_the_making(place)):
            yield Finding("leftover", place, "its checkpoint is not on record")
    if in_use:
        return
    for place in _entries(state, TRACES):
        if not place.endswith(".json"):
            yield Finding("leftover", place, "it was never finished")
    for place in _entries(state, "tmp"):
        yield Finding("leftover", place, "it was needed for a moment")
    for place in _entries(state, "."):
        if place == "samples.new" or place.startswith((".keys-", f".{TOKEN_SECRET}-", f".{BOOT}-")):
            yield Finding("leftover", place, "it was never finished")


def _in_the_making(place: str) -> bool:
    """Whether a process that is alive writes a folder under this name, to be renamed."""
    name = place.rpartition("/")[2]
    if not (name.startswith(".") and name.endswith((".part", ".old"))):
        return False
    maker = name.split(".")[-2]
    return not maker.isdecimal() or is_alive(int(maker))


def is_alive(process: int) -> bool:
    """Whether there is such a process; where that cannot be asked without harm, there is."""
    if os.name == "nt":
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def strangers(state: Path) -> list[str]:
    """What lies there and is not ours: it is told and left alone."""
    found = [
        place
        for place in _entries(state, ".")
        if place not in _SINGLE | _BESIDE and place != "samples.new" and not place.startswith(".")
    ]
    found += [
        place
        for place in _entries(state, "store")
        if place != "store/bodies" and place.removeprefix("store/") not in _DATABASE_FILES
    ]
    return found


def _entries(state: Path, place: str) -> list[str]:
    try:
        names = sorted(os.listdir(state / place))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return names if place == "." else [f"{place}/{name}" for name in names]


def _below(state: Path, place: str, depth: int) -> Iterator[str]:
    for entry in _entries(state, place):
        if depth == 1:
            yield entry
        elif (state / entry).is_dir() and not (state / entry).is_symlink():
            yield from _below(state, entry, depth - 1)


# ---- who else may read it


def access(state: Path) -> Iterator[Finding]:
    """What others on this machine may read or write."""
    if os.name == "nt":
        return
    folders = [".", *ROOMS, "store/bodies", "local"]
    files = [*sorted(_SINGLE), *(f"store/{name}" for name in sorted(_DATABASE_FILES))]
    for place, right in [*((each, 0o700) for each in folders), *((each, 0o600) for each in files)]:
        try:
            found = os.lstat(state / place)
        except FileNotFoundError:
            continue
        mode = stat.S_IMODE(found.st_mode)
        if stat.S_ISLNK(found.st_mode):
            yield Finding("access", place, "it is a link")
        elif mode & 0o077:
            yield Finding("access", place, f"its mode is {mode:o}, not {right:o}: others may use it")
    if not (state / DATABASE).is_file():
        yield Finding("damage", DATABASE, "there is no database")
