# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Scalar bodies of loops, emitted into a kernel.

A body is emitted once for each element of a vector, op by op, and what does not differ between them
(what belongs to the row, the address of a gathered row) only once: an op on the same values is the
same value.

Values of f16 and bf16 are computed in f32, and only an explicit ``arith.truncf`` rounds. Functions
have rules in `functions`, since upstream's lowering for GPUs calls CUDA's device library; the rest
of ``arith`` goes through upstream.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from mlir import ir
from mlir.dialects import arith

from shapejit import ir as sir
from shapejit.passes.gpu_loops import functions
from shapejit.passes.gpu_loops.problem import Key, is_known
from shapejit.passes.nvgpu import elementary, ptx
from shapejit.passes.nvgpu.builder import Type, Value, constant, f32
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.problem import is_half
from shapejit.symbolic import Expr, map_exprs

# Ops that are not scalar arithmetic.
_CONTEXT_OPS = ("shapejit.yield", "shapejit.index", "shapejit.size", "tensor.extract")
# What upstream makes PTX of, for all types of the dialect.
_UPSTREAM = frozenset(
    (
        *("addf", "subf", "mulf", "divf", "negf", "cmpf"),
        *("addi", "subi", "muli", "divsi", "divui", "remsi", "remui", "cmpi"),
        *("andi", "ori", "xori", "shli", "shrsi", "shrui"),
        *("maxsi", "minsi", "maxui", "minui", "select", "constant", "bitcast"),
        *("extf", "truncf", "sitofp", "uitofp", "fptosi", "fptoui"),
        *("extsi", "extui", "trunci", "index_cast", "index_castui"),
    )
)


# What serves results of 16 bits: quotients within 2 units of the last place, and exponentials in
# two instructions where those of f32 take twelve: softmax is bound by them else, not by memory.
_SHORT: dict[str, Callable[..., Value]] = {
    "arith.divf": ptx.divide,
    "math.exp": elementary.exp_short,
    "math.exp2": ptx.exp2_flushed,
}


class BodyContext(Protocol):
    """What a body can ask for, besides its arguments."""

    def index(self, dim: int) -> Value:
        """The current index in a dim of the body's loop, of index type."""

    def size(self, expr: Expr) -> Value:
        """The value of a size over the kernel's symbols, of index type."""

    def extract(self, tensor: Key, indices: Sequence[Value]) -> Value:
        """An element of a tensor at computed indices, in its compute type."""

    def once(self, key: Hashable, build: Callable[[], list[Value]]) -> list[Value]:
        """``build()``, or what it gave the last time, if that is still in scope."""

    def remember_source(self, rounded: Value, source: Value) -> None:
        """Says of what a value is the rounding: to store it, that need not be done twice."""


def compute_type(element: Type) -> Type:
    """The type in which values of an element type are computed."""
    return f32() if is_half(element) else element


def check_body(block: Any) -> None:
    """Refuses a body that cannot be emitted.

    Raises:
        LoweringError: it has an op, or a type, without code for GPUs.
    """
    for op in sir.operations(block):
        if op.name not in _CONTEXT_OPS:
            _rule(op)


def emit_body(
    block: Any, arguments: Sequence[Value], context: BodyContext, *, short: bool = False
) -> list[Value]:
    """Emits a body at the current point and returns what it yields, in compute types.

    Args:
        block: ends with ``shapejit.yield``.
        arguments: values of the block's arguments, in compute types.
        context: answers for indices, sizes and captured tensors.
        short: whether functions of f32 need no more than the precision of results of 16 bits.

    Raises:
        LoweringError: see `check_body`.
    """
    values: dict[Value, Value] = dict(zip(block.arguments, arguments, strict=True))

    def value_of(operand: Value) -> Value:
        if operand not in values:
            # Folding may have moved a constant out of the body; nothing else can be outside.
            [values[operand]] = _emit(sir.defining_op(operand), [], context, short)
        return values[operand]

    for op in sir.operations(block):
        if op.name == "shapejit.yield":
            return [value_of(operand) for operand in op.operands]
        if op.name == "tensor.extract":
            tensor, *indices = op.operands
            results = [context.extract(tensor, [value_of(index) for index in indices])]
        else:
            results = _emit(op, [value_of(operand) for operand in op.operands], context, short)
        values.update(zip(op.results, results, strict=True))
    raise ValueError("the block has no shapejit.yield")


def _emit(op: Any, operands: list[Value], context: BodyContext, short: bool) -> list[Value]:
    match op.name:
        case "shapejit.index":
            return [context.index(ir.IntegerAttr(op.attributes["dim"]).value)]
        case "shapejit.size":
            return [context.size(map_exprs(op.attributes["expr"].value)[0])]
    is_short = short and op.name in _SHORT and isinstance(operands[0].type, ir.F32Type)
    rule = _SHORT[op.name] if is_short else _rule(op)
    results = context.once((sir.key(op), *operands), lambda: [rule(*operands)])
    if op.name == "arith.truncf" and isinstance(operands[0].type, ir.F32Type):
        context.remember_source(results[0], operands[0])
    return results


def _rule(op: Any) -> Callable[..., Value]:
    """What emits an op from its operands in compute types.

    Raises:
        LoweringError: there is no code for it.
    """
    types = [value.type for value in (*op.operands, *op.results)]
    for type_ in types:
        if not isinstance(type_, ir.IndexType) and not is_known(type_):
            raise LoweringError(f"computes with {type_}, for which there is no GPU code")
    result = op.results[0].type
    if op.name == "arith.truncf" and is_half(result):
        return lambda number: _rounded(number, result)
    if op.name == "arith.extf" and compute_type(op.operands[0].type) == result:
        return lambda number: number
    if op.name == "arith.constant" and is_half(result):
        return lambda: constant(ir.FloatAttr(op.attributes["value"]).value, f32())
    kind = compute_type(op.operands[0].type) if len(op.operands) else result
    if (function := functions.find(op.name, kind)) is not None:
        return function
    dialect, _, name = op.name.partition(".")
    if dialect == "arith" and name in _UPSTREAM:
        return lambda *operands: _again(op, operands)
    raise LoweringError(
        f"computes '{op.name}' of {kind}, for which there is no GPU code; "
        + (
            f"compute it in f32, or ask for a function that has f64: {functions.known(kind)}"
            if isinstance(kind, ir.F64Type)
            else "ops of arith and math may be in loops"
        )
    )


def _rounded(number: Value, element: Type) -> Value:
    """A number rounded to a type of 16 bits, as f32."""
    if not isinstance(number.type, ir.F32Type):
        number = arith.truncf(f32(), number)
    return ptx.round_to_half(number, element)


def _again(op: Any, operands: Sequence[Value]) -> Value:
    """The same op on other operands, in compute types."""
    again = ir.Operation.create(
        op.name,
        results=[compute_type(value.type) for value in op.results],
        operands=list(operands),
        attributes=sir.attributes(op),
        loc=op.location,
    )
    return again.results[0]
