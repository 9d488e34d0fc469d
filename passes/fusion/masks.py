# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Masks of attentions that mask nothing.

A model called without a padding mask often makes one of ones. What is left of it, once bodies are
simplified, is a loop that yields a constant.
"""

from __future__ import annotations

from typing import Any

from mlir import ir

from shapejit import ir as sir

_MASK = 3  # the operand, and the position of its map


def drop_mask(attention: Any) -> None:
    """Puts an attention without a mask in the place of one whose mask keeps all scores."""
    others = {"has_lengths", "is_ragged"} & set(sir.attributes(attention))
    if others or len(attention.operands) <= _MASK or not _keeps_all(attention.operands[_MASK]):
        return
    attributes = sir.attributes(attention)
    maps = list(attributes["maps"])
    attributes["maps"] = ir.ArrayAttr.get([*maps[:_MASK], *maps[_MASK + 1 :]])
    plain = ir.Operation.create(
        "shapejit.attention",
        results=[attention.results[0].type],
        operands=list(attention.operands)[:_MASK],
        attributes=attributes,
        loc=attention.location,
        ip=ir.InsertionPoint(attention),
    )
    attention.results[0].replace_all_uses_with(plain.results[0])
    attention.erase()


def _keeps_all(mask: Any) -> bool:
    """Whether a mask is true everywhere, or adds 0 everywhere."""
    loop = sir.defining_op(mask)
    if loop is None or not sir.is_pointwise(loop) or len(loop.results) != 1:
        return False
    value = sir.operations(sir.body(loop))[-1].operands[0]
    constant = sir.defining_op(value)
    if constant is None or constant.name != "arith.constant":
        return False
    attribute = constant.attributes["value"]
    if isinstance(value.type, ir.IntegerType):
        return bool(ir.IntegerAttr(attribute).value)
    return bool(ir.FloatAttr(attribute).value == 0)
