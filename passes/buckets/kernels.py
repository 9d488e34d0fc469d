# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""From the gemm kernels of a module to what the choice of their schedules depends on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shapejit import ir as sir
from shapejit.passes.analysis.precision import may_round
from shapejit.passes.buckets.bindings import Bindings
from shapejit.passes.buckets.grid import GemmSize, Integers, SizeFunction, SizeOnAxis
from shapejit.passes.buckets.halo import HaloTraits, ImageShapes
from shapejit.passes.buckets.problem import GemmTraits
from shapejit.passes.buckets.samples import Samples
from shapejit.passes.nvgpu.body_cost import body_cycles
from shapejit.passes.nvgpu.conv.gathered import gathering_schedule
from shapejit.passes.nvgpu.conv.halo_product import HaloProduct
from shapejit.passes.nvgpu.conv.patch import SCHEDULE as PATCH_SCHEDULE
from shapejit.passes.nvgpu.conv.patch import PatchProduct, patch_product
from shapejit.passes.nvgpu.conv.problem import conv_problem
from shapejit.passes.nvgpu.conv.product import DEPTH_BYTES, ConvProduct
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.problem import (
    Access,
    GemmProblem,
    gemm_problem,
    is_half,
    lhs_matrix,
    result_matrix,
    weight_matrix,
)
from shapejit.passes.nvgpu.schedule import UNALIGNED, GemmSchedule
from shapejit.passes.nvgpu.target import MAP_ALIGNMENT
from shapejit.symbolic import Expr, product


@dataclass(frozen=True)
class GemmKernel:
    """A kernel that multiplies matrices.

    Attributes:
        name: of the kernel.
        op: ``shapejit.kernel``.
        bindings: its launches.
        traits: of its problem.
        axes: the expressions of its symbols that its sizes depend on, each of one axis.
        sizes: m, n, k and batch.
        unaligned: why tensor maps cannot read its operands or store its result, or need not; None
            if they can.
        fallback: the schedule that does without tensor maps.
        on_cuda_cores: whether kernels without tensor cores can compute it, if it is of float32.
        may_round: whether factors of float32 may be rounded to tf32.
    """

    name: str
    op: Any
    bindings: Bindings
    traits: GemmTraits
    axes: tuple[Expr, ...]
    sizes: Mapping[str, GemmSize]
    unaligned: str | None
    fallback: GemmSchedule = UNALIGNED
    on_cuda_cores: bool = True
    may_round: bool = False


def gemm_kernel(name: str, kernel: Any, bindings: Bindings) -> GemmKernel:
    """What the choice depends on for a kernel with a gemm.

    Raises:
        LoweringError: no family of kernels can compute it.
    """
    problem = gemm_problem(kernel)
    return _product_kernel(name, kernel, bindings, problem, _traits(problem))


