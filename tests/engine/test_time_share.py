"""Training and sampling share time as told, whatever their steps take."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinkex.engine.time_share import TimeShare


@settings(max_examples=60, deadline=None)
@given(st.floats(0.001, 2.0), st.floats(0.001, 2.0), st.sampled_from([0.2, 0.5, 0.8]))
def test_both_sides_get_their_share(train_step, sample_step, train_share):
    share = TimeShare(train_share)
    spent = {"train": 0.0, "sample": 0.0}
    while sum(spent.values()) < 400 * max(train_step, sample_step):
        side = share.choose(train=True, sample=True)
        seconds = train_step if side == "train" else sample_step
        spent[side] += seconds
        share.spent(side, seconds)
    assert abs(spent["train"] / sum(spent.values()) - train_share) < 0.02


def test_a_side_alone_runs_and_earns_no_credit():
    share = TimeShare()
    for _ in range(1000):
        assert share.choose(train=True, sample=False) == "train"
        share.spent("train", 10.0)
    assert share.choose(train=True, sample=True) == "train"
    share.spent("train", 1.0)
    assert share.choose(train=True, sample=True) == "sample"
    assert share.choose(train=False, sample=False) is None


def test_one_long_step_is_not_paid_back_for_ever():
    share = TimeShare(most=5.0)
    share.choose(train=True, sample=True)
    share.spent("train", 10_000.0)
    turns = 0
    while share.choose(train=True, sample=True) == "sample":
        share.spent("sample", 0.1)
        turns += 1
    assert turns == 25


def test_shares_are_checked():
    with pytest.raises(ValueError, match="between"):
        TimeShare(1.0)
