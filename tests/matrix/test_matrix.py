"""Every official SDK since 0.3.0, unmodified, goes the same way and sees the same numbers."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from . import sdks as versions
from .comparing import differences
from .sdks import NEWEST, SURROUNDINGS, VERSIONS, Sdks
from .serving import FAKE, REAL, Served

JOURNEY = Path(__file__).with_name("journey.py")
Document = dict[str, Any]
SEED = SURROUNDINGS.get("TINKEX_MATRIX_SEED")


def travel(server: Served, path: list[str] | None = None) -> Document:
    """The document of one journey: with the folders on `path` alone, or with this environment's SDK."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith(("TINKER", "TINKEX")) and not name.lower().endswith("_proxy")
    }
    surroundings = {
        **kept,
        "TINKER_BASE_URL": server.url,
        "TINKER_API_KEY": server.key,
        "JOURNEY_MODEL": server.model,
        "PYTHONPATH": os.pathsep.join(path or []),
    }
    # Without -S the interpreter would add this environment's packages, its own SDK among them.
    flags = [] if path is None else ["-S", "-s"]
    done = subprocess.run(
        [sys.executable, *flags, str(JOURNEY)],
        env=surroundings,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def newest(server: Served) -> Document:
    """What this environment's SDK, the newest, sees."""
    pytest.importorskip("tinker")
    return travel(server)


# ---- what must hold in any document


def close(values: list[Any]) -> Any:
    return pytest.approx(values, rel=1e-4, abs=1e-4)


def check(saw: Document) -> None:
    _check_training(saw)
    for name in ("unnamed sampler", "named sampler", "base sampler"):
        _check_sampling(saw[name])
    assert differences(saw["unnamed sampler"], saw["named sampler"]) == []
    assert saw["base sampler"]["greedy"] != saw["named sampler"]["greedy"]
    _check_resuming(saw)
    _check_listings(saw)


def _check_training(saw: Document) -> None:
    assert saw["chunks"] == 3
    first, second = saw["first pass"], saw["pipelined pass"]
    assert [len(row) for row in first["logprobs"]] == [4, 5, 6, 4, 5, 6, 4, 5]
    expected = -sum(
        sum(value * (1.0 + 0.25 * place) for place, value in enumerate(row[1:]))
        for row in first["logprobs"]
    )
    assert first["metrics"]["loss:sum"] == pytest.approx(expected, rel=1e-4)
    assert second["metrics"]["loss:sum"] < first["metrics"]["loss:sum"]
    assert saw["forward"]["logprobs"] == [close(row) for row in first["logprobs"][:4]]
    for name in ("first pass", "forward", "pipelined pass", "importance sampling", "ppo"):
        assert "logprobs" in saw[name]["names"]
        assert "loss:sum" in saw[name]["metrics"]
    assert saw["importance sampling"]["metrics"]["loss:sum"] != saw["ppo"]["metrics"]["loss:sum"]
    model = saw["base model"]
    assert saw["info"] == {"is_lora": True, "rank": 4, "base model": model, "same model": True}


def _check_sampling(saw: Document) -> None:
    (tokens,), (logprobs,) = saw["greedy"]["tokens"], saw["greedy"]["logprobs"]
    assert (len(tokens), len(logprobs), saw["greedy"]["stop reasons"]) == (6, 6, ["length"])
    end = tokens.index(saw["stop token"]) + 1
    assert saw["stopped"]["stop reasons"] == ["stop"]
    assert saw["stopped"]["tokens"] == [tokens[:end]]
    assert saw["stopped"]["logprobs"] == [close(logprobs[:end])]
    assert [len(each) for each in saw["seeded"]["tokens"]] == [5, 5]
    assert saw["seeded"]["tokens"][0] != saw["seeded"]["tokens"][1]
    for one in saw["at once"]:
        assert one["tokens"] == saw["seeded"]["tokens"][:1]
    assert saw["prompt logprobs"][0] is None
    assert len(saw["prompt logprobs"]) == 5
    assert saw["computed logprobs"][1:5] == close(saw["prompt logprobs"][1:])
    assert saw["computed logprobs"][5:] == close(logprobs)
    assert [row and len(row) for row in saw["prompt top 2"]] == [None, 2, 2, 2, 2]


def _check_resuming(saw: Document) -> None:
    at_save = saw["at the save"]
    assert differences(at_save, saw["at the load"]) == []
    assert saw["resumed"]["logprobs"] == [close(row) for row in at_save["logprobs"][:3]]
    after = saw["after the save"]
    assert after["metrics"]["loss:sum"] < at_save["metrics"]["loss:sum"]
    # One step from the same weights ends at the same numbers only if the optimizer's state came along.
    assert differences(after, saw["after the load"]) == []
    assert differences(after, saw["after resuming"]) == []
    assert saw["different models"] == 3


def _check_listings(saw: Document) -> None:
    training = ["weights/halfway", "training", ["weights", "halfway"]]
    sampler = ["sampler_weights/for-sampling", "sampler", ["sampler_weights", "for-sampling"]]
    assert saw["saved"] == ["weights", "halfway"]
    assert saw["checkpoints"] == [sampler, training]
    assert saw["checkpoints after deleting"] == [sampler]
    assert saw["run"] == {
        "is_lora": True,
        "rank": 4,
        "base model": saw["base model"],
        "corrupted": False,
        "last checkpoint": training,
        "last sampler checkpoint": sampler,
        "listed alike": True,
        "counted": True,
    }
    assert saw["run by path"] is True
    own = saw["version"]
    files = {"adapter_config.json", "adapter_model.safetensors"}
    assert {*files, "checkpoint_complete"} <= set(own.get("archive", {*files, "checkpoint_complete"}))
    assert files <= set(own.get("export", files))
    assert own.get("public", [True, False]) == [True, False]
    assert own.get("expires", [True, False]) == [True, False]
    assert own.get("session", [3, 3]) == [3, 3]
    assert own.get("samplers", [[], [], sampler[2]]) == [[], [], sampler[2]]


def compare(newest: Document, saw: Document) -> None:
    """A version's document must be the newest one's, value by value, in all that both can say."""
    left = {**newest, "version": {**newest["version"], "sdk": saw["version"]["sdk"]}}
    found = differences(left, saw, common=("version",))
    shown = "\n  ".join(found[:40])
    if found:
        pytest.fail(f"SDK {saw['version']['sdk']} and {NEWEST} differ in {len(found)} places:\n  {shown}")


# ---- the tests

# All versions meet what trains; only where there is no such thing, a fake.
on_servers = pytest.mark.parametrize("server", (REAL or FAKE).values(), ids=REAL or FAKE, indirect=True)


def test_the_newest_sdk_arrives(newest: Document) -> None:
    assert newest["version"]["sdk"] == NEWEST
    assert newest["version"]["closed"] is True
    check(newest)


@pytest.mark.slow
@on_servers
@pytest.mark.parametrize("version", VERSIONS)
def test_every_sdk_sees_the_same(server: Served, sdks: Sdks, newest: Document, version: str) -> None:
    saw = travel(server, sdks.path_of(version))
    assert saw["version"]["sdk"] == version
    check(saw)
    compare(newest, saw)


@pytest.mark.slow
@on_servers
def test_an_sdk_drawn_at_random_sees_the_same(server: Served, sdks: Sdks, newest: Document) -> None:
    seed = int(SEED) if SEED else random.SystemRandom().randrange(1 << 32)
    version = versions.another(seed)
    sys.stderr.write(f"drew SDK {version} with TINKEX_MATRIX_SEED={seed}\n")
    saw = travel(server, sdks.path_of(version))
    assert saw["version"]["sdk"] == version
    check(saw)
    compare(newest, saw)


# ---- the comparison itself


def test_the_comparison_sees_what_differs() -> None:
    left: Document = {"a": [1.0, 2.0], "b": {"x": 1, "y": None}, "version": {"sdk": "1", "only": 1}}
    assert differences(left, json.loads(json.dumps(left))) == []
    assert differences(left, {**left, "a": [1.0, 2.0 * (1 + 5e-6)]}) == []
    assert differences(left, {**left, "a": [1.0, 2.0 * (1 + 5e-5)]}) == ["a[1]: 2.0 expected, 2.0001 got"]
    assert differences(left, {**left, "a": [1.0]}) == ["a: 2 expected, 1 got"]
    assert differences(left, {**left, "b": {"x": 2, "y": None}}) == ["b / x: 1 expected, 2 got"]
    assert differences(left, {**left, "b": {"x": True, "y": None}}) == ["b / x: 1 expected, True got"]
    assert differences(left, {**left, "b": {"x": 1}}) == ["b / y: only expected"]
    assert differences(left, {**left, "c": 0}) == ["c: only got"]
    fewer = {**left, "version": {"sdk": "2", "other": 1}}
    assert differences(left, fewer, common=("version",)) == ["version / sdk: '1' expected, '2' got"]


@pytest.mark.parametrize("place", ["first pass", "named sampler", "after the load", "checkpoints"])
def test_a_document_that_differs_is_not_accepted(newest: Document, place: str) -> None:
    spoilt = json.loads(json.dumps(newest))
    spoilt.pop(place)
    with pytest.raises(pytest.fail.Exception, match=f"differ in 1 places:\n  {place}: only expected"):
        compare(newest, spoilt)
