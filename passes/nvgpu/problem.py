# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""From a `shapejit.kernel` with one gemm to the problem that the emitters solve.

Every operand is a contiguous tensor read through an index map, so its element at indices
(batch.., m, n, k) lies at one linear offset, a polynomial. Its coefficients are the strides: all
transposes, batched, broadcast and strided operands are the same case with other strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.gpu.interface import Im2colMap, TensorMap
from shapejit.passes.nvgpu.builder import Num, Type, add
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.ptx import half_name
from shapejit.passes.nvgpu.target import MAP_ALIGNMENT
from shapejit.symbolic import Expr, Ranges, linearize, map_exprs
from shapejit.symbolic.expr import ONE, ZERO

_MAX_MAP_RANK = 5
_MAX_BOX = 256


def check_box(box: Sequence[int]) -> None:
    """Checks that TMA can load a box of so many elements along each dim.

    Raises:
        LoweringError: it cannot.
    """
    if (longest := max(box)) > _MAX_BOX:
        raise LoweringError(
            f"has tiles that are {longest} long; TMA loads up to {_MAX_BOX} at once. Use a "
            "schedule of smaller tiles"
        )


def is_half(type_: Type) -> bool:
    """Whether a type is bf16 or f16."""
    return isinstance(type_, (ir.F16Type, ir.BF16Type))


@dataclass(frozen=True)
class Access:
    """A tensor in memory, read or written through an index map.

    Attributes:
        operand: number of the kernel's argument or, after them, result.
        element: its element type.
        offset: linear offset of the element, over the dims of the space.
    """

    operand: int
    element: Type
    offset: Expr

    @property
    def start(self) -> Expr:
        """The offset at index 0."""
        return self.offset.substitute(dims=dict.fromkeys(self.offset.dims(), ZERO))

    def stride(self, dim: int) -> Expr | None:
        """How far apart neighbours along a dim are; None if that depends on where they are."""
        stride = self.offset.stride(dim)
        return None if stride is None or stride.dims() else stride

    @property
    def is_linear(self) -> bool:
        """Whether all its strides are fixed."""
        return all(self.stride(dim) is not None for dim in self.offset.dims())


@dataclass(frozen=True)
class GemmProblem:
    """``result[b.., m, n] = epilogue(sum over k of lhs * w for each weight w, extras..)``

    Attributes:
        space: sizes of the dims: batch dims, m, n, k.
        lhs: over all dims, independent of n.
        weights: over all dims, independent of m; one, or two for a gated pair.
        extras: what the epilogue reads, over the dims but k.
        result: over the dims but k, contiguous.
        epilogue: the region's block: sums and extras to the result; None for the sum itself.
    """

    space: tuple[Expr, ...]
    lhs: Access
    weights: tuple[Access, ...]
    extras: tuple[Access, ...]
    result: Access
    epilogue: Any = None

    @property
    def m(self) -> int:
        """The dim of the result's rows; n and k follow it, batch dims precede it."""
        return len(self.space) - 3

    @property
    def n(self) -> int:
        return len(self.space) - 2

    @property
    def k(self) -> int:
        return len(self.space) - 1

    @property
    def element(self) -> Type:
        """Of the factors."""
        return self.lhs.element

    def lhs_matrix(self) -> Matrix:
        """The lhs for TMA.

        Raises:
            LoweringError: TMA cannot read it.
        """
        return Matrix.of(self, self.lhs, (self.k, self.m))

    def weight_matrix(self, number: int) -> Matrix:
        """A weight for TMA.

        Raises:
            LoweringError: TMA cannot read it.
        """
        return Matrix.of(self, self.weights[number], (self.k, self.n))


# Reading the IR -----------------------------------------------------------------------------------


