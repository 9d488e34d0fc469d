# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What benchmarks of single kernels share: cells, kernels from IR text, and checks.

A cell is a kernel at one size, with peers that compute the same in torch. Its results are compared
with a reference before anything is timed, and how it is timed is as in ``gemm.py``. Kernels are
those that `choose` gives for the sizes, in the two forms that programs launch: in block form and
started early, as under a constant graph; and by value, as in programs of a launch or two.
"""

from __future__ import annotations

import functools
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import mlir.ir as ir
import torch
from gemm import Call
from gemm_chain import block_calls
from kernel_ranking import launched
from torch import Tensor

from shapejit import ir as sir
from shapejit import passes
from shapejit.cache.cubins import CachedCubin, CubinRecipe, cubin_unit
from shapejit.codegen.builder import cubin_builder
from shapejit.codegen.ptxas import find_ptxas
from shapejit.gpu.driver import driver
from shapejit.gpu.launch import Kernel
from shapejit.gpu.module import Module
from shapejit.pass_host import run_pipeline
from shapejit.passes.buckets.device import H200
from shapejit.passes.host.dispatches import dispatches
from shapejit.passes.nvgpu.families import MODELLED, family_of
from shapejit.symbolic import Expr

# The kernels that tests describe are measured, by the same references.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "test"))

Sizes: TypeAlias = tuple[int, ...]

#: Our providers: kernels as under a constant graph, and as programs of a launch or two have them.
OURS, BY_VALUE = "shapejit", "shapejit, by value"

_MAX_SETS = 16
_LARGEST_ERROR = 1e-2  # relative, of a whole result
_PEAK, _BANDWIDTH, _LEAST_SECONDS = 700e12, 3.8e12, 4e-6


@dataclass(frozen=True)
class Expected:
    """What a part of a result has to be.

    Attributes:
        part: of the result's first dim.
        value: in float64.
        allowed: how far each element may be off.
    """

    part: slice
    value: Tensor
    allowed: Tensor


@dataclass(frozen=True)
class Cell:
    """A kernel at one size; a subclass says what it computes.

    Attributes:
        group: the set of cells that it belongs to.
        kind: what is computed, in words.
        sizes: the kernel's symbols.
        bounds: the least and the greatest value of each that the kernel is compiled for.
    """

    group: str
    kind: str
    sizes: Sizes
    bounds: tuple[tuple[int, int], ...]

    def text(self) -> str:
        """The IR of the kernel, whose name is k."""
        raise NotImplementedError

    def more(self) -> Sequence[str]:
        """Variants to measure beside the chosen one."""
        return ()

    def operands(self) -> list[Tensor]:
        """New random arguments on the GPU, and an empty result behind them."""
        raise NotImplementedError

    def expected(self, operands: Sequence[Tensor]) -> list[Expected]:
        """What the result has to be."""
        raise NotImplementedError

    def peers(self) -> dict[str, Callable[..., Tensor]]:
        """Torch's ways to compute the result from the operands, laid out as ours by `as_ours`."""
        raise NotImplementedError

    def as_ours(self, result: Tensor, like: Tensor) -> Tensor:
        """A peer's result in the layout of ours."""
        return result.reshape(like.shape)

    def flops(self) -> float:
        """Operations on tensor cores."""
        return 0.0

    def moved(self, operands: Sequence[Tensor]) -> int | None:
        """Bytes that have to be read and written; None if memory is not what bounds the kernel."""
        del operands
        return None


