# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The time of a gemm kernel from its schedule and its sizes. docs/cost-model.md derives it.

Everything is an array of (problems, schedules), so that thousands of sizes and all candidates are
one evaluation. In short::

    time = launch + together(work, memory) + epilogues + hand-overs of partial sums
    work = steps of the busiest multiprocessor
           * max(together(tensor cores, fill), latency of a stage / stages of the ring)
    together(a, b) = max(a, b), and a little more if the other one is nearly as long

The grids are persistent. The busiest multiprocessor has ``ceil(tiles / resident clusters)`` tiles,
except that some kernels share those of the last wave, by the rules in `nvgpu/split_rule.py` and,
with *stream*, in `nvgpu/scheduling.py`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from shapejit.passes.buckets import halo
from shapejit.passes.buckets.constants import Constants, constants_of, factor_key
from shapejit.passes.buckets.conv_factors import ConvFactors, conv_factors_of
from shapejit.passes.buckets.device import Device
from shapejit.passes.buckets.halo import HaloTraits
from shapejit.passes.buckets.problem import Array, GemmSizes, GemmTraits
from shapejit.passes.nvgpu.body_cost import ELEMENTS_PER_CYCLE
from shapejit.passes.nvgpu.ring_rule import brings_extras
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.passes.nvgpu.simt import cost as simt
from shapejit.passes.nvgpu.simt.cost import partial_bytes
from shapejit.passes.nvgpu.simt.tiling import Tiling
from shapejit.passes.nvgpu.split_rule import LEAST_STAGES, PRODUCTS, lead
from shapejit.passes.nvgpu.two_parts import part_bytes

Bounds: TypeAlias = npt.NDArray[np.int8]

# A wgmma multiplies 64 rows by 32 bytes of K. It takes columns / 2 cycles, unless reading both
# operands from shared memory at 128 bytes a cycle takes longer: 16 cycles for the rows and
# columns / 4 for the columns. So fewer than 64 columns cannot feed the tensor cores.
_ROWS: Final = 64
_DEPTH_BYTES: Final = 32
_ROWS_CYCLES: Final = 16

# Of factors in two parts: until the first products of a stage run once those of the one before have
# ended, and what a warp does of 64 rows meanwhile, in cycles of its scheduler.
_PARTING: Final = 100
_PARTING_ROWS: Final = 64
# Accumulators of a thread, beside which addresses and the epilogue need room in 255 registers.
_MAX_ACCUMULATORS: Final = 184
# Columns of a tile that only one of the CTAs that share K can own.
_GROUP: Final = 8
# Static shared memory of a CTA, in bytes: its barriers.
_STATIC: Final = 1024
# More CTAs of a small tile on a multiprocessor would not have more bytes on their way.
_MOST_CTAS: Final = 2
# Of the second-level cache, what stays of an operand while others stream through it.
_KEPT_SHARE: Final = 0.5
# Of a number of tiles that is a mean.
_ROUNDING: Final = 1e-6
# Of tiles that cover what there is, but for the last ones.
_WHOLE: Final = np.ones((1, 1))
# Of the order of tiles: rows that a group of them spans.
GROUP_ROWS: Final = 2048
# Kernels that start early lie unevenly if they take more than this share of the multiprocessors:
# with less they find free ones beside the kernel ahead. Several CTAs of one always do.
_BESIDE: Final = 0.5
# When a streaming kernel shares its last wave: what it counts for that, in per cent of a share's
# time and in stages; how many stages a share has at least, and how many clusters share a tile.
SHARED_TILE, HANDOVER_STAGES, MIN_SHARE, MAX_SHARERS = 108, 6, 4, 3


class Bound(enum.IntEnum):
    """What a kernel waits for most."""

    LAUNCH = 0
    MEMORY = 1
    TENSOR_CORES = 2
    FILL = 3
    LATENCY = 4
    EPILOGUE = 5

    def of(self, schedule: GemmSchedule) -> str:
        """The bound in words, for a schedule."""
        if self is Bound.TENSOR_CORES and schedule.family == "simt":
            return "multiply-adds"
        return str(self)

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True)
class Parts:
    """Where the time goes, in microseconds; every array is (problems, schedules).

    Attributes:
        launch: before the first load.
        memory: to move the operands and the result once through device memory.
        tensor_cores, fill, latency: of all steps, were each the only limit.
        epilogue: after the steps: stores, reductions, hand-overs.
        time: of the kernel.
    """

    launch: Array
    memory: Array
    tensor_cores: Array
    fill: Array
    latency: Array
    epilogue: Array
    time: Array

    def bounds(self) -> Bounds:
        """The `Bound` of each."""
        parts = [self.launch, self.memory, self.tensor_cores, self.fill, self.latency]
        every = np.broadcast_arrays(*parts, self.epilogue)
        bounds: Bounds = np.argmax(np.stack(every), axis=0).astype(np.int8)
        return bounds