def gemm_problem(kernel: Any) -> GemmProblem:
    """The problem of a kernel.

    Args:
        kernel: ``shapejit.kernel``.

    Raises:
        LoweringError: it holds other ops, or a gemm of types that the tensor cores lack.
    """
    body = sir.body(kernel)
    *ops, terminator = (op for op in sir.operations(body) if op.name != "arith.constant")
    gemms = [op for op in ops if op.name == "shapejit.gemm"]
    for op in ops:
        if op.name not in ("shapejit.gemm", "shapejit.view"):
            raise LoweringError(
                f"holds '{op.name}' beside a gemm; pointwise ops go into the gemm's epilogue"
            )
    if len(gemms) != 1 or list(terminator.operands) != list(gemms[0].results):
        raise LoweringError("does not yield exactly the result of one gemm")
    [gemm] = gemms
    _check_types(gemm)
    reader = OperandReader(kernel)
    space = sir.attr_sizes(gemm.attributes["space"])
    _, weights, _ = gemm.attributes["operandSegmentSizes"]
    accesses = [
        reader.read(value, map_exprs(map_), space)
        for value, map_ in zip(gemm.operands, sir.op_maps(gemm), strict=True)
    ]
    [result] = gemm.results
    identity = [Expr.dim(i) for i in range(len(space) - 1)]
    blocks = gemm.regions[0].blocks
    return GemmProblem(
        space=space,
        lhs=accesses[0],
        weights=tuple(accesses[1 : 1 + weights]),
        extras=tuple(accesses[1 + weights :]),
        result=reader.access(len(body.arguments), result, identity, space[:-1]),
        epilogue=blocks[0] if len(blocks) else None,
    )


def _check_types(gemm: Any) -> None:
    _, weights, _ = gemm.attributes["operandSegmentSizes"]
    factors = [value.type.element_type for value in list(gemm.operands)[: 1 + weights]]
    known = is_half(factors[0]) or isinstance(factors[0], ir.F32Type)
    if not known or any(factor != factors[0] for factor in factors):
        found = ", ".join(map(str, factors))
        raise LoweringError(
            f"multiplies {found}; this lowering takes factors of one type: bf16, f16 or f32"
        )
    if "accumulate" in gemm.attributes:
        accumulate = ir.TypeAttr(gemm.attributes["accumulate"]).value
        if not isinstance(accumulate, ir.F32Type):
            raise LoweringError(f"sums in {accumulate}; sums are in f32")
    if len(factors) > 3:
        raise LoweringError(f"has {len(factors) - 1} weights; there are at most two")


class OperandReader:
    """Finds the memory behind the values of a kernel."""

    def __init__(self, kernel: Any) -> None:
        arguments = sir.body(kernel).arguments
        self._arguments = {value: number for number, value in enumerate(arguments)}

    def read(self, value: Any, indices: Sequence[Expr], space: Sequence[Expr]) -> Access:
        """A kernel argument, or a view of one, at indices over the dims of a space."""
        while (producer := sir.defining_op(value)) is not None:
            dims = dict(enumerate(indices))
            source = map_exprs(producer.attributes["map"].value)
            indices = [index.substitute(dims=dims) for index in source]
            value = producer.operands[0]
        return self.access(self._arguments[value], value, indices, space)

    def access(
        self, operand: int, value: Any, indices: Sequence[Expr], space: Sequence[Expr]
    ) -> Access:
        ranges = Ranges(None, list(space))
        offset = linearize([ranges.simplify(index) for index in indices], sir.shape_of(value))
        return Access(operand, value.type.element_type, ranges.simplify(offset))


