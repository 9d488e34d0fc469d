# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sorting networks over records in shared memory, by the threads of a team.

The network is that of `shapejit.passes.rowwise.keys.masks`. Its steps within 64 neighbours are done
in the registers of a warp, two records a lane. Of the others two are done at a time: a thread loads
the four records that both compare with each other, and stores them; a barrier comes behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from mlir.dialects import arith, llvm, nvvm

from shapejit.passes.gpu_loops.reduce import Team, shuffled
from shapejit.passes.gpu_loops.schedule import WARP
from shapejit.passes.nvgpu import ptx
from shapejit.passes.nvgpu.builder import (
    Loop,
    Num,
    Value,
    add,
    and_,
    compare,
    constant,
    i32,
    i64,
    loop,
    mul,
    or_,
    pointer,
    shl,
    shr,
    sub,
    value,
    when,
    wide,
)
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.rowwise.keys import Record, comes_before, exchanged, masks

RUN = 2 * WARP
"""Records that a warp sorts in registers."""

_WORD = 8
_RUN_BITS = RUN.bit_length() - 1


@dataclass(frozen=True)
class GlobalRecords:
    """Records in global memory, each of their words in an array of its own.

    Loads are not from the first-level cache: other multiprocessors write these records too.

    Attributes:
        addresses: of the arrays, i64.
    """

    addresses: tuple[Value, ...]

    def load(self, index: Num, condition: Value | None = None) -> Record:
        """A record; whatever, if a condition fails."""
        found = []
        for address in self.addresses:
            text, operands = "ld.global.cg.b64 $0, [$1];", [self._at(address, index)]
            constraints = "=l,l"
            if condition is not None:
                text, constraints = f"mov.b64 $0, 0; @$2 {text}", "=&l,l,b"
                operands.append(condition)
            found.append(ptx.assembly(i64(), text, constraints, operands, pure=False))
        return found

    def store(self, record: Sequence[Value], index: Num, condition: Value | None = None) -> None:
        """Stores a record if a condition holds."""
        for address, word in zip(self.addresses, record, strict=True):
            guard = "" if condition is None else "@$2 "
            operands = [self._at(address, index), word, *([] if condition is None else [condition])]
            constraints = ["l", "l", *([] if condition is None else ["b"]), "~{memory}"]
            text = f"{guard}st.global.b64 [$0], $1;"
            ptx.assembly(None, text, ",".join(constraints), operands, pure=False)

    @staticmethod
    def _at(address: Value, index: Num) -> Value:
        return add(address, mul(wide(value(index)), _WORD))


@dataclass(frozen=True)
class Records:
    """Records in the shared memory of a CTA.

    Attributes:
        memory: of the CTA.
        start: offset of the first one, a number of bytes.
        capacity: how many there is room for.
        last: a record that comes after all others.
    """

    memory: SharedMemory
    start: Num
    capacity: int
    last: Record

    @staticmethod
    def bytes_needed(capacity: int, words: int) -> int:
        """Shared memory of so many records."""
        return capacity * words * _WORD

    def load(self, index: Num, condition: Value | None = None, cta: Num | None = None) -> Record:
        """A record; the last one if a condition fails.

        Args:
            cta: whose shared memory it is in, by its number in the cluster; None for the own.
        """
        space = "shared" if cta is None else "shared::cluster"
        address = self._address(index, cta)
        found = []
        for number, last in enumerate(self.last):
            where = number * self.capacity * _WORD
            text = f"ld.{space}.b64 $0, [$1+{where}];"
            constraints, operands = "=l,r", [address]
            if condition is not None:
                text = f"mov.b64 $0, $3; @$2 {text}"
                constraints, operands = "=&l,r,b,l", [address, condition, last]
            found.append(ptx.assembly(i64(), text, constraints, operands, pure=False))
        return found

    def store(
        self,
        record: Sequence[Value],
        index: Num,
        condition: Value | None = None,
        cta: Num | None = None,
    ) -> None:
        """Stores a record if a condition holds; see `load`."""
        space = "shared" if cta is None else "shared::cluster"
        address = self._address(index, cta)
        for number, word in enumerate(record):
            where = number * self.capacity * _WORD
            guard = "" if condition is None else "@$2 "
            text = f"{guard}st.{space}.b64 [$0+{where}], $1;"
            operands = [address, word, *([] if condition is None else [condition])]
            constraints = ["r", "l", *([] if condition is None else ["b"]), "~{memory}"]
            ptx.assembly(None, text, ",".join(constraints), operands, pure=False)

    def _address(self, index: Num, cta: Num | None) -> Value:
        if cta is None:
            return add(self.memory.base, add(mul(index, _WORD), self.start))
        local = self.memory.pointer(add(mul(index, _WORD), self.start))
        return llvm.ptrtoint(i32(), nvvm.mapa(pointer(7), local, value(cta)))


class Memory(Protocol):
    """Records that can be loaded and stored by their numbers."""

    def load(self, index: Num, condition: Value | None = None) -> Record:
        """A record."""

    def store(self, record: Sequence[Value], index: Num, condition: Value | None = None) -> None:
        """Stores a record if a condition holds."""


