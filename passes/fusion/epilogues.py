# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Pointwise loops as epilogues of the gemms that make their inputs.

The loop may see the gemm's result through a reshape: a `linear` of a [batch, rows, features] tensor
is a gemm over batch*rows, its bias and its residual are added in three dims. The epilogue then runs
over the gemm's own dims, the loop's other inputs are read through the inverse of the reshape, and
what the loop gave is a view of the new gemm's result.

The fused gemm stands where the loop stood. As the loop is the only reader of the old one, every
value that it needs is there, and no order changes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.passes.analysis.accesses import weight_count
from shapejit.passes.analysis.precision import may_round
from shapejit.passes.fusion import bodies
from shapejit.passes.fusion.codec import Codec, Indices, Sizes, dims, has_division
from shapejit.passes.fusion.readers import enclosing_op, read_only_by, readers
from shapejit.passes.fusion.repeats import is_repeated, repeat
from shapejit.passes.fusion.views import (
    is_contiguous,
    make_reshape,
    merge_read_dims,
    reshape_indices,
)


@dataclass(frozen=True)
class Feed:
    """A gemm whose only reader is the loop.

    Attributes:
        gemm: the operation.
        operands: the loop's inputs that are its result, itself or reshaped.
        indices: where these are read in the gemm's result, over the loop's dims.
    """

    gemm: Any
    operands: tuple[int, ...]
    indices: Indices


@dataclass(frozen=True)
class Extra:
    """An extra operand of the fused gemm: the loop's input, how it is reshaped and read."""

    operand: int
    sizes: Sizes
    indices: Indices


def fuse(loop: Any, codec: Codec) -> bool:
    """Makes a pointwise loop the epilogue of one gemm, or of a gated pair, if it can be."""
    if not is_epilogue(loop, codec) or _is_cast_for_loops(loop):
        return False
    feeds = _feeds(loop, codec)
    pair = _gated_pair(feeds, codec)
    # A later gemm first: what comes before it can still be the epilogue of another one.
    for group in [pair] if pair else [[feed] for feed in reversed(feeds)]:
        extras = _extras(loop, group, codec)
        if extras is not None:
            _replace(loop, group, extras, codec)
            return True
    return False


def is_epilogue(loop: Any, codec: Codec) -> bool:
    """Whether a pointwise loop could be an epilogue, of whatever makes its input.

    It has one result, in the order of its dims, and knows neither indices nor whole tensors.
    """
    if len(loop.results) != 1 or codec.maps(loop)[-1] != dims(len(codec.space(loop))):
        return False
    body = bodies.survey(loop)
    return not body.dims and not body.captures


def _is_cast_for_loops(loop: Any) -> bool:
    """Whether a loop only widens its input, for loops that can do so themselves.

    As an epilogue it would make the gemm store twice the bytes.
    """
    cast, *others = sir.operations(sir.body(loop))[:-1] or [None]
    if cast is None or others or cast.name != "arith.extf":
        return False
    return all(
        reader.op.name == "shapejit.loop" and reader.operand is not None
        for reader in readers(loop.results[0])
    )


# Matching -----------------------------------------------------------------------------------------


def _feeds(loop: Any, codec: Codec) -> list[Feed]:
    """The gemms that only the loop reads, each at one map that keeps the row-major order."""
    space, maps = codec.space(loop), codec.maps(loop)
    reads: dict[int, list[tuple[int, Indices]]] = {}
    gemms: dict[int, Any] = {}
    for operand, value in enumerate(loop.operands):
        source, indices = _source(value, maps[operand], loop, codec)
        gemm = sir.defining_op(source)
        if gemm is None or gemm.name != "shapejit.gemm":
            continue
        gemms[sir.key(gemm)] = gemm
        reads.setdefault(sir.key(gemm), []).append((operand, indices))
    feeds = []
    for key, gemm in gemms.items():
        ways = {indices for _, indices in reads[key]}
        if len(ways) > 1 or not only_read_by_loop(gemm.results[0], loop):
            continue
        (indices,) = ways
        if codec.is_reshape(indices, codec.shape(gemm.results[0]), space):
            feeds.append(Feed(gemm, tuple(operand for operand, _ in reads[key]), indices))
    return sorted(feeds, key=functools.cmp_to_key(_program_order))


def _program_order(lhs: Feed, rhs: Feed) -> int:
    return -1 if lhs.gemm.is_before_in_block(rhs.gemm) else 1


def _source(value: Any, indices: Indices, loop: Any, codec: Codec) -> tuple[Any, Indices]:
    """What an input is a reshape of, and where that is read."""
    view = sir.defining_op(value)
    if view is None or view.name != "shapejit.view" or not is_contiguous(view, codec):
        return value, indices
    composed = codec.compose(codec.indices(view.attributes["map"]), indices, codec.space(loop))
    return view.operands[0], composed


