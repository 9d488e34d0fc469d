# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The kernel under construction, as the emitters of phases share it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from mlir.dialects import arith, llvm

from shapejit.passes.gpu_loops.alignment import Alignment
from shapejit.passes.gpu_loops.evaluate import Evaluator, Vector, are_aligned
from shapejit.passes.gpu_loops.indexing import Indexer
from shapejit.passes.gpu_loops.problem import LoopProblem
from shapejit.passes.gpu_loops.reduce import Team
from shapejit.passes.gpu_loops.schedule import LoopSchedule
from shapejit.passes.nvgpu.builder import Num, Value, add, compare, i32, i64, mul, urem, value
from shapejit.passes.nvgpu.function import KernelFunction, Threads, Units
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.symbolic import Expr


class Emission:
    """What the phases of a kernel are emitted with.

    Args:
        problem: the kernel.
        function: under construction, at the start of its body.
        schedule: how it works.

    Attributes:
        evaluator: gives values.
        indexer: gives indices.
        threads: where the thread is in its CTA.
        cta: number of the CTA, or of its cluster, of the index type.
        ctas: CTAs, or clusters, of the grid, of the index type.
        rank: number of the CTA in its cluster, i32; 0 without one.
    """

    def __init__(
        self, problem: LoopProblem, function: KernelFunction, schedule: LoopSchedule
    ) -> None:
        self.problem, self.function, self.schedule = problem, function, schedule
        self.indexer = Indexer(function, schedule.wide)
        self.evaluator = Evaluator(problem, function, self.indexer)
        self.threads = Threads.read()
        units = Units.read(schedule.cluster)
        self.cta, self.ctas = self.index(units.unit), self.index(units.units)
        self.rank = units.rank
        self._shared: SharedMemory | None = None

    # Places in the grid ---------------------------------------------------------------------------

    def index(self, number: Value) -> Value:
        """A non-negative i32 as of the index type."""
        if self.indexer.type == i32():
            return number
        return arith.extui(self.indexer.type, number)

    def team(self, warps: int) -> Team:
        """The team that takes a row: so many warps, or all CTAs of a cluster."""
        return Team(self.threads, warps, self.schedule.cluster, self.rank)

    def shared(self, bytes_: int) -> tuple[SharedMemory, int]:
        """New shared memory and its offset there."""
        if self._shared is None:
            self._shared = SharedMemory(self.function.architecture)
        return self._shared, self._shared.allocate(bytes_)

    @property
    def shared_bytes(self) -> int:
        """Shared memory that was asked for."""
        return 0 if self._shared is None else self._shared.bytes

    # Vectors --------------------------------------------------------------------------------------

    def allows(self, alignment: Alignment) -> Value:
        """Whether what vectors need holds, i1."""
        conditions = []
        by_bytes: dict[int, list[int]] = {}
        for operand, bytes_ in alignment.operands:
            by_bytes.setdefault(bytes_, []).append(operand)
        for bytes_, operands in by_bytes.items():
            addresses = [llvm.ptrtoint(i64(), self.function.address(each)) for each in operands]
            conditions.append(are_aligned(addresses, bytes_))
        for symbol in sorted(alignment.symbols):
            size = self.indexer.ssa(Expr.symbol(symbol))
            conditions.append(compare("eq", urem(size, alignment.length), 0))
        allowed = conditions[0]
        for condition in conditions[1:]:
            allowed = arith.andi(allowed, condition)
        return allowed

    @contextmanager
    def aligned(self, alignment: Alignment) -> Iterator[None]:
        """Within, what vectors need holds."""
        saved = self.evaluator.aligned
        self.evaluator.aligned = frozenset(operand for operand, _ in alignment.operands)
        try:
            with self.indexer.multiples(dict.fromkeys(alignment.symbols, alignment.length)):
                yield
        finally:
            self.evaluator.aligned = saved

    def lanes(self, length: int) -> Expr:
        """The variable that counts the elements of vectors."""
        return self.indexer.variable(None, length, level=0)

    def elements(
        self, lane: Expr, length: int, condition: Value | None, each: Callable[[], Sequence[Value]]
    ) -> list[list[Value]]:
        """What ``each()`` gives, for every element of a vector."""
        number = lane.dim_index
        assert number is not None
        found = []
        for element in range(length):
            with self.evaluator.vector(Vector(length, number, element, condition)):
                found.append(list(each()))
        return found

    def grid_stride(self, per_cta: int, number: Num) -> tuple[Num, Num]:
        """The first unit and the step of this thread, warp or CTA.

        Args:
            per_cta: units that a CTA works on at once.
            number: of this one in its CTA, i32.
        """
        if per_cta == 1:
            return self.cta, self.ctas
        own = number if isinstance(number, int) else self.index(number)
        return add(mul(self.cta, per_cta), own), mul(self.ctas, per_cta)

    def ssa(self, number: Num) -> Value:
        """A number as an SSA value of the index type."""
        return value(number, self.indexer.type)
