# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels of loops on the CPU against torch, at random sizes, 0 and 1 included."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unit.cpu_kernels import DTYPES, CpuKernel, access, assert_close, examples, tensor

SIZES = st.one_of(st.sampled_from([0, 1, 2, 7, 8, 31, 64, 65]), st.integers(0, 90))
FLOATS = ("f64", "f32", "bf16", "f16")
INTEGERS = ("i64", "i32", "i16", "i8")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def sample(element: str, *sizes: int) -> Tensor:
    """Random values; small integers for integer types."""
    dtype = DTYPES[element]
    if element == "i1":
        return torch.rand(sizes) > 0.5
    if dtype.is_floating_point:
        return torch.randn(sizes, dtype=torch.float64).to(dtype)
    return torch.randint(-5, 6, sizes, dtype=dtype)


# Pointwise ----------------------------------------------------------------------------------------


@functools.cache
def unary(element: str, op: str) -> CpuKernel:
    x = tensor(element, "s0", "s1")
    return CpuKernel(f"""
        shapejit.kernel @k symbols 2 (%x: {x}) {{
          %0 = shapejit.loop over [s0, s1] ins(%x at {access(2, "d0, d1")} : {x})
              outs({access(2, "d0, d1")} : {x}) {{
          ^bb0(%v: {element}):
            %1 = {op}
            shapejit.yield %1 : {element}
          }}
          shapejit.yield %0 : {x}
        }}""")


@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("op", ["exp", "tanh", "erf"])
@examples(5)
@given(m=SIZES, n=SIZES)
def test_math(element: str, op: str, m: int, n: int) -> None:
    x = sample(element, m, n) * 3
    [y] = unary(element, f"math.{op} %v : {element}")([x], m, n)
    function: Callable[[Tensor], Tensor] = getattr(torch, op)
    assert_close(y, function(x.double()), function(x))


@pytest.mark.parametrize("element", [*FLOATS, *INTEGERS])
@examples(5)
@given(m=SIZES, n=SIZES)
def test_addition(element: str, m: int, n: int) -> None:
    suffix = "f" if element in FLOATS else "i"
    x = sample(element, m, n)
    [y] = unary(element, f"arith.add{suffix} %v, %v : {element}")([x], m, n)
    assert torch.equal(y, x + x)


@examples(5)
@given(m=SIZES, n=SIZES)
def test_bools_are_bytes(m: int, n: int) -> None:
    x = sample("i1", m, n)
    [y] = unary("i1", "arith.andi %v, %v : i1")([x], m, n)
    assert torch.equal(y, x)


def test_bf16_rounds_to_even_and_keeps_nan() -> None:
    x, y = tensor("f32", "s0"), tensor("bf16", "s0")
    kernel = CpuKernel(f"""
        shapejit.kernel @k symbols 1 (%x: {x}) {{
          %0 = shapejit.loop over [s0] ins(%x at {access(1, "d0")} : {x})
              outs({access(1, "d0")} : {y}) {{
          ^bb0(%v: f32):
            %1 = arith.truncf %v : f32 to bf16
            shapejit.yield %1 : bf16
          }}
          shapejit.yield %0 : {y}
        }}""")
    bits = torch.randint(-(2**31), 2**31, (100_000,), dtype=torch.int32)
    values = torch.cat([bits.view(torch.float32), torch.tensor([torch.inf, -torch.inf, -0.0])])
    [got] = kernel([values], len(values))
    expected = values.to(torch.bfloat16)
    torch.testing.assert_close(got, expected, equal_nan=True, rtol=0, atol=0)


