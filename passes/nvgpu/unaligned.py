# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The family ``unaligned``: products of operands that no tensor map describes.

Why: rows of odd length, slices at odd addresses, permuted tensors and those with a stride of 0 are
as legal as others, and padding copies cost more than the product. There is no producer here: all
threads load the next tile into registers while the tensor cores work on this one, then put it into
the ring (see `gather`), fence and multiply::

    tile 0 -> registers
    for k in 0, 64, ..:
        wait for the product before the last one        (its stage is written next)
        registers -> stage; fence; barrier of the CTA
        tile k + 64 -> registers                        (in flight during the product)
        start the product of the stage

Three stages are so enough: a thread that writes stage ``i`` passed the barrier of stage ``i - 1``,
so every warpgroup had waited for the product of stage ``i - 3``, the last reader. The grid is
persistent. The result is stored element by element from the fragments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir.dialects import gpu, llvm

from shapejit.gpu.interface import Grid, KernelInterface
from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    compare,
    constant,
    i64,
    loop,
    mul,
    select,
)
from shapejit.passes.nvgpu.depthless import emit_depthless
from shapejit.passes.nvgpu.epilogue import Epilogue
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.extras import Directions, TileOrigin
from shapejit.passes.nvgpu.function import KernelFunction, Threads, Units
from shapejit.passes.nvgpu.gather import LINE, Source, TileGather, TileShare
from shapejit.passes.nvgpu.memory import IndexAlgebra
from shapejit.passes.nvgpu.occupancy import ctas_that_fit
from shapejit.passes.nvgpu.problem import Access, GemmProblem
from shapejit.passes.nvgpu.request import GemmRequest
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.passes.nvgpu.scheduling import Place, TileOrder
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.stores import DirectStore, publish_to_tma
from shapejit.passes.nvgpu.target import WARPGROUP, Architecture
from shapejit.passes.nvgpu.wgmma import (
    ELEMENT_BYTES,
    ROWS,
    Multiplier,
    TileLayout,
    await_groups,
    multiply_stage,
    stage_step,
)
from shapejit.symbolic import Expr
from shapejit.symbolic.expr import ONE, ZERO

#: Stages that waiting for all but one product needs.
_LEAST_STAGES = 3

# With so many threads on a multiprocessor each has 128 registers, which suffices for so many sums.
_MANY_THREADS, _FEW_SUMS = 512, 64


@dataclass(frozen=True)
class AnyAddress(Directions):
    """Directions of operands whose addresses are multiples of an element's size, not of two."""

    def is_even(self, size: Expr) -> bool:
        return False


def check_schedule(schedule: GemmSchedule) -> None:
    """Whether the family has the schedule.

    Raises:
        LoweringError: it does not.
    """
    if schedule.cluster != 1 or schedule.stream or schedule.once:
        raise LoweringError(f"has the schedule {schedule}; unaligned kernels share no tiles")
    if schedule.stages < _LEAST_STAGES or schedule.depth != LINE:
        raise LoweringError(
            f"has the schedule {schedule}; unaligned kernels have {_LEAST_STAGES} stages or more, "
            f"{LINE} deep"
        )
    if schedule.rows != ROWS * schedule.consumers:
        raise LoweringError(
            f"has the schedule {schedule}; an unaligned tile has {ROWS} rows a warpgroup"
        )


@dataclass(frozen=True)
class GatheredOperand:
    """An operand that threads load.

    Attributes:
        access: what it reads.
        dim: number of the space's dim that its rows are: m or n.
        start: offset of the first element at a batch index, over the batch dims: heads that share
            one are a division.
        row_stride, depth_stride: elements from a row to the next, and along K.
        layout: of its tiles in shared memory.
    """

    access: Access
    dim: int
    start: Expr
    row_stride: Expr
    depth_stride: Expr
    layout: TileLayout

    @staticmethod
    def of(problem: GemmProblem, schedule: GemmSchedule) -> tuple[GatheredOperand, ...]:
        """The lhs and the weights.

        Raises:
            LoweringError: one has no fixed strides along rows and K.
        """
        lhs = (problem.lhs, problem.m, schedule.rows)
        weights = [(weight, problem.n, schedule.columns) for weight in problem.weights]
        made = []
        for access, dim, extent in (lhs, *weights):
            row, depth = access.stride(dim), access.stride(problem.k)
            start = access.offset.substitute(dims={dim: ZERO, problem.k: ZERO})
            if row is None or depth is None or not start.dims() <= set(range(problem.m)):
                raise LoweringError(
                    f"reads argument {access.operand} at {access.offset}, which has no fixed "
                    "strides; copy it to a tensor that has"
                )
            layout = TileLayout(extent, schedule.depth, k_major=depth == ONE or row != ONE)
            made.append(GatheredOperand(access, dim, start, row, depth, layout))
        return tuple(made)

    @property
    def has_neighbours(self) -> bool:
        """Whether elements along one of its dims are known to be neighbours."""
        return ONE in (self.row_stride, self.depth_stride)


