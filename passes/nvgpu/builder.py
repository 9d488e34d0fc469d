# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A thin layer over MLIR's builders: integer arithmetic, structured control flow.

Kernels compute tile numbers, addresses and coordinates on 32-bit integers. The functions here take
SSA values and Python ints alike and fold what is known while emitting, so an emitter reads as
arithmetic and a constant size costs nothing::

    tiles = udiv(add(rows, 127), 128)
    with when(compare("ult", tile, tiles)):
        ...
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from mlir import ir
from mlir.dialects import arith, builtin, scf

Value: TypeAlias = Any  # mlir.ir.Value; the bindings carry no types
Type: TypeAlias = Any  # mlir.ir.Type
Num: TypeAlias = Any  # Value | int

# Types --------------------------------------------------------------------------------------------


def integer(bits: int) -> Type:
    """``i<bits>``"""
    return ir.IntegerType.get_signless(bits)


def i32() -> Type:
    return integer(32)


def i64() -> Type:
    return integer(64)


def f32() -> Type:
    return ir.F32Type.get()


def pointer(space: int = 0) -> Type:
    """``!llvm.ptr<space>``: 0 generic, 1 global, 3 shared, 7 shared of the cluster."""
    return ir.Type.parse(f"!llvm.ptr<{space}>" if space else "!llvm.ptr")


def struct_of(element: Type, count: int) -> Type:
    """``!llvm.struct<(element, ..)>``"""
    return ir.Type.parse(f"!llvm.struct<({', '.join([str(element)] * count)})>")


# Values -------------------------------------------------------------------------------------------


def make(
    name: str, result: Type, operands: Sequence[Value], attributes: dict[str, Any] | None = None
) -> Value:
    """The result of a new op, by its name.

    The bindings' class of an op takes twice as long, so this is for those that kernels have
    hundreds of.
    """
    made = ir.Operation.create(name, results=[result], operands=operands, attributes=attributes)
    return made.result


def constant(value: int | float, type_: Type | None = None) -> Value:
    """A constant, i32 unless a type is given."""
    kind = i32() if type_ is None else type_
    attribute = ir.FloatAttr if isinstance(value, float) else ir.IntegerAttr
    return make("arith.constant", kind, (), {"value": attribute.get(kind, value)})


def value(number: Num, type_: Type | None = None) -> Value:
    """A number as an SSA value; a Python int becomes a constant (i32 unless a type is given)."""
    return constant(number, type_) if isinstance(number, int) else number


def index(number: Num) -> Value:
    """A number as of index type."""
    if isinstance(number, int):
        return constant(number, ir.IndexType.get())
    return make("arith.index_cast", ir.IndexType.get(), (number,))


def wide(number: Num) -> Num:
    """A non-negative i32 number as i64."""
    return number if isinstance(number, int) else arith.extui(i64(), number)


def cast(number: Value, type_: Type) -> Value:
    """An unrealized cast, which the pipeline resolves."""
    return builtin.unrealized_conversion_cast([type_], [number])


def _binary(
    fold: Callable[[int, int], int], name: str, unit: int | None = None
) -> Callable[[Num, Num], Num]:
    """An operation of two numbers; `unit` on the right leaves the left as it is."""

    def build(lhs: Value, rhs: Value) -> Value:
        return make(name, rhs.type, (lhs, rhs))

    def operation(lhs: Num, rhs: Num) -> Num:
        if isinstance(lhs, int) and isinstance(rhs, int):
            return fold(lhs, rhs)
        if isinstance(rhs, int):
            return lhs if rhs == unit else build(lhs, value(rhs, lhs.type))
        return build(value(lhs, rhs.type), rhs)

    return operation


