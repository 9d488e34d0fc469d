# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which schedule serves which sizes of a kernel of loops.

All that loops do is bound by memory, by the latency of one access after the other, or by the time
in which CTAs start. The rules:

- A vector is 16 bytes of the narrowest tensor that lies along it, less where rows would not be
  multiples of it, or would leave threads idle.
- A row belongs to as few warps as keep it in registers: one warp needs no shared memory and no
  barriers. Rows of which registers cannot hold several a multiprocessor are kept in shared memory,
  of as many CTAs as it takes; what has no room there either, or no bound, is read again in every
  pass. Rows of unknown length have variants by length, if they may be long.
- Where rows are many, each is fetched into the second-level cache while the one before it is worked
  on: memory has no pause, and the small first-level cache of programs does not limit what is on its
  way.
- A warp has one row, and a thread one vector, as long as the multiprocessors hold so many; small
  CTAs spread little work over all of them. Where there never is more than a row or two for each,
  several warps share it.
- Indices have 32 bits, unless the sizes allow a tensor with more than `MAX_NARROW` elements: a
  greatest size of a dim spares 64-bit arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from mlir import ir

from shapejit import ir as sir
from shapejit.passes.buckets.device import Device
from shapejit.passes.gpu_loops.alignment import Alignment
from shapejit.passes.gpu_loops.columns import columns_alignment
from shapejit.passes.gpu_loops.phases import Columns, Phase, Points, Rows
from shapejit.passes.gpu_loops.points import points_alignment
from shapejit.passes.gpu_loops.problem import LoopProblem, element_types
from shapejit.passes.gpu_loops.reduce import CELL_BYTES
from shapejit.passes.gpu_loops.row_reads import (
    cut_alignment,
    loads_shared_ahead,
    own_rows,
    passes_over,
    rows_alignment,
    shared_inputs,
)
from shapejit.passes.gpu_loops.scatter import is_scaled
from shapejit.passes.gpu_loops.schedule import MAX_NARROW, WARP, LoopSchedule
from shapejit.passes.gpu_loops.tiers import Bucket, Choice, Tier, boxes
from shapejit.passes.nvgpu.memory import bytes_of
from shapejit.passes.nvgpu.target import STATIC_SHARED_BYTES, TILE_ALIGNMENT
from shapejit.symbolic import Expr, Ranges, product

SizeRanges: TypeAlias = Mapping[int, tuple[int, int | None]]

# Bytes of a vector of the narrowest tensor, and of the widest.
_BYTES, _MOST_BYTES = 16, 32
_MAX_VECTOR = 16
# Warps that share a row, and elements of it that each thread keeps at most. Several warps have a
# barrier in each pass, so there are more of them than it takes.
_TEAMS, _MOST_KEPT = (1, 4, 8, 16, 32), 32
# Teams whose threads keep so many, others half of that; of 16 bits, which need fewer registers,
# there are more. A warp has less of rows of a known length, which are then whole vectors of four.
_MUCH_KEPT, _MUCH_KEPT_OF_HALVES, _KEPT_BY_A_WARP = (1, 32), (1, 8, 32), 24
# Threads of CTAs that keep rows in shared memory and CTAs of a multiprocessor: while one waits for
# its row, others work on theirs.
_SHARED_FORMS = ((256, 4), (512, 2))
_SHARED_CLUSTERS = (1, 2, 4, 8, 16)
# Of rows of unknown length: forms and clusters of variants.
_SHARED_TIERS = ((256, 4, 1), (512, 2, 1), (512, 2, 2), (512, 2, 8))
# Warps of rows that are read again, and CTAs of a multiprocessor if elements have up to 16 bits.
_LONG_WARPS, _LONG_CTAS = 16, 2
CLUSTERS = (16, 8, 4)
"""CTAs of clusters that share a row, the most first."""
# Threads of each of them, and elements that those keep at most.
_CLUSTER_THREADS, _CLUSTER_KEPT = 512, 16
# Up to so many elements, rows of unknown length are taken one element at a time.
_SINGLES = 256
# And rows of a known length that is no multiple of a vector's: the elements ahead of the vectors
# and behind them take a load of their own, after two of single elements a row is read.
_UNCUT = 2 * WARP
# Lengths of rows that get variants of their own, if they may be longer.
_ROW_BOUNDS = (1024, 8192)
# Registers of a multiprocessor, and of a thread beside the elements that it keeps; in rows by the
# bytes of the widest element, and more with indices of 64 bits: what ptxas makes do with.
_REGISTERS, _REGISTERS_BESIDE = 65536, 44
_ROW_REGISTERS_BESIDE, _WIDE_REGISTERS = {1: 20, 2: 20, 4: 28, 8: 44}, 12

