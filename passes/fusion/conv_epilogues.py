# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Pointwise loops as epilogues of the convolutions that make their inputs.

A convolution says by a map where it writes, and its layout stays when it takes over what a loop
does to its result: a batch norm over [n, c, h, w] after a convolution that writes [n, h, w, c]
leaves one that writes [n, h, w, c], read through the view with which the loop read. So a layout,
once chosen, stays through a chain of layers. The loop's other inputs are read where the element
comes to lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.passes.fusion.codec import Codec, Indices, dims, has_division
from shapejit.passes.fusion.epilogues import (
    Extra,
    accumulate_type,
    compose_view,
    erase_fused,
    is_epilogue,
    move_epilogue,
    only_read_by_loop,
)
from shapejit.passes.fusion.views import is_contiguous, make_reshape, merge_read_dims


@dataclass(frozen=True)
class Feed:
    """A convolution whose only reader is the loop.

    Attributes:
        conv: the operation.
        operands: the loop's inputs that are its result, itself or viewed.
        indices: where these are read in the result, over the loop's dims.
        location: the loop's dims at each point of the convolution, over (n, g, o.., f).
    """

    conv: Any
    operands: tuple[int, ...]
    indices: Indices
    location: Indices


def fuse(loop: Any, codec: Codec) -> bool:
    """Makes a pointwise loop the epilogue of a convolution, if it can be."""
    if not is_epilogue(loop, codec):
        return False
    for feed in _feeds(loop, codec):
        extras = _extras(loop, feed, codec)
        if extras is not None:
            _replace(loop, feed, extras, codec)
            return True
    return False


# Matching -----------------------------------------------------------------------------------------


def _feeds(loop: Any, codec: Codec) -> list[Feed]:
    """The convolutions that only the loop reads, each element once."""
    reads: dict[int, list[tuple[int, Indices]]] = {}
    convs: dict[int, Any] = {}
    for operand, value in enumerate(loop.operands):
        source, indices = _source(value, codec.maps(loop)[operand], loop, codec)
        conv = sir.defining_op(source)
        if conv is not None and conv.name == "shapejit.conv":
            convs[sir.key(conv)] = conv
            reads.setdefault(sir.key(conv), []).append((operand, indices))
    feeds = []
    for key, conv in convs.items():
        ways = {indices for _, indices in reads[key]}
        if len(ways) > 1 or not only_read_by_loop(conv.results[0], loop):
            continue
        (indices,) = ways
        location = _location(conv, indices, loop, codec)
        if location is not None:
            operands = tuple(operand for operand, _ in reads[key])
            feeds.append(Feed(conv, operands, indices, location))
    return feeds


def _source(value: Any, indices: Indices, loop: Any, codec: Codec) -> tuple[Any, Indices]:
    """What an input is a view of, and where that is read."""
    view = sir.defining_op(value)
    if view is None or view.name != "shapejit.view":
        return value, indices
    composed = codec.compose(codec.indices(view.attributes["map"]), indices, codec.space(loop))
    return view.operands[0], composed


def _location(conv: Any, indices: Indices, loop: Any, codec: Codec) -> Indices | None:
    """Which point of the loop reads each element that the convolution writes."""
    inverse = codec.inverse(indices, codec.shape(conv.results[0]), codec.space(loop))
    if inverse is None:
        return None
    return codec.compose(inverse, codec.maps(conv)[-1], codec.operand_space(conv, 2))


def _extras(loop: Any, feed: Feed, codec: Codec) -> list[Extra] | None:
    """The loop's other inputs as extras; None if one cannot be read well in the epilogue.

    An epilogue runs along the channels in vectors, so an extra must be constant or move by a fixed
    step there.
    """
    space = codec.operand_space(feed.conv, 2)
    maps, extras = codec.maps(loop), []
    for operand, value in enumerate(loop.operands):
        if operand in feed.operands:
            continue
        composed = codec.compose(maps[operand], feed.location, space)
        indices, sizes = merge_read_dims(composed, codec.shape(value), space, codec)
        if any(index.stride(len(space) - 1) is None for index in indices):
            return None
        extras.append(Extra(operand, sizes, indices))
    return extras


