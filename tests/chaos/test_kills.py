"""Kill anything at any moment: a user's program goes on, and ends with the very same numbers and files."""

from __future__ import annotations

import random
from importlib.util import find_spec
from pathlib import Path

import pytest

from tinkex.testing import make_tiny_model
from tinkex.testing.kill_points import KillOrder

from .killing import EVERYWHERE, ONCE, Report, disturbed, undisturbed

STEPS = 24
needs_engine = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("torch", "transformers")), reason="the engine is not installed"
)


@pytest.mark.slow
@needs_engine
@pytest.mark.parametrize("sdk", ["tinker", "tinkex"])
def test_a_program_does_not_notice_that_its_server_is_killed(sdk: str, tmp_path: Path):
    pytest.importorskip(sdk)
    chance = random.Random(f"{sdk} 1")
    model = make_tiny_model(tmp_path / "model")
    expected = undisturbed(tmp_path / "undisturbed", model, sdk, STEPS)
    points = [*(each for each in EVERYWHERE if each not in ONCE), chance.choice(ONCE)]
    chance.shuffle(points)
    report = Report(sdk)
    disturbed(tmp_path / "disturbed", model, points, STEPS, chance, report)
    assert len(report.kills) >= 5
    assert report.differences(expected) == []


def test_an_order_is_for_a_moment_that_there_is(tmp_path: Path):
    order = KillOrder(tmp_path / "order")
    with pytest.raises(ValueError, match="no such moment"):
        order.give("operation: some time")
    assert order.obeyed
    order.give(EVERYWHERE[-1])
    assert not order.obeyed
    assert order.take_back()
    assert not order.take_back()
