"""Which tokenizer a model has, and loading it: a local folder first, then the server's files, then the hub.

The rules are a table; `resolve_tokenizer` only looks names up.  Loading happens once per tokenizer
and process, however many threads ask at the same time.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import fnmatch
import importlib
import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from ..config import Config
from ..errors import TinkerError, TokenizerError
from .connection import Connection
from .plain_tokenizer import PlainTokenizer
from .served_tokenizers import fetch_tokenizer

__all__ = ["TokenizerSource", "register_tokenizer", "resolve_tokenizer", "tokenizer_for"]

logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """Where a tokenizer comes from: a hub id or a folder, or a function that makes it.

    `trust_remote_code` runs code from that repository, so `revision` should pin it.
    """

    id: str
    revision: str | None = None
    trust_remote_code: bool = False
    folder: str | None = None
    load: Callable[[], Any] | None = None


Override: TypeAlias = tuple[str, TokenizerSource]

# Model names, the whole of which must match, and the id of their tokenizer.
_NAME_RULES: tuple[tuple[str, str], ...] = (
    # The originals are gated.
    (r"meta-llama/Llama-3.*", "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer"),
    (r"([^/]+/[^/]+)/[^/]+", r"\1"),  # org/model/variant
)

# Tokenizers that are code in their repository, at a revision that was looked at.
_PINS: dict[str, TokenizerSource] = {
    id: TokenizerSource(id, revision, trust_remote_code=True)
    for id, revision in {
        "moonshotai/Kimi-K2-Thinking": "612681931a8c906ddb349f8ad0f582cb552189cd",
        "moonshotai/Kimi-K2.5": "4d01dfe0332d63057c186e0b262165819efb6611",
        "moonshotai/Kimi-K2.6": "b5aabbfb20227ed42becbf5541dbffd213942c58",
        "moonshotai/Kimi-K3": "f831ab66814297da540d832a5235f8e904f29d06",
    }.items()
}
_PINS["moonshotai/Kimi-K2.5-Text-Only"] = _PINS["moonshotai/Kimi-K2.5"]

_UNPUBLISHED = ("TML/", "thinkingmachines/")  # in a package of their own, if anywhere


def resolve_tokenizer(
    model_name: str, tokenizer_id: str | None = None, overrides: Sequence[Override] = ()
) -> TokenizerSource:
    """The tokenizer of a model: an override, else the server's id, else by the model's name.

    `overrides` are (pattern, source) pairs, the last one that matches counts; a pattern such as
    `"my-org/*"` is compared with the model's name and the server's id.
    """
    given = _overridden(model_name, tokenizer_id, overrides)
    if given is not None:
        return given
    name, said = (text.partition(":")[0] for text in (model_name, tokenizer_id or ""))
    wanted = said or _by_name(name)
    if not wanted:
        raise TokenizerError(
            "the server names neither the model nor its tokenizer; "
            "load one yourself, or name it with tinkex.register_tokenizer('*', 'org/model')"
        )
    return _PINS.get(wanted) or TokenizerSource(wanted)


def _overridden(
    model_name: str, tokenizer_id: str | None, overrides: Sequence[Override]
) -> TokenizerSource | None:
    name, said = (text.partition(":")[0] for text in (model_name, tokenizer_id or ""))
    for pattern, source in reversed(overrides):
        if any(fnmatch.fnmatchcase(each, pattern) for each in (model_name, name, said) if each):
            return source
    return None


def _by_name(name: str) -> str:
    for pattern, id in _NAME_RULES:
        if found := re.fullmatch(pattern, name):
            return found.expand(id)
    return name


_registered: list[Override] = []


def register_tokenizer(pattern: str, source: Any) -> Callable[[], None]:
    """Use a tokenizer of one's own for models whose name matches; returns how to undo that.

    `source` is a hub id, a folder, a `TokenizerSource`, a function that makes a tokenizer, or one
    that is ready.
    """
    entry = (pattern, _as_source(pattern, source))
    _registered.append(entry)

    def undo() -> None:
        if entry in _registered:
            _registered.remove(entry)

    return undo


def _as_source(pattern: str, source: Any) -> TokenizerSource:
    if isinstance(source, TokenizerSource):
        return source
    if isinstance(source, os.PathLike) or (isinstance(source, str) and os.path.isdir(source)):
        folder = os.fspath(source)
        return TokenizerSource(folder, folder=folder)
    if isinstance(source, str):
        return _PINS.get(source) or TokenizerSource(source)
    if hasattr(source, "encode"):
        return TokenizerSource(pattern, load=lambda: source)
    if callable(source):
        return TokenizerSource(pattern, load=source)
    raise TokenizerError(f"register_tokenizer: a {type(source).__name__} is not a tokenizer nor names one")


# ---- loading


class _Cache:
    """What was loaded, by key; whoever comes while it is being loaded waits for that."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, concurrent.futures.Future[Any]] = OrderedDict()

    def get(self, key: Hashable, load: Callable[[], Any]) -> Any:
        with self._lock:
            known = self._known.get(key)
            mine = known is None
            if known is None:
                known = self._known[key] = concurrent.futures.Future()
                while len(self._known) > self._most:
                    self._known.popitem(last=False)
            self._known.move_to_end(key)
        if mine:
            try:
                known.set_result(load())
            except BaseException as error:
                with self._lock:  # the next one may have more luck
                    self._known.pop(key, None)
                known.set_exception(error)
        return known.result()


