# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""inline-pointwise and form-kernels keep the meaning of programs, at all sizes."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import mlir.ir as ir
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shapejit.ir as sir
from reference.interpreter import Interpreter
from reference.random_programs import input_shapes, programs
from shapejit import passes
from shapejit.pass_host import run_pipeline
from shapejit.passes import merge_products
from shapejit.passes.fusion.codec import Codec
from shapejit.passes.fusion.symbols import LocalSymbols
from shapejit.passes.inline_pointwise import is_injective
from shapejit.symbolic import Expr

passes.register_all()

CLEAN = "canonicalize,cse"
INLINE = f"shapejit-inline-pointwise,{CLEAN}"
PACK = "shapejit-pack-weights{panel=4}"
FORM = "shapejit-form-kernels"
MERGE = f"shapejit-widen-bodies,shapejit-merge-products,{CLEAN}"
VIEWS = f"shapejit-canonicalize-shapes,{CLEAN},shapejit-fold-views,{CLEAN}"

random_sizes = st.tuples(st.sampled_from([0, 1, 1, 2, 3]), st.sampled_from([0, 1, 1, 2, 4]))


def arguments(batch: int, rows: int, seed: int = 0) -> list[np.ndarray]:
    """Random inputs of a program at these sizes."""
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(shape) for shape in input_shapes(batch, rows)]


def run(module: Any, inputs: list[np.ndarray], sizes: tuple[int, int]) -> list[np.ndarray]:
    return Interpreter(module).run(inputs, dict(enumerate(sizes)))


