# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arithmetic on sizes and Python numbers. Nothing is built: sizes are expressions."""

from __future__ import annotations

from typing import Any

from shapejit.importer.context import Context, dim_index
from shapejit.importer.registry import rule
from shapejit.importer.values import Tensor
from shapejit.symbolic import Expr, product


@rule("aten.size.int", "aten.sym_size.int")
def _size(_: Context, x: Tensor, dim: int) -> Expr:
    return x.shape[dim_index(dim, x.rank)]


@rule("aten.numel", "aten.sym_numel")
def _numel(_: Context, x: Tensor) -> Expr:
    return product(x.shape)


@rule("aten.add.int")
def _add(_: Context, x: Any, y: Any) -> Any:
    return x + y


@rule("aten.sub.int")
def _sub(_: Context, x: Any, y: Any) -> Any:
    return x - y


@rule("aten.mul.int")
def _mul(_: Context, x: Any, y: Any) -> Any:
    return x * y


@rule("aten.floordiv.int")
def _floordiv(_: Context, x: Any, y: Any) -> Any:
    return x // y


@rule("aten.neg.int")
def _neg(_: Context, x: Any) -> Any:
    return -x


@rule("aten.Int.bool")
def _int_of_bool(_: Context, x: bool) -> int:
    return int(x)


@rule("aten.Float.bool", "aten.Float.Scalar")
def _float(_: Context, x: Any) -> Any:
    return x if isinstance(x, Expr) else float(x)
