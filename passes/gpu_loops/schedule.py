# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How a kernel of loops is spread over threads.

A schedule says nothing about sizes, but for how much of a row is kept in registers. The decision of
`shapejit-choose-buckets` names it by its text::

    loops_v8_w1_k0_t256_c4         8 elements a thread at once, 4 CTAs of 256 threads on a
                                   multiprocessor
    loops_v4_w1_k3_t256_c4         a warp a row; 3 vectors of 4 elements of it in every thread
    loops_v8_w8_k2_t256_c4         8 warps a row
    loops_v8_w8_k2_t256_c4_next    the same; the next row comes to the second-level cache meanwhile
    loops_v4_w32_k0_t1024_c1_x8    a cluster of 8 CTAs a row
    loops_v8_w16_k13_t512_c2_shared    16 warps a row, which lies in shared memory
    loops_v4_w16_k4_t512_c2_units  a scan whose rows are cut into units of 4 vectors a thread, which
                                   any CTA takes
    loops_v8_w1_k264_t512_c2_l8_units    up to 264 units of columns, of which groups of 8 lanes have
                                   neighbouring ones
    loops_v1_w1_k0_t256_c4_wide    indices of 64 bits
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shapejit.passes.nvgpu.errors import LoweringError

_NAME = re.compile(
    r"loops_v(?P<vector>\d+)_w(?P<warps>\d+)_k(?P<chunks>\d+)_t(?P<threads>\d+)"
    r"_c(?P<ctas>\d+)(?:_x(?P<cluster>\d+))?(?:_l(?P<lanes>\d+))?(?P<shared>_shared)?"
    r"(?P<fetches>_next)?(?P<units>_units)?(?P<wide>_wide)?"
)

WARP = 32
_MAX_THREADS = 1024
_MAX_CLUSTER = 16


@dataclass(frozen=True, order=True)
class LoopSchedule:
    """How one kernel of loops works.

    Attributes:
        vector: neighbouring elements that a thread takes at once, a power of 2.
        warps: that share a row, a power of 2. More than one are a whole CTA.
        chunks: vectors of a row that each of these threads keeps in registers between the passes
            over the row; 0 to read it again in each. Rows of a size that is not known must not be
            longer than what is so kept: the dispatch sees to that.
        threads: of a CTA.
        ctas: that a multiprocessor holds at once.
        cluster: CTAs that share a row, a power of 2; each row then takes all warps of each of them.
        lanes: of a warp that have neighbouring columns, a power of 2; others have other steps.
        shared: whether rows are kept in shared memory instead, a CTA's part of a row at a time.
        fetches: whether a row that is kept has the next one of its team fetched into the
            second-level cache, so that memory works on while rows are computed.
        units: whether all CTAs share the rows of a scan, with `chunks` a thread in a unit, or the
            reduced dims of columns, which have up to `chunks` units.
        wide: whether indices have 64 bits; else no tensor has more than `MAX_NARROW` elements.
    """

    vector: int = 1
    warps: int = 1
    chunks: int = 0
    threads: int = 256
    ctas: int = 4
    cluster: int = 1
    lanes: int = WARP
    shared: bool = False
    fetches: bool = False
    units: bool = False
    wide: bool = False

    @property
    def row_capacity(self) -> int:
        """Elements of a row that are kept."""
        return self.vector * self.chunks * self.warps * WARP * self.cluster

    def __str__(self) -> str:
        text = f"loops_v{self.vector}_w{self.warps}_k{self.chunks}_t{self.threads}_c{self.ctas}"
        text += f"_x{self.cluster}" if self.cluster > 1 else ""
        text += f"_l{self.lanes}" if self.lanes < WARP else ""
        text += "_shared" if self.shared else ""
        text += "_next" if self.fetches else ""
        text += "_units" if self.units else ""
        return text + ("_wide" if self.wide else "")

    @staticmethod
    def parse(text: str) -> LoopSchedule:
        """The schedule that a text names.

        Raises:
            LoweringError: it names none.
        """
        match = _NAME.fullmatch(text)
        if match is None:
            raise LoweringError(
                f"has the variant {text!r}, which names no schedule of loops; one is "
                f"{LoopSchedule()}"
            )
        made = LoopSchedule(
            vector=int(match["vector"]),
            warps=int(match["warps"]),
            chunks=int(match["chunks"]),
            threads=int(match["threads"]),
            ctas=int(match["ctas"]),
            cluster=int(match["cluster"] or 1),
            lanes=int(match["lanes"] or WARP),
            shared=match["shared"] is not None,
            fetches=match["fetches"] is not None,
            units=match["units"] is not None,
            wide=match["wide"] is not None,
        )
        made.check()
        return made

    def check(self) -> None:
        """Refuses what no kernel can be made from.

        Raises:
            LoweringError: a rule is broken; the text says which.
        """
        powers = ("vector", "warps", "cluster", "lanes")
        for name, value in ((each, getattr(self, each)) for each in powers):
            if value < 1 or value & (value - 1):
                raise LoweringError(f"has {name} = {value} in its schedule; it is a power of 2")
        if self.vector > WARP // 2:
            raise LoweringError(f"has vectors of {self.vector} in its schedule; the most is 16")
        if self.threads % WARP or not 0 < self.threads <= _MAX_THREADS:
            raise LoweringError(
                f"has CTAs of {self.threads} threads in its schedule; they are multiples of {WARP} "
                f"up to {_MAX_THREADS}"
            )
        if self.warps > 1 and self.warps * WARP != self.threads:
            raise LoweringError(
                f"has rows of {self.warps} warps in CTAs of {self.threads} threads; rows that "
                "several warps share take a whole CTA"
            )
        if self.cluster > _MAX_CLUSTER or (self.cluster > 1 and self.warps * WARP != self.threads):
            raise LoweringError(
                f"has rows of {self.cluster} CTAs with {self.warps} warps of each in its schedule; "
                f"up to {_MAX_CLUSTER} CTAs share a row, with all of their warps"
            )
        if self.lanes > WARP:
            raise LoweringError(
                f"has {self.lanes} lanes side by side in its schedule; a warp has {WARP}"
            )
        if self.shared and (not self.chunks or self.warps * WARP != self.threads):
            raise LoweringError(
                f"has rows of {self.chunks} vectors a thread in shared memory, by {self.warps} "
                f"warps of CTAs of {self.threads} threads; there is at least a vector, and all "
                "warps share a row"
            )
        if self.ctas < 1:
            raise LoweringError("has no CTA on a multiprocessor in its schedule")


MAX_NARROW = 1 << 30
"""Elements of the largest tensor and space for which indices of 32 bits do: with their sign, and
room for the last step of a loop."""
