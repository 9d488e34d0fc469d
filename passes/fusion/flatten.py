# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Pointwise loops in the dims of a row cluster, so that they can join it.

A padding mask is made over [batch, tokens], while the rows that it belongs to are batch*tokens of
them since they went through a product. A loop that reads and writes whole tensors in order is as
well one over the number of their elements.
"""

from __future__ import annotations

from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.passes.fusion import bodies
from shapejit.passes.fusion.clusters import row_form
from shapejit.passes.fusion.codec import Codec, Sizes, dims
from shapejit.passes.fusion.views import make_reshape
from shapejit.symbolic import product


def flatten_row_loops(function: Any, codec: Codec) -> None:
    """Gives pointwise loops over as many elements as a row cluster has rows that one dim."""
    loops = [op for op in sir.operations(sir.body(function)) if op.name == "shapejit.loop"]
    rows: set[Sizes] = set()
    for loop in loops:
        form = row_form(loop, codec)
        if form is not None and form.rows == 1:
            rows.add(form.space[:1])
    for loop in loops:
        space = (product(codec.space(loop)),)
        if space in rows and space != codec.space(loop) and _is_in_order(loop, codec):
            _flatten(loop, space, codec)


def _is_in_order(loop: Any, codec: Codec) -> bool:
    """Whether a pointwise loop reads and writes whole tensors, each at its own place."""
    own = dims(len(codec.space(loop)))
    return (
        sir.is_pointwise(loop)
        and all(indices == own for indices in codec.maps(loop))
        and all(codec.shape(value) == codec.space(loop) for value in loop.operands)
        and not bodies.survey(loop).dims
    )


def _flatten(loop: Any, space: Sizes, codec: Codec) -> None:
    """Replaces a loop by one over a single dim; its readers get views of the old sizes."""
    point = ir.InsertionPoint(loop)
    with loop.location:
        inputs = [make_reshape(value, space, codec, point) for value in loop.operands]
        maps = [codec.map_attr(1, dims(1))] * (len(inputs) + len(loop.results))
        new = ir.Operation.create(
            "shapejit.loop",
            results=[codec.tensor_type(space, r.type.element_type) for r in loop.results],
            operands=inputs,
            attributes=sir.attributes(loop)
            | {"space": codec.shape_attr(space), "maps": ir.ArrayAttr.get(maps)},
            regions=1,
            ip=point,
        )
        sir.body(loop).append_to(new.regions[0])
        for old, result in zip(loop.results, new.results, strict=True):
            old.replace_all_uses_with(make_reshape(result, codec.shape(old), codec, point))
    loop.erase()
