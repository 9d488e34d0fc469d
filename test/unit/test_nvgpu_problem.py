# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels of one gemm as problems for a GPU: strides, tensor maps, alignment, targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlir.ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapejit import ir as sir
from shapejit.passes.host.dispatches import dispatches
from shapejit.passes.nvgpu.epilogue import directions_of
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.problem import (
    GemmProblem,
    gemm_problem,
    lhs_matrix,
    result_matrix,
    weight_matrix,
)
from shapejit.passes.nvgpu.target import HOPPER, architecture_of
from shapejit.symbolic import Expr
from unit.simulated_gemms import Gemm


@pytest.fixture(autouse=True)
def context() -> Iterator[None]:
    with ir.Context(), ir.Location.unknown():
        yield


def problem(gemm: Gemm) -> GemmProblem:
    """The problem of a kernel in a module that must outlive it."""
    module = ir.Module.parse(gemm.text)
    return gemm_problem(sir.kernels(module)["k"])


def exprs(*texts: str) -> tuple[Expr, ...]:
    return tuple(map(Expr.parse, texts))


# Strides ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "dims", "strides"),
    [
        ("mk", (2, 0), ("1", "s2")),
        ("km", (0, 2), ("1", "s0")),
    ],
)
def test_lhs_layouts(layout: str, dims: tuple[int, ...], strides: tuple[str, ...]) -> None:
    """Dims from the contiguous one on, by their number in the space (m, n, k)."""
    matrix = lhs_matrix(problem(Gemm(lhs=layout)))
    assert matrix.dims == dims
    assert matrix.strides == exprs(*strides)


def test_batches_come_last_and_only_where_they_are_read() -> None:
    batched = problem(Gemm("bmk", "nk", "bmn"))
    assert lhs_matrix(batched).dims == (3, 1, 0)
    assert lhs_matrix(batched).strides == exprs("1", "s2", "s0 * s2")
    assert weight_matrix(batched, 0).dims == (3, 2)
    result = result_matrix(batched)
    assert result is not None
    assert result.dims == (2, 1, 0)
    assert result.strides == exprs("1", "s1", "s0 * s1")


def test_slices_start_along_the_contiguous_dim() -> None:
    """The middle one of three: its start is part of the access, not of the address."""
    matrix = lhs_matrix(problem(Gemm("xmk")))
    assert matrix.access.start == Expr.parse("s0 * s2")
    assert matrix.dims == (2, 0)


def test_a_single_element_of_k_leaves_the_other_dim_contiguous() -> None:
    single = problem(Gemm("km", "kn", sizes=(("k", 1),)))
    assert lhs_matrix(single).dims == (0, 2)
    # The stride of a dim of size 1 is never taken; it only has to be legal.
    assert lhs_matrix(single).strides[1].constant == 8


@pytest.mark.parametrize(
    ("n", "mapped"), [(8, True), (9, False), (12, False), (64, True), (1, False)]
)
def test_which_results_tma_stores(n: int, mapped: bool) -> None:
    found = result_matrix(problem(Gemm(sizes=(("n", n),))))
    assert (found is not None) == mapped


def test_results_of_32_bits_are_stored_directly() -> None:
    assert result_matrix(problem(Gemm(out="f32"))) is None


# Alignment ----------------------------------------------------------------------------------------


@given(factor=st.integers(1, 50), offset=st.integers(0, 50))
def test_sizes_known_to_be_even(factor: int, offset: int) -> None:
    """Even as multiples of what the caller promises to be aligned, or by coefficients alone."""
    with ir.Context(), ir.Location.unknown():
        directions = directions_of(problem(Gemm()), swapped=False)
    aligned, free = Expr.symbol(1), Expr.symbol(0)  # rows of the result, and their number
    assert directions.is_even(aligned * factor)
    assert directions.is_even(aligned * free)
    assert directions.is_even(free * factor + offset) == (factor % 2 == offset % 2 == 0)
    assert directions.is_even(Expr.const(offset)) == (offset % 2 == 0)


def test_nothing_is_promised_without_tensor_maps() -> None:
    directions = directions_of(problem(Gemm()), swapped=False, mapped=False)
    assert not directions.is_even(Expr.symbol(1))


# Modules ------------------------------------------------------------------------------------------


def module(text: str) -> Any:
    return ir.Module.parse(text).operation


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_90a:h200"])
def test_targets(target: str) -> None:
    assert (
        architecture_of(module(f'module attributes {{shapejit.target = "{target}"}} {{}}'))
        is HOPPER
    )
    assert architecture_of(module("module {}")) is HOPPER


@pytest.mark.parametrize("target", ["cpu", "cuda", "cuda:sm_90", "cuda:sm_100a:b200", "hip:gfx942"])
def test_targets_without_kernels(target: str) -> None:
    with pytest.raises(LoweringError, match=f'the target "{target}"'):
        architecture_of(module(f'module attributes {{shapejit.target = "{target}"}} {{}}'))


def test_dispatched_variants_are_distinct_and_in_order() -> None:
    text = f"""module {{
        {Gemm().text}
        shapejit.dispatch @k by affine_map<()[s0, s1, s2, s3, s4] -> (s0)> [
          #shapejit.bucket<[0], [8], "swapped_128x128x64_s6_w2", "], \\"no_schedule\\"">,
          #shapejit.bucket<[9], [64], "persistent_128x256x64_s4_w2", "">,
          #shapejit.bucket<[65], [?], "swapped_128x128x64_s6_w2", "">
        ]
    }}"""
    assert dispatches(module(text))["k"].variants == (
        "swapped_128x128x64_s6_w2",
        "persistent_128x256x64_s4_w2",
    )
