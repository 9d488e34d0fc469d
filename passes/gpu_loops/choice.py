# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which schedule serves which sizes of a kernel of loops.

All that loops do is bound by memory, or by the latency of one access after the other. The rules:

- A vector is 16 bytes of the narrowest tensor that lies along it, less where rows would not be
  multiples of it, or would leave threads idle.
- A row belongs to as few warps as keep it in registers: one warp needs no shared memory and no
  barriers. Rows that registers cannot hold, or whose length has no bound, are read again in every
  pass. Rows of unknown length have variants by length.
- A multiprocessor gets as many threads as it takes to hide the latency of memory, or as registers
  allow.
- Indices have 32 bits, unless the sizes allow a tensor with more than `MAX_NARROW` elements: a
  greatest size of a dim spares 64-bit arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from mlir import ir

from shapejit.passes.buckets.device import Device
from shapejit.passes.gpu_loops.alignment import Alignment
from shapejit.passes.gpu_loops.columns import columns_alignment
from shapejit.passes.gpu_loops.phases import Columns, Phase, Points, Rows
from shapejit.passes.gpu_loops.points import points_alignment
from shapejit.passes.gpu_loops.problem import LoopProblem, element_types
from shapejit.passes.gpu_loops.rows import keeps_invariants, row_invariants, rows_alignment
from shapejit.passes.gpu_loops.schedule import MAX_NARROW, WARP, LoopSchedule
from shapejit.passes.nvgpu.memory import bytes_of
from shapejit.symbolic import Expr, Ranges, product

SizeRanges: TypeAlias = Mapping[int, tuple[int, int | None]]
Bucket: TypeAlias = tuple[tuple[int, ...], tuple[int | None, ...], str, str]

# Bytes of a vector of the narrowest tensor, and of the widest.
_BYTES, _MOST_BYTES = 16, 32
_MAX_VECTOR = 8
# Threads of a CTA, and of a multiprocessor.
_CTA, _THREADS = 256, 1024
# Bytes of a lane, and warps of a CTA, in reductions side by side.
_LANE_BYTES, _COLUMN_WARPS = 4, 16
# Warps that share a row, and elements of it that each thread keeps at most. Several warps have a
# barrier in each pass, so there are more of them than it takes.
_TEAMS, _MOST_KEPT = (1, 4, 8, 16, 32), 32
# Warps of rows that are read again.
_LONG_WARPS = 16
# Up to so many elements, rows of unknown length are taken one element at a time.
_SINGLES = 256
# Lengths of rows that get variants of their own, if they may be longer.
_ROW_BOUNDS = (1024, 8192)
# Registers of a multiprocessor, and of a thread that keeps nothing.
_REGISTERS, _REGISTERS_BESIDE = 65536, 44


def choose_schedules(
    problem: LoopProblem, phases: Sequence[Phase], sizes: SizeRanges, device: Device
) -> tuple[list[Expr], list[Bucket]]:
    """See `lowering.choose`."""
    chooser = _Chooser(problem, sizes, device)
    if len(phases) == 1 and isinstance(phases[0], Rows):
        return chooser.rows(phases[0])
    if len(phases) == 1 and isinstance(phases[0], Columns):
        return chooser.single(*chooser.columns(phases[0]))
    if len(phases) == 1 and isinstance(phases[0], Points):
        return chooser.single(*chooser.points(phases[0]))
    if all(isinstance(phase, Points) for phase in phases):
        return chooser.single(*chooser.several_points(phases))
    return chooser.single(LoopSchedule(), "several ways of reducing, one element at a time")


