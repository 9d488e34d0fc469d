# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reductions: how two values are combined, and how the lanes of a warp and the warps of a CTA are.

The order is fixed by the schedule, so results do not depend on how CTAs are placed. Sums of floats
are sums of sums, hence more accurate than plain ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith, gpu, llvm, nvvm

from shapejit.passes.gpu_loops.schedule import WARP
from shapejit.passes.nvgpu import ptx
from shapejit.passes.nvgpu.builder import (
    Num,
    Type,
    Value,
    add,
    and_,
    compare,
    constant,
    i32,
    i64,
    integer,
    mul,
    value,
)
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.function import Threads
from shapejit.passes.nvgpu.shared import SharedMemory

CELL_BYTES = 8
"""Bytes of one value in shared memory."""

_FLOATS: dict[str, float] = {
    "add": 0.0,
    "mul": 1.0,
    "max": -float("inf"),
    "min": float("inf"),
}
_INTEGER_OPS: dict[str, Callable[[Value, Value], Value]] = {
    "add": arith.addi,
    "mul": arith.muli,
    "max": arith.maxsi,
    "min": arith.minsi,
    "and": arith.andi,
    "or": arith.ori,
}


@dataclass(frozen=True)
class Reduction:
    """A combine kind (add, mul, max, min, and, or) and the type it works in."""

    kind: str
    type: Type

    def __post_init__(self) -> None:
        table = _FLOATS if self._is_float else _INTEGER_OPS
        if self.kind not in table:
            raise LoweringError(f"reduces by {self.kind!r}, which {self.type} does not have")

    @property
    def _is_float(self) -> bool:
        return isinstance(self.type, ir.FloatType)

    @property
    def identity(self) -> Value:
        """The value of the reduction over nothing."""
        if self._is_float:
            return constant(_FLOATS[self.kind], self.type)
        top = (1 << (self.type.width - 1)) - 1
        integers = {"add": 0, "mul": 1, "max": -top - 1, "min": top, "and": -1, "or": 0}
        return constant(integers[self.kind], self.type)

    def combine(self, lhs: Value, rhs: Value) -> Value:
        """One step; max and min are NaN if one is."""
        if not self._is_float:
            return _INTEGER_OPS[self.kind](lhs, rhs)
        match self.kind:
            case "add":
                return arith.addf(lhs, rhs)
            case "mul":
                return arith.mulf(lhs, rhs)
        if isinstance(self.type, ir.F32Type):
            return (ptx.maximum if self.kind == "max" else ptx.minimum)(lhs, rhs)
        return extremum(self.kind, lhs, rhs)

    def together(self, values: Sequence[Value]) -> Value:
        """Several values combined, by pairs."""
        values = list(values)
        while len(values) > 1:
            pairs = [self.combine(*values[i : i + 2]) for i in range(0, len(values) - 1, 2)]
            values = pairs + values[len(pairs) * 2 :]
        return values[0]


def extremum(kind: str, lhs: Value, rhs: Value) -> Value:
    """The greater (``max``) or lesser of two floats, NaN if one is."""
    predicates = arith.CmpFPredicate
    better = arith.cmpf(predicates.OGT if kind == "max" else predicates.OLT, lhs, rhs)
    is_nan = arith.cmpf(predicates.UNO, lhs, lhs)
    return arith.select(arith.ori(better, is_nan), lhs, rhs)


# Words --------------------------------------------------------------------------------------------


def _to_words(number: Value) -> list[Value]:
    """A value as i32 words, the lower one first."""
    type_ = number.type
    if isinstance(type_, ir.FloatType):
        number = arith.bitcast(integer(int(type_.width)), number)
    width = int(number.type.width)
    if width < 32:
        return [arith.extui(i32(), number)]
    if width == 32:
        return [number]
    return [arith.trunci(i32(), number), arith.trunci(i32(), arith.shrui(number, value(32, i64())))]


