"""What the documents say is true: their code runs and prints what they show, their commands and names
exist, their tables and numbers are the code's."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import tinkex
from tinkex import testing, types
from tinkex.cli.main import COMMANDS, parser_of
from tinkex.cli.output import UsageError
from tinkex.client import polling, sample_runner, telemetry
from tinkex.client.connection import Shared
from tinkex.client.retry_config import RetryConfig
from tinkex.config import Config
from tinkex.net import policy
from tinkex.net.clock import SystemClock
from tinkex.net.lanes import make_transport
from tinkex.types import ClientConfigResponse
from tinkex.wire import headers

from .markdown import blocks, commands, differences, inline

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BEHAVIOUR = ROOT / "docs" / "behaviour.md"
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
_SECTION = re.compile(r"\]\(([^)#:]*)#([^)]+)\)")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


every_page = pytest.mark.parametrize("page", PAGES, ids=name)


# ---- code


def run(page: Path) -> int:
    """Run a page's Python from top to bottom, compare what it prints; how many blocks there were."""
    names: dict[str, Any] = {"__name__": "page"}
    count, said = 0, io.StringIO()
    for block in blocks(page):
        if block.language == "python":
            # Blank lines in front make a traceback point into the page.
            code = compile("\n" * block.line + block.text, str(page), "exec")
            count += 1
            with contextlib.redirect_stdout(said):
                exec(code, names)
        elif block.printed:
            assert differences(block.text, said.getvalue()) == [], f"{name(page)}, line {block.line}"
        if block.language != "python" or block.printed:
            said = io.StringIO()
    return count


def runnable(page: Path) -> bool:
    return any(block.language == "python" for block in blocks(page))


@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=name)
def test_the_code_of_a_page_runs_and_prints_what_it_shows(
    page: Path, local_state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    monkeypatch.setenv("TINKEX_STATE", str(local_state))
    monkeypatch.setenv("TINKER_BASE_URL", "local")
    monkeypatch.chdir(tmp_path)
    assert run(page) > 0


def test_there_is_code_to_run():
    names = {name(page) for page in PAGES if runnable(page)}
    assert names >= {"README.md", "docs/quickstart.md", "docs/behaviour.md", "docs/guides/rl.md"}


def page_of(tmp_path: Path, *parts: str) -> Path:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n" + "\n\n".join(parts) + "\n")
    return page


def test_a_block_that_fails_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.test_docs.name", str)
    page = page_of(tmp_path, "```python\nfine = 1\n```", "text", "```python\nfine + missing\n```")
    assert [block.line for block in blocks(page)] == [3, 9]
    with pytest.raises(NameError, match="missing"):
        run(page)


@pytest.mark.parametrize(
    ("printed", "shown", "right"),
    [
        ("a 1.0\nb 20", "a 1.1\nb  20", True),
        ("b 20", "b 19", False),
        ("a 1.0", "a 2.0", False),
        ("a 1.0", "b 1.0", False),
        ("a\nb", "a", False),
        ("a", "a\nb", False),
        ("a\nb\nc\nd 5", "a\n…\nd 5", True),
        ("path tinker://s-1:train:0/x", "path tinker://…/x", True),
        ("loss 0.01", "loss 0.04", True),
        ("", "", True),
    ],
)
def test_output_that_differs_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, shown: str, right: bool
):
    monkeypatch.setattr("tests.test_docs.name", str)
    code = f"```python\nprint({printed!r})\n```"
    page = page_of(tmp_path, code, f"<!-- prints -->\n```text\n{shown}\n```")
    if right:
        assert run(page) == 1
    else:
        with pytest.raises(AssertionError, match=r"page"):
            run(page)


# ---- commands, files, names

# What a reader runs that is not ours.
FOREIGN = frozenset({"curl", "tinker", "vllm"})
RUN_ELSEWHERE = "cookbook.md"  # tests/cookbook runs its commands from top to bottom
LANGUAGES = frozenset({"bash", "ini", "json", "nginx", "python", "text", "toml"})


@every_page
def test_every_block_is_of_a_kind_that_is_checked(page: Path):
    for block in blocks(page):
        assert block.language in LANGUAGES, f"line {block.line}"
        if block.language == "json":
            json.loads(block.text)
        if block.language == "toml":
            assert tomllib.loads(block.text)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != RUN_ELSEWHERE], ids=name)
