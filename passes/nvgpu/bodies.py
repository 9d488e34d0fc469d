# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Scalar bodies of epilogues, emitted into a kernel.

A body is made again op by op for every element. Values of f16 and bf16 are computed in f32, and
only an explicit `arith.truncf` rounds. Functions of `math` have rules here, since upstream's
lowering for GPUs calls CUDA's device library; the rest of `arith` goes through upstream.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from mlir import ir
from mlir.dialects import arith

from shapejit import ir as sir
from shapejit.passes.nvgpu import elementary, ptx
from shapejit.passes.nvgpu.builder import Type, Value, constant, f32, index
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.problem import is_half
from shapejit.symbolic import map_exprs

if TYPE_CHECKING:
    from shapejit.passes.nvgpu.function import KernelFunction

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


class ScalarBody:
    """A body, read once and emitted for each of many elements.

    What the result does not need is left out, and so is the last rounding to 16 bits: storing it
    rounds.

    Args:
        function: the kernel.
        block: ends with ``shapejit.yield`` of one value; None for one that yields its first
            argument.
        short: whether functions need no more than the precision of 16-bit results.

    Raises:
        LoweringError: it has an op that PTX cannot compute.
    """

    def __init__(self, function: KernelFunction, block: Any | None, *, short: bool) -> None:
        self._function, self._short = function, short
        self._rules = _SHORT_RULES if short else _F32_RULES
        self._slots: dict[Value, int] = {}
        self._values = 0  # how many there are after the steps
        self._steps: list[_Step] = []
        self._result = 0
        if block is not None:
            self._read_block(block)

    def emit(self, arguments: Sequence[Value]) -> Value:
        """Emits the body at the current point and returns what it yields, in its compute type.

        Args:
            arguments: values of the block's arguments, in compute types.
        """
        values = list(arguments)
        for emit, operands in self._steps:
            values += emit(*[values[slot] for slot in operands])
        return values[self._result]

    def _read_block(self, block: Any) -> None:
        arguments = list(block.arguments)
        self._slots.update((value, slot) for slot, value in enumerate(arguments))
        self._values = len(arguments)
        *ops, terminator = sir.operations(block)
        result = _unrounded(terminator.operands[0])
        needed = self._needed(ops, result)
        for op in ops:
            if sir.key(op) in needed:
                self._read(op)
        self._result = self._slot(result)

    def _needed(self, ops: Sequence[Any], result: Value) -> set[int]:
        """The ops, by `sir.key`, that the result depends on."""
        found = set()
        wanted = {result}
        for op in reversed(ops):
            if wanted.isdisjoint(op.results):
                continue
            found.add(sir.key(op))
            short = self._short_form(op)
            wanted.update(op.operands if short is None else short[1])
        return found

    def _slot(self, value: Value) -> int:
        if value not in self._slots:
            # Folding may have moved a constant out of the body; nothing else can be outside.
            self._read(sir.defining_op(value))
        return self._slots[value]

    def _read(self, op: Any) -> None:
        """Adds the step of an op, and says where its result will be."""
        if op.name == "shapejit.size":
            expr = map_exprs(op.attributes["expr"].value)[0]
            self._add(op, _one(lambda: index(self._function.size(expr))), ())
        elif (short := self._short_form(op)) is not None:
            self._add(op, _one(short[0]), short[1])
        elif _is_identity(op):
            self._slots[op.results[0]] = self._slot(op.operands[0])
        else:
            self._add(op, self._rule(op), op.operands)

    def _add(self, op: Any, emit: _Emit, operands: Sequence[Value]) -> None:
        slots = [self._slot(operand) for operand in operands]
        self._steps.append((emit, slots))
        for result in op.results:
            self._slots[result] = self._values
            self._values += 1

    def _short_form(self, op: Any) -> tuple[Callable[..., Value], Sequence[Value]] | None:
        """What emits an op together with ops before it, and its operands; None if nothing does."""
        if not self._short:
            return None
        if (function := _plus_one(op)) is not None:
            return _ONE_PLUS[function.name], function.operands
        if (argument := _gelu_argument(op)) is not None:
            return elementary.gelu, [argument]
        return None

    def _rule(self, op: Any) -> _Emit:
        """What emits an arith or math op on values in compute types."""
        name, result = op.name, op.results[0].type
        if not name.startswith(("math.", "arith.")):
            raise LoweringError(f"has '{name}' in its epilogue; ops of arith and math may be there")
        computed = compute_type(result)
        if name in self._rules and isinstance(computed, ir.F32Type):
            return _one(self._rules[name])
        if name.startswith("math.") or name in _WITHOUT_CODE:
            raise LoweringError(
                f"computes '{name}' of {computed} in its epilogue, for which there is no GPU code"
            )
        if name == "arith.constant" and is_half(result):
            number = ir.FloatAttr(op.attributes["value"]).value
            return _one(lambda: constant(number, f32()))
        if name == "arith.truncf" and is_half(result):
            return _one(lambda wide: ptx.round_to_half(_as_f32(wide), result))
        types = [compute_type(value.type) for value in op.results]
        attributes, location = sir.attributes(op), op.location

        def again(*operands: Value) -> Sequence[Value]:
            made = ir.Operation.create(
                name, results=types, operands=operands, attributes=attributes, loc=location
            )
            return list(made.results)

        return again


