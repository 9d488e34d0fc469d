# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""shapejit-limit-attention: attention reads the keys that its mask can let through.

Why: a cache of keys has room for more tokens than it holds, and a mask says which ones are there:
those up to a position that is a tensor, since a program serves all positions. Under a mask every
key is read. With `lengths`, a number that kernels read from memory, the others are left alone.

Before::

    %mask = shapejit.loop over [s0, 4096] ins(%position at () : tensor<i64, ..>) outs(..) {
    ^bb0(%p: i64):
      .. shapejit.yield n <= m + p
    }
    %o = shapejit.attention over [1, 8, s0, 4096, 64, 64] q(..) k(..) v(..) mask(%mask at ..)

After::

    %length = shapejit.loop over [] ins(%position at () : tensor<i64, ..>) outs(..) {
    ^bb0(%p: i64):
      .. shapejit.yield min(max(p, -s0), 4096) + s0
    }
    %o = shapejit.attention over [1, 8, s0, 4096, 64, 64] q(..) k(..) v(..)
        lengths(%length at ..) {causal = 0, from_end, is_initialized}

A mask is a conjunction of conditions (`fusion.mask_limits`), of which one becomes lengths:

=====================================  =========================================================
condition                              what it becomes
=====================================  =========================================================
``n <= m + p`` with p over (b, h)      lengths of p + queries, and a causal limit from the end;
                                       the condition is dropped
``n <= p`` with p over (b, h)          lengths of p + 1; the condition is dropped
``n <= e`` with any e over (b, h, m)   lengths of the largest e + 1; the mask stays as it is
=====================================  =========================================================

What is left of the mask stays a mask, without the dims that it no longer depends on. Results are
the same in all cases: what a mask hides has no weight, whether it is read or not. Masks of numbers
stay as they are: a query that sees no key by one of them gives a mean of all values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from mlir import ir

from shapejit import ir as sir
from shapejit.pass_host import Pass, register_pass
from shapejit.passes.fusion import bodies
from shapejit.passes.fusion.codec import Codec, Indices
from shapejit.passes.fusion.mask_limits import (
    BATCH,
    HEAD,
    KEY,
    QUERY,
    Limit,
    conditions,
    limits,
    mask_loop,
)
from shapejit.passes.fusion.readers import erase_dead
from shapejit.passes.inline_pointwise import drop_dims
from shapejit.symbolic import Expr

_MASK: Final = 3  # the operand, and the position of its map


@register_pass("shapejit-limit-attention", dialects=("arith", "tensor"))
@dataclass(frozen=True)
class LimitAttention(Pass):
    """Make lengths of what masks of attentions say about the last key that is seen."""

    def run(self, module: Any) -> None:
        codec = Codec(module)
        for function in sir.functions(module):
            made: _Made = {}
            for op in sir.operations(sir.body(function)):
                if op.name == "shapejit.attention":
                    _limit(op, codec, made)
            for found in made.values():
                if found is not None and found.choice.is_exact and found.mask is not None:
                    drop_dims(sir.defining_op(found.mask), codec)
            erase_dead(sir.body(function))


@dataclass(frozen=True)
class _Choice:
    """What becomes of a mask.

    Attributes:
        limit: the condition that becomes lengths.
        length: over (b, h), or (b, h, m) if it is to be the greatest one of all queries.
        bounds: the least and the greatest value that a length needs.
        is_exact: whether the condition is dropped.
        from_end: whether queries have a causal limit, counted from the length.
    """

    limit: Limit
    length: Expr
    bounds: tuple[Expr, Expr]
    is_exact: bool
    from_end: bool = False


@dataclass(frozen=True)
class _Limited:
    """A mask's replacement: lengths with their map, and the mask that is left, if any."""

    choice: _Choice
    lengths: Any
    lengths_map: Any
    mask: Any | None


# By mask, its map and the queries and keys: layers of a model have the same mask.
_Made = dict[tuple[Any, ...], "_Limited | None"]