def test_every_command_on_a_page_exists(page: Path):
    for block in blocks(page):
        if block.language == "bash":
            for words in commands(block.text):
                check_command(words)


def check_command(words: list[str]) -> None:
    """Refuse a command that does not exist, or options and files it does not have."""
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        check_variable(words.pop(0).partition("=")[0])
    if not words:
        return
    first, rest = words[0], words[1:]
    if first == "export":
        for each in rest:
            check_variable(each.partition("=")[0])
    elif first == "tinkex":
        check_tinkex(rest)
    elif first == "pip":
        check_install(rest)
    elif first == "python" and rest[0] == "-m":
        assert importlib.util.find_spec(rest[1]) is not None, words
    elif first == "python":
        assert rest[0].endswith("your_program.py") or (ROOT / rest[0]).is_file(), words
    else:
        assert first in FOREIGN, words


def check_tinkex(words: list[str]) -> None:
    while words[0] in ("--json", "--quiet", "-q"):
        words = words[1:]
    assert words[0] in COMMANDS, words
    if "--help" not in words:
        parser_of(words[0]).parse_args(words[1:])  # refuses what it does not know


def check_install(words: list[str]) -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert words[0] == "install"
    for word in words[1:]:
        found = re.fullmatch(r"(?:tinkex|\.)\[([\w,]+)\]", word)
        if found:
            assert set(found[1].split(",")) <= set(known), word


def variables() -> set[str]:
    """The names of the environment that the package reads."""
    found = set(re.findall(r"\bTINK(?:ER|EX)_[A-Z_]+\b", (ROOT / "docs" / "server.md").read_text()))
    for path in (ROOT / "src").rglob("*.py"):
        found |= set(re.findall(r"\bTINK(?:ER|EX)_[A-Z_]+\b", path.read_text()))
    return found


def check_variable(variable: str) -> None:
    if variable.startswith(("TINKER_", "TINKEX_")):
        assert variable in variables(), f"nothing reads {variable}"


def test_every_variable_that_is_read_is_on_a_page():
    read = re.compile(r"""(?:env(?:iron)?\.get\(|environ\[|_is_on\(env, )"(TINK(?:ER|EX)_[A-Z_]+)\"""")
    found = {each for path in (ROOT / "src").rglob("*.py") for each in read.findall(path.read_text())}
    assert {"TINKER_API_KEY", "TINKEX_OFFLINE", "TINKEX_CACHE"} <= found
    text = "".join(page.read_text() for page in PAGES)
    assert {each for each in found if f"`{each}" not in text} == set()


@pytest.mark.parametrize(
    "line",
    [
        "tinkex fly",
        "tinkex serve --modell x",
        "pip install 'tinkex[everything]'",
        "TINKEX_NOSUCH=1 tinkex version",
        "export TINKER_NOSUCH=1",
        "python examples/missing.py",
        "python -m tinkex.missing",
        "rm -rf x",
    ],
)
def test_a_command_that_does_not_exist_would_be_noticed(line: str):
    with pytest.raises((AssertionError, UsageError)):
        check_command(commands(line)[0])


@every_page
def test_links_lead_somewhere(page: Path):
    text = page.read_text()
    assert [link for link in _LINK.findall(text) if not (page.parent / link).exists()] == []
    for link, section in _SECTION.findall(text):
        target = page.parent / link if link else page
        if target.suffix == ".md":
            assert section in sections(target), f"{link}#{section}"