@functools.cache
def mixed_pointwise() -> CpuKernel:
    """Broadcast, transpose, index, size, select; two results of different types and layouts."""
    x, row, scalar = tensor("f32", "s0", "s1"), tensor("i32", "s1"), tensor("f32")
    y, z = tensor("f32", "s0", "s1"), tensor("i1", "s1", "s0")
    t = tensor("f32", "s1", "s0")
    return CpuKernel(f"""
        shapejit.kernel @k symbols 2 (%x: {x}, %t: {t}, %r: {row}, %s: {scalar}) {{
          %0:2 = shapejit.loop over [s0, s1]
              ins(%x at {access(2, "d0, d1")} : {x}, %t at {access(2, "d1, d0")} : {t},
                  %r at {access(2, "d1")} : {row}, %s at {access(2, "")} : {scalar})
              outs({access(2, "d0, d1")} : {y}, {access(2, "d1, d0")} : {z}) {{
          ^bb0(%a: f32, %b: f32, %c: i32, %e: f32):
            %i = shapejit.index 0
            %n = shapejit.size affine_map<()[s0, s1] -> (s0 * s1)>
            %1 = arith.index_cast %i : index to i32
            %2 = arith.index_cast %n : index to i32
            %3 = arith.addi %1, %c : i32
            %4 = arith.addi %2, %3 : i32
            %5 = arith.sitofp %4 : i32 to f32
            %6 = arith.addf %a, %b : f32
            %7 = arith.mulf %6, %e : f32
            %8 = arith.addf %7, %5 : f32
            %9 = arith.cmpf ogt, %a, %b : f32
            shapejit.yield %8, %9 : f32, i1
          }}
          shapejit.yield %0#0, %0#1 : {y}, {z}
        }}""")


@examples(15)
@given(m=SIZES, n=SIZES)
def test_mixed_pointwise(m: int, n: int) -> None:
    x, t, row, scalar = sample("f32", m, n), sample("f32", n, m), sample("i32", n), sample("f32")
    y, z = mixed_pointwise()([x, t, row, scalar], m, n)
    numbers = torch.arange(m)[:, None] + row + m * n
    assert_close(y, (x + t.T).double() * scalar.double() + numbers, terms=1.0)
    assert torch.equal(z, (x > t.T).T)


def test_loop_without_inputs() -> None:
    y = tensor("i64", "s0", "s1")
    kernel = CpuKernel(f"""
        shapejit.kernel @k symbols 2 () {{
          %0 = shapejit.loop over [s0, s1] outs({access(2, "d0, d1")} : {y}) {{
            %i = shapejit.index 0
            %j = shapejit.index 1
            %1 = arith.addi %i, %j : index
            %2 = arith.index_cast %1 : index to i64
            shapejit.yield %2 : i64
          }}
          shapejit.yield %0 : {y}
        }}""")
    [got] = kernel([], 5, 7)
    assert torch.equal(got, torch.arange(5)[:, None] + torch.arange(7))


@functools.cache
def reshape_split() -> CpuKernel:
    """A leftover view: [s0, s1 * 6] read as heads first, [s0, 2, s1, 3]."""
    x, y = tensor("f32", "s0", "s1 * 6"), tensor("f32", "s0", 2, "s1", 3)
    return CpuKernel(f"""
        shapejit.kernel @k symbols 2 (%x: {x}) {{
          %0 = shapejit.view %x at {access(4, "d0, d2 * 6 + d1 * 3 + d3")} : {x} -> {y}
          shapejit.yield %0 : {y}
        }}""")


@examples(8)
@given(m=SIZES, n=SIZES)
def test_leftover_view(m: int, n: int) -> None:
    x = sample("f32", m, n * 6)
    [y] = reshape_split()([x], m, n)
    assert torch.equal(y, x.view(m, n, 2, 3).transpose(1, 2))