# Threads of a CTA and CTAs that a multiprocessor gets, by the work that it has: rows of a warp, and
# vectors. Bytes of a lane in reductions side by side come third, by elements.
_BY_ROWS = ((2, (64, 1)), (8, (128, 2)), (None, (256, 4)))
_BY_VECTORS = ((512, (128, 4)), (None, (512, 2)))
_BY_ELEMENTS = ((1024, (256, 1, 4)), (None, (512, 2, 8)))
# Steps of the reduced dims, and elements, from which on it pays that all CTAs share columns.
_LONG_STEPS, _LONG_ELEMENTS = 4096, 1 << 20
# Columns of a block that are many.
_WIDE_BLOCK = 256
# Bytes that a multiprocessor has to have asked for so that memory is never idle: its share of
# 4.8 TB/s in a latency of a microsecond. And vectors that a thread asks for together at most.
_BYTES_ON_THEIR_WAY, _MOST_VECTORS = 40000, 4
# Most rows of a multiprocessor for which several warps share each, elements of a thread then, and
# warps up to which that is so.
_FEW_ROWS, _FEW_ELEMENTS, _MOST_SHARING = 2, 4, 8
# Threads of a multiprocessor whose CTAs share rows: so many, and the more the fewer elements each
# keeps. On an H200 norms come to 0.93 of a copy's rate with 1024 of them that keep 16 elements
# each, and with 2048 that keep 8; with half as many to 0.6.
_SHARING_THREADS, _SHARING_ELEMENTS = 512, 8192


@dataclass(frozen=True)
class _Tier:
    """A schedule for up to so much work, None for any."""

    most: int | None
    schedule: LoopSchedule
    reason: str


def choose_schedules(
    problem: LoopProblem, phases: Sequence[Phase], sizes: SizeRanges, device: Device
) -> Choice:
    """See `lowering.choose`."""
    chooser = Chooser(problem, sizes, device)
    first = phases[0]
    if len(phases) == 1 and isinstance(first, Rows):
        return chooser.rows(first)
    if len(phases) == 1 and isinstance(first, Columns):
        return chooser.columns(first)
    if all(isinstance(phase, Points) for phase in phases):
        return chooser.points([phase for phase in phases if isinstance(phase, Points)])
    schedule = LoopSchedule(threads=256, ctas=1)
    return chooser.single(schedule, "several ways of reducing, one element at a time")