def sections(page: Path) -> set[str]:
    """The anchors of a page's headings, as code forges make them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def public_names() -> set[str]:
    """Everything a reader may call or read: methods, fields, functions of the public modules."""
    found = {*dir(tinkex), *dir(types), *dir(testing)}
    for holder in (tinkex, types, testing):
        for each in dir(holder):
            value = getattr(holder, each)
            found |= (
                {*dir(value), *getattr(value, "__annotations__", ())} if isinstance(value, type) else set()
            )
    for module in ("config", "errors", "losses", "models", "notices", "as_tinker", "client.downloads"):
        found |= set(dir(importlib.import_module(f"tinkex.{module}")))
    return found


ELSEWHERE = frozenset({"fn", "fork"})
"""Functions that are not ours, but spoken of."""


@every_page
def test_every_call_a_page_speaks_of_exists(page: Path):
    if name(page) == "docs/architecture.md":  # it speaks of what is inside
        return
    spoken = {found[1] for text in inline(page) if (found := re.match(r"(?:\w+\.)*(\w+)\(", text))}
    assert spoken - public_names() - ELSEWHERE == set()


def test_a_file_the_pages_name_exists():
    missing = []
    for page in PAGES:
        for text in inline(page):
            if re.fullmatch(r"(?:docs|examples|bench|tests|tools|recipes|src)/[\w/.]+", text):
                missing += [] if (ROOT / text).exists() else [f"{name(page)}: {text}"]
    assert missing == []


def test_every_page_is_found_from_the_readme():
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        seen.add(page)
        linked = ((page.parent / link).resolve() for link in _LINK.findall(page.read_text()))
        waiting += [each for each in linked if each.suffix == ".md" and each not in seen]
    assert {name(page) for page in PAGES} <= {name(page) for page in seen}


# ---- tables and numbers


def test_the_table_of_statuses_is_the_one_in_the_code():
    path = ROOT / "tools" / "make_tables.py"
    spec = importlib.util.spec_from_file_location("make_tables", path)
    assert spec is not None
    assert spec.loader is not None
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    page = BEHAVIOUR.read_text()
    assert tables.filled(page) == page, "run python tools/make_tables.py"
    covered = set()
    for first, last in re.findall(r"^\| (\d{3})(?:–(\d{3}))? \|", page, re.MULTILINE):
        covered |= set(range(int(first), int(last or first) + 1))
    assert covered == set(range(400, 600))


def _numbers() -> list[tuple[str, object, object]]:
    said, config = ClientConfigResponse(), Config()
    shared = Shared(config, SystemClock(), make_transport)
    operation, again = policy.Operation("x"), sample_runner._RESUBMITS
    return [
        ("more than 1024 examples or 5 MB", (said.fwdbwd_max_chunk_len, said.fwdbwd_max_chunk_bytes_count),
         (1024, 5_000_000)),
        ("300 s (`Config.retry_seconds`), 60 tries", (config.retry_seconds, operation.attempts), (300, 60)),
        ("| 0.5 s, doubled up to 10 s |", (policy._FIRST, policy._LONGEST), (0.5, 10.0)),
        ("7200 s (`RetryConfig.progress_timeout`)", RetryConfig().progress_timeout, 7200),
        ("10 tries in 3600 s", (again.attempts, again.seconds), (10, 3600)),
        ("4 tries, never after a 4xx", telemetry._TRIES, 4),
        ("More than 60 s counts as 60 s", headers.LONGEST_RETRY_AFTER, 60),
        ("every 5 s for up to an hour", (policy.BILLING_PAUSE, operation.billing_seconds), (5, 3600)),
        ("400 gets\nthree more tries", polling._BAD_REQUESTS, 3),
        ("404 is forgiven for ten seconds", polling._GRACE_SECONDS, 10),
        ("64 at first, up to 400", (shared.sampling.limit, shared.sampling.most), (64, 400)),
        ("bytes of prompts being submitted | 10 MiB", shared.sampling_bytes.capacity, 10 * 2**20),
        ("bytes of training data being submitted | 50 MB", shared.training_bytes.capacity, 50_000_000),
        ("bytes of large results being fetched | 50 MiB", shared.result_bytes.capacity, 50 * 2**20),
        ("listings and checkpoint calls | 8 at a time", shared.rest.capacity, 8),
        ("2000 (the server's settings)", said.sample_max_concurrent_requests, 2000),
        ("prompts above 128 KiB", sample_runner._SMALL_PROMPT, 128 * 1024),
        ("60 s (`Config.timeout`), 5 s of them to connect, and a long poll 45 s",
         (config.timeout, config.connect_timeout, config.poll_timeout), (60, 5, 45)),
        ("closing waits two seconds at most", telemetry.DRAIN_SECONDS, 2),
    ]  # fmt: skip


def test_the_numbers_on_the_page_are_those_in_the_code():
    page = BEHAVIOUR.read_text()
    for phrase, actual, expected in _numbers():
        assert phrase in page
        assert actual == expected, phrase
