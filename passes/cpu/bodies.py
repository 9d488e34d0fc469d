# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Scalar bodies of loops and epilogues, emitted into a kernel.

Bodies are cloned op by op. Values of f16 and bf16 are computed in f32: ops on them are made again
on f32, and only an explicit `arith.truncf` rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlir import ir
from mlir.dialects import arith

from shapejit import ir as sir
from shapejit.passes.cpu.evaluate import BodyContext
from shapejit.passes.cpu.indexing import Value
from shapejit.passes.cpu.scalars import compute_type, constant, from_storage, to_storage
from shapejit.symbolic import Expr, map_exprs

# Scalar ops that cost about as much as the load that would save them.
_CHEAP_OPS = 2
# arith.cmpi's slt and ult.
_LESS = (2, 6)
_COSTLY_DIALECTS = ("math.", "tensor.")
_COSTLY_OPS = ("arith.divf", "arith.divsi", "arith.divui", "arith.remsi", "arith.remui")


def is_costly(block: Any) -> bool:
    """Whether to load a value beats to compute it again with this body."""
    ops = [op.name for op in sir.operations(block)[:-1] if op.name != "arith.constant"]
    if any(name.startswith(_COSTLY_DIALECTS) or name in _COSTLY_OPS for name in ops):
        return True
    return len(ops) > _CHEAP_OPS or len(block.arguments) > 1


def captured_tensors(block: Any) -> list[Value]:
    """Tensors from outside that a body reads with `tensor.extract`."""
    return [op.operands[0] for op in sir.operations(block) if op.name == "tensor.extract"]


def split_indices(block: Any, space: Sequence[Expr]) -> dict[int, tuple[int, ...]]:
    """For each dim, the constants within it below which its index is compared to be."""
    found: dict[int, set[int]] = {}
    for op in sir.operations(block):
        if op.name != "arith.cmpi" or ir.IntegerAttr(op.attributes["predicate"]).value not in _LESS:
            continue
        index, limit = map(sir.defining_op, op.operands)
        if index is None or limit is None:
            continue
        if index.name == "shapejit.index" and limit.name == "arith.constant":
            dim = ir.IntegerAttr(index.attributes["dim"]).value
            value = ir.IntegerAttr(limit.attributes["value"]).value
            if 0 < value < (space[dim].constant or 0):
                found.setdefault(dim, set()).add(value)
    return {dim: tuple(sorted(values)) for dim, values in found.items()}


def emit_body(block: Any, context: BodyContext, arguments: Sequence[Value]) -> list[Value]:
    """Emits a body at the current point and returns what it yields.

    Args:
        block: ends with ``shapejit.yield``.
        context: answers for indices, sizes and captured tensors.
        arguments: values of the block's arguments, in compute types.
    """
    values: dict[Value, Value] = dict(zip(block.arguments, arguments, strict=True))

    def value_of(operand: Value) -> Value:
        if operand not in values:
            # Folding may have moved a constant out of the body; nothing else can be outside.
            values[operand] = _clone(sir.defining_op(operand), []).results[0]
        return values[operand]

    for op in sir.operations(block):
        match op.name:
            case "shapejit.yield":
                return [value_of(operand) for operand in op.operands]
            case "shapejit.index":
                results = [context.index(ir.IntegerAttr(op.attributes["dim"]).value)]
            case "shapejit.size":
                results = [context.size(map_exprs(op.attributes["expr"].value)[0])]
            case "tensor.extract":
                tensor, *indices = op.operands
                results = [context.extract(tensor, [value_of(index) for index in indices])]
            case _:
                results = _emit(op, [value_of(operand) for operand in op.operands])
        values.update(zip(op.results, results, strict=True))
    raise ValueError("the block has no shapejit.yield")


def _is_half(type_: Any) -> bool:
    return isinstance(type_, (ir.F16Type, ir.BF16Type))


def _emit(op: Any, operands: list[Value]) -> list[Value]:
    """An arith or math op on values in compute types."""
    types = [value.type for value in (*op.operands, *op.results)]
    if not any(map(_is_half, types)):
        return list(_clone(op, operands).results)
    result = op.results[0].type
    if op.name == "arith.constant":
        return [constant(compute_type(result), ir.FloatAttr(op.attributes["value"]).value)]
    if op.name == "arith.truncf" and _is_half(result):
        [value] = operands
        if value.type != compute_type(result):
            value = arith.truncf(compute_type(result), value)
        return [from_storage(to_storage(value, result), result)]
    if op.name == "arith.extf" and operands[0].type == result:
        return operands
    again = ir.Operation.create(
        op.name,
        results=[compute_type(value.type) for value in op.results],
        operands=operands,
        attributes=sir.attributes(op),
        loc=op.location,
    )
    return list(again.results)


def _clone(op: Any, operands: Sequence[Value]) -> Any:
    clone = op.clone().operation
    for number, operand in enumerate(operands):
        clone.operands[number] = operand
    return clone
