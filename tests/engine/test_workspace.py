"""Memory used again by later passes: what it hands out, and that no pass sees another's numbers."""

import pytest
import torch

from tinkex.engine.trainer import Trainer, TrainState
from tinkex.engine.workspace import Workspace

from .training_models import FAMILIES, engine_model, filled_adapter, make_data, part, plain_model


def test_a_name_is_one_place_in_every_shape():
    room = Workspace()
    first = room.take("x", (4, 8), torch.float32)
    assert room.take("x", (4, 8), torch.float32) is first
    assert room.take("x", (2, 16), torch.float32).data_ptr() == first.data_ptr()
    assert room.take("y", (4, 8), torch.float32).data_ptr() != first.data_ptr()
    assert room.take("x", (4, 8), torch.float64).data_ptr() != first.data_ptr()


def test_a_larger_shape_gets_a_larger_place():
    room = Workspace()
    room.take("x", (4,), torch.float32)
    large = room.take("x", (4, 8), torch.float32)
    assert room.take("x", (4,), torch.float32).data_ptr() == large.data_ptr()
    assert room.held == large.nbytes


def test_there_is_no_room_beyond_the_limit():
    room = Workspace(limit=1024)
    assert room.take("x", (200,), torch.float32) is not None
    assert room.take("y", (200,), torch.float32) is None
    assert room.take("x", (257,), torch.float32) is None
    assert room.take("y", (50,), torch.float32) is not None
    assert room.held == 1000


def test_many_shapes_do_not_pile_up():
    room = Workspace()
    for n in range(10_000, 0, -1):
        room.take("x", (n,), torch.float32)
    assert len(room._views) <= 4096
    assert room.held == 40_000


@pytest.mark.parametrize("limit", [None, 1 << 15, 1 << 20])
@pytest.mark.parametrize("family", FAMILIES)
def test_bits_do_not_depend_on_the_room_or_on_earlier_passes(family, limit):
    base = engine_model(plain_model(family))
    lengths = [[40, 40, 7], [150, 3], [33]]
    parts = [part(make_data(each, seed=i)) for i, each in enumerate(lengths)]
    found = []
    for used in (False, True):
        trainer = Trainer(base, deterministic=True)
        trainer.room = None if limit is None else Workspace(limit)
        if used:
            trainer.run([(TrainState(filled_adapter(base, 3)), part(make_data([64, 64, 200], seed=9)))])
            if trainer.room is not None:
                with torch.inference_mode():
                    for buffer in trainer.room._buffers.values():
                        buffer.fill_(torch.nan)
        state = TrainState(filled_adapter(base, 4))
        results = trainer.run([(state, one) for one in parts])
        found.append((state.grads.flat, [r.metrics["loss:sum"] for r in results]))
    plain = Trainer(base, deterministic=True)
    plain.room = None
    state = TrainState(filled_adapter(base, 4))
    results = plain.run([(state, one) for one in parts])
    for grads, losses in found:
        assert torch.equal(grads, state.grads.flat)
        assert losses == [r.metrics["loss:sum"] for r in results]