@functools.cache
def joined_columns() -> CpuKernel:
    """Columns [0, 5) of one tensor, then 8 of another, then what is left of the first one again."""
    x, y, z = tensor("f32", "s0", 10), tensor("f32", "s0", 8), tensor("f32", "s0", 18)
    return CpuKernel(f"""
        shapejit.kernel @k symbols 1 (%x: {x}, %y: {y}) {{
          %0 = shapejit.loop over [s0, 18] outs({access(2, "d0, d1")} : {z}) {{
            %i = shapejit.index 0
            %j = shapejit.index 1
            %c0 = arith.constant 0 : index
            %c4 = arith.constant 4 : index
            %c5 = arith.constant 5 : index
            %c7 = arith.constant 7 : index
            %c8 = arith.constant 8 : index
            %c13 = arith.constant 13 : index
            %c20 = arith.constant 20 : index
            %1 = arith.minsi %j, %c4 : index
            %2 = tensor.extract %x[%i, %1] : {x}
            %3 = arith.subi %j, %c5 : index
            %4 = arith.minsi %3, %c7 : index
            %5 = arith.maxsi %4, %c0 : index
            %6 = tensor.extract %y[%i, %5] : {y}
            %7 = arith.subi %j, %c8 : index
            %8 = arith.maxsi %7, %c5 : index
            %9 = tensor.extract %x[%i, %8] : {x}
            %10 = arith.cmpi slt, %j, %c13 : index
            %11 = arith.select %10, %6, %9 : f32
            %12 = arith.cmpi slt, %j, %c5 : index
            %13 = arith.select %12, %2, %11 : f32
            %14 = arith.cmpi slt, %j, %c20 : index
            %15 = arith.select %14, %13, %2 : f32
            shapejit.yield %15 : f32
          }}
          shapejit.yield %0 : {z}
        }}""")


@examples(6)
@given(m=SIZES)
def test_stretches_of_the_innermost_dim(m: int) -> None:
    x, y = sample("f32", m, 10), sample("f32", m, 8)
    [z] = joined_columns()([x, y], m)
    assert torch.equal(z, torch.cat([x[:, :5], y, x[:, 5:]], 1))


def test_division_by_an_empty_size() -> None:
    """Index arithmetic that leaves its loop must not divide by a size that is 0."""
    x, y = tensor("f32", "s0", "s1"), tensor("f32", "s0 * s1")
    kernel = CpuKernel(f"""
        shapejit.kernel @k symbols 2 (%x: {x}) {{
          %0 = shapejit.loop over [s0 * s1]
              ins(%x at {access(1, "d0 floordiv s1, d0 mod s1")} : {x})
              outs({access(1, "d0")} : {y}) {{
          ^bb0(%v: f32):
            shapejit.yield %v : f32
          }}
          shapejit.yield %0 : {y}
        }}""")
    for m, n in ((0, 0), (3, 0), (0, 3), (4, 5)):
        x_ = sample("f32", m, n)
        [got] = kernel([x_], m, n)
        assert torch.equal(got, x_.flatten())


# Reductions ---------------------------------------------------------------------------------------

REDUCED = {
    "last": ("d0, d1", "s0, s1", (2,)),
    "first": ("d1, d2", "s1, s2", (0,)),
    "middle": ("d0, d2", "s0, s2", (1,)),
    "ends": ("d1", "s1", (0, 2)),
    "last two": ("d0", "s0", (1, 2)),
    "all": ("", "", (0, 1, 2)),
}


@functools.cache
def reduction(element: str, kind: str, where: str) -> CpuKernel:
    indices, sizes, _ = REDUCED[where]
    x = tensor(element, "s0", "s1", "s2")
    y = tensor(element, *(sizes.split(", ") if sizes else []))
    return CpuKernel(f"""
        shapejit.kernel @k symbols 3 (%x: {x}) {{
          %0 = shapejit.loop over [s0, s1, s2] ins(%x at {access(3, "d0, d1, d2")} : {x})
              outs({kind} {access(3, indices)} : {y}) {{
          ^bb0(%v: {element}):
            shapejit.yield %v : {element}
          }}
          shapejit.yield %0 : {y}
        }}""")


def reduced_by_torch(kind: str, x: Tensor, dims: tuple[int, ...]) -> Tensor:
    for dim in sorted(dims, reverse=True):
        match kind:
            case "add":
                x = x.sum(dim, dtype=x.dtype)
            case "mul":
                x = x.prod(dim, dtype=x.dtype)
            case "max":
                x = x.amax(dim)
            case "min":
                x = x.amin(dim)
            case "and":
                x = x.all(dim)
            case "or":
                x = x.any(dim)
    return x