def _product_kernel(
    name: str, kernel: Any, bindings: Bindings, problem: GemmProblem, traits: GemmTraits
) -> GemmKernel:
    space = problem.space
    exprs = {
        "m": space[problem.m],
        "n": space[problem.n],
        "k": space[problem.k],
        "batch": product(space[: problem.m]),
    }
    axes = _axes(list(exprs.values()))
    units = [bindings.unit(axis) for axis in axes]
    return GemmKernel(
        name=name,
        op=kernel,
        bindings=bindings,
        traits=traits,
        # Layers of a network have 64, 16 or 4 times as many pixels as the last one: one axis.
        axes=tuple(axis // unit for axis, unit in zip(axes, units, strict=True)),
        sizes={name: _in_units(_size(expr, axes), units) for name, expr in exprs.items()},
        unaligned=_unaligned(problem, bindings),
        may_round=any(map(may_round, sir.operations(sir.body(kernel)))),
    )


def conv_kernel(name: str, kernel: Any, bindings: Bindings, samples: Samples) -> GemmKernel:
    """The same for a kernel with a convolution, as a product of pixels and filters.

    Args:
        samples: values of the module's symbols, which say what images there are.

    Raises:
        LoweringError: no family of kernels can compute it.
    """
    conv = conv_problem(kernel)
    problem = ConvProduct.of(conv, DEPTH_BYTES // sir.element_bytes(conv.element))
    traits = GemmTraits(
        element_bytes=sir.element_bytes(problem.element),
        result_bytes=sir.element_bytes(problem.result.element),
        extra_bytes=_matrix_bytes(problem),
        lhs_share=_pixels_share(problem),
        halo=_halo_traits(problem, bindings, samples),
        conv=True,
    )
    made = _product_kernel(name, kernel, bindings, problem, traits)
    if not is_half(conv.element):
        return replace(made, on_cuda_cores=False)
    if (patches := _patches(problem)) is not None:
        return _over_few_channels(made, problem, patches)
    return replace(made, fallback=gathering_schedule(problem.space[problem.n].constant))


def _patches(problem: ConvProduct) -> PatchProduct | None:
    """The convolution as one over few channels; None if it is none, or finds no room."""
    try:
        return patch_product(problem.conv)
    except LoweringError:
        return None


def _over_few_channels(
    kernel: GemmKernel, problem: ConvProduct, patches: PatchProduct
) -> GemmKernel:
    """The kernel with the schedule of such convolutions, which has no competitor."""
    window = patches.window
    depth = patches.space[patches.k].constant or 1
    share = min(math.prod(window.strides) * window.channels / depth, 1.0)
    return replace(
        kernel,
        traits=replace(kernel.traits, lhs_share=share, halo=None),
        sizes={**kernel.sizes, "k": depth},
        unaligned=f"pixels of {problem.conv.channels}, which windows share in shared memory",
        fallback=PATCH_SCHEDULE,
    )


def _halo_traits(problem: ConvProduct, bindings: Bindings, samples: Samples) -> HaloTraits | None:
    """What tiles with a halo depend on; None if the taps share no pixels, or no map reads them."""
    conv = problem.conv
    try:
        product = HaloProduct.of(conv, problem.depth)
        lhs_matrix(product)
    except LoweringError:
        return None
    high, wide = conv.pixels
    return HaloTraits(
        product.window,
        conv.filters.constant,
        product.grouped,
        ImageShapes.of((problem.space[problem.m], high, wide), bindings, samples),
    )


def _pixels_share(problem: ConvProduct) -> float:
    """The image's elements over those of the lhs: a pixel is in as many rows as there are taps,
    but for the stride, and blocks of channels are filled up."""
    conv = problem.conv
    depth, channels = problem.space[problem.k].constant, conv.channels.constant
    if not depth or not channels:
        return 1.0
    step = math.prod(conv.window.strides) / math.prod(conv.window.lhs_dilations)
    return min(step * channels / depth, 1.0)


def _axes(sizes: Sequence[Expr]) -> tuple[Expr, ...]:
    """What decides: the symbols, if every size depends on one of them; else the sizes."""
    free = [size for size in dict.fromkeys(sizes) if size.constant is None]
    if all(len(size.symbols()) == 1 for size in free):
        return tuple(map(Expr.symbol, sorted({s for size in free for s in size.symbols()})))
    return tuple(free)


def _size(size: Expr, axes: Sequence[Expr]) -> GemmSize:
    if size.constant is not None:
        return size.constant
    if size in axes:
        return SizeOnAxis(axes.index(size), _identity)
    [symbol] = size.symbols()
    return SizeOnAxis(axes.index(Expr.symbol(symbol)), _evaluator(size, symbol))


def _in_units(size: GemmSize, units: Sequence[int]) -> GemmSize:
    """A size as a function of an axis that counts units."""
    if isinstance(size, int) or (unit := units[size.axis]) == 1:
        return size
    function = size.function
    return SizeOnAxis(size.axis, lambda values: function(values * unit))


def _identity(values: Integers) -> Integers:
    return values


def _evaluator(size: Expr, symbol: int) -> SizeFunction:
    def evaluate(values: Integers) -> Integers:
        # The arithmetic of expressions is that of Python's operators, so arrays will do.
        at: Mapping[int, Any] = {symbol: values}
        result: Any = size.evaluate(at)
        found: Integers = result
        return found

    return evaluate


def _traits(problem: GemmProblem) -> GemmTraits:
    batch = range(problem.m)

    def shared(accesses: Sequence[Access]) -> bool:
        return problem.m > 0 and not any(a.offset.dims() & set(batch) for a in accesses)

    return GemmTraits(
        element_bytes=sir.element_bytes(problem.element),
        result_bytes=sir.element_bytes(problem.result.element),
        extra_bytes=_matrix_bytes(problem),
        weights=len(problem.weights),
        lhs_shared=shared([problem.lhs]),
        rhs_shared=shared(problem.weights),
        lhs_k_major=_is_k_major(problem, problem.lhs),
        rhs_k_major=all(_is_k_major(problem, weight) for weight in problem.weights),
        body_cycles=_body_cycles(problem),
    )


def _body_cycles(problem: GemmProblem) -> float:
    if problem.epilogue is None:
        return 0.0
    return body_cycles(op.name for op in sir.operations(problem.epilogue))


def _matrix_bytes(problem: GemmProblem) -> int:
    """Bytes that the epilogue reads for each element of the result."""
    matrices = (a for a in problem.extras if {problem.m, problem.n} <= a.offset.dims())
    return sum(sir.element_bytes(a.element) for a in matrices)


def _is_k_major(problem: GemmProblem, access: Access) -> bool:
    return access.stride(problem.k) == Expr.const(1)


def _unaligned(problem: GemmProblem, bindings: Bindings) -> str | None:
    """Why there are no tensor maps; that a stride suits them has to be known."""
    try:
        matrices = [lhs_matrix(problem)]
        matrices += [weight_matrix(problem, i) for i in range(len(problem.weights))]
    except LoweringError as error:
        return str(error).partition(". ")[0]  # without the way out, which is taken here
    multiple = MAP_ALIGNMENT // sir.element_bytes(problem.element)
    for matrix in matrices:
        for stride in matrix.strides[1:]:
            if bindings.divisor(stride) % multiple:
                return (
                    f"reads argument {matrix.access.operand} with a stride of {stride} elements, "
                    f"not known to be a multiple of {multiple}"
                )
    result = result_matrix(problem)  # one that there is none for is stored without
    multiple = MAP_ALIGNMENT // sir.element_bytes(problem.result.element)
    for stride in result.strides[1:] if result is not None else ():
        if bindings.divisor(stride) % multiple:
            return f"stores rows {stride} elements apart, not known to be a multiple of {multiple}"
    return None
