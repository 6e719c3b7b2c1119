"""Files that others may have written: archives, models, tokenizers, settings, keys, conversations."""

from __future__ import annotations

import functools
import gzip
import io
import json
import shutil
import struct
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tinkex.cli.chats import ChatFormat
from tinkex.cli.output import CommandError
from tinkex.cli.training_data import Dataset, read_chats
from tinkex.client.archives import unpack
from tinkex.client.plain_tokenizer import PlainTokenizer
from tinkex.errors import DownloadError, InvalidArgumentError, TokenizerError
from tinkex.models.facts import read_facts
from tinkex.server import key_file
from tinkex.server.config_file import build, from_environment, from_file, lay, written
from tinkex.server.sample_journal import SampleJournal
from tinkex.server.settings import SETTINGS
from tinkex.testing import make_tiny_model

from .mutation import changed, damaged, headed, json_text
from .running import Target


@functools.cache
def place() -> Path:
    """A folder of this process, gone when it ends."""
    root = "/dev/shm" if Path("/dev/shm").is_dir() else None
    _kept.append(tempfile.TemporaryDirectory(prefix="tinkex-fuzz-", dir=root, ignore_cleanup_errors=True))
    return Path(_kept[0].name)


_kept: list[tempfile.TemporaryDirectory[str]] = []


@functools.cache
def model() -> Path:
    """A model's folder as it should be."""
    return make_tiny_model(place() / "model", context=64, layers=1, hidden=32, vocab=259)


def written_to(name: str, data: bytes) -> Path:
    """A file with these bytes."""
    path = place() / name
    path.write_bytes(data)
    path.chmod(0o600)
    return path


# ---- archives


