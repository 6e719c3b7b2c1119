"""Settings take what they can mean and refuse the rest in words, whatever they are given."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinkex.config import Secret
from tinkex.errors import InvalidArgumentError
from tinkex.server import config_file
from tinkex.server.config_file import Value
from tinkex.server.options import ServerOptions
from tinkex.server.places import default_state
from tinkex.server.settings import SETTINGS, Setting

KINDS = {"flag": bool, "whole": int, "number": float, "text": str, "path": Path, "secret": Secret,
         "rates": dict, "models": tuple}  # fmt: skip
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12),
    st.sampled_from(["1", "0", "yes", "nan", "inf", "-1", "1e3", "1MB", " 7 ", "process"]),
    st.sampled_from(["~", "~0/x", "a=b", "=", ","]),
)  # fmt: skip
ANYTHING = st.one_of(
    PLAIN, st.lists(PLAIN, max_size=3), st.dictionaries(st.text(max_size=5), PLAIN, max_size=3)
)


def read(setting: Setting, given_value: Any) -> tuple[Any, str]:
    """The value, or what is said against it."""
    try:
        return setting.read(given_value, "--here"), ""
    except InvalidArgumentError as problem:
        return None, str(problem)


@settings(max_examples=400)
@given(name=st.sampled_from(sorted(SETTINGS)), given_value=ANYTHING)
def test_a_setting_takes_what_it_can_mean_or_says_what_is_wrong(name: str, given_value: Any):
    setting = SETTINGS[name]
    value, refusal = read(setting, given_value)
    if refusal:
        assert refusal.startswith("--here")
        return
    assert type(value) is type(Path()) if setting.kind == "path" else isinstance(value, KINDS[setting.kind])
    if setting.choices:
        assert value in setting.choices
    if setting.kind in ("whole", "number"):
        assert 0 <= value < math.inf


@given(text=st.text(min_size=1).filter(str.strip))
def test_a_credential_is_not_quoted(text: str):
    assert read(SETTINGS["api_key"], text) == (Secret(text.strip()), "")
    for wrong in (3, [text], {text: text}):
        assert read(SETTINGS["api_key"], wrong) == (None, "--here: is not proper secret")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("1k", 1 << 10), ("2 MB", 2 << 20), ("3MiB", 3 << 20), ("1g", 1 << 30), ("1 TiB", 1 << 40)],
)  # fmt: skip
def test_sizes(text: str, value: int):
    assert SETTINGS["limits.body_bytes"].read(text, "x") == value


@pytest.mark.parametrize("name", ["limits.body_bytes", "port", "snapshot_seconds"])
@pytest.mark.parametrize("value", [10**400, "1" + 400 * "0"], ids=["number", "text"])
def test_a_number_no_machine_has_is_refused(name: str, value: Any):
    assert "--here" in read(SETTINGS[name], value)[1]


def values() -> st.SearchStrategy[dict[str, Value]]:
    """Any settings that can be, as the environment would say them."""

    def of(setting: Setting) -> st.SearchStrategy[Any]:
        if setting.choices:
            return st.sampled_from(setting.choices)
        if setting.kind == "rates":
            return st.dictionaries(
                st.sampled_from(["training", "sampling_sample"]), st.floats(0, 9), min_size=1
            )
        if setting.kind == "models":
            return st.just((("a", "/x"), ("b c", None)))
        word = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1).filter(
            lambda text: text == text.strip() != ""
        )
        kinds: dict[str, st.SearchStrategy[Any]] = {
            "flag": st.booleans(),
            "whole": st.integers(1, 65535),
            "number": st.floats(0.001, 1e6),
            "text": word,
            "path": word.filter(lambda text: text[0] != "~").map(Path),
        }
        return kinds[setting.kind]

    chosen = {name: of(setting) for name, setting in SETTINGS.items() if setting.kind != "secret"}
    return st.fixed_dictionaries({}, optional=chosen).map(
        lambda drawn: {name: Value(value, "here") for name, value in drawn.items()}
    )


@settings(max_examples=60, deadline=None)
@given(layer=values())
def test_what_is_shown_is_a_config_file_that_says_the_same(
    layer: dict[str, Value], tmp_path_factory: pytest.TempPathFactory
):
    path = tmp_path_factory.getbasetemp() / "shown.toml"
    text = config_file.written(layer)
    tomllib.loads(text)
    path.write_text(text, encoding="utf-8")
    again = config_file.from_file(path)
    for name, setting in SETTINGS.items():
        if name in layer:
            assert again[name].value == layer[name].value
        elif name in again:
            assert again[name].value == setting.default


@pytest.mark.parametrize(
    ("platform", "environ", "ends"),
    [
        ("linux", {"XDG_STATE_HOME": "/x"}, "/x/tinkex"),
        ("linux", {}, ".local/state/tinkex"),
        ("darwin", {}, "Library/Application Support/tinkex"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/tinkex"),
        ("linux", {"TINKEX_STATE": "/elsewhere", "XDG_STATE_HOME": "/x"}, "/elsewhere"),
    ],
)
def test_where_the_state_is(
    platform: str, environ: dict[str, str], ends: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tinkex.server.places.sys.platform", platform)
    assert default_state(environ).as_posix().endswith(ends)


def test_a_state_folder_named_from_here_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    options = ServerOptions((), Path("state"))
    monkeypatch.chdir(tmp_path.parent)
    assert options.state == tmp_path / "state"
