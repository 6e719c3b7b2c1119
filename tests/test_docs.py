"""What the documents say is true: their code runs, their tables and numbers are the code's."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tinkex.client import polling, sample_runner, telemetry
from tinkex.client.connection import Shared
from tinkex.client.retry_config import RetryConfig
from tinkex.config import Config
from tinkex.net import policy
from tinkex.net.clock import SystemClock
from tinkex.net.lanes import make_transport
from tinkex.testing import FakeServer, FakeService
from tinkex.types import ClientConfigResponse
from tinkex.wire import headers

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BEHAVIOUR = ROOT / "docs" / "behaviour.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def blocks(page: Path) -> list[tuple[int, str]]:
    """The Python blocks of a page, with the line each begins on."""
    text = page.read_text()
    return [(text.count("\n", 0, found.start(1)), found[1]) for found in _BLOCK.finditer(text)]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    with FakeServer(FakeService()) as running:
        monkeypatch.setenv("TINKER_BASE_URL", running.base_url)
        monkeypatch.setenv("TINKER_API_KEY", "tml-docs")
        yield running


def test_there_is_code_to_run():
    assert blocks(ROOT / "README.md")
    assert len(blocks(BEHAVIOUR)) >= 6


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_runs_from_top_to_bottom(page: Path, server: FakeServer):
    names: dict[str, Any] = {"__name__": "page"}
    for line, code in blocks(page):
        # Blank lines in front make a traceback point into the page.
        exec(compile("\n" * line + code, str(page), "exec"), names)
    if blocks(page):
        assert server.service.calls_to("create_session")


def test_a_block_that_fails_would_be_noticed(tmp_path: Path, server: FakeServer):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nfine = 1\n```\n\ntext\n\n```python\nfine + missing\n```\n")
    assert blocks(page) == [(3, "fine = 1\n"), (9, "fine + missing\n")]
    with pytest.raises(NameError, match="missing"):
        test_the_code_of_a_page_runs_from_top_to_bottom(page, server)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    assert [link for link in _LINK.findall(page.read_text()) if not (page.parent / link).exists()] == []


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
