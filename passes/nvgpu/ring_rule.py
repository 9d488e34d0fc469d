# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which schedules bring an extra of the size of the result through their ring, see `ring_extras`.

The cost model follows it, too.
"""

from __future__ import annotations

from typing import Final

from shapejit.passes.nvgpu.schedule import GemmSchedule

#: Columns of a panel; tiles of other widths are stored from registers, unless they are swapped.
_PANEL: Final = 64


def brings_extras(schedule: GemmSchedule) -> bool:
    """Whether a tile is one CTA's, whose consumers have it together and store it by TMA."""
    if schedule.family not in ("persistent", "swapped"):
        return False
    in_parts = schedule.stream or schedule.split > 1 or schedule.turns
    return not in_parts and (schedule.swapped or schedule.columns % _PANEL == 0)