# Tensor maps --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Matrix:
    """An operand as TMA sees it.

    Attributes:
        access: what it reads.
        dims: numbers of the space's dims, the one with neighbouring elements first.
        sizes, strides: of these dims, strides in elements.
        promotion: bytes that the second-level cache fetches when it misses a line.
        rounds: whether TMA rounds float32 to tf32.
    """

    access: Access
    dims: tuple[int, ...]
    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    promotion: int = 256
    rounds: bool = True

    @property
    def has_parts(self) -> bool:
        """Whether tiles at the edge may be loaded in smaller boxes, through a map of their own."""
        return True

    @staticmethod
    def of(problem: GemmProblem, access: Access, across: Sequence[int]) -> Matrix:
        """The matrix of an access.

        Args:
            across: the two dims of its tiles; the first one is preferred as the contiguous one.

        Raises:
            LoweringError: TMA cannot read it.
        """
        name = f"reads argument {access.operand}"
        if not access.is_linear:
            raise LoweringError(f"{name} at {access.offset}, which has no fixed strides")
        sizes = problem.space
        strides = {dim: access.stride(dim) or ZERO for dim in range(len(sizes))}
        # Of one element, or of none, any stride will do.
        empty = ZERO in sizes
        contiguous = next((dim for dim in across if strides[dim] == ONE), None)
        if contiguous is None:
            contiguous = next((dim for dim in across if sizes[dim] == ONE or empty), None)
        if contiguous is None:
            raise LoweringError(
                f"{name} with strides {', '.join(str(strides[dim]) for dim in across)} along its "
                "tiles; TMA needs one of 1. Use a schedule of the family unaligned"
            )
        [other] = (dim for dim in across if dim != contiguous)
        batch = [dim for dim in reversed(range(problem.m)) if strides[dim] != ZERO]
        dims = (contiguous, other, *batch)
        if len(dims) > _MAX_MAP_RANK:
            raise LoweringError(
                f"{name} along {len(batch)} batch dims; TMA takes {_MAX_MAP_RANK - 2}. Collapse "
                "them, or use a schedule of the family unaligned"
            )
        width = sir.element_bytes(access.element)
        found = [
            Expr.const(MAP_ALIGNMENT // width)
            if empty or sizes[dim] == ONE
            else _stride(name, strides[dim], width)
            for dim in dims[1:]
        ]
        return Matrix(access, dims, tuple(sizes[dim] for dim in dims), (ONE, *found))

    def coordinates(self, function: KernelFunction, place: Sequence[Num]) -> list[Num]:
        """TMA's coordinates of what is at indices of `dims`, the fastest moving dim first."""
        first, *rest = place
        return [add(first, function.size(self.access.start)), *rest]

    def record(
        self, function: KernelFunction, box: Sequence[int], swizzle: int
    ) -> TensorMap | Im2colMap:
        """The tensor map for boxes of ``box`` elements along the first two dims.

        A start other than 0 becomes part of the coordinate along the contiguous dim (see
        `coordinates`), so that the address of the operand itself stays the base, aligned.

        Raises:
            LoweringError: TMA does not load as much at once.
        """
        sizes = (self.sizes[0] + self.access.start, *self.sizes[1:])
        check_box(box)
        return TensorMap(
            operand=self.access.operand,
            element=map_element(self.access.element, rounds=self.rounds),
            dims=tuple(function.value_number(size) for size in sizes),
            strides=tuple(function.value_number(stride) for stride in self.strides[1:]),
            box=(*box, *[1] * (len(self.dims) - 2)),
            swizzle=swizzle,
            promotion=self.promotion,
        )


def _stride(name: str, stride: Expr, width: int) -> Expr:
    """The stride of a dim in a tensor map.

    Raises:
        LoweringError: it is known not to suit TMA.
    """
    multiple = MAP_ALIGNMENT // width
    if stride == ZERO:
        raise LoweringError(f"{name} with a stride of 0 within its tiles; TMA cannot broadcast")
    if (known := stride.constant) is not None and known % multiple:
        raise LoweringError(
            f"{name} with a stride of {known} elements; TMA needs multiples of {multiple}. Use a "
            "schedule of the family unaligned"
        )
    return stride


def element_name(element: Type) -> str:
    """An element type as the interface of a kernel names it."""
    return half_name(element) if is_half(element) else str(element)


def map_element(element: Type, *, rounds: bool = True) -> str:
    """A factor's element type as its tensor map has it.

    TMA rounds float32 to tf32, to the nearest and to even: the tensor cores would cut off the bits
    that they do not take, which more than doubles the error.

    Args:
        rounds: whether it does; else all bits arrive.
    """
    return "tf32" if rounds and isinstance(element, ir.F32Type) else element_name(element)


def lhs_matrix(problem: GemmProblem) -> Matrix:
    """The lhs for TMA."""
    return problem.lhs_matrix()


def weight_matrix(problem: GemmProblem, number: int) -> Matrix:
    """A weight for TMA."""
    return problem.weight_matrix(number)


def is_multiple(size: Expr, divisor: int) -> bool:
    """Whether an expression is known to be a multiple, or not known not to be.

    The sizes of kernels of the aligned families are multiples of 16 bytes wherever they are strides
    that are not known; the caller checks that. ``8 * s0 + 3`` is known to be none.
    """
    rest = sum(coefficient for monomial, coefficient in size.terms if not monomial)
    varies = any(coefficient % divisor for monomial, coefficient in size.terms if monomial)
    return varies or rest % divisor == 0


def result_matrix(problem: GemmProblem) -> Matrix | None:
    """The result for TMA; None if TMA cannot store it."""
    access = problem.result
    width = sir.element_bytes(access.element)
    row = access.stride(problem.m) or ZERO
    single = problem.space[problem.m] == ONE
    if width != 2 or not (single or is_multiple(row, MAP_ALIGNMENT // width)):
        return None
    try:
        return Matrix.of(problem, access, (problem.n, problem.m))
    except LoweringError:
        return None
