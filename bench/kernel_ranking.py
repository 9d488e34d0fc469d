# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the cost model says of a kernel at one size: its schedules and their times."""

from __future__ import annotations

import mlir.ir as ir
import numpy as np

from shapejit import ir as sir
from shapejit import passes
from shapejit.passes.buckets.bindings import bindings_of
from shapejit.passes.buckets.device import H200
from shapejit.passes.buckets.grid import Cells, grid_sizes
from shapejit.passes.buckets.kernels import GemmKernel, conv_kernel, gemm_kernel
from shapejit.passes.buckets.model import CostModel, fitting
from shapejit.passes.buckets.problem import GemmSizes
from shapejit.passes.buckets.samples import spread_samples
from shapejit.passes.nvgpu.schedule import (
    ALL_CANDIDATES,
    GemmSchedule,
    candidates_for,
    worth_trying,
)


def launched(text: str, bounds: tuple[tuple[int, int], ...]) -> str:
    """A program that launches a kernel ``@k`` with symbols of these ranges.

    Args:
        text: the IR of the kernel, of one result.
        bounds: the least and the greatest value of each of its symbols.
    """
    with ir.Context(), ir.Location.unknown():
        alone = ir.Module.parse(text)
        kernel = sir.kernels(alone)["k"]
        types = [str(argument.type) for argument in sir.body(kernel).arguments]
        [result] = (str(v.type) for v in sir.operations(sir.body(kernel))[-1].operands)
    symbols = "\n".join(
        f"shapejit.symbol @s{number} {{id = {number}, min = {low}, max = {high}}}"
        for number, (low, high) in enumerate(bounds)
    )
    names = ", ".join(f"s{number}" for number in range(len(bounds)))
    given = ", ".join(f"%a{number}" for number in range(len(types)))
    typed = ", ".join(f"%a{number}: {type_}" for number, type_ in enumerate(types))
    return f"""
        module attributes {{shapejit.target = "{H200.target}"}} {{
          {symbols}
          {text}
          func.func @main({typed}) -> {result} {{
            %r = shapejit.launch @k affine_map<()[{names}] -> ({names})> ({given})
                : ({", ".join(types)}) -> {result}
            return %r : {result}
          }}
        }}"""


def problem_at(text: str, sizes: tuple[int, ...]) -> tuple[GemmKernel, GemmSizes]:
    """A kernel of a module of its own whose symbols have these values, and its sizes as a product.

    Args:
        text: the IR of the kernel ``@k``, a convolution or a product.
        sizes: values of its symbols.
    """
    passes.register_all()
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(launched(text, tuple((size, size) for size in sizes)))
        kernel, bindings = sir.kernels(module)["k"], bindings_of(module)["k"]
        if any(op.name == "shapejit.conv" for op in sir.walk(kernel)):
            found = conv_kernel("k", kernel, bindings, spread_samples(module))
        else:
            found = gemm_kernel("k", kernel, bindings)
    cells = [
        Cells(np.array([axis.evaluate(sizes)], dtype=np.int64), axis.evaluate(sizes))
        for axis in found.axes
    ]
    return found, grid_sizes(cells, found.sizes, found.traits)[0]


def ranking(text: str, sizes: tuple[int, ...]) -> list[tuple[GemmSchedule, float]]:
    """The schedules that suit a kernel and their predicted microseconds, the fastest first; nothing
    where there is only one. Factors of float32 may be rounded to tf32. See `problem_at`."""
    kernel, problem = problem_at(text, sizes)
    if kernel.unaligned is not None:
        return []
    candidates = worth_trying(
        candidates_for(kernel.traits, ALL_CANDIDATES, maps=True, rounds=True), 1
    )
    model = CostModel(H200, fitting(H200, candidates, kernel.traits), kernel.traits)
    [times] = model.times(problem)
    pairs = zip(model.schedules, map(float, times), strict=True)
    return sorted(pairs, key=lambda pair: pair[1])
