"""From a model's name to its folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tinkex import models
from tinkex.errors import InvalidArgumentError


def make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("TINKEX_MODELS", os.pathsep.join(["", str(tmp_path / "missing"), str(shelf)]))
    return shelf


@pytest.mark.parametrize("form", ["absolute", "./x", "../here/x", "x"])
def test_a_folder_is_itself(shelf: Path, form: str):
    folder = make(Path.cwd() / "x")
    assert models.resolve(str(folder) if form == "absolute" else form) == folder


def test_a_home_that_is_not_there_is_refused(shelf: Path):
    with pytest.raises(InvalidArgumentError, match="'~no-such-user/x': there is no such home folder"):
        models.resolve("~no-such-user/x")


def test_home_is_understood(shelf: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(shelf))
    mine = make(shelf / "mine")
    assert models.resolve("~/mine") == mine


@pytest.mark.parametrize("name", ["qwen", "Qwen/Qwen3-8B"])
def test_a_name_is_looked_up_on_the_shelves(shelf: Path, name: str):
    folder = make(shelf / name)
    assert models.resolve(name) == folder
    assert name in models.known()


def test_the_package_s_own_are_found_last(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    embedded = make(tmp_path / "package" / "nano")
    monkeypatch.setattr(models, "EMBEDDED", tmp_path / "package")
    assert models.resolve("nano") == embedded
    mine = make(shelf / "nano")
    assert models.resolve("nano") == mine


def test_what_is_not_known_is_refused_with_what_is(shelf: Path):
    make(shelf / "org" / "a")
    make(shelf / "b")
    with pytest.raises(
        InvalidArgumentError, match=r"'nope'.*NAME=FOLDER.*TINKEX_MODELS.*Known here: b, .*org/a"
    ):
        models.resolve("nope")


TOO_LONG = "/" + 300 * "a"


@pytest.mark.parametrize("name", ["./empty", "empty", "/does/not/exist", TOO_LONG, ""])
def test_what_is_no_model_is_refused(shelf: Path, name: str):
    (Path.cwd() / "empty").mkdir()
    known = {"": "is empty", "/does/not/exist": "there is no folder", TOO_LONG: "too long"}
    said = known.get(name, "has no config.json")
    with pytest.raises(InvalidArgumentError, match=said):
        models.resolve(name)


@pytest.mark.parametrize(
    ("name", "path"),
    [("/a", True), ("./a", True), ("../a", True), ("~/a", True), (".", True),
     ("a", False), ("org/a", False), ("a.b/c", False), (".hidden/a", False)],
)  # fmt: skip
def test_what_is_written_as_a_path(name: str, path: bool):
    assert models.is_path(name) is path
