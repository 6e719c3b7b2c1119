"""A disk that takes no more: what was there stays, nothing is left half-written, and it is told."""

import contextlib
import errno
import os
import resource
import sys
from types import SimpleNamespace

import pytest
import torch

from tinkex.engine import checkpoints, durable
from tinkex.engine.checkpoints import load_state, save_state
from tinkex.engine.engine import Engine, EngineOptions
from tinkex.engine.messages import CreateAdapter, Done, Export, Failed, OptimStep, SaveSampler, SaveState
from tinkex.engine.peft_format import export_peft
from tinkex.engine.pool import AdapterPool
from tinkex.engine.tensor_files import DiskFault, in_words
from tinkex.engine.trainer import TrainState

from .training_models import engine_model, filled_adapter, plain_model

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the size of files")
ENOSPC = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(scope="module")
def base():
    return engine_model(plain_model("qwen3"))


@contextlib.contextmanager
def no_file_larger_than(size):
    """A real limit of the system: writes beyond it fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def everything(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@linux
@pytest.mark.parametrize("size", [0, 100, 4096])
def test_a_state_that_does_not_fit_leaves_the_one_before(base, tmp_path, size):
    state = TrainState(filled_adapter(base, 4))
    save_state(tmp_path / "s", state)
    before = everything(tmp_path)
    other = TrainState(filled_adapter(base, 4, seed=9))
    for write in (
        lambda: save_state(tmp_path / "s", other),
        lambda: save_state(tmp_path / "t", other),
        lambda: export_peft(tmp_path / "u", other.adapter),
    ):
        with no_file_larger_than(size), pytest.raises(OSError) as caught:
            write()
        assert isinstance(in_words(caught.value), DiskFault), caught.value
        assert everything(tmp_path) == before
    assert torch.equal(load_state(tmp_path / "s", base).adapter.master.flat, state.adapter.master.flat)


@pytest.mark.parametrize("call", ["open", "fsync", "rename"])
def test_any_call_that_fails_leaves_the_one_before(base, tmp_path, monkeypatch, call):
    state = TrainState(filled_adapter(base, 4))
    save_state(tmp_path / "s", state)
    before, other = everything(tmp_path), TrainState(filled_adapter(base, 4, seed=9))
    count = 0

    def failing(real, at):
        def run(*given, **more):
            nonlocal count
            count += 1
            if count == at:
                raise ENOSPC
            return real(*given, **more)

        return run

    kept, at = True, 0
    while kept:
        at, count = at + 1, 0
        with monkeypatch.context() as patch:
            if call == "rename":
                patch.setattr(checkpoints.Path, "rename", failing(checkpoints.Path.rename, at))
            else:
                system = SimpleNamespace(**vars(os))  # what others do with files goes well
                setattr(system, call, failing(getattr(os, call), at))
                patch.setattr(durable, "os", system)
            with contextlib.suppress(type(ENOSPC)):
                save_state(tmp_path / "s", other)
                kept = False
        found = load_state(tmp_path / "s", base).adapter.master.flat
        if kept and not torch.equal(found, other.adapter.master.flat):
            assert torch.equal(found, state.adapter.master.flat)
        assert everything(tmp_path) == before
    assert at > 2


def test_a_cold_state_the_disk_does_not_take_stays_in_memory(base, tmp_path):
    one, full = TrainState(filled_adapter(base, 4)).nbytes(), True

    def write(path, state):
        if full:
            raise ENOSPC
        save_state(path, state)

    pool = AdapterPool(
        "cpu", device_bytes=one + 1, folder=tmp_path, write=write, read=lambda path: load_state(path, base)
    )
    states = {name: TrainState(filled_adapter(base, 4, seed=i)) for i, name in enumerate("abc")}
    for name, state in states.items():
        pool.add(name, state)
    assert [pool.where(name) for name in states] == ["device"] * 3
    assert all(pool.get(name) is state for name, state in states.items())
    full = False
    pool.get("c")
    assert [pool.where(name) for name in states] == ["disk", "disk", "device"]
    assert torch.equal(pool.get("a").adapter.master.flat, states["a"].adapter.master.flat)


def answers(engine, *messages):
    """Everything an engine answers to these."""
    found = {}
    for message in messages:
        for answer in engine.submit(message):
            found[answer.request_id] = answer
    while len(found) < len(messages):
        for answer in engine.step() if engine.busy else []:
            found[answer.request_id] = answer
    return [found[message.request_id] for message in messages]


@linux
def test_an_engine_says_that_it_was_the_disk_and_goes_on(base, tmp_path):
    engine = Engine(base, epoch=1, options=EngineOptions(folder=tmp_path / "engine"))
    answers(engine, CreateAdapter(1, "c", "m", 4, 1))
    saves = [
        SaveState(1, "s1", "m", str(tmp_path / "a")),
        SaveState(1, "s2", "m", str(tmp_path / "b"), background=True),
        SaveSampler(1, "s3", "m", str(tmp_path / "c")),
        Export(1, "s4", "m", str(tmp_path / "d")),
    ]
    with no_file_larger_than(4096):
        failed = answers(engine, *saves)
    for answer in failed:
        assert isinstance(answer, Failed)
        assert (answer.category, "disk cannot be written" in answer.text) == ("disk", True), answer
        assert str(tmp_path) not in answer.text
    assert everything(tmp_path) == []
    assert all(isinstance(answer, Done) for answer in answers(engine, OptimStep(1, "o", "m", {}), *saves))
    engine.close()


@linux
def test_unnamed_weights_the_disk_did_not_take_are_written_before_a_snapshot(base, tmp_path):
    engine = Engine(base, epoch=1, options=EngineOptions(folder=tmp_path / "engine"))
    snapshot = SaveState(1, "s", "m", str(tmp_path / "a"), True, True)
    with no_file_larger_than(4096):
        _, frozen = answers(engine, CreateAdapter(1, "c", "m", 4, 1), SaveSampler(1, "f", "m"))
        assert isinstance(frozen, Done)
        (failed,) = answers(engine, snapshot)
        assert failed.category == "disk"
    place = tmp_path / "engine" / "sampler" / str(frozen.facts["version"])
    assert not place.exists()
    (saved,) = answers(engine, snapshot)
    assert isinstance(saved, Done)
    assert place.is_dir()
    engine.close()
