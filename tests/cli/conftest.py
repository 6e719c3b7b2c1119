"""One real server for all tests of the command line, a fake one for what must go wrong, and a home."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.serving import Served, start_server
from tinkex.cli.main import parser_of
from tinkex.cli.serve import NEEDED
from tinkex.cli.tree import below
from tinkex.testing import FakeServer, FakeService

from .fitting import misfits
from .running import Ran, run

MISSING = [name for name in NEEDED if find_spec(name) is None]
Command = Callable[..., Ran]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    if MISSING:
        pytest.skip(f"a server needs {', '.join(MISSING)}")
    with start_server(tmp_path_factory.mktemp("cli"), parallel=False) as server:
        yield server


@dataclass(frozen=True)
class Trained:
    """A run on the server with a checkpoint of each kind."""

    run: str
    state: str
    sampler: str
    external: str


@pytest.fixture
def trained(served: Served) -> Trained:
    import tinkex

    with tinkex.ServiceClient(base_url=served.url, api_key=served.key, user_metadata={"a": "b"}) as client:
        trainer = client.create_lora_training_client(
            served.model, rank=4, seed=1, user_metadata={"made": "here"}
        )
        tokens = list(range(20, 36))
        datum = tinkex.Datum(
            tinkex.ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:], "weights": [1.0] * 15}
        )
        for _ in range(2):
            trainer.forward_backward([datum], "cross_entropy")
            trainer.optim_step(tinkex.AdamParams(learning_rate=1e-2))
        saves = (
            trainer.save_state("s"),
            trainer.save_weights_for_sampler("p"),
            trainer.save_weights_external("e"),
        )
        state, sampler, external = (save.result().path for save in saves)
        return Trained(trainer.model_id, state, sampler, external)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "home"
    place.mkdir()
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return place


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], home: Path) -> Command:
    """Runs a command, and holds its JSON document against the shape the command says it has."""

    def command(*words: str) -> Ran:
        done = run(capsys, *words)
        if "--json" in words and done.out:
            shape = shape_of(words)
            assert shape is None or misfits(done.data, shape) == []
        return done

    return command


def shape_of(words: tuple[str, ...]) -> Any:
    first, *rest = (word for word in words if not word.startswith("--"))
    parser = parser_of(first)
    while below(parser):
        parser = below(parser)[rest.pop(0)]
    return parser.shape  # none of `serve`, which prints as it goes; see test_page


@pytest.fixture
def real(cli: Command, served: Served, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command on the real server."""
    monkeypatch.setenv("TINKER_BASE_URL", served.url)
    monkeypatch.setenv("TINKER_API_KEY", served.key)
    return cli


@dataclass(frozen=True)
class Fake:
    """A service that can be made to fail."""

    service: FakeService
    run: Command

    def __call__(self, *words: str) -> Ran:
        return self.run(*words)


@pytest.fixture
def fake(cli: Command, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """Runs a command on a fake service that can be made to fail."""
    service = FakeService(hold=0.2)
    with FakeServer(service) as server:
        monkeypatch.setenv("TINKER_BASE_URL", server.base_url)
        monkeypatch.setenv("TINKER_API_KEY", "tml-test")
        yield Fake(service, cli)