# Fusion -------------------------------------------------------------------------------------------


def _replace(loop: Any, feed: Feed, extras: Sequence[Extra], codec: Codec) -> None:
    """Puts the fused convolution in the loop's place and erases the loop and the old one."""
    with ir.Location.fused([feed.conv.location, loop.location]):
        conv = _fused_conv(loop, feed, extras, codec)
        _fill_epilogue(conv, loop, feed, extras)
        value = _viewed(conv, loop, feed, codec)
    loop.results[0].replace_all_uses_with(value)
    if value != conv.results[0]:
        _read_through(sir.defining_op(value), codec)
    erase_fused(loop, [feed.conv], value)


def _viewed(conv: Any, loop: Any, feed: Feed, codec: Codec) -> Any:
    """The convolution's result as the loop's."""
    result, type_ = conv.results[0], loop.results[0].type
    if result.type == type_ and feed.indices == dims(len(feed.indices)):
        return result
    return ir.Operation.create(
        "shapejit.view",
        results=[type_],
        operands=[result],
        attributes={"map": codec.map_attr(len(codec.space(loop)), feed.indices)},
        ip=ir.InsertionPoint(loop),
    ).results[0]


def _fused_conv(loop: Any, feed: Feed, extras: Sequence[Extra], codec: Codec) -> Any:
    """The convolution with all operands and an empty epilogue, in front of the loop."""
    old, point = feed.conv, ir.InsertionPoint(loop)
    rank = len(codec.operand_space(old, 2))
    *maps, written = old.attributes["maps"]
    operands = list(old.operands)
    for extra in extras:
        operands.append(make_reshape(loop.operands[extra.operand], extra.sizes, codec, point))
        maps.append(codec.map_attr(rank, extra.indices))
    attributes = sir.attributes(old)
    attributes["maps"] = ir.ArrayAttr.get([*maps, written])
    shape, element = codec.shape(old.results[0]), loop.results[0].type.element_type
    return ir.Operation.create(
        "shapejit.conv",
        results=[codec.tensor_type(shape, element)],
        operands=operands,
        attributes=attributes,
        regions=1,
        ip=point,
    )


def _fill_epilogue(conv: Any, loop: Any, feed: Feed, extras: Sequence[Extra]) -> None:
    """Moves the old epilogue, then the loop's body, into the new one."""
    scalars = [value.type.element_type for value in list(conv.operands)[2:]]
    block = conv.regions[0].blocks.append(accumulate_type(conv), *scalars)
    own = len(feed.conv.operands) - 1  # the accumulator and the old extras
    arguments = list(block.arguments)
    value = move_epilogue(feed.conv, arguments[:own], block)
    body = sir.body(loop)
    for operand in feed.operands:
        body.arguments[operand].replace_all_uses_with(value)
    for extra, argument in zip(extras, arguments[own:], strict=True):
        body.arguments[extra.operand].replace_all_uses_with(argument)
    for op in sir.operations(body):
        block.append(op)


def _read_through(view: Any, codec: Codec) -> None:
    """Readers of a view read its source: views always, others if it moves elements undivided."""
    value, source = view.results[0], view.operands[0]
    outer = codec.indices(view.attributes["map"])
    regroups = is_contiguous(view, codec)
    for op, operand in sir.users(value):
        if op.name == "shapejit.view":
            compose_view(op, source, outer, codec)
        elif "maps" in op.attributes and not regroups:
            _compose_operand(op, operand, source, outer, codec)


def _compose_operand(op: Any, operand: int, source: Any, outer: Indices, codec: Codec) -> None:
    indices, space = codec.maps(op)[operand], codec.operand_space(op, operand)
    composed = codec.compose(outer, indices, space)
    if sum(map(has_division, composed)) <= sum(map(has_division, indices)):
        maps = list(op.attributes["maps"])
        maps[operand] = codec.map_attr(len(space), composed)
        op.operands[operand] = source
        op.attributes["maps"] = ir.ArrayAttr.get(maps)
