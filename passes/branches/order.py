# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What launches wait for, from the memory that they read and write.

Launches are numbered in the order of the program, in which they may always run one by one. A
*section* is a run of launches of which some depend neither way on each other. Before and behind it
the program is a chain: whatever comes behind a section waits for all of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Accesses:
    """The memory that a launch touches.

    Attributes:
        reads: pieces that it reads.
        writes: pieces that it writes, whether it reads them or not.
    """

    reads: frozenset[Hashable] = frozenset()
    writes: frozenset[Hashable] = frozenset()

    def conflicts(self, other: Accesses) -> bool:
        """Whether the two must not run at the same time, nor change places."""
        return not (
            self.writes.isdisjoint(other.reads)
            and self.writes.isdisjoint(other.writes)
            and self.reads.isdisjoint(other.writes)
        )


@dataclass(frozen=True)
class Order:
    """A partial order of launches.

    Attributes:
        waits: for each launch, those that it waits for, ascending. What these wait for has ended
            then, too, so none of them is named.
    """

    waits: tuple[tuple[int, ...], ...]

    @cached_property
    def before(self) -> tuple[int, ...]:
        """For each launch, a bit for every launch that has ended when it begins."""
        before: list[int] = []
        for waits in self.waits:
            before.append(_union(before, waits))
        return tuple(before)

    def precedes(self, first: int, second: int) -> bool:
        """Whether a launch has ended when another one begins."""
        return bool(self.before[second] >> first & 1)

    def is_chain(self) -> bool:
        """Whether all launches run one after the other."""
        return all(waits == _only(number - 1) for number, waits in enumerate(self.waits))


def chain(count: int) -> Order:
    """Launches that run one after the other."""
    return Order(tuple(_only(number - 1) for number in range(count)))


def order_with(accesses: Sequence[Accesses], sections: Iterable[range]) -> Order:
    """The order in which launches of some sections run side by side, and all others do not.

    Args:
        accesses: of the launches.
        sections: disjoint.
    """
    section_of = {number: section for section in sections for number in section}
    waits: list[tuple[int, ...]] = []
    before: list[int] = []
    for number, own in enumerate(accesses):
        section = section_of.get(number, range(number, number + 1))
        ahead = [k for k in range(section.start, number) if own.conflicts(accesses[k])]
        waits.append(_last_of([*_outer(before, section.start), *ahead], before))
        before.append(_union(before, waits[-1]))
    return Order(tuple(waits))


def sections_of(accesses: Sequence[Accesses]) -> list[range]:
    """The sections of a program, as long as they can be."""
    count = len(accesses)
    before = order_with(accesses, [range(count)]).before
    behind = [0] * count
    for number in reversed(range(count)):
        behind[number] |= 1 << number
        for k in _bits(before[number]):
            behind[k] |= 1 << number
    every = (1 << count) - 1
    cuts = [n for n in range(count) if before[n] | behind[n] == every]
    sections = []
    for first, last in zip([-1, *cuts], [*cuts, count], strict=True):
        if last - first > 2:  # one alone is in order with all others
            sections.append(range(first + 1, last))
    return sections


def unordered(accesses: Sequence[Accesses], order: Order) -> tuple[int, int] | None:
    """Two launches that touch the same memory though neither waits for the other; None if there
    are none.
    """
    for second, own in enumerate(accesses):
        free = ((1 << second) - 1) & ~order.before[second]
        for first in _bits(free):
            if own.conflicts(accesses[first]):
                return first, second
    return None


def _only(number: int) -> tuple[int, ...]:
    return (number,) if number >= 0 else ()


def _outer(before: Sequence[int], count: int) -> list[int]:
    """Of the first launches, so many, those that none of them waits for."""
    covered = _union_of(before[:count])
    return [k for k in range(count) if not covered >> k & 1]


def _last_of(candidates: Sequence[int], before: Sequence[int]) -> tuple[int, ...]:
    """Those of some launches, ascending, that no other of them waits for."""
    covered = _union_of(before[k] for k in candidates)
    return tuple(k for k in candidates if not covered >> k & 1)


def _union(before: Sequence[int], waits: Iterable[int]) -> int:
    """All that has ended when some launches have."""
    found = 0
    for k in waits:
        found |= before[k] | 1 << k
    return found


def _union_of(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def _bits(mask: int) -> Iterable[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
