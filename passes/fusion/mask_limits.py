# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which conditions of a mask are limits: key n is hidden beyond a number that memory holds.

A mask of bools is a conjunction of conditions, each a scalar of the loop that makes the mask. One
that says ``n <= e`` is a limit. Here e is an expression of batch, head, query, of sizes, and of
integers that the loop reads, such as the position of the first new token in a cache: what these are
is not known before the kernel runs. They are looked for through the pointwise loops that make them.
Sums of such integers are taken as sums of numbers: they are positions, and do not wrap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mlir import ir

from shapejit import ir as sir
from shapejit.passes.fusion import bodies
from shapejit.passes.fusion.codec import Codec, Indices, Sizes
from shapejit.symbolic import Expr, Ranges

#: Dims of a mask.
BATCH, HEAD, QUERY, KEY = range(4)

#: The first of the symbols that stand for integers that a mask reads; modules have far fewer.
FIRST_READ: Final = 1 << 24

_MASK_OPERAND = 3
_INTEGERS = (32, 64)  # widths of positions

# arith.cmpi's predicates by number.
_SLT, _SLE, _SGT, _SGE = range(2, 6)


@dataclass(frozen=True)
class Input:
    """An integer that a mask reads.

    Attributes:
        value: the tensor.
        indices: where, over (b, h, m, n).
    """

    value: Any
    indices: Indices


@dataclass(frozen=True)
class Limit:
    """A condition ``n <= last``.

    Attributes:
        condition: the value of the loop's body that says so, an i1.
        last: the last key that is seen, over (b, h, m); symbols from `FIRST_READ` on are numbers
            of inputs.
        inputs: what it reads, by symbol.
    """

    condition: Any
    last: Expr
    inputs: Mapping[int, Input]

    @property
    def dims(self) -> frozenset[int]:
        """Dims of the mask that the limit depends on."""
        read = (index for each in self.inputs.values() for index in each.indices)
        return frozenset(self.last.dims()).union(*(index.dims() for index in read))


def mask_loop(attention: Any) -> Any | None:
    """The pointwise loop that makes the mask of bools of an attention, and nothing else."""
    others = {"has_lengths", "is_ragged"} & set(sir.attributes(attention))
    if others or len(attention.operands) <= _MASK_OPERAND:
        return None
    loop = sir.defining_op(attention.operands[_MASK_OPERAND])
    if loop is None or not sir.is_pointwise(loop) or len(loop.results) != 1:
        return None
    element = loop.results[0].type.element_type
    is_bool = isinstance(element, ir.IntegerType) and element.width == 1
    return loop if is_bool else None


def conditions(loop: Any) -> list[Any]:
    """The scalars of a mask's body that all have to be true for a key to be seen."""
    [yielded] = sir.operations(sir.body(loop))[-1].operands
    return list(dict.fromkeys(_conjunction(yielded)))


def _conjunction(value: Any) -> Iterator[Any]:
    op = sir.defining_op(value)
    if op is None or op.name != "arith.andi":
        yield value
        return
    for operand in op.operands:
        yield from _conjunction(operand)


def limits(attention: Any, loop: Any, codec: Codec) -> list[Limit]:
    """The limits among the conditions of an attention's mask, in the order of the body.

    Args:
        attention: ``shapejit.attention``.
        loop: what makes its mask, see `mask_loop`.
        codec: of the module.
    """
    reader = _Reader(codec, codec.space(attention)[: KEY + 1])
    location = _location(loop, 0, codec.maps(attention)[_MASK_OPERAND], codec)
    scalars = reader.scalars(loop, location)
    found = []
    for condition in conditions(loop):
        last = _last_key(condition, scalars)
        if last is None:
            continue
        own = {symbol: reader.inputs[symbol] for symbol in last.symbols() & reader.inputs.keys()}
        limit = Limit(condition, last, own)
        if own and KEY not in limit.dims and _is_readable(limit, attention, codec):
            found.append(limit)
    return found


def _location(loop: Any, result: int, indices: Indices, codec: Codec) -> Indices:
    """The dims of a pointwise loop at which it makes the element of a result at indices."""
    written = codec.maps(loop)[len(loop.operands) + result]
    location = [Expr.const(0)] * len(codec.space(loop))
    for index, target in zip(indices, written, strict=True):
        dim = target.dim_index
        assert dim is not None, "a pointwise result is written at a permutation of the dims"
        location[dim] = index
    return tuple(location)


