"""The bounded set of resident adapters."""

from functools import partial

import pytest
import torch

from tinkex.engine.checkpoints import load_state, save_state
from tinkex.engine.faults import ServerFault
from tinkex.engine.pool import AdapterPool
from tinkex.engine.trainer import Trainer, TrainState

from .training_models import engine_model, filled_adapter, make_data, part, plain_model


@pytest.fixture(scope="module")
def base():
    return engine_model(plain_model("qwen3"))


def disk_pool(base, folder, count):
    one = TrainState(filled_adapter(base, 4)).nbytes()
    return AdapterPool(
        "cpu",
        device_bytes=one * count + 1,
        folder=folder,
        write=partial(save_state, with_gradient=True),
        read=partial(load_state, base=base),
    )


def test_cold_states_go_to_disk_and_come_back_as_they_were(base, tmp_path):
    pool = disk_pool(base, tmp_path, 8)
    trainer = Trainer(base)
    kept = {}
    for i in range(4):
        state = TrainState(filled_adapter(base, 4, seed=i))
        for _ in range(2):
            trainer.run([(state, part(make_data([5], seed=i)))])
            trainer.optim_step(state, {"learning_rate": 1e-2})
        trainer.run([(state, part(make_data([5], seed=i)))])
        kept[f"m{i}"] = [
            x.clone()
            for x in (
                state.adapter.master.flat,
                state.moments.exp_avg,
                state.moments.exp_avg_sq,
                state.grads.flat,
            )
        ]
        pool.add(f"m{i}", state)
    assert [pool.where(name) for name in kept] == ["disk", "disk", "device", "device"]
    assert len(pool) == 4
    for name, wanted in kept.items():
        state = pool.get(name)
        assert pool.where(name) == "device"
        found = (
            state.adapter.master.flat,
            state.moments.exp_avg,
            state.moments.exp_avg_sq,
            state.grads.flat,
        )
        assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))
        assert state.steps == 2


def test_the_least_recently_used_goes_first(base, tmp_path):
    pool = disk_pool(base, tmp_path, 2)
    for name in "ab":
        pool.add(name, TrainState(filled_adapter(base, 4)))
    pool.get("a")
    pool.add("c", TrainState(filled_adapter(base, 4)))
    assert [pool.where(name) for name in "abc"] == ["device", "disk", "device"]


def test_all_that_are_asked_for_are_there_at_once(base, tmp_path):
    pool = disk_pool(base, tmp_path, 2)
    for name in "abcd":
        pool.add(name, TrainState(filled_adapter(base, 4)))
    pool.use("ab")
    assert [pool.where(name) for name in "abcd"] == ["device", "device", "disk", "disk"]
    with pytest.raises(ServerFault, match="3 adapters together"):
        pool.use("abc")


def test_dropping_forgets_it_everywhere(base, tmp_path):
    pool = disk_pool(base, tmp_path, 1)
    for name in "ab":
        pool.add(name, TrainState(filled_adapter(base, 4)))
    assert any(tmp_path.iterdir())
    pool.drop("a")
    pool.drop("unknown")
    assert "a" not in pool
    assert not any(tmp_path.iterdir())
    with pytest.raises(KeyError):
        pool.get("a")


def test_without_a_folder_nothing_is_lost(base):
    pool = AdapterPool("cpu", device_bytes=1)
    for name in "ab":
        pool.add(name, TrainState(filled_adapter(base, 4)))
    assert pool.where("a") == pool.where("b") == "device"


class Luggage:
    """An item that may refuse to move."""

    stuck = False

    def move(self, device):
        if self.stuck and device != "cpu":
            raise torch.OutOfMemoryError("no memory left")

    def nbytes(self):
        return 10


@pytest.mark.parametrize("folder", [False, True], ids=["host", "disk"])
def test_what_the_device_has_no_room_for_is_not_lost(tmp_path, folder):
    items = {name: Luggage() for name in "ab"}

    def write(path, item):
        path.mkdir()
        (path / next(name for name in items if items[name] is item)).touch()

    pool = AdapterPool(
        "meta",
        device_bytes=15,
        host_bytes=0 if folder else None,
        folder=tmp_path,
        write=write,
        read=lambda path: items[next(path.iterdir()).name],
    )
    for name, item in items.items():
        pool.add(name, item)
    assert pool.where("a") == ("disk" if folder else "host")
    items["a"].stuck = True
    with pytest.raises(torch.OutOfMemoryError):
        pool.get("a")
    items["a"].stuck = False
    assert pool.get("a") is items["a"]
    assert pool.where("a") == "device"


def test_what_cannot_be_put_on_the_device_replaces_nothing():
    pool = AdapterPool("meta", device_bytes=15)
    old, new = Luggage(), Luggage()
    pool.add("a", old)
    new.stuck = True
    with pytest.raises(torch.OutOfMemoryError):
        pool.add("a", new)
    assert pool.get("a") is old
