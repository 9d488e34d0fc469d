# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Schedules for calls of a gemm whose sizes are known only when it is called.

For one (n, k, batch) the choice depends on m alone: a list of breakpoints, found once, in which
each call is a bisection. A `ScheduleTable` keeps such lists for the triples seen last.

Whether a kernel starts before the one ahead of it ends is chosen with it, by the same model. It is
the same machine code, so it is no variant more.
"""

from __future__ import annotations

import functools
import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from shapejit.passes.buckets.constants import constants_of
from shapejit.passes.buckets.device import H200, Device
from shapejit.passes.buckets.grid import (
    GemmSize,
    SizeOnAxis,
    cut,
    grid_sizes,
    max_cells,
    tile_lengths,
)
from shapejit.passes.buckets.model import CostModel, fitting
from shapejit.passes.buckets.partition import partition
from shapejit.passes.buckets.problem import GemmSizes, GemmTraits
from shapejit.passes.nvgpu.schedule import CANDIDATES, GemmSchedule, worth_trying

# A kernel serves all n and k, so a variant more is built once, not once a row.
_MAX_VARIANTS = 8
_TOLERANCE = 0.01
_MAX_ROWS = 4096

_Row: TypeAlias = tuple[list[int], list[GemmSchedule]]


@dataclass(frozen=True)
class RowInterval:
    """The values of m from `low` to `high` (None: without end) that `schedule` serves."""

    low: int
    high: int | None
    schedule: GemmSchedule


class ScheduleTable:
    """The choice among schedules for gemms of the same traits.

    Reading and filling it from several threads is safe; two threads may compute one row twice.

    Args:
        traits: of the gemms.
        candidates: to choose from; those that do not fit on a multiprocessor are left out.
        device: the GPU.
        max_variants: distinct kernels for one (n, k, batch).
        early: whether kernels may start early, where that pays; see `GemmSchedule.early`.

    Raises:
        ValueError: no candidate fits.
    """

    def __init__(
        self,
        traits: GemmTraits | None = None,
        candidates: Sequence[GemmSchedule] = CANDIDATES,
        device: Device = H200,
        max_variants: int = _MAX_VARIANTS,
        *,
        early: bool = False,
    ) -> None:
        self.traits = traits or GemmTraits()
        tried = worth_trying(candidates, self.traits.weights)
        usable = fitting(device, tried, self.traits)
        if not usable:
            raise ValueError(
                f"no schedule of {', '.join(map(str, candidates))} fits on a multiprocessor of "
                f"{device.name} with {self.traits}"
            )
        self._device, self._usable = device, usable
        self._started = tuple(replace(each, early=True) for each in usable) if early else ()
        self._max_variants = max_variants
        self._rows: dict[tuple[int, int, int], _Row] = {}
        self._lock = threading.Lock()

    @functools.cached_property
    def _model(self) -> CostModel:
        return CostModel(self._device, (*self._usable, *self._started), self.traits)

    def description(self) -> dict[str, Any]:
        """What decides on the choices, beside the sizes and the sources, as JSON values."""
        return {
            "traits": asdict(self.traits),
            "schedules": [*map(str, self._usable), *map(str, self._started)],
            "device": self._device.name,
            "constants": constants_of(self._device.name).record(),
            "max_variants": self._max_variants,
        }

    def knows(self, n: int, k: int, batch: int = 1) -> bool:
        """Whether what it gives for these sizes is at hand."""
        return (n, k, batch) in self._rows

    def adopt(self, n: int, k: int, batch: int, choices: Iterable[tuple[int, str]]) -> None:
        """Takes over what a table of the same description gave for these sizes.

        Args:
            choices: of every interval, the first m and the schedule's name.
        """
        named = {str(each): each for each in (*self._started, *self._usable)}
        starts, names = zip(*choices, strict=True)
        self._keep(n, k, batch, (list(starts), [named[name] for name in names]))

    def choose(self, m: int, n: int, k: int, batch: int = 1) -> GemmSchedule:
        """The schedule for a call."""
        try:
            starts, schedules = self._rows[n, k, batch]
        except KeyError:
            starts, schedules = self._fill(n, k, batch)
        return schedules[bisect_right(starts, m) - 1]

    def intervals(self, n: int, k: int, batch: int = 1) -> list[RowInterval]:
        """What `choose` gives over all m, in ascending order; the last interval has no end."""
        starts, schedules = self._rows.get((n, k, batch)) or self._fill(n, k, batch)
        ends = [*(start - 1 for start in starts[1:]), None]
        return [RowInterval(*row) for row in zip(starts, ends, schedules, strict=True)]

    def _fill(self, n: int, k: int, batch: int) -> _Row:
        row = self._row(n, k, batch)
        self._keep(n, k, batch, row)
        return row

    def _keep(self, n: int, k: int, batch: int, row: _Row) -> None:
        with self._lock:
            while len(self._rows) >= _MAX_ROWS:
                # The oldest one; if it is still in use it is made again, in milliseconds.
                del self._rows[next(iter(self._rows))]
            self._rows[n, k, batch] = row

    def _row(self, n: int, k: int, batch: int) -> _Row:
        model = self._model
        tiles = tile_lengths(self._usable, "m")
        cells = cut(0, None, [(lambda m: m, tile) for tile in tiles], max_cells(1))
        sizes: dict[str, GemmSize] = {
            "m": SizeOnAxis(0, lambda m: m),
            "n": n,
            "k": k,
            "batch": batch,
        }
        problems, _ = grid_sizes([cells], sizes, self.traits)
        times = model.times(problems)
        late, early = times[:, : len(self._usable)], times[:, len(self._usable) :]
        if self._started:
            times = np.minimum(late, early)
        boxes = partition(times, cells.log_lengths(), self._max_variants, _TOLERANCE)
        found: list[tuple[int, GemmSchedule]] = []
        for box in boxes:
            for cell in range(box.lower[0], box.upper[0] + 1):
                pays = self._started and early[cell, box.candidate] < late[cell, box.candidate]
                schedule = (self._started if pays else self._usable)[box.candidate]
                if not found or found[-1][1] is not schedule:
                    found.append((int(cells.starts[cell]), schedule))
        return [start for start, _ in found], [schedule for _, schedule in found]


@functools.lru_cache(maxsize=256)
def _table(
    traits: GemmTraits, candidates: tuple[GemmSchedule, ...], device: Device
) -> ScheduleTable:
    return ScheduleTable(traits, candidates, device)


def choose(
    problem: GemmSizes,
    candidates: Sequence[GemmSchedule] = CANDIDATES,
    device: Device = H200,
) -> GemmSchedule:
    """The schedule for one product; a caller in a hurry keeps a `ScheduleTable`.

    Raises:
        ValueError: no candidate fits.
    """
    table = _table(problem.traits, tuple(candidates), device)
    m, n, k, batch = (int(size.item()) for size in problem.arrays())
    return table.choose(m, n, k, batch)
