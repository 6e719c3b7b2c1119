"""One environment, one server, and a kitchen for each client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .environment import Environment, chosen_or_built
from .kitchen import Kitchen, Served
from .kitchen import server as running_server


@pytest.fixture(scope="session")
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    cache = getattr(request.config, "cache", None)
    return chosen_or_built(
        cache.mkdir("cookbook") if cache is not None else tmp_path_factory.mktemp("cookbook")
    )


@pytest.fixture(scope="session")
def served(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with running_server(tmp_path_factory.mktemp("server"), environment) as served:
        yield served


@pytest.fixture(scope="session", params=[False, True], ids=["official SDK", "our client"])
def kitchen(
    request: pytest.FixtureRequest,
    environment: Environment,
    served: Served,
    tmp_path_factory: pytest.TempPathFactory,
) -> Kitchen:
    return Kitchen(tmp_path_factory.mktemp("kitchen"), environment, served, ours=request.param)
