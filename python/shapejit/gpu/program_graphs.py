# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a program under constant graphs consists of, in numbers: words, launches, regions.

See `shapejit.passes.lower_to_host` for what they mean. It holds no MLIR and no loaded module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shapejit.cache.cubins import CubinEntry


@dataclass(frozen=True)
class WordedLaunch:
    """A launch of a program, whichever variant it is of.

    Attributes:
        kernel: name of the kernel.
        operands: numbers of the words that are its operands.
        values: for each variant of the kernel, in the order of its buckets, the numbers of the
            words that are the values of its interface.
    """

    kernel: str
    operands: tuple[int, ...]
    values: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Branches:
    """Launches that run side by side in some regions.

    Attributes:
        first, last: their numbers, from one to the other.
        regions: numbers of the regions.
        reason: why they do.
    """

    first: int
    last: int
    regions: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Region:
    """Sizes in which every launch has its fixed variant.

    Attributes:
        variants: for each launch, the number of its variant in the program.
        units: for each launch, the most clusters that have work in the region; 0 if not known.
        symbols: the symbols' values of a call in it; None if none was found, as where the sizes of
            two kernels exclude each other.
        order: number of the order in which its launches run; None: one after the other.
    """

    variants: tuple[int, ...]
    units: tuple[int, ...]
    symbols: tuple[int, ...] | None
    order: int | None = None


@dataclass(frozen=True)
class GraphCode:
    """A program's launches under constant graphs.

    Attributes:
        words: what each word is: ``s0 * s1``, ``384``, ``input 0``, ``weight 3``, ``arena 1``.
        call_words: how many of them, the first ones, are of a call; the others are fixed.
        launches: in order.
        regions: by the numbers that the host program gives.
        order: numbers of the regions that calls are expected in, the largest first.
        head: the machine code of the head kernel, as of a variant.
        orders: for each order, and each launch, the numbers of the launches that it waits for.
        branches: where launches run side by side.
    """

    words: tuple[str, ...]
    call_words: int
    launches: tuple[WordedLaunch, ...]
    regions: tuple[Region, ...]
    order: tuple[int, ...]
    head: bytes
    orders: tuple[tuple[tuple[int, ...], ...], ...] = ()
    branches: tuple[Branches, ...] = ()

    def waits(self, region: Region) -> Sequence[tuple[int, ...] | None]:
        """For each launch of a region the launches that it waits for; None: the one ahead of it."""
        if region.order is None:
            return [None] * len(self.launches)
        return self.orders[region.order]

    @cached_property
    def head_entry(self) -> CubinEntry:
        """The contents of `head`.

        Raises:
            CubinEntryError: it is damaged.
        """
        from shapejit.cache.cubins import CubinEntry

        return CubinEntry.decode(self.head)

    def to_json(self) -> dict[str, Any]:
        """All but the head kernel's data, as dicts, lists and scalars."""
        return {
            "words": list(self.words),
            "call_words": self.call_words,
            "launches": [
                [launch.kernel, list(launch.operands), list(map(list, launch.values))]
                for launch in self.launches
            ],
            "regions": [
                [
                    list(region.variants),
                    list(region.units),
                    None if region.symbols is None else list(region.symbols),
                    region.order,
                ]
                for region in self.regions
            ],
            "order": list(self.order),
            "orders": [list(map(list, order)) for order in self.orders],
            "branches": [[b.first, b.last, list(b.regions), b.reason] for b in self.branches],
        }

    @staticmethod
    def from_json(
        record: Mapping[str, Any], head: bytes, variants: Mapping[str, Sequence[int]]
    ) -> GraphCode:
        """The inverse of `to_json`, with the head kernel's data put back.

        Args:
            record: what `to_json` gave.
            head: data of the head kernel.
            variants: numbers of each kernel's variants in the program, by its name.

        Raises:
            ValueError: numbers are out of their ranges.
            KeyError, TypeError: it is not what `to_json` gives.
        """
        words = tuple(map(str, record["words"]))
        launches = tuple(
            WordedLaunch(
                str(kernel),
                tuple(map(int, operands)),
                tuple(tuple(map(int, of_variant)) for of_variant in values),
            )
            for kernel, operands, values in record["launches"]
        )
        regions = tuple(
            Region(
                tuple(map(int, chosen)),
                tuple(map(int, units)),
                None if symbols is None else tuple(map(int, symbols)),
                None if order is None else int(order),
            )
            for chosen, units, symbols, order in record["regions"]
        )
        code = GraphCode(
            words,
            int(record["call_words"]),
            launches,
            regions,
            tuple(map(int, record["order"])),
            head,
            tuple(tuple(tuple(map(int, waits)) for waits in order) for order in record["orders"]),
            tuple(
                Branches(int(first), int(last), tuple(map(int, numbers)), str(reason))
                for first, last, numbers, reason in record["branches"]
            ),
        )
        code._check(variants)
        code._check_orders()
        return code

    def _check(self, variants: Mapping[str, Sequence[int]]) -> None:
        count = len(self.words)
        for launch in self.launches:
            used = (*launch.operands, *(word for words in launch.values for word in words))
            if not all(0 <= word < count for word in used):
                raise ValueError(f"a launch of {launch.kernel} has a word out of range")
            if len(launch.values) != len(variants[launch.kernel]):
                raise ValueError(f"a launch of {launch.kernel} has other variants than that")
        for region in self.regions:
            each = zip(self.launches, region.variants, region.units, strict=True)
            for launch, variant, units in each:
                if variant not in variants[launch.kernel]:
                    raise ValueError(f"a region has no variant of {launch.kernel}")
                if units < 0:
                    raise ValueError(f"a region has {units} units of {launch.kernel}")
        if not 0 <= self.call_words <= count:
            raise ValueError(f"there are {count} words, and not {self.call_words} of a call")
        if not all(0 <= number < len(self.regions) for number in self.order):
            raise ValueError("the order of regions has one that is not there")

    def _check_orders(self) -> None:
        for order in self.orders:
            for number, waits in zip(range(len(self.launches)), order, strict=True):
                if list(waits) != sorted(set(waits)) or not set(waits) <= set(range(number)):
                    raise ValueError(f"launch {number} waits for others than those ahead of it")
        for region in self.regions:
            if region.order is not None and not 0 <= region.order < len(self.orders):
                raise ValueError("a region has an order that is not there")
        for each in self.branches:
            if not 0 <= each.first <= each.last < len(self.launches):
                raise ValueError("launches run side by side that are not there")


__all__ = ["Branches", "GraphCode", "Region", "WordedLaunch"]
