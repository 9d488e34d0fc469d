# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Schedules of attention kernels that divide the keys of few queries among CTAs.

They are named like those of `AttentionSchedule`, which say how a CTA works on its keys::

    split_64x32_g2_s6_c1    64 rows; two warpgroups with 32 keys each; a ring of 6 blocks
    split_64x64_g2_s5_c1    the same with blocks of 128 keys

A row is a query of one head. Heads that share keys are rows of one tile (see `decode_rows`).
"""

from __future__ import annotations

from dataclasses import dataclass

from shapejit.passes.nvgpu.attention.schedule import AttentionSchedule
from shapejit.passes.nvgpu.wgmma import ROWS

PREFIX = "split_"
"""What the names begin with."""

_MOST_CTAS = 4  # of a multiprocessor: as many counters as there is room for


@dataclass(frozen=True, order=True)
class SplitSchedule(AttentionSchedule):
    """How a kernel works whose CTAs share the keys of a tile: a schedule with 64 rows, one worker
    and up to 4 CTAs a multiprocessor."""

    def __str__(self) -> str:
        return PREFIX + super().__str__().removeprefix("tiles_")

    @staticmethod
    def parse(text: str) -> SplitSchedule:
        """The schedule that a text names.

        Raises:
            ValueError: it names none.
        """
        made = None
        if text.startswith(PREFIX):
            try:
                plain = AttentionSchedule.parse("tiles_" + text.removeprefix(PREFIX))
            except ValueError:
                plain = None
            if plain is not None and plain.rows == ROWS and plain.workers == 1:
                made = SplitSchedule(**vars(plain))
        if made is None or made.ctas > _MOST_CTAS:
            raise ValueError(
                f"{text!r} names no schedule that divides keys; one is split_64x32_g2_s6_c1: 64 "
                "rows by 32, 64, 128 or 256 keys; 1, 2 or 4 groups; up to 8 stages; 1 to 4 CTAs"
            )
        return made
