# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Constants and types of scalars and vectors alike."""

from __future__ import annotations

from typing import Any, TypeAlias

from mlir import ir
from mlir.dialects import arith

Value: TypeAlias = Any  # mlir.ir.Value; the bindings carry no types
Type: TypeAlias = Any  # mlir.ir.Type


def element_of(type_: Type) -> Type:
    """The type of a vector's elements, or a scalar type itself."""
    return type_.element_type if isinstance(type_, ir.VectorType) else type_


def is_float(type_: Type) -> bool:
    """Whether values of a scalar or vector type are floats."""
    return isinstance(element_of(type_), ir.FloatType)


def with_element(type_: Type, element: Type) -> Type:
    """A scalar or vector type with other elements."""
    if isinstance(type_, ir.VectorType):
        return ir.VectorType.get(type_.shape, element)
    return element


def constant(type_: Type, number: float | int) -> Value:
    """A constant of a scalar type or, in all lanes, of a vector type."""
    element = element_of(type_)
    kind = ir.FloatAttr if is_float(type_) else ir.IntegerAttr
    attribute = kind.get(element, number)
    if isinstance(type_, ir.VectorType):
        attribute = ir.DenseElementsAttr.get_splat(type_, attribute)
    return arith.constant(type_, attribute)


def integer(bits: int) -> Type:
    """``i<bits>``"""
    return ir.IntegerType.get_signless(bits)
