# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The family ``simt``: products of float32 by fused multiply-adds of the CUDA cores.

All threads copy, multiply and store. The ring of stages is filled by ``cp.async``, of which every
thread awaits its own; one barrier a stage says both that all copies of this stage are there and
that everyone is done with the stage before, which is written next::

    for each tile of this cluster
      start the copies of the first stages
      for each stage along K
        await own copies; barrier
        start the copies of the stage that is `stages - 1` ahead
        multiply and add, from shared memory through registers
      barrier; partial sums (`reduction`), if K is shared; epilogue (`output`)

With K = 0 there are no stages, and the sums are 0. A kernel that starts before the one ahead of it
ends copies the first stages of constant weights meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir.dialects import gpu

from shapejit.gpu.interface import Grid, KernelInterface
from shapejit.passes.nvgpu.attention.ptx import await_copies, commit_copies
from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    ceildiv,
    compare,
    constant,
    f32,
    loop,
    mul,
    select,
    sub,
    udiv,
    when,
)
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.function import KernelFunction, Threads, Units
from shapejit.passes.nvgpu.occupancy import multiprocessor_bytes
from shapejit.passes.nvgpu.problem import GemmProblem
from shapejit.passes.nvgpu.request import GemmRequest
from shapejit.passes.nvgpu.schedule import SIMT_GENERIC
from shapejit.passes.nvgpu.scheduling import Place, TileOrder
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.simt.copies import Factor, TileCopier, TileSource
from shapejit.passes.nvgpu.simt.cost import partial_bytes, resident_ctas
from shapejit.passes.nvgpu.simt.output import TileOutput
from shapejit.passes.nvgpu.simt.places import Position
from shapejit.passes.nvgpu.simt.product import Product, fragment_readers
from shapejit.passes.nvgpu.simt.reduction import Reduction
from shapejit.passes.nvgpu.simt.tiling import QUAD, Tiling

_LEAST_STAGES = 2


def emit(request: GemmRequest) -> KernelInterface:
    """Emits a kernel of the family simt.

    Raises:
        LoweringError: the schedule does not suit the problem.
    """
    return _Kernel(request).emit()


def check(problem: GemmProblem) -> None:
    """Checks that the family can compute a problem, by some schedule.

    Raises:
        LoweringError: an operand has no fixed strides.
    """
    factors_of(problem, Tiling.of(SIMT_GENERIC))


def factors_of(problem: GemmProblem, tiling: Tiling) -> list[Factor]:
    """The lhs and the weights.

    Raises:
        LoweringError: one has no fixed strides.
    """
    rows = Factor.of(problem, problem.lhs, problem.m, tiling.rows, tiling.depth)
    columns = (
        Factor.of(problem, weight, problem.n, tiling.columns, tiling.depth)
        for weight in problem.weights
    )
    return [rows, *columns]


