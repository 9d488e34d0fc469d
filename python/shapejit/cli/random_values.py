# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random tensors that any model takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

IntRange: TypeAlias = tuple[int, int]
"""Least and greatest value."""

ANY_MODEL: IntRange = (0, 1)
"""Integers that are valid whatever they mean: ids, masks, positions, token types."""


def random_tensor(
    shape: Sequence[int],
    dtype: str,
    generator: torch.Generator,
    int_range: IntRange = ANY_MODEL,
) -> Tensor:
    """A tensor of normal numbers, of integers in a range, or of booleans.

    Args:
        dtype: torch's name of the dtype.
        int_range: least and greatest integer.
    """
    kind: torch.dtype = getattr(torch, dtype)
    if kind.is_floating_point or kind.is_complex:
        # Drawn in float32 so that the low precisions round the same numbers.
        return torch.randn(tuple(shape), generator=generator).to(kind)
    low, high = (0, 1) if kind is torch.bool else int_range
    drawn = torch.randint(low, high + 1, tuple(shape), generator=generator)
    return drawn.to(kind)
