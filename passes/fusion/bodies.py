# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Scalar bodies: what they cost, which of their values are index expressions, and their clean-up.

Where two scalars of a body are expressions of loop indices and sizes, ranges often decide how they
compare: a causal mask without a cache says ``index >= 0``. Such comparisons are folded, with the
logic and the choices that hang on them, so that what a body depends on is what it mentions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from mlir import ir

from shapejit import ir as sir
from shapejit.passes.fusion.codec import Codec
from shapejit.symbolic import Expr, Ranges, map_exprs

# Transcendental functions and divisions: a value made with one is worth a load.
_DEAR_ARITH: Final = frozenset(
    f"arith.{name}"
    for name in ("divf", "remf", "divsi", "divui", "remsi", "remui", "floordivsi", "ceildivsi")
)
_CHEAP_MATH: Final = frozenset(
    f"math.{name}" for name in ("absf", "absi", "copysign", "floor", "ceil", "trunc", "fma")
)
_FREE: Final = frozenset(
    {
        *("arith.constant", "arith.index_cast", "arith.index_castui"),
        *("shapejit.index", "shapejit.size", "shapejit.yield"),
    }
)


@dataclass(frozen=True)
class Survey:
    """What one evaluation of a loop's body takes.

    Attributes:
        ops: how many arithmetic operations and loads by computed index.
        dear: whether one of them is a division or a transcendental function.
        dims: dims of the loop whose index it asks for.
        captures: whether it reads tensors from outside the loop.
    """

    ops: int
    dear: bool
    dims: frozenset[int]
    captures: bool


def survey(op: Any) -> Survey:
    """Looks through the body of a loop."""
    ops, dear, captures = 0, False, False
    dims: set[int] = set()
    for child in sir.walk(op):
        name = child.name
        if name == "shapejit.index":
            dims.add(ir.IntegerAttr(child.attributes["dim"]).value)
        captures |= name == "tensor.extract"
        dear |= name in _DEAR_ARITH or (name.startswith("math.") and name not in _CHEAP_MATH)
        ops += name not in _FREE
    return Survey(ops, dear, frozenset(dims), captures)


# Emission of index expressions --------------------------------------------------------------------


