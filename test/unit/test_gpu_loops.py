# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels of loops on a simulated GPU against torch, at random sizes, 0 and 1 included."""

from __future__ import annotations

import functools

import mlir.ir as ir
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from reference.hopper.memory import SimulationError
from shapejit import ir as sir
from shapejit.passes.gpu_loops.evaluate import Evaluator
from shapejit.passes.gpu_loops.phases import Points, phases
from shapejit.passes.gpu_loops.points import visit_order
from shapejit.passes.gpu_loops.problem import loop_problem
from unit import gpu_loop_samples as samples
from unit.cpu_kernels import DTYPES, access, assert_close, examples, tensor
from unit.gpu_loop_samples import FLOATS, Sample, assert_near, values
from unit.simulated_loops import GpuKernel

SIZES = st.one_of(st.sampled_from([0, 1, 2, 7, 8, 31, 64, 65]), st.integers(0, 90))
INTEGERS = ("i64", "i32", "i16", "i8")


@functools.cache
def lowered(sample: Sample, variant: str | None = None, block: bool = False) -> GpuKernel:
    return GpuKernel(sample.text, variant, block=block, programmatic=block)


def check(element: str, sample: Sample, *symbols: int, variant: str | None = None) -> None:
    """Runs a sample in both forms, which must agree to the bit."""
    inputs = sample.inputs(*symbols)
    by_value = lowered(sample, variant)(inputs, *symbols)
    in_block = lowered(sample, variant, True)(inputs, *symbols, seed=1)
    for one, other in zip(by_value, in_block, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    assert_near(element, by_value, sample.expected(*inputs))


layer_norm = functools.cache(samples.layer_norm)
softmax = functools.cache(samples.softmax)
pointwise = functools.cache(samples.pointwise)
column_sum = functools.cache(samples.column_sum)
embedding = functools.cache(samples.embedding)


# Points -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("element", FLOATS)
@examples(6)
@given(n=st.one_of(SIZES, st.integers(2040, 2060)))
def test_points_of_one_dim(element: str, n: int) -> None:
    """Vectors, and what is left one by one."""
    check(element, pointwise(element), n, 0)


@pytest.mark.parametrize("element", ["bf16", "f32"])
@examples(6)
@given(m=SIZES, n=SIZES)
def test_points_of_two_dims(element: str, m: int, n: int) -> None:
    check(element, pointwise(element, "gelu", rank=2), m, n)


@pytest.mark.parametrize("shifts", [(2, 0, 0), (0, 6, 0), (0, 0, 2), (8, 8, 8), (16, 16, 16)])
def test_misaligned_addresses(shifts: tuple[int, ...]) -> None:
    sample = pointwise("bf16")
    inputs = sample.inputs(777, 0)
    [got] = lowered(sample)(inputs, 777, 0, shifts=shifts)
    assert_near("bf16", [got], sample.expected(*inputs))


def test_addresses_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the question, vectors of a misaligned tensor are an error on the hardware."""
    from shapejit.passes.gpu_loops import emission
    from shapejit.passes.nvgpu.builder import constant, integer

    monkeypatch.setattr(emission, "are_aligned", lambda *_: constant(1, integer(1)))
    sample = pointwise("bf16")
    with pytest.raises(SimulationError, match="misaligned"):
        GpuKernel(sample.text)(sample.inputs(777, 0), 777, 0, shifts=(2, 0, 0))


@pytest.mark.parametrize("element", FLOATS)
@examples(4)
@given(b=st.integers(0, 4), s=st.integers(0, 9))
def test_gathered_rows(element: str, b: int, s: int) -> None:
    check(element, embedding(element), b, s)


def test_gathered_rows_are_read_in_vectors() -> None:
    """8 elements of bf16 in one load, from each table; the index once."""
    text = str(lowered(embedding("bf16"))._gpu_module)
    _, vectors, _ = text.split("scf.for")
    assert vectors.count("ld.global.v4.b32") == 2
    assert vectors.count("ld.global.b64") == 1


@functools.cache
def concatenation(outer: bool) -> GpuKernel:
    """Two matrices, one below the other or side by side: each element reads both, within limits."""
    dim = 0 if outer else 1
    one = tensor("bf16", "s0", 512) if outer else tensor("bf16", 512, "s0")
    two = tensor("bf16", "s1", 512) if outer else tensor("bf16", 512, "s1")
    sizes = ("s0 + s1", 512) if outer else (512, "s0 + s1")
    result = tensor("bf16", *sizes)
    at = "%{0}, %j" if outer else "%j, %{0}"
    return GpuKernel(f"""
        shapejit.kernel @k symbols 2 (%x: {one}, %y: {two}) {{
          %0 = shapejit.loop over [{sizes[0]}, {sizes[1]}] outs({access(2, "d0, d1")} : {result}) {{
            %i = shapejit.index {dim}
            %j = shapejit.index {1 - dim}
            %zero = arith.constant 0 : index
            %one = arith.constant 1 : index
            %m = shapejit.size affine_map<()[s0, s1] -> (s0)>
            %n = shapejit.size affine_map<()[s0, s1] -> (s1)>
            %m1 = arith.subi %m, %one : index
            %n1 = arith.subi %n, %one : index
            %a = arith.minsi %i, %m1 : index
            %p = arith.maxsi %a, %zero : index
            %b = arith.subi %i, %m : index
            %c = arith.minsi %b, %n1 : index
            %q = arith.maxsi %c, %zero : index
            %v = tensor.extract %x[{at.format("p")}] : {one}
            %w = tensor.extract %y[{at.format("q")}] : {two}
            %first = arith.cmpi slt, %i, %m : index
            %r = arith.select %first, %v, %w : bf16
            shapejit.yield %r : bf16
          }}
          shapejit.yield %0 : {result}
        }}""")


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("sizes", [(4, 3), (0, 3), (3, 0), (0, 0), (1, 8)])
def test_concatenation_with_empty_tensors(outer: bool, sizes: tuple[int, int]) -> None:
    """Of an empty one nothing may be read, whatever the index is limited to."""
    shapes = [(size, 512) if outer else (512, size) for size in sizes]
    x, y = (values("bf16", *shape, seed=i) for i, shape in enumerate(shapes))
    [z] = concatenation(outer)([x, y], *sizes)
    assert torch.equal(z, torch.cat([x, y], 0 if outer else 1))


@functools.cache
def mixed_pointwise() -> GpuKernel:
    """Broadcast, transpose, index, size, select; two results of different types and layouts."""
    x, row, scalar = tensor("f32", "s0", "s1"), tensor("i32", "s1"), tensor("f32")
    y, z = tensor("f32", "s0", "s1"), tensor("i1", "s1", "s0")
    t = tensor("f32", "s1", "s0")
    return GpuKernel(f"""
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


@examples(8)
@given(m=SIZES, n=SIZES)
def test_mixed_pointwise(m: int, n: int) -> None:
    x, t = values("f32", m, n), values("f32", n, m, seed=1)
    row, scalar = values("i32", n), values("f32")
    y, z = mixed_pointwise()([x, t, row, scalar], m, n)
    numbers = torch.arange(m)[:, None] + row + m * n
    assert_close(y, (x + t.T).double() * scalar.double() + numbers, terms=1.0)
    assert torch.equal(z, (x > t.T).T)


@pytest.mark.parametrize("variant", ["loops_v4_w1_k0_t64_c2", "loops_v1_w1_k0_t32_c1_wide"])
def test_other_schedules_of_points(variant: str) -> None:
    sample = pointwise("f16", rank=2)
    for m, n in ((3, 8), (5, 7), (0, 4), (4, 0)):
        check("f16", sample, m, n, variant=variant)


def test_constants_and_indices_alone() -> None:
    """No inputs at all; an index of each dim."""
    y = tensor("i64", "s0", "s1")
    kernel = GpuKernel(f"""
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


def test_scalar_space() -> None:
    """A space of no dims has one element, whatever the sizes."""
    x = tensor("f32")
    kernel = GpuKernel(f"""
        shapejit.kernel @k symbols 0 (%x: {x}) {{
          %0 = shapejit.loop over [] ins(%x at {access(0, "")} : {x}) outs({access(0, "")} : {x}) {{
          ^bb0(%v: f32):
            %1 = arith.addf %v, %v : f32
            shapejit.yield %1 : f32
          }}
          shapejit.yield %0 : {x}
        }}""")
    [got] = kernel([torch.tensor(1.5)])
    assert got.item() == 3.0


def test_division_by_an_empty_size() -> None:
    """Index arithmetic that leaves its loop must not divide by a size that is 0."""
    x, y = tensor("f32", "s0", "s1"), tensor("f32", "s0 * s1")
    kernel = GpuKernel(f"""
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
        x_ = values("f32", m, n)
        [got] = kernel([x_], m, n)
        assert torch.equal(got, x_.flatten())


@functools.cache
def leftover_view() -> GpuKernel:
    """[s0, s1 * 6] read as heads first, [s0, 2, s1, 3]."""
    x, y = tensor("f32", "s0", "s1 * 6"), tensor("f32", "s0", 2, "s1", 3)
    return GpuKernel(f"""
        shapejit.kernel @k symbols 2 (%x: {x}) {{
          %0 = shapejit.view %x at {access(4, "d0, d2 * 6 + d1 * 3 + d3")} : {x} -> {y}
          shapejit.yield %0 : {y}
        }}""")


@examples(4)
@given(m=st.integers(0, 9), n=st.integers(0, 20))
def test_leftover_view(m: int, n: int) -> None:
    x = values("f32", m, n * 6)
    [y] = leftover_view()([x], m, n)
    assert torch.equal(y, x.view(m, n, 2, 3).transpose(1, 2))


def transposition(element: str) -> str:
    """[s0, s1, 3] to [s1, 3, s0]."""
    x, y = tensor(element, "s0", "s1", 3), tensor(element, "s1", 3, "s0")
    return f"""
        shapejit.kernel @k symbols 2 (%x: {x}) {{
          %0 = shapejit.view %x at {access(3, "d2, d0, d1")} : {x} -> {y}
          shapejit.yield %0 : {y}
        }}"""


@functools.cache
def transposed(element: str) -> GpuKernel:
    return GpuKernel(transposition(element))


@pytest.mark.parametrize("element", ["bf16", "i64"])
@examples(6)
@given(m=SIZES, n=st.integers(0, 20))
def test_transposition(element: str, m: int, n: int) -> None:
    x = values(element, m, n, 3)
    [y] = transposed(element)([x], m, n)
    assert torch.equal(y, x.permute(1, 2, 0))


def test_warps_read_along_what_is_contiguous() -> None:
    """A thread's 8 elements are 3 * s1 apart, so that the lanes' first ones are neighbours."""
    text = str(transposed("bf16")._gpu_module)
    _, vectors, _ = text.split("scf.for")
    assert vectors.count("ld.global.b16") == 8
    assert vectors.count("st.global.v4.b32") == 1
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(transposition("bf16"))
        problem = loop_problem(sir.kernels(module)["k"])
        [phase] = phases(problem)
        assert isinstance(phase, Points)
        assert visit_order(problem, phase) == [2, 0, 1]


def test_result_written_twice() -> None:
    x = tensor("f32", "s0")
    kernel = GpuKernel(f"""
        shapejit.kernel @k symbols 1 (%x: {x}) {{
          %0 = shapejit.loop over [s0] ins(%x at {access(1, "d0")} : {x})
              outs({access(1, "d0")} : {x}) {{
          ^bb0(%v: f32):
            %1 = arith.negf %v : f32
            shapejit.yield %1 : f32
          }}
          shapejit.yield %0, %0 : {x}, {x}
        }}""")
    x_ = values("f32", 70)
    for got in kernel([x_], 70):
        assert torch.equal(got, -x_)


# Rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("width", [1, 13, 384])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_layer_norm(element: str, width: int, rows: int) -> None:
    check(element, layer_norm(element, width), rows, 0)


@pytest.mark.parametrize("width", [768, 4096])
def test_wide_layer_norm_after_a_residual(width: int) -> None:
    """One warp a row, and several that meet in shared memory."""
    check("bf16", layer_norm("bf16", width, residual=True), 3, 0)


@pytest.mark.parametrize("element", ["bf16", "f32"])
@examples(6)
@given(m=st.integers(0, 9), n=st.integers(1, 100))
def test_layer_norm_over_a_free_size(element: str, m: int, n: int) -> None:
    check(element, layer_norm(element, "s1"), m, n)


@pytest.mark.parametrize("element", FLOATS)
@examples(6)
@given(m=SIZES, n=SIZES)
def test_softmax(element: str, m: int, n: int) -> None:
    check(element, softmax(element), m, n)


@pytest.mark.parametrize(
    "variant",
    [
        "loops_v4_w1_k1_t64_c1",  # 128 elements, by vectors or one by one
        "loops_v4_w4_k1_t128_c2",  # 512
        "loops_v2_w2_k0_t64_c2",  # read again
        "loops_v1_w1_k2_t32_c1_wide",
    ],
)
@pytest.mark.parametrize("n", [0, 1, 100, 101, 128, 129, 508, 516])
def test_variants_take_rows_of_any_length(variant: str, n: int) -> None:
    check("f32", softmax("f32"), 3, n, variant=variant)


def test_softmax_keeps_nan_and_infinity_apart() -> None:
    x = values("f32", 5, 40)
    x[1, 3], x[2, 0], x[3] = torch.nan, -torch.inf, -torch.inf
    for variant in (None, "loops_v4_w4_k0_t128_c2"):
        [y] = lowered(softmax("f32"), variant)([x], 5, 40)
        torch.testing.assert_close(y, torch.softmax(x, -1), equal_nan=True)


def test_rows_meet_in_shared_memory_without_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """One reduction a row: without the barrier behind it, a fast warp overwrites what others read.

    The simulated GPU runs warps in random order, so some order shows it.
    """
    sums = reduction("f32", "add", "last")
    x = torch.rand(4, 2, 200)
    variant = "loops_v1_w4_k0_t128_c1"

    def run(seed: int) -> Tensor:
        [y] = GpuKernel(sums, variant)([x], 4, 2, 200, multiprocessors=1, seed=seed)
        return y

    for seed in range(4):
        assert_close(run(seed), x.double().sum(-1))
    from shapejit.passes.gpu_loops.reduce import Team

    monkeypatch.setattr(Team, "synchronize", lambda team: None)
    wrong = [seed for seed in range(8) if not torch.allclose(run(seed), x.sum(-1))]
    assert wrong


def test_row_scalars_and_rows_of_two_lengths() -> None:
    """A sum over s1, a norm over 40 and a scalar of the row in one kernel."""
    x, m = tensor("f32", "s0", 40), tensor("i64", "s0", "s1")
    row, flag = tensor("f32", "s0"), tensor("i1", "s0")
    full, rows, own = access(2, "d0, d1"), access(2, "d0"), access(1, "d0")
    kernel = GpuKernel(f"""
        shapejit.kernel @k symbols 2 (%x: {x}, %m: {m}) {{
          %n = shapejit.loop over [s0, s1] ins(%m at {full} : {m}) outs(add {rows} : {row}) {{
          ^bb0(%v: i64):
            %1 = arith.sitofp %v : i64 to f32
            shapejit.yield %1 : f32
          }}
          %f = shapejit.loop over [s0] ins(%n at {own} : {row}) outs({own} : {flag}) {{
          ^bb0(%v: f32):
            %z = arith.constant 0.0 : f32
            %1 = arith.cmpf ogt, %v, %z : f32
            shapejit.yield %1 : i1
          }}
          %s = shapejit.loop over [s0, 40] ins(%x at {full} : {x}) outs(add {rows} : {row}) {{
          ^bb0(%v: f32):
            %1 = arith.mulf %v, %v : f32
            shapejit.yield %1 : f32
          }}
          %y = shapejit.loop over [s0, 40]
              ins(%x at {full} : {x}, %n at {rows} : {row}, %s at {rows} : {row})
              outs({full} : {x}) {{
          ^bb0(%v: f32, %count: f32, %q: f32):
            %1 = math.sqrt %q : f32
            %2 = arith.divf %v, %1 : f32
            %3 = arith.mulf %2, %count : f32
            shapejit.yield %3 : f32
          }}
          shapejit.yield %y, %f, %s : {x}, {flag}, {row}
        }}""")
    for b, s in ((0, 3), (1, 1), (5, 77), (9, 0), (3, 2000)):
        x_, m_ = values("f32", b, 40), values("i64", b, s).clamp(min=0)
        y, f, q = kernel([x_, m_], b, s)
        squares = (x_.double() ** 2).sum(1, keepdim=True)
        count = m_.sum(1, keepdim=True)
        assert_close(y, x_.double() / squares.sqrt() * count)
        assert torch.equal(f, count[:, 0] > 0)
        assert_close(q, squares[:, 0])


# Reductions ---------------------------------------------------------------------------------------

REDUCED = {
    "last": ("d0, d1", "s0, s1", (2,)),
    "first": ("d1, d2", "s1, s2", (0,)),
    "middle": ("d0, d2", "s0, s2", (1,)),
    "ends": ("d1", "s1", (0, 2)),
    "last two": ("d0", "s0", (1, 2)),
    "all": ("", "", (0, 1, 2)),
}


def reduction(element: str, kind: str, where: str) -> str:
    indices, sizes, _ = REDUCED[where]
    x = tensor(element, "s0", "s1", "s2")
    y = tensor(element, *(sizes.split(", ") if sizes else []))
    return f"""
        shapejit.kernel @k symbols 3 (%x: {x}) {{
          %0 = shapejit.loop over [s0, s1, s2] ins(%x at {access(3, "d0, d1, d2")} : {x})
              outs({kind} {access(3, indices)} : {y}) {{
          ^bb0(%v: {element}):
            shapejit.yield %v : {element}
          }}
          shapejit.yield %0 : {y}
        }}"""


@functools.cache
def reduced(element: str, kind: str, where: str) -> GpuKernel:
    return GpuKernel(reduction(element, kind, where))


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
@examples(4)
@given(s=st.tuples(SIZES, st.integers(0, 9), SIZES))
def test_reduced_dims(kind: str, where: str, s: tuple[int, int, int]) -> None:
    # Positive, so that sums do not cancel.
    x, dims = torch.rand(s), REDUCED[where][2]
    [y] = reduced("f32", kind, where)([x], *s)
    if kind == "max" and any(s[dim] == 0 for dim in dims):
        assert (y == -torch.inf).all()
    else:
        assert_close(y, reduced_by_torch(kind, x.double(), dims), reduced_by_torch(kind, x, dims))


@pytest.mark.parametrize("where", ["last", "first"])
@pytest.mark.parametrize("kind", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("element", ["f64", "bf16", "f16", *INTEGERS])
def test_reduced_types(element: str, kind: str, where: str) -> None:
    x, dims = values(element, 3, 5, 9), REDUCED[where][2]
    [y] = reduced(element, kind, where)([x], 3, 5, 9)
    if element in INTEGERS:
        assert torch.equal(y, reduced_by_torch(kind, x, dims))
    else:
        double = reduced_by_torch(kind, x.double(), dims)
        own = reduced_by_torch(kind, x.float(), dims).to(x.dtype)
        assert_close(y, double, own, terms=1.0)


@pytest.mark.parametrize("where", ["last", "first", "all"])
@pytest.mark.parametrize("kind", ["and", "or"])
@examples(4)
@given(s=st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)))
def test_bool_reductions(kind: str, where: str, s: tuple[int, int, int]) -> None:
    x, dims = values("i1", *s), REDUCED[where][2]
    [y] = reduced("i1", kind, where)([x], *s)
    assert torch.equal(y, reduced_by_torch(kind, x, dims))


@pytest.mark.parametrize(
    ("element", "kind", "value"),
    [
        ("f32", "add", 0.0),
        ("f32", "mul", 1.0),
        ("f32", "max", -torch.inf),
        ("f32", "min", torch.inf),
        ("i32", "max", -(2**31)),
        ("i32", "min", 2**31 - 1),
        ("i32", "and", -1),
        ("i64", "or", 0),
        ("i1", "and", True),
        ("i1", "or", False),
    ],
)
@pytest.mark.parametrize("where", ["last", "first"])
def test_empty_reductions_are_identities(element: str, kind: str, value: float, where: str) -> None:
    sizes = (4, 3, 0) if where == "last" else (0, 4, 3)
    [y] = reduced(element, kind, where)([values(element, *sizes)], *sizes)
    assert torch.equal(y, torch.full((4, 3), value, dtype=DTYPES[element]))


@pytest.mark.parametrize("where", ["last", "first"])
@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("position", [0, 1, 40, 88])
def test_extrema_propagate_nan(kind: str, where: str, position: int) -> None:
    x = torch.zeros(89, 2, 89)
    x[position, :, position] = torch.nan
    [y] = reduced("f32", kind, where)([x], 89, 2, 89)
    torch.testing.assert_close(y, reduced_by_torch(kind, x, REDUCED[where][2]), equal_nan=True)


@pytest.mark.parametrize("width", [64, "s2"])
@examples(5)
@given(b=st.integers(0, 3), s=st.integers(0, 150), n=st.integers(0, 140))
def test_masked_column_sums(width: int | str, b: int, s: int, n: int) -> None:
    check("f32", column_sum("bf16", width), b, s, n)


def test_results_reduced_in_different_ways() -> None:
    """One loop with a pointwise result, a row sum and a column maximum: three phases."""
    x, rows, columns = tensor("f32", "s0", "s1"), tensor("f32", "s0"), tensor("f32", "s1")
    kernel = GpuKernel(f"""
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
        value = values("f32", m, n)
        square, total, greatest = kernel([value], m, n)
        assert torch.equal(square, value * value)
        assert_close(total, value.double().sum(1), value.sum(1), terms=1.0)
        assert torch.equal(greatest, value.amax(0))


# What the simulated GPU would not notice ----------------------------------------------------------


def test_nothing_is_touched_before_the_wait() -> None:
    for sample in (layer_norm("bf16", 384), column_sum("bf16", 64), pointwise("bf16")):
        text = lowered(sample, None, True).ptx().ptx
        before, after = text.split("griddepcontrol.wait")
        assert "griddepcontrol.launch_dependents" in before
        assert "ld.global" not in before.replace("ld.relaxed.gpu.global", "")
        assert "st.global" not in before
        assert "ld.global" in after
        assert "st.global" in after


def test_divisions_are_as_exact_as_their_results_need() -> None:
    """Within 2 units of f32 where bf16 is stored; rounded to nearest where bits may show."""
    assert "div.full.f32" in lowered(softmax("bf16")).ptx().ptx
    assert "div.rn.f32" not in lowered(softmax("bf16")).ptx().ptx
    assert "div.full.f32" not in lowered(softmax("f32")).ptx().ptx
    x = tensor("bf16", "s0")
    floor = GpuKernel(f"""
        shapejit.kernel @k symbols 1 (%x: {x}, %y: {x}) {{
          %0 = shapejit.loop over [s0]
              ins(%x at {access(1, "d0")} : {x}, %y at {access(1, "d0")} : {x})
              outs({access(1, "d0")} : {x}) {{
          ^bb0(%v: bf16, %u: bf16):
            %1 = arith.divf %v, %u : bf16
            %2 = math.floor %1 : bf16
            shapejit.yield %2 : bf16
          }}
          shapejit.yield %0 : {x}
        }}""")
    assert "div.rn.f32" in floor.ptx().ptx


def test_all_of_a_row_is_loaded_at_once() -> None:
    """The row, weight and bias: 3 vectors each before the first exchange between lanes."""
    text = str(lowered(layer_norm("bf16", 384))._gpu_module)
    row = text[text.index("scf.for") :]
    assert row[: row.index("shfl.sync")].count("ld.global.v2.b32") == 9
    vectors = row[: row.index("scf.if") if "scf.if" in row else row.index("else")]
    assert vectors.count("ld.global") == 9


def test_scopes_forget_what_does_not_dominate() -> None:
    evaluator = object.__new__(Evaluator)
    evaluator._known, evaluator._scalars = [{}], {}
    with evaluator.scope():
        assert evaluator.once("key", lambda: 1) == 1
        assert evaluator.once("key", lambda: 2) == 1
    assert evaluator.once("key", lambda: 3) == 3
