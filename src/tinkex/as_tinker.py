"""Run any program with `import tinker` resolved to this package, whether or not the official one is there.

python -m tinkex.as_tinker prog.py args…
python -m tinkex.as_tinker -m module args…
python -m tinkex.as_tinker -c code args…

Submodules lead to ours too, to the same objects: `tinker.types is tinkex.types`.  Programs
started by the program are included.  In a program of your own, call `install()` before the first import.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import tinkex

from ._version import SDK_VERSION

__all__ = ["install", "main"]

_USAGE = "usage: python -m tinkex.as_tinker (prog.py | -m module | -c code) [argument ...]"
_SHADOW = Path(__file__).parent / "_shadow"  # a folder whose `tinker` calls `install`


def install() -> None:
    """From now on `import tinker` gives this package, in this process."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if "tinker" in sys.modules:
        raise ImportError("tinker is imported already; call tinkex.as_tinker.install() before that")
    sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds `tinker` and everything below it in this package."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname != "tinker" and not fullname.startswith("tinker."):
            return None
        own = "tinkex" + fullname.removeprefix("tinker")
        found = importlib.util.find_spec(own)
        if found is None:
            return _of_a_type(fullname)
        folders = found.submodule_search_locations
        spec = ModuleSpec(fullname, _Loader(own), origin=found.origin, is_package=folders is not None)
        if folders is not None:
            spec.submodule_search_locations = list(folders)
        return spec

    def find_distributions(self, context: Any = None) -> Iterator[Distribution]:
        """The official SDK's version, for whoever asks `importlib.metadata` for it."""
        if str(getattr(context, "name", None)).lower() == "tinker":
            yield _Metadata()


class _Metadata(Distribution):
    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: tinker\nVersion: {SDK_VERSION}\n"

    def locate_file(self, path: Any) -> Any:
        return Path(__file__).parent / path


class _Loader(Loader):
    """Gives our module of a name; it is not made a second time."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if spec.name == "tinker":
            return _Front(spec.name)
        if spec.name == "tinker._version":
            return _versions(spec.name)
        module = importlib.import_module(self._own)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import machinery has given the module the spec of its other name: it keeps its own.
        if self._spec is not None:
            module.__spec__ = self._spec

    def get_code(self, fullname: str) -> CodeType | None:
        """The code of a module that is to be run (`-m tinker.x`)."""
        loader: Any = getattr(importlib.util.find_spec(self._own), "loader", None)
        code: CodeType | None = loader.get_code(self._own)
        return code


class _TypeLoader(Loader):
    """Makes a module through which all types can be had."""

    def exec_module(self, module: ModuleType) -> None:
        def load(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return getattr(tinkex.types, name)

        vars(module)["__getattr__"] = load


def _of_a_type(fullname: str) -> ModuleSpec | None:
    """The official package has a module for each of its types, called like it; ours has a few."""
    package, _, name = fullname.rpartition(".")
    known = {each.lower() for each in tinkex.types.__all__}
    if package != "tinker.types" or name.replace("_", "") not in known:
        return None
    return ModuleSpec(fullname, _TypeLoader())


class _Front(ModuleType):
    """The package under its other name: only its version is that of the SDK it stands in for."""

    def __init__(self, name: str) -> None:
        super().__init__(name, tinkex.__doc__)
        self.__path__ = tinkex.__path__
        self.__file__ = tinkex.__file__
        self.__all__ = tinkex.__all__
        self.__version__ = SDK_VERSION
        self.__title__ = "tinker"

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(tinkex, name)
        except AttributeError:
            # The official package has loaded its submodules when it is imported; here they wait.
            if name.startswith("__") or importlib.util.find_spec(f"tinkex.{name}") is None:
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None
        return importlib.import_module(f"{self.__name__}.{name}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(tinkex)})


def _versions(name: str) -> ModuleType:
    module = ModuleType(name, "The version of the SDK this package stands in for.")
    vars(module).update(__version__=SDK_VERSION, __title__="tinker")
    return module


# ---- running programs


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a program as `python` would."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help") or given == ["-m"] or given == ["-c"]:
        sys.stderr.write(f"{_USAGE}\n")
        raise SystemExit(0 if given[:1] in (["-h"], ["--help"]) else 2)
    install()
    _tell_children()
    if given[0] == "-m":
        sys.argv = given[1:]
        _first_folder(str(Path.cwd()))
        runpy.run_module(given[1], run_name="__main__", alter_sys=True)
    elif given[0] == "-c":
        sys.argv = ["-c", *given[2:]]
        _first_folder("")
        _run_text(given[1])
    else:
        sys.argv = given
        _run_file(given[0])


def _tell_children() -> None:
    """Other interpreters take PYTHONPATH, those that `multiprocessing` spawns take `sys.path`."""
    shadow = str(_SHADOW)
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{shadow}{os.pathsep}{known}" if known else shadow
    sys.path.insert(0 if sys.flags.safe_path else 1, shadow)


def _first_folder(folder: str) -> None:
    """Look there first for imports; `python -P` wants no such folder."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _run_file(name: str) -> None:
    path = Path(name)
    if not path.exists():
        sys.stderr.write(f"tinkex.as_tinker: can't open file {name!r}: no such file\n")
        raise SystemExit(2)
    if path.is_file():
        _first_folder(str(path.resolve().parent))
    runpy.run_path(name, run_name="__main__")


def _run_text(code: str) -> None:
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    exec(compile(code, "<string>", "exec"), vars(module))  # noqa: S102 - that is what was asked for


if __name__ == "__main__":
    # Under its own name, so that a program which calls `install` itself meets the same finder.
    from tinkex.as_tinker import main as _main

    _main()
