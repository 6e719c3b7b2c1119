"""The watch over the whole suite: no credential that a test makes or uses turns up where it can be read.

Every `Secret` that comes into being is remembered. What a test prints and logs and the text of its failure
are looked through when it ends; every file it leaves, when the session ends. Files that are there to hold
a credential are named here. Where workers share the tests (`-n`), each tells what it remembers as it ends,
and the files of all are looked through together.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from tinkex.config import Secret

SCAN = pytest.StashKey["LeakScan"]()
LEAKED = pytest.StashKey[bool]()
FOUND = pytest.StashKey[list[Path]]()
TOLD = "tinkex_credentials"
"""What a worker calls the credentials it tells of."""

SHORTEST = 12
"""Shorter ones (`tml-test`) are words that stand in tests themselves."""
LARGEST_FILE = 64 << 20
HOLDERS = ("local/key", "credentials*.json", "*.toml", ".credentials-*")
"""Files whose purpose it is to hold a credential: those of a user's own login and settings."""
_FOUND = re.compile(rb"tml-[A-Za-z0-9_-]+")
_MADE = 4 + 32
"""The length of the keys servers make: they count wherever they were made."""


class LeakScan:
    """The credentials of a session, and where they were seen."""

    def __init__(self) -> None:
        self.known: set[bytes] = set()
        self.before = Secret.__init__

    def begin(self) -> None:
        """Remember every credential from now on."""
        known, before = self.known, self.before

        def remembering(secret: Secret, value: str) -> None:
            before(secret, value)
            if isinstance(value, str) and value.startswith("tml-") and len(value) >= SHORTEST:
                known.add(value.encode("utf-8", "surrogatepass"))

        Secret.__init__ = remembering  # type: ignore[method-assign]

    def end(self) -> None:
        """Stop remembering."""
        Secret.__init__ = self.before  # type: ignore[method-assign]

    def in_text(self, text: str) -> bool:
        """Whether a text holds a credential."""
        return self.in_bytes(text.encode("utf-8", "surrogatepass"))

    def in_bytes(self, data: bytes) -> bool:
        """Whether bytes hold a credential."""
        if b"tml-" not in data:
            return False
        return any(len(found) == _MADE or found in self.known for found in _FOUND.findall(data))

    def blanked(self, text: str) -> str:
        """A text without its credentials."""

        def replaced(found: re.Match[bytes]) -> bytes:
            return b"(a credential)" if self.in_bytes(found[0]) else found[0]

        data = text.encode("utf-8", "surrogatepass")
        return _FOUND.sub(replaced, data).decode("utf-8", "surrogatepass")

    def in_files(self, root: Path) -> Iterator[Path]:
        """The files below a folder that hold a credential and are not there to hold one."""
        for place, _, names in os.walk(root):
            for name in names:
                path = Path(place, name)
                where = path.relative_to(root).as_posix()
                if any(fnmatch(where, f"*/{each}") for each in HOLDERS):
                    continue
                try:
                    if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST_FILE:
                        continue
                    data = path.read_bytes()
                except OSError:
                    continue
                if self.in_bytes(data):
                    yield path


def pytest_configure(config: pytest.Config) -> None:
    """Begin to remember."""
    scan = LeakScan()
    config.stash[SCAN] = scan
    scan.begin()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that printed, logged or raised a credential."""
    report = yield
    text = report.longreprtext + "".join(content for _, content in report.sections)
    scan = item.config.stash[SCAN]
    if scan.in_text(text):
        why = scan.blanked(report.longreprtext) if report.failed else ""
        report.sections = []
        if hasattr(report, "wasxfail"):  # a known defect of the official SDK, shown by a test
            item.stash[LEAKED] = True
        if not item.stash.get(LEAKED, False):  # what was captured in one phase is in those after it too
            item.stash[LEAKED] = True
            report.outcome = "failed"
            said = f"a credential can be read in what {item.nodeid} printed, logged or raised"
            report.longrepr = f"{said}\n\n{why}" if why else said
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Remember what a worker remembered; one that crashed has told nothing."""
    node.config.stash[SCAN].known.update(getattr(node, "workeroutput", {}).get(TOLD, ()))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a session that left a credential in a file."""
    scan = session.config.stash[SCAN]
    scan.end()
    told: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if told is not None:  # this is a worker: its files lie among those of the session it works for
        told[TOLD] = sorted(scan.known)
        return
    factory: pytest.TempPathFactory | None = getattr(session.config, "_tmp_path_factory", None)
    root = getattr(factory, "_basetemp", None)
    if root is not None:
        session.config.stash[FOUND] = sorted(scan.in_files(root))
        if session.config.stash[FOUND]:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which files hold credentials."""
    for path in config.stash.get(FOUND, []):
        terminalreporter.line(f"a credential lies in {path}", red=True)