def _limit(attention: Any, codec: Codec, made: _Made) -> None:
    """Gives lengths to an attention whose mask has a limit."""
    loop = mask_loop(attention)
    if loop is None or "from_end" in attention.attributes:
        return
    maps = list(attention.attributes["maps"])
    is_causal = "causal" in attention.attributes
    key = (attention.operands[_MASK], maps[_MASK], attention.attributes["space"], is_causal)
    if key not in made:
        with attention.context, attention.location:
            made[key] = _made(attention, loop, codec)
    found = made[key]
    if found is not None:
        _replace(attention, found, codec)


def _made(attention: Any, loop: Any, codec: Codec) -> _Limited | None:
    choice = _choose(attention, limits(attention, loop, codec), codec)
    if choice is None:
        return None
    lengths, lengths_map = _lengths(attention, loop, choice, codec)
    mask = _rest(loop, choice.limit) if choice.is_exact else attention.operands[_MASK]
    return _Limited(choice, lengths, lengths_map, mask)


# Which condition ----------------------------------------------------------------------------------


def _choose(attention: Any, found: Sequence[Limit], codec: Codec) -> _Choice | None:
    """The best use of one of the limits."""
    queries, keys = codec.space(attention)[QUERY : KEY + 1]
    within = (Expr.const(0), keys)
    for limit in found:
        position = limit.last - Expr.dim(QUERY)
        own = Limit(limit.condition, position, limit.inputs)
        if QUERY not in own.dims and "causal" not in attention.attributes:
            # Beyond these bounds all queries see no key, or every one.
            bounds = (Expr.const(0), keys + queries)
            return _Choice(limit, position + queries, bounds, is_exact=True, from_end=True)
    for limit in found:
        if QUERY not in limit.dims:
            return _Choice(limit, limit.last + 1, within, is_exact=True)
    for limit in found:
        length = _of_last_query(limit, queries) + 1
        return _Choice(limit, length, within, is_exact=False)
    return None


def _of_last_query(limit: Limit, queries: Expr) -> Expr:
    """A limit at the query that has the greatest one, if that is known."""
    step = limit.last.stride(QUERY)
    reads = any(QUERY in index.dims() for each in limit.inputs.values() for index in each.indices)
    if reads or step is None or step.constant is None:
        return limit.last
    most = queries - 1 if step.constant > 0 else Expr.const(0)
    return limit.last.substitute(dims={QUERY: most})


# Lengths ------------------------------------------------------------------------------------------


class _LengthEmitter(bodies.IndexEmitter):
    """Emits lengths; symbols from `FIRST_READ` on are arguments of the body."""

    def __init__(self, codec: Codec, arguments: dict[int, Any]) -> None:
        super().__init__(codec)
        self._arguments = arguments

    def symbol(self, index: int) -> Any:
        argument = self._arguments.get(index)
        if argument is None:
            return super().symbol(index)
        return self._op("arith.index_cast", (argument,), None, index)

    def within(self, value: Any, bounds: tuple[Expr, Expr]) -> Any:
        """The value, or the nearest one that bounds allow."""
        least, most = map(self.value, bounds)
        return self._op("arith.minsi", (self._op("arith.maxsi", (value, least)), most))


def _lengths(attention: Any, loop: Any, choice: _Choice, codec: Codec) -> tuple[Any, Any]:
    """The tensor of lengths, made in front of the mask, and its map over (b, h)."""
    space = codec.space(attention)
    limit, length = choice.limit, choice.length
    dims = sorted(Limit(limit.condition, length, limit.inputs).dims)
    renamed = {dim: Expr.dim(number) for number, dim in enumerate(dims)}
    kept = [dim for dim in dims if dim in (BATCH, HEAD)]

    def over(indices: Sequence[Expr]) -> Any:
        return codec.map_attr(len(dims), [index.substitute(dims=renamed) for index in indices])

    i32 = ir.IntegerType.get_signless(32)
    inputs = list(limit.inputs.items())
    written: Indices = tuple(map(Expr.dim, kept))
    kind = "none" if kept == dims else "max"
    made = ir.Operation.create(
        "shapejit.loop",
        results=[codec.tensor_type([space[dim] for dim in kept], i32)],
        operands=[each.value for _, each in inputs],
        attributes={
            "space": codec.shape_attr([space[dim] for dim in dims]),
            "maps": ir.ArrayAttr.get([*(over(each.indices) for _, each in inputs), over(written)]),
            "kinds": ir.ArrayAttr.get([ir.StringAttr.get(kind)]),
        },
        regions=1,
        ip=ir.InsertionPoint(loop),
    )
    types = [each.value.type.element_type for _, each in inputs]
    block = made.regions[0].blocks.append(*types)
    with ir.InsertionPoint(block):
        arguments = dict(zip((symbol for symbol, _ in inputs), block.arguments, strict=True))
        emitter = _LengthEmitter(codec, arguments)
        position, shift = length.substitute(dims=renamed), Expr.const(0)
        if choice.from_end:
            # Bounded before the queries are added, so that no sum is far beyond them.
            shift = space[QUERY]
        low, high = choice.bounds
        value = emitter.within(emitter.value(position - shift), (low - shift, high - shift))
        if choice.from_end:
            value = emitter.add(value, emitter.value(shift))
        cast = ir.Operation.create("arith.index_cast", results=[i32], operands=[value])
        ir.Operation.create("shapejit.yield", operands=[cast.results[0]])
    return made.results[0], codec.map_attr(2, written)


