# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The softmax of attention, block of keys by block of keys.

A thread has two rows of a fragment: register i of scores or sums belongs to row ``i / 2 mod 2``. A
row's maximum is the same in the four lanes that share it; its total is each lane's own part until
the end. Where nothing was seen yet the maximum is minus infinity, and all weights are 0.

Scores are scaled where their exponential is taken, by the same instruction that subtracts the
maximum. Scores to which a mask was added are already scaled: then the maximum is subtracted first,
since numbers such as the least f32, which masks hold, would overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith, nvvm

from shapejit.passes.nvgpu import ptx
from shapejit.passes.nvgpu.attention.problem import AttentionProblem
from shapejit.passes.nvgpu.builder import Value, constant, f32, select

_LOG2_E = math.log2(math.e)
_INFINITY = math.inf
# Chains of additions or maxima that run side by side.
_CHAINS = 4


def number(value: float) -> Value:
    """A constant, f32."""
    return constant(float(value), f32())


def row_of(register: int) -> int:
    """Which of a thread's two rows a register belongs to."""
    return register >> 1 & 1


def across_row(function: Callable[[Value, Value], Value], value: Value) -> Value:
    """Combines a value over the four lanes that share a row."""
    kind = ir.Attribute.parse("#nvvm<shfl_kind bfly>")
    for distance in (1, 2):
        other = nvvm.shfl_sync(f32(), constant(-1), value, constant(distance), constant(31), kind)
        value = function(value, other)
    return value


def _combine(function: Callable[[Value, Value], Value], values: Sequence[Value]) -> Value:
    """All values combined, in a fixed order, in a few chains."""
    chains = list(values[:_CHAINS])
    for position, value in enumerate(values[_CHAINS:]):
        chains[position % _CHAINS] = function(chains[position % _CHAINS], value)
    while len(chains) > 1:
        chains = [function(*chains[i : i + 2]) for i in range(0, len(chains), 2)]
    return chains[0]


def _is(predicate: str, lhs: Value, rhs: Value) -> Value:
    return arith.cmpf(getattr(arith.CmpFPredicate, predicate), lhs, rhs)


@dataclass(frozen=True)
class State:
    """What a thread knows of its two rows: all f32.

    Attributes:
        maxima: of the scores so far.
        totals: of the weights so far, in this lane's columns.
        sums: of the weighted values so far.
    """

    maxima: list[Value]
    totals: list[Value]
    sums: list[Value]

    @staticmethod
    def initial(sums: int) -> State:
        """Nothing seen yet."""
        lowest, zero = number(-_INFINITY), number(0)
        return State([lowest] * 2, [zero] * 2, [zero] * sums)

    @property
    def values(self) -> list[Value]:
        """As loops carry it."""
        return [*self.maxima, *self.totals, *self.sums]

    @staticmethod
    def of(values: Sequence[Value]) -> State:
        """The inverse of `values`."""
        return State(list(values[:2]), list(values[2:4]), list(values[4:]))


def scaled(sums: Sequence[Value], factors: Sequence[Value]) -> list[Value]:
    """Sums, each row's multiplied by its factor."""
    return [arith.mulf(total, factors[row_of(register)]) for register, total in enumerate(sums)]


@dataclass(frozen=True)
class Update:
    """What scores make of a state: all f32.

    Attributes:
        weights: of the scores.
        maxima, totals: of the state after them.
        factors: what the sums of each row are to be multiplied by before weighted values are added.
    """

    weights: list[Value]
    maxima: list[Value]
    totals: list[Value]
    factors: list[Value]