def only_read_by_loop(result: Any, loop: Any) -> bool:
    """Whether the loop alone reads a value, itself or through a view that it alone reads."""
    found = readers(result)
    if len(found) == 1 and found[0].op.name == "shapejit.view":
        return read_only_by(found[0].op.results[0], loop)
    return read_only_by(result, loop)


def _gated_pair(feeds: Sequence[Feed], codec: Codec) -> list[Feed] | None:
    """Two gemms of one weight each that are the same product but for the weight."""
    for i, first in enumerate(feeds):
        for second in feeds[i + 1 :]:
            if first.indices == second.indices and _product_key(first.gemm, codec) == _product_key(
                second.gemm, codec
            ):
                return sorted((first, second), key=lambda feed: feed.operands)
    return None


def _product_key(gemm: Any, codec: Codec) -> tuple[Any, ...]:
    """What the gemms of a gated pair have in common; unique to the gemm if it has two weights."""
    weights = weight_count(gemm)
    return (
        gemm.operands[0],
        gemm.attributes["maps"][0],
        codec.space(gemm),
        accumulate_type(gemm),
        may_round(gemm),
        0 if weights == 1 else sir.key(gemm),
    )


def accumulate_type(op: Any) -> Any:
    """The type of the accumulators of a gemm's or conv's epilogue."""
    if "accumulate" in op.attributes:
        return op.attributes["accumulate"].value
    element = op.operands[0].type.element_type
    narrow = isinstance(element, (ir.F16Type, ir.BF16Type))
    return ir.F32Type.get(element.context) if narrow else element


def _extras(loop: Any, group: Sequence[Feed], codec: Codec) -> list[Extra] | None:
    """The loop's other inputs as extras; None if one cannot be read well in the epilogue.

    An epilogue runs along n in vectors, so an extra must be constant or move by a fixed step there,
    or be a vector that can be repeated along n (`repeats`).
    """
    result = codec.shape(group[0].gemm.results[0])
    space, maps = codec.space(loop), codec.maps(loop)
    inverse = reshape_indices(space, result)
    taken = {operand for feed in group for operand in feed.operands}
    extras = []
    for operand, value in enumerate(loop.operands):
        if operand in taken:
            continue
        composed = codec.compose(maps[operand], inverse, result)
        indices, sizes = merge_read_dims(composed, codec.shape(value), result, codec)
        steady = all(index.stride(len(result) - 1) is not None for index in indices)
        if not steady and not is_repeated(indices, len(result)):
            return None
        extras.append(Extra(operand, sizes, indices))
    return extras


# Fusion -------------------------------------------------------------------------------------------


def _replace(loop: Any, group: Sequence[Feed], extras: Sequence[Extra], codec: Codec) -> None:
    """Puts the fused gemm in the loop's place and erases the loop and the gemms."""
    location = ir.Location.fused([*(feed.gemm.location for feed in group), loop.location])
    with location:
        gemm = _fused_gemm(loop, group, extras, codec)
        _fill_epilogue(gemm, loop, group, extras)
        point = ir.InsertionPoint(loop)
        value = make_reshape(gemm.results[0], codec.shape(loop.results[0]), codec, point)
    loop.results[0].replace_all_uses_with(value)
    _read_directly(value, codec)
    erase_fused(loop, [feed.gemm for feed in group], value)


def erase_fused(loop: Any, producers: Sequence[Any], value: Any) -> None:
    """Erases the loop and what made its inputs, which only it and dead operations read.

    Dead operations in front of the loop go, too. Those after it are left to the pass, which may
    hold them; they read `value` until then.
    """
    others: dict[int, Any] = {}
    for producer in producers:
        for user, operand in sir.users(producer.results[0]):
            top = enclosing_op(user)
            if loop.is_before_in_block(top):
                user.operands[operand] = value
            elif sir.key(top) != sir.key(loop):
                others[sir.key(top)] = top
    loop.erase()  # first: it may read a producer through one of the others
    for op in [*others.values(), *producers]:
        op.erase()