@dataclass(frozen=True)
class Steps:
    """Steps of a network in memory.

    Attributes:
        records: that are compared.
        own: number of this thread.
        threads: how many take part.
    """

    records: Memory
    own: Value
    threads: int

    def mirrored(self, count: Num, p: Value) -> None:
        """Compares the ends of runs of ``2 ^ p``, and so inwards."""
        size, half = shl(value(1), p), shl(value(1), sub(p, 1))
        with self._pairs(count, p) as pair:
            run = shl(shr(pair.index, sub(p, 1)), p)
            inside = and_(pair.index, sub(half, 1))
            high = sub(add(run, sub(size, 1)), inside)
            self._exchange(add(run, inside), high, count)

    def apart(self, count: Num, exponent: Value) -> None:
        """Compares records at a distance of ``2 ^ exponent``."""
        distance = shl(value(1), exponent)
        with self._pairs(count, add(exponent, 1)) as pair:
            run = shl(shr(pair.index, exponent), add(exponent, 1))
            low = or_(run, and_(pair.index, sub(distance, 1)))
            self._exchange(low, add(low, distance), count)

    def mirrored_twice(self, count: Num, p: Value) -> None:
        """`mirrored`, and then `apart` at a quarter of the runs; of records in shared memory."""
        size, quarter = shl(value(1), p), shl(value(1), sub(p, 2))
        with self._quads(count, p) as quad:
            run = shl(shr(quad.index, sub(p, 2)), p)
            inside = and_(quad.index, sub(quarter, 1))
            low, high = add(run, inside), sub(add(run, sub(size, 1)), inside)
            places = [low, add(low, quarter), sub(high, quarter), high]
            self._exchange_quad(places, ((0, 3), (1, 2), (0, 1), (2, 3)), count)

    def apart_twice(self, count: Num, exponent: Value) -> None:
        """`apart` at ``2 ^ exponent`` and at half of that; of records in shared memory."""
        quarter = shl(value(1), sub(exponent, 1))
        with self._quads(count, add(exponent, 1)) as quad:
            run = shl(shr(quad.index, sub(exponent, 1)), add(exponent, 1))
            low = or_(run, and_(quad.index, sub(quarter, 1)))
            places = [add(low, mul(quarter, number)) for number in range(4)]
            self._exchange_quad(places, ((0, 2), (1, 3), (0, 1), (2, 3)), count)

    def _pairs(self, count: Num, p: Value) -> AbstractContextManager[Loop]:
        """A loop of this thread over pairs, of all runs of ``2 ^ p``."""
        return loop(self.own, shl(self._runs(count, p), sub(p, 1)), self.threads)

    def _quads(self, count: Num, p: Value) -> AbstractContextManager[Loop]:
        """The same over records of four."""
        return loop(self.own, shl(self._runs(count, p), sub(p, 2)), self.threads)

    @staticmethod
    def _runs(count: Num, p: Value) -> Value:
        return shr(add(count, sub(shl(value(1), p), 1)), p)

    def _exchange_quad(
        self, places: Sequence[Value], pairs: Sequence[tuple[int, int]], count: Num
    ) -> None:
        """Compares pairs of four records. Those past the end are the last of all and stay there."""
        there = [compare("ult", place, count) for place in places]
        found = [
            self.records.load(place, condition)
            for place, condition in zip(places, there, strict=True)
        ]
        for low, high in pairs:
            found[low], found[high] = exchanged(found[low], found[high])
        for record, place, condition in zip(found, places, there, strict=True):
            self.records.store(record, place, condition)

    def _exchange(self, low: Value, high: Value, count: Num) -> None:
        with when(compare("ult", high, count)):
            first, second = exchanged(self.records.load(low), self.records.load(high))
            self.records.store(first, low)
            self.records.store(second, high)


