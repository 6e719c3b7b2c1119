"""Frozen weights: named by content, kept by age and use, read back as they were."""

import shutil
import threading

import pytest
import torch

from tinkex.engine import sampler_weights
from tinkex.engine.base_model import BaseModel
from tinkex.engine.checkpoints import load_sampler, save_sampler
from tinkex.engine.faults import ServerFault, UserFault
from tinkex.engine.sampler_weights import SamplerWeights, digest

from .sampling_models import plain_model, trained_adapter

HOUR = 3600.0


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def base(request):
    return BaseModel(plain_model("llama", dtype=request.param))


class Shelf:
    """Weights with a clock that a test moves, and a count of folders read."""

    def __init__(self, base, **options):
        self.base, self.now, self.reads, self.broken = base, 0.0, 0, False
        self.weights = SamplerWeights(base.device, self.write, self.read, clock=lambda: self.now, **options)

    def write(self, adapter, path):
        if self.broken:
            raise OSError("disk full")
        save_sampler(path, adapter)

    def read(self, path):
        self.reads += 1
        return load_sampler(path, self.base)

    def freeze(self, seed, model="m", path=None):
        return self.weights.freeze(model, trained_adapter(self.base, 2, seed=seed), path)


def test_the_newest_eight_stay_whatever_their_age_and_others_while_used(base):
    shelf = Shelf(base)
    versions = [shelf.freeze(seed) for seed in range(10)]
    assert len(shelf.weights) == 10, "all were used within six hours: by being saved"
    shelf.now = 5 * HOUR
    shelf.weights.get(versions[0])
    shelf.now = 7 * HOUR
    versions.append(shelf.freeze(10))
    kept = [v for v in versions if v in shelf.weights._versions]
    assert kept == [versions[0], *versions[3:]]
    with pytest.raises(UserFault, match=r"dropped: the newest 8 .* 6 h stay; save them under a name"):
        shelf.weights.get(versions[1])
    shelf.now = 100 * HOUR
    shelf.weights.drop_stale()
    assert [v for v in versions if v in shelf.weights._versions] == versions[3:]
    assert shelf.freeze(1) == versions[1]
    assert shelf.weights.get(versions[1]), "saved again, a dropped version is back"


def test_models_do_not_push_each_other_out(base):
    shelf = Shelf(base, keep=1, keep_seconds=0.0)
    first = shelf.freeze(1, model="a")
    for seed in range(2, 6):
        shelf.freeze(seed, model="b")
    assert shelf.weights.get(first).rank == 2
    assert len(shelf.weights) == 2


def test_a_version_two_models_share_stays_while_either_keeps_it(base):
    shelf = Shelf(base, keep=1, keep_seconds=0.0)
    shared = shelf.freeze(1, model="a")
    assert shelf.freeze(1, model="b") == shared
    shelf.freeze(2, model="a")
    assert shelf.weights.get(shared)
    shelf.freeze(3, model="b")
    with pytest.raises(UserFault, match="dropped"):
        shelf.weights.get(shared)


def test_named_weights_are_never_dropped_for_their_age(base, tmp_path):
    shelf = Shelf(base, keep=1, keep_seconds=0.0)
    named = shelf.freeze(1, path=tmp_path / "named")
    for seed in range(2, 5):
        shelf.freeze(seed)
    assert shelf.weights.get(named)


def test_what_was_frozen_does_not_follow_the_model(base):
    shelf = Shelf(base)
    adapter = trained_adapter(base, 2, seed=1)
    version = shelf.weights.freeze("m", adapter, None)
    before = shelf.weights.get(version).compute.flat.clone()
    adapter.master.flat.add_(1.0)
    adapter.refresh()
    assert torch.equal(shelf.weights.get(version).compute.flat, before)
    assert digest(adapter) != version == digest(shelf.weights.get(version))


def test_weights_leave_memory_once_they_are_written_and_come_back_equal(base, tmp_path):
    shelf = Shelf(base, folder=tmp_path, resident=2)
    versions = [shelf.freeze(seed) for seed in range(3)]
    shelf.weights.settle()
    versions.append(shelf.freeze(3))
    assert shelf.weights.in_memory == 2
    assert shelf.reads == 0
    for seed, version in enumerate(versions):
        assert torch.equal(
            shelf.weights.get(version).compute.flat, trained_adapter(base, 2, seed=seed).compute.flat
        )
    assert shelf.reads > 0
    assert Shelf(base).weights.load(tmp_path / versions[0]) == versions[0]
    shelf.weights.close()


