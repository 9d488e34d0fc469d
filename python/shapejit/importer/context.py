# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a rule gets to work with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from shapejit.importer import dtypes
from shapejit.importer.builder import Builder
from shapejit.importer.scalar_ops import Scalar, ScalarOps
from shapejit.importer.size_float import SizeFloat
from shapejit.importer.values import Affine, Number, Splat, Tensor
from shapejit.symbolic import Expr


class UnsupportedCaseError(Exception):
    """An operator has a rule, but not for these operands; `reason` completes "aten.op with ..."."""


class Context:
    """The operator being imported, and the builder.

    Attributes:
        builder: makes ops of our dialect.
        ops: makes scalar operations in bodies.
        op: name of the operator: ``aten.add.Tensor``.
        dtypes: torch's dtypes of its tensor results.
        shapes: torch's sizes of its tensor results, None where they vary.
    """

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.ops: ScalarOps = builder.ops
        self.op = ""
        self.dtypes: tuple[torch.dtype, ...] = ()
        self.shapes: tuple[tuple[int | None, ...], ...] = ()

    @property
    def dtype(self) -> torch.dtype:
        """torch's dtype of the only result."""
        return self.dtypes[0]

    def tensor(self, operand: Any, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor, or a scalar as a 0-d tensor."""
        if isinstance(operand, Tensor):
            return operand
        kind = dtype or dtypes.scalar_dtype(operand)
        if isinstance(operand, Expr):
            return self.builder.known((), kind, Affine(operand))
        if isinstance(operand, SizeFloat):
            return self.size_float(operand, kind)
        return self.builder.splat((), kind, operand)

    def size_float(self, value: SizeFloat, dtype: torch.dtype) -> Tensor:
        """A float computed from sizes, as a 0-d tensor."""
        return self.builder.pointwise(lambda: value.emit(self.ops, dtype), [], dtype, ())

    def pointwise(
        self,
        body: Callable[..., Scalar],
        *operands: Any,
        compute: torch.dtype | None = None,
        result: torch.dtype | None = None,
    ) -> Tensor:
        """A pointwise op on tensors and scalars that broadcast.

        Args:
            body: gets one scalar an operand and gives the result's scalar.
            operands: tensors, sizes and Python numbers.
            compute: dtype to which all operands are converted first; by default the one in which
                torch computes results of the operator's dtype.
            result: dtype of the result; by default torch's.
        """
        dtype = self.dtype if result is None else result
        inner = dtypes.compute_dtype(dtype) if compute is None else compute
        tensors = [self.tensor(operand, None) for operand in operands]

        def converted(*scalars: Scalar) -> Scalar:
            return body(*(self.ops.cast(scalar, inner) for scalar in scalars))

        return self.builder.pointwise(converted, tensors, dtype)

    def cast(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """`x` converted as torch's `to` does; contents stay known where they can."""
        if x.dtype is dtype:
            return x
        if isinstance(x.content, Splat):
            return self.builder.splat(x.shape, dtype, splat_cast(x.content.value, dtype))
        wide = dtype in (torch.int32, torch.int64) and dtypes.is_integer(x.dtype)
        if x.content is not None and wide:
            return Tensor(x.shape, dtype, content=x.content)
        return self.builder.pointwise(lambda s: self.ops.cast(s, dtype), [x], dtype)

    def permuted(self, x: Tensor, dims: Sequence[int]) -> Tensor:
        """The view with dim i of the result taken from dim ``dims[i]`` of `x`."""
        indices = [Expr.const(0)] * x.rank
        for position, dim in enumerate(dims):
            indices[dim] = Expr.dim(position)
        return self.builder.view(x, [x.shape[dim] for dim in dims], indices)


def splat_cast(value: Number, dtype: torch.dtype) -> Number:
    """A constant converted to `dtype` by torch itself, rounding and wrapping included."""
    source = torch.float64 if isinstance(value, float) else None
    item: Number = torch.tensor(value, dtype=source).to(dtype).item()
    return item


def dim_index(dim: int, rank: int) -> int:
    """A dim number from 0 on."""
    return dim + max(rank, 1) if dim < 0 else dim


def dim_list(dims: Any, rank: int) -> list[int]:
    """Dim numbers from an int, a list, or None or an empty list for all dims."""
    if dims is None or dims == []:
        return list(range(rank))
    if isinstance(dims, int):
        dims = [dims]
    return sorted({dim_index(dim, rank) for dim in dims}) if rank else []
