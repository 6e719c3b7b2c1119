"""`tinkex completion`: what shells offer is what the parsers take."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tinkex.cli.completion import MAKERS, nodes
from tinkex.cli.main import COMMANDS
from tinkex.cli.tree import walk

from .conftest import Command


def offered(tmp_path: Path, *words: str) -> list[str]:
    """What bash offers for the last word."""
    script = tmp_path / "complete.bash"
    script.write_text(MAKERS["bash"]())
    spelled = " ".join(f"'{word}'" for word in words)
    program = (
        f"source {script}; COMP_WORDS=(tinkex {spelled}); COMP_CWORD={len(words)}; _tinkex; "
        "printf '%s\\n' ${COMPREPLY[@]}"
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr == ""
    return done.stdout.split()


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


@needs_bash
@pytest.mark.parametrize(
    ("words", "some"),
    [
        ([""], set(COMMANDS)),
        (["che"], {"checkpoint"}),
        (["run", ""], {"list", "info", "delete", "--json"}),
        (["--json", "run", "l"], {"list"}),
        (["run", "list", "--"], {"--limit", "--columns", "--base-url", "--quiet"}),
        (["train", "x.jsonl", "--schedule", ""], {"linear", "cosine", "constant"}),
        (["train", "--schedule", "lin"], {"linear"}),
        (["-f", "j"], {"json"}),
        (["completion", "f"], {"fish"}),
    ],
)
def test_bash_offers_what_there_is(tmp_path: Path, words: list[str], some: set[str]):
    found = set(offered(tmp_path, *words))
    assert some <= found
    assert all(each.startswith(words[-1]) for each in found)


@needs_bash
def test_bash_offers_files_where_options_take_them(tmp_path: Path):
    (tmp_path / "prompts.jsonl").write_text("")
    assert offered(tmp_path, "sample", "-i", "pro") == ["prompts.jsonl"]
    assert offered(tmp_path, "train", "prom") == ["prompts.jsonl"]


@pytest.mark.parametrize("shell", MAKERS)
def test_every_command_and_option_is_there(cli: Command, shell: str):
    done = cli("completion", shell)
    assert (done.code, done.err) == (0, "")
    for node in nodes():
        for option in node.options:
            for word in option.words:
                bare = word.lstrip("-")
                assert (
                    word if shell != "fish" else f"-{'l' if word.startswith('--') else 's'} {bare}"
                ) in done.out
    assert cli("completion", shell, "--json").data["shell"] == shell
    assert len(nodes()) == 1 + len(list(walk()))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_read_by_its_shell(shell: str):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    done = subprocess.run([shell, "-n"], input=MAKERS[shell](), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_there_is_no_other_shell(cli: Command):
    assert cli("completion", "tcsh").code == 2