add = _binary(operator.add, "arith.addi", unit=0)
sub = _binary(operator.sub, "arith.subi", unit=0)
mul = _binary(operator.mul, "arith.muli", unit=1)
udiv = _binary(operator.floordiv, "arith.divui", unit=1)
urem = _binary(operator.mod, "arith.remui")
umin = _binary(min, "arith.minui")
umax = _binary(max, "arith.maxui", unit=0)
smin = _binary(min, "arith.minsi")
smax = _binary(max, "arith.maxsi")
and_ = _binary(operator.and_, "arith.andi")
or_ = _binary(operator.or_, "arith.ori", unit=0)
xor = _binary(operator.xor, "arith.xori", unit=0)
shl = _binary(operator.lshift, "arith.shli", unit=0)
shr = _binary(operator.rshift, "arith.shrui", unit=0)


def ceildiv(number: Num, divisor: int) -> Num:
    """The number of blocks of ``divisor`` that cover ``number``."""
    return udiv(add(number, divisor - 1), divisor)


def compare(predicate: str, lhs: Num, rhs: Num) -> Value:
    """``lhs predicate rhs`` as i1; the predicate is one of arith.cmpi's (eq, ne, ult, ...)."""
    if isinstance(lhs, int):
        lhs = value(lhs, None if isinstance(rhs, int) else rhs.type)
    number = ir.IntegerAttr.get(i64(), arith.CmpIPredicate[predicate].value)
    operands = (lhs, value(rhs, lhs.type))
    return make("arith.cmpi", integer(1), operands, {"predicate": number})


def select(condition: Value, then: Num, otherwise: Num) -> Value:
    """``then`` if the condition holds."""
    if isinstance(then, int):
        then = value(then, None if isinstance(otherwise, int) else otherwise.type)
    return arith.select(condition, then, value(otherwise, then.type))


# Control flow -------------------------------------------------------------------------------------


@contextmanager
def when(condition: Value) -> Iterator[None]:
    """``if condition``: emits what its body emits into it."""
    operation = scf.IfOp(condition)
    with ir.InsertionPoint(operation.then_block):
        yield
        scf.YieldOp([])


class Branches:
    """Both sides of a condition; each is entered once."""

    def __init__(self, condition: Value, results: Sequence[Type] = ()) -> None:
        self._operation = scf.IfOp(condition, list(results), has_else=True)

    @contextmanager
    def _side(self, block: Any) -> Iterator[list[Value]]:
        with ir.InsertionPoint(block):
            given: list[Value] = []
            yield given
            scf.YieldOp(given)

    def then(self) -> Any:
        """The side where the condition holds; yields a list that takes its results."""
        return self._side(self._operation.then_block)

    def otherwise(self) -> Any:
        return self._side(self._operation.else_block)

    @property
    def results(self) -> list[Value]:
        return list(self._operation.results)


class Loop:
    """A loop under construction.

    Attributes:
        operation: of MLIR.
        index: the counter, i32; None for `repeat`.
        carried: the carried values of this iteration.
        next: what the body sets them to; as they are unless it assigns.
    """

    def __init__(self, operation: Any, counter: Value | None, carried: Sequence[Value]) -> None:
        self.operation = operation
        self.index = counter
        self.carried = list(carried)
        self.next = list(carried)

    @property
    def results(self) -> list[Value]:
        """The carried values after the loop."""
        return list(self.operation.results)


@contextmanager
def loop(lower: Num, upper: Num, step: Num = 1, init: Sequence[Value] = ()) -> Iterator[Loop]:
    """``for index = lower to upper step step``, signed i32, with carried values."""
    operation = scf.ForOp(value(lower), value(upper), value(step), list(init))
    made = Loop(operation, operation.induction_variable, operation.inner_iter_args)
    with ir.InsertionPoint(operation.body):
        yield made
        scf.YieldOp(made.next)


@contextmanager
def repeat_while(
    init: Sequence[Value], condition: Callable[[list[Value]], Value]
) -> Iterator[Loop]:
    """``while condition(carried)``."""
    types = [each.type for each in init]
    operation = scf.WhileOp(types, list(init))
    before = operation.before.blocks.append(*types)
    with ir.InsertionPoint(before):
        arguments = list(before.arguments)
        scf.ConditionOp(condition(arguments), arguments)
    after = operation.after.blocks.append(*types)
    made = Loop(operation, None, after.arguments)
    with ir.InsertionPoint(after):
        yield made
        scf.YieldOp(made.next)