def _from_words(words: Sequence[Value], type_: Type) -> Value:
    if len(words) == 2:
        number = ptx.join_words(words[0], words[1])
    else:
        number = words[0]
        if int(type_.width) < 32:
            return arith.trunci(type_, number)
    return number if number.type == type_ else arith.bitcast(type_, number)


# Lanes and warps ----------------------------------------------------------------------------------


def _exchanged(number: Value, distance: int) -> Value:
    """The value of the lane whose number differs in one bit."""
    kind = ir.Attribute.parse("#nvvm<shfl_kind bfly>")
    words = [
        nvvm.shfl_sync(i32(), constant(-1), word, constant(distance), constant(WARP - 1), kind)
        for word in _to_words(number)
    ]
    return _from_words(words, number.type)


def across_lanes(
    reductions: Sequence[Reduction], values: Sequence[Value], lanes: int = WARP
) -> list[Value]:
    """Values combined over groups of so many lanes; all of them get the result."""
    totals = list(values)
    distance = lanes // 2
    while distance:
        totals = [
            reduction.combine(total, _exchanged(total, distance))
            for reduction, total in zip(reductions, totals, strict=True)
        ]
        distance //= 2
    return totals


def put(memory: SharedMemory, offset: Num, number: Value, condition: Value | None = None) -> None:
    """Stores a value in a cell of shared memory, by its offset in bytes, if a condition holds."""
    address = add(memory.base, offset)
    guard = "" if condition is None else "@$2 "
    for place, word in enumerate(_to_words(number)):
        text = f"{guard}st.shared.b32 [$0+{4 * place}], $1;"
        operands = [address, word, *([] if condition is None else [condition])]
        constraints = ["r", "r", *([] if condition is None else ["b"]), "~{memory}"]
        ptx.assembly(None, text, ",".join(constraints), operands, pure=False)


def get(memory: SharedMemory, offset: Num, type_: Type) -> Value:
    """Loads a value from a cell of shared memory."""
    count = 2 if int(type_.width) == 64 else 1
    words = [
        llvm.LoadOp(i32(), memory.pointer(offset, 4 * place), alignment=4).result
        for place in range(count)
    ]
    return _from_words(words, type_)


@dataclass(frozen=True)
class Team:
    """Warps that reduce together: a warp, or all of a CTA.

    Attributes:
        threads: where the thread is.
        warps: how many, a power of 2.
    """

    threads: Threads
    warps: int

    @property
    def size(self) -> int:
        """Threads of the team."""
        return self.warps * WARP

    @property
    def member(self) -> Value:
        """The thread's number in the team, i32."""
        return self.threads.lane if self.warps == 1 else self.threads.thread

    def bytes_needed(self, values: int) -> int:
        """Shared memory that `reduce` of so many values needs."""
        return 0 if self.warps == 1 else values * self.warps * CELL_BYTES

    def reduce(
        self,
        reductions: Sequence[Reduction],
        values: Sequence[Value],
        memory: tuple[SharedMemory, int] | None,
    ) -> list[Value]:
        """Values combined over the team; all threads get the result.

        Args:
            memory: with `bytes_needed`, not used for anything else until another barrier.
        """
        totals = across_lanes(reductions, values)
        if self.warps == 1:
            return totals
        assert memory is not None
        shared, start = memory
        first = compare("eq", self.threads.lane, 0)
        for number, total in enumerate(totals):
            cell = add(mul(self.threads.warp, CELL_BYTES), start + self._row(number))
            put(shared, cell, total, first)
        gpu.barrier()
        other = mul(and_(self.threads.lane, self.warps - 1), CELL_BYTES)
        parts = [
            get(shared, add(other, start + self._row(number)), reduction.type)
            for number, reduction in enumerate(reductions)
        ]
        return across_lanes(reductions, parts, self.warps)

    def _row(self, number: int) -> int:
        return number * self.warps * CELL_BYTES