def test_weights_that_cannot_be_written_stay_in_memory(base, tmp_path):
    shelf = Shelf(base, folder=tmp_path, resident=1)
    shelf.broken = True
    versions = [shelf.freeze(seed) for seed in range(3)]
    with pytest.raises(OSError, match="disk full"):
        shelf.weights.settle()
    assert shelf.weights.in_memory == 3
    assert all(shelf.weights.get(version) for version in versions)
    with pytest.raises(OSError, match="disk full"):
        shelf.freeze(9, path=tmp_path / "named")
    assert len(shelf.weights) == 3


def test_weights_lost_on_disk_are_the_engines_fault(base, tmp_path):
    shelf = Shelf(base, folder=tmp_path, resident=1)
    lost = shelf.freeze(1)
    shelf.weights.settle()
    shelf.freeze(2)
    (tmp_path / lost / "adapter.safetensors").unlink()
    with pytest.raises(ServerFault, match="could not be read back"):
        shelf.weights.get(lost)


def test_unknown_and_unloaded_versions_say_so(base):
    shelf = Shelf(base)
    with pytest.raises(UserFault, match="save or load them first"):
        shelf.weights.get("nothing")
    version = shelf.freeze(1)
    shelf.weights.drop(version)
    with pytest.raises(UserFault, match="were unloaded"):
        shelf.weights.get(version)
    with pytest.raises(UserFault, match="no sampler weights"):
        shelf.weights.drop(version)


@pytest.mark.parametrize("named_first", [True, False])
def test_unloaded_weights_that_have_a_name_too_leave_no_unnamed_copy(base, tmp_path, named_first):
    shelf = Shelf(base, folder=tmp_path / "own")
    for path in (tmp_path / "named", None) if named_first else (None, tmp_path / "named"):
        version = shelf.freeze(1, path=path)
        shelf.weights.settle()
    assert (tmp_path / "own" / version).is_dir()
    shelf.weights.drop(version)
    assert not (tmp_path / "own" / version).exists()
    assert (tmp_path / "named").is_dir()
    shelf.weights.close()


def test_models_whose_weights_were_all_unloaded_are_forgotten(base):
    shelf = Shelf(base)
    shared = shelf.freeze(0, model="other")
    for model in ("a", "b"):
        versions = [shelf.freeze(seed, model=model) for seed in range(3)]
    for version in versions[1:]:
        shelf.weights.drop(version)
    assert shelf.weights._newest == {"other": [shared], "a": [shared], "b": [shared]}
    shelf.weights.drop(shared)
    assert not shelf.weights._newest


def test_ephemeral_weights_loaded_back_keep_their_rules(base, tmp_path):
    first = Shelf(base, folder=tmp_path)
    versions = [first.freeze(seed) for seed in range(4)]
    first.weights.close()
    shelf = Shelf(base, folder=tmp_path, keep=2, keep_seconds=HOUR)
    for version in versions[:3]:
        loaded = shelf.weights.load(tmp_path / version, version=version, ephemeral_of="m")
        assert loaded == version
    assert shelf.weights.load(tmp_path / versions[0], version=versions[0], ephemeral_of="m") == versions[0]
    assert shelf.reads == 3, "a version that is held is not read again"
    shelf.now = 2 * HOUR
    assert shelf.weights.drop_stale() == [versions[1]], (
        "the oldest of three was loaded again, as the newest"
    )
    assert not (tmp_path / versions[1]).exists()
    assert shelf.weights.remove_others([versions[3]]) == 0
    (tmp_path / f".{versions[1]}.1.part").mkdir()
    assert shelf.weights.remove_others([]) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([versions[0], versions[2]])
    shelf.weights.close()


def test_what_is_being_written_is_not_removed(base, tmp_path):
    shelf = Shelf(base, folder=tmp_path)
    begun, gate = threading.Event(), threading.Event()
    write = shelf.weights._write

    def slow(adapter, path):
        (path.parent / f".{path.name}.1.part").mkdir(parents=True)
        begun.set()
        gate.wait(30)
        write(adapter, path)

    shelf.weights._write = slow
    version = shelf.freeze(1)
    assert begun.wait(30)
    assert shelf.weights.remove_others([]) == 0
    gate.set()
    shelf.weights.settle()
    assert shelf.weights.where(version) == tmp_path / version
    assert (tmp_path / version).is_dir()
    shelf.weights.close()


