# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What is sorted in place of elements: records, all different, in whose order a sort is stable.

A record is an element's *key*, a signed integer in the order that is asked for, above its place in
the row. Two records of a row are never equal, so every way of sorting them gives one result, that
of a stable sort; elements themselves are fetched by their places in the end. Elements of up to 32
bits have records of one i64, wider ones of two: key and place.

Keys of floats: as integers, positive floats are in order, and negative ones are in reverse, which
flipping all bits but the sign mends. -0 is made +0, and NaN the greatest integer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith

from shapejit.passes.rowwise.values import Type, Value, constant, integer, is_float, with_element

Record = list[Value]

_NARROW = 32
_LAST = (1 << 63) - 1


@dataclass(frozen=True)
class Keys:
    """How elements become records.

    Attributes:
        element: their type in memory.
        descending: whether the greatest comes first.
    """

    element: Type
    descending: bool

    @property
    def words(self) -> int:
        """i64 words of a record."""
        return 1 if int(self.element.width) <= _NARROW else 2

    def record(self, value: Value, place: Value) -> Record:
        """The record of an element.

        Args:
            value: in its compute type: f16 and bf16 are f32, bools i1. A scalar or a vector.
            place: i64, below 2^31 where records have one word.
        """
        key = self._key(value)
        if self.descending:
            key = arith.xori(key, constant(key.type, -1))
        if self.words == 2:
            return [key, place]
        wide = arith.extsi(place.type, key)
        return [arith.ori(arith.shli(wide, constant(place.type, _NARROW)), place)]

    def place(self, record: Sequence[Value]) -> Value:
        """The place of a record's element, i64."""
        if self.words == 2:
            return record[1]
        [word] = record
        return arith.andi(word, constant(word.type, (1 << _NARROW) - 1))

    def last(self, type_: Type) -> Record:
        """A record that comes after all others, of a type of i64 words."""
        return [constant(type_, _LAST) for _ in range(self.words)]

    def _key(self, value: Value) -> Value:
        bits = with_element(value.type, integer(_NARROW if self.words == 1 else 64))
        if is_float(value.type):
            return _float_key(value, bits)
        if value.type == bits:
            return value
        is_bool = int(self.element.width) == 1
        return (arith.extui if is_bool else arith.extsi)(bits, value)


def _float_key(value: Value, bits: Type) -> Value:
    width = int(bits.element_type.width if isinstance(bits, ir.VectorType) else bits.width)
    top = (1 << (width - 1)) - 1
    is_zero = arith.cmpf(arith.CmpFPredicate.OEQ, value, constant(value.type, 0.0))
    is_nan = arith.cmpf(arith.CmpFPredicate.UNO, value, value)
    number = arith.bitcast(bits, value)
    sign = arith.shrsi(number, constant(bits, width - 1))
    ordered = arith.xori(number, arith.andi(sign, constant(bits, top)))
    ordered = arith.select(is_zero, constant(bits, 0), ordered)
    return arith.select(is_nan, constant(bits, top), ordered)


def comes_before(first: Sequence[Value], second: Sequence[Value]) -> Value:
    """Whether one record comes before another, i1 or a vector of them."""
    predicates = arith.CmpIPredicate
    less = arith.cmpi(predicates.slt, first[0], second[0])
    if len(first) == 1:
        return less
    same = arith.cmpi(predicates.eq, first[0], second[0])
    earlier = arith.cmpi(predicates.slt, first[1], second[1])
    return arith.ori(less, arith.andi(same, earlier))


def exchanged(first: Sequence[Value], second: Sequence[Value]) -> tuple[Record, Record]:
    """Two records in order."""
    if len(first) == 1:
        return [arith.minsi(first[0], second[0])], [arith.maxsi(first[0], second[0])]
    keep = comes_before(first, second)
    pairs = list(zip(first, second, strict=True))
    lower = [arith.select(keep, one, other) for one, other in pairs]
    return lower, [arith.select(keep, other, one) for one, other in pairs]


def masks(size: int) -> list[int]:
    """The steps of a bitonic network that make a sorted run of a size, a power of 2, of its halves.

    In a step every record is compared with the one whose number differs in the bits of a mask, and
    the lesser one comes first. First records at equal distances from the run's ends meet, which is
    why no step puts the greater one first; then those at a quarter of the size, an eighth, and so
    on. What lies past the end of a row would be the greatest records and would stay there: so a
    step leaves out what has no partner, and any number of records is sorted without padding.
    """
    found, distance = [size - 1], size // 4
    while distance:
        found.append(distance)
        distance //= 2
    return found
