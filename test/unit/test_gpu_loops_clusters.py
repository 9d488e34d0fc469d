# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random kernels of several loops on a simulated GPU: in all variants they compute the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unit.cpu_kernels import assert_close, examples
from unit.simulated_loops import GpuKernel
from unit.test_cpu_clusters import COLUMNS, RandomKernel, random_kernels

VARIANTS = [
    None,
    "loops_v4_w1_k1_t64_c1",  # rows of 12 elements in vectors, in registers
    "loops_v2_w1_k0_t32_c2",  # read again in every pass
    "loops_v1_w4_k1_t128_c1_wide",  # several warps a row
]


def check(kernel: RandomKernel, outputs: list[int], variant: str | None) -> None:
    lowered = GpuKernel(kernel.text(outputs), variant)
    for rows in (0, 1, 5):
        x = torch.randn(rows, COLUMNS)
        for got, want in zip(lowered([x], rows), kernel.expected(x.double(), outputs), strict=True):
            assert_close(got, want, terms=1.0)


@examples(30)
@given(
    drawn=random_kernels("s0", ("pointwise", "rows", "maximum")), variant=st.sampled_from(VARIANTS)
)
def test_row_clusters(drawn: tuple[RandomKernel, list[int]], variant: str | None) -> None:
    check(*drawn, variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_value_shared_by_all_passes(variant: str | None) -> None:
    kernel = RandomKernel()
    kernel.add("pointwise", [0], False, True)
    kernel.add("maximum", [1], False, False)
    kernel.add("rows", [1, 2], False, True)
    kernel.add("pointwise", [1, 2, 3], False, True)
    kernel.add("pointwise", [4, 1], False, True)
    for outputs in ([5], [4, 5], [1, 4, 5, 3], [2, 3]):
        check(kernel, outputs, variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_columns_read_in_reverse(variant: str | None) -> None:
    """What is side by side, but in the other direction, is no vector."""
    kernel = RandomKernel()
    kernel.add("pointwise", [0], True, True)
    kernel.add("rows", [1], True, False)
    kernel.add("pointwise", [1, 2], True, False)
    check(kernel, [3, 1], variant)
