# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Elements of tensors in global memory: addresses, loads, stores, index expressions.

f16 and bf16 are computed in f32, bools lie in memory as bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlir import ir
from mlir.dialects import arith, llvm

from shapejit.passes.nvgpu import ptx
from shapejit.passes.nvgpu.bodies import compute_type
from shapejit.passes.nvgpu.builder import (
    Num,
    Type,
    Value,
    add,
    constant,
    i64,
    integer,
    mul,
    pointer,
    sub,
    udiv,
    value,
    wide,
)
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.problem import is_half
from shapejit.symbolic import Expr

_DYNAMIC = -(1 << 31)  # marks an index of llvm.getelementptr that is a value


def storage_type(element: Type) -> Type:
    """The type of an element in memory."""
    if isinstance(element, ir.IntegerType) and element.width == 1:
        return integer(8)
    return element


def bytes_of(element: Type) -> int:
    """Bytes of an element in memory."""
    return int(storage_type(element).width) // 8


def from_storage(stored: Value, element: Type) -> Value:
    """A loaded element in its compute type."""
    if storage_type(element) != element:
        return arith.cmpi(arith.CmpIPredicate.ne, stored, constant(0, stored.type))
    return arith.extf(compute_type(element), stored) if is_half(element) else stored


def element_address(base: Value, offset: Num, element: Type) -> Value:
    """The address of an element at an i64 offset."""
    type_ = ir.TypeAttr.get(storage_type(element))
    return llvm.GEPOp(pointer(1), base, [value(offset, i64())], [_DYNAMIC], type_, 0).result


def load_element(base: Value, offset: Num, element: Type) -> Value:
    """The element at an offset, in its compute type."""
    address = element_address(base, offset, element)
    stored = llvm.LoadOp(storage_type(element), address, alignment=bytes_of(element)).result
    return from_storage(stored, element)


def store_elements(base: Value, offset: Num, results: Sequence[Value], element: Type) -> None:
    """Stores one or two neighbouring elements at an offset, rounded to nearest even."""
    address = element_address(base, offset, element)
    word = stored_elements(results, element)
    llvm.StoreOp(word, address, alignment=len(results) * bytes_of(element))


def stored_elements(results: Sequence[Value], element: Type) -> Value:
    """One or two results in their compute type, as one word in memory."""
    if is_half(element):
        # In pairs; see `ptx.round_to_half`.
        packed = ptx.pack_halves(results[0], results[-1], element)
        return packed if len(results) > 1 else arith.trunci(integer(16), packed)
    stored = storage_type(element)
    if stored != element:
        results = [arith.extui(stored, result) for result in results]
    if len(results) == 1:
        return results[0]
    word = llvm.mlir_undef(ir.VectorType.get([len(results)], stored))
    for number, result in enumerate(results):
        word = llvm.InsertElementOp(word, result, value(number)).result
    return word


class IndexAlgebra:
    """Index expressions, which are not negative, as i64: for `Expr.build`.

    Args:
        function: gives the symbols.
        dims: the index along every dim, i32.
    """

    def __init__(self, function: KernelFunction, dims: Mapping[int, Num]) -> None:
        self._function, self._dims = function, dims

    def constant(self, number: int) -> Num:
        return number

    def symbol(self, index: int) -> Num:
        return self._function.size(Expr.symbol(index), 8)

    def dim(self, index: int) -> Num:
        return wide(self._dims[index])

    def add(self, lhs: Num, rhs: Num) -> Num:
        return add(lhs, rhs)

    def mul(self, lhs: Num, rhs: Num) -> Num:
        return mul(lhs, rhs)

    def floordiv(self, lhs: Num, rhs: Num) -> Num:
        return udiv(lhs, rhs)

    def mod(self, lhs: Num, rhs: Num) -> Num:
        return sub(lhs, mul(rhs, udiv(lhs, rhs)))
