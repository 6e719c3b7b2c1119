"""How a model's name becomes a folder with its files.

In this order: a folder's own path; an entry of the folders in TINKEX_MODELS (`<folder>/<name>`, the name
may hold a slash); what was added with `tinkex models add`; a model that ships with the package.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ..errors import InvalidArgumentError

__all__ = ["EMBEDDED", "check", "expanded", "home", "is_model", "is_path", "known", "resolve", "shelves"]

EMBEDDED = Path(__file__).parent
"""Where the models of the package itself are, one folder each."""


def is_path(name: str) -> bool:
    """Whether a name is written as a path: it begins with `/`, `./`, `../` or `~`."""
    first = name.replace(os.sep, "/").split("/")[0]
    return first in ("", ".", "..") or first.startswith("~") or Path(name).is_absolute()


def resolve(name: str, environ: Mapping[str, str] | None = None) -> Path:
    """The folder of a model; the error names the models that are known here."""
    if not name:
        raise InvalidArgumentError("a model's name is empty")
    if is_path(name):
        return check(expanded(name), name)
    for shelf in (Path.cwd(), *shelves(environ), EMBEDDED):
        folder = shelf / name
        if is_model(folder):
            return folder.resolve()
    if Path(name).is_dir():
        return check(Path(name), name)
    offer = ", ".join(known(environ))
    raise InvalidArgumentError(
        f"model {name!r}: no such folder, and it is not known by that name. "
        f"Give its folder, NAME=FOLDER, put it under a folder named in TINKEX_MODELS, or add it with "
        f"`tinkex models add`. " + (f"Known here: {offer}" if offer else "None is known here")
    )


def check(folder: Path, name: str) -> Path:
    """The folder in full, refused if it is not a model's."""
    try:
        there = folder.is_dir()
    except OSError as problem:  # a name too long for a file, for one
        raise InvalidArgumentError(f"model {name!r}: {problem.strerror}: {folder}") from None
    if not there:
        raise InvalidArgumentError(f"model {name!r}: there is no folder {folder}")
    if not is_model(folder):
        raise InvalidArgumentError(
            f"model {name!r}: {folder} has no config.json; the folder of a model in "
            "Hugging Face form is needed (config.json, *.safetensors, tokenizer.json)"
        )
    return folder.resolve()


def known(environ: Mapping[str, str] | None = None) -> list[str]:
    """The names that need no folder."""
    names = set()
    for shelf in (*shelves(environ), EMBEDDED):
        for pattern in ("*/config.json", "*/*/config.json"):
            names |= {found.parent.relative_to(shelf).as_posix() for found in shelf.glob(pattern)}
    return sorted(name for name in names if not name.startswith("."))


def is_model(folder: Path) -> bool:
    """Whether a folder looks like a model's."""
    return (folder / "config.json").is_file()


def shelves(environ: Mapping[str, str] | None = None) -> list[Path]:
    """The folders named in TINKEX_MODELS, and the one for models that were added, if there is one."""
    own, named = home(environ), _named(environ)
    return named if own is None or own in named or not own.is_dir() else [*named, own]


def home(environ: Mapping[str, str] | None = None) -> Path | None:
    """Where models are added: the first folder in TINKEX_MODELS, else the platform's place for data."""
    env = os.environ if environ is None else environ
    named = _named(environ)
    if named:
        return named[0]
    try:
        if sys.platform == "win32":
            root = Path(env.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        elif sys.platform == "darwin":
            root = Path.home() / "Library" / "Application Support"
        else:
            root = Path(env.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    except RuntimeError:  # whoever runs this has no home
        return None
    return root / "tinkex" / "models"


def _named(environ: Mapping[str, str] | None) -> list[Path]:
    listed = (os.environ if environ is None else environ).get("TINKEX_MODELS", "")
    return [expanded(each) for each in listed.split(os.pathsep) if each]


def expanded(path: str | Path) -> Path:
    """A path with `~` as somebody's home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InvalidArgumentError(f"{str(path)!r}: there is no such home folder") from None