def assert_equal(actual: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """Equal but for the order in which sums are taken."""
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def assert_formed(module: Any) -> None:
    """Left of the function are launches, reshapes, copies of weights; each result has a launch."""
    [function] = sir.functions(module)
    ops = sir.operations(sir.body(function))[:-1]
    assert {op.name for op in ops} <= {"shapejit.launch", "shapejit.view", *sir.COPIES}
    run_pipeline(module, "shapejit-plan-memory", stage="test")  # it checks the results
    texts = [
        kernel.get_asm(use_local_scope=True).replace(f"@{name} ", "@ ")
        for name, kernel in sir.kernels(module).items()
    ]
    assert len(set(texts)) == len(texts), "two kernels have equal text"


@pytest.mark.parametrize("stages", [[INLINE, FORM], [FORM], [VIEWS, INLINE, PACK, FORM]])
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(program=programs(), sizes=st.lists(random_sizes, min_size=2, max_size=3))
def test_random_programs(stages: list[str], program: str, sizes: list[tuple[int, int]]) -> None:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(program)
        inputs = [arguments(*size) for size in sizes]
        expected = [run(module, x, size) for x, size in zip(inputs, sizes, strict=True)]
        for stage in stages:
            run_pipeline(module, stage, stage="test")
            for x, size, want in zip(inputs, sizes, expected, strict=True):
                assert_equal(run(module, x, size), want)
        assert_formed(module)


def test_random_programs_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of one input become one, small kernels are merged, bodies are widened."""
    # The products of random programs have six columns.
    monkeypatch.setattr(merge_products, "SLICE_ALIGNMENT", 8)
    seen: Counter[str] = Counter()

    @settings(
        max_examples=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(
        program=programs(projections=True),
        sizes=st.lists(random_sizes, min_size=2, max_size=3),
    )
    def check(program: str, sizes: list[tuple[int, int]]) -> None:
        with ir.Context(), ir.Location.unknown():
            module = ir.Module.parse(program)
            module.operation.attributes["shapejit.target"] = ir.StringAttr.get("cuda:sm_90a")
            inputs = [arguments(*size) for size in sizes]
            expected = [run(module, x, size) for x, size in zip(inputs, sizes, strict=True)]
            for stage in (VIEWS, INLINE, MERGE, FORM, "shapejit-widen-bodies"):
                run_pipeline(module, f"{stage},shapejit-verify-shapes", stage="test")
                for x, size, want in zip(inputs, sizes, expected, strict=True):
                    assert_equal(run(module, x, size), want)
            assert_formed(module)
            seen.update(op.name for op in sir.walk(module.operation))

    check()
    assert seen["shapejit.join"]


# Locations ----------------------------------------------------------------------------------------

NAMED = """
!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!r = tensor<?xf32, #shapejit.shape<[s0]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
func.func @main(%x: !x) -> !x {
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%v: f32):
    %e = math.exp %v : f32
    shapejit.yield %e : f32
  } loc("exp.py":1:2)
  %1 = shapejit.loop over [s0, 8] ins(%0 at #id : !x, %x at #id : !x) outs(#id : !x) {
  ^bb0(%v: f32, %w: f32):
    %e = arith.mulf %v, %w : f32
    shapejit.yield %e : f32
  } loc("mul.py":3:4)
  %2 = shapejit.loop over [s0, 8] ins(%1 at #id : !x) outs(add #row : !r) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  } loc("sum.py":5:6)
  %3 = shapejit.loop over [s0, 8] ins(%1 at #id : !x, %2 at #row : !r) outs(#id : !x) {
  ^bb0(%v: f32, %s: f32):
    %e = arith.subf %v, %s : f32
    shapejit.yield %e : f32
  } loc("sub.py":7:8)
  return %3 : !x
}
"""


def test_a_launch_tells_where_its_operations_come_from() -> None:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(NAMED)
        run_pipeline(module, f"{INLINE},{FORM}", stage="test")
        [launch, _] = sir.operations(sir.body(sir.functions(module)[0]))
        location = str(launch.location)
    for name in ("exp.py", "mul.py", "sum.py", "sub.py"):
        assert name in location


# Symbols of kernels -------------------------------------------------------------------------------

s0, s1, s2 = map(Expr.symbol, range(3))
d0, d1 = map(Expr.dim, range(2))

some_size = st.sampled_from(
    [
        *(s0, s1, s2, s0 * s1, s0 * s1 * 12, s1 * s2, s0 * s1 * s2, s0 * 2, s0 * 2 + 1),
        *((s0 + 2) // 2, ((s0 + 2) // 2) * s1, s0 + s1, (s0 + s1) * 4, Expr.const(7)),
    ]
)
some_index = st.sampled_from(
    [d0, d0 * s1 + d1, d0 * s0 * s1 + d1, d0 // s1, d0 % s1, d0 * ((s0 + 2) // 2), d0 + s0 - 1]
)


@given(
    sizes=st.lists(some_size, min_size=1, max_size=5),
    others=st.lists(some_index, max_size=3),
    values=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    dims=st.lists(st.integers(0, 50), min_size=2, max_size=2),
)
def test_local_symbols_keep_values(
    sizes: list[Expr], others: list[Expr], values: list[int], dims: list[int]
) -> None:
    local = LocalSymbols(sizes, others)
    bound = [value.evaluate(values) for value in local.values]
    for expr in (*sizes, *others):
        assert local.localize(expr).symbols() <= set(range(len(bound)))
        assert local.localize(expr).evaluate(bound, dims) == expr.evaluate(values, dims)


@pytest.mark.parametrize(
    ("sizes", "others", "values"),
    [
        ([s0 * s1, s0 * s1 * 4], [], [s0 * s1]),
        ([s1, s0], [], [s1, s0]),
        ([s0 * s1, s0], [], [s0 * s1, s0]),
        ([s0 * s1 * 12, s0], [], [s0, s0 * s1]),
        ([s0 * s1, s0, s1], [d0 * s1 + d1], [s0, s1]),
        ([s0 * s1], [d0 % s1], [s0, s1]),
        ([(s0 + 2) // 2], [], [(s0 + 2) // 2]),
        ([(s0 + 2) // 2, s0], [], [s0]),
        ([s0 * 2 + 1], [], [s0 * 2 + 1]),
        ([s0 * 2], [], [s0]),
        ([Expr.const(4)], [], []),
    ],
)
def test_local_symbols(sizes: list[Expr], others: list[Expr], values: list[Expr]) -> None:
    assert LocalSymbols(sizes, others).values == values


# Duplicated work ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "source", "space"),
    [
        ((d0, d1), (3, 4), (3, 4)),
        ((d1, d0), (4, 3), (3, 4)),
        ((d0,), (3,), (3, 4)),
        ((d0,), (3,), (3, 1)),
        ((d0 * 4 + d1,), (12,), (3, 4)),
        ((d0 * 3 + d1,), (12,), (3, 4)),
        ((d0 // 4, d0 % 4), (3, 4), (12,)),
        ((d0 // 4,), (3,), (12,)),
        ((d0 * 2,), (6,), (3,)),
        ((2 - d0,), (3,), (3,)),
        ((Expr.const(0), d1), (1, 4), (3, 4)),
    ],
)
def test_is_injective(
    location: tuple[Expr, ...], source: tuple[int, ...], space: tuple[int, ...]
) -> None:
    """A True is right; for these maps so is a False."""
    points = itertools.product(*(range(size) for size in space))
    read = [tuple(index.evaluate(dims=point) for index in location) for point in points]
    with ir.Context() as context:
        codec = Codec(ir.Module.parse("module {}", context).operation)
        sizes, steps = (tuple(map(Expr.const, shape)) for shape in (source, space))
        assert is_injective(location, sizes, steps, codec) == (len(set(read)) == len(read))
