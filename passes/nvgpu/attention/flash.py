# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Flash kernels: attention on long sequences, by warps with roles.

::

    producer                              each consumer, 64 queries of a tile
      for each tile of this CTA             for each tile of this CTA
        for each block of keys                for each block of keys
          wait empty; load keys                 wait full; wait for the turn
          wait empty; load values               scores = queries * keys
        load queries, a tile ahead              sums += weights * values, of the block before
        store results                           give the turn; hide; softmax
                                              results = sums / totals

Operands come and go by TMA, so that a consumer's warps do nothing but multiply and have softmaxes,
each beside the products of its own block before and of the other consumers. The grid is persistent
and its schedule static.
"""

from __future__ import annotations

from mlir.dialects import arith, llvm, nvvm

from shapejit.gpu.interface import Grid, KernelInterface
from shapejit.passes.nvgpu.attention.block import Placed
from shapejit.passes.nvgpu.attention.flash_consumer import FlashConsumer
from shapejit.passes.nvgpu.attention.flash_masks import FlashMasks
from shapejit.passes.nvgpu.attention.flash_operands import StagedRows, mapped_rows, misfit
from shapejit.passes.nvgpu.attention.flash_producer import FlashProducer
from shapejit.passes.nvgpu.attention.flash_schedule import FlashSchedule
from shapejit.passes.nvgpu.attention.flash_work import FlashWork
from shapejit.passes.nvgpu.attention.masks import Limits
from shapejit.passes.nvgpu.attention.problem import BATCH, COLUMN, HEAD, ROW, AttentionProblem
from shapejit.passes.nvgpu.attention.request import AttentionRequest
from shapejit.passes.nvgpu.attention.softmax import Softmax
from shapejit.passes.nvgpu.attention.tiles import Tile, padded
from shapejit.passes.nvgpu.builder import (
    Branches,
    Num,
    add,
    compare,
    constant,
    i32,
    i64,
    integer,
    loop,
    mul,
    pointer,
    sub,
    udiv,
    value,
    when,
    wide,
)
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.function import KernelFunction, Threads, Units, elected_thread
from shapejit.passes.nvgpu.memory import IndexAlgebra
from shapejit.passes.nvgpu.ring import Ring, barriers
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.target import WARPGROUP
from shapejit.passes.nvgpu.wgmma import ELEMENT_BYTES, ROWS

_WARPS = WARPGROUP // 32
_BUFFERS = 2  # of queries


def emit(request: AttentionRequest[FlashSchedule]) -> KernelInterface:
    """Emits a kernel at the current point.

    Raises:
        LoweringError: TMA cannot read or write an operand, or the schedule does not suit.
    """
    _check(request.problem)
    return _Kernel(request).emit()


def _check(problem: AttentionProblem) -> None:
    reason = misfit(problem, known=False)
    if reason is not None:
        raise LoweringError(f"{reason}. Use a schedule of the kind tiles")
    if padded(problem.head) != padded(problem.value):
        raise LoweringError(
            f"has queries of {problem.head} and values of {problem.value} elements, whose tiles "
            "differ; results take the place of queries. Use a schedule of the kind tiles"
        )


class _Kernel:
    def __init__(self, request: AttentionRequest[FlashSchedule]) -> None:
        self._request = request
        self._problem, self._schedule = request.problem, request.schedule
        self._function = KernelFunction(
            request.name,
            request.architecture,
            threads=WARPGROUP * (request.schedule.consumers + 1),
            block=request.block,
            ctas_per_sm=request.schedule.ctas,
            programmatic=request.programmatic,
        )

    def emit(self) -> KernelInterface:
        function, schedule = self._function, self._schedule
        with function.body():
            self._threads, units = Threads.read(), Units.read(1)
            self._allocate()
            limits = Limits(function, self._problem)
            work = FlashWork(
                function, self._problem, schedule, self._operands[1].rows, units, limits
            )
            producer, consumer = self._producer(work), self._consumer(work, limits)
            with elected_thread(self._threads, 0):
                producer.initialize()
            function.synchronize()
            function.launch_dependents()
            self._emit_keyless(limits.keys)
            roles = Branches(compare("eq", self._threads.warpgroup, schedule.consumers))
            give, take = schedule.registers
            with roles.then():
                nvvm.setmaxregister(give, nvvm.SetMaxRegisterAction.decrease)
                producer.emit(sub(self._threads.warp, schedule.consumers * _WARPS))
            with roles.otherwise():
                nvvm.setmaxregister(take, nvvm.SetMaxRegisterAction.increase)
                function.await_predecessors()
                with when(compare("sgt", work.rounds, 0)):
                    consumer.emit()
            grid = self._grid()
        return function.interface(grid, self._memory.bytes)

    def _grid(self) -> Grid:
        batch, heads, queries, *_ = map(self._function.value_number, self._problem.space)
        tiles = ((batch, 1), (heads, 1), (queries, self._schedule.rows))
        return Grid(tiles, self._schedule.ctas)

    def _allocate(self) -> None:
        """Shared memory, barriers and tensor maps."""
        problem, schedule, function = self._problem, self._schedule, self._function
        self._memory = memory = SharedMemory(function.architecture)
        queries, results = Tile(schedule.rows, problem.head), Tile(schedule.rows, problem.value)
        keys, values = Tile(schedule.keys, problem.head), Tile(schedule.keys, problem.value)
        self._query_offset = memory.allocate(_BUFFERS * queries.bytes)
        self._block_offset = memory.allocate(schedule.stages * keys.bytes)
        maps = mapped_rows(problem)
        tiles = (queries, keys, values, results)
        boxes = (None, None, None, ROWS)  # each consumer's results are stored apart
        self._operands = [
            StagedRows.make(function, rows, tile, box)
            for rows, tile, box in zip(maps, tiles, boxes, strict=True)
        ]
        self._ring = Ring(schedule.stages, _WARPS * schedule.consumers)
        # Given back by the one thread that stores results.
        self._query_ring = Ring(_BUFFERS, 1)
        self._written = barriers(_BUFFERS)

    def _producer(self, work: FlashWork) -> FlashProducer:
        queries, keys, values, results = self._operands
        return FlashProducer(
            self._function,
            self._schedule,
            self._memory,
            queries,
            keys,
            values,
            results,
            self._query_offset,
            self._block_offset,
            self._ring,
            self._query_ring,
            self._written,
            work,
        )

    def _consumer(self, work: FlashWork, limits: Limits) -> FlashConsumer:
        problem, schedule = self._problem, self._schedule
        queries, keys, values, _ = self._operands
        softmax = Softmax.of(problem)
        masks = FlashMasks.make(self._function, problem, schedule, limits, self._threads, softmax)
        return FlashConsumer(
            problem,
            schedule,
            self._memory,
            self._threads,
            Placed(queries.tile, self._query_offset),
            Placed(keys.tile, self._block_offset),
            Placed(values.tile, self._block_offset),
            self._ring,
            self._query_ring,
            self._written,
            work,
            masks,
            softmax,
        )

    # Without keys ---------------------------------------------------------------------------------

    def _emit_keyless(self, keys: Num) -> None:
        """Results of 0, by all threads of the grid, if there are no keys: then there is nothing
        that TMA could describe, and there are no tiles."""
        if isinstance(keys, int):
            if keys == 0:
                self._clear()
            return
        with when(compare("eq", keys, 0)):
            self._clear()

    def _clear(self) -> None:
        function, result = self._function, self._problem.result
        function.await_predecessors()
        batch, heads, queries, *_ = map(function.size, self._problem.space)
        sizes = {COLUMN: self._problem.value, ROW: queries, HEAD: heads, BATCH: batch}
        count: Num = 1
        for size in sizes.values():
            count = mul(count, wide(size))
        threads = WARPGROUP * (self._schedule.consumers + 1)
        first = add(mul(nvvm.read_ptx_sreg_ctaid_x(i32()), threads), self._threads.thread)
        step = mul(nvvm.read_ptx_sreg_nctaid_x(i32()), threads)
        with loop(wide(first), value(count, i64()), wide(step)) as each:
            rest, dims = each.index, {}
            for dim, size in sizes.items():
                outer = udiv(rest, wide(size))
                dims[dim] = arith.trunci(i32(), sub(rest, mul(outer, wide(size))))
                rest = outer
            offset = result.offset.build(IndexAlgebra(function, dims))
            address = add(
                llvm.ptrtoint(i64(), function.address(result.operand)), mul(offset, ELEMENT_BYTES)
            )
            target = llvm.inttoptr(pointer(1), address)
            llvm.StoreOp(constant(0, integer(16)), target, alignment=ELEMENT_BYTES)
