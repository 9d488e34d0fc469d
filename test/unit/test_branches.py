# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Launches that run side by side: what they wait for, the memory they get, what they take."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapejit.passes.branches.makespan import LEAVING, MEETING, Work, makespan, serial
from shapejit.passes.branches.order import (
    Accesses,
    Order,
    chain,
    order_with,
    sections_of,
    unordered,
)
from shapejit.passes.plan_branches import LEAST_GAIN, _Estimate, pays
from shapejit.passes.plan_memory import Arena
from shapejit.symbolic import Expr, Ranges

pieces = st.frozensets(st.integers(0, 5), max_size=3)
programs = st.lists(st.builds(Accesses, pieces, pieces), min_size=1, max_size=12)


@st.composite
def programs_with_sections(draw: st.DrawFn) -> tuple[list[Accesses], list[range]]:
    """A program, and disjoint runs of its launches."""
    program = draw(programs)
    cuts = sorted(draw(st.sets(st.integers(0, len(program)), max_size=6)))
    every = [range(a, b) for a, b in itertools.pairwise(cuts)]
    return program, [each for each in every if draw(st.booleans())]


def closure(order: Order) -> Any:
    """Which launch has ended when which begins, by Warshall's algorithm."""
    count = len(order.waits)
    reaches = np.zeros((count, count), dtype=bool)
    for number, waits in enumerate(order.waits):
        reaches[list(waits), number] = True
    for middle in range(count):
        reaches |= np.outer(reaches[:, middle], reaches[middle])
    return reaches


def touch(first: Accesses, second: Accesses) -> bool:
    """Whether one writes what the other reads or writes."""
    return any(
        piece in second.reads | second.writes if piece in first.writes else piece in second.writes
        for piece in first.reads | first.writes
    )


# Orders -------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=300)
@given(programs_with_sections())
def test_every_dependency_is_covered_by_a_path(made: tuple[list[Accesses], list[range]]) -> None:
    program, sections = made
    order = order_with(program, sections)
    reaches = closure(order)
    inside = {n: section for section in sections for n in section}
    for second in range(len(program)):
        for first in range(second):
            if touch(program[first], program[second]):
                assert reaches[first, second], "a true, anti or output dependency"
            if inside.get(first, first) != inside.get(second, second):
                assert reaches[first, second], "what is not in one section is in order"
            assert order.precedes(first, second) == reaches[first, second]
    assert not np.tril(reaches).any(), "no launch waits for one behind it"
    for waits in order.waits:
        assert list(waits) == sorted(set(waits))
        assert not any(reaches[a, b] for a in waits for b in waits), "a wait follows from another"


@settings(deadline=None, max_examples=200)
@given(programs)
def test_sections(program: list[Accesses]) -> None:
    """Between sections the program is a chain, and within one some launches are free."""
    sections = sections_of(program)
    free = closure(order_with(program, [range(len(program))]))
    free |= free.T
    for section in sections:
        assert not all(free[a, b] for a in section for b in section if a != b)
    for first, second in itertools.pairwise(sections):
        assert first.stop < second.start
    inside = {n: section for section in sections for n in section}
    for a in range(len(program)):
        for b in range(a):
            if inside.get(a, a) != inside.get(b, b):
                assert free[a, b], "launches of two sections, or of none, are in order anyway"
    everything = order_with(program, [range(len(program))])
    assert closure(order_with(program, sections)).tolist() == closure(everything).tolist()


@settings(deadline=None, max_examples=200)
@given(programs, programs_with_sections())
def test_launches_that_are_in_no_order(
    program: list[Accesses], made: tuple[list[Accesses], list[range]]
) -> None:
    other, sections = made
    count = min(len(program), len(other))
    order = order_with(other, [s for s in sections if s.stop <= count])
    order = Order(order.waits[:count])
    found = unordered(program[:count], order)
    reaches = closure(order)
    every = {
        (a, b)
        for b in range(count)
        for a in range(b)
        if touch(program[a], program[b]) and not reaches[a, b]
    }
    assert (found in every) if every else found is None