class _Chooser:
    def __init__(self, problem: LoopProblem, sizes: SizeRanges, device: Device) -> None:
        self._problem, self._device = problem, device
        self._ranges = Ranges(dict(sizes))
        bounds = [self._ranges.bounds(size)[1] for size in problem.sizes]
        self._wide = any(bound is None or bound > MAX_NARROW for bound in bounds)

    def single(self, schedule: LoopSchedule, reason: str) -> tuple[list[Expr], list[Bucket]]:
        """The one variant for all sizes."""
        return [], [((), (), str(replace(schedule, wide=self._wide)), reason)]

    def _vectors(self, widths: Sequence[int]) -> list[int]:
        """Lengths of vectors to consider, longest first, for elements of these bytes."""
        longest = min(_BYTES // min(widths), _MOST_BYTES // max(widths), _MAX_VECTOR)
        return [1 << bit for bit in reversed(range(max(longest, 1).bit_length()))]

    def _widths(self, alignment: Alignment) -> list[int]:
        elements = dict(zip(self._operands, element_types(self._problem), strict=True))
        return [bytes_of(elements[operand]) for operand, _ in alignment.operands]

    @property
    def _operands(self) -> list[int]:
        outputs = (m for memories in self._problem.outputs.values() for m in memories)
        return [memory.operand for memory in (*self._problem.inputs.values(), *outputs)]

    def _length(self, align: Callable[[int], Alignment]) -> list[int]:
        """Lengths of vectors that a phase can have, longest first."""
        pairs = align(2)
        if pairs.length == 1:
            return [1]
        lengths = self._vectors(self._widths(pairs))
        return [length for length in lengths if align(length).length == length]

    # Points and columns ---------------------------------------------------------------------------

    def points(self, phase: Points) -> tuple[LoopSchedule, str]:
        """The schedule of elements that are independent."""
        length = self._length(lambda n: points_alignment(self._problem, phase, n))[0]
        schedule = LoopSchedule(vector=length, threads=_CTA, ctas=_THREADS // _CTA)
        return schedule, f"{_elements(length)} a thread at once"

    def several_points(self, phases: Sequence[Phase]) -> tuple[LoopSchedule, str]:
        """The schedule of several spaces: that of the shortest vectors."""
        return min(self.points(phase) for phase in phases if isinstance(phase, Points))

    def columns(self, phase: Columns) -> tuple[LoopSchedule, str]:
        """The schedule of reductions side by side: 4 bytes a lane, and many warps."""
        lengths = self._length(lambda n: columns_alignment(self._problem, phase, n))
        widths = self._widths(columns_alignment(self._problem, phase, 2)) or [_LANE_BYTES]
        length = next(n for n in lengths if n * min(widths) <= _LANE_BYTES or n == 1)
        steps = product(phase.loop.space[phase.kept :]).constant
        warps = _COLUMN_WARPS
        while steps is not None and warps // 2 >= max(steps, length):
            warps //= 2
        schedule = LoopSchedule(
            vector=length, threads=warps * WARP, ctas=max(_THREADS // (warps * WARP), 1)
        )
        return schedule, f"{_elements(length)} side by side a lane, {warps} warps share a column"

    # Rows -----------------------------------------------------------------------------------------

    def rows(self, phase: Rows) -> tuple[list[Expr], list[Bucket]]:
        """The schedules of rows, by their length where that has no small bound."""
        columns = [product(sizes) for sizes in phase.columns]
        known = [size.constant for size in columns if size.constant is not None]
        unknown = [size for size in columns if size.constant is None]
        if not unknown:
            lengths = self._length(lambda n: rows_alignment(self._problem, phase, n))
            return self.single(*self._row_schedule(phase, max(known), lengths))
        bounds = [self._ranges.bounds(size)[1] for size in unknown]
        most = None if None in bounds else max(bound or 0 for bound in bounds)
        if len(columns) > 1:
            # Columns of several lengths have no vectors in common.
            longest = max([min(most or _ROW_BOUNDS[0], _ROW_BOUNDS[0]), *known])
            return self.single(*self._row_schedule(phase, longest, [1]))
        if most is not None and most <= _ROW_BOUNDS[0]:
            return self.single(*self._row_schedule(phase, most, self._row_lengths(phase, most)))
        return unknown, self._by_length(phase, unknown[0], most)

    def _row_lengths(self, phase: Rows, longest: int | None) -> list[int]:
        """Lengths of vectors for rows of unknown length up to `longest`."""
        if longest is not None and longest <= _SINGLES:
            return [1]  # one element a lane is as fast, and takes any length
        return self._length(lambda n: rows_alignment(self._problem, phase, n))

    def _by_length(self, phase: Rows, size: Expr, most: int | None) -> list[Bucket]:
        least = self._ranges.bounds(size)[0] or 0
        buckets: list[Bucket] = []
        for bound in (*_ROW_BOUNDS, None):
            upper = bound if most is None or (bound is not None and bound < most) else most
            if upper is not None and upper < least:
                continue
            lengths = self._row_lengths(phase, upper)
            schedule, reason = self._row_schedule(phase, upper, lengths)
            text = str(replace(schedule, wide=self._wide))
            buckets.append(((least,), (upper,), text, reason))
            if upper is None or upper == most:
                break
            least = upper + 1
        return buckets

    def _row_schedule(
        self, phase: Rows, longest: int | None, lengths: Sequence[int]
    ) -> tuple[LoopSchedule, str]:
        """The schedule for rows of up to so many elements.

        Args:
            longest: None for any length.
            lengths: of vectors, longest first.
        """
        for warps in _TEAMS if longest is not None else ():
            size = warps * WARP
            counts = {length: -(-(longest or 0) // (length * size)) for length in lengths}
            # The fewest elements a thread, and of these the longest vectors.
            length = min(counts, key=lambda n: (counts[n] * n, -n))
            kept = counts[length] * length
            threads = _CTA if warps == 1 else size
            most = _MOST_KEPT if warps in (1, _TEAMS[-1]) else _MOST_KEPT // 2
            registers = self._registers(phase, kept)
            if kept * self._words <= most and threads * registers <= _REGISTERS:
                ctas = min(_REGISTERS // (threads * registers), _THREADS // threads)
                schedule = LoopSchedule(length, warps, max(counts[length], 1), threads, ctas)
                who = "a warp" if warps == 1 else f"{warps} warps"
                return schedule, f"{who} a row, {_elements(kept)} of it kept in each thread"
        words = self._words
        schedule = LoopSchedule(lengths[0], _LONG_WARPS, 0, _LONG_WARPS * WARP, 2 // words)
        return schedule, f"{_LONG_WARPS} warps a row, read again in every pass"

    @property
    def _words(self) -> int:
        """Registers of an element."""
        elements = [write.element for loop in self._problem.loops for write in loop.writes]
        elements += element_types(self._problem)
        return 2 if any(isinstance(element, ir.F64Type) for element in elements) else 1

    def _registers(self, phase: Rows, kept: int) -> int:
        """Registers of a thread that keeps so many elements of a row, about."""
        elements = 2 * kept  # what is loaded, and what is made of it
        if keeps_invariants(self._problem, phase, kept):
            elements += (kept * row_invariants(self._problem, phase) + 1) // 2  # packed, mostly
        return (_REGISTERS_BESIDE + elements) * self._words


def _elements(count: int) -> str:
    return "1 element" if count == 1 else f"{count} elements"
