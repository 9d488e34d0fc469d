# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""inline-pointwise and form-kernels keep the meaning of programs, at all sizes."""

from __future__ import annotations

from typing import Any

import mlir.ir as ir
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shapejit.ir as sir
from reference.interpreter import Interpreter
from reference.random_programs import input_shapes, programs
from shapejit import passes
from shapejit.pass_host import run_pipeline

passes.register_all()

INLINE = "shapejit-inline-pointwise,canonicalize,cse"
FORM = "shapejit-form-kernels"

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
    """What is left of the function are launches, reshapes and packs; each result has a launch."""
    [function] = sir.functions(module)
    *ops, end = sir.operations(sir.body(function))
    assert {op.name for op in ops} <= {"shapejit.launch", "shapejit.view", "shapejit.pack"}
    run_pipeline(module, "shapejit-plan-memory", stage="test")  # it checks results, too
    texts = [
        kernel.get_asm(use_local_scope=True).replace(f"@{name} ", "@ ")
        for name, kernel in sir.kernels(module).items()
    ]
    assert len(set(texts)) == len(texts), "two kernels have equal text"


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(program=programs(), sizes=st.lists(random_sizes, min_size=2, max_size=3))
def test_random_programs(program: str, sizes: list[tuple[int, int]]) -> None:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(program)
        inputs = [arguments(*size) for size in sizes]
        expected = [run(module, x, size) for x, size in zip(inputs, sizes, strict=True)]
        for stage in (INLINE, FORM):
            run_pipeline(module, stage, stage="test")
            for x, size, want in zip(inputs, sizes, expected, strict=True):
                assert_equal(run(module, x, size), want)
        assert_formed(module)
