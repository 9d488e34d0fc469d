# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Loops that copy a tensor, and whose memory a value of a function is."""

from __future__ import annotations

from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.passes.fusion.codec import Codec, Indices, dims


def copy(value: Any, indices: Indices, result_type: Any, codec: Codec, before: Any) -> Any:
    """A tensor of `result_type` with the elements of `value` at `indices`."""
    sizes = codec.sizes(result_type.encoding)
    loop = ir.Operation.create(
        "shapejit.loop",
        results=[result_type],
        operands=[value],
        attributes={
            "space": codec.shape_attr(sizes),
            "maps": ir.ArrayAttr.get(
                [codec.map_attr(len(sizes), indices), codec.map_attr(len(sizes), dims(len(sizes)))]
            ),
            "kinds": ir.ArrayAttr.get([ir.StringAttr.get("none")]),
        },
        regions=1,
        loc=before.location,
        ip=ir.InsertionPoint(before),
    )
    with before.location:
        block = loop.regions[0].blocks.append(value.type.element_type)
        ir.Operation.create(
            "shapejit.yield", operands=[block.arguments[0]], ip=ir.InsertionPoint(block)
        )
    return loop.results[0]


def whole_copy(value: Any, codec: Codec, before: Any) -> Any:
    """A tensor with all elements of `value`."""
    return copy(value, dims(len(codec.shape(value))), value.type, codec, before)


def memory_of(value: Any) -> Any:
    """The value whose memory `value` is: views that are left only regroup dims."""
    op = sir.defining_op(value)
    while op is not None and op.name == "shapejit.view":
        value = op.operands[0]
        op = sir.defining_op(value)
    return value
