# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which schedule serves which sizes of a scan or a sort.

Two sizes decide: the length of rows and their number. The rules:

- A row belongs to a warp if it is short, to a CTA if it is not, and to a cluster of CTAs if it is
  long and there are too few others to give every multiprocessor one. All CTAs share the units of a
  few rows that are longer still.
- A sort whose rows fit is done in shared memory, of as many CTAs as it takes; longer rows go
  through global memory. A head is collected in shared memory, whatever the length.
"""

from __future__ import annotations

from dataclasses import replace

from shapejit.passes.buckets.device import Device
from shapejit.passes.gpu_loops.choice import CLUSTERS, Chooser, SizeRanges
from shapejit.passes.gpu_loops.problem import LoopProblem
from shapejit.passes.gpu_loops.row_ops import RowOp, Scan
from shapejit.passes.gpu_loops.scan_units import MOST_UNITS
from shapejit.passes.gpu_loops.scans import scan_alignment
from shapejit.passes.gpu_loops.schedule import WARP, LoopSchedule
from shapejit.passes.gpu_loops.tiers import Choice, Tier, boxes
from shapejit.passes.nvgpu.memory import bytes_of
from shapejit.passes.rowwise.keys import Keys
from shapejit.symbolic import Ranges, product

# Up to so many elements a row of a scan belongs to a warp, to a CTA of 256 threads, and to one CTA
# however few rows there are.
_WARP_ROW, _SMALL_ROW, _CTA_ROW = 256, 2048, 16384
# Up to so many it has no more than a cluster. So many longer rows are cut into units for all CTAs,
# of so many elements of 4 bytes a thread.
_SHARED_ROW, _UNIT_ROWS, _UNIT_ELEMENTS = 1 << 17, 4, 16
# Records that are sorted in shared memory, by so many warps, with CTAs that a multiprocessor gets:
# the first so many also for heads. Records of one word of a thread of 1024 beyond.
_SORTED = ((64, 1, 4), (256, 1, 4), (1024, 8, 4), (4096, 16, 2))
_SORTED_FOR_HEADS, _RECORDS = 3, 16
# CTAs of clusters that sort a row: fewer kinds than elsewhere, since sorts are large kernels. And
# threads of each.
_SORT_CLUSTERS, _SORT_THREADS = (16, 4), 1024
# Elements that a CTA looks at for a head before it sees whether to sort.
_TILE = 2048


def choose_row_op(problem: LoopProblem, phase: RowOp, sizes: SizeRanges, device: Device) -> Choice:
    """See `lowering.choose`."""
    chooser = Chooser(problem, sizes, device)
    if isinstance(phase, Scan):
        tiers = _scan_tiers(chooser, phase, device)
    else:
        tiers = _sort_tiers(phase, device)
    axes = [phase.length, product(phase.rows)]
    return boxes(axes, tiers, Ranges(dict(sizes)), chooser.text)


def _scan_tiers(chooser: Chooser, phase: Scan, device: Device) -> list[Tier]:
    length = chooser.lengths(lambda n: scan_alignment(chooser.problem, phase, n))[0]
    vector = max(length, 4)
    tiers = [
        Tier(
            _WARP_ROW,
            None,
            LoopSchedule(vector, 1, 0, 256, 4),
            f"a warp a row, {vector} elements a thread",
        ),
        Tier(
            _SMALL_ROW,
            None,
            LoopSchedule(vector, 8, 0, 256, 8),
            f"8 warps a row, {vector} elements a thread",
        ),
        Tier(
            _CTA_ROW,
            None,
            LoopSchedule(vector, 16, 0, 512, 2),
            f"16 warps a row, {vector} elements a thread",
        ),
    ]
    units = _unit_schedule(phase, vector)
    every = MOST_UNITS * units.vector * units.chunks * units.threads
    bounds = ((_SHARED_ROW, 0), (every // _UNIT_ROWS, _UNIT_ROWS), (every, 1), (None, 0))
    for longest, few in bounds:
        if few:
            rows = "a row" if few == 1 else f"up to {few} rows"
            reason = f"{rows}, cut into units for all multiprocessors"
            tiers.append(Tier(longest, few, units, reason))
        tiers += [replace(tier, first=longest) for tier in _long_scan_tiers(vector, device)]
    return tiers


def _unit_schedule(phase: Scan, vector: int) -> LoopSchedule:
    """The schedule of rows that are cut into units: as many elements as registers hold."""
    element = phase.problem.input.type.element_type
    words = max(bytes_of(element) // 4, 1)
    has_more = len(phase.outputs) > 1 or phase.problem.scan == "logaddexp"
    chunks = max(_UNIT_ELEMENTS // (words * vector), 1)
    return LoopSchedule(vector, 16, chunks, 512, 1 if has_more else 2, units=True)


def _long_scan_tiers(vector: int, device: Device) -> list[Tier]:
    """Long rows by their number: clusters, or a CTA each."""
    tiers = []
    for cluster in CLUSTERS:
        most = device.multiprocessors // cluster
        reason = f"up to {most} long rows, each cut over a cluster of {cluster} CTAs"
        schedule = LoopSchedule(vector, 32, 0, 1024, 1, cluster)
        tiers.append(Tier(None, most, schedule, reason))
    whole = LoopSchedule(vector, 32, 0, 1024, 1)
    tiers.append(Tier(None, None, whole, "32 warps a row, enough rows for all multiprocessors"))
    return tiers


def _sort_tiers(phase: RowOp, device: Device) -> list[Tier]:
    words = Keys(phase.problem.input.type.element_type, False).words
    tiers = []
    for capacity, warps, ctas in _SORTED:
        schedule = LoopSchedule(1, warps, capacity // (warps * WARP), max(warps * WARP, 256), ctas)
        share = "a warp a row" if warps == 1 else f"{warps} warps a row"
        reason = f"up to {capacity} elements sorted in shared memory, {share}"
        tiers.append(Tier(capacity, None, schedule, reason))
    if not phase.problem.is_whole:
        return [*tiers[:_SORTED_FOR_HEADS], *_head_tiers(device)]
    chunks = _RECORDS // words
    tiers += _shared_sort_tiers(chunks, device)
    for cluster in _SORT_CLUSTERS:
        most = device.multiprocessors // cluster
        reason = f"up to {most} rows, each sorted in memory by a cluster of {cluster} CTAs"
        tiers.append(Tier(None, most, LoopSchedule(chunks, 32, 0, 1024, 1, cluster), reason))
    whole = LoopSchedule(chunks, 32, 0, 1024, 1)
    tiers.append(Tier(None, None, whole, "a CTA a row, sorted in memory"))
    return tiers


def _shared_sort_tiers(chunks: int, device: Device) -> list[Tier]:
    """Rows that the shared memory of a CTA or a cluster holds. What a CTA sorts alone takes most of
    the time, and more than in proportion to its records: so a row has as many CTAs as there are for
    each, and they have equal parts of the longest row.

    Args:
        chunks: records of a thread of 1024, at most.
    """
    tiers = []
    for doublings in range(_SORT_CLUSTERS[0].bit_length()):
        capacity = chunks * _SORT_THREADS << doublings
        fits = [
            cluster
            for cluster in (*_SORT_CLUSTERS, 1)
            if _SORT_THREADS <= capacity // cluster <= chunks * _SORT_THREADS
        ]
        for cluster in fits:
            most = None if cluster == fits[-1] else device.multiprocessors // cluster
            each = capacity // (_SORT_THREADS * cluster)
            schedule = LoopSchedule(1, _SORT_THREADS // WARP, each, _SORT_THREADS, 1, cluster)
            rows = "" if most is None else f" of up to {most} rows,"
            ctas = "a CTA" if cluster == 1 else f"{cluster} CTAs"
            reason = f"up to {capacity} elements{rows} sorted in the shared memory of {ctas}"
            tiers.append(Tier(capacity, most, schedule, reason))
    return tiers


def _head_tiers(device: Device) -> list[Tier]:
    """Heads of long rows, collected."""
    collected = f"{_TILE} elements at once looked through for the head"
    whole = LoopSchedule(_TILE // 512, 16, 0, 512, 2)
    tiers = [Tier(_CTA_ROW, None, whole, f"16 warps a row, {collected}")]
    for cluster in CLUSTERS:
        most = device.multiprocessors // cluster
        schedule = LoopSchedule(_TILE // 512, 16, 0, 512, 1, cluster)
        reason = f"up to {most} long rows, each cut over a cluster of {cluster} CTAs, {collected}"
        tiers.append(Tier(None, most, schedule, reason))
    tiers.append(Tier(None, None, whole, f"16 warps a row, {collected}"))
    return tiers