class IndexEmitter:
    """Emits index expressions over a loop's dims at the insertion point, equal ones once.

    An `Algebra` of `Expr.build`: values are SSA values of type index.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._index = ir.IndexType.get(codec.context)
        self._i64 = ir.IntegerType.get_signless(64, codec.context)
        self._known: dict[Any, Any] = {}

    def value(self, expr: Expr) -> Any:
        """The value of `expr`."""
        return expr.build(self)

    def constant(self, value: int) -> Any:
        attribute = ir.IntegerAttr.get(self._index, value)
        return self._op("arith.constant", (), {"value": attribute}, value)

    def symbol(self, index: int) -> Any:
        expr = self._codec.map_attr(0, [Expr.symbol(index)])
        return self._op("shapejit.size", (), {"expr": expr}, index)

    def dim(self, index: int) -> Any:
        attribute = ir.IntegerAttr.get(self._i64, index)
        return self._op("shapejit.index", (), {"dim": attribute}, index)

    def add(self, lhs: Any, rhs: Any) -> Any:
        return self._op("arith.addi", (lhs, rhs))

    def mul(self, lhs: Any, rhs: Any) -> Any:
        return self._op("arith.muli", (lhs, rhs))

    def floordiv(self, lhs: Any, rhs: Any) -> Any:
        return self._op("arith.floordivsi", (lhs, rhs))

    def mod(self, lhs: Any, rhs: Any) -> Any:
        quotient = self.mul(self.floordiv(lhs, rhs), rhs)
        return self._op("arith.subi", (lhs, quotient))

    def _op(
        self,
        name: str,
        operands: tuple[Any, ...],
        attributes: dict[str, Any] | None = None,
        detail: int = 0,
    ) -> Any:
        key = (name, operands, detail)
        found = self._known.get(key)
        if found is None:
            made = ir.Operation.create(
                name, results=[self._index], operands=operands, attributes=attributes or {}
            )
            found = self._known[key] = made.results[0]
        return found


# Values that are index expressions ----------------------------------------------------------------

# A product of sizes of arrays in memory fits an i64 by far; what else a program computes in i64 may
# wrap, which expressions do not.
_MAX_COEFFICIENT: Final = 1 << 20
_MAX_DEGREE: Final = 3

_ExprRule: TypeAlias = Callable[["IndexValues", Any], "Expr | None"]
_EXPR_RULES: dict[str, _ExprRule] = {}


def _expr_rule(*names: str) -> Callable[[_ExprRule], _ExprRule]:
    def register(rule: _ExprRule) -> _ExprRule:
        for name in names:
            _EXPR_RULES[name] = rule
        return rule

    return register


class IndexValues:
    """Which scalars of a body are expressions of loop indices and sizes, op by op in order.

    Args:
        ranges: what is known of indices and symbols.
        given: expressions of some scalars, such as arguments of the body.
    """

    def __init__(self, ranges: Ranges, given: Mapping[Any, Expr] | None = None) -> None:
        self.ranges = ranges
        self._known: dict[Any, Expr] = dict(given or {})

    def expr(self, value: Any) -> Expr | None:
        """The expression of an integer value, None if it is not known to be one."""
        found = self._known.get(value)
        if found is None and not isinstance(value.owner, ir.Block):
            # Constants and sizes of the function, captured by the body.
            owner = value.owner.operation
            if owner.name in ("arith.constant", "shapejit.size"):
                self.visit(owner)
                found = self._known.get(value)
        return found

    def visit(self, op: Any) -> None:
        """Records the expression of an operation's result, if it is one."""
        rule = _EXPR_RULES.get(op.name)
        if rule is None:
            return
        expr = rule(self, op)
        if expr is not None and self._fits(self.ranges.simplify(expr), op.results[0].type):
            self._known[op.results[0]] = self.ranges.simplify(expr)

    def is_nonnegative(self, *values: Any) -> bool:
        """Whether all values are known to be >= 0."""
        exprs = [self.expr(value) for value in values]
        return all(e is not None and self.ranges.is_nonnegative(e) for e in exprs)

    def _fits(self, expr: Expr, type_: Any) -> bool:
        """Whether the expression cannot wrap in the type, so that it is the value."""
        if isinstance(type_, ir.IntegerType) and type_.width < 64:
            low, high = self.ranges.bounds(expr)
            limit = 1 << (type_.width - 1)
            return low is not None and high is not None and -limit <= low and high < limit
        return all(
            len(monomial) <= _MAX_DEGREE and abs(coefficient) <= _MAX_COEFFICIENT
            for monomial, coefficient in expr.terms
            if monomial
        )


@_expr_rule("shapejit.index")
def _index(values: IndexValues, op: Any) -> Expr:
    return Expr.dim(ir.IntegerAttr(op.attributes["dim"]).value)


@_expr_rule("shapejit.size")
def _size(values: IndexValues, op: Any) -> Expr:
    (expr,) = map_exprs(op.attributes["expr"].value)
    return expr


@_expr_rule("arith.constant")
def _constant(values: IndexValues, op: Any) -> Expr | None:
    type_ = op.results[0].type
    if isinstance(type_, ir.IndexType) or (isinstance(type_, ir.IntegerType) and type_.width > 1):
        return Expr.const(ir.IntegerAttr(op.attributes["value"]).value)
    return None


@_expr_rule("arith.index_cast", "arith.extsi", "arith.trunci")
def _cast(values: IndexValues, op: Any) -> Expr | None:
    return values.expr(op.operands[0])


@_expr_rule("arith.index_castui", "arith.extui")
def _unsigned_cast(values: IndexValues, op: Any) -> Expr | None:
    return values.expr(op.operands[0]) if values.is_nonnegative(op.operands[0]) else None


def _binary(function: Callable[[Expr, Expr], Expr | None]) -> _ExprRule:
    def rule(values: IndexValues, op: Any) -> Expr | None:
        lhs, rhs = (values.expr(operand) for operand in op.operands)
        return None if lhs is None or rhs is None else function(lhs, rhs)

    return rule


_expr_rule("arith.addi")(_binary(lambda lhs, rhs: lhs + rhs))
_expr_rule("arith.subi")(_binary(lambda lhs, rhs: lhs - rhs))
_expr_rule("arith.muli")(_binary(lambda lhs, rhs: lhs * rhs))


def _is_positive_constant(expr: Expr) -> bool:
    return expr.constant is not None and expr.constant > 0


