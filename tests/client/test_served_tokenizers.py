"""Tokenizers a server hands out: fetched once, checked, kept by content; the old ways still work."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.client.rig import Rig
from tests.client.test_tokenizers import MODEL, write_tokenizer
from tinkex.client import served_tokenizers
from tinkex.client import tokenizers as module
from tinkex.client.served_tokenizers import cache_folder
from tinkex.errors import TokenizerError

pytest.importorskip("tokenizers")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINKEX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    module._after_fork()
    return tmp_path / "cache" / "tokenizers"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the hub was asked for; it has nothing."""
    asked: list[str] = []

    def nothing(source: Any, offline: bool) -> Any:
        asked.append(source.id)
        raise OSError("no such repository")

    monkeypatch.setattr(module, "_from_hub", nothing)
    return asked


def _rig(tmp_path: Path, **files: bytes) -> Rig:
    rig = Rig()
    made = write_tokenizer(tmp_path / "made")
    rig.service.tokenizer_files[MODEL] = {path.name: path.read_bytes() for path in made.iterdir()}
    rig.service.tokenizer_files[MODEL] |= files
    return rig


def _asked(rig: Rig) -> list[str]:
    return [call.route for call in rig.service.calls if call.route and "tokenizer" in call.route]


def test_files_are_fetched_once_and_kept_by_content(tmp_path: Path, cache: Path, hub: list[str]) -> None:
    rig = _rig(tmp_path)
    first = rig.trainer().get_tokenizer()
    assert first.encode("hello") == rig.trainer().get_tokenizer().encode("hello")
    assert _asked(rig) == ["list_tokenizer_files", "get_tokenizer_file", "get_tokenizer_file"]
    (folder,) = cache.iterdir()
    module._after_fork()  # as another process would
    assert rig.trainer().get_tokenizer().encode("hello") == first.encode("hello")
    assert _asked(rig).count("get_tokenizer_file") == 2
    assert list(cache.iterdir()) == [folder]
    assert hub == []


def test_code_and_other_files_are_not_taken(tmp_path: Path, cache: Path, hub: list[str]) -> None:
    rig = _rig(tmp_path, **{"tokenization_evil.py": b"raise SystemExit", "model.safetensors": b"x"})
    rig.trainer().get_tokenizer()
    (folder,) = cache.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]


def test_a_server_without_tokenizers_is_as_before(tmp_path: Path, hub: list[str]) -> None:
    for rig in (Rig(), Rig(without=["list_tokenizer_files"])):
        with pytest.raises(TokenizerError):
            rig.trainer().get_tokenizer()
        module._after_fork()
    assert hub == [MODEL, MODEL]


def test_a_server_that_fails_is_asked_for_a_while_and_then_the_hub(tmp_path: Path, hub: list[str]) -> None:
    rig = _rig(tmp_path)
    rig.service.faults.add("list_tokenizer_files", status=500)
    with pytest.raises(TokenizerError):
        rig.trainer().get_tokenizer()
    assert hub == [MODEL]
    rig.service.faults.clear()
    assert rig.trainer().get_tokenizer() is not None


def test_files_that_are_not_what_was_announced_are_not_used(
    tmp_path: Path, cache: Path, hub: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = _rig(tmp_path)
    rig.service.faults.add("get_tokenizer_file", status=200, body=b"{}")
    with pytest.raises(TokenizerError):
        rig.trainer().get_tokenizer()
    assert not cache.exists()
    assert hub == [MODEL]


def test_one_that_is_too_large_is_not_fetched(
    tmp_path: Path, hub: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_tokenizers, "LARGEST", 100)
    rig = _rig(tmp_path)
    with pytest.raises(TokenizerError):
        rig.trainer().get_tokenizer()
    assert _asked(rig) == ["list_tokenizer_files"]


def test_what_the_user_gave_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: list[str]
) -> None:
    rig = _rig(tmp_path)
    own = write_tokenizer(tmp_path / "own" / MODEL)
    monkeypatch.setenv("TINKER_TOKENIZER_DIR", str(tmp_path / "own"))
    assert rig.trainer().get_tokenizer().name_or_path == str(own)
    monkeypatch.delenv("TINKER_TOKENIZER_DIR")
    undo = module.register_tokenizer("Qwen/*", lambda: "mine")
    try:
        assert rig.trainer().get_tokenizer() == "mine"
    finally:
        undo()
    assert _asked(rig) == []


def test_without_a_place_to_keep_them_they_last_as_long_as_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: list[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TINKEX_CACHE", str(tmp_path / "file"))
    rig = _rig(tmp_path)
    assert rig.trainer().get_tokenizer().encode("a")


def test_where_files_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TINKEX_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_folder() == tmp_path / ".cache" / "tinkex" / "tokenizers"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x" / "tinkex" / "tokenizers"
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder() == tmp_path / "Library" / "Caches" / "tinkex" / "tokenizers"


def test_a_folder_is_named_after_what_is_in_it(tmp_path: Path, cache: Path, hub: list[str]) -> None:
    rig = _rig(tmp_path)
    rig.trainer().get_tokenizer()
    module._after_fork()
    files = rig.service.tokenizer_files[MODEL]
    files["tokenizer.json"] = files["tokenizer.json"] + b"\n"
    assert hashlib.sha256(files["tokenizer.json"])
    rig.trainer().get_tokenizer()
    assert len(list(cache.iterdir())) == 2
