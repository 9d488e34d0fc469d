# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Which products of float32 may round their factors: an attribute of a gemm or a conv.

A discardable attribute, so one that a rewriting loses makes a product exact, which is always right.
"""

from __future__ import annotations

from typing import Any

from mlir import ir

FACTORS = "shapejit.factors"
"""The type that factors of float32 may be rounded to: tf32, the only one."""


def may_round(op: Any) -> bool:
    """Whether a product may round its factors to tf32."""
    return FACTORS in op.attributes


def let_round(op: Any) -> None:
    """Lets a product round its factors to tf32."""
    op.attributes[FACTORS] = ir.TypeAttr.get(ir.FloatTF32Type.get(op.context))


def inherit_rounding(op: Any, source: Any) -> None:
    """Lets a product round its factors if the one that it takes the place of may."""
    if may_round(source):
        let_round(op)