def _floordiv(lhs: Expr, rhs: Expr) -> Expr | None:
    return lhs // rhs if _is_positive_constant(rhs) else None


_expr_rule("arith.floordivsi")(_binary(_floordiv))


@_expr_rule("arith.divsi", "arith.divui", "arith.remsi", "arith.remui")
def _truncated(values: IndexValues, op: Any) -> Expr | None:
    """Division towards zero: of a non-negative value it rounds down."""
    lhs, rhs = (values.expr(operand) for operand in op.operands)
    if lhs is None or rhs is None or not _is_positive_constant(rhs):
        return None
    if not values.ranges.is_nonnegative(lhs):
        return None
    return lhs // rhs if "div" in op.name else lhs % rhs


# Folding ------------------------------------------------------------------------------------------

_Fold: TypeAlias = "Callable[[_Folder, Any], Any | bool | None]"
_FOLDS: dict[str, _Fold] = {}


def _fold(*names: str) -> Callable[[_Fold], _Fold]:
    def register(rule: _Fold) -> _Fold:
        for name in names:
            _FOLDS[name] = rule
        return rule

    return register


class _Folder:
    """Decides comparisons, logic and choices of one body from front to back.

    A rule gives a value that equals the op's result, True or False for a bool, or None.
    """

    def __init__(self, block: Any, values: IndexValues) -> None:
        self.values = values
        self._block = block
        self._bools: dict[bool, Any] = {}

    def visit(self, op: Any) -> None:
        """Replaces the op's result if it is decided."""
        rule = _FOLDS.get(op.name)
        found = rule(self, op) if rule is not None else None
        if isinstance(found, bool):
            found = self._constant(found)
        if found is not None:
            op.results[0].replace_all_uses_with(found)

    def truth(self, value: Any) -> bool | None:
        """The value of an i1 that is a constant."""
        owner = sir.defining_op(value)
        if owner is None or owner.name != "arith.constant":
            return None
        return bool(ir.IntegerAttr(owner.attributes["value"]).value)

    def _constant(self, value: bool) -> Any:
        if value not in self._bools:
            i1 = ir.IntegerType.get_signless(1)
            made = ir.Operation.create(
                "arith.constant",
                results=[i1],
                attributes={"value": ir.IntegerAttr.get(i1, int(value))},
                ip=ir.InsertionPoint.at_block_begin(self._block),
            )
            self._bools[value] = made.results[0]
        return self._bools[value]


def _is_bool(value: Any) -> bool:
    return isinstance(value.type, ir.IntegerType) and value.type.width == 1


@_fold("arith.cmpi")
def _compare(folder: _Folder, op: Any) -> bool | None:
    values = folder.values
    lhs, rhs = (values.expr(operand) for operand in op.operands)
    if lhs is None or rhs is None:
        return None
    predicate = ir.IntegerAttr(op.attributes["predicate"]).value
    if predicate >= 6:  # unsigned comparisons follow the signed ones
        if not values.is_nonnegative(*op.operands):
            return None
        predicate -= 4
    return _decide(predicate, lhs, rhs, values.ranges)


def _decide(predicate: int, lhs: Expr, rhs: Expr, ranges: Ranges) -> bool | None:
    """The value of a signed comparison, numbered as arith.cmpi does."""
    below, above = ranges.provably_le(lhs + 1, rhs), ranges.provably_le(rhs + 1, lhs)
    at_most, at_least = ranges.provably_le(lhs, rhs), ranges.provably_le(rhs, lhs)
    equal = at_most and at_least
    true_if, false_if = [
        (equal, below or above),
        (below or above, equal),
        (below, at_least),
        (at_most, above),
        (above, at_most),
        (at_least, below),
    ][predicate]
    return True if true_if else False if false_if else None


@_fold("arith.andi", "arith.ori")
def _logic(folder: _Folder, op: Any) -> Any | bool | None:
    if not _is_bool(op.results[0]):
        return None
    neutral = op.name == "arith.andi"
    for this, other in ((0, 1), (1, 0)):
        truth = folder.truth(op.operands[this])
        if truth is not None:
            return op.operands[other] if truth is neutral else truth
    return None


