"""The page about the cookbook: each of its commands is one that a test runs."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from tinkex import models

from .page import PAGE, ROOT, log_folder, promises, recipes, sections, serving, with_our_client


def test_every_command_is_run_by_some_test() -> None:
    blocks = {name: block for name, block in sections().items() if block}
    recipe_names = list(recipes())
    assert recipe_names == ["chat_sl", "math_rl", "dpo", "on_policy_distillation", "sl_loop", "rl_loop"]
    others = ["Install", "A folder to work in", "The server", "With our client", "Taking weights home"]
    assert sorted(blocks) == sorted([*others, *recipe_names])
    assert {name: len(block) for name, block in blocks.items() if len(block) > 1} == {
        "The server": 2,
        "chat_sl": 2,
    }
    assert blocks["chat_sl"][1] == "tinker checkpoint list --limit 0\ntinkex checkpoint list --limit 0\n"
    # The block with our client is the one of chat_sl, in another log folder.
    ours = with_our_client(recipes()["chat_sl"]).replace("runs/chat_sl", "runs/chat_sl_ours")
    assert blocks["With our client"] == [ours]


def test_the_variables_for_clients_fit_the_server() -> None:
    given, words = serving()
    assert words[:2] == ["tinkex", "serve"]
    exported = dict(re.findall(r"(TINKER_\w+)=(\S+)", sections()["The server"][1]))
    assert exported == {"TINKER_BASE_URL": "http://127.0.0.1:8787", **given}
    assert "--port" not in words


def test_every_recipe_is_promised_something_and_writes_to_a_folder_of_its_own() -> None:
    assert {promise.recipe for promise in promises()} == set(recipes())
    table = re.search(r"^\| recipe .*?\n\n", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert table is not None
    assert len(promises()) == table[0].strip().count("\n") - 1, "a row that cannot be read"
    folders = [log_folder(command) for command in recipes().values()]
    assert len(set(folders)) == len(folders)


def test_the_folder_has_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (command,) = sections()["A folder to work in"]
    program = ROOT / command.split()[1]
    monkeypatch.setattr(sys, "argv", [str(program), str(tmp_path)])
    for _ in range(2):  # a second time changes nothing
        runpy.run_path(str(program), run_name="__main__")
    tree = re.search(r"^```text\nwork/\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert tree is not None
    shown = [name for line in tree[1].splitlines() for name in line.split("  ")[1].split(", ")]
    assert len(shown) == 7
    assert [name for name in shown if not (tmp_path / name).exists()] == []
    assert (tmp_path / shown[0]).resolve() == models.resolve("nano")
    for file in tmp_path.rglob("*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        assert rows
        assert len({tuple(row) for row in rows}) == 1, "rows of one file have the same fields"