_Emit: TypeAlias = Callable[..., Sequence[Value]]
"""Emits an op's results from its operands."""

_Step: TypeAlias = tuple[_Emit, Sequence[int]]
"""What emits, and which of the values so far are its operands."""


def _one(emit: Callable[..., Value]) -> _Emit:
    return lambda *operands: [emit(*operands)]


def _unrounded(result: Value) -> Value:
    """What a body yields, without the last rounding."""
    producer = sir.defining_op(result)
    if producer is not None and producer.name == "arith.truncf" and is_half(result.type):
        source = producer.operands[0]
        if isinstance(source.type, ir.F32Type):
            return source
    return result


def _is_identity(op: Any) -> bool:
    """Whether an op gives its operand, in compute types."""
    if op.name not in ("arith.extf", "arith.bitcast"):
        return False
    source, result = op.operands[0].type, op.results[0].type
    if op.name == "arith.bitcast":
        return bool(source == result)
    return bool(compute_type(source) == result)


def _as_f32(number: Value) -> Value:
    return number if isinstance(number.type, ir.F32Type) else arith.truncf(f32(), number)


def _plus_one(op: Any) -> Any | None:
    """The function to which an op adds 1, if there is a short form of the sum."""
    if op is None or op.name != "arith.addf" or not isinstance(op.results[0].type, ir.F32Type):
        return None
    for function, one in itertools.permutations(op.operands):
        producer = sir.defining_op(function)
        if producer is not None and producer.name in _ONE_PLUS and _is_number(one, 1.0):
            return producer
    return None


def _gelu_argument(op: Any) -> Value | None:
    """x, if an op is the last one of ``x * 1/2 * (1 + erf(x * sqrt(1/2)))``, in any order."""
    if op.name != "arith.mulf" or not isinstance(op.results[0].type, ir.F32Type):
        return None
    for product, other in itertools.permutations(op.operands):
        inner = sir.defining_op(product)
        if inner is None or inner.name != "arith.mulf":
            continue
        for x, half, above in itertools.permutations([*inner.operands, other]):
            function = _plus_one(sir.defining_op(above))
            if _is_number(half, 0.5) and function is not None and function.name == "math.erf":
                scaled = sir.defining_op(function.operands[0])
                if scaled is not None and scaled.name == "arith.mulf":
                    for argument, root in itertools.permutations(scaled.operands):
                        if argument == x and _is_number(root, math.sqrt(0.5)):
                            return x
    return None


def _is_number(value: Value, number: float) -> bool:
    """Whether a value is a constant, to the precision of f32."""
    op = sir.defining_op(value)
    if op is None or op.name != "arith.constant":
        return False
    attribute = op.attributes["value"]
    return isinstance(attribute, ir.FloatAttr) and math.isclose(
        attribute.value, number, rel_tol=1e-7
    )
