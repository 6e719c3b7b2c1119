"""A power cut: what is left of a folder when only what was synced, and by chance some more, is there.

`power.c` notes what processes have synced. A cut puts the folder back to that: a file to the bytes of its
last sync, a folder to the names of its last sync. Of what was changed since, chance decides block by block
and name by name what had reached the disk; a rename did or did not happen, but never by half.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import stat
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

BLOCK = 4096
COMPILER = shutil.which("cc")
"""Without one there are no power cuts."""


@dataclass(frozen=True)
class Thing:
    """A file or folder, whatever its name."""

    kind: str
    id: str


class Power:
    """The supply of everything that is started with `environment`."""

    def __init__(self, root: Path, aside: Path) -> None:
        assert COMPILER is not None
        self.root, self._notes = root.resolve(), aside.resolve() / "notes"
        self._notes.mkdir(parents=True)
        library = aside.resolve() / "power.so"
        source = Path(__file__).with_name("power.c")
        subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        self._library = ctypes.CDLL(str(library))
        self.environment = {
            "LD_PRELOAD": str(library),
            "TINKEX_POWER_ROOT": str(self.root),
            "TINKEX_POWER_NOTES": str(self._notes),
        }

    def cut(self, chance: random.Random, survives: float = 0.0) -> None:
        """Leave what was synced, and of what was not each part with this probability.

        Everything that was started with `environment` must be dead.
        """
        after = self.root.with_name(f"{self.root.name}.after")
        after.mkdir()
        if self.root.exists():
            cut = _Cut(self, chance, survives)
            cut.folder(self.thing(self.root), self.root, after)
            shutil.rmtree(self.root)
        after.rename(self.root)
        shutil.rmtree(self._notes)
        self._notes.mkdir()
        self._note_all()

    def thing(self, path: Path) -> Thing:
        """What a path names, by inode and time of birth: inodes are used again."""
        into = ctypes.create_string_buffer(128)
        self._library.power_identity(os.fsencode(path), into)
        return Thing(*into.value.decode().split())

    def names(self, folder: Thing) -> dict[str, Thing]:
        """What a folder held when it was last synced."""
        note = self._notes / folder.id
        found = {}
        for line in note.read_text().splitlines() if note.exists() else ():
            kind, id, name = line.split(" ", 2)
            found[name] = Thing(kind, id)
        return found

    def content(self, file: Thing) -> bytes:
        """What a file held when it was last synced."""
        note = self._notes / file.id
        return note.read_bytes() if note.exists() else b""

    def _note_all(self) -> None:
        """What a machine finds when it comes back is on its disk."""
        for place, folders, names in os.walk(self.root):
            lines = []
            for name in [*folders, *names]:
                thing = self.thing(Path(place, name))
                lines.append(f"{thing.kind} {thing.id} {name}\n")
                if thing.kind == "f":
                    shutil.copyfile(Path(place, name), self._notes / thing.id)
            (self._notes / self.thing(Path(place)).id).write_text("".join(lines))


class _Cut:
    """One power cut."""

    def __init__(self, power: Power, chance: random.Random, survives: float) -> None:
        self._power, self._chance, self._survives = power, chance, survives
        self._now: dict[Thing, Path] = {}
        for place, folders, names in os.walk(power.root):
            for name in [*folders, *names]:
                path = Path(place, name)
                self._now[power.thing(path)] = path

    def _survived(self) -> bool:
        return self._chance.random() < self._survives

    def folder(self, thing: Thing, now: Path | None, into: Path) -> None:
        """Make a folder as it is found afterwards."""
        synced = self._power.names(thing)
        current = {} if now is None else {path.name: self._power.thing(path) for path in now.iterdir()}
        for name, each in self._mixed(synced, current).items():
            place, path = into / name, self._now.get(each)
            if each.kind == "d":
                place.mkdir(mode=0o700)
                self.folder(each, path, place)
            else:
                place.write_bytes(self._content(each, path))
                place.chmod(0o600 if path is None else stat.S_IMODE(path.stat().st_mode))

    def _mixed(self, synced: dict[str, Thing], current: dict[str, Thing]) -> dict[str, Thing]:
        """The names of the last sync, or the names now, for those that a rename ties together alike."""
        mixed = {name: each for name, each in synced.items() if current.get(name) == each}
        left = sorted({*synced, *current} - set(mixed))
        while left:
            tied = _tied(left[0], synced, current)
            mixed.update(_only(tied, current if self._survived() else synced))
            left = [name for name in left if name not in tied]
        return mixed

    def _content(self, file: Thing, now: Path | None) -> bytes:
        synced = self._power.content(file)
        current = synced if now is None else now.read_bytes()
        if synced == current:
            return synced
        size = len(current) if self._survived() else len(synced)
        blocks = []
        for start in range(0, size, BLOCK):
            chosen = current if self._survived() else synced
            blocks.append(chosen[start : start + BLOCK].ljust(min(BLOCK, size - start), b"\0"))
        return b"".join(blocks)[:size]


def _tied(name: str, synced: dict[str, Thing], current: dict[str, Thing]) -> set[str]:
    """Every name that is tied to this one by what it named or names."""
    tied, things = {name}, set[Thing]()
    while True:
        things |= {names[each] for names in (synced, current) for each in tied if each in names}
        more = {each for names in (synced, current) for each, thing in names.items() if thing in things}
        if more <= tied:
            return tied
        tied |= more


def _only(names: Iterable[str], found: dict[str, Thing]) -> dict[str, Thing]:
    return {name: found[name] for name in names if name in found}