class UnalignedGemm:
    """Emits the body of one kernel.

    Args:
        function: under construction, at the current point.
        problem: what it computes.
        schedule: how, of this family.

    Raises:
        LoweringError: an operand has no fixed strides, or the schedule does not suit.
    """

    def __init__(
        self, function: KernelFunction, problem: GemmProblem, schedule: GemmSchedule
    ) -> None:
        self._function, self._problem, self._schedule = function, problem, schedule
        self._threads = Threads.read()
        self._memory = SharedMemory(function.architecture)
        self._layouts = self._make_layouts()
        rows, *columns = self._layouts
        self._multipliers = [
            Multiplier(schedule.columns, rows, layout, problem.element) for layout in columns
        ]
        # The stages of one operand follow each other.
        self._offsets = [
            self._memory.allocate(layout.bytes * schedule.stages) for layout in self._layouts
        ]
        self._epilogue = self._make_epilogue()

    def _make_layouts(self) -> list[TileLayout]:
        """Of the lhs and the weights, as they lie in shared memory."""
        self._operands = GatheredOperand.of(self._problem, self._schedule)
        return [operand.layout for operand in self._operands]

    def _make_epilogue(self) -> Epilogue:
        problem = self._problem
        directions = AnyAddress(
            problem.m, problem.n, problem.space[problem.m], problem.space[problem.n], frozenset()
        )
        store = DirectStore(self._function, problem.result, directions, self._threads)
        # Extras come element by element, those of two chunks at once: more would not fit into the
        # registers that sums and parameters leave.
        store.groups = 1
        return Epilogue(self._function, problem, directions, self._threads, store)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA."""
        return self._memory.bytes

    # Tiles ----------------------------------------------------------------------------------------

    def emit(self) -> None:
        """Emits all of the kernel."""
        self._function.launch_dependents()
        self._function.await_predecessors()
        emit_depthless(self._function, self._problem, self._epilogue)
        problem, schedule = self._problem, self._schedule
        units = Units.read(1)
        tile = (schedule.rows, schedule.columns)
        order = TileOrder.of(self._function, problem, (problem.m, problem.n), tile)
        with loop(units.unit, order.count, units.units) as each:
            self._tile(order.place(each.index, 0))

    def _tile(self, place: Place) -> None:
        row = add(place.row, mul(self._threads.warpgroup, ROWS))
        epilogue = self._epilogue.tile(
            TileOrigin(place.batch, row, place.column), 1, self._schedule.columns
        )
        sums = self._multiply(place)
        # Nobody writes the first stage of the next tile while another one still reads the last.
        gpu.barrier()
        epilogue.emit(
            [
                [multiplier.sums(total)]
                for multiplier, total in zip(self._multipliers, sums, strict=True)
            ]
        )

    def _gathers(self, place: Place) -> Sequence[TileShare]:
        """What moves the tiles of each operand."""
        size, problem = self._function.size, self._problem
        return [
            TileGather(
                Source(
                    self._start(operand, place),
                    size(problem.space[operand.dim]),
                    size(problem.space[problem.k]),
                    size(operand.row_stride, 8),
                    size(operand.depth_stride, 8),
                ),
                operand.layout,
                self._threads.thread,
                self._count,
            )
            for operand in self._operands
        ]

    @property
    def _count(self) -> int:
        return WARPGROUP * self._schedule.consumers

    def _start(self, operand: GatheredOperand, place: Place) -> Value:
        """The address of an operand's first element in this batch, i64."""
        address = llvm.ptrtoint(i64(), self._function.address(operand.access.operand))
        algebra = IndexAlgebra(self._function, dict(enumerate(place.batch)))
        return add(address, mul(operand.start.build(algebra), ELEMENT_BYTES))

    # The product ----------------------------------------------------------------------------------

    def _multiply(self, place: Place) -> list[Value]:
        """The sums of a tile, one struct a weight."""
        gathers = self._gathers(place)
        corners = [place.row] + [place.column] * (len(gathers) - 1)

        def load(k: Num) -> list[Value]:
            return [
                word
                for gather, corner in zip(gathers, corners, strict=True)
                for word in gather.load(corner, k)
            ]

        stage = constant(0)
        self._fill(gathers, load(0), stage)
        words = load(LINE)
        sums = self._product([each.undefined() for each in self._multipliers], stage, fresh=True)
        depth = self._function.size(self._problem.space[self._problem.k])
        with loop(LINE, depth, LINE, [self._next(stage), *words, *sums]) as each:
            stage, *carried = each.carried
            words, sums = carried[: len(words)], carried[len(words) :]
            await_groups(1)
            self._fill(gathers, words, stage)
            words = load(add(each.index, LINE))
            sums = self._product(sums, stage, fresh=False)
            each.next = [self._next(stage), *words, *sums]
        await_groups(0)
        return each.results[-len(self._multipliers) :]

    def _next(self, stage: Value) -> Value:
        after = add(stage, 1)
        return select(compare("eq", after, self._schedule.stages), 0, after)

    def _fill(self, gathers: Sequence[TileShare], words: Sequence[Value], stage: Value) -> None:
        """Puts loaded tiles into a stage, for all threads to multiply."""
        start = 0
        for gather, layout, offset in zip(gathers, self._layouts, self._offsets, strict=True):
            part = words[start : start + gather.words]
            gather.store(part, self._memory, add(mul(stage, layout.bytes), offset))
            start += gather.words
        publish_to_tma()
        gpu.barrier()

    def _product(self, sums: Sequence[Value], stage: Value, *, fresh: bool) -> list[Value]:
        """Starts the product of a stage."""
        rows, *columns = (
            add(layout.low_word(add(self._memory.base, offset)), stage_step(layout.bytes, stage))
            for layout, offset in zip(self._layouts, self._offsets, strict=True)
        )
        share = self._layouts[0].panel_bytes >> 4
        rows = add(rows, mul(self._threads.warpgroup, share))
        products = [
            (multiplier, rows, column)
            for multiplier, column in zip(self._multipliers, columns, strict=True)
        ]
        return multiply_stage(products, sums, fresh=fresh)


