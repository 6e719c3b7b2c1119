"""A server and a fake, each for chunks sent in order and for chunks sent at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .gaps import Gap, make_gap
from .raw_client import Wire
from .sdks import CHOSEN, Sdks
from .serving import KINDS, Served, start


@pytest.fixture(scope="session", params=KINDS.values(), ids=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with start(*request.param, tmp_path_factory) as served:
        yield served


@pytest.fixture(scope="session")
def sdks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sdks:
    if CHOSEN:
        return Sdks(Path(CHOSEN))
    cache = getattr(request.config, "cache", None)
    return Sdks(cache.mkdir("sdks") if cache is not None else tmp_path_factory.mktemp("sdks"))


@pytest.fixture(scope="session")
def wire(server: Served) -> Wire:
    return Wire(server)


@pytest.fixture(scope="session")
def results(wire: Wire) -> dict[str, Any]:
    """One result of each kind of work, by its request type."""
    session = wire.session()
    made: dict[str, Any] = {"CreateModel": wire.done("/create_model", wire.model_request(session))}
    model = made["CreateModel"]["model_id"]
    made["ForwardBackward"] = wire.result(wire.submit_pass(model, 1))
    made["Forward"] = wire.result(wire.submit_pass(model, 2, forward_only=True))
    made["OptimStep"] = wire.result(wire.submit_step(model, 3))
    named = {"model_id": model}
    made["SaveWeights"] = wire.done("/save_weights", {**named, "path": "w", "seq_id": 4})
    sampler = {**named, "path": "s", "seq_id": 5}
    made["SaveWeightsForSampler"] = wire.done("/save_weights_for_sampler", sampler)
    unnamed = {**named, "sampling_session_seq_id": 0, "seq_id": 6}
    made["unnamed SaveWeightsForSampler"] = wire.done("/save_weights_for_sampler", unnamed)
    made["SaveWeightsExternal"] = wire.done("/save_weights_external", {**named, "path": "e", "seq_id": 7})
    load = {"model_id": model, "seq_id": 8, "path": f"tinker://{model}/weights/w", "optimizer": True}
    made["LoadWeights"] = wire.done("/load_weights", load)
    made["Sample"] = wire.result(
        wire.submit_sample(made["unnamed SaveWeightsForSampler"]["sampling_session_id"])
    )
    made["UnloadModel"] = wire.done("/unload_model", {"model_id": model})
    return made


@pytest.fixture(scope="session")
def gap(wire: Wire) -> Gap:
    return make_gap(wire)