# The mask that is left ----------------------------------------------------------------------------


def _rest(loop: Any, limit: Limit) -> Any | None:
    """The mask of all conditions but one, made behind the mask; None if there are no others."""
    kept = [each for each in conditions(loop) if each != limit.condition]
    if not kept:
        return None
    copy = loop.clone(ip=ir.InsertionPoint(loop)).operation
    block = sir.body(copy)
    ours: dict[Any, Any] = {}
    for old, new in zip(sir.operations(sir.body(loop)), sir.operations(block), strict=True):
        ours.update(zip(old.results, new.results, strict=True))
    ours.update(zip(sir.body(loop).arguments, block.arguments, strict=True))
    terminator = sir.operations(block)[-1]
    seen = ours.get(kept[0], kept[0])
    with ir.InsertionPoint(terminator):
        for each in kept[1:]:
            operands = [seen, ours.get(each, each)]
            seen = ir.Operation.create(
                "arith.andi", results=[seen.type], operands=operands
            ).results[0]
    terminator.operands[0] = seen
    bodies.drop_unused(block)
    return _without_unread(copy).results[0]


def _without_unread(loop: Any) -> Any:
    """A loop without the inputs that its body does not read."""
    block, maps = sir.body(loop), list(loop.attributes["maps"])
    read = [
        number
        for number, argument in enumerate(block.arguments)
        if next(iter(argument.uses), None) is not None
    ]
    count = len(loop.operands)
    for number in reversed(range(count)):
        if number not in read:
            block.erase_argument(number)
    attributes = sir.attributes(loop)
    attributes["maps"] = ir.ArrayAttr.get([*(maps[number] for number in read), *maps[count:]])
    operands = [loop.operands[number] for number in read]
    return bodies.replace_loop(loop, operands, attributes, loop.location)


# The attention ------------------------------------------------------------------------------------


def _replace(attention: Any, limited: _Limited, codec: Codec) -> None:
    """Puts an attention with lengths in the place of one with a mask."""
    attributes = sir.attributes(attention)
    maps, operands = list(attributes["maps"]), list(attention.operands)
    before = (operands[:_MASK], maps[:_MASK])
    mask = [] if limited.mask is None else [limited.mask]
    attributes["maps"] = ir.ArrayAttr.get(
        [*before[1], *maps[_MASK : _MASK + len(mask)], limited.lengths_map, maps[-1]]
    )
    # A mask gives no weight to what it hides; PyTorch reads that too.
    attributes["has_lengths"] = attributes["is_initialized"] = ir.UnitAttr.get(codec.context)
    if limited.choice.from_end:
        attributes["from_end"] = ir.UnitAttr.get(codec.context)
        attributes["causal"] = codec.map_attr(0, [Expr.const(0)])
    new = ir.Operation.create(
        "shapejit.attention",
        results=[attention.results[0].type],
        operands=[*before[0], *mask, limited.lengths],
        attributes=attributes,
        loc=attention.location,
        ip=ir.InsertionPoint(attention),
    )
    attention.results[0].replace_all_uses_with(new.results[0])
    attention.erase()
