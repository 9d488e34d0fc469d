# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Symbolic sizes: integer polynomials whose equality is decided by identity.

`Expr` is the one arithmetic of sizes and indices in the compiler; MLIR's AffineExpr only stores it.
`expr` holds the algebra, `bounds` the reasoning over ranges, `affine` and `text` the conversions,
`reshape` and `rearrange` the index maps that keep all elements.
"""

from __future__ import annotations

from shapejit.symbolic.affine import map_exprs, to_map
from shapejit.symbolic.bounds import Bounds, Ranges, SymbolRanges
from shapejit.symbolic.expr import Algebra, Expr, product
from shapejit.symbolic.rearrange import invert_map, is_reshape
from shapejit.symbolic.reshape import delinearize, linearize, reshape_map
from shapejit.symbolic.text import parse

__all__ = [
    "Algebra",
    "Bounds",
    "Expr",
    "Ranges",
    "SymbolRanges",
    "delinearize",
    "invert_map",
    "is_reshape",
    "linearize",
    "map_exprs",
    "parse",
    "product",
    "reshape_map",
    "to_map",
]
