# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Scalar bodies of epilogues, emitted into a kernel.

A body is made again op by op. Values of f16 and bf16 are computed in f32, and only an explicit
`arith.truncf` rounds. Functions of `math` have rules here, since upstream's lowering for GPUs calls
CUDA's device library; the rest of `arith` goes through upstream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlir import ir
from mlir.dialects import arith

from shapejit import ir as sir
from shapejit.passes.nvgpu import elementary, ptx
from shapejit.passes.nvgpu.builder import Type, Value, constant, f32
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.problem import is_half
from shapejit.symbolic import Expr, map_exprs

_F32_RULES: dict[str, Callable[..., Value]] = {
    "arith.divf": ptx.divide,
    "math.absf": ptx.magnitude,
    "math.ceil": lambda number: ptx.rounded(number, "rp"),
    "math.copysign": ptx.with_sign,
    "math.erf": elementary.erf,
    "math.exp": elementary.exp,
    "math.exp2": ptx.exp2,
    "math.expm1": elementary.expm1,
    "math.floor": lambda number: ptx.rounded(number, "rm"),
    "math.fma": ptx.fused,
    "math.log": elementary.log,
    "math.log1p": elementary.log1p,
    "math.log2": elementary.log2,
    "math.roundeven": lambda number: ptx.rounded(number, "rn"),
    "math.rsqrt": ptx.reciprocal_root,
    "math.sqrt": ptx.square_root,
    "math.tanh": elementary.tanh,
    "math.trunc": lambda number: ptx.rounded(number, "rz"),
}

# What serves a result of 16 bits.
_SHORT_RULES: dict[str, Callable[..., Value]] = {
    **_F32_RULES,
    "arith.divf": elementary.divide_short,
    "math.exp": elementary.exp_short,
    "math.exp2": ptx.exp2_flushed,
}

# Functions of which 1 more is as cheap, and better.
_ONE_PLUS: dict[str, Callable[..., Value]] = {
    "math.erf": elementary.one_plus_erf,
    "math.tanh": elementary.one_plus_tanh,
}

# Upstream would call CUDA's device library for these.
_WITHOUT_CODE = ("arith.remf",)


def compute_type(element: Type) -> Type:
    """The type in which values of an element type are computed."""
    return f32() if is_half(element) else element


def emit_body(
    block: Any, arguments: Sequence[Value], size: Callable[[Expr], Value], *, short: bool
) -> Value:
    """Emits a body at the current point and returns what it yields, in its compute type.

    Args:
        block: ends with ``shapejit.yield`` of one value.
        arguments: values of the block's arguments, in compute types.
        size: gives the value of a symbolic size, as of index type.
        short: whether functions need no more than the precision of 16-bit results.

    Raises:
        LoweringError: it has an op that PTX cannot compute.
    """
    return _Body(block, arguments, size, short).emit()


class _Body:
    def __init__(
        self, block: Any, arguments: Sequence[Value], size: Callable[[Expr], Value], short: bool
    ) -> None:
        self._block, self._size, self._short = block, size, short
        self._rules = _SHORT_RULES if short else _F32_RULES
        self._values: dict[Value, Value] = dict(zip(block.arguments, arguments, strict=True))

    def emit(self) -> Value:
        for op in sir.operations(self._block):
            if op.name == "shapejit.yield":
                [result] = op.operands
                return self._unrounded(result)
            if not self._only_plus_one(op):
                self._values.update(zip(op.results, self._results(op), strict=True))
        raise ValueError("the block has no shapejit.yield")

    def _value(self, operand: Value) -> Value:
        if operand not in self._values:
            # Folding may have moved a constant out of the body; nothing else can be outside.
            self._values[operand] = self._results(sir.defining_op(operand))[0]
        return self._values[operand]

    def _unrounded(self, result: Value) -> Value:
        """What the body yields, without the last rounding: storing it rounds."""
        producer = sir.defining_op(result)
        if producer is not None and producer.name == "arith.truncf" and is_half(result.type):
            source = producer.operands[0]
            if isinstance(source.type, ir.F32Type):
                return self._value(source)
        return self._value(result)

    def _results(self, op: Any) -> list[Value]:
        if op.name == "shapejit.size":
            return [self._size(map_exprs(op.attributes["expr"].value)[0])]
        if (function := self._plus_one(op)) is not None:
            return [_ONE_PLUS[function.name](self._value(function.operands[0]))]
        return self._emit(op, [self._value(operand) for operand in op.operands])

    # 1 + f(x) -------------------------------------------------------------------------------------

    def _plus_one(self, op: Any) -> Any | None:
        """The function to which an op adds 1, if there is a short form of the sum."""
        if not self._short or op.name != "arith.addf":
            return None
        producers = [sir.defining_op(operand) for operand in op.operands]
        for function, one in (producers, producers[::-1]):
            known = function is not None and function.name in _ONE_PLUS
            if known and _is_one(one) and isinstance(op.results[0].type, ir.F32Type):
                return function
        return None

    def _only_plus_one(self, op: Any) -> bool:
        """Whether nothing needs the function's own value."""
        if op.name not in _ONE_PLUS:
            return False
        users = [user for user, _ in sir.users(op.results[0])]
        return all(self._plus_one(user) is not None for user in users)

    def _emit(self, op: Any, operands: list[Value]) -> list[Value]:
        """An arith or math op on values in compute types."""
        if not op.name.startswith(("math.", "arith.")):
            raise LoweringError(
                f"has '{op.name}' in its epilogue; ops of arith and math may be there"
            )
        results = [compute_type(value.type) for value in op.results]
        if op.name in self._rules and isinstance(results[0], ir.F32Type):
            return [self._rules[op.name](*operands)]
        if op.name.startswith("math.") or op.name in _WITHOUT_CODE:
            raise LoweringError(
                f"computes '{op.name}' of {results[0]} in its epilogue, for which there is no GPU "
                "code"
            )
        result = op.results[0].type
        if op.name == "arith.constant" and is_half(result):
            return [constant(ir.FloatAttr(op.attributes["value"]).value, f32())]
        if op.name == "arith.truncf" and is_half(result):
            number = operands[0]
            if not isinstance(number.type, ir.F32Type):
                number = arith.truncf(f32(), number)
            return [ptx.round_to_half(number, result)]
        if op.name == "arith.extf" and operands[0].type == result:
            return operands
        again = ir.Operation.create(
            op.name,
            results=results,
            operands=operands,
            attributes=sir.attributes(op),
            loc=op.location,
        )
        return list(again.results)


def _is_one(op: Any) -> bool:
    """Whether an op is the constant 1."""
    if op is None or op.name != "arith.constant":
        return False
    value = op.attributes["value"]
    return isinstance(value, ir.FloatAttr) and value.value == 1.0
