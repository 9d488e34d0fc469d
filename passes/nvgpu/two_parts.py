# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Products of float32 on tensor cores as exactly as float32 is: each factor in two parts.

Tensor cores take tf32, 11 bits of a factor. What is left of a float32 that was rounded to tf32 are
12 bits and a sign, of which tf32 holds all but one bit. So a product is three of tf32, if one
factor's parts are a and a', the other's b and b'::

    (a + a') (b + b') = a b + a b' + a' b        but for a' b', 2^-24 of it at most

A third of the rate of tf32 is still two and a half times what CUDA cores multiply. Sums inside of
the tensor cores are cut off, not rounded, so that the error of long ones would grow with K. So each
stage is summed on its own, the small terms first, and added to the total by the thread, rounded to
nearest. Then errors are those of float32, or less.

An infinite factor has no second part (infinity less infinity is NaN), nor has one of 3.4020e38 or
more, which would be rounded to infinity: their sums are NaN, where IEEE arithmetic would leave some
infinite.

The rows' factors go through registers, where a thread parts its own. wgmma reads the columns' from
shared memory: all consumers together round them there and write what is left beside them, while the
products of the stage before run::

    consumers: part stage 0
      for each stage: start its products
                      part the stage after it, load its rows
                      await the products, wait for each other, release, add to the totals

Each split is as in Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while
surpassing the FP32 theoretical peak performance" (2022), which says why sums are taken outside.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir.dialects import arith, nvvm

from shapejit.passes.nvgpu import ptx
from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    and_,
    compare,
    constant,
    f32,
    i32,
    loop,
    mul,
    shl,
    shr,
    value,
    when,
    xor,
)
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.function import Threads
from shapejit.passes.nvgpu.operands import StagedOperand
from shapejit.passes.nvgpu.register_wgmma import await_products, multiply_in_two_parts
from shapejit.passes.nvgpu.ring import Ring, Slot, slot_of
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.stores import publish_to_tma
from shapejit.passes.nvgpu.target import WARPGROUP
from shapejit.passes.nvgpu.wgmma import ROWS, TileLayout, signed, stage_step

_LINE_BYTES = 128
_CHUNK_BYTES = 16
# The bits of a float32 that tf32 has, and half of the last of them.
_UPPER_BITS, _HALF_BIT = -(1 << 13), 1 << 12
# A named barrier that neither stores, exchanges nor turns use.
_BARRIER = 8
# Buffers of lower parts: of a stage whose products run, and of the one after it.
_BUFFERS = 2
# Of 64 rows and 32 elements of K, both parts.
_PARTS_REGISTERS = 32


def part_bytes(columns: int, depth: int, operands: int) -> int:
    """Shared memory of the lower parts of the columns, of so many operands on that side."""
    return _BUFFERS * operands * columns * depth * 4


def registers(sums: int, blocks: int, operands: int) -> int:
    """What a thread holds while a stage's products run: totals and sums, and the parts of the rows'
    factors of this stage and of the one after it.

    Args:
        sums: of a thread.
        blocks: of 64 rows, of each of so many operands on that side.
    """
    return 2 * sums + 2 * _PARTS_REGISTERS * blocks * operands


