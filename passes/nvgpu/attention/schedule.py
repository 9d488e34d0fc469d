# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Schedules of attention kernels: how attention is cut into tiles and who computes them.

A schedule says nothing about sizes: the kernel made from it takes any batch, heads, queries and
keys. Its name is what a bucket of `shapejit.dispatch` names::

    tiles_64x64_c4        a tile of 64 queries a CTA, 64 keys at once, 4 CTAs a multiprocessor
    tiles_128x64_c1       two warpgroups with 64 queries each
    tiles_64x128_i2_c2    the keys in two shares, one's products beside the other's softmax
    tiles_64x64_s4_w4_c1  four tiles side by side in a CTA, each with four blocks of keys
    tiles_64x128_g2_c2    two warpgroups with the same 64 queries, each with half of the keys
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shapejit.passes.nvgpu.wgmma import ROWS

_NAME = re.compile(
    r"tiles_(?P<rows>\d+)x(?P<keys>\d+)(?:_g(?P<groups>\d+))?(?:_i(?P<shares>\d+))?"
    r"(?:_s(?P<stages>\d+))?(?:_w(?P<workers>\d+))?_c(?P<ctas>\d+)"
)

# More would leave too few registers for their sums.
_MOST_WARPGROUPS = 4
_MOST_OF_A_CTA = 8


@dataclass(frozen=True, order=True)
class AttentionSchedule:
    """How one attention kernel works.

    Attributes:
        rows: queries of a tile, a multiple of 64.
        keys: keys that a warpgroup multiplies at once, from 32 to 256.
        groups: parts of the keys, each computed by warpgroups of its own: 1, 2 or 4.
        shares: parts of a warpgroup's keys, of which the products of one run beside the softmax of
            another.
        stages: blocks of keys that are in shared memory or on their way there at once.
        workers: tiles that a CTA computes side by side, each by warpgroups of its own. A grid that
            is fixed takes time for every CTA, needed or not; so workers are better than CTAs.
        ctas: CTAs that a multiprocessor must hold at once, which bounds registers.
    """

    rows: int
    keys: int
    groups: int = 1
    shares: int = 1
    stages: int = 2
    workers: int = 1
    ctas: int = 1

    @property
    def block(self) -> int:
        """Keys that a CTA loads at once."""
        return self.keys * self.groups

    @property
    def share(self) -> int:
        """Keys of a share."""
        return self.keys // self.shares

    @property
    def warpgroups(self) -> int:
        """Of a worker."""
        return self.rows // ROWS * self.groups

    def __str__(self) -> str:
        groups = f"_g{self.groups}" if self.groups > 1 else ""
        shares = f"_i{self.shares}" if self.shares > 1 else ""
        workers = f"_w{self.workers}" if self.workers > 1 else ""
        stages = f"_s{self.stages}" if self.stages != 2 else ""
        tile = f"tiles_{self.rows}x{self.keys}{groups}{shares}{stages}"
        return f"{tile}{workers}_c{self.ctas}"

    @staticmethod
    def parse(text: str) -> AttentionSchedule:
        """The schedule that a text names.

        Raises:
            ValueError: it names none.
        """
        match = _NAME.fullmatch(text)
        made = None
        if match is not None:
            made = AttentionSchedule(
                rows=int(match["rows"]),
                keys=int(match["keys"]),
                groups=int(match["groups"] or 1),
                shares=int(match["shares"] or 1),
                stages=int(match["stages"] or 2),
                workers=int(match["workers"] or 1),
                ctas=int(match["ctas"]),
            )
        if made is None or not made._is_valid() or str(made) != text:
            raise ValueError(
                f"{text!r} names no attention schedule; one is tiles_64x64_c4: 64, 128, 192 or 256 "
                "queries by 32, 64, 128 or 256 keys; 1, 2 or 4 groups, with up to 4 times 64 "
                "queries together; 1 to 16 CTAs"
            )
        return made

    def _is_valid(self) -> bool:
        return (
            self.rows % ROWS == 0
            and self.keys in (32, 64, 128, 256)
            and self.groups in (1, 2, 4)
            and self.shares in (1, 2, 4)
            and self.share >= 32
            and 2 <= self.stages <= 8
            and 1 <= self.warpgroups <= _MOST_WARPGROUPS
            and 1 <= self.warpgroups * self.workers <= _MOST_OF_A_CTA
            and 1 <= self.ctas <= 16
        )
