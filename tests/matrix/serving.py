"""The server under test: where it is, what it was told, and how it is started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tinkex.testing import FakeServer, FakeService
from tinkex.types import ClientConfigResponse

KEY = "tml-matrix"
OTHER_KEY = "tml-somebody-else"
MODEL = "tiny/model"
HOLD = 0.5  # seconds a poll is held
HOLE = 3.0  # seconds a missing operation is waited for
LARGE = 4000  # bytes of a result that is announced before it is sent


@dataclass(frozen=True)
class Served:
    """A running server."""

    url: str
    parallel: bool
    """Whether clients are told to send the pieces of a pass in parallel."""
    real: bool
    """Whether it trains and samples, or only makes believe."""
    fake: FakeService | None = None
    model: str = MODEL


@contextmanager
def start_server(folder: Path, *, parallel: bool) -> Iterator[Served]:
    """Run a server that offers one tiny model, with its files under `folder`."""
    service = FakeService(
        config=ClientConfigResponse(parallel_fwdbwd_chunks=parallel),
        models=[MODEL],
        api_keys=[KEY, OTHER_KEY],
        hold=HOLD,
        skip_after=HOLE,
        large_result=LARGE,
    )
    with FakeServer(service) as server:
        yield Served(server.base_url, parallel, False, service)
