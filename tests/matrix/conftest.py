"""One server for chunks sent in order and one for chunks sent at once; every test here meets both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .sdks import CHOSEN, Sdks
from .serving import Served, start_server


@pytest.fixture(scope="session", params=[False, True], ids=["in order", "at once"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with start_server(tmp_path_factory.mktemp("server"), parallel=request.param) as served:
        yield served


@pytest.fixture(scope="session")
def server_url(server: Served) -> str:
    return server.url


@pytest.fixture(scope="session")
def sdks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sdks:
    if CHOSEN:
        return Sdks(Path(CHOSEN))
    cache = getattr(request.config, "cache", None)
    return Sdks(cache.mkdir("sdks") if cache is not None else tmp_path_factory.mktemp("sdks"))
