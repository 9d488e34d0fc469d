# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Schedules of attention kernels: how attention is cut into tiles and who computes them.

A schedule says nothing about sizes: the kernel made from it takes any batch, heads, queries and
keys. Its name is what a bucket of `shapejit.dispatch` names::

    tiles_64x64_c4        a tile of 64 queries a CTA, 64 keys at once, 4 CTAs a multiprocessor
    tiles_128x64_c1       two warpgroups with 64 queries each
    tiles_128x64_p8_c3    one of 8 exponentials by a polynomial
    tiles_64x128_i2_c2    the keys in two shares, one's products beside the other's softmax
    tiles_64x128_g2_c2    two warpgroups with the same 64 queries, each with half of the keys
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shapejit.passes.nvgpu.wgmma import ROWS

_NAME = re.compile(
    r"tiles_(?P<rows>\d+)x(?P<keys>\d+)(?:_g(?P<groups>\d+))?(?:_i(?P<shares>\d+))?"
    r"(?:_p(?P<polynomials>\d+))?_c(?P<ctas>\d+)"
)

# More would leave too few registers for their sums.
_MOST_WARPGROUPS = 4


@dataclass(frozen=True, order=True)
class AttentionSchedule:
    """How one attention kernel works.

    Attributes:
        rows: queries of a tile, a multiple of 64.
        keys: keys that a warpgroup multiplies at once, from 32 to 256.
        groups: parts of the keys, each computed by warpgroups of its own: 1, 2 or 4.
        shares: parts of a warpgroup's keys, of which the products of one run beside the softmax of
            another.
        polynomials: one of so many exponentials is a polynomial; 0 for none.
        ctas: CTAs that a multiprocessor must hold at once, which bounds registers.
    """

    rows: int
    keys: int
    groups: int = 1
    shares: int = 1
    polynomials: int = 0
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
        return self.rows // ROWS * self.groups

    def __str__(self) -> str:
        groups = f"_g{self.groups}" if self.groups > 1 else ""
        shares = f"_i{self.shares}" if self.shares > 1 else ""
        polynomials = f"_p{self.polynomials}" if self.polynomials else ""
        return f"tiles_{self.rows}x{self.keys}{groups}{shares}{polynomials}_c{self.ctas}"

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
                polynomials=int(match["polynomials"] or 0),
                ctas=int(match["ctas"]),
            )
        if made is None or not made._is_valid():
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
            and 1 <= self.warpgroups <= _MOST_WARPGROUPS
            and 1 <= self.ctas <= 16
        )
