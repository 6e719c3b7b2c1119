"""A model's operations are taken in ascending order, once each, whatever order they arrive in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tinkex.server.line import Line


@given(st.permutations(range(8)), st.sets(st.integers(0, 7)))
def test_any_order_of_arrival_comes_out_ascending_without_what_was_refused(arrivals, refused):
    line: Line[int] = Line()
    taken = []
    for number in arrivals:
        if number in refused:
            line.use_up(number)
        else:
            line.enter(number, number)
        while line.head() is not None:
            taken.append(line.take()[1])
    assert taken == sorted(set(range(8)) - refused)
    assert line.next == 8
    assert line.missing is None


def test_a_number_that_never_comes_is_given_up_and_then_too_late():
    line: Line[str] = Line(1)
    line.enter(4, "four")
    line.use_up(3)
    assert line.missing == 1
    assert line.skip() == [1, 2]
    assert line.take() == (4, "four")
    assert [line.too_late(each) for each in (1, 2, 3, 4, 5)] == [True] * 4 + [False]


def test_nothing_is_given_up_while_nobody_waits():
    line: Line[str] = Line(1)
    line.use_up(3)
    assert line.missing is None
    assert line.skip() == []
    line.enter(1, "one")
    assert line.skip() == []


def test_an_operation_without_a_number_goes_behind_all_others():
    line: Line[str] = Line(1)
    assert line.free_number() == 1
    line.enter(5, "five")
    assert line.free_number() == 6
    line.use_up(7)
    assert line.free_number() == 8


def test_what_is_left_comes_out_in_order_when_the_line_is_closed():
    line: Line[int] = Line(1)
    for number in (5, 2, 9):
        line.enter(number, number)
    assert line.clear() == [2, 5, 9]
    assert len(line) == 0


class Lines(RuleBasedStateMachine):
    """A line next to a plain record of what it must have done."""

    def __init__(self) -> None:
        super().__init__()
        self.line: Line[int] = Line()
        self.entered: set[int] = set()
        self.gone: set[int] = set()
        self.done: list[int] = []
        self.under_way: list[int] = []

    def new(self, number: int) -> bool:
        known = self.entered | self.gone
        return number not in known and not self.line.too_late(number)

    @rule(number=st.integers(0, 25))
    def enter(self, number: int) -> None:
        if self.new(number):
            self.line.enter(number, number)
            self.entered.add(number)

    @rule(number=st.integers(0, 25))
    def refuse(self, number: int) -> None:
        if self.new(number):
            self.gone.add(number)
        self.line.use_up(number)

    @precondition(lambda self: self.line.head() is not None)
    @rule()
    def take(self) -> None:
        number, item = self.line.take()
        assert number == item
        self.under_way.append(number)

    @precondition(lambda self: self.under_way)
    @rule()
    def finish_first(self) -> None:
        self.done.append(self.under_way.pop(0))

    @rule()
    def lose_the_engine(self) -> None:
        for number in reversed(self.under_way):
            self.line.put_back(number, number)
        self.under_way.clear()

    @rule()
    def give_up(self) -> None:
        missing = self.line.missing
        skipped = self.line.skip()
        assert (missing is None) == (skipped == [])
        assert not set(skipped) & self.entered
        self.gone.update(skipped)

    @invariant()
    def in_order_once_and_nothing_lost(self) -> None:
        order = self.done + self.under_way
        assert order == sorted(set(order))
        waiting = set(self.line)
        assert waiting | set(order) == self.entered
        assert not waiting & set(order)
        assert self.line.missing not in self.gone  # what is gone is not waited for again
        ready = [number for number, _ in self.line.ready()]
        assert ready == sorted(ready)
        assert all(number > max(order, default=-1) for number in waiting if not self.line.too_late(number))

    def teardown(self) -> None:
        """Whatever is still in line comes out once the holes are given up."""
        self.done += self.under_way
        while len(self.line):
            self.line.skip()
            while self.line.head() is not None:
                self.done.append(self.line.take()[0])
        assert self.done == sorted(self.entered)


test_a_line_under_everything_that_can_happen_to_it = Lines.TestCase