@pytest.mark.parametrize("where", REDUCED)
@pytest.mark.parametrize("kind", ["add", "max"])
@examples(8)
@given(s=st.tuples(SIZES, st.integers(0, 20), SIZES))
def test_reduced_dims(kind: str, where: str, s: tuple[int, int, int]) -> None:
    # Positive, so that sums do not cancel.
    x, dims = torch.rand(s), REDUCED[where][2]
    [y] = reduction("f32", kind, where)([x], *s)
    if kind == "max" and any(s[dim] == 0 for dim in dims):
        assert (y == -torch.inf).all()
    else:
        assert_close(y, reduced_by_torch(kind, x.double(), dims), reduced_by_torch(kind, x, dims))


@pytest.mark.parametrize("where", ["last", "first"])
@pytest.mark.parametrize("kind", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("element", ["f64", "bf16", "i64", "i8"])
def test_reduced_types(element: str, kind: str, where: str) -> None:
    x, dims = sample(element, 3, 5, 9), REDUCED[where][2]
    [y] = reduction(element, kind, where)([x], 3, 5, 9)
    if element in INTEGERS:
        assert torch.equal(y, reduced_by_torch(kind, x, dims))
    else:
        double = reduced_by_torch(kind, x.double(), dims)
        own = reduced_by_torch(kind, x.float(), dims).to(x.dtype)
        assert_close(y, double, own, terms=1.0)


@pytest.mark.parametrize("where", ["last", "first", "all"])
@pytest.mark.parametrize("kind", ["and", "or"])
@examples(6)
@given(s=st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)))
def test_bool_reductions(kind: str, where: str, s: tuple[int, int, int]) -> None:
    x, dims = sample("i1", *s), REDUCED[where][2]
    [y] = reduction("i1", kind, where)([x], *s)
    assert torch.equal(y, reduced_by_torch(kind, x, dims))


@pytest.mark.parametrize(
    ("element", "kind", "value"),
    [
        ("f32", "add", 0.0),
        ("f32", "mul", 1.0),
        ("f32", "max", -torch.inf),
        ("f32", "min", torch.inf),
        ("i32", "add", 0),
        ("i32", "mul", 1),
        ("i32", "max", -(2**31)),
        ("i32", "min", 2**31 - 1),
        ("i32", "and", -1),
        ("i32", "or", 0),
        ("i1", "and", True),
        ("i1", "or", False),
    ],
)
@pytest.mark.parametrize("where", ["last", "first"])
def test_empty_reductions_are_identities(element: str, kind: str, value: float, where: str) -> None:
    sizes = (4, 3, 0) if where == "last" else (0, 4, 3)
    [y] = reduction(element, kind, where)([sample(element, *sizes)], *sizes)
    assert torch.equal(y, torch.full((4, 3), value, dtype=DTYPES[element]))


@pytest.mark.parametrize("where", ["last", "first"])
@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("position", [0, 1, 40, 88])
def test_extrema_propagate_nan(kind: str, where: str, position: int) -> None:
    x = torch.zeros(89, 2, 89)
    x[position, :, position] = torch.nan
    [y] = reduction("f32", kind, where)([x], 89, 2, 89)
    torch.testing.assert_close(y, reduced_by_torch(kind, x, REDUCED[where][2]), equal_nan=True)


def test_long_sums_stay_accurate() -> None:
    x = torch.rand(1, 1, 3_000_017)
    [y] = reduction("f32", "add", "last")([x], 1, 1, x.numel())
    assert_close(y, x.double().sum(-1), x.sum(-1))


