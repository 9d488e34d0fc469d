# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""The shape passes change no value: random programs and every lit input, before and after."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import mlir.ir as ir
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shapejit.ir as sir
from reference.interpreter import Interpreter
from reference.random_programs import input_shapes, programs
from reference.scalar_semantics import numpy_type
from shapejit import passes
from shapejit.pass_host import run_pipeline

passes.register_all()

LIT_INPUTS = Path(__file__).parents[1] / "passes"
FILES = [
    f"{folder}/{name}.mlir"
    for folder in ("canonicalize-shapes", "fold-views")
    for name in ("basic", "edge")
]
CANONICALIZE = "shapejit-canonicalize-shapes,shapejit-verify-shapes,canonicalize,cse"
FOLD = "shapejit-fold-views,shapejit-verify-shapes"
PIPELINES = (FOLD, CANONICALIZE, f"{CANONICALIZE},{FOLD}", f"{CANONICALIZE},{FOLD},{CANONICALIZE}")


@functools.cache
def lit_module(file: str, pipeline: str) -> Any:
    """The module of a lit test after a pipeline."""
    return after((LIT_INPUTS / file).read_text(), pipeline)


def after(program: str, pipeline: str) -> Any:
    """A program after a pipeline."""
    with ir.Context():
        module = ir.Module.parse(program)
        if pipeline:
            run_pipeline(module, pipeline, stage="test")
        return module


def draw(argument: Any, symbols: list[int], generator: np.random.Generator) -> np.ndarray:
    """Random elements for an argument."""
    sizes = [e.evaluate(symbols) for e in sir.shape_of(argument)]
    return generator.normal(size=sizes).astype(numpy_type(argument.type.element_type))


def assert_same(results: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for result, reference in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, reference, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("file", FILES)
@settings(deadline=None, max_examples=8)
@given(sizes=st.tuples(st.integers(1, 4), st.integers(1, 6)), seed=st.integers(0, 1000))
def test_lit_inputs(file: str, sizes: tuple[int, int], seed: int) -> None:
    symbols = [*sizes, sizes[1]]  # s2, where there is one, equals s1
    values = dict(enumerate(symbols))
    module = lit_module(file, "")
    for function in sir.functions(module):
        name = ir.StringAttr(function.attributes["sym_name"]).value
        generator = np.random.default_rng(seed)
        inputs = [draw(a, symbols, generator) for a in sir.body(function).arguments]
        expected = Interpreter(module).run(inputs, values, name)
        for pipeline in PIPELINES:
            changed = lit_module(file, pipeline)
            assert_same(Interpreter(changed).run(inputs, values, name), expected)


@settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    program=programs(),
    sizes=st.tuples(st.sampled_from([0, 1, 2, 3]), st.sampled_from([0, 1, 2, 4])),
    pipeline=st.sampled_from(PIPELINES),
)
def test_random_programs(program: str, sizes: tuple[int, int], pipeline: str) -> None:
    generator = np.random.default_rng(0)
    inputs = [generator.standard_normal(shape) for shape in input_shapes(*sizes)]
    values = dict(enumerate(sizes))
    expected = Interpreter(after(program, "")).run(inputs, values)
    assert_same(Interpreter(after(program, pipeline)).run(inputs, values), expected)


@pytest.mark.parametrize("file", FILES)
def test_types_of_functions_stay(file: str) -> None:
    def types(pipeline: str) -> list[str]:
        functions = sir.functions(lit_module(file, pipeline))
        return [str(f.attributes["function_type"]) for f in functions]

    assert types("") == types(PIPELINES[-1])


@pytest.mark.parametrize("file", FILES)
def test_a_second_run_changes_nothing(file: str) -> None:
    once = str(lit_module(file, f"{CANONICALIZE},{FOLD},cse"))
    twice = str(lit_module(file, f"{CANONICALIZE},{FOLD},{CANONICALIZE},{FOLD},cse"))
    assert once == twice
