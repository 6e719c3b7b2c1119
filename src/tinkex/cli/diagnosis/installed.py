"""Python, this package and what it needs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata

from . import Check

__all__ = ["checks"]

OLDEST, NEWEST = (3, 11), (3, 14)
CLIENT = ("aiohttp", "httptools", "msgspec", "numpy", "orjson", "protobuf", "pyqwest", "zstandard")
TOKENIZERS = ("tokenizers", "jinja2")
SERVER = ("gguf", "safetensors", "tokenizers", "torch", "transformers", "uvicorn")


def checks() -> Iterator[Check]:
    """Look at what is installed."""
    yield _python()
    yield _package()
    yield _distributions("client", CLIENT, "fail", "pip install tinkex")
    yield _distributions(
        "tokenizers", TOKENIZERS, "warn", 'pip install "tinkex[tokenizers]" for chat and train'
    )
    yield _distributions(
        "server extra", SERVER, "warn", 'pip install "tinkex[server]" for serve, demo and merge'
    )


def _python() -> Check:
    here = sys.version_info[:2]
    text = ".".join(map(str, sys.version_info[:3]))
    if here < OLDEST:
        return Check("python", "fail", text, f"Python {OLDEST[0]}.{OLDEST[1]} or newer is needed")
    if here > NEWEST:
        return Check("python", "warn", text, f"newer than what was tried, {NEWEST[0]}.{NEWEST[1]}")
    return Check("python", "ok", text)


def _package() -> Check:
    from ..._version import SDK_VERSION, __version__

    official = _version("tinker")
    beside = f"; the official tinker {official} is installed beside it" if official else ""
    return Check("tinkex", "ok", f"{__version__}, like tinker {SDK_VERSION}{beside}")


def _distributions(name: str, wanted: tuple[str, ...], else_: str, hint: str) -> Check:
    found = {each: _version(each) for each in wanted}
    missing = [each for each, version in found.items() if version is None]
    if missing:
        text = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        return Check(name, "fail" if else_ == "fail" else "warn", text, hint)
    return Check(name, "ok", ", ".join(f"{each} {version}" for each, version in found.items()))


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
