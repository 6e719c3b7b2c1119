"""Kill anything at any moment: a user's program goes on, and ends with the very same numbers and files."""

from __future__ import annotations

import random
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from tinkex.testing import make_tiny_model
from tinkex.testing.kill_points import ENGINE_POINTS, KillOrder

from .killing import CUTS, EVERYWHERE, ONCE, Report, disturbed, undisturbed
from .power import COMPILER
from .serving import DETERMINISTIC

STEPS = 16
POWER = (*DETERMINISTIC, "--durability", "power")
needs_engine = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("torch", "transformers")), reason="the engine is not installed"
)
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="a C compiler is needed to see what is synced")


def see_through(folder: Path, sdk: str, points: list[str], options: Sequence[str]) -> None:
    """Run a program undisturbed and disturbed, and compare."""
    pytest.importorskip(sdk)
    chance = random.Random(f"{sdk} 1")
    model = make_tiny_model(folder / "model")
    expected = undisturbed(folder / "undisturbed", model, sdk, STEPS)
    chance.shuffle(points)
    report = Report(sdk)
    disturbed(folder / "disturbed", model, points, STEPS, chance, report, options)
    assert len(report.kills) >= 2, "how many fall into so few steps is a matter of time"
    assert report.differences(expected) == []


@pytest.mark.slow
@needs_engine
def test_a_program_does_not_notice_that_its_server_is_killed(tmp_path: Path):
    points = [each for each in EVERYWHERE if each not in (*ONCE, *CUTS)]
    see_through(tmp_path, "tinker", [*points, ONCE[0]], DETERMINISTIC)


@pytest.mark.slow
@needs_engine
@needs_compiler
def test_a_program_does_not_notice_that_the_power_is_cut(tmp_path: Path):
    see_through(tmp_path, "tinkex", list(CUTS), POWER)


def test_an_order_is_for_a_moment_that_there_is(tmp_path: Path):
    order = KillOrder(tmp_path / "order")
    with pytest.raises(ValueError, match="no such moment"):
        order.give("operation: some time")
    assert order.obeyed
    order.give(ENGINE_POINTS[-1])
    assert not order.obeyed
    assert order.take_back()
    assert not order.take_back()