def test_other_weights_than_expected_are_refused_and_not_kept(base, tmp_path):
    shelf = Shelf(base)
    version = shelf.freeze(1, path=tmp_path / "named")
    other = Shelf(base)
    with pytest.raises(ServerFault, match=f"are {version}, expected s0123"):
        other.weights.load(tmp_path / "named", version="s0123")
    with pytest.raises(ServerFault, match="s0123 are lost: no checkpoint"):
        other.weights.load(tmp_path / "nowhere", version="s0123")
    with pytest.raises(UserFault, match="no checkpoint"):
        other.weights.load(tmp_path / "nowhere")
    assert len(other.weights) == 0


def test_ephemeral_weights_do_not_lean_on_a_named_copy(base, tmp_path):
    shelf = Shelf(base, folder=tmp_path / "own", resident=1)
    version = shelf.freeze(1, path=tmp_path / "named")
    assert shelf.freeze(1) == version
    shelf.weights.settle()
    shutil.rmtree(tmp_path / "named")
    shelf.freeze(2)
    assert shelf.weights.in_memory == 1
    assert torch.equal(
        shelf.weights.get(version).compute.flat, trained_adapter(base, 2, seed=1).compute.flat
    )
    shelf.weights.close()


@pytest.mark.parametrize("first", ["named", None], ids=["named", "ephemeral"])
def test_weights_outlive_the_copy_made_last(base, tmp_path, first):
    shelf = Shelf(base, folder=tmp_path / "own", resident=1)
    version = shelf.freeze(1, path=first and tmp_path / first)
    shelf.weights.settle()
    assert shelf.freeze(1, path=tmp_path / "again") == version
    shelf.freeze(2)
    assert shelf.weights.in_memory == 1
    shutil.rmtree(tmp_path / "again")
    assert torch.equal(
        shelf.weights.get(version).compute.flat, trained_adapter(base, 2, seed=1).compute.flat
    )
    shelf.weights.close()


def test_weights_whose_copies_are_gone_stay_in_memory(base, tmp_path):
    shelf = Shelf(base, resident=1)
    version = shelf.freeze(1, path=tmp_path / "named")
    shutil.rmtree(tmp_path / "named")
    shelf.freeze(2)
    assert shelf.weights.in_memory == 2
    assert shelf.weights.get(version) is not None
    assert shelf.reads == 0


def test_a_name_is_the_same_wherever_the_numbers_are_cut_and_differs_with_any_of_them(base, monkeypatch):
    adapter = trained_adapter(base, 4, seed=1)
    whole = digest(adapter)
    monkeypatch.setattr(sampler_weights, "_STRETCH", 1000)
    assert digest(adapter) == whole
    flat = adapter.compute.flat
    for place in (0, len(flat) // 2, len(flat) - 1):
        other = flat.clone()
        other[place] = other[place] * 1.01 + 0.01
        assert digest_of(adapter, other) != whole
    swapped = flat.clone()
    swapped[[0, 1]] = swapped[[1, 0]]
    assert digest_of(adapter, swapped) != whole


def digest_of(adapter, flat):
    changed = adapter.sampled_copy()
    changed.compute.flat.copy_(flat)
    return digest(changed)


def test_weights_named_in_the_older_way_are_still_found(base):
    adapter = trained_adapter(base, 4, seed=1)
    old = digest(adapter, like="0" * 32)
    assert not old.startswith("s")
    assert old != digest(adapter)
    assert digest(adapter, like=old) == old


def test_weights_frozen_again_are_found_by_the_older_name(base, tmp_path):
    shelf = Shelf(base)
    numbers = shelf.weights.get(shelf.freeze(1)).compute.flat
    old = digest(trained_adapter(base, 2, seed=1), like="0" * 32)
    assert shelf.weights.load(tmp_path / "nowhere", version=old, ephemeral_of="m") == old
    assert torch.equal(shelf.weights.get(old).compute.flat, numbers)
    assert len(shelf.weights) == 1, "they have one name"
    with pytest.raises(ServerFault, match="are lost"):
        shelf.weights.load(tmp_path / "nowhere", version="0" * 32)
