# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Matrix products on the CPU against float64 torch, at random sizes, 0 and 1 included."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from shapejit.codegen import HostTarget
from unit.cpu_kernels import DTYPES, CpuKernel, access, assert_close, examples, pack, tensor

SIZES = st.one_of(st.sampled_from([0, 1, 2, 47, 48, 49, 97, 384, 385]), st.integers(0, 140))
SMALL = st.one_of(st.sampled_from([0, 1, 2, 16, 17, 31]), st.integers(0, 70))
ROWS = st.one_of(st.integers(0, 14), st.sampled_from([47, 48, 49, 53, 96, 97, 200]))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


# Packed weights -----------------------------------------------------------------------------------


@functools.cache
def packed_linear(n: int, k: int, panel: int, vector_bytes: int | None = None) -> CpuKernel:
    """gelu-free epilogue with bias and residual: y = max(x @ w.T + b, 0) + r"""
    x, r = tensor("f32", "s0", k), tensor("f32", "s0", n)
    w, b = tensor("f32", -(-n // panel), k, panel), tensor("f32", n)
    return CpuKernel(
        f"""
        shapejit.kernel @k symbols 1 (%x: {x}, %w: {w}, %b: {b}, %r: {r}) {{
          %0 = shapejit.gemm over [s0, {n}, {k}]
              lhs(%x at {access(3, "d0, d2")} : {x})
              rhs(%w at {access(3, f"d1 floordiv {panel}, d2, d1 mod {panel}")} : {w})
              extras(%b at {access(2, "d1")} : {b}, %r at {access(2, "d0, d1")} : {r})
              epilogue {{
          ^bb0(%acc: f32, %bias: f32, %residual: f32):
            %zero = arith.constant 0.0 : f32
            %1 = arith.addf %acc, %bias : f32
            %2 = arith.maximumf %1, %zero : f32
            %3 = arith.addf %2, %residual : f32
            shapejit.yield %3 : f32
          }} -> {r}
          shapejit.yield %0 : {r}
        }}""",
        vector_bytes=vector_bytes,
    )


def linear_reference(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return torch.relu(x @ w.T + b) + r


def check_linear(kernel: CpuKernel, m: int, n: int, k: int, panel: int) -> None:
    x, w, b, r = torch.randn(m, k), torch.randn(n, k), torch.randn(n), torch.randn(m, n)
    [y] = kernel([x, pack(w, panel), b, r], m)
    reference = linear_reference(x.double(), w.double(), b.double(), r.double())
    assert_close(y, reference, linear_reference(x, w, b, r), terms=1.0)


@pytest.mark.parametrize(
    ("n", "k"), [(1, 1), (16, 8), (33, 500), (70, 40), (600, 17), (384, 384), (40, 0), (513, 800)]
)
@examples(12)
@given(m=ROWS)
def test_packed_weight(n: int, k: int, m: int) -> None:
    panel = HostTarget.host().panel
    check_linear(packed_linear(n, k, panel), m, n, k, panel)


@pytest.mark.parametrize("panel", [8, 16, 24, 32, 64])
@examples(6)
@given(m=ROWS)
def test_any_panel(panel: int, m: int) -> None:
    """Panels of other widths are read in place where vectors fit, else packed again."""
    check_linear(packed_linear(70, 45, panel), m, 70, 45, panel)


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("panel", [16, 32])
@examples(6)
@given(m=ROWS)
def test_vector_widths(vector_bytes: int, panel: int, m: int) -> None:
    """Also vectors that the CPU lacks, which LLVM splits."""
    check_linear(packed_linear(70, 45, panel, vector_bytes), m, 70, 45, panel)


def test_infinity_and_nan_stay_in_their_rows() -> None:
    x, w = torch.randn(9, 40), torch.randn(70, 40)
    x[2, 5], x[4, 0], x[8, 39] = torch.inf, torch.nan, -torch.inf
    zero = torch.zeros
    panel = HostTarget.host().panel
    [y] = packed_linear(70, 40, panel)([x, pack(w, panel), zero(70), zero(9, 70)], 9)
    torch.testing.assert_close(y, torch.relu(x @ w.T), equal_nan=True, rtol=1e-4, atol=1e-4)


@functools.cache
def gated_pair(n: int, k: int) -> CpuKernel:
    panel = HostTarget.host().panel
    x, y = tensor("f32", "s0", k), tensor("f32", "s0", n)
    w = tensor("f32", -(-n // panel), k, panel)
    at = access(3, f"d1 floordiv {panel}, d2, d1 mod {panel}")
    return CpuKernel(
        f"""
        shapejit.kernel @k symbols 1 (%x: {x}, %w: {w}, %v: {w}) {{
          %0 = shapejit.gemm over [s0, {n}, {k}] lhs(%x at {access(3, "d0, d2")} : {x})
              rhs(%w at {at} : {w}, %v at {at} : {w}) epilogue {{
          ^bb0(%gate: f32, %up: f32):
            %one = arith.constant 1.0 : f32
            %1 = arith.negf %gate : f32
            %2 = math.exp %1 : f32
            %3 = arith.addf %2, %one : f32
            %4 = arith.divf %gate, %3 : f32
            %5 = arith.mulf %4, %up : f32
            shapejit.yield %5 : f32
          }} -> {y}
          shapejit.yield %0 : {y}
        }}"""
    )


@pytest.mark.parametrize(("n", "k"), [(40, 24), (530, 800)])
@examples(8)
@given(m=ROWS)
def test_gated_pair(n: int, k: int, m: int) -> None:
    panel = HostTarget.host().panel
    x, w, v = torch.randn(m, k), torch.randn(n, k) / 9, torch.randn(n, k) / 9
    [y] = gated_pair(n, k)([x, pack(w, panel), pack(v, panel)], m)

    def model(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return torch.nn.functional.silu(x @ w.T) * (x @ v.T)

    assert_close(y, model(x.double(), w.double(), v.double()), model(x, w, v), terms=1.0)


# Any maps -----------------------------------------------------------------------------------------

LAYOUTS = {
    "plain": ("s0, s2", "d0, d2", "s2, s1", "d2, d1"),
    "transposed rhs": ("s0, s2", "d0, d2", "s1, s2", "d1, d2"),
    "transposed lhs": ("s2, s0", "d2, d0", "s2, s1", "d2, d1"),
    "both transposed": ("s2, s0", "d2, d0", "s1, s2", "d1, d2"),
    "row vector": ("s2", "d2", "s2, s1", "d2, d1"),
    "reversed k": ("s0, s2", "d0, s2 - d2 - 1", "s2, s1", "s2 - d2 - 1, d1"),
}


@functools.cache
def product(layout: str, element: str = "f32") -> CpuKernel:
    a_shape, a_at, b_shape, b_at = LAYOUTS[layout]
    a, b = tensor(element, *a_shape.split(", ")), tensor(element, *b_shape.split(", "))
    y = tensor(element, "s0", "s1")
    return CpuKernel(f"""
        shapejit.kernel @k symbols 3 (%a: {a}, %b: {b}) {{
          %0 = shapejit.gemm over [s0, s1, s2] lhs(%a at {access(3, a_at)} : {a})
              rhs(%b at {access(3, b_at)} : {b}) -> {y}
          shapejit.yield %0 : {y}
        }}""")


def operands(layout: str, m: int, n: int, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Operands as the kernel takes them, then as torch.mm does, in float64."""
    a_shape, _, b_shape, _ = LAYOUTS[layout]
    sizes = {"s0": m, "s1": n, "s2": k}
    a = torch.randint(-9, 9, [sizes[s] for s in a_shape.split(", ")]).double()
    b = torch.randint(-9, 9, [sizes[s] for s in b_shape.split(", ")]).double()
    left = a.expand(m, k) if a.ndim == 1 else a.T if a_shape == "s2, s0" else a
    return a, b, left, b.T if b_shape == "s1, s2" else b


@pytest.mark.parametrize("layout", LAYOUTS)
@examples(15)
@given(m=SIZES, n=SIZES, k=SIZES)
def test_layouts(layout: str, m: int, n: int, k: int) -> None:
    a, b, left, right = operands(layout, m, n, k)
    a, b, left, right = (value + 0.1 for value in (a, b, left, right))
    [y] = product(layout)([a.float(), b.float()], m, n, k)
    assert_close(
        y, left.float().double() @ right.float().double(), left.float() @ right.float(), terms=1.0
    )


@pytest.mark.parametrize("layout", ["plain", "transposed rhs"])
@pytest.mark.parametrize("element", ["f64", "i64", "i32", "i16", "i8"])
@examples(6)
@given(m=SMALL, n=SMALL, k=SMALL)
def test_element_types(layout: str, element: str, m: int, n: int, k: int) -> None:
    a, b, left, right = operands(layout, m, n, k)
    dtype = DTYPES[element]
    [y] = product(layout, element)([a.to(dtype), b.to(dtype)], m, n, k)
    assert torch.equal(y, (left @ right).to(torch.int64).to(dtype))


@pytest.mark.parametrize("layout", ["plain", "transposed rhs"])
@pytest.mark.parametrize("element", ["f16", "bf16"])
@examples(6)
@given(m=SMALL, n=SMALL, k=SMALL)
def test_half_types_sum_in_f32(layout: str, element: str, m: int, n: int, k: int) -> None:
    a, b, left, right = operands(layout, m, n, k)
    dtype = DTYPES[element]
    [y] = product(layout, element)([a.to(dtype), b.to(dtype)], m, n, k)
    assert torch.equal(y, (left @ right).to(dtype))


@functools.cache
def batched() -> CpuKernel:
    """Scores of attention: heads split from the last dim of q and k, the mask broadcast."""
    q, k = tensor("f32", "s0", "s1", 48), tensor("f32", "s0", "s2", 48)
    mask, y = tensor("f32", "s0", 1, 1, "s2"), tensor("f32", "s0", 4, "s1", "s2")
    return CpuKernel(f"""
        shapejit.kernel @k symbols 3 (%q: {q}, %k: {k}, %mask: {mask}) {{
          %0 = shapejit.gemm over [s0, 4, s1, s2, 12]
              lhs(%q at {access(5, "d0, d2, d1 * 12 + d4")} : {q})
              rhs(%k at {access(5, "d0, d3, d1 * 12 + d4")} : {k})
              extras(%mask at {access(4, "d0, 0, 0, d3")} : {mask}) epilogue {{
          ^bb0(%acc: f32, %m: f32):
            %1 = arith.addf %acc, %m : f32
            shapejit.yield %1 : f32
          }} -> {y}
          shapejit.yield %0 : {y}
        }}""")


@examples(20)
@given(b=st.integers(0, 3), m=SMALL, n=SMALL)
def test_batched_through_maps(b: int, m: int, n: int) -> None:
    q, k, mask = torch.randn(b, m, 48), torch.randn(b, n, 48), torch.randn(b, 1, 1, n)

    def model(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        q, k = (value.unflatten(-1, (4, 12)).transpose(1, 2) for value in (q, k))
        return q @ k.transpose(2, 3) + mask

    [y] = batched()([q, k, mask], b, m, n)
    assert_close(y, model(q.double(), k.double(), mask.double()), model(q, k, mask), terms=1.0)


@functools.cache
def broadcast_weight() -> CpuKernel:
    x, y = tensor("f32", "s0", "s1", 20), tensor("f32", "s0", "s1", 30)
    w = tensor("f32", 20, 30)
    return CpuKernel(f"""
        shapejit.kernel @k symbols 2 (%x: {x}, %w: {w}) {{
          %0 = shapejit.gemm over [s0, s1, 30, 20] lhs(%x at {access(4, "d0, d1, d3")} : {x})
              rhs(%w at {access(4, "d3, d2")} : {w}) -> {y}
          shapejit.yield %0 : {y}
        }}""")


@examples(10)
@given(b=st.integers(0, 4), m=SMALL)
def test_weight_broadcast_over_the_batch(b: int, m: int) -> None:
    x, w = torch.randn(b, m, 20), torch.randn(20, 30)
    [y] = broadcast_weight()([x, w], b, m)
    assert_close(y, x.double() @ w.double(), x @ w, terms=1.0)


@functools.cache
def transposed_batch() -> CpuKernel:
    """Batch and rows change places between lhs and result, with a bias by batch in the epilogue."""
    x, y = tensor("f32", "s1", "s0", 20), tensor("f32", "s0", "s1", 30)
    w, b = tensor("f32", 30, 20), tensor("f32", "s0")
    return CpuKernel(f"""
        shapejit.kernel @k symbols 2 (%x: {x}, %w: {w}, %b: {b}) {{
          %0 = shapejit.gemm over [s0, s1, 30, 20] lhs(%x at {access(4, "d1, d0, d3")} : {x})
              rhs(%w at {access(4, "d2, d3")} : {w})
              extras(%b at {access(3, "d0")} : {b}) epilogue {{
          ^bb0(%acc: f32, %bias: f32):
            %1 = arith.addf %acc, %bias : f32
            shapejit.yield %1 : f32
          }} -> {y}
          shapejit.yield %0 : {y}
        }}""")


@examples(15)
@given(b=st.integers(0, 9), m=SMALL)
def test_rows_gathered_from_the_batch(b: int, m: int) -> None:
    x, w, bias = torch.randn(m, b, 20), torch.randn(30, 20), torch.randn(b)

    def model(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        return x.transpose(0, 1) @ w.T + bias[:, None, None]

    [y] = transposed_batch()([x, w, bias], b, m)
    assert_close(y, model(x.double(), w.double(), bias.double()), model(x, w, bias), terms=1.0)


def test_result_of_another_type() -> None:
    """An epilogue may compare: the sums stay f32, the result is bool."""
    a, y = tensor("f32", "s0", 5), tensor("i1", "s0", 7)
    w = tensor("f32", 7, 5)
    kernel = CpuKernel(f"""
        shapejit.kernel @k symbols 1 (%a: {a}, %w: {w}) {{
          %0 = shapejit.gemm over [s0, 7, 5] lhs(%a at {access(3, "d0, d2")} : {a})
              rhs(%w at {access(3, "d1, d2")} : {w}) epilogue {{
          ^bb0(%acc: f32):
            %zero = arith.constant 0.0 : f32
            %1 = arith.cmpf ogt, %acc, %zero : f32
            shapejit.yield %1 : i1
          }} -> {y}
          shapejit.yield %0 : {y}
        }}""")
    x, weight = torch.randn(9, 5), torch.randn(7, 5)
    [result] = kernel([x, weight], 9)
    assert torch.equal(result, x @ weight.T > 0)


def test_operand_behind_a_view() -> None:
    x, v, y = tensor("f32", 4, "s0"), tensor("f32", "s0", 4), tensor("f32", "s0", 3)
    w = tensor("f32", 3, 4)
    kernel = CpuKernel(f"""
        shapejit.kernel @k symbols 1 (%x: {x}, %w: {w}) {{
          %0 = shapejit.view %x at {access(2, "d1, d0")} : {x} -> {v}
          %1 = shapejit.gemm over [s0, 3, 4] lhs(%0 at {access(3, "d0, d2")} : {v})
              rhs(%w at {access(3, "d1, d2")} : {w}) -> {y}
          shapejit.yield %1 : {y}
        }}""")
    a, weight = torch.randn(4, 6), torch.randn(3, 4)
    [result] = kernel([a, weight], 6)
    assert_close(result, a.T.double() @ weight.T.double(), terms=1.0)
