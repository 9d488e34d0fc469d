# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rows that lie in shared memory while they are passed over."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shapejit.passes.nvgpu.errors import LoweringError
from unit import gpu_loop_samples as samples
from unit.cpu_kernels import access, assert_close, examples, tensor
from unit.gpu_loop_samples import Sample, assert_near, sums, values
from unit.simulated_loops import GpuKernel

SOFTMAX = samples.softmax("bf16")

WAYS = {
    "a CTA": "loops_v8_w2_k3_t64_c1_shared",
    "two CTAs of a multiprocessor": "loops_v8_w2_k2_t64_c2_shared",
    "wide indices": "loops_v8_w2_k3_t64_c1_shared_wide",
    "a cluster": "loops_v8_w2_k1_t64_c1_x2_shared",
    "a cluster, wide indices": "loops_v8_w1_k1_t32_c1_x4_shared_wide",
    "the next row in the second-level cache": "loops_v8_w2_k3_t64_c1_shared_next",
}
"""With room for 1024 elements or more."""


@functools.cache
def _lowered(text: str, variant: str) -> GpuKernel:
    return GpuKernel(text, variant)


def check(
    element: str,
    sample: Sample,
    variant: str,
    m: int,
    n: int,
    shifts: tuple[int, ...] = (),
    seed: int = 0,
) -> None:
    inputs = sample.inputs(m, n)
    kernel = _lowered(sample.text, variant)
    got = kernel(inputs, m, n, shifts=shifts, multiprocessors=4, seed=seed)
    assert_near(element, got, sample.expected(*inputs))


@pytest.mark.parametrize("way", WAYS)
@given(m=st.integers(0, 9), n=st.integers(0, 1024))
@examples(4)
def test_rows_of_any_length(way: str, m: int, n: int) -> None:
    check("bf16", SOFTMAX, WAYS[way], m, n)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n", [1, 7, 8, 9, 512, 513, 1023, 1024])
def test_lengths_at_the_ends_of_ranges_and_pieces(way: str, n: int) -> None:
    check("bf16", SOFTMAX, WAYS[way], 9, n)


@pytest.mark.parametrize("way", ["a CTA", "a cluster"])
@pytest.mark.parametrize("n", [1600, 2055, 5000])
def test_rows_that_have_no_room_are_read_again(way: str, n: int) -> None:
    check("bf16", SOFTMAX, WAYS[way], 5, n)


@pytest.mark.parametrize("shifts", [(2, 0), (0, 2), (16, 16), (6, 6)])
def test_addresses_that_are_no_multiples(shifts: tuple[int, int]) -> None:
    check("bf16", SOFTMAX, WAYS["a CTA"], 5, 777, shifts)


@pytest.mark.parametrize(("element", "vector"), [("f16", 8), ("f32", 4), ("f64", 2)])
@pytest.mark.parametrize("n", [1, 500, 501])
def test_elements(element: str, vector: int, n: int) -> None:
    check(element, samples.softmax(element), f"loops_v{vector}_w2_k5_t64_c1_shared", 5, n)


@pytest.mark.parametrize(("element", "vector"), [("bf16", 8), ("f32", 4)])
@pytest.mark.parametrize("width", [1, 200, 201, 512])
@pytest.mark.parametrize("cluster", ["", "_x2"])
def test_two_tensors_beside_what_all_rows_share(
    element: str, vector: int, width: int, cluster: str
) -> None:
    sample = samples.layer_norm(element, width, residual=True)
    check(element, sample, f"loops_v{vector}_w2_k2_t64_c1{cluster}_shared", 9, 0)


@pytest.mark.parametrize("seed", range(4))
def test_a_row_is_not_copied_over_one_that_is_read(seed: int) -> None:
    check("bf16", SOFTMAX, WAYS["a CTA"], 13, 1000, seed=seed)
    check("bf16", SOFTMAX, WAYS["a cluster"], 13, 1001, seed=seed)


