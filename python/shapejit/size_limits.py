# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sizes of which the memory of a call cannot be counted.

Native code counts bytes and elements in 64 bits, and would ask for too little memory where they
wrap around. Dims with upper bounds rule that out when a program is made; for others every new
combination of sizes is looked at, in exact numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from shapejit.artefacts import Artefacts, TensorOutput
from shapejit.symbolic import Expr, Ranges, product

MOST_BYTES: Final = 1 << 48
"""Bytes of one tensor: more than any machine has, and those of 32767 such tensors are still counted
in 64 bits."""


class SizeLimits:
    """Memory that a call of a program needs, as far as it might be beyond `MOST_BYTES`.

    Args:
        artefacts: of the program.

    Attributes:
        unbounded: what may be beyond it, by the ranges of the dims: bytes of each.
    """

    def __init__(self, artefacts: Artefacts) -> None:
        specs = artefacts.symbols
        ranges = Ranges(
            {s: (spec.min, spec.max) for s, spec in enumerate(specs) if spec.derived is None}
        )
        sizes = dict.fromkeys(size for slot in artefacts.arena for size in slot)
        sizes.update(
            (product(spec.dims) * getattr(torch, spec.dtype).itemsize, None)
            for spec in artefacts.outputs
            if isinstance(spec, TensorOutput)
        )
        self.unbounded = tuple(size for size in sizes if not _is_within(ranges, size))

    def excess(self, values: Sequence[int]) -> int | None:
        """Bytes of a tensor that is beyond the limit; None if there is none.

        Args:
            values: of all symbols, derived ones included.
        """
        found = (size.evaluate(symbols=values) for size in self.unbounded)
        return next((count for count in found if count > MOST_BYTES), None)


def _is_within(ranges: Ranges, size: Expr) -> bool:
    most = ranges.bounds(size)[1]
    return most is not None and most <= MOST_BYTES


__all__ = ["MOST_BYTES", "SizeLimits"]
