# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-pack-weights: weights of products in the layout that the micro-kernel streams.

Why: a micro-kernel reads, for each k, one row of a panel of columns. Stored that way a weight is
read front to back with nothing to copy per call, at any number of rows. Weights do not change
between calls, so the copy is made once, when a program is bound to its weights; panels are padded
with zeros, so the kernel never masks the last one.

Before::

    func.func @main(.., %w: tensor<384x1536xf32, ..> {shapejit.kind = "weight"}) {
      shapejit.gemm over [s0, 384, 1536] lhs(..)
          rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<384x1536xf32, ..>) ..

After, with ``panel=32``::

      %p = shapejit.pack %w {dim = 0, panel = 32}
          : tensor<384x1536xf32, ..> -> tensor<12x1536x32xf32, #shapejit.shape<[12, 1536, 32]>>
      shapejit.gemm over [s0, 384, 1536] lhs(..)
          rhs(%p at affine_map<(d0, d1, d2) -> (d1 floordiv 32, d2, d1 mod 32)> : ..) ..

The kernel of a convolution is packed over [g, f, t.., c], since that is the order in which the taps
and channels of a row of the image are gathered, f in panels; groups of few output channels get
panels of half the width. A depthwise one is packed over [g, t..], g in panels of half the width:
there a vector holds channels of neighbouring groups. So is one whose groups have as many input as
output channels, few enough for two groups in such a panel, over [g * f, t.., c].

On a GPU, where TMA wants neighbouring channels to be neighbours in memory, the kernels of
convolutions alone are packed, in panels of one filter: ``panel=1 products=false``. Then depthwise
ones are packed over [t.., g].

A batch of weights is packed over [b.., n, k]. A weight that several ops read alike is packed once.
One that is read otherwise (a slice) stays as it is: the kernel packs such operands on the fly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mlir import ir

from shapejit import ir as sir
from shapejit.pass_host import Pass, PassFailure, option, register_pass
from shapejit.passes.analysis.accesses import Access, accesses, space_of, weight_count
from shapejit.symbolic import Expr, Ranges, linearize
from shapejit.symbolic.expr import AtomKind
from shapejit.windows import Window

Exprs: TypeAlias = tuple[Expr, ...]