class Network:
    """Sorts records of a team.

    Args:
        team: its threads.
        records: in the shared memory of each of its CTAs, of as many records as their capacity.
    """

    def __init__(self, team: Team, records: Records) -> None:
        self._team, self._records = team, records
        self._threads = team.warps * WARP  # of a CTA
        self._own = team.threads.lane if team.warps == 1 else team.threads.thread
        self._lane = team.threads.lane
        self._steps = Steps(records, self._own, self._threads)

    # One CTA --------------------------------------------------------------------------------------

    def sort(self, count: Num) -> None:
        """Sorts the first so many records (i32) of this CTA; a barrier comes first and last.

        By the threads of the CTA that are of the team: of a cluster, all.
        """
        self._synchronize()
        self._runs(count, [mask for size in _sizes(RUN) for mask in masks(size)])
        self._synchronize()
        if self._records.capacity <= RUN:
            return
        with loop(_RUN_BITS + 1, add(bits_of(count), 1)) as merged:
            p = merged.index
            self._steps.mirrored_twice(count, p)
            self._synchronize()
            self.halve(count, sub(p, 3))

    def halve(self, count: Num, exponent: Num) -> None:
        """The steps at distances of ``2 ^ exponent`` and all below."""
        steps = arith.maxsi(value(sub(exponent, _RUN_BITS - 1)), constant(0))
        with loop(0, shr(steps, 1)) as step:
            self._steps.apart_twice(count, sub(exponent, mul(step.index, 2)))
            self._synchronize()
        with when(compare("ne", and_(steps, 1), 0)):
            self._steps.apart(count, constant(_RUN_BITS))
            self._synchronize()
        self._runs(count, masks(2 * RUN)[1:])
        self._synchronize()

    def _synchronize(self) -> None:
        """A barrier of the threads of this CTA that sort together."""
        Team(self._team.threads, self._team.warps).synchronize()

    def _runs(self, count: Num, steps: Sequence[int]) -> None:
        """Steps within runs of 64 records, each in the registers of a warp."""
        warp: Num = 0 if self._team.warps == 1 else self._team.threads.warp
        runs = shr(add(count, RUN - 1), _RUN_BITS)
        with loop(warp, runs, self._team.warps) as run:
            places = [add(mul(run.index, RUN), add(self._lane, half)) for half in (0, WARP)]
            there = [compare("ult", place, count) for place in places]
            pair = [
                self._records.load(place, condition)
                for place, condition in zip(places, there, strict=True)
            ]
            for mask in steps:
                pair = self._step(pair, mask)
            for record, place, condition in zip(pair, places, there, strict=True):
                self._records.store(record, place, condition)

    def _step(self, pair: Sequence[Record], mask: int) -> list[Record]:
        """Compares records of the warp whose numbers differ in a mask."""
        within = mask & (WARP - 1)
        low, high = pair
        if mask & WARP:
            first, _ = exchanged(low, _from_lanes(high, within))
            _, second = exchanged(high, _from_lanes(low, within))
            return [first, second]
        top = 1 << (within.bit_length() - 1)
        is_low = compare("eq", and_(self._lane, top), 0)
        found = []
        for record in pair:
            other = _from_lanes(record, within)
            keeps = arith.xori(comes_before(other, record), is_low)
            found.append([arith.select(keeps, a, b) for a, b in zip(record, other, strict=True)])
        return found

    # A cluster ------------------------------------------------------------------------------------

    def sort_cluster(self, count: Num) -> None:
        """Sorts the first so many records of all CTAs of the team, one CTA's after the other's.

        Each CTA has as many as its capacity, a power of 2. A barrier of the team comes last.
        """
        capacity = self._records.capacity
        own = self.share(count)
        self.sort(own)
        bits = capacity.bit_length() - 1
        with loop(bits + 1, (capacity * self._team.cluster).bit_length()) as merged:
            p = merged.index
            self._team.synchronize()
            self._across(p, sub(p, 1), count, mirrored=True)
            with loop(0, sub(sub(p, 1), bits)) as step:
                self._team.synchronize()
                self._across(p, sub(sub(p, 2), step.index), count, mirrored=False)
            self._team.synchronize()
            self.halve(own, bits - 1)
        self._team.synchronize()

    def share(self, count: Num) -> Value:
        """How many of so many records are this CTA's, i32."""
        capacity = self._records.capacity
        before = mul(self._team.rank, capacity)
        rest = arith.maxsi(sub(value(count), before), constant(0))
        return arith.minsi(rest, constant(capacity))

    def _across(self, p: Value, exponent: Value, count: Num, *, mirrored: bool) -> None:
        """Compares records of two CTAs, at a distance of ``2 ^ exponent`` at least a capacity.

        Every CTA takes as many pairs, which are neighbours and hence in the same two CTAs.
        """
        capacity = self._records.capacity
        bits, distance = capacity.bit_length() - 1, shl(value(1), exponent)
        base = mul(self._team.rank, capacity // 2)
        with loop(self._own, capacity // 2, self._threads) as pair:
            number = add(base, pair.index)
            run = shl(shr(number, exponent), add(exponent, 1))
            inside = and_(number, sub(distance, 1))
            low, high = add(run, inside), add(add(run, inside), distance)
            if mirrored:
                high = sub(add(run, sub(shl(value(1), p), 1)), inside)
            with when(compare("ult", high, count)):
                ctas = [shr(each, bits) for each in (low, high)]
                places = [and_(each, capacity - 1) for each in (low, high)]
                found = [
                    self._records.load(place, cta=cta)
                    for place, cta in zip(places, ctas, strict=True)
                ]
                for record, place, cta in zip(exchanged(*found), places, ctas, strict=True):
                    self._records.store(record, place, cta=cta)


def _sizes(last: int) -> list[int]:
    """2, 4, .. up to a power of 2."""
    return [1 << bit for bit in range(1, last.bit_length())]


def _from_lanes(record: Sequence[Value], mask: int) -> Record:
    """The records of the lanes whose numbers differ in a mask."""
    if not mask:
        return list(record)
    return [shuffled("bfly", word, mask) for word in record]


def bits_of(count: Num) -> Num:
    """The least p with ``2 ^ p >= count``, i32; 0 for none."""
    below = sub(arith.maxui(value(count), constant(1)), 1)
    zeros = llvm.intr_ctlz(below, is_zero_poison=False)
    return sub(32, zeros)
