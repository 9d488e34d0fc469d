# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a scan combines: monoids over states of a few values.

A state stands for a stretch of a row. `Combine.lift` makes the state of one element,
`Combine.combine` that of two neighbouring stretches, and `Combine.results` reads the scan's results
off the state of all elements so far. Combining is associative (for floats, but for rounding), so
rows may be cut anywhere; where they are cut is fixed by the emitters, hence so are the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir.dialects import arith

from shapejit.passes.rowwise.values import (
    Type,
    Value,
    constant,
    element_of,
    integer,
    is_float,
    with_element,
)

State = list[Value]
Function = Callable[[Value], Value]

_FLOATS = arith.CmpFPredicate
_INTEGERS = arith.CmpIPredicate


@dataclass(frozen=True)
class Combine:
    """The monoid of a scan.

    Attributes:
        kind: ``add``, ``mul``, ``max``, ``min`` or ``logaddexp``.
        type: scalar or vector type that elements are computed in.
        indexed: whether places are wanted, of ``max`` and ``min``.
        exp, log: emit these functions of floats; asked for by ``logaddexp`` alone.
        places: integer type of places.
    """

    kind: str
    type: Type
    indexed: bool = False
    exp: Function | None = None
    log: Function | None = None
    places: Type | None = None

    @property
    def identity(self) -> State:
        """The state of no elements."""
        state = [constant(self.type, _identity(self.kind, self.type))]
        if self.kind == "logaddexp":
            state.append(constant(self.type, 0.0))
        if self.indexed:
            state.append(constant(self._place_type, 0))
        return state

    @property
    def _place_type(self) -> Type:
        return with_element(self.type, self.places or integer(64))

    def lift(self, element: Value, place: Value | None = None) -> State:
        """The state of one element; its place is needed if `indexed`."""
        if self.kind == "logaddexp":
            return [element, constant(self.type, 1.0)]
        if self.indexed:
            assert place is not None
            return [element, place]
        return [element]

    def combine(self, first: Sequence[Value], second: Sequence[Value]) -> State:
        """The state of a stretch and the one right after it."""
        match self.kind:
            case "add":
                return [(arith.addf if is_float(self.type) else arith.addi)(first[0], second[0])]
            case "mul":
                return [(arith.mulf if is_float(self.type) else arith.muli)(first[0], second[0])]
            case "logaddexp":
                return self._log_add(first, second)
        takes_second = self._is_better(second[0], first[0])
        return [
            arith.select(takes_second, after, before)
            for before, after in zip(first, second, strict=True)
        ]

    def results(self, state: Sequence[Value]) -> list[Value]:
        """The scan's values and, if `indexed`, places."""
        if self.kind != "logaddexp":
            return list(state)
        assert self.log is not None
        return [arith.addf(state[0], self.log(state[1]))]

    def _is_better(self, later: Value, earlier: Value) -> Value:
        """Whether a later extremum replaces an earlier one: it does if they are equal, and NaN is
        beyond all numbers."""
        greater = self.kind == "max"
        if not is_float(self.type):
            return arith.cmpi(_INTEGERS.sge if greater else _INTEGERS.sle, later, earlier)
        better = arith.cmpf(_FLOATS.OGE if greater else _FLOATS.OLE, later, earlier)
        return arith.ori(better, arith.cmpf(_FLOATS.UNO, later, later))

    def _log_add(self, first: Sequence[Value], second: Sequence[Value]) -> State:
        """The greatest element m so far, and the sum of exp(x - m)."""
        assert self.exp is not None
        (m, s), (n, t) = first, second
        above = arith.cmpf(_FLOATS.OGE, m, n)
        top = arith.select(arith.ori(above, arith.cmpf(_FLOATS.UNO, m, m)), m, n)
        return [top, arith.addf(self._scaled(s, m, top), self._scaled(t, n, top))]

    def _scaled(self, total: Value, own: Value, top: Value) -> Value:
        """``total * exp(own - top)``, where both may be the same infinity."""
        assert self.exp is not None
        same = arith.cmpf(_FLOATS.OEQ, own, top)
        return arith.select(same, total, arith.mulf(total, self.exp(arith.subf(own, top))))


def _identity(kind: str, type_: Type) -> float | int:
    if is_float(type_):
        infinity = float("inf")
        values = {"add": 0.0, "mul": 1.0, "max": -infinity, "min": infinity}
        return values.get(kind, -infinity)
    top = (1 << (int(element_of(type_).width) - 1)) - 1
    return {"add": 0, "mul": 1, "max": -top - 1, "min": top}[kind]
