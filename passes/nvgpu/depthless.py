# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The result where K is 0: the epilogue of sums of nothing, element by element.

The pipelines of tiles peel the first stage of K, so they need one; TMA could not describe an
operand without elements either. When K turns out to be 0 a kernel has no tiles, and this loop over
the result's elements does all there is to do.
"""

from __future__ import annotations

from collections.abc import Mapping

from mlir.dialects import arith, nvvm

from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    compare,
    constant,
    f32,
    i32,
    i64,
    loop,
    mul,
    sub,
    udiv,
    value,
    when,
    wide,
)
from shapejit.passes.nvgpu.epilogue import Epilogue
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.memory import IndexAlgebra, store_elements
from shapejit.passes.nvgpu.problem import GemmProblem


def emit_depthless(function: KernelFunction, problem: GemmProblem, epilogue: Epilogue) -> None:
    """Emits the loop, for all threads of the grid, unless K is known not to be 0."""
    depth = function.size(problem.space[problem.k])
    if isinstance(depth, int):
        if depth == 0:
            _elements(function, problem, epilogue)
        return
    with when(compare("eq", depth, 0)):
        _elements(function, problem, epilogue)


def _elements(function: KernelFunction, problem: GemmProblem, epilogue: Epilogue) -> None:
    function.await_predecessors()
    sizes = [function.size(size) for size in problem.space[: problem.k]]
    count: Num = 1
    for size in sizes:
        count = mul(count, wide(size))
    threads = nvvm.read_ptx_sreg_ntid_x(i32())
    first = add(mul(nvvm.read_ptx_sreg_ctaid_x(i32()), threads), nvvm.read_ptx_sreg_tid_x(i32()))
    step = mul(nvvm.read_ptx_sreg_nctaid_x(i32()), threads)
    with loop(wide(first), value(count, i64()), wide(step)) as elements:
        offset = elements.index
        dims: dict[int, Num] = {}
        rest: Num = offset
        for dim in reversed(range(1, problem.k)):
            outer = udiv(rest, wide(sizes[dim]))
            dims[dim] = _narrow(sub(rest, mul(outer, wide(sizes[dim]))))
            rest = outer
        dims[0] = _narrow(rest)
        _element(function, problem, epilogue, dims)


def _narrow(number: Value) -> Value:
    return arith.trunci(i32(), number)


def _element(
    function: KernelFunction, problem: GemmProblem, epilogue: Epilogue, dims: Mapping[int, Num]
) -> None:
    sums = [constant(0.0, f32())] * len(problem.weights)
    result = epilogue.element(sums, epilogue.extras_at(dims))
    offset = problem.result.offset.build(IndexAlgebra(function, dims))
    base = function.address(problem.result.operand)
    store_elements(base, value(offset, i64()), [result], problem.result.element)
