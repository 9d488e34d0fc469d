# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Vectors that an epilogue reads again and again along its innermost dim, written out.

The product of a transposed convolution has columns (tap, filter), and its bias is one number a
filter: column n reads element ``n mod filters``. An epilogue runs along n in vectors, so it cannot
read that. A loop over n repeats the vector first; of a weight that is done once
(`shapejit-hoist-weights`), and otherwise it is nothing beside the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlir import ir

from shapejit.passes.fusion.codec import Codec, Indices, dims


def is_repeated(indices: Sequence[Any], rank: int) -> bool:
    """Whether indices over so many dims depend on the last one alone, in unequal steps."""
    used = {dim for index in indices for dim in index.dims()}
    return used == {rank - 1} and any(index.stride(rank - 1) is None for index in indices)


def repeat(
    value: Any, indices: Indices, shape: Sequence[Any], codec: Codec, point: Any
) -> tuple[Any, Indices]:
    """A vector with what an operand reads along the last dim.

    Args:
        value: the operand.
        indices: where it is read, over dims of the sizes `shape`; see `is_repeated`.
        shape: the sizes.
        codec: of the module.
        point: where the loop is inserted.

    Returns:
        The vector, and where it is read.
    """
    last = len(shape) - 1
    moved = tuple(index.substitute(dims={last: dims(1)[0]}) for index in indices)
    element = value.type.element_type
    loop = ir.Operation.create(
        "shapejit.loop",
        results=[codec.tensor_type([shape[last]], element)],
        operands=[value],
        attributes={
            "space": codec.shape_attr([shape[last]]),
            "maps": ir.ArrayAttr.get([codec.map_attr(1, moved), codec.map_attr(1, dims(1))]),
            "kinds": ir.ArrayAttr.get([ir.StringAttr.get("none")]),
        },
        regions=1,
        ip=point,
    )
    block = loop.regions[0].blocks.append(element)
    with ir.InsertionPoint(block):
        ir.Operation.create("shapejit.yield", operands=[block.arguments[0]])
    return loop.results[0], dims(last + 1)[last:]