def stage_bytes(schedule: GemmSchedule, traits: GemmTraits) -> int:
    """Bytes of a stage of the ring: a piece of the lhs and one of each weight."""
    if schedule.family == "simt":
        return simt.stage_bytes(Tiling.of(schedule), traits.weights)
    lhs, weight = schedule.rows, schedule.columns
    if schedule.swapped:
        lhs, weight = weight, lhs
    # What is not contiguous along k lies in panels of 64, the last one maybe not used in full.
    lhs = lhs if traits.lhs_k_major else -(-lhs // _ROWS) * _ROWS
    weight = weight if traits.rhs_k_major else -(-weight // _ROWS) * _ROWS
    return (lhs + traits.weights * weight) * schedule.depth * traits.element_bytes


def staging_bytes(schedule: GemmSchedule, traits: GemmTraits) -> int:
    """Bytes in which results wait for their store, and partial sums for their reduction."""
    if schedule.family == "simt":
        return partial_bytes(Tiling.of(schedule), traits.weights, schedule.split)
    columns = schedule.columns
    if schedule.family == "persistent" and columns % _ROWS:
        return 0  # stored straight from registers
    line = min(columns, 128) if schedule.family == "persistent" else _ROWS
    staged = schedule.consumers * _ROWS * line * 2
    if schedule.cluster_split == 1:
        return staged
    # Every CTA of the cluster owns some groups of columns and gets the others' sums of them.
    part = -(-(columns // _GROUP) // schedule.split)
    sums = part * traits.weights * schedule.consumers * 128 * 16
    return staged + (schedule.split - 1) * sums


def loaded_bytes(schedule: GemmSchedule, traits: GemmTraits) -> float:
    """Bytes of a stage that a CTA asks for itself; the others of its cluster send it the rest."""
    if schedule.family == "halo":
        return halo.loaded_bytes(schedule, _halo(traits))
    rows, columns = float(schedule.rows), float(schedule.columns)
    if schedule.swapped:
        rows *= traits.weights
    else:
        columns *= traits.weights
    asked = rows / schedule.rows_shared + columns / schedule.columns_shared
    return asked * schedule.depth * traits.element_bytes


def _halo(traits: GemmTraits) -> HaloTraits:
    assert traits.halo is not None, "candidates of other products have no halo"
    return traits.halo


def resident_ctas(device: Device, schedule: GemmSchedule, traits: GemmTraits) -> int:
    """CTAs of a schedule that a multiprocessor holds at once; 0 if not even one fits."""
    if schedule.family == "simt":
        shared = schedule.stages * stage_bytes(schedule, traits) + staging_bytes(schedule, traits)
        tiling = Tiling.of(schedule)
        return simt.resident_ctas(tiling, traits.weights, shared, device.shared_bytes)
    sharers = 1 if schedule.turns or schedule.resident else schedule.consumers
    accumulators = schedule.rows * schedule.columns * traits.weights
    if schedule.tf32x3:
        accumulators *= 2  # of a stage, and the totals
    if accumulators > sharers * 128 * _MAX_ACCUMULATORS:
        return 0
    if schedule.family == "halo":
        other = _STATIC + staging_bytes(schedule, traits)
        return int(halo.fits(device, schedule, _halo(traits), other))
    shared = schedule.stages * stage_bytes(schedule, traits) + staging_bytes(schedule, traits)
    shared += _lower_bytes(schedule, traits)
    fitting = device.shared_bytes // (shared + _STATIC + device.shared_reserved)
    return min(fitting, 1 if schedule.family in ("persistent", "swapped") else _MOST_CTAS)


def _lower_bytes(schedule: GemmSchedule, traits: GemmTraits) -> int:
    """Bytes of what is cut off of the columns' factors, if they are in two parts."""
    if not schedule.tf32x3:
        return 0
    operands = 1 if schedule.swapped else traits.weights
    return part_bytes(schedule.columns, schedule.depth, operands)


def fitting(
    device: Device, schedules: Sequence[GemmSchedule], traits: GemmTraits
) -> tuple[GemmSchedule, ...]:
    """The schedules of which a multiprocessor holds a CTA."""
    return tuple(s for s in schedules if resident_ctas(device, s, traits))


class CostModel:
    """Predicted times of some schedules on a device.

    Args:
        device: the GPU.
        schedules: the candidates, in the order of the results' last axis.
        traits: of the problems.
        constants: rates of the device; those on record by default.
        conv_factors: of convolutions; those on record by default.

    Raises:
        ValueError: there are no schedules, or one does not fit on a multiprocessor; see `fitting`.
    """

    def __init__(
        self,
        device: Device,
        schedules: Sequence[GemmSchedule],
        traits: GemmTraits | None = None,
        constants: Constants | None = None,
        conv_factors: ConvFactors | None = None,
    ) -> None:
        self.device, self.schedules = device, tuple(schedules)
        if not self.schedules:
            raise ValueError("a cost model of no schedules has nothing to compare")
        self.traits = traits or GemmTraits()
        self.constants = constants or constants_of(device.name)
        if self.traits.conv and conv_factors is None:
            conv_factors = conv_factors_of(device.name)
        if conv_factors is not None:
            self.constants = conv_factors.rates(self.constants)
        self._every = _Schedules(self.schedules, device, self.traits, self.constants, conv_factors)
        lines = halo.lines_of(self.schedules)
        self._tiled = [number for number, each in enumerate(lines) if each]
        if self._tiled:
            tiled = [self.schedules[number] for number in self._tiled]
            self._tiles = _Schedules(tiled, device, self.traits, self.constants, conv_factors)
            shapes = _halo(self.traits).shapes
            self._covered = np.array([shapes.covered(lines[number]) for number in self._tiled])

    def times(self, sizes: GemmSizes) -> Array:
        """Microseconds, (problems, schedules)."""
        return self.parts(sizes).time

    def parts(self, sizes: GemmSizes) -> Parts:
        """The same with where they go."""
        made = self._every.parts(sizes, _WHOLE)
        if not self._tiled:
            return made
        time = made.time.copy()
        time[:, self._tiled] = self._mean_times(sizes)
        return replace(made, time=time)

    def _mean_times(self, sizes: GemmSizes) -> Array:
        """Of schedules with a halo, (problems, schedules): means over images of so many pixels."""
        shapes = _halo(self.traits).shapes
        pixels, *others = (each[0] for each in sizes.arrays())
        found = np.empty((len(pixels), len(self._tiled)))
        rows = np.stack(others, axis=1)
        for n, k, batch in np.unique(rows, axis=0):
            problem = GemmSizes(shapes.pixels, n, k, batch, self.traits)
            times = self._tiles.parts(problem, self._covered).time
            here = (rows == (n, k, batch)).all(axis=1)
            found[here] = shapes.means(times, pixels[here])
        return found


class _Schedules:
    """The model's formulas for some schedules.

    Args:
        schedules: of which a multiprocessor holds a CTA.
        device, traits, constants: as in `CostModel`.
        conv_factors: of convolutions; None for other products.
    """

    def __init__(
        self,
        schedules: Sequence[GemmSchedule],
        device: Device,
        traits: GemmTraits,
        constants: Constants,
        conv_factors: ConvFactors | None,
    ) -> None:
        self.device, self.traits, self.constants = device, traits, constants
        factors = [_factor(constants, schedule, traits, conv_factors) for schedule in schedules]
        self._columns = _Columns(device, schedules, traits, constants, factors)

    def parts(self, sizes: GemmSizes, covered: Array) -> Parts:
        """Times and where they go.

        Args:
            covered: rows of the lhs that tiles have, over those that there are: of tiles with a
                halo, which do not reach from image to image; (schedules, problems).
        """
        m, n, k, batch = sizes.arrays()
        c, s = self.constants, self._columns
        # An empty sum still launches and stores; a tile of an empty result costs nothing.
        rows, columns = np.where(s.swapped, n, m), np.where(s.swapped, m, n)
        steps = np.ceil(k / s.depth)
        row_tiles = np.ceil(rows / s.rows)
        column_tiles = np.ceil(columns * covered / s.columns - _ROUNDING)
        clusters = batch * row_tiles * column_tiles
        tiles = np.ceil(clusters / s.resident)
        parts = self._parts(clusters, steps)
        work, handed_over = self._work(clusters, tiles, steps, parts)
        tensor, latency = work * s.step_of(tiles), self._latency(tiles, work)
        crowds = (s.cluster_split > 1) & (column_tiles > 1) & ~s.early
        crowding = np.where(crowds, c.crowding, 1.0)
        fill = work * s.fill_step * crowding
        moved = self._bytes(m, n, k, batch, row_tiles, column_tiles)
        memory = moved / (1e3 * c.memory_rate)
        cache = (clusters * steps * s.asked * crowding + moved) / (1e3 * c.cache_rate)
        if s.any_early:
            room = s.resident * np.maximum(s.ctas_per_sm, tiles)
            taken = np.minimum(clusters * parts / np.maximum(room, 1.0), 1.0)
            uneven = s.early & ((taken > _BESIDE) | (s.ctas_per_sm > 1))
            memory = np.where(uneven, memory * (1 + c.early_memory * (1 - taken)), memory)
        busy = np.maximum(_together(tensor, fill, c.interference), latency) + work * c.step
        overlapped = _together(_together(busy, cache, c.interference), memory, c.leak)
        if s.any_early:
            read_again = s.early & (np.where(s.swapped, column_tiles, row_tiles) > 1)
            cache = np.where(read_again, cache * c.early_cache, cache)
            overlapped = np.maximum(overlapped, cache)
        # Of two consumers that take turns, one multiplies while the other stores.
        hidden = np.where(s.turns, overlapped / np.maximum(tiles, 1), 0.0)
        exposed = np.where(s.turns, np.maximum(s.epilogue - hidden, 0.0) / 2, s.epilogue)
        more = np.maximum(np.ceil(tiles / s.ctas_per_sm) - 1, 0)
        epilogue = s.epilogue + more * exposed + handed_over
        launch = np.broadcast_to(s.launch, overlapped.shape)
        time = launch + overlapped + epilogue
        fill = np.maximum(fill, cache)
        return Parts(*(part.T for part in (launch, memory, tensor, fill, latency, epilogue, time)))

    def _parts(self, clusters: Array, steps: Array) -> Array:
        """In how many parts CTAs without a cluster share the tiles of the last wave."""
        s = self._columns
        rest = clusters - np.floor(clusters / s.resident) * s.resident
        parts = np.ones_like(rest)
        for count in range(2, s.most_parts + 1):
            deep = steps >= s.lead + LEAST_STAGES * count
            parts += (s.handed_split >= count) & (rest > 0) & (rest * count <= s.resident) & deep
        return parts

    def _work(
        self, clusters: Array, tiles: Array, steps: Array, parts: Array
    ) -> tuple[Array, Array]:
        """Steps of the busiest multiprocessor, and the time to hand partial sums over."""
        s = self._columns
        whole = tiles * np.ceil(steps / s.cluster_split)
        if not s.any_handover:
            return whole, np.broadcast_to(s.split_cost, whole.shape)
        waves = np.floor(clusters / s.resident)
        rest = clusters - waves * s.resident
        left = rest * steps
        sharers = np.minimum(np.minimum(s.resident, MAX_SHARERS * rest), np.floor(left / MIN_SHARE))
        sharers = np.maximum(sharers, 1)
        worth = 100 * steps > np.floor(SHARED_TILE * left / sharers) + 100 * HANDOVER_STAGES
        streams = s.stream & (rest > 0) & worth
        # Whoever finishes a tile adds up the sums of the others that have a part of it.
        others = np.ceil(sharers / np.maximum(rest, 1))
        splits = parts > 1
        given = np.floor(np.maximum(steps - s.lead, 0) / parts)
        others = np.where(splits, parts - 1, others)
        work = np.where(streams, waves * steps + np.ceil(left / sharers), whole)
        work = np.where(splits, waves * steps + steps - (parts - 1) * given, work)
        handover = self.constants.handover + others * s.partial_time
        return work, np.where(streams | splits, handover, s.split_cost)

    def _latency(self, tiles: Array, work: Array) -> Array:
        """Little's law: a ring of n stages delivers one stage each n-th of the latency."""
        s, latency = self._columns, self.constants.latency
        rings = np.minimum(tiles, s.ctas_per_sm)  # on a multiprocessor, working side by side
        return work / np.maximum(rings, 1.0) * (latency / s.stages)

    def _bytes(
        self, m: Array, n: Array, k: Array, batch: Array, row_tiles: Array, column_tiles: Array
    ) -> Array:
        """Bytes through device memory: each operand once, or again when the cache lost it."""
        s, t = self._columns, self.traits
        lhs = m * k * t.lhs_share * t.element_bytes * (1.0 if t.lhs_shared else batch)
        rhs = n * k * t.element_bytes * t.weights * (1.0 if t.rhs_shared else batch)
        result = batch * m * n * (t.result_bytes + t.extra_bytes)
        group = np.minimum(row_tiles, s.group)
        together = np.maximum(np.minimum(s.resident / np.maximum(group, 1.0), column_tiles), 1.0)
        row_reads = column_tiles / together
        column_reads = row_tiles / np.maximum(group, 1.0)
        kept = self.device.l2_bytes * _KEPT_SHARE
        lhs_reads = np.where(s.swapped, column_reads, row_reads)
        rhs_reads = np.where(s.swapped, row_reads, column_reads)
        lhs_reads = np.where(lhs <= kept, 1.0, np.maximum(lhs_reads, 1.0))
        rhs_reads = np.where(rhs <= kept, 1.0, np.maximum(rhs_reads, 1.0))
        total: Array = lhs * lhs_reads + rhs * rhs_reads + result
        return total


def _together(first: Array, second: Array, leak: float) -> Array:
    """The time of two that overlap: of the longer one, more if the other is as long."""
    longer, shorter = np.maximum(first, second), np.minimum(first, second)
    total: Array = longer + leak * shorter * shorter / np.maximum(longer, 1e-9)
    return total


class _Columns:
    """What the model needs of the schedules, a column each.

    Problems run along the last axis, as there are more of them: long inner loops are fast ones.
    """

    def __init__(
        self,
        device: Device,
        schedules: Sequence[GemmSchedule],
        traits: GemmTraits,
        constants: Constants,
        factors: Sequence[float],
    ) -> None:
        for schedule in schedules:
            if not resident_ctas(device, schedule, traits):
                raise ValueError(f"{schedule} does not fit on a multiprocessor of {device.name}")

        def column(values: Sequence[Any]) -> Array:
            return np.array(values, dtype=np.float64)[:, np.newaxis]

        c = constants
        rows, columns = column([s.rows for s in schedules]), column([s.columns for s in schedules])
        factor = column(factors)
        self.ctas_per_sm = column([resident_ctas(device, s, traits) for s in schedules])
        self.depth = column([_counted_depth(s, traits) for s in schedules])
        self.stages = column([_stages(device, s, traits) for s in schedules])
        self.cluster_split = column([s.cluster_split for s in schedules])
        self.handed_split = column([s.split / s.cluster_split for s in schedules])
        self.lead = column([lead(s) for s in schedules])
        self.most_parts = max(s.split // s.cluster_split for s in schedules)
        self.swapped = np.array([[s.swapped] for s in schedules])
        self.stream = np.array([[s.stream] for s in schedules])
        self.early = np.array([[s.early] for s in schedules])
        self.any_early = bool(self.early.any())
        # Also of those with resident filters each consumer has tiles of its own.
        self.turns = np.array([[s.turns or s.resident] for s in schedules])
        self.any_handover = bool(self.stream.any() or self.most_parts > 1)
        # Of a cluster, in rows and columns of the result's tiles.
        self.rows = rows * column([s.columns_shared for s in schedules])
        self.columns = columns * column([s.rows_shared for s in schedules])
        self.group = np.maximum(GROUP_ROWS // self.rows, 1.0)
        self.resident = column([device.clusters(s.cluster) for s in schedules])
        clustered = column([s.cluster > 1 for s in schedules])
        first = column([_first_bytes(s, traits) for s in schedules]) / (1e3 * c.fill_rate)
        hidden = np.where(self.early, c.early_gain, -c.cluster_launch * clustered)
        self.launch = np.maximum(c.launch + c.latency + first - hidden, 0.0)
        depth = column([s.depth for s in schedules])
        cycles = rows / _ROWS * depth * traits.element_bytes / _DEPTH_BYTES * traits.weights
        in_parts = column([s.tf32x3 for s in schedules])
        feed = np.where(in_parts, 0.0, _ROWS_CYCLES) + columns / 4
        cycles *= np.where(in_parts, PRODUCTS, 1) * np.maximum(columns / 2, feed)
        cycles += in_parts * _parting_cycles(
            rows, columns, column([s.consumers for s in schedules])
        )
        rate = 1e3 * device.clock_ghz * c.tensor_efficiency
        self._simt = np.array([[s.family == "simt"] for s in schedules])
        self._warps = column([4 * s.consumers for s in schedules])
        adds = column([_simt_cycles(s, traits) for s in schedules]) / (1e3 * device.clock_ghz)
        self._multiply_step = np.where(self._simt, adds, cycles / rate * factor)
        loaded = column([loaded_bytes(s, traits) for s in schedules])
        self.fill_step = loaded / (1e3 * c.fill_rate) * factor
        cluster = column([s.cluster for s in schedules])
        # What all CTAs of a cluster ask for, for a stage of K.
        self.asked = cluster * loaded / self.cluster_split
        owned = rows * columns * column([_owned_share(s) for s in schedules])
        read = column([_read_bytes(s, traits) for s in schedules])
        stored = rows * columns * traits.result_bytes + owned * read
        self.epilogue = c.epilogue + stored / (1e3 * c.epilogue_rate)
        cycles = owned / ELEMENTS_PER_CYCLE * traits.body_cycles
        self.epilogue += cycles / (1e3 * device.clock_ghz)
        partial = rows * columns * 4.0 * traits.weights
        splits = self.cluster_split - 1.0
        sent = splits * partial / self.cluster_split
        self.split_cost = np.where(splits > 0, c.split + sent / (1e3 * c.split_rate), 0.0)
        self.partial_time = partial / (1e3 * c.handover_rate)

    def step_of(self, tiles: Array) -> Array:
        """Time of a multiprocessor to multiply a stage, if it has so many tiles."""
        warps = np.minimum(tiles, self.ctas_per_sm) * self._warps
        slow = self._simt & (warps < simt.ENOUGH_WARPS)
        time: Array = self._multiply_step * np.where(slow, simt.FEW_WARPS_FACTOR, 1.0)
        return time


def _read_bytes(schedule: GemmSchedule, traits: GemmTraits) -> int:
    """Bytes of extras that the epilogue waits for, for each element of its part of a tile."""
    halves = traits.element_bytes == traits.result_bytes == traits.extra_bytes == 2
    return 0 if halves and brings_extras(schedule) else traits.extra_bytes


def _owned_share(schedule: GemmSchedule) -> float:
    """Of a tile, what the epilogue of a CTA has at most where those of a cluster share K."""
    split = schedule.cluster_split
    if schedule.family == "simt":
        return 1 / split  # in rows
    groups = schedule.columns // _GROUP
    return -(-groups // split) / groups


def _parting_cycles(rows: Array, columns: Array, consumers: Array) -> Array:
    """Cycles of a stage in which the consumers of a tile, whose factors are in two parts, do not
    keep the tensor cores busy: they part their rows' factors, add sums up, and wait for each other.
    """
    elements = rows * columns / (128 * consumers)
    cycles: Array = _PARTING + consumers * (_PARTING_ROWS + elements)
    return cycles


def _factor(
    constants: Constants,
    schedule: GemmSchedule,
    traits: GemmTraits,
    conv_factors: ConvFactors | None,
) -> float:
    """What is particular to a schedule's steps, if need be in convolutions."""
    known = constants.factors.get(factor_key(_twin(schedule, traits)), 1.0)
    return known if conv_factors is None else known * conv_factors.of(schedule)


def _twin(schedule: GemmSchedule, traits: GemmTraits) -> GemmSchedule:
    """The schedule whose steps those of a schedule are like: two weights' tiles, which lie side by
    side, are like one of a weight that is as wide as both."""
    if traits.weights == 1:
        return schedule
    if schedule.swapped:
        return replace(schedule, rows=traits.weights * schedule.rows)
    return replace(schedule, columns=traits.weights * schedule.columns)


def _stages(device: Device, schedule: GemmSchedule, traits: GemmTraits) -> int:
    if schedule.family != "halo":
        return schedule.stages
    other = _STATIC + staging_bytes(schedule, traits)
    return halo.stages(device, schedule, _halo(traits), other)


def _counted_depth(schedule: GemmSchedule, traits: GemmTraits) -> float:
    """How much of K a stage has."""
    if schedule.family != "halo":
        return schedule.depth
    return halo.counted_depth(schedule, _halo(traits))


def _first_bytes(schedule: GemmSchedule, traits: GemmTraits) -> int:
    return halo.first_bytes(schedule, _halo(traits)) if schedule.family == "halo" else 0


def _simt_cycles(schedule: GemmSchedule, traits: GemmTraits) -> float:
    if schedule.family != "simt":
        return 0.0
    return simt.stage_cycles(Tiling.of(schedule), traits.weights)