@dataclass
class Rotated:
    """Sets of operands that calls use in turn, and a guess of a call's time in seconds."""

    sets: list[list[Tensor]]
    estimate: float

    @staticmethod
    def of(cell: Cell, megabytes: float) -> Rotated:
        """As many sets as have so many megabytes."""
        first = cell.operands()
        size = sum(each.numel() * each.element_size() for each in first)
        count = max(1, min(_MAX_SETS, -(-int(megabytes * 1e6) // max(size, 1))))
        estimate = max(cell.flops() / _PEAK, size / _BANDWIDTH, _LEAST_SECONDS)
        return Rotated([first, *(cell.operands() for _ in range(count - 1))], estimate)


# ---------------------------------------------------------------------------
# Kernels
# ---------------------------------------------------------------------------


@functools.cache
def chosen(text: str, bounds: tuple[tuple[int, int], ...], sizes: Sizes) -> str:
    """The variant that a kernel compiled for sizes within bounds uses at a size."""
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        kernel = sir.kernels(module)["k"]
        family = family_of(kernel)
        assert family is not None
        if family in MODELLED:
            return modelled(text, bounds, sizes)
        axes, buckets = family.choose(kernel, dict(enumerate(bounds)), H200)
    at = [axis.evaluate(sizes) for axis in axes]
    for lower, upper, variant, _ in buckets:
        if all(
            low <= value and (high is None or value <= high)
            for low, value, high in zip(lower, at, upper, strict=True)
        ):
            return str(variant)
    raise ValueError(f"sizes {sizes} lie in no bucket: they are outside of {bounds}")


def modelled(text: str, bounds: tuple[tuple[int, int], ...], sizes: Sizes) -> str:
    """The same for a product, whose variant the cost model chooses in a program with one launch."""
    passes.register_all()
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(launched(text, bounds))
        run_pipeline(module, "shapejit-choose-buckets", stage="choose")
        dispatch = dispatches(module)["k"]
    return dispatch.variants[dispatch.number([axis.evaluate(sizes) for axis in dispatch.axes])]


@functools.cache
def building(text: str, variant: str, form: str) -> Future[CachedCubin]:
    """A variant's code, on its way."""
    block = form == OURS
    recipe = CubinRecipe(
        variant,
        arch=driver().device(0).arch,
        parameters="block" if block else "by-value",
        programmatic=block,
    )
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        unit = cubin_unit(sir.kernels(module)["k"], recipe, find_ptxas())
    return cubin_builder().build_async(unit, urgent=True)


@functools.cache
def loaded(text: str, variant: str, form: str) -> Kernel:
    """A variant on the GPU."""
    cubin = building(text, variant, form).result()
    return Kernel(cubin.interface, Module(cubin.cubin, driver().device(0)))


def kernel_calls(
    cell: Cell, variant: str, form: str, sets: Sequence[Sequence[Tensor]]
) -> list[Call]:
    """Calls of a variant, with each set of operands."""
    kernel = loaded(cell.text(), variant, form)
    values = [Expr.parse(value).evaluate(cell.sizes) for value in kernel.interface.values]
    addresses = [[each.data_ptr() for each in operands] for operands in sets]
    if kernel.interface.block:
        return block_calls(kernel, addresses, values)

    def call(operands: list[int]) -> Call:
        packed = kernel.pack_values(operands, values)
        return lambda: kernel.launch_packed(
            operands, packed, torch.cuda.current_stream().cuda_stream
        )

    return [call(operands) for operands in addresses]


def variants_of(cell: Cell, extra: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Variant and form of each of our providers of a cell."""
    variant = chosen(cell.text(), cell.bounds, cell.sizes)
    found = {OURS: (variant, OURS), BY_VALUE: (variant, BY_VALUE)}
    every = dict.fromkeys([*extra, *cell.more()])
    return found | {name: (name, OURS) for name in every if name != variant}


def prepare(cells: Sequence[Cell], extra: Sequence[str]) -> None:
    """Builds all kernels at once, on all cores."""
    start = time.monotonic()
    wanted = [(cell.text(), *each) for cell in cells for each in variants_of(cell, extra).values()]
    wait(futures := [building(*each) for each in dict.fromkeys(wanted)])
    print(f"{len(futures)} kernels in {time.monotonic() - start:.1f} s", flush=True)


# ---------------------------------------------------------------------------
# Checks and times
# ---------------------------------------------------------------------------


def fault(result: Tensor, expected: Sequence[Expected], *, exact: bool) -> str:
    """What is wrong with a result; nothing if all is well.

    Args:
        result: of our layout.
        expected: what it has to be.
        exact: whether each element has to be near enough too, not only the result as a whole.
    """
    if result.isnan().any():
        return "has elements that are no numbers"
    for each in expected:
        difference = result[each.part].double() - each.value
        if exact and (worst := (difference.abs() - each.allowed).max().item()) > 0:
            return f"is {worst:.2e} further off than it may be"
        if (error := difference.norm() / each.value.norm()).item() > _LARGEST_ERROR:
            return f"has a relative error of {error:.2e}"
    return ""


def poisoned(result: Tensor) -> Tensor:
    """The result, filled with what no kernel writes: NaN, or the least integer."""
    dtype = result.dtype
    return result.fill_(float("nan") if dtype.is_floating_point else torch.iinfo(dtype).min)


def right_peers(
    cell: Cell, rotated: Rotated, expected: Sequence[Expected]
) -> dict[str, list[Call]]:
    """Calls of the peers that take the cell and are right."""
    found: dict[str, list[Call]] = {}
    like = rotated.sets[0][-1]
    for name, function in cell.peers().items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch says at length what a backend lacks
                result = function(*rotated.sets[0][:-1])
        except RuntimeError:
            continue
        if problem := fault(cell.as_ours(result, like), expected, exact=False):
            print(f"{cell.kind} {cell.sizes}: {name} {problem}, left out", flush=True)
            continue
        found[name] = [functools.partial(function, *each[:-1]) for each in rotated.sets]
    return found


def right_kernels(
    cell: Cell, rotated: Rotated, expected: Sequence[Expected], extra: Sequence[str]
) -> dict[str, list[Call]]:
    """Calls of our kernels that are right; prints what is wrong with others."""
    found: dict[str, list[Call]] = {}
    for name, (variant, form) in variants_of(cell, extra).items():
        if (problem := building(cell.text(), variant, form).exception()) is not None:
            print(f"{cell.kind} {cell.sizes}: {variant}: {str(problem)[:200]}", flush=True)
            continue
        calls = kernel_calls(cell, variant, form, rotated.sets)
        result = poisoned(rotated.sets[0][-1])
        calls[0]()
        if wrong := fault(result, expected, exact=True):
            print(f"{cell.kind} {cell.sizes}: {name}, {variant}: WRONG, {wrong}", flush=True)
            continue
        found[name] = calls
    return found
