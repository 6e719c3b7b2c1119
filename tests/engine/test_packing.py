"""Ragged data cut by a token budget."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tinkex.engine.packing import Run, micro_batches

PARTS = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=12), min_size=1, max_size=5)


@given(PARTS, st.integers(1, 100))
def test_every_datum_once_in_order_and_within_budget(parts, budget):
    batches = micro_batches(parts, budget)
    seen = []
    for batch in batches:
        sizes = [n for run in batch for n in parts[run.part][run.first : run.end]]
        assert sum(sizes) <= budget or len(sizes) == 1
        seen += [(run.part, i) for run in batch for i in range(run.first, run.end)]
    assert seen == [(p, i) for p, sizes in enumerate(parts) for i in range(len(sizes))]


@given(PARTS, st.integers(1, 100))
def test_no_two_neighbours_could_have_been_one_batch(parts, budget):
    batches = micro_batches(parts, budget)
    for left, right in pairwise(batches):
        used = sum(n for run in left for n in parts[run.part][run.first : run.end])
        first = right[0]
        assert used + parts[first.part][first.first] > budget


def test_neighbours_of_a_part_are_one_run():
    assert micro_batches([[5, 5], [5]], 100) == [[Run(0, 0, 2), Run(1, 0, 1)]]
    assert micro_batches([[5, 200, 5]], 10) == [[Run(0, 0, 1)], [Run(0, 1, 2)], [Run(0, 2, 3)]]