class _Kernel:
    def __init__(self, request: GemmRequest) -> None:
        self._problem, self._schedule = request.problem, request.schedule
        self._tiling = tiling = Tiling.of(request.schedule)
        self._factors = factors_of(request.problem, tiling)
        weights = len(request.problem.weights)
        if request.schedule.stages < _LEAST_STAGES:
            raise LoweringError(
                f"has the schedule {request.schedule}; simt kernels have {_LEAST_STAGES} stages or "
                "more"
            )
        shared = request.schedule.stages * sum(each.layout.bytes for each in self._factors)
        shared += partial_bytes(tiling, weights, request.schedule.split)
        self._ctas = resident_ctas(
            tiling, weights, shared, multiprocessor_bytes(request.architecture)
        )
        if not self._ctas:
            raise LoweringError(
                f"has the schedule {request.schedule}, which for {weights} weights has more sums "
                "than registers, or more stages than shared memory"
            )
        self._loads_ahead = request.programmatic and request.constant_weights
        self._function = KernelFunction(
            request.name,
            request.architecture,
            threads=tiling.threads,
            block=request.block,
            cluster=request.schedule.split,
            ctas_per_sm=self._ctas,
            programmatic=request.programmatic,
        )

    def emit(self) -> KernelInterface:
        """Emits all of the kernel."""
        function, problem, schedule = self._function, self._problem, self._schedule
        with function.body():
            function.launch_dependents()
            self._prepare()
            tile = (schedule.rows, schedule.columns)
            order = TileOrder.of(
                function, problem, (problem.m, problem.n), tile, with_empty_sums=True
            )
            units = self._units
            if self._loads_ahead:
                with when(compare("ult", units.unit, order.count)):
                    self._copy_first(self._sources(order.place(units.unit, 0)), range(1, 3))
            function.await_predecessors()
            with loop(units.unit, order.count, units.units) as each:
                self._tile(order.place(each.index, 0), each.index)
        return function.interface(self._grid(), self._memory.bytes)

    def _grid(self) -> Grid:
        problem, number = self._problem, self._function.value_number
        tiles = [(number(size), 1) for size in problem.space[: problem.m]]
        tiles.append((number(problem.space[problem.m]), self._schedule.rows))
        tiles.append((number(problem.space[problem.n]), self._schedule.columns))
        return Grid(tuple(tiles), self._ctas)

    def _prepare(self) -> None:
        """Emits what all tiles share."""
        function, problem, schedule, tiling = (
            self._function,
            self._problem,
            self._schedule,
            self._tiling,
        )
        self._threads = Threads.read()
        self._units = Units.read(schedule.split)
        self._memory = memory = SharedMemory(function.architecture)
        self._position = Position.of(tiling, self._threads)
        self._copiers = [
            TileCopier(
                function,
                memory,
                problem,
                factor,
                self._threads.thread,
                tiling.threads,
                schedule.stages,
            )
            for factor in self._factors
        ]
        layouts = [factor.layout for factor in self._factors]
        rows, columns = fragment_readers(memory, self._position, layouts)
        self._product = Product(tiling, rows, columns)
        self._reduction: Reduction | None = None
        if tiling.parts * schedule.split > 1:
            self._reduction = Reduction(
                function,
                memory,
                tiling,
                len(problem.weights),
                self._units.rank,
                self._threads.thread,
            )
        stages = ceildiv(function.size(problem.space[problem.k]), schedule.depth)
        rank, split = self._units.rank, schedule.split
        self._first = udiv(mul(rank, stages), split)
        self._last = udiv(mul(add(rank, 1), stages), split)

    # Tiles ----------------------------------------------------------------------------------------

    def _tile(self, place: Place, number: Value) -> None:
        sources = self._sources(place)
        if self._loads_ahead:
            with when(compare("ne", number, self._units.unit)):
                self._copy_first(sources, range(1, 3))
            self._copy_first(sources, range(1), commits=True)
        else:
            self._copy_first(sources, range(3), commits=True)
        sums = self._multiply(sources)
        # Nobody writes the first stages of the next tile while another one reads the last.
        gpu.barrier()
        output = TileOutput(self._function, self._problem, place.batch, place.row, place.column)
        if self._reduction is not None:
            self._finish_shared(self._reduction, output, sums)
        else:
            self._finish(output, sums)

    def _sources(self, place: Place) -> list[TileSource]:
        rows, *columns = self._copiers
        return [
            rows.source(place.batch, place.row),
            *(each.source(place.batch, place.column) for each in columns),
        ]

    def _copy_first(
        self, sources: Sequence[TileSource], which: range, *, commits: bool = False
    ) -> None:
        """Starts the copies of the first stages of a tile, of some factors."""
        with loop(0, self._schedule.stages - 1) as each:
            stage = add(self._first, each.index)
            with when(compare("slt", stage, self._last)):
                self._copy(sources, which, each.index, stage)
            if commits:
                commit_copies()

    def _copy(self, sources: Sequence[TileSource], which: range, slot: Num, stage: Num) -> None:
        """Starts the copies of one stage into a slot of the ring."""
        k = mul(stage, self._schedule.depth)
        for number in which:
            if number < len(sources):
                sources[number].load(self._copiers[number].stage(slot), k)

    def _multiply(self, sources: Sequence[TileSource]) -> list[Value]:
        """The sums of a tile."""
        stages = self._schedule.stages
        zeros = [constant(0.0, f32())] * self._product.sums
        with loop(self._first, self._last, 1, [constant(0), *zeros]) as each:
            slot, *sums = each.carried
            await_copies(stages - 2)
            gpu.barrier()
            ahead = add(each.index, stages - 1)
            before = select(compare("eq", slot, 0), stages - 1, sub(slot, 1))
            with when(compare("slt", ahead, self._last)):
                self._copy(sources, range(len(sources)), before, ahead)
            commit_copies()
            rows, *columns = (copier.stage(slot) for copier in self._copiers)
            sums = self._product.add_stage(sums, rows, columns)
            after = add(slot, 1)
            each.next = [select(compare("eq", after, stages), 0, after), *sums]
        return each.results[1:]

    # Results --------------------------------------------------------------------------------------

    def _finish(self, output: TileOutput, sums: Sequence[Value]) -> None:
        """The epilogue of a thread's own sums."""
        tiling = self._tiling
        width = tiling.thread_columns

        def quad(row: int, column: int) -> list[Sequence[Value]]:
            starts = range(row * width + column * QUAD, len(sums), tiling.sums)
            return [sums[start : start + QUAD] for start in starts]

        rows = [self._position.row(number) for number in range(tiling.thread_rows)]
        quads = [self._position.column(number) for number in range(width // QUAD)]
        output.emit(rows, quads, quad)

    def _finish_shared(
        self, reduction: Reduction, output: TileOutput, sums: Sequence[Value]
    ) -> None:
        """The epilogue of what all that share K have summed."""
        reduction.leave(self._position, sums)
        rows = reduction.rows
        output.emit(rows, [reduction.column], lambda row, _: reduction.gather(rows[row]))
        reduction.finish()