class TwoPartProducts:
    """A consumer's products of factors in two parts; as `mainloop.Products`.

    Args:
        memory: shared memory of the kernel.
        schedule: how the product is cut; its consumers have a tile together.
        rows, columns: operands of each side in the ring, one of a side or one a weight.
        weights: of the product.
        ring: of the stages.
        threads: where the thread is.

    Raises:
        LoweringError: there is not enough shared memory, or an operand has no lines along K.
    """

    def __init__(
        self,
        memory: SharedMemory,
        schedule: GemmSchedule,
        rows: Sequence[StagedOperand],
        columns: Sequence[StagedOperand],
        weights: int,
        ring: Ring,
        threads: Threads,
    ) -> None:
        if any(each.layout.swizzle != _LINE_BYTES for each in (*rows, *columns)):
            raise LoweringError(f"has the schedule {schedule}; factors in two parts are 32 deep")
        self._memory, self._ring, self._threads = memory, ring, threads
        self._rows, self._columns, self._weights = rows, columns, weights
        self._width = schedule.columns
        self._team = WARPGROUP * schedule.consumers
        self._blocks = schedule.rows // (ROWS * schedule.consumers)
        self._lower = [memory.allocate(_BUFFERS * each.layout.bytes) for each in columns]

    @property
    def _pairs(self) -> list[tuple[int, int]]:
        """The operands of each weight's product, by side."""
        return [
            (min(i, len(self._rows) - 1), min(i, len(self._columns) - 1))
            for i in range(self._weights)
        ]

    # The loop -------------------------------------------------------------------------------------

    def start(self, slot: Slot, stages: Num) -> tuple[Slot, Value, list[Value]]:
        """See `mainloop.Multiplication`.

        What is in flight are the sums of the last stage, behind the totals in the list.
        """
        ring, first = self._ring, constant(0)
        self._synchronize()  # the last products of the tile before may have read either buffer
        ring.await_full(slot)
        self._part_columns(slot.stage, first)
        publish_to_tma()
        self._synchronize()
        rows = self._load_rows(slot.stage)
        totals = [constant(0.0, f32())] * self._count
        with loop(1, stages, 1, [*slot.values, first, *rows, *totals]) as each:
            here, buffer = slot_of(each.carried), each.carried[2]
            rows, totals = self._cut(each.carried[3:])
            sums = self._multiply(here.stage, buffer, rows)
            after, other = ring.advance(here), xor(buffer, 1)
            ring.await_full(after)
            self._part_columns(after.stage, other)
            publish_to_tma()
            rows = self._load_rows(after.stage)
            sums, rows = await_products(0, sums, rows)
            self._synchronize()
            ring.release(here.stage, self._threads.lane)
            each.next = [*after.values, other, *rows, *self._added(totals, sums)]
        last, buffer = slot_of(each.results), each.results[2]
        rows, totals = self._cut(each.results[3:])
        sums = self._multiply(last.stage, buffer, rows)
        return ring.advance(last), last.stage, [*totals, *sums]

    def finish(self, last: Value, sums: Sequence[Value]) -> list[list[list[Value]]]:
        """See `mainloop.Multiplication`."""
        totals, running = sums[: self._count], sums[self._count :]
        arrived, _ = await_products(0, running)
        self._ring.release(last, self._threads.lane)
        flat = iter(self._added(totals, arrived))
        return [
            [[next(flat) for _ in range(self._width // 2)] for _ in range(self._blocks)]
            for _ in range(self._weights)
        ]

    @property
    def _count(self) -> int:
        """Sums of a thread."""
        return self._weights * self._blocks * self._width // 2

    def _cut(self, carried: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        """The rows' factors and the totals, of what the loop carries."""
        split = len(carried) - self._count
        return list(carried[:split]), list(carried[split:])

    @staticmethod
    def _added(totals: Sequence[Value], sums: Sequence[Value]) -> list[Value]:
        return [arith.addf(a, b) for a, b in zip(totals, sums, strict=True)]

    def _synchronize(self) -> None:
        """Waits for the consumers of the tile."""
        nvvm.BarrierOp(None, barrierId=value(_BARRIER), numberOfThreads=value(self._team))

    # Products -------------------------------------------------------------------------------------

    def _multiply(self, stage: Value, buffer: Value, rows: Sequence[Value]) -> list[Value]:
        """Starts the products of a stage.

        Args:
            buffer: which one has the lower parts of its columns.
            rows: the rows' factors, by operand and block.
        """
        words = [self._words(number, stage, buffer) for number in range(len(self._columns))]
        steps = self._columns[0].layout.steps * 4
        parts = [_parts(rows[first : first + steps]) for first in range(0, len(rows), steps)]
        sums: list[Value] = []
        for side, other in self._pairs:
            for block in range(self._blocks):
                own = parts[side * self._blocks + block]
                step = self._columns[other].layout.step >> 4
                sums += multiply_in_two_parts(self._width, *own, *words[other], step)
        return sums

    def _words(
        self, number: int, stage: Value, buffer: Value
    ) -> tuple[tuple[Value, Value], tuple[Value, Value]]:
        """The descriptors of a stage's columns and of their lower parts, each in two words."""
        operand, layout = self._columns[number], self._columns[number].layout
        base, high = self._memory.base, constant(signed(layout.high_word))
        upper = layout.low_word(add(base, operand.offset))
        lower = layout.low_word(add(base, self._lower[number]))
        return (
            (add(upper, stage_step(layout.bytes, stage)), high),
            (add(lower, stage_step(layout.bytes, buffer)), high),
        )

    # Parts ----------------------------------------------------------------------------------------

    def _load_rows(self, stage: Value) -> list[Value]:
        """The factors of this thread's rows, as bits, by operand and block.

        A fragment's register ``2 * half + i`` of 8 elements of K holds row ``lane / 4 + 8 * i`` of
        the warp's 16 and element ``lane mod 4 + 4 * half``. The lines of eight rows are swizzled.
        """
        lane, warp = self._threads.lane, and_(self._threads.warp, 3)
        group = shr(lane, 2)
        row = add(mul(warp, 16), group)
        inside = add(mul(row, _LINE_BYTES), add(shl(group, 4), shl(and_(lane, 3), 2)))
        found: list[Value] = []
        for operand in self._rows:
            layout, start = operand.layout, add(self._memory.base, operand.stage(stage))
            own = mul(self._threads.warpgroup, self._blocks * layout.panel_bytes)
            place = add(add(start, own), inside)
            for block in range(self._blocks):
                found += self._load_block(layout, place, block * layout.panel_bytes)
        return found

    @staticmethod
    def _load_block(layout: TileLayout, place: Value, offset: int) -> list[Value]:
        """A thread's elements of 64 rows."""
        words = []
        for step in range(layout.steps):
            for half in range(2):
                chunk = xor(place, (2 * step + half) * _CHUNK_BYTES)
                words += [
                    ptx.load_shared(chunk, offset + 8 * i * _LINE_BYTES, 1)[0] for i in range(2)
                ]
        return words

    def _part_columns(self, stage: Value, buffer: Value) -> None:
        """Rounds a stage's columns and writes their lower parts to a buffer, by all consumers.

        They lie there as the columns do in the stage, swizzled.
        """
        thread = self._threads.thread  # consumers come first
        own = shl(thread, 4)
        for operand, lower in zip(self._columns, self._lower, strict=True):
            bytes_ = operand.layout.bytes
            source = add(add(self._memory.base, operand.stage(stage)), own)
            target = add(add(self._memory.base, add(lower, mul(buffer, bytes_))), own)
            whole, rest = divmod(bytes_ // _CHUNK_BYTES, self._team)
            for number in range(whole):
                self._part_chunk(source, target, number)
            if rest:
                with when(compare("ult", thread, rest)):
                    self._part_chunk(source, target, whole)

    def _part_chunk(self, source: Value, target: Value, number: int) -> None:
        """The chunk of a thread that is so many rounds of all threads further on."""
        offset = number * self._team * _CHUNK_BYTES
        upper, lower = _parts(ptx.load_shared(source, offset, 4))
        ptx.store_shared(source, offset, upper)
        ptx.store_shared(target, offset, lower)


def _parts(words: Sequence[Value]) -> tuple[list[Value], list[Value]]:
    """The two parts of float32, all as bits, i32: rounded to tf32, and what is left."""
    upper = [and_(add(word, _HALF_BIT), _UPPER_BITS) for word in words]
    lower = [
        arith.bitcast(i32(), arith.subf(arith.bitcast(f32(), word), arith.bitcast(f32(), part)))
        for word, part in zip(words, upper, strict=True)
    ]
    return upper, lower