def _occupancy(problem: GemmProblem, schedule: GemmSchedule, architecture: Architecture) -> int:
    """CTAs on a multiprocessor, as registers and shared memory allow."""
    operands = GatheredOperand.of(problem, schedule)
    sums = schedule.columns // 2 * len(problem.weights)
    # Without neighbours every element has an address of its own.
    is_small = sums <= _FEW_SUMS and all(operand.has_neighbours for operand in operands)
    threads = _MANY_THREADS if is_small else _MANY_THREADS // 2
    shared = schedule.stages * sum(operand.layout.bytes for operand in operands)
    most = threads // (WARPGROUP * schedule.consumers)
    return max(min(most, ctas_that_fit(architecture, shared)), 1)


def emit(request: GemmRequest) -> KernelInterface:
    """Emits a kernel of the family unaligned.

    Raises:
        LoweringError: an operand has no fixed strides, or the schedule does not suit.
    """
    problem, schedule = request.problem, request.schedule
    check_schedule(schedule)
    ctas = _occupancy(problem, schedule, request.architecture)
    return emit_body(request, ctas, lambda function: UnalignedGemm(function, problem, schedule))


def emit_body(
    request: GemmRequest, ctas: int, make: Callable[[KernelFunction], UnalignedGemm]
) -> KernelInterface:
    """A kernel of the family: its function with the body, its grid of tiles.

    Args:
        request: the kernel; its schedule was checked.
        ctas: how many share a multiprocessor.
        make: the body, in the function.
    """
    problem, schedule = request.problem, request.schedule
    function = KernelFunction(
        request.name,
        request.architecture,
        threads=WARPGROUP * schedule.consumers,
        block=request.block,
        ctas_per_sm=ctas,
        programmatic=request.programmatic,
    )
    with function.body():
        body = make(function)
        body.emit()
    m, n = problem.space[problem.m], problem.space[problem.n]
    tiles = [(size, 1) for size in problem.space[: problem.m]]
    tiles += [(m, schedule.rows), (n, schedule.columns)]
    grid = Grid(tuple((function.value_number(size), tile) for size, tile in tiles), ctas)
    return function.interface(grid, body.shared_bytes)