class Chooser:
    """Chooses for one kernel."""

    def __init__(self, problem: LoopProblem, sizes: SizeRanges, device: Device) -> None:
        self.problem, self._processors = problem, device.multiprocessors
        self._device = device
        self._ranges = Ranges(dict(sizes))
        bounds = [self._ranges.bounds(size)[1] for size in problem.sizes]
        self._wide = any(bound is None or bound > MAX_NARROW for bound in bounds)
        self._wide |= any(
            write.into is not None and is_scaled(loop, write)
            for loop in problem.loops
            for write in loop.writes
        )

    # Buckets --------------------------------------------------------------------------------------

    def single(self, schedule: LoopSchedule, reason: str) -> Choice:
        """The one variant for all sizes."""
        return [], [((), (), self.text(schedule), reason)]

    def text(self, schedule: LoopSchedule) -> str:
        """The name of a variant, with indices as wide as the kernel needs."""
        return str(replace(schedule, wide=self._wide))

    def _by(self, axis: Expr, tiers: Sequence[_Tier]) -> Choice:
        """Variants by one size, without those that no legal size reaches."""
        # In units of what is constant in it: rows, where elements of rows are counted.
        unit = math.gcd(*(coefficient for _, coefficient in axis.terms)) or 1
        axis = axis.exact_div(unit) or axis
        tiers = [replace(t, most=None if t.most is None else t.most // unit) for t in tiers]
        least, greatest = self._ranges.bounds(axis)
        least = max(least or 0, 0)
        buckets: list[Bucket] = []
        for tier in tiers:
            upper = greatest
            if tier.most is not None and (greatest is None or tier.most < greatest):
                upper = tier.most
            if upper is not None and upper < least:
                continue
            buckets.append(((least,), (upper,), self.text(tier.schedule), tier.reason))
            if upper is None or upper == greatest:
                break
            least = upper + 1
        if len({variant for _, _, variant, _ in buckets}) > 1:
            return [axis], buckets
        return [], [((), (), *buckets[0][2:])]

    # Vectors --------------------------------------------------------------------------------------

    def lengths(self, align: Callable[[int], Alignment]) -> list[int]:
        """Lengths of vectors that a phase can have, longest first."""
        widths = self._widths(align(2))
        if not widths:
            return [1]
        longest = min(_BYTES // min(widths), _MOST_BYTES // max(widths), _MAX_VECTOR)
        lengths = [1 << bit for bit in reversed(range(max(longest, 1).bit_length()))]
        return [length for length in lengths if align(length).length == length]

    def _widths(self, alignment: Alignment) -> list[int]:
        """Bytes of an element of each tensor that has vectors."""
        outputs = (m for memories in self.problem.outputs.values() for m in memories)
        memories = (*self.problem.inputs.values(), *outputs)
        widths = {memory.operand: bytes_of(memory.element) for memory in memories}
        return [widths[operand] for operand, _ in alignment.operands]

    # Points and columns ---------------------------------------------------------------------------

    def points(self, phases: Sequence[Points]) -> Choice:
        """The schedules of elements that are independent, by their number."""

        def longest(phase: Points) -> int:
            return self.lengths(lambda n: points_alignment(self.problem, phase, n))[0]

        length = min(map(longest, phases))
        registers = max(self._point_registers(phase, length) for phase in phases)
        tiers = []
        for vectors, (threads, ctas) in _BY_VECTORS:
            most = None if vectors is None else vectors * self._processors * length
            ctas = max(min(ctas, _REGISTERS // (threads * registers)), 1)
            schedule = LoopSchedule(vector=length, threads=threads, ctas=ctas)
            reason = f"{_elements(length)} a thread at once, {_residents(schedule)}"
            tiers.append(_Tier(most, schedule, reason))
        tiers[-1] = self._unrolled(tiers[-1], phases, registers)
        # Of several spaces, the first one decides.
        return self._by(product(phases[0].loop.space), tiers)

    def _unrolled(self, tier: _Tier, phases: Sequence[Points], registers: int) -> _Tier:
        """The schedule of large spaces, with as many vectors at once as keep enough bytes on their
        way for the memory's latency and throughput, and as registers allow."""
        schedule = tier.schedule
        loaded = min(map(self._bytes_loaded, phases))
        threads = schedule.threads * schedule.ctas
        at_once = loaded * schedule.vector * threads
        own = max(loaded * schedule.vector // 4, 1)  # registers of what one vector loads
        free = _REGISTERS // threads - registers
        vectors = 1
        while vectors < _MOST_VECTORS and at_once and at_once * vectors < _BYTES_ON_THEIR_WAY:
            if own * (2 * vectors - 1) > free:
                break
            vectors *= 2
        if vectors == 1:
            return tier
        reason = tier.reason.replace(" a thread at once", f" a thread, {vectors} times at once")
        return _Tier(tier.most, replace(schedule, chunks=vectors), reason)

    def _bytes_loaded(self, phase: Points) -> int:
        """Bytes that an element takes from memory: of tensors that are read along all dims."""
        loop, inputs = phase.loop, self.problem.inputs
        if loop.writes[0].into is not None:
            return 0
        dims = {dim for dim, size in enumerate(loop.space) if size.constant != 1}
        return sum(
            bytes_of(inputs[read.tensor].element)
            for read in loop.reads
            if read.tensor in inputs
            and dims <= {dim for index in read.indices for dim in index.dims()}
        )

    def _point_registers(self, phase: Points, length: int) -> int:
        """Registers of a thread that computes so many elements at once, about."""
        block = phase.loop.block
        ops = [] if block is None else sir.operations(block)
        tensors = len(phase.loop.reads) + len(phase.loop.captures) + len(phase.positions)
        functions = len([op for op in ops if op.name.startswith("math.")])
        beside = _REGISTERS_BESIDE + 8 * min(functions, 8)
        return (beside + length * min(tensors, 8) // 2) * self._words

    def columns(self, phase: Columns) -> Choice:
        """The schedules of reductions side by side, by the number of elements."""
        lengths = self.lengths(lambda n: columns_alignment(self.problem, phase, n))
        widths = self._widths(columns_alignment(self.problem, phase, 2))
        steps = product(phase.loop.space[phase.kept :]).constant
        tiers = []
        for elements, (threads, ctas, bytes_) in _BY_ELEMENTS:
            length = next(n for n in lengths if n == 1 or n * min(widths) <= bytes_)
            warps = threads // WARP
            while steps is not None and warps // 2 >= max(steps, length):
                warps //= 2
            schedule = LoopSchedule(vector=length, threads=warps * WARP, ctas=ctas)
            reason = f"{_elements(length)} side by side a lane, {warps} warps share a column"
            most = None if elements is None else elements * self._processors
            tiers.append(_Tier(most, schedule, reason))
        longest = self._ranges.bounds(product(phase.loop.space[phase.kept :]))[1]
        if longest is not None and longest < _LONG_STEPS:
            return self._by(product(phase.loop.space), tiers)
        return self._long_columns(phase, tiers, lengths[0])

    def _long_columns(self, phase: Columns, tiers: Sequence[_Tier], length: int) -> Choice:
        """The schedules of long columns: all CTAs share them where they are so few that most would
        be idle."""
        *others, last = tiers
        found = [Tier(tier.most, None, tier.schedule, tier.reason) for tier in others]
        found.append(Tier(_LONG_ELEMENTS, None, last.schedule, last.reason))
        lanes, space = WARP, phase.loop.space
        columns = self._ranges.bounds(space[phase.kept - 1])[1]
        while columns is not None and lanes // 2 * length >= columns and lanes > 1:
            lanes //= 2
        # Of wide blocks a CTA has much to add up in the end, so there are fewer pieces: on an H200
        # 132 of them took 12.6 us where 264 took 14.6, for 20000 tokens of 768.
        ctas = 1 if length * lanes >= _WIDE_BLOCK else last.schedule.ctas
        units = self._processors * ctas
        schedule = replace(
            last.schedule, vector=length, chunks=units, ctas=ctas, lanes=lanes, units=True
        )
        most = units // 2 * length * lanes
        reason = f"up to {most} columns, whose steps {units} CTAs share"
        found.append(Tier(None, most, schedule, reason))
        found.append(Tier(None, None, last.schedule, last.reason))
        return boxes([product(space), product(space[: phase.kept])], found, self._ranges, self.text)

    # Rows -----------------------------------------------------------------------------------------

    def rows(self, phase: Rows) -> Choice:
        """The schedules of rows: by their number, or by their length if it has no small bound."""
        columns = [product(sizes) for sizes in phase.columns]
        known = [size.constant for size in columns if size.constant is not None]
        unknown = [size for size in columns if size.constant is None]
        count = product(phase.rows)
        if not unknown:
            lengths = self._row_lengths(phase, max(known), known=True)
            return self._by(count, self._row_tiers(phase, max(known), lengths, known=True))
        bounds = [self._ranges.bounds(size)[1] for size in unknown]
        most = None if None in bounds else max(bound or 0 for bound in bounds)
        if len(columns) > 1:
            # Columns of several lengths have no vectors in common.
            longest = max([min(most or _ROW_BOUNDS[0], _ROW_BOUNDS[0]), *known])
            return self._by(count, self._row_tiers(phase, longest, [1]))
        if most is not None and most <= _ROW_BOUNDS[0]:
            return self._by(count, self._row_tiers(phase, most, self._row_lengths(phase, most)))
        tiers = []
        for short in _ROW_BOUNDS:
            upper = short if most is None or short < most else most
            # Of short rows, one variant for any number of them is enough.
            *_, last = self._row_tiers(phase, upper, self._row_lengths(phase, upper))
            tiers.append(Tier(short, last.most, last.schedule, last.reason))
        for bound, found in self._long_tiers(phase, most):
            tiers += [Tier(bound, tier.most, tier.schedule, tier.reason) for tier in found]
        return boxes([unknown[0], count], tiers, self._ranges, self.text)

    def _long_tiers(self, phase: Rows, most: int | None) -> list[tuple[int | None, list[_Tier]]]:
        """The schedules of rows of unknown length that registers do not hold, by their length.

        Args:
            most: elements of the longest; None for any.
        """
        lengths = self._row_lengths(phase, most)
        if (most is not None and most <= _ROW_BOUNDS[-1]) or not self._bytes_shared(phase):
            return [(None, self._row_tiers(phase, most, lengths))]
        tiers: list[tuple[int | None, list[_Tier]]] = []
        for threads, ctas, cluster in _SHARED_TIERS:
            chunks = self._most_shared(phase, threads, ctas)
            tier = self._shared_tier(phase, threads, ctas, cluster, chunks)
            bound = tier.schedule.row_capacity
            clusters = self._cluster_tiers(phase, most, lengths, cluster)
            pairs = self._pair_tiers(phase, None, cluster)
            tiers.append((bound, [*clusters, *pairs, tier]))
            if most is not None and bound >= most:
                return [*tiers[:-1], (None, tiers[-1][1])]
        return [*tiers, (None, self._row_tiers(phase, most, lengths))]

    def _row_lengths(self, phase: Rows, longest: int | None, *, known: bool = False) -> list[int]:
        """Lengths of vectors for rows of up to `longest` elements.

        Args:
            longest: None for any length.
            known: whether all have as many.
        """
        if not known and longest is not None and longest <= _SINGLES:
            return [1]  # one element a lane is as fast, and takes any length
        whole = self.lengths(lambda n: rows_alignment(self.problem, phase, n))
        if len(whole) > 1 or (longest is not None and longest <= _UNCUT):
            return whole
        cut = self.lengths(lambda n: cut_alignment(self.problem, phase, n))
        return cut[:-1] or cut  # even short vectors are better than single elements

    def _row_tiers(
        self, phase: Rows, longest: int | None, lengths: Sequence[int], *, known: bool = False
    ) -> list[_Tier]:
        """The schedules for rows of up to so many elements, by the number of rows.

        Args:
            longest: None for any length.
            lengths: of vectors, longest first.
            known: whether all have as many elements.
        """
        few = self._are_few(product(phase.rows))
        much_kept = _MUCH_KEPT_OF_HALVES if self._widest <= 2 else _MUCH_KEPT
        # A multiprocessor has one team of 32 warps, and nothing to do while that waits.
        teams = _TEAMS[:-1] if self._bytes_shared(phase) else _TEAMS
        for warps in teams if longest is not None else ():
            size = warps * WARP
            counts = {length: -(-(longest or 0) // (length * size)) for length in lengths}
            # The fewest elements a thread, and of these the longest vectors.
            length = min(counts, key=lambda n: (counts[n] * n, -n))
            kept = counts[length] * length
            registers = self._registers(phase, kept)
            most = _MOST_KEPT if warps in much_kept else _MOST_KEPT // 2
            if known and warps == 1:
                most = _KEPT_BY_A_WARP
            if few and warps < _MOST_SHARING:
                most = _FEW_ELEMENTS
            if kept * self._words <= most and size * registers <= _REGISTERS:
                schedule = LoopSchedule(length, warps, max(counts[length], 1), size, 1)
                return self._by_rows(schedule, registers, kept, few=few)
        fitting = self._fitting_tier(phase, longest)
        if fitting is not None:
            least = fitting.schedule.cluster
            clusters = self._cluster_tiers(phase, longest, lengths, least)
            return [*clusters, *self._pair_tiers(phase, longest, least), fitting]
        schedule = LoopSchedule(lengths[0], _LONG_WARPS, 0, _LONG_WARPS * WARP, 1)
        schedule = replace(schedule, ctas=_LONG_CTAS if self._widest <= 2 else 1)
        last = _Tier(None, schedule, f"{_LONG_WARPS} warps a row, read again in every pass")
        return [*self._cluster_tiers(phase, longest, lengths, 1), last]

    def _cluster_tiers(
        self, phase: Rows, longest: int | None, lengths: Sequence[int], least: int
    ) -> list[_Tier]:
        """The schedules for so few long rows that CTAs would be idle: clusters share each.

        Args:
            least: CTAs that share rows however many there are.
        """
        tiers = []
        for cluster in CLUSTERS:
            if cluster <= least:
                continue
            size = _CLUSTER_THREADS * cluster
            length, chunks = lengths[0], 0
            counts = {n: -(-(longest or 0) // (n * size)) for n in lengths}
            fits = [n for n in lengths if counts[n] * n * self._words <= _CLUSTER_KEPT]
            if longest is not None and fits:
                length, chunks = fits[0], max(counts[fits[0]], 1)
            keeps = f"{_elements(length * chunks)} of it kept in each thread"
            keeps = keeps if chunks else "read again in every pass"
            warps = _CLUSTER_THREADS // WARP
            schedule = LoopSchedule(length, warps, chunks, _CLUSTER_THREADS, 1, cluster)
            shared = self._shared_by_few(phase, longest, cluster)
            if not chunks and shared is not None:
                schedule = shared
                keeps = f"up to {shared.row_capacity} elements of it kept in shared memory"
            most = self._processors // cluster
            reason = f"up to {most} long rows, each shared by a cluster of {cluster} CTAs, {keeps}"
            tiers.append(_Tier(most, schedule, reason))
        return tiers

    # Rows in shared memory ------------------------------------------------------------------------

    def _shared_length(self, phase: Rows) -> int:
        """The length of vectors of rows that are kept in shared memory."""
        return max(
            self.lengths(lambda n: rows_alignment(self.problem, phase, n))[0],
            self.lengths(lambda n: cut_alignment(self.problem, phase, n))[0],
        )

    def _bytes_shared(self, phase: Rows) -> int:
        """Bytes of an element of a row that shared memory keeps; 0 if that is of no use."""
        if passes_over(phase) == 1:
            return 0
        rows = own_rows(self.problem, phase, self._shared_length(phase))
        return sum(bytes_of(row.memory.element) for row in rows)

    def _most_shared(self, phase: Rows, threads: int, ctas: int) -> int:
        """Vectors a thread that the shared memory of a CTA has room for, if a multiprocessor has so
        many CTAs."""
        room = self._device.shared_bytes // ctas - self._device.shared_reserved
        room -= STATIC_SHARED_BYTES + _bytes_of_totals(phase, threads // WARP)
        return room // (threads * self._shared_length(phase) * self._bytes_shared(phase))

    def _shared_tier(
        self, phase: Rows, threads: int, ctas: int, cluster: int, chunks: int
    ) -> _Tier:
        """Any number of rows of so many vectors a thread."""
        length, ctas = self._shared_length(phase), max(ctas // self._words, 1)
        schedule = LoopSchedule(
            length, threads // WARP, chunks, threads, ctas, cluster, shared=True
        )
        keepers = "shared memory" if cluster == 1 else f"the shared memory of {cluster} CTAs"
        kept = f"a row of up to {schedule.row_capacity} elements in {keepers}"
        return _Tier(None, schedule, f"{kept}, {_residents(schedule)}")

    def _fitting_tier(self, phase: Rows, longest: int | None) -> _Tier | None:
        """The schedule of any number of rows that shared memory keeps; None if it does not."""
        if longest is None or not self._bytes_shared(phase):
            return None
        vectors = longest // self._shared_length(phase)
        for cluster in _SHARED_CLUSTERS:
            for threads, ctas in _SHARED_FORMS:
                chunks = max(-(-vectors // (cluster * threads)), 1)
                if chunks <= self._most_shared(phase, threads, ctas):
                    return self._shared_tier(phase, threads, ctas, cluster, chunks)
        return None

    def _pair_tiers(self, phase: Rows, longest: int | None, least: int) -> list[_Tier]:
        """The schedule of no more rows than multiprocessors: two CTAs share each, so that a
        multiprocessor has two all the same. None if more CTAs share rows however many there are.

        Args:
            longest: elements of the longest row; None for as many as there is room for.
            least: CTAs that share rows however many there are.
        """
        if least > 1:
            return []
        threads, ctas = _SHARED_FORMS[-1]
        chunks = self._most_shared(phase, threads, ctas)
        if longest is not None:
            chunks = max(-(-(longest // self._shared_length(phase)) // (2 * threads)), 1)
        tier = self._shared_tier(phase, threads, ctas, 2, chunks)
        return [replace(tier, most=self._processors)]

    def _shared_by_few(self, phase: Rows, longest: int | None, cluster: int) -> LoopSchedule | None:
        """The schedule of a few rows that clusters keep in shared memory, those of any length as
        far as there is room; None if they do not."""
        if not self._bytes_shared(phase):
            return None
        chunks = most = self._most_shared(phase, _CLUSTER_THREADS, 1)
        if longest is not None:
            vectors = longest // self._shared_length(phase)
            chunks = max(-(-vectors // (cluster * _CLUSTER_THREADS)), 1)
        if not 0 < chunks <= most:
            return None
        return self._shared_tier(phase, _CLUSTER_THREADS, 1, cluster, chunks).schedule

    def _are_few(self, rows: Expr) -> bool:
        """Whether there are never more rows than warps that should share them."""
        most = self._ranges.bounds(rows)[1]
        return most is not None and most <= _FEW_ROWS * self._processors

    def _by_rows(
        self, schedule: LoopSchedule, registers: int, kept: int, *, few: bool
    ) -> list[_Tier]:
        """The schedule with more threads or CTAs for more rows, as far as registers allow."""
        keeps = f"{_elements(kept)} of it kept in each thread"
        if schedule.warps > 1:
            threads = _SHARING_THREADS + _SHARING_ELEMENTS // kept
            ctas = min(_REGISTERS // registers, threads) // schedule.threads
            made = replace(schedule, ctas=max(ctas, 1), fetches=not few)
            text = f"{schedule.warps} warps a row, {keeps}, {_residents(made)}"
            return [_Tier(None, made, text)]
        tiers = []
        for rows, (threads, ctas) in _BY_ROWS:
            ctas = max(min(ctas, _REGISTERS // (registers * threads)), 1)
            # Up to the last bound, every warp has a row or two.
            made = replace(schedule, threads=threads, ctas=ctas, fetches=rows is None)
            text = f"a warp a row, {keeps}, {_residents(made)}"
            tiers.append(_Tier(None if rows is None else rows * self._processors, made, text))
        return tiers

    @property
    def _words(self) -> int:
        """Registers of an element."""
        elements = [write.element for loop in self.problem.loops for write in loop.writes]
        elements += element_types(self.problem)
        return 2 if any(isinstance(element, ir.F64Type) for element in elements) else 1

    @property
    def _widest(self) -> int:
        """Bytes of the widest element in memory."""
        return max(map(bytes_of, element_types(self.problem)))

    def _registers(self, phase: Rows, kept: int) -> int:
        """Registers of a thread that keeps so many elements of a row, about."""
        widest = self._widest
        # What is loaded, of which two of 16 bits are one register, and what is made of it.
        elements = kept + kept * min(widest, 4) // 4
        if loads_shared_ahead(self.problem, phase, kept):
            # The last ones are loaded late.
            elements += -(-kept * shared_inputs(self.problem, phase) * widest // 16)
        beside = _ROW_REGISTERS_BESIDE[widest] + self._wide * _WIDE_REGISTERS
        return (beside + elements) * self._words


def _bytes_of_totals(phase: Rows, warps: int) -> int:
    """Shared memory for what the stages of a row add up to, in a CTA of a cluster."""
    cells = [sum(len(loop.writes) for loop in stage.loops) for stage in phase.stages]
    blocks = [-(-count * (warps + 1) * CELL_BYTES // TILE_ALIGNMENT) for count in cells]
    return sum(blocks) * TILE_ALIGNMENT


def _elements(count: int) -> str:
    return "1 element" if count == 1 else f"{count} elements"


def _residents(schedule: LoopSchedule) -> str:
    ctas = "1 CTA" if schedule.ctas == 1 else f"{schedule.ctas} CTAs"
    return f"{ctas} of {schedule.threads} threads on a multiprocessor"