def test_results_reduced_in_different_ways() -> None:
    """One loop with a pointwise result, a row sum and a column maximum."""
    x, rows, columns = tensor("f32", "s0", "s1"), tensor("f32", "s0"), tensor("f32", "s1")
    kernel = CpuKernel(f"""
        shapejit.kernel @k symbols 2 (%x: {x}) {{
          %0:3 = shapejit.loop over [s0, s1] ins(%x at {access(2, "d0, d1")} : {x})
              outs({access(2, "d0, d1")} : {x}, add {access(2, "d0")} : {rows},
                   max {access(2, "d1")} : {columns}) {{
          ^bb0(%v: f32):
            %1 = arith.mulf %v, %v : f32
            shapejit.yield %1, %v, %v : f32, f32, f32
          }}
          shapejit.yield %0#0, %0#1, %0#2 : {x}, {rows}, {columns}
        }}""")
    for m, n in ((1, 1), (7, 90), (70, 3)):
        value = sample("f32", m, n)
        square, total, greatest = kernel([value], m, n)
        assert torch.equal(square, value * value)
        assert_close(total, value.double().sum(1), value.sum(1), terms=1.0)
        assert torch.equal(greatest, value.amax(0))


# Clusters -----------------------------------------------------------------------------------------

ROW, FULL = access(2, "d0"), access(2, "d0, d1")


@functools.cache
def softmax(element: str = "f32", columns: str = "s1", outputs: str = "y") -> CpuKernel:
    """Softmax over the last dim; ``outputs`` may also name e (the exponentials) and m (maxima)."""
    size = int(columns) if columns.isdigit() else columns
    x, row = tensor(element, "s0", size), tensor(element, "s0")
    types = {"y": x, "e": x, "m": row}
    yields = ", ".join(f"%{name}" for name in outputs)
    yield_types = ", ".join(types[name] for name in outputs)
    return CpuKernel(f"""
        shapejit.kernel @k symbols 2 (%x: {x}) {{
          %m = shapejit.loop over [s0, {columns}] ins(%x at {FULL} : {x}) outs(max {ROW} : {row}) {{
          ^bb0(%v: {element}):
            shapejit.yield %v : {element}
          }}
          %e = shapejit.loop over [s0, {columns}] ins(%x at {FULL} : {x}, %m at {ROW} : {row})
              outs({FULL} : {x}) {{
          ^bb0(%v: {element}, %top: {element}):
            %1 = arith.subf %v, %top : {element}
            %2 = math.exp %1 : {element}
            shapejit.yield %2 : {element}
          }}
          %s = shapejit.loop over [s0, {columns}] ins(%e at {FULL} : {x}) outs(add {ROW} : {row}) {{
          ^bb0(%v: {element}):
            shapejit.yield %v : {element}
          }}
          %y = shapejit.loop over [s0, {columns}] ins(%e at {FULL} : {x}, %s at {ROW} : {row})
              outs({FULL} : {x}) {{
          ^bb0(%v: {element}, %total: {element}):
            %1 = arith.divf %v, %total : {element}
            shapejit.yield %1 : {element}
          }}
          shapejit.yield {yields} : {yield_types}
        }}""")


@pytest.mark.parametrize("element", FLOATS)
@examples(10)
@given(m=SIZES, n=SIZES)
def test_softmax(element: str, m: int, n: int) -> None:
    x = sample(element, m, n) * 5
    [y] = softmax(element)([x], m, n)
    assert_close(y, torch.softmax(x.double(), -1), torch.softmax(x, -1))


@pytest.mark.parametrize("outputs", ["ye", "ey", "my", "yem", "yy"])
@examples(5)
@given(m=SIZES, n=SIZES)
def test_intermediate_values_as_results(outputs: str, m: int, n: int) -> None:
    x = sample("f32", m, n) * 5
    if n == 0:
        return
    top = x.amax(1, keepdim=True)
    exponentials = torch.exp(x.double() - top)
    expected = {
        "m": top[:, 0].double(),
        "e": exponentials,
        "y": exponentials / exponentials.sum(1, keepdim=True),
    }
    for name, got in zip(outputs, softmax(outputs=outputs)([x], m, n), strict=True):
        assert_close(got, expected[name])


