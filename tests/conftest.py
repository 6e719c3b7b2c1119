"""What holds for every test: a clean environment, and a quiet official SDK."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
from hypothesis import settings

from tinkex.notices import forget_notices
from tinkex.testing import FakeClock

pytest_plugins = ["tests.leak_scan"]
settings.register_profile("suite", deadline=None)  # how long an example takes is the machine's affair
settings.load_profile("suite")


def pytest_collection_finish() -> None:
    """What was imported stays: the collector need not look at it again in every test."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("TINKER_", "TINKEX_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    forget_notices()


@pytest.fixture(autouse=True)
def _clocks_stop(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forgotten clients whose clock goes on by itself would send heartbeats without a pause, for ever."""
    made, make = WeakSet[FakeClock](), FakeClock.__init__

    def remembered(clock: FakeClock, *args: Any, **more: Any) -> None:
        make(clock, *args, **more)
        made.add(clock)

    monkeypatch.setattr(FakeClock, "__init__", remembered)
    yield
    for clock in list(made):
        clock.auto = False


@pytest.fixture(scope="session", autouse=True)
def _quiet_official_sdk() -> None:
    # Its clients are never freed and go on complaining about servers that are long gone.
    logging.getLogger("tinker").setLevel(logging.CRITICAL)


@pytest.fixture(scope="session")
def local_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder (TINKEX_STATE) for all who want a server of their own: the first starts it."""
    return tmp_path_factory.mktemp("local")