@dataclass(frozen=True)
class Packing:
    """How a weight is packed, and read again.

    Attributes:
        sizes: of the space over which it is packed.
        source: where the weight is read, over the dims of that space.
        dim: the dim that is cut into panels.
        panel: columns of a panel.
        dims: the dims of the space, over the reader's dims.
    """

    sizes: tuple[int, ...]
    source: Exprs
    dim: int
    panel: int
    dims: Exprs

    def shape(self) -> list[Expr | int]:
        """Sizes of the packed weight."""
        panels = -(-self.sizes[self.dim] // self.panel)
        return [*self.sizes[: self.dim], panels, *self.sizes[self.dim + 1 :], self.panel]

    def read(self) -> list[Expr]:
        """Where the packed weight is read, over the reader's dims."""
        indices = list(self.dims)
        cut = indices[self.dim]
        indices[self.dim] = cut // self.panel
        return [*indices, cut % self.panel]


def _packing(access: Access, dims: Sequence[int], cut: int, panel: int) -> Packing | None:
    """The packing over some dims of a reader, if these take each element of the weight once.

    Args:
        access: how the weight is read.
        dims: the reader's dims that are the space, in order.
        cut: the position among them of the dim that is cut into panels.
        panel: columns of a panel.
    """
    renamed = {dim: Expr.const(0) for dim, size in enumerate(access.space) if size == 1}
    renamed |= {dim: Expr.dim(position) for position, dim in enumerate(dims)}
    if any(not index.dims() <= renamed.keys() for index in access.exprs):
        return None
    sizes = [access.space[dim].constant for dim in dims]
    whole = [size.constant for size in sir.shape_of(access.value)]
    if None in sizes or None in whole:
        return None
    found = tuple(size for size in sizes if size is not None)
    source = tuple(index.substitute(dims=renamed) for index in access.exprs)
    elements = [size for size in whole if size is not None]
    if not _takes_each_once(source, found, elements):
        return None
    return Packing(found, source, cut, panel, tuple(map(Expr.dim, dims)))


def _merged(packing: Packing) -> Packing | None:
    """A packing over [g, f, ..] as one over [g * f, ..], which is cut into panels."""
    groups, outside, *rest = packing.sizes
    sizes = (groups * outside, *rest)
    both = Expr.dim(0)
    dims = {0: both // outside, 1: both % outside}
    dims |= {2 + i: Expr.dim(1 + i) for i in range(len(rest))}
    ranges = Ranges(None, sizes)
    source = tuple(ranges.simplify(index.substitute(dims=dims)) for index in packing.source)
    if any(atom.kind is AtomKind.FLOORDIV for index in source for atom in index.atoms()):
        return None
    joined = packing.dims[0] * outside + packing.dims[1]
    return Packing(sizes, source, 0, packing.panel, (joined, *packing.dims[2:]))


def _takes_each_once(exprs: Exprs, space: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether a map is a mixed-radix number of all dims that counts all elements."""
    offset = linearize(exprs, sizes)
    steps: list[tuple[int, int]] = []
    for dim, size in enumerate(space):
        step = offset.stride(dim)
        if size == 1:
            continue
        if step is None or step.constant is None:
            return False
        steps.append((abs(step.constant), size))
    reach = 1
    for stride, size in sorted(steps):
        if stride != reach:
            return False
        reach *= size
    return reach == math.prod(sizes)


# What is packed, by reader ------------------------------------------------------------------------


def _gemm_packings(gemm: Any, panel: int) -> Iterator[tuple[Access, Packing | None]]:
    k = len(space_of(gemm)) - 1
    for access in accesses(gemm)[1 : 1 + weight_count(gemm)]:
        read = {dim for index in access.exprs for dim in index.dims()}
        batch = sorted(dim for dim in read if dim < k - 2)
        yield access, _packing(access, (*batch, k - 1, k), len(batch), panel)


def _conv_packings(conv: Any, panel: int) -> Iterator[tuple[Access, Packing | None]]:
    access = accesses(conv)[1]
    groups, outside, inside, *taps = access.space
    half = max(panel // 2, 1)
    tap_dims = range(3, 3 + len(taps))
    dense = all(spread == 1 for spread in Window.of(conv).lhs_dilations)
    if outside == 1 and inside == 1 and dense and panel == 1:
        # For a thread's loads of neighbouring channels: over [t.., g].
        yield access, _packing(access, (*tap_dims, 0), len(taps), panel)
        return
    if outside == 1 and inside == 1 and dense:
        yield access, _packing(access, (0, *tap_dims), 0, half)
        return
    width = outside.constant
    narrow = width is not None and width <= half
    packing = _packing(access, (0, 1, *tap_dims, 2), 1, half if narrow else panel)
    shared = inside == outside and width and half % (2 * width) == 0  # a vector has some groups
    if packing is not None and groups != 1 and shared and dense:
        packing = _merged(packing) or packing
    yield access, packing


_READERS = {"shapejit.gemm": _gemm_packings, "shapejit.conv": _conv_packings}


class _Packer:
    """Packs the weights of one function; equal packs are made once."""

    def __init__(self, function: Any, panel: int, *, products: bool) -> None:
        self._function, self._panel = function, panel
        self._readers = {
            name: packings
            for name, packings in _READERS.items()
            if products or name != "shapejit.gemm"
        }
        self._packed: dict[tuple[Any, tuple[int, ...], Exprs, int, int], Any] = {}

    def run(self) -> None:
        arguments = sir.body(self._function).arguments
        weights = {
            argument
            for number, argument in enumerate(arguments)
            if sir.argument_kind(self._function, number) == "weight"
        }
        for op in sir.operations(sir.body(self._function)):
            packings = self._readers.get(op.name)
            if packings is None:
                continue
            for access, packing in list(packings(op, self._panel)):
                if packing is not None and access.value in weights:
                    self._pack_operand(op, access, packing)

    def _pack_operand(self, op: Any, access: Access, packing: Packing) -> None:
        assert access.operand is not None
        maps = sir.op_maps(op)
        maps[access.operand] = sir.make_map(len(access.space), packing.read())
        op.operands[access.operand] = self._pack(op, access.value, packing)
        op.attributes["maps"] = sir.maps_attr(maps)

    def _pack(self, user: Any, weight: Any, packing: Packing) -> Any:
        """The packed weight, made just before its first user."""
        key = (weight, packing.sizes, packing.source, packing.dim, packing.panel)
        if key not in self._packed:
            with ir.InsertionPoint(user), user.location:
                pack = ir.Operation.create(
                    "shapejit.pack",
                    results=[sir.tensor_type(packing.shape(), weight.type.element_type)],
                    operands=[weight],
                    attributes=_attributes(packing),
                )
            self._packed[key] = pack.results[0]
        return self._packed[key]


def _attributes(packing: Packing) -> dict[str, Any]:
    """The attributes of the op; a plain matrix needs no space."""
    i64 = ir.IntegerType.get_signless(64)
    dims = [index.dim_index for index in packing.source]
    if packing.dim == 0 and sorted(dim for dim in dims if dim is not None) == [0, 1] == sorted(
        range(len(dims))
    ):
        number = dims.index(0)
        return {
            "dim": ir.IntegerAttr.get(i64, number),
            "panel": ir.IntegerAttr.get(i64, packing.panel),
        }
    return {
        "space": sir.shape_attr([Expr.const(size) for size in packing.sizes]),
        "map": ir.AffineMapAttr.get(sir.make_map(len(packing.sizes), packing.source)),
        "dim": ir.IntegerAttr.get(i64, packing.dim),
        "panel": ir.IntegerAttr.get(i64, packing.panel),
    }


@register_pass("shapejit-pack-weights")
@dataclass(frozen=True)
class PackWeights(Pass):
    """Pack the weights of matrix products and convolutions into panels of columns."""

    panel: int = option(32, help="columns of a panel")
    products: bool = option(True, help="pack the weights of matrix products too")

    def run(self, module: Any) -> None:
        if self.panel < 1:
            raise PassFailure(module, f"panel must be at least 1, got {self.panel}")
        for function in sir.functions(module):
            _Packer(function, self.panel, products=self.products).run()