def _tar(*members: tuple[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        folder = tarfile.TarInfo("sub")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    return made.getvalue()[:4096]


def _linked() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        info = tarfile.TarInfo("a")
        info.type, info.linkname = tarfile.SYMTYPE, "../b"
        tar.addfile(info)
    return made.getvalue()[:2048]


def _archives() -> list[bytes]:
    files = ("adapter_config.json", b"{}"), ("sub/é" + "x" * 120, b"abc" * 50)
    plain = _tar(*files)
    sparse = _tar(("s", b"1\n0\n3\n" + bytes(506) + b"abc"))
    return [plain, _tar(*files, form=tarfile.GNU_FORMAT), _linked(), sparse, _bomb()]


@functools.cache
def _bomb() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        info = tarfile.TarInfo("zeros")
        info.size = 1 << 26
        tar.addfile(info, io.BytesIO(bytes(info.size)))
    return gzip.compress(made.getvalue(), 9)


def _tar_changed(rng: Random, corpus: Sequence[bytes]) -> bytes:
    """An archive with changes and, mostly, checksums that are right all the same."""
    data = bytearray(changed(rng, rng.choice(corpus), corpus))
    if rng.random() < 0.3:
        at = 512 * rng.randrange(len(data) // 512 + 1)
        field = rng.choice(((0, 100), (100, 8), (124, 12), (156, 1), (157, 100), (257, 8), (345, 155)))
        words = (
            b"\x80" + b"\xff" * 11,
            b"777777777777",
            b"../x",
            b"K",
            b"x",
            b"g",
            b"S",
            b"L",
            b"5",
            b"/a",
        )
        data[at + field[0] : at + field[0] + field[1]] = rng.choice(words)[: field[1]].ljust(
            field[1], b"\0"
        )
    if rng.random() < 0.9 and data[:2] != b"\x1f\x8b":
        for at in range(0, len(data) - 511, 512):
            block = data[at : at + 512]
            if any(block):
                total = sum(block[:148]) + 8 * 32 + sum(block[156:])
                data[at + 148 : at + 156] = b"%06o\0 " % total
    return gzip.compress(bytes(data), 1) if rng.random() < 0.1 else bytes(data)


def _unpack(data: bytes) -> object:
    target = place() / "unpacked"
    target.mkdir()
    outside = sorted(entry.name for entry in place().iterdir())
    try:
        files = unpack(written_to("archive", data), target, 1 << 20)
        found = {
            str(path.relative_to(target)): path.stat().st_size
            for path in target.rglob("*")
            if path.is_file()
        }
        assert found == files
        assert sum(files.values()) <= 1 << 20
        return files
    finally:
        shutil.rmtree(target)
        left = {entry.name for entry in place().iterdir()} - {*outside, "archive"}
        assert not left, f"files outside: {left}"


# ---- models and tokenizers


def _safetensors(**tensors: tuple[str, list[int], bytes]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + b"".join(data for _, _, data in tensors.values())


def _weights() -> list[bytes]:
    return [_safetensors(a=("F32", [2, 2], bytes(16)), b=("BF16", [3], bytes(6)))]


def _facts(name: str) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        folder = place() / "seen"
        if not folder.is_dir():
            shutil.copytree(model(), folder)
            (folder / "model.safetensors").write_bytes(_weights()[0])
        kept = (folder / name).read_bytes() if (folder / name).is_file() else b"{}"
        (folder / name).write_bytes(data)
        try:
            found = read_facts("m", folder)
            json.dumps([found.architecture, found.parameters, found.dtype, found.source, found.problem])
            return found
        finally:
            (folder / name).write_bytes(kept)

    return read


def _small_tokenizer() -> dict[str, Any]:
    """The tokenizer with few words, quick to read."""
    held: dict[str, Any] = json.loads((model() / "tokenizer.json").read_bytes())
    return held


def _tokenizer(name: str) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        folder = place() / "tokens"
        if not folder.is_dir():
            folder.mkdir()
            for each in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(model() / each, folder / each)
        kept = (folder / name).read_bytes() if (folder / name).is_file() else None
        (folder / name).write_bytes(data)
        try:
            loaded = PlainTokenizer.from_folder(str(folder))
            ids = loaded.encode("a b é")
            loaded.decode(ids)
            return loaded.all_special_ids
        finally:
            if kept is None:
                (folder / name).unlink()
            else:
                (folder / name).write_bytes(kept)

    return read


def _file(name: str) -> Callable[[], list[bytes]]:
    return lambda: [(model() / name).read_bytes()]


_TEMPLATES = [
    b'{"chat_template": [{"name": "default", "template": "{{ messages }}"}]}',
    b'{"eos_token": {"content": "</s>"}, "bos_token": "<s>", "chat_template": "x"}',
]


# ---- settings and keys


def _toml() -> list[bytes]:
    groups: dict[str, list[str]] = {}
    for setting in SETTINGS.values():
        value = setting.default
        text = (
            json.dumps(value)
            if isinstance(value, (bool, int, float, str)) and setting.kind != "secret"
            else None
        )
        if text is not None and value == value:
            groups.setdefault(setting.group, []).append(f"{setting.short} = {text}")
    lines = groups.pop("", [])
    for group, inner in groups.items():
        lines += [f"[{group}]", *inner]
    own = [f'models = ["m={model()}"]', 'state = "~/x"', 'rates = {training = 1.5, sampling_sample = "2"}']
    return [
        "\n".join([*own, *lines]).encode(),
        "\n".join(lines).encode(),
        b'api_key = "tml-x"\nmodels = "a=b,c"',
    ]


def _config(data: bytes) -> object:
    layer = from_file(written_to("config.toml", data))
    written(lay([layer]))
    return build(lay([layer]))


def _environment(data: bytes) -> object:
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    given = {name: value for name, _, value in (line.partition("=") for line in lines)}
    return build(lay([from_environment(given)]))


def _variables() -> list[bytes]:
    lines = [
        f"{setting.variable}={setting.default}"
        for setting in SETTINGS.values()
        if isinstance(setting.default, (bool, int, float, str))
    ]
    return [
        "\n".join([*lines, f"TINKEX_MODEL=m={model()}"]).encode(),
        b"TINKEX_PORT=80\nTINKEX_RATES=a=1,b=2",
    ]


def _keys() -> list[bytes]:
    key = {
        "id": 1,
        "name": "first",
        "owner": "ann",
        "note": "",
        "digest": "0" * 64,
        "hint": "abcd",
        "created": 1.5,
        "revoked": None,
    }
    return [json.dumps({"version": 1, "keys": [key, {**key, "id": 2, "revoked": 2}]}).encode()]


def _read_keys(data: bytes) -> object:
    found = key_file.read(written_to("keys.json", data))
    with key_file.change(place() / "keys.json"):
        pass
    assert key_file.read(place() / "keys.json") == found
    return found


def _journal(data: bytes) -> object:
    path = written_to("journal", data)
    journal = SampleJournal(path)
    ids = journal.open()
    journal.add("s:sample:0:1")
    journal.close()
    again = SampleJournal(path).open()
    assert set(again) == {*ids, "s:sample:0:1"}
    return ids


# ---- conversations


@functools.cache
def _format() -> ChatFormat:
    return ChatFormat(PlainTokenizer.from_folder(str(model())))


def _chats() -> list[bytes]:
    lines = [
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]},
        {"messages": [{"role": "system", "content": "é😀"}, {"role": "user", "content": "<|im_end|>"}]},
        {"messages": [{"role": "assistant", "content": ""}], "extra": [1]},
    ]
    return [json.dumps(each).encode() for each in lines]


def _chat_lines(rng: Random, corpus: Sequence[bytes]) -> bytes:
    lines = [json_text(rng, corpus)] + [rng.choice(corpus) for _ in range(rng.randrange(3))]
    rng.shuffle(lines)
    return rng.choice((b"\n", b"\r\n", b"\n\n")).join(lines)


def _train_on(data: bytes) -> object:
    chats = read_chats(written_to("chats.jsonl", data))
    return Dataset.of(chats, _format(), "all", 64).everything()


TARGETS = [
    Target("tar", _archives, _unpack, (DownloadError,), _tar_changed, 0.5),
    Target("safetensors facts", _weights, _facts("model.safetensors"), (), headed("Q"), 0.5),
    Target("model config", _file("config.json"), _facts("config.json"), (), json_text, 0.4),
    Target("model note", lambda: [b'{"source": "the hub: a"}'], _facts("added.json"), (), json_text, 0.2),
    Target(
        "tokenizer", _file("tokenizer.json"), _tokenizer("tokenizer.json"), (TokenizerError,), json_text,
        0.05,
    ),
    Target(
        "tokenizer settings", lambda: [*_TEMPLATES, *_file("tokenizer_config.json")()],
        _tokenizer("tokenizer_config.json"), (TokenizerError,), json_text, 0.1,
    ),
    Target(
        "chat template file", lambda: [_TEMPLATES[0], b"{{ messages }}"], _tokenizer("chat_template.jinja"),
        (TokenizerError,), damaged, 0.1,
    ),
    Target("config file", _toml, _config, (InvalidArgumentError,), damaged, 0.3),
    Target("environment", _variables, _environment, (InvalidArgumentError,), damaged, 0.3),
    Target("keys file", _keys, _read_keys, (key_file.KeysError,), json_text, 0.3),
    Target("sample journal", lambda: [b"+a:sample:0:1\n+b\n-b\n+c"], _journal, (), damaged, 0.3),
    Target("chats", _chats, _train_on, (CommandError,), _chat_lines, 0.3),
]  # fmt: skip