class Softmax:
    """Emits the arithmetic.

    Args:
        scale: of the scores, in the exponent; 1 for scores that are scaled already.
        is_scaled: whether they are; an attribute too.
    """

    def __init__(self, scale: float, *, is_scaled: bool) -> None:
        self._factor = number(scale * _LOG2_E)
        self.is_scaled = is_scaled

    @staticmethod
    def of(problem: AttentionProblem) -> Softmax:
        """The softmax of a problem.

        The exponential's instruction multiplies by the scale, unless something is added between;
        the maximum of scaled scores is that of the scores only if the scale is positive.
        """
        is_scaled = problem.adds_mask or problem.scale <= 0
        return Softmax(1.0 if is_scaled else problem.scale, is_scaled=is_scaled)

    def finite(self, maximum: Value) -> Value:
        """What is subtracted from a row's scores: 0 where none was seen, so that exponents of what
        was not seen stay minus infinity."""
        is_empty = _is("OEQ", maximum, number(-_INFINITY))
        return select(is_empty, number(0), maximum)

    def weights(self, scores: Sequence[Value], state: State) -> Update:
        """The weights of scores; the state's sums may still be on their way."""
        columns = [
            [score for register, score in enumerate(scores) if row_of(register) == row]
            for row in range(2)
        ]
        maxima = [
            arith.maxnumf(
                state.maxima[row], across_row(arith.maxnumf, _combine(arith.maxnumf, columns[row]))
            )
            for row in range(2)
        ]
        shifts = [self.shift(maximum) for maximum in maxima]
        weights = [
            self.power(score, shifts[row_of(register)]) for register, score in enumerate(scores)
        ]
        factors = [self.power(state.maxima[row], shifts[row]) for row in range(2)]
        totals = [
            ptx.fused(
                state.totals[row],
                factors[row],
                _combine(arith.addf, [w for i, w in enumerate(weights) if row_of(i) == row]),
            )
            for row in range(2)
        ]
        return Update(weights, maxima, totals, factors)

    def merge(self, state: State, other: State) -> State:
        """The state of what either has seen."""
        maxima = [
            arith.maxnumf(mine, theirs)
            for mine, theirs in zip(state.maxima, other.maxima, strict=True)
        ]
        shifts = [self.shift(maximum) for maximum in maxima]
        factors, others = (
            [self.power(each.maxima[row], shifts[row]) for row in range(2)]
            for each in (state, other)
        )
        totals = [
            ptx.fused(other.totals[row], others[row], arith.mulf(state.totals[row], factors[row]))
            for row in range(2)
        ]
        sums = [
            ptx.fused(theirs, others[row_of(register)], mine)
            for register, (mine, theirs) in enumerate(
                zip(scaled(state.sums, factors), other.sums, strict=True)
            )
        ]
        return State(maxima, totals, sums)

    def combine(
        self, maxima: Sequence[Value], totals: Sequence[Value], sums: Sequence[Sequence[Value]]
    ) -> tuple[Value, Value, list[Value]]:
        """A row's maximum, total and sums of what several parts have seen, added in their order.

        Args:
            maxima, totals: of every part.
            sums: some of the row's sums, of every part.
        """
        maximum = maxima[0]
        for each in maxima[1:]:
            maximum = arith.maxnumf(maximum, each)
        shift = self.shift(maximum)
        factors = [self.power(each, shift) for each in maxima]
        parts = [[total, *own] for total, own in zip(totals, sums, strict=True)]
        added = [arith.mulf(each, factors[0]) for each in parts[0]]
        for factor, part in zip(factors[1:], parts[1:], strict=True):
            added = [
                ptx.fused(each, factor, so_far) for each, so_far in zip(part, added, strict=True)
            ]
        return maximum, added[0], added[1:]

    def shift(self, maximum: Value) -> Value:
        """What `power` subtracts."""
        finite = self.finite(maximum)
        return finite if self.is_scaled else arith.negf(arith.mulf(finite, self._factor))

    def power(self, score: Value, shift: Value) -> Value:
        """e to the power of a scaled score less the maximum."""
        if self.is_scaled:
            exponent = arith.mulf(arith.subf(score, shift), self._factor)
        else:
            exponent = ptx.fused(score, self._factor, shift)
        return ptx.exp2_flushed(exponent)

    @staticmethod
    def mean(total: Value, sums: Sequence[Value]) -> list[Value]:
        """The weighted means of a row's sums; 0 where nothing was seen."""
        is_empty = _is("OEQ", total, number(0))
        inverse = select(is_empty, number(0), ptx.reciprocal_flushed(total))
        return [arith.mulf(each, inverse) for each in sums]

    def results(self, state: State) -> list[Value]:
        """The weighted means; 0 for a row that has seen nothing."""
        return scaled(state.sums, self.inverses(state.totals))

    @staticmethod
    def inverses(totals: Sequence[Value]) -> list[Value]:
        """What sums are multiplied by at the end; 0 for a row that has seen nothing."""
        inverses = []
        for total in totals:
            whole = across_row(arith.addf, total)
            is_empty = _is("OEQ", whole, number(0))
            inverses.append(select(is_empty, number(0), ptx.reciprocal_flushed(whole)))
        return inverses
