# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Few long rows and columns, shared by several CTAs; large spaces, several vectors at once."""

from __future__ import annotations

import functools

import pytest
import torch

from shapejit.passes.gpu_loops.schedule import LoopSchedule
from unit import gpu_loop_samples as samples
from unit.cpu_kernels import access, assert_close, tensor
from unit.gpu_loop_samples import assert_near, sums, values
from unit.simulated_loops import GpuKernel

_PROCESSORS = 8


def addition() -> str:
    """A sum of two rows of s0 elements."""
    t, at = tensor("f32", "s0"), access(1, "d0")
    return f"""
        shapejit.kernel @k symbols 1 (%x: {t}, %z: {t}) {{
          %y = shapejit.loop over [s0] ins(%x at {at} : {t}, %z at {at} : {t}) outs({at} : {t}) {{
          ^bb0(%a: f32, %b: f32):
            %c = arith.addf %a, %b : f32
            shapejit.yield %c : f32
          }}
          shapejit.yield %y : {t}
        }}"""


@functools.cache
def _lowered(text: str, variant: str) -> GpuKernel:
    return GpuKernel(text, variant)


@pytest.mark.parametrize("variant", ["loops_v2_w2_k0_t64_c1_x4", "loops_v4_w2_k2_t64_c1_x2"])
@pytest.mark.parametrize("n", [1, 513, 1024])
def test_clusters_share_rows(variant: str, n: int) -> None:
    x = values("f32", 3, n)
    kernel = _lowered(samples.softmax("f32").text, variant)
    assert kernel.interface.cluster == LoopSchedule.parse(variant).cluster
    [y] = kernel([x], 3, n, multiprocessors=_PROCESSORS)
    assert_close(y, torch.softmax(x.double(), -1))


@pytest.mark.parametrize("seed", range(4))
def test_cells_of_a_cluster_are_used_again(seed: int) -> None:
    # One reduction a row: the next row writes where other CTAs may still read.
    x = torch.rand(5, 200)
    [y] = _lowered(sums(1), "loops_v1_w2_k0_t64_c1_x4")([x], 5, 200, multiprocessors=4, seed=seed)
    assert_close(y, x.double().sum(1))


@pytest.mark.parametrize("n", [0, 1, 255, 256, 1024, 4099])
@pytest.mark.parametrize("variant", ["loops_v4_w1_k4_t64_c1", "loops_v4_w1_k2_t32_c1_wide"])
def test_several_vectors_at_once(variant: str, n: int) -> None:
    x, z = torch.randn(n), torch.randn(n)
    for shifts in ((0, 0, 0), (4, 0, 0)):
        [y] = _lowered(addition(), variant)([x, z], n, shifts=shifts)
        assert torch.equal(y, x + z)


def test_large_spaces_have_several_vectors_on_their_way() -> None:
    kernel = GpuKernel(addition(), sizes={0: (0, 1 << 28)})
    small, large = map(LoopSchedule.parse, kernel.variants)
    assert (small.chunks, large.chunks) == (0, 2)
    bytes_ = 2 * 4 * large.vector * large.chunks * large.threads * large.ctas
    assert bytes_ >= 40000


def test_columns_are_shared_where_they_are_few_and_long() -> None:
    kernel = GpuKernel(sums(0), sizes={0: (0, 1 << 20), 1: (0, 5000)})
    chosen = [LoopSchedule.parse(variant) for _, _, variant, _ in kernel.buckets]
    assert [each.units for each in chosen] == [False, False, True]
    wide = GpuKernel(sums(0), sizes={0: (0, 1 << 20), 1: (0, 1 << 17)})
    assert [LoopSchedule.parse(variant).units for variant in wide.variants][2:] == [True, False]
    short = GpuKernel(sums(0), sizes={0: (0, 512), 1: (0, 5000)})
    assert not any(LoopSchedule.parse(variant).units for variant in short.variants)


@pytest.mark.parametrize(
    ("element", "width", "expected"),
    [("bf16", 8, (8, 1)), ("bf16", 64, (8, 8)), ("bf16", 768, (8, 32)), ("f32", 100, (4, 32))],
)
def test_lanes_are_as_many_as_there_are_vectors(
    element: str, width: int, expected: tuple[int, int]
) -> None:
    text = samples.column_sum(element, width).text
    kernel = GpuKernel(text, sizes={0: (4, 4), 1: (1 << 18, 1 << 18), 2: (0, 0)})
    [chosen] = [LoopSchedule.parse(variant) for variant in kernel.variants]
    assert chosen.units
    assert (chosen.vector, chosen.lanes) == expected
    [resources] = kernel.assemble().resources.values()
    assert not resources.spill_store_bytes


def test_vocabularies_are_shared_where_rows_are_few() -> None:
    kernel = GpuKernel(samples.softmax("bf16").text, sizes={0: (1, 64), 1: (128256, 128256)})
    chosen = [LoopSchedule.parse(variant) for _, _, variant, _ in kernel.buckets]
    # Registers of 16 CTAs hold a row, shared memory of fewer.
    assert [(each.cluster, each.shared) for each in chosen] == [(16, False), (8, True)]
    assert all(each.row_capacity >= 128256 for each in chosen)
    for variant in kernel.variants:
        [resources] = GpuKernel(samples.softmax("bf16").text, variant).assemble().resources.values()
        assert resources.spill_store_bytes == 0


# The next row ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variant",
    ["loops_v8_w1_k2_t64_c1_next", "loops_v8_w2_k2_t64_c1_next", "loops_v8_w2_k0_t64_c1_next"],
)
@pytest.mark.parametrize("wide", ["", "_wide"])
@pytest.mark.parametrize("m_n", [(0, 64), (1, 64), (9, 0), (21, 120), (9, 63), (9, 7), (13, 15)])
def test_the_next_row_is_fetched(variant: str, wide: str, m_n: tuple[int, int]) -> None:
    """Nothing but rows that are there: the simulated GPU refuses other memory."""
    sample = samples.softmax("bf16")
    [x] = sample.inputs(*m_n)
    [y] = _lowered(sample.text, variant + wide)([x], *m_n)
    assert_near("bf16", [y], sample.expected(x))


def test_all_rows_of_a_sum_are_fetched() -> None:
    """Rows of both addends, not the weights, which all rows share."""
    sample = samples.layer_norm("bf16", 64, residual=True)
    kernel = _lowered(sample.text, "loops_v8_w1_k1_t64_c1_next")
    assert kernel.ptx().ptx.count("cp.async.bulk.prefetch.L2") == 2
    inputs = sample.inputs(37)
    got = kernel(inputs, 37, 0)
    assert_near("bf16", got, sample.expected(*inputs))


def test_rows_of_several_dims_or_not_in_place_are_not_fetched() -> None:
    """Columns that are read across are no bytes side by side."""
    x, y = tensor("bf16", "s1", "s0"), tensor("f32", "s0")
    text = f"""
        shapejit.kernel @k symbols 2 (%x: {x}) {{
          %y = shapejit.loop over [s0, s1] ins(%x at {access(2, "d1, d0")} : {x})
              outs(add {access(2, "d0")} : {y}) {{
          ^bb0(%v: bf16):
            %w = arith.extf %v : bf16 to f32
            shapejit.yield %w : f32
          }}
          shapejit.yield %y : {y}
        }}"""
    kernel = _lowered(text, "loops_v8_w1_k2_t64_c1_next")
    assert "prefetch" not in kernel.ptx().ptx
    [v] = (values("bf16", 24, 40),)
    [got] = kernel([v], 40, 24)
    assert_near("f32", [got], [v.double().sum(0)])