def _fused_gemm(loop: Any, group: Sequence[Feed], extras: Sequence[Extra], codec: Codec) -> Any:
    """The gemm with all operands and an empty epilogue, in front of the loop."""
    first = group[0].gemm
    rank, result = len(codec.space(first)) - 1, codec.shape(first.results[0])
    point = ir.InsertionPoint(loop)
    lhs, lhs_map = first.operands[0], first.attributes["maps"][0]
    weights: list[tuple[Any, Any]] = []
    added: list[tuple[Any, Any]] = []
    for feed in group:
        pairs = list(zip(feed.gemm.operands, feed.gemm.attributes["maps"], strict=True))
        split = 1 + weight_count(feed.gemm)
        weights += pairs[1:split]
        added += pairs[split:]
    for extra in extras:
        value = make_reshape(loop.operands[extra.operand], extra.sizes, codec, point)
        indices = extra.indices
        if is_repeated(indices, rank):
            value, indices = repeat(value, indices, result, codec, point)
        added.append((value, codec.map_attr(rank, indices)))
    attributes = sir.attributes(first)
    attributes["maps"] = ir.ArrayAttr.get(
        [lhs_map, *(m for _, m in weights), *(m for _, m in added)]
    )
    attributes["operandSegmentSizes"] = ir.DenseI32ArrayAttr.get([1, len(weights), len(added)])
    return ir.Operation.create(
        "shapejit.gemm",
        results=[codec.tensor_type(result, loop.results[0].type.element_type)],
        operands=[lhs, *(value for value, _ in weights), *(value for value, _ in added)],
        attributes=attributes,
        regions=1,
        ip=point,
    )


def _fill_epilogue(gemm: Any, loop: Any, group: Sequence[Feed], extras: Sequence[Extra]) -> None:
    """Moves the epilogues of the group, then the loop's body, into the gemm's epilogue."""
    weights = weight_count(gemm)
    accumulators = [accumulate_type(gemm)] * weights
    others = [value.type.element_type for value in list(gemm.operands)[1 + weights :]]
    block = gemm.regions[0].blocks.append(*accumulators, *others)
    scalars = iter(block.arguments)
    accumulated = [[next(scalars) for _ in range(weight_count(f.gemm))] for f in group]
    body = sir.body(loop)
    for feed, sums in zip(group, accumulated, strict=True):
        own = [next(scalars) for _ in range(len(feed.gemm.operands) - 1 - len(sums))]
        value = move_epilogue(feed.gemm, [*sums, *own], block)
        for operand in feed.operands:
            body.arguments[operand].replace_all_uses_with(value)
    for extra in extras:
        body.arguments[extra.operand].replace_all_uses_with(next(scalars))
    for op in sir.operations(body):
        block.append(op)


def move_epilogue(op: Any, arguments: Sequence[Any], block: Any) -> Any:
    """The value of a gemm's or conv's result at the end of `block`, from its epilogue's arguments.

    The epilogue's operations move there.
    """
    if not len(op.regions[0].blocks):
        return _rounded(arguments[0], op.results[0].type.element_type, block)
    old = sir.body(op)
    for argument, replacement in zip(old.arguments, arguments, strict=True):
        argument.replace_all_uses_with(replacement)
    *ops, end = sir.operations(old)
    for op in ops:
        block.append(op)
    return end.operands[0]


def _rounded(accumulator: Any, element: Any, block: Any) -> Any:
    """The accumulator as the result of a gemm without an epilogue, which rounds it."""
    if accumulator.type == element:
        return accumulator
    name = "arith.truncf" if isinstance(element, ir.FloatType) else "arith.trunci"
    with ir.InsertionPoint(block):
        return ir.Operation.create(name, results=[element], operands=[accumulator]).results[0]


def _read_directly(value: Any, codec: Codec) -> None:
    """Readers undo the reshape that made `value` where that makes their maps simpler.

    The next gemm reads rows ``d0 floordiv s1, d0 mod s1`` of the three dims: row d0 of the two.
    """
    reshape = sir.defining_op(value)
    if reshape is None or reshape.name != "shapejit.view":
        return
    source, outer = reshape.operands[0], codec.indices(reshape.attributes["map"])
    for op, operand in sir.users(value):
        if op.name == "shapejit.view":
            compose_view(op, source, outer, codec)
        elif "maps" in op.attributes:
            _compose_operand(op, operand, source, outer, codec)


def compose_view(view: Any, source: Any, outer: Indices, codec: Codec) -> None:
    shape = codec.shape(view.results[0])
    indices = codec.compose(outer, codec.indices(view.attributes["map"]), shape)
    view.operands[0] = source
    view.attributes["map"] = codec.map_attr(len(shape), indices)
    if codec.shape(source) == shape and codec.is_reshape(indices, shape, shape):
        view.results[0].replace_all_uses_with(source)


def _compose_operand(op: Any, operand: int, source: Any, outer: Indices, codec: Codec) -> None:
    indices, space = codec.maps(op)[operand], codec.operand_space(op, operand)
    composed = codec.compose(outer, indices, space)
    if sum(map(has_division, composed)) < sum(map(has_division, indices)):
        maps = list(op.attributes["maps"])
        maps[operand] = codec.map_attr(len(space), composed)
        op.operands[operand] = source
        op.attributes["maps"] = ir.ArrayAttr.get(maps)