_cache = _Cache(32)


def _after_fork() -> None:
    global _cache
    _cache = _Cache(32)  # a load that was under way is under way in the parent only


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def tokenizer_for(connection: Connection, model_name: str, tokenizer_id: str | None) -> Any:
    """The tokenizer of a model, loaded if it is not yet; blocks."""
    config, overrides = connection.config, tuple(_registered)
    source = resolve_tokenizer(model_name, tokenizer_id, overrides)
    # Code is run from a folder the user named, never from one that happens to have the name here.
    here = not source.trust_remote_code
    folder = source.folder or _folder(config.tokenizer_dir, (source.id, model_name), here=here)
    if folder is None and model_name and _overridden(model_name, tokenizer_id, overrides) is None:
        folder = _served(connection, model_name)
        if folder is not None:
            source = TokenizerSource(model_name)  # whatever the hub has, these files hold no code
    key = (source, folder, config.offline, config.plain_tokenizers)
    return _cache.get(key, lambda: _load(source, folder, config))


def _served(connection: Connection, model_name: str) -> str | None:
    """A folder with the files the server itself has for a model; asked for once per server and model."""
    key = ("served", connection.config.base_url, model_name)
    try:
        folder: str | None = _cache.get(key, lambda: fetch_tokenizer(connection, model_name))
    except TinkerError as problem:
        logger.info("%s hands out no tokenizer of %s: %s", connection.config.base_url, model_name, problem)
        return None
    return folder


_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "tiktoken.model")


def _folder(root: str | None, names: Sequence[str], *, here: bool = True) -> str | None:
    """A local folder with a tokenizer for one of these names, also (`here`) in the working folder."""
    places = []
    if root is not None:
        top = Path(root).expanduser()
        inside = [
            name for name in names if name and ".." not in Path(name).parts and not Path(name).is_absolute()
        ]
        for name in inside:
            places += [top / name, top / name.replace("/", "--"), top / name.rpartition("/")[2]]
        places.append(top)
    places += [Path(name) for name in names if name and here]
    for place in places:
        if any((place / file).is_file() for file in _FILES):
            return str(place)
    return None


def _load(source: TokenizerSource, folder: str | None, config: Config) -> Any:
    if source.load is not None:
        return source.load()
    if folder is not None:
        return _from_folder(source, folder, config.plain_tokenizers)
    if source.id.startswith(_UNPUBLISHED):
        return _unpublished(source)
    try:
        return _from_hub(source, config.offline)
    except TokenizerError:
        raise
    except Exception as problem:
        why = "this client is offline and has no copy" if config.offline else f"{problem}"
        raise TokenizerError(
            f"the tokenizer {source.id!r} could not be loaded: {why}. {_advice(source)}"
        ) from problem


def _advice(source: TokenizerSource) -> str:
    return (
        "Put its files into a folder and name that with tokenizer_dir=… or TINKER_TOKENIZER_DIR "
        f"(directly, or as {source.id} below it), or give one with tinkex.register_tokenizer(…)."
    )


def _from_folder(source: TokenizerSource, folder: str, preferred: bool) -> Any:
    plain = Path(folder, "tokenizer.json").is_file()
    if preferred and plain:
        with contextlib.suppress(TokenizerError):
            return PlainTokenizer.from_folder(folder)
    auto = _transformers()
    try:
        if auto is None:
            return PlainTokenizer.from_folder(folder)
        return auto.from_pretrained(
            folder, trust_remote_code=source.trust_remote_code, local_files_only=True
        )
    except Exception as problem:
        if auto is None or not plain:
            raise TokenizerError(f"the tokenizer in {folder} could not be loaded: {problem}") from problem
        # A bare tokenizer.json is enough to encode and decode, if not for transformers.
        logger.info("transformers cannot load %s (%s); its tokenizer.json is used alone", folder, problem)
        return PlainTokenizer.from_folder(folder)


def _from_hub(source: TokenizerSource, offline: bool) -> Any:
    auto = _transformers()
    if auto is not None:
        return auto.from_pretrained(
            source.id,
            revision=source.revision or "main",
            trust_remote_code=source.trust_remote_code,
            local_files_only=offline,
        )
    if source.trust_remote_code:
        raise TokenizerError(
            f"the tokenizer {source.id!r} is code: pip install transformers. {_advice(source)}"
        )
    try:
        hub = importlib.import_module("huggingface_hub")
        importlib.import_module("tokenizers")
    except ImportError:
        raise TokenizerError(
            f"loading the tokenizer {source.id!r} needs pip install 'tinkex[tokenizers]'. {_advice(source)}"
        ) from None
    folder = hub.snapshot_download(
        source.id, revision=source.revision, allow_patterns=PlainTokenizer.FILES, local_files_only=offline
    )
    return PlainTokenizer.from_folder(folder)


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers").AutoTokenizer
    except ImportError:
        return None


def _unpublished(source: TokenizerSource) -> Any:
    try:
        made = importlib.import_module("tml_tokenizers.tinker_tokenizers").get_tinker_tokenizer(source.id)
    except ImportError:
        made = None
    if made is None:
        raise TokenizerError(
            f"the tokenizer of {source.id!r} is not published: render conversations with the tml-renderers "
            "package (https://pypi.org/project/tml-renderers/), install tml_tokenizers if you have access, "
            f"or give a tokenizer of your own: tinkex.register_tokenizer({source.id!r}, …)"
        )
    return made
