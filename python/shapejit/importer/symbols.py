# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The user's dims matched with the symbols that torch.export made for them.

torch names sizes ``s17`` and forgets the user's names. Each dynamic dim gives one equation,
"torch's expression = scale * root + offset"; solving them in turn writes every torch symbol in the
module's symbols. What is left over (a size that is the sum of two others, say) becomes constraints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import sympy
import torch

from shapejit.errors import ErrorId
from shapejit.importer.dynamic_shapes import DimKind, InputLeaf, LeafDim, RootDim
from shapejit.importer.sizes import SympySizes, UnknownSizeError
from shapejit.importer.source import SourceLine
from shapejit.symbolic import Expr


@dataclass(frozen=True)
class SizeConstraint:
    """A fact about sizes that each call must be checked for: ``expr == 0`` or ``expr >= 0``."""

    kind: Literal["eq", "ge"]
    expr: Expr
    source: SourceLine | None = None

    def __str__(self) -> str:
        return f"{self.expr} {'==' if self.kind == 'eq' else '>='} 0"


@dataclass(frozen=True)
class _Equation:
    """torch's size of one dynamic dim, and what the user says it is."""

    leaf: InputLeaf
    index: int
    dim: LeafDim
    size: sympy.Expr


def name_dims(
    leaves: Sequence[InputLeaf], values: Sequence[Any], ranges: Mapping[sympy.Symbol, Any]
) -> list[InputLeaf]:
    """Names the symbolic dims of an exported program that the user did not name.

    Args:
        leaves: the inputs, with the dims that the user did name.
        values: their fake tensors.
        ranges: the program's range constraints, torch's `ValueRanges` by symbol.
    """
    roots = _named_roots(leaves, values)
    named = []
    for leaf, value in zip(leaves, values, strict=True):
        dims = dict(leaf.dims)
        for index, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            linear = _linear(size.node.expr) if isinstance(size, torch.SymInt) else None
            if linear is None or index in dims:
                continue
            symbol, scale, offset = linear
            if symbol not in roots:
                stem = re.sub(r"\W+", "_", leaf.name).strip("_")
                name = f"{stem}_{index}" if scale == 1 and offset == 0 else str(symbol)
                roots[symbol] = _ranged_root(name, ranges.get(symbol))
            dims[index] = LeafDim(roots[symbol], scale, offset)
        named.append(replace(leaf, dims=dims))
    return named


def _named_roots(leaves: Sequence[InputLeaf], values: Sequence[Any]) -> dict[sympy.Symbol, RootDim]:
    """The user's root for each torch symbol that is the size of a dim the user named."""
    roots: dict[sympy.Symbol, RootDim] = {}
    for leaf, value in zip(leaves, values, strict=True):
        for index, dim in leaf.dims.items():
            size = value.shape[index]
            linear = _linear(size.node.expr) if isinstance(size, torch.SymInt) else None
            if linear is not None and linear[1:] == (dim.scale, dim.offset):
                roots.setdefault(linear[0], dim.root)
    return roots


def _ranged_root(name: str, found: Any) -> RootDim:
    low = int(found.lower) if found is not None and found.lower.is_Integer else 0
    high = int(found.upper) if found is not None and found.upper.is_Integer else None
    return RootDim(name, low, high, None, DimKind.AUTO)


def _linear(expr: sympy.Expr) -> tuple[sympy.Symbol, int, int] | None:
    """(symbol, scale, offset) if `expr` is ``scale * symbol + offset`` with scale > 0."""
    symbols = list(expr.free_symbols)
    if len(symbols) != 1:
        return None
    (symbol,) = symbols
    offset = expr.subs(symbol, 0)
    scale = expr.subs(symbol, 1) - offset
    if not (offset.is_Integer and scale.is_Integer and scale > 0):
        return None
    if sympy.expand(scale * symbol + offset - expr) != 0:
        return None
    return symbol, int(scale), int(offset)


def bind_symbols(
    leaves: Sequence[InputLeaf], values: Sequence[Any], sizes: SympySizes
) -> list[SizeConstraint]:
    """Fills `sizes` from the inputs' fake tensors `values`; returns what remains to be checked.

    Raises:
        ExportError: the model fixes a dim (008) or forces two named dims to be equal (009).
    """
    equations = []
    for leaf, value in zip(leaves, values, strict=True):
        for index, dim in leaf.dims.items():
            size = value.shape[index]
            if isinstance(size, torch.SymInt) and size.node.expr.free_symbols:
                equations.append(_Equation(leaf, index, dim, size.node.expr))
            elif dim.root.kind is not DimKind.AUTO:
                raise ErrorId.SJ_EXPORT_008.error(
                    dim=dim.root.name, argument=leaf.name, index=index, size=int(size)
                )
    rest = [equation for equation in equations if not _solve(equation, sizes)]
    constraints: list[SizeConstraint] = []
    for equation in rest:
        constraints += _check(equation, sizes)
    return constraints


def _solve(equation: _Equation, sizes: SympySizes) -> bool:
    """Defines the torch symbol of an equation that is linear in a new one; False if it is not."""
    linear = _linear(equation.size)
    if linear is None:
        return False
    symbol, scale, offset = linear
    dim, table = equation.dim, sizes.table
    if symbol in sizes.values:
        return _merge(equation, sizes.values[symbol] * scale + offset, sizes)
    root = table.root(dim.root)
    value = (root.expr * dim.scale + (dim.offset - offset)).exact_div(scale)
    if value is None:
        raise _relation(
            f"{dim.root.name} divisible by {scale}", f'{scale} * Dim("{dim.root.name}")'
        )
    sizes.values[symbol] = value
    return True


def _merge(equation: _Equation, size: Expr, sizes: SympySizes) -> bool:
    """Two dims that are one torch symbol: the model forces them to be equal. False if they are not.

    One of them is merged into the other, so that both names stay known.
    """
    dim, table = equation.dim, sizes.table
    known = size.symbol_index
    if known is None or (dim.scale, dim.offset) != (1, 0):
        return False
    other = table.root(dim.root)
    if other.expr == size:
        return True
    earlier, later = (table.symbols[number] for number in sorted((known, other.id)))
    if table.is_named(earlier.id) and table.is_named(later.id):
        raise ErrorId.SJ_EXPORT_009.error(dim=later.name, other_dim=earlier.name)
    table.merge(later, earlier)
    for symbol, value in sizes.values.items():
        sizes.values[symbol] = value.substitute(symbols={later.id: earlier.expr})
    return True


def _check(equation: _Equation, sizes: SympySizes) -> list[SizeConstraint]:
    """Constraints for a size that torch expresses in other sizes."""
    dim, root, table = equation.dim, equation.dim.root, sizes.table
    try:
        size = sizes.expr(equation.size)
    except UnknownSizeError as error:
        rule = f"{dim.label} equal to {equation.size}"
        raise _relation(rule, "the relation with derived Dims") from error
    if table.has_root(root):
        known = table.root(root).expr * dim.scale + dim.offset
        return [] if known == size else [SizeConstraint("eq", known - size)]
    if root.kind is DimKind.NAMED and len(size.symbols()) == 1:
        relation = f"{dim.label} = {table.describe(size)}"
        raise _relation(relation, relation)
    bounds = [SizeConstraint("ge", size - dim.size(root.min))]
    if root.max is not None:
        bounds.append(SizeConstraint("ge", dim.size(root.max) - size))
    return [bound for bound in bounds if not table.ranges.is_nonnegative(bound.expr)]


def _relation(rule: str, suggestion: str) -> Exception:
    return ErrorId.SJ_EXPORT_010.error(rule=rule, suggestion=suggestion)
