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
    pointer,
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


def to_words(number: Value) -> list[Value]:
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


def from_words(words: Sequence[Value], type_: Type) -> Value:
    """The value of a type whose i32 words these are."""
    if len(words) == 2:
        number = ptx.join_words(words[0], words[1])
    else:
        number = words[0]
        if int(type_.width) < 32:
            return arith.trunci(type_, number)
    return number if number.type == type_ else arith.bitcast(type_, number)


# Lanes and warps ----------------------------------------------------------------------------------


def shuffled(kind: str, number: Value, place: Num) -> Value:
    """The value of another lane: ``bfly`` of the one whose number differs in these bits, ``up`` of
    the one so many below (in the lowest lanes their own), ``idx`` of this number."""
    clamp = constant(0 if kind == "up" else WARP - 1)
    attribute = ir.Attribute.parse(f"#nvvm<shfl_kind {kind}>")
    words = [
        nvvm.shfl_sync(i32(), constant(-1), word, value(place), clamp, attribute)
        for word in to_words(number)
    ]
    return from_words(words, number.type)


def across_lanes(
    reductions: Sequence[Reduction], values: Sequence[Value], lanes: int = WARP
) -> list[Value]:
    """Values combined over groups of so many lanes; all of them get the result."""
    totals = list(values)
    distance = lanes // 2
    while distance:
        totals = [
            reduction.combine(total, shuffled("bfly", total, distance))
            for reduction, total in zip(reductions, totals, strict=True)
        ]
        distance //= 2
    return totals


def put(memory: SharedMemory, offset: Num, number: Value, condition: Value | None = None) -> None:
    """Stores a value in a cell of shared memory, by its offset in bytes, if a condition holds."""
    address = add(memory.base, offset)
    guard = "" if condition is None else "@$2 "
    for place, word in enumerate(to_words(number)):
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
    return from_words(words, type_)


def get_remote(memory: SharedMemory, offset: Num, cta: Num, type_: Type) -> Value:
    """Loads a value from a cell of the shared memory of a CTA of the cluster, by its number."""
    local = memory.pointer(offset)
    remote = nvvm.mapa(pointer(7), local, value(cta))
    address = llvm.ptrtoint(i32(), remote)
    count = 2 if int(type_.width) == 64 else 1
    words = [
        ptx.assembly(
            i32(), f"ld.shared::cluster.b32 $0, [$1+{4 * place}];", "=r,r", [address], pure=False
        )
        for place in range(count)
    ]
    return from_words(words, type_)


@dataclass(frozen=True)
class Team:
    """Warps that reduce together: a warp, all of a CTA, or all of a cluster of CTAs.

    Attributes:
        threads: where the thread is.
        warps: how many of a CTA, a power of 2.
        cluster: CTAs; with more than one, all warps of each are of the team.
        rank: number of the CTA in its cluster, i32.
    """

    threads: Threads
    warps: int
    cluster: int = 1
    rank: Num = 0

    @property
    def size(self) -> int:
        """Threads of the team."""
        return self.warps * WARP * self.cluster

    @property
    def member(self) -> Value:
        """The thread's number in the team, i32."""
        if self.warps == 1 and self.cluster == 1:
            return self.threads.lane
        return add(self.threads.thread, mul(self.rank, self.warps * WARP))

    def synchronize(self) -> None:
        """A barrier of the team, which publishes what its threads wrote to memory."""
        if self.cluster > 1:
            nvvm.cluster_arrive()
            nvvm.cluster_wait()
        elif self.warps > 1:
            gpu.barrier()
        else:
            nvvm.bar_warp_sync(constant(-1))

    def bytes_needed(self, values: int) -> int:
        """Shared memory that `reduce` of so many values needs."""
        if self.cluster > 1:
            return values * (self.warps + 1) * CELL_BYTES
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
        if self.warps > 1:
            totals = self._across_warps(reductions, totals, memory)
        if self.cluster > 1:
            totals = self._across_ctas(reductions, totals, memory)
        return totals

    def _across_warps(
        self,
        reductions: Sequence[Reduction],
        totals: Sequence[Value],
        memory: tuple[SharedMemory, int] | None,
    ) -> list[Value]:
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

    def _across_ctas(
        self,
        reductions: Sequence[Reduction],
        totals: Sequence[Value],
        memory: tuple[SharedMemory, int] | None,
    ) -> list[Value]:
        """Each CTA leaves its parts in cells of its own, which all others read, in order."""
        assert memory is not None
        shared, start = memory
        start += self._row(len(reductions))
        first = compare("eq", self.threads.thread, 0)
        for number, total in enumerate(totals):
            put(shared, start + number * CELL_BYTES, total, first)
        self.synchronize()
        found = []
        for number, reduction in enumerate(reductions):
            cell = start + number * CELL_BYTES
            parts = [get_remote(shared, cell, cta, reduction.type) for cta in range(self.cluster)]
            found.append(reduction.together(parts))
        return found

    def _row(self, number: int) -> int:
        return number * self.warps * CELL_BYTES
