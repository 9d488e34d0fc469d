# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Maps, shapes and types as expressions and back, remembered for the run of a pass.

A model has a few dozen distinct maps and shapes and reads each of them hundreds of times, while one
conversion costs as much as ten dictionary lookups. A `Codec` lives as long as one run of a pass: it
holds attributes of one context and the symbol ranges of one module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from mlir import ir

from shapejit import ir as sir
from shapejit.passes.analysis.accesses import accesses, conv_spaces
from shapejit.symbolic import Expr, Ranges, invert_map, linearize, map_exprs, product
from shapejit.symbolic.expr import AtomKind

Sizes: TypeAlias = tuple[Expr, ...]
Indices: TypeAlias = tuple[Expr, ...]


# Which dims of [b, h, m, n, d, dv] the maps of q, k and v are over.
_ATTENTION_DIMS: Final = ((0, 1, 2, 4), (0, 1, 3, 4), (0, 1, 3, 5))


def dims(rank: int) -> Indices:
    """``(d0, d1, ..)``, the identity access."""
    return tuple(map(Expr.dim, range(rank)))


def has_division(expr: Expr) -> bool:
    """Whether an index needs a division to compute."""
    return any(atom.kind is AtomKind.FLOORDIV for atom in expr.atoms())


class Codec:
    """Conversions for one module; see the file's docstring."""

    def __init__(self, module: Any) -> None:
        self.context = module.context
        self.symbol_ranges = sir.symbol_ranges(module)
        self._indices: dict[Any, Indices] = {}
        self._sizes: dict[Any, Sizes] = {}
        self._shapes: dict[Any, Sizes] = {}
        self._map_attributes: dict[tuple[int, Indices], Any] = {}
        self._shape_attributes: dict[Sizes, Any] = {}
        self._types: dict[tuple[Sizes, Any], Any] = {}
        self._ranges: dict[Sizes, Ranges] = {}
        self._composed: dict[tuple[Indices, Indices, Sizes], Indices] = {}
        self._reshapes: dict[tuple[Indices, Sizes, Sizes], bool] = {}
        self._inverses: dict[tuple[Indices, Sizes, Sizes], Indices | None] = {}

    # Decoding -------------------------------------------------------------------------------------

    def indices(self, map_attribute: Any) -> Indices:
        """The results of an AffineMapAttr."""
        found = self._indices.get(map_attribute)
        if found is None:
            found = self._indices[map_attribute] = map_exprs(map_attribute.value)
        return found

    def maps(self, op: Any) -> list[Indices]:
        """The maps of a loop, gemm, conv or attention: operands first, then results."""
        return [self.indices(attribute) for attribute in op.attributes["maps"]]

    def sizes(self, shape_attribute: Any) -> Sizes:
        """The sizes of a ``#shapejit.shape``."""
        found = self._sizes.get(shape_attribute)
        if found is None:
            found = self._sizes[shape_attribute] = sir.attr_sizes(shape_attribute)
        return found

    def space(self, op: Any) -> Sizes:
        """The iteration space of a loop, gemm, conv or attention."""
        return self.sizes(op.attributes["space"])

    def shape(self, value: Any) -> Sizes:
        """The symbolic sizes of a tensor."""
        type_ = value.type
        found = self._shapes.get(type_)
        if found is None:
            found = self._shapes[type_] = sir.shape_of(type_)
        return found

    def operand_space(self, op: Any, operand: int) -> Sizes:
        """Sizes of the dims of an operand's map."""
        space = self.space(op)
        if op.name == "shapejit.attention":
            if operand >= len(_ATTENTION_DIMS):
                return accesses(op)[operand].space
            return tuple(space[dim] for dim in _ATTENTION_DIMS[operand])
        if op.name == "shapejit.conv":
            return conv_spaces(space, self.sizes(op.attributes["image"]))[min(operand, 2)]
        weights = op.attributes["operandSegmentSizes"][1] if op.name == "shapejit.gemm" else 0
        return space[:-1] if 0 < weights < operand else space

    # Encoding -------------------------------------------------------------------------------------

    def map_attr(self, n_dims: int, indices: Sequence[Expr]) -> Any:
        """The AffineMapAttr ``(d0, .., d<n-1>) -> (indices)``."""
        key = (n_dims, tuple(indices))
        found = self._map_attributes.get(key)
        if found is None:
            found = ir.AffineMapAttr.get(sir.make_map(n_dims, indices))
            self._map_attributes[key] = found
        return found

    def shape_attr(self, sizes: Sequence[Expr]) -> Any:
        """The ``#shapejit.shape`` of these sizes."""
        key = tuple(sizes)
        found = self._shape_attributes.get(key)
        if found is None:
            found = self._shape_attributes[key] = sir.shape_attr(key, self.context)
        return found

    def tensor_type(self, sizes: Sequence[Expr], element: Any) -> Any:
        """The tensor type of these sizes."""
        key = (tuple(sizes), element)
        found = self._types.get(key)
        if found is None:
            found = self._types[key] = sir.tensor_type(key[0], element)
        return found

    # Reasoning ------------------------------------------------------------------------------------

    def ranges(self, space: Sizes) -> Ranges:
        """What is known of indices within `space`."""
        found = self._ranges.get(space)
        if found is None:
            found = self._ranges[space] = Ranges(self.symbol_ranges, space)
        return found

    def compose(self, outer: Indices, inner: Indices, space: Sizes) -> Indices:
        """`outer` at the indices `inner`, which are over the dims of `space`."""
        key = (outer, inner, space)
        found = self._composed.get(key)
        if found is None:
            replaced, ranges = dict(enumerate(inner)), self.ranges(space)
            found = tuple(ranges.simplify(index.substitute(dims=replaced)) for index in outer)
            self._composed[key] = found
        return found

    def is_reshape(self, indices: Indices, source: Sizes, result: Sizes) -> bool:
        """Whether reading `source` at `indices` of `result` keeps the row-major order.

        That is: both have the same elements, at the same offsets.
        """
        key = (indices, source, result)
        found = self._reshapes.get(key)
        if found is None:
            found = self._reshapes[key] = self._is_reshape(indices, source, result)
        return found

    def _is_reshape(self, indices: Indices, source: Sizes, result: Sizes) -> bool:
        if product(source) != product(result):
            return False
        # A dim of size one is always at 0, however it is spelled.
        unit = {i: Expr.const(0) for i, size in enumerate(result) if size.constant == 1}
        theirs = linearize(indices, source).substitute(dims=unit)
        ours = linearize(dims(len(result)), result).substitute(dims=unit)
        return theirs == ours or self.ranges(result).simplify(theirs - ours).constant == 0

    def inverse(self, indices: Indices, source: Sizes, result: Sizes) -> Indices | None:
        """Where each element of `source` goes when it is read at `indices` of `result`.

        None if elements are left out or read twice, or if that is not known.
        """
        key = (indices, source, result)
        if key not in self._inverses:
            self._inverses[key] = self._permuted_back(*key) or invert_map(
                indices, source, result, self.symbol_ranges
            )
        return self._inverses[key]

    def _permuted_back(self, indices: Indices, source: Sizes, result: Sizes) -> Indices | None:
        """The inverse of a permutation of dims, for which nothing has to be proved."""
        order = [index.dim_index for index in indices]
        if any(order.count(dim) != 1 for dim in range(len(result))) or len(order) != len(result):
            return None
        if any(size != result[dim or 0] for size, dim in zip(source, order, strict=True)):
            return None
        return tuple(Expr.dim(order.index(dim)) for dim in range(len(result)))