def variance() -> str:
    """The sum of squared distances from the mean of the only row."""
    x, y, at, out = tensor("f32", "s0"), tensor("f32"), access(1, "d0"), access(1, "")
    return f"""
        shapejit.kernel @k symbols 1 (%x: {x}) {{
          %s = shapejit.loop over [s0] ins(%x at {at} : {x}) outs(add {out} : {y}) {{
          ^bb0(%v: f32):
            shapejit.yield %v : f32
          }}
          %y = shapejit.loop over [s0] ins(%x at {at} : {x}, %s at {out} : {y})
              outs(add {out} : {y}) {{
          ^bb0(%v: f32, %t: f32):
            %n = shapejit.size affine_map<()[s0] -> (s0)>
            %i = arith.index_cast %n : index to i64
            %c = arith.sitofp %i : i64 to f32
            %m = arith.divf %t, %c : f32
            %d = arith.subf %v, %m : f32
            %e = arith.mulf %d, %d : f32
            shapejit.yield %e : f32
          }}
          shapejit.yield %y : {y}
        }}"""


@pytest.mark.parametrize(
    "variant", ["loops_v4_w2_k4_t64_c1_shared", "loops_v4_w1_k4_t32_c1_x2_shared"]
)
@pytest.mark.parametrize("n", [1, 3, 900, 1001])
def test_a_single_row_without_results_along_it(variant: str, n: int) -> None:
    x = values("f32", n) + 3
    [y] = _lowered(variance(), variant)([x], n)
    expected = ((x.double() - x.double().mean()) ** 2).sum()
    assert_close(y, expected)


def test_rows_are_read_from_global_memory_once() -> None:
    """Of a known length: by copies of the first row and of the next one, and by a load of the
    elements ahead of them and behind."""
    text = samples.softmax("bf16", 1001).text
    code = _lowered(text, "loops_v8_w2_k2_t64_c1_shared").ptx().ptx
    assert code.count("cp.async.bulk.shared::cluster.global") == 2
    assert "ld.global.v4" not in code
    # Rows at addresses that are no multiples are read one by one, ahead of this.
    passes = code[code.index("cp.async.bulk.shared") :]
    assert passes.count("ld.global") == 1
    assert code.count("ld.shared.v4.b32") == 3 * 2  # passes, two vectors at once


@pytest.mark.parametrize(
    ("text", "variant", "message"),
    [
        (samples.softmax("bf16", 1033).text, "loops_v8_w2_k2_t64_c1_shared", "has no room for its"),
        (SOFTMAX.text, "loops_v4_w2_k2_t64_c1_shared", "reads no rows that lie side by side"),
        (sums(0), "loops_v4_w4_k2_t128_c1_shared", "reads no rows that lie side by side"),
        (samples.pointwise("bf16").text, "loops_v8_w2_k2_t64_c1_shared", "reads no rows that lie"),
    ],
)
def test_what_has_no_place_in_shared_memory(text: str, variant: str, message: str) -> None:
    with pytest.raises(LoweringError, match=message):
        GpuKernel(text, variant)


@pytest.mark.parametrize("n", [64, 1000])
def test_other_rows_of_the_same_tensor_are_read_where_they_are(n: int) -> None:
    """A row of the tensor is kept, and what is read of its neighbour is another one."""
    x, y = tensor("f32", "s0 + 1", "s1"), tensor("f32", "s0", "s1")
    own, further, row = access(2, "d0, d1"), access(2, "d0 + 1, d1"), access(2, "d0")
    total = tensor("f32", "s0")
    text = f"""
        shapejit.kernel @k symbols 2 (%x: {x}) {{
          %s = shapejit.loop over [s0, s1] ins(%x at {own} : {x}) outs(max {row} : {total}) {{
          ^bb0(%v: f32):
            shapejit.yield %v : f32
          }}
          %y = shapejit.loop over [s0, s1]
              ins(%x at {own} : {x}, %x at {further} : {x}, %s at {row} : {total})
              outs({own} : {y}) {{
          ^bb0(%v: f32, %w: f32, %t: f32):
            %d = arith.subf %v, %t : f32
            %e = arith.addf %d, %w : f32
            shapejit.yield %e : f32
          }}
          shapejit.yield %y : {y}
        }}"""
    x_ = values("f32", 8, n)
    [got] = _lowered(text, "loops_v4_w2_k4_t64_c1_shared")([x_], 7, n)
    assert torch.equal(got, x_[:-1] - x_[:-1].amax(1, keepdim=True) + x_[1:])