@_fold("arith.xori")
def _exclusive_or(folder: _Folder, op: Any) -> Any | bool | None:
    if not _is_bool(op.results[0]):
        return None
    lhs, rhs = (folder.truth(operand) for operand in op.operands)
    if lhs is not None and rhs is not None:
        return lhs is not rhs
    if rhs is False:
        return op.operands[0]
    return op.operands[1] if lhs is False else None


@_fold("arith.select")
def _select(folder: _Folder, op: Any) -> Any | None:
    truth = folder.truth(op.operands[0])
    return None if truth is None else op.operands[1 if truth else 2]


@_fold("arith.minsi", "arith.minui", "arith.maxsi", "arith.maxui")
def _extremum(folder: _Folder, op: Any) -> Any | None:
    values = folder.values
    lhs, rhs = (values.expr(operand) for operand in op.operands)
    if lhs is None or rhs is None:
        return None
    if op.name.endswith("ui") and not values.is_nonnegative(*op.operands):
        return None
    smaller = 0 if op.name.startswith("arith.min") else 1
    if values.ranges.provably_le(lhs, rhs):
        return op.operands[smaller]
    return op.operands[1 - smaller] if values.ranges.provably_le(rhs, lhs) else None


_INTERESTING: Final = frozenset({"shapejit.index", "shapejit.size", "tensor.extract"})


def simplify(op: Any, codec: Codec) -> Any:
    """Folds what ranges decide in the body of a loop and drops what is not read.

    A ``tensor.extract`` at affine functions of the loop's indices becomes a mapped input.

    Returns:
        The loop: a new one if it got inputs, else `op`.
    """
    block = sir.body(op)
    if not any(child.name in _INTERESTING for child in block.operations):
        return op
    values = IndexValues(codec.ranges(codec.space(op)))
    folder = _Folder(block, values)
    found: list[tuple[Any, tuple[Expr, ...]]] = []
    for child in sir.operations(block):
        values.visit(child)
        folder.visit(child)
        if child.name == "tensor.extract":
            indices = _extract_indices(child, values, codec)
            if indices is not None:
                found.append((child, indices))
    if found:
        op = _with_inputs(op, found, codec)
    drop_unused(sir.body(op))
    return op


def _extract_indices(op: Any, values: IndexValues, codec: Codec) -> tuple[Expr, ...] | None:
    """Where a ``tensor.extract`` reads, if that is an index map whose bounds hold."""
    tensor, *positions = op.operands
    if not sir.has_shape(tensor):
        return None
    exprs = []
    for position, size in zip(positions, codec.shape(tensor), strict=True):
        expr = values.expr(position)
        if expr is None:
            return None
        low, high = values.ranges.bounds(expr)
        if low is None or low < 0:
            return None
        if size.constant is not None and (high is None or high >= size.constant):
            return None
        exprs.append(expr)
    return tuple(exprs)


def _with_inputs(op: Any, extracts: list[tuple[Any, tuple[Expr, ...]]], codec: Codec) -> Any:
    """The loop with inputs in place of elements that its body extracts."""
    block, rank = sir.body(op), len(codec.space(op))
    maps, count = list(op.attributes["maps"]), len(op.operands)
    added = [codec.map_attr(rank, indices) for _, indices in extracts]
    attributes = sir.attributes(op)
    attributes["maps"] = ir.ArrayAttr.get(maps[:count] + added + maps[count:])
    tensors = [extract.operands[0] for extract, _ in extracts]
    for extract, _ in extracts:
        argument = block.add_argument(extract.results[0].type, extract.location)
        extract.results[0].replace_all_uses_with(argument)
    return replace_loop(op, [*op.operands, *tensors], attributes, op.location)


def replace_loop(op: Any, operands: list[Any], attributes: dict[str, Any], location: Any) -> Any:
    """A loop in the place of `op` with its body and results, other operands and attributes."""
    new = ir.Operation.create(
        "shapejit.loop",
        results=[result.type for result in op.results],
        operands=operands,
        attributes=attributes,
        regions=1,
        loc=location,
        ip=ir.InsertionPoint(op),
    )
    sir.body(op).append_to(new.regions[0])
    for old, result in zip(op.results, new.results, strict=True):
        old.replace_all_uses_with(result)
    op.erase()
    return new


def drop_unused(block: Any) -> None:
    """Erases operations of a body whose results nobody reads."""
    for op in reversed(sir.operations(block)):
        if op.results and all(next(iter(r.uses), None) is None for r in op.results):
            op.erase()