def test_chains() -> None:
    assert chain(3).waits == ((), (0,), (1,))
    assert chain(3).is_chain()
    assert chain(0).waits == ()
    assert not Order(((), ())).is_chain()
    assert order_with([Accesses()] * 3, []) == chain(3)


# Memory -------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(programs_with_sections(), st.data())
def test_values_that_live_at_once_share_no_slot(
    made: tuple[list[Accesses], list[range]], data: st.DataObject
) -> None:
    """Each launch writes a value that some launches behind it read; all are of one size."""
    program, sections = made
    count = len(program)
    readers = [
        data.draw(st.sets(st.integers(n + 1, count - 1), max_size=3)) if n + 1 < count else set()
        for n in range(count)
    ]
    accesses = [
        Accesses(frozenset(k for k in range(n) if n in readers[k]), frozenset({n}))
        for n in range(count)
    ]
    order = order_with(accesses, sections)
    arena = Arena(Ranges({}), (), order.precedes)
    users = [(n, *sorted(readers[n])) for n in range(count)]
    slots = [arena.allocate(Expr.const(64), n, *users[n]) for n in range(count)]
    reaches = closure(order)
    for second in range(count):
        for first in range(second):
            if slots[first] == slots[second]:
                assert all(reaches[user, second] for user in users[first])
    planned = [
        Accesses(frozenset(slots[k] for k in accesses[n].reads), frozenset({slots[n]}))
        for n in range(count)
    ]
    assert unordered(planned, order) is None


# What launches take -------------------------------------------------------------------------------

works = st.builds(
    Work,
    st.floats(0.5, 50).map(lambda x: round(x, 2)),
    st.floats(0.01, 1).map(lambda x: round(x, 2)),
    st.floats(0, 1).map(lambda x: round(x, 2)),
)


@settings(deadline=None, max_examples=200)
@given(programs_with_sections(), st.data())
def test_bounds_of_the_time_together(
    made: tuple[list[Accesses], list[range]], data: st.DataObject
) -> None:
    """No less than the longest path and than the busiest resource; a chain is one by one."""
    program, sections = made
    order = order_with(program, sections)
    each = [data.draw(works) for _ in program]
    took = makespan(each, order)
    longest = [0.0] * len(each)
    for number, waits in enumerate(order.waits):
        longest[number] = each[number].time + max((longest[k] for k in waits), default=0.0)
    busiest = max(
        sum(work.time * getattr(work, share) for work in each) for share in ("room", "busy")
    )
    assert took >= max(*longest, busiest) - 1e-6
    if order.is_chain():
        assert took == pytest.approx(serial(each))


def two_towers(count: int) -> Order:
    """Two chains behind one launch, and one that waits for both."""
    first, second = range(1, count + 1), range(count + 1, 2 * count + 1)
    waits: list[tuple[int, ...]] = [()]
    for tower in (first, second):
        waits += [(0,) if n == tower.start else (n - 1,) for n in tower]
    return Order((*waits, (count, 2 * count)))


def test_small_towers_take_little_more_than_one() -> None:
    each = [Work(3.0, 0.2, 0.1)] * 12
    assert makespan(each, two_towers(5)) == pytest.approx(3 + LEAVING + 15 + MEETING + 3)
    assert serial(each) == 36


@pytest.mark.parametrize("work", [Work(3.0, 1.0, 0.1), Work(3.0, 0.2, 1.0)], ids=["room", "busy"])
def test_towers_that_fill_the_machine_gain_nothing(work: Work) -> None:
    each = [work] * 12
    assert makespan(each, two_towers(5)) >= serial(each)


def test_what_pays() -> None:
    good, even, bad = _Estimate("", 30, 20), _Estimate("", 30, 30.1), _Estimate("", 30, 30.4)
    assert pays([good])
    assert pays([good, even])
    assert not pays([good, bad])
    assert not pays([even])
    assert not pays([])
    assert not pays([_Estimate("", 10, 10.1 - LEAST_GAIN)])
    assert not pays([_Estimate("", 1000, 960)])
