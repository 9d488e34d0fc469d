# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Schedules of flash kernels: attention on long sequences, see `flash`.

A name says all::

    flash_128x128_s5_c1   a tile of 128 queries a CTA, 64 for each of two warpgroups; 128 keys at
                          once; a ring of five blocks of keys or values; a CTA a multiprocessor
    flash_64x64_s5_c2     one warpgroup; two CTAs a multiprocessor
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shapejit.passes.nvgpu.wgmma import DEPTH, ROWS

_NAME = re.compile(
    r"flash_(?P<rows>\d+)x(?P<keys>\d+)_s(?P<stages>\d+)_c(?P<ctas>\d+)",
)

# Registers of a producer's and of a consumer's thread, by consumers and CTAs a multiprocessor. All
# warpgroups of a CTA together get no more than it was launched with: for three consumers 4 * 128,
# for two 3 * 168, for one of two CTAs 2 * 128. Who asks for more waits for ever.
_REGISTERS = {(1, 2): (32, 224), (2, 1): (24, 240), (3, 1): (32, 160)}

_MOST_STAGES = 12


@dataclass(frozen=True, order=True)
class FlashSchedule:
    """How one flash kernel works.

    Attributes:
        rows: queries of a tile, 64 for each consumer.
        keys: keys that a consumer multiplies at once, a multiple of 16.
        stages: blocks of keys or of values in the ring.
        ctas: CTAs that a multiprocessor holds at once.
    """

    rows: int
    keys: int
    stages: int
    ctas: int

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply; one more produces."""
        return self.rows // ROWS

    @property
    def registers(self) -> tuple[int, int]:
        """Of a thread of the producer, and of a consumer."""
        return _REGISTERS[self.consumers, self.ctas]

    def __str__(self) -> str:
        return f"flash_{self.rows}x{self.keys}_s{self.stages}_c{self.ctas}"

    @staticmethod
    def parse(text: str) -> FlashSchedule:
        """The schedule that a text names.

        Raises:
            ValueError: it names none.
        """
        match = _NAME.fullmatch(text)
        made = FlashSchedule(**{k: int(v) for k, v in match.groupdict().items()}) if match else None
        if made is None or not made._is_valid() or str(made) != text:
            raise ValueError(
                f"{text!r} names no flash schedule; one is flash_128x128_s5_c1: 128 or 192 queries "
                "with one CTA a multiprocessor, or 64 with two; 16 to 256 keys, a multiple of 16; "
                f"3 to {_MOST_STAGES} stages"
            )
        return made

    def _is_valid(self) -> bool:
        return (
            self.rows % ROWS == 0
            and (self.consumers, self.ctas) in _REGISTERS
            and self.keys % DEPTH == 0
            and DEPTH <= self.keys <= 256
            # A consumer holds a block of keys and one of values while the next one arrives.
            and 3 <= self.stages <= _MOST_STAGES
        )