def test_softmax_over_a_known_size() -> None:
    x = sample("f32", 9, 37)
    [y] = softmax(columns="37")([x], 9, 37)
    assert_close(y, torch.softmax(x.double(), -1))


def test_softmax_keeps_nan_and_infinity_apart() -> None:
    x = sample("f32", 5, 40)
    x[1, 3], x[2, 0], x[3] = torch.nan, -torch.inf, -torch.inf
    [y] = softmax()([x], 5, 40)
    torch.testing.assert_close(y, torch.softmax(x, -1), equal_nan=True)


@functools.cache
def embedding_norm(width: int, half: bool) -> CpuKernel:
    """Token and position embeddings summed, then layer norm with weight and bias."""
    element = "bf16" if half else "f32"
    ids, words, positions = (
        tensor("i64", "s0", "s1"),
        tensor("f32", 50, width),
        tensor("f32", 99, width),
    )
    h, row, vector = (
        tensor("f32", "s0", "s1", width),
        tensor("f32", "s0", "s1"),
        tensor("f32", width),
    )
    y = tensor(element, "s0", "s1", width)
    full, rows = access(3, "d0, d1, d2"), access(3, "d0, d1")
    space = f"[s0, s1, {width}]"
    convert = "arith.truncf %o : f32 to bf16" if half else "arith.addf %o, %zero : f32"
    return CpuKernel(f"""
        shapejit.kernel @k symbols 2 (%ids: {ids}, %words: {words}, %positions: {positions},
                                      %weight: {vector}, %bias: {vector}) {{
          %h = shapejit.loop over {space} ins(%ids at {rows} : {ids}) outs({full} : {h}) {{
          ^bb0(%id: i64):
            %j = shapejit.index 2
            %p = shapejit.index 1
            %w = arith.index_cast %id : i64 to index
            %1 = tensor.extract %words[%w, %j] : {words}
            %2 = tensor.extract %positions[%p, %j] : {positions}
            %3 = arith.addf %1, %2 : f32
            shapejit.yield %3 : f32
          }}
          %s = shapejit.loop over {space} ins(%h at {full} : {h}) outs(add {rows} : {row}) {{
          ^bb0(%v: f32):
            shapejit.yield %v : f32
          }}
          %mean = shapejit.loop over [s0, s1] ins(%s at {access(2, "d0, d1")} : {row})
              outs({access(2, "d0, d1")} : {row}) {{
          ^bb0(%v: f32):
            %c = arith.constant {1 / width} : f32
            %1 = arith.mulf %v, %c : f32
            shapejit.yield %1 : f32
          }}
          %var = shapejit.loop over {space} ins(%h at {full} : {h}, %mean at {rows} : {row})
              outs(add {rows} : {row}) {{
          ^bb0(%v: f32, %m: f32):
            %1 = arith.subf %v, %m : f32
            %2 = arith.mulf %1, %1 : f32
            shapejit.yield %2 : f32
          }}
          %y = shapejit.loop over {space}
              ins(%h at {full} : {h}, %mean at {rows} : {row}, %var at {rows} : {row},
                  %weight at {access(3, "d2")} : {vector}, %bias at {access(3, "d2")} : {vector})
              outs({full} : {y}) {{
          ^bb0(%v: f32, %m: f32, %q: f32, %w: f32, %b: f32):
            %c = arith.constant {1 / width} : f32
            %eps = arith.constant 1.0e-5 : f32
            %zero = arith.constant 0.0 : f32
            %1 = arith.subf %v, %m : f32
            %2 = arith.mulf %q, %c : f32
            %3 = arith.addf %2, %eps : f32
            %4 = math.rsqrt %3 : f32
            %5 = arith.mulf %1, %4 : f32
            %6 = arith.mulf %5, %w : f32
            %o = arith.addf %6, %b : f32
            %r = {convert}
            shapejit.yield %r : {element}
          }}
          shapejit.yield %y : {y}
        }}""")


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("width", [1, 13, 384])
@examples(6)
@given(b=st.integers(0, 4), s=SIZES)
def test_embedding_and_layer_norm(width: int, half: bool, b: int, s: int) -> None:
    ids = torch.randint(0, 50, (b, s))
    words, positions = torch.randn(50, width), torch.randn(99, width)
    weight, bias = torch.randn(width), torch.randn(width)

    def model(words: Tensor, positions: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        h = words[ids] + positions[:s]
        return torch.nn.functional.layer_norm(h, (width,), weight, bias)

    tensors = (words, positions, weight, bias)
    [y] = embedding_norm(width, half)([ids, *tensors], b, s)
    own = model(*tensors).to(y.dtype)
    assert_close(y, model(*(value.double() for value in tensors)), own)


@functools.cache
def rotated_sum() -> CpuKernel:
    """A costly value read at its own column and at another one, by two passes and a result."""
    x, row = tensor("f32", "s0", "s1"), tensor("f32", "s0")
    mirrored = access(2, "d0, s1 - d1 - 1")
    return CpuKernel(f"""
        shapejit.kernel @k symbols 2 (%x: {x}) {{
          %e = shapejit.loop over [s0, s1] ins(%x at {FULL} : {x}) outs({FULL} : {x}) {{
          ^bb0(%v: f32):
            %1 = math.tanh %v : f32
            shapejit.yield %1 : f32
          }}
          %s = shapejit.loop over [s0, s1] ins(%e at {FULL} : {x}, %e at {mirrored} : {x})
              outs(add {ROW} : {row}) {{
          ^bb0(%v: f32, %w: f32):
            %1 = arith.mulf %v, %w : f32
            shapejit.yield %1 : f32
          }}
          %y = shapejit.loop over [s0, s1] ins(%e at {mirrored} : {x}, %s at {ROW} : {row})
              outs({FULL} : {x}) {{
          ^bb0(%v: f32, %total: f32):
            %1 = arith.addf %v, %total : f32
            shapejit.yield %1 : f32
          }}
          shapejit.yield %y, %e : {x}, {x}
        }}""")


@examples(8)
@given(m=SIZES, n=SIZES)
def test_value_read_at_other_columns(m: int, n: int) -> None:
    x = sample("f32", m, n)
    y, e = rotated_sum()([x], m, n)
    value = torch.tanh(x.double())
    assert_close(e, value)
    assert_close(y, value.flip(1) + (value * value.flip(1)).sum(1, keepdim=True), terms=1.0)


@functools.cache
def column_statistics() -> CpuKernel:
    """Loops that are no row cluster: the mean over the first dim, subtracted."""
    x, column = tensor("f32", "s0", 70), tensor("f32", 70)
    return CpuKernel(f"""
        shapejit.kernel @k symbols 1 (%x: {x}) {{
          %s = shapejit.loop over [s0, 70] ins(%x at {FULL} : {x})
              outs(add {access(2, "d1")} : {column}) {{
          ^bb0(%v: f32):
            shapejit.yield %v : f32
          }}
          %y = shapejit.loop over [s0, 70]
              ins(%x at {FULL} : {x}, %s at {access(2, "d1")} : {column})
              outs({FULL} : {x}) {{
          ^bb0(%v: f32, %total: f32):
            %n = shapejit.size affine_map<()[s0] -> (s0)>
            %1 = arith.index_cast %n : index to i64
            %2 = arith.sitofp %1 : i64 to f32
            %3 = arith.divf %total, %2 : f32
            %4 = arith.subf %v, %3 : f32
            shapejit.yield %4 : f32
          }}
          shapejit.yield %y : {x}
        }}""")


@examples(8)
@given(m=SIZES)
def test_column_statistics(m: int) -> None:
    x = sample("f32", m, 70)
    [y] = column_statistics()([x], m)
    assert_close(y, x.double() - x.double().mean(0), x - x.mean(0), terms=1.0)
