# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the cost of a matrix product depends on: its sizes, and what is fixed for a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from shapejit.passes.buckets.halo import HaloTraits

Array: TypeAlias = npt.NDArray[np.float64]
Sizes: TypeAlias = "int | Sequence[int] | npt.NDArray[Any]"


@dataclass(frozen=True)
class GemmTraits:
    """What all calls of one gemm kernel have in common.

    Attributes:
        element_bytes: of an element of the operands.
        result_bytes: of an element of the result.
        extra_bytes: that the epilogue reads for each element of the result, e.g. 2 for a residual
            in bf16. Vectors and scalars do not count.
        body_cycles: of the epilogue's arithmetic, see `nvgpu.body_cost`.
        weights: 1, or 2 for a gated pair.
        lhs_shared: all products of a batch have the same lhs.
        rhs_shared: they have the same rhs.
        lhs_k_major: neighbours in memory of the lhs are along k, not along m.
        rhs_k_major: the same of the weights, and n.
        lhs_share: of the elements of the lhs, those that lie in memory: the pixels of a convolution
            are elements of several rows.
        halo: of a convolution whose taps share pixels; None of all other products.
        conv: whether it is a convolution, which reads its pixels tap by tap.
    """

    element_bytes: int = 2
    result_bytes: int = 2
    extra_bytes: int = 0
    weights: int = 1
    lhs_shared: bool = False
    rhs_shared: bool = False
    lhs_k_major: bool = True
    rhs_k_major: bool = True
    lhs_share: float = 1.0
    halo: HaloTraits | None = None
    conv: bool = False
    body_cycles: float = 0.0


@dataclass(frozen=True)
class GemmSizes:
    """Sizes of one product, or of many when some are sequences of the same length.

    The result has `batch` times `m` rows and `n` columns; each element sums `k` products.
    """

    m: Sizes
    n: Sizes
    k: Sizes
    batch: Sizes = 1
    traits: GemmTraits = GemmTraits()

    def arrays(self) -> tuple[Array, Array, Array, Array]:
        """m, n, k and batch as float rows, of one length, to broadcast over schedules."""
        rows = np.broadcast_arrays(
            *(np.atleast_1d(np.asarray(s, dtype=np.float64)) for s in (self.m, self.n, self.k)),
            np.atleast_1d(np.asarray(self.batch, dtype=np.float64)),
        )
        m, n, k, batch = (row[np.newaxis] for row in rows)
        return m, n, k, batch
