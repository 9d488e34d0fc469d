# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Views that keep the row-major order of their source, which memory serves as they are."""

from __future__ import annotations

from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.passes.fusion.codec import Codec, Indices, Sizes, dims, has_division
from shapejit.symbolic import linearize, product, reshape_map


def is_contiguous(view: Any, codec: Codec) -> bool:
    """Whether a view only regroups dims: same elements, same row-major order."""
    indices = codec.indices(view.attributes["map"])
    return codec.is_reshape(indices, codec.shape(view.operands[0]), codec.shape(view.results[0]))


def make_reshape(value: Any, sizes: Sizes, codec: Codec, insertion_point: Any) -> Any:
    """`value` with the given sizes and the same elements in row-major order.

    A reshape of a reshape reads the first one's source; where nothing changes there is no view.
    """
    producer = sir.defining_op(value)
    while producer is not None and producer.name == "shapejit.view":
        if not is_contiguous(producer, codec):
            break
        value = producer.operands[0]
        producer = sir.defining_op(value)
    source = codec.shape(value)
    if source == sizes:
        return value
    view = ir.Operation.create(
        "shapejit.view",
        results=[codec.tensor_type(sizes, value.type.element_type)],
        operands=[value],
        attributes={"map": codec.map_attr(len(sizes), reshape_map(source, sizes))},
        loc=ir.Location.current,
        ip=insertion_point,
    )
    return view.results[0]


def merge_read_dims(
    indices: Indices, shape: Sizes, space: Sizes, codec: Codec
) -> tuple[Indices, Sizes]:
    """A read through divisions as a plain read of the tensor with some dims merged.

    Row ``(d0 floordiv s1, d0 mod s1)`` of a tensor [s0, s1, 8] is row ``d0`` of it as [s0*s1, 8].

    Returns:
        The indices and sizes after merging, those given where it does not help.
    """
    ranges = codec.ranges(space)
    merged, sizes = list(indices), list(shape)
    position = 0
    while position < len(merged):
        divided = position
        while divided < len(merged) and has_division(merged[divided]):
            divided += 1
        # Some dims may be undivided only together: ``(d0 floordiv s1, d0 mod s1 * 4 + d1 floordiv
        # 3, d1 mod 3)`` are three.
        for end in range(divided, position + 1, -1):
            joined = ranges.simplify(linearize(merged[position:end], sizes[position:end]))
            if not has_division(joined):
                merged[position:end] = [joined]
                sizes[position:end] = [product(sizes[position:end])]
                break
        position += 1
    return tuple(merged), tuple(sizes)


def reshape_indices(source: Sizes, result: Sizes) -> Indices:
    """Where `source` is read by a reshape to `result`, over the dims of `result`."""
    return dims(len(result)) if source == result else reshape_map(source, result)