@dataclass(frozen=True)
class _Scalars:
    """The scalars of a loop's body at one point of the mask.

    Attributes:
        values: over the loop's dims, sizes, and symbols of its inputs.
        location: the loop's dims, over (b, h, m, n).
        inputs: what those symbols stand for, over (b, h, m, n).
    """

    values: bodies.IndexValues
    location: Indices
    inputs: Mapping[int, Expr]

    def expr(self, value: Any) -> Expr | None:
        """A scalar over (b, h, m, n); None if it is no expression of what is known."""
        found = self.values.expr(value)
        if found is None:
            return None
        return found.substitute(self.inputs, dict(enumerate(self.location)))


class _Reader:
    """Finds what integers are, through the pointwise loops that make them.

    Args:
        codec: of the module.
        space: of a mask: batch, heads, queries, keys.

    Attributes:
        inputs: integers that no such loop makes, by the symbols that stand for them.
    """

    def __init__(self, codec: Codec, space: Sizes) -> None:
        self._codec, self._ranges = codec, codec.ranges(space)
        self._count = 0
        self.inputs: dict[int, Input] = {}

    def scalars(self, loop: Any, location: Indices) -> _Scalars:
        """The scalars of a loop at indices of its dims."""
        codec, body = self._codec, sir.body(loop)
        dims = dict(enumerate(location))
        inputs: dict[int, Expr] = {}
        given: dict[Any, Expr] = {}
        for argument, value, indices in zip(
            body.arguments, loop.operands, codec.maps(loop), strict=False
        ):
            if _is_position(value.type.element_type):
                symbol = FIRST_READ + self._count
                self._count += 1
                placed = tuple(
                    self._ranges.simplify(index.substitute(dims=dims)) for index in indices
                )
                inputs[symbol] = self._number(symbol, value, placed)
                given[argument] = Expr.symbol(symbol)
        ranges = Ranges(
            {**codec.symbol_ranges, **dict.fromkeys(inputs, (None, None))}, codec.space(loop)
        )
        values = bodies.IndexValues(ranges, given)
        for op in sir.operations(body):
            values.visit(op)
        return _Scalars(values, location, inputs)

    def _number(self, symbol: int, value: Any, indices: Indices) -> Expr:
        """An element of a tensor of integers: of what makes it, or its symbol."""
        loop = sir.defining_op(value)
        if loop is not None and sir.is_pointwise(loop):
            result = list(loop.results).index(value)
            scalars = self.scalars(loop, _location(loop, result, indices, self._codec))
            yielded = sir.operations(sir.body(loop))[-1].operands[result]
            found = scalars.expr(yielded)
            if found is not None:
                return found
        self.inputs[symbol] = Input(value, indices)
        return Expr.symbol(symbol)


def _is_position(element: Any) -> bool:
    return isinstance(element, ir.IntegerType) and element.width in _INTEGERS


def _last_key(condition: Any, scalars: _Scalars) -> Expr | None:
    """e, if a condition says ``n <= e``."""
    op = sir.defining_op(condition)
    if op is None or op.name != "arith.cmpi":
        return None
    lhs, rhs = (scalars.expr(operand) for operand in op.operands)
    if lhs is None or rhs is None:
        return None
    predicate = ir.IntegerAttr(op.attributes["predicate"]).value
    if predicate in (_SLT, _SLE):
        left = rhs - lhs - int(predicate == _SLT)
    elif predicate in (_SGT, _SGE):
        left = lhs - rhs - int(predicate == _SGT)
    else:
        return None
    # The condition is left >= 0, which is n <= left + n if left falls by one from key to key.
    last = left + Expr.dim(KEY)
    return None if KEY in last.dims() else last


def _is_readable(limit: Limit, attention: Any, codec: Codec) -> bool:
    """Whether what a limit reads is there for every batch and head, also without queries or keys,
    when the mask's loop reads nothing."""
    space = codec.space(attention)
    for read in limit.inputs.values():
        over = frozenset[int]().union(*(index.dims() for index in read.indices))
        # Sizes of other dims may be 0.
        known = (space[dim] if dim in over else Expr.const(1) for dim in range(KEY))
        ranges = codec.ranges(tuple(known))
        for index, size in zip(read.indices, codec.shape(read.value), strict=True):
            if not ranges.is_nonnegative(index) or not ranges.provably_le(index + 1, size):
                return False
    return True
