# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Transposed convolutions whose taps equal their strides, as products of matrices.

Where a kernel moves by its own size, each pixel of the result has one tap and one pixel of the
image: ``y[n, s * h + i, s * w + j] = x[n, h, w] . W[i, j]``. As a convolution over an image with
zeros in between, ``s ** d`` times as many products would be computed, nearly all of them with
zeros.

In memory the result is [n, h, i, w, j, f]. So it is one batched gemm over [n, h, i, w, (j, f), c],
whose columns are the filters of the taps of the last dim, which are neighbours; the taps of the
other dims are batch dims with filters of their own. It writes its result where it belongs, and
nothing is shuffled after it. Along dims of one tap the rows collapse as those of linear layers do.

The filters are read through a view [i, (j, f), c]. No index map of a product divides columns, so
the view becomes a copy: once, if they are weights (`shapejit-hoist-weights`).
"""

from __future__ import annotations

from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.passes.analysis.accesses import Sizes, accesses, space_of
from shapejit.passes.analysis.precision import inherit_rounding
from shapejit.passes.analysis.symbol_facts import SymbolFacts
from shapejit.passes.canonical.spaces import make_view
from shapejit.symbolic import Expr, invert_map
from shapejit.windows import Window

_ZERO = Expr.const(0)


def transposed_to_gemm(conv: Any, facts: SymbolFacts) -> bool:
    """Replaces a ``shapejit.conv`` by a gemm if each pixel of its result has a tap of its own.

    That is a transposed convolution of one group without padding, whose taps are as many as its
    stride, in each dim. One with an epilogue is left as it is: this runs before anything is fused.
    """
    if len(conv.regions[0].blocks) or space_of(conv)[1] != 1 or not _has_own_taps(conv, facts):
        return False
    space, rank = space_of(conv), len(Window.of(conv).strides)
    written = accesses(conv)[2]
    back = invert_map(
        written.exprs, facts.sizes(written.value), space[: 3 + rank], facts.symbol_ranges
    )
    if back is None:
        return False
    n, _group, *rest = back
    _Product(conv, [n, *rest], facts).replace()
    return True


def _has_own_taps(conv: Any, facts: SymbolFacts) -> bool:
    """Whether each pixel of the result sees one pixel of the image, through one tap."""
    window, space = Window.of(conv), space_of(conv)
    image = sir.attr_sizes(conv.attributes["image"])
    rank = len(image)
    taps = [size.constant for size in space[4 + rank :]]
    spreads = window.lhs_dilations
    if set(window.strides) != {1} or set(spreads) == {1} or tuple(taps) != spreads:
        return False
    if any(pads != (tap - 1, tap - 1) for pads, tap in zip(window.padding, spreads, strict=True)):
        return False
    if any(by != 1 and tap != 1 for by, tap in zip(window.dilations, taps, strict=True)):
        return False
    simplify = facts.over(()).simplify
    return all(
        simplify(facts.resolve(pixels - size * spread)) == 0
        for pixels, size, spread in zip(space[2 : 2 + rank], image, spreads, strict=True)
    )


class _Product:
    """The ops that replace one convolution.

    Args:
        conv: the convolution.
        back: n, the pixels and the filter of an element of the result.
        facts: about the module's symbols.
    """

    def __init__(self, conv: Any, back: list[Expr], facts: SymbolFacts) -> None:
        self._conv, self._back, self._facts = conv, back, facts
        space = space_of(conv)
        self._image = sir.attr_sizes(conv.attributes["image"])
        self._rank = rank = len(self._image)
        self._n, self._f, self._c = space[0], space[2 + rank], space[3 + rank]
        self._taps = space[4 + rank :]
        # n, then a pixel's index and the tap of each dim; the last tap is part of the columns.
        outer: list[Expr] = [self._n]
        for size, tap in zip(self._image, self._taps, strict=True):
            outer += [size, tap]
        self._sizes: Sizes = (*outer[:-1], self._taps[-1] * self._f)

    def replace(self) -> None:
        """Puts the gemm in the convolution's place."""
        conv = self._conv
        result = conv.results[0]
        gemm = self._multiply(self._filters())
        # The element of the gemm's result: pixel o is pixel o // t of the image, through tap o % t.
        n, *pixels, column = self._back
        place = [n]
        for pixel, tap in zip(pixels, self._taps, strict=True):
            place += [pixel // tap, pixel % tap]
        place[-1] = place[-1] * self._f + column
        with ir.InsertionPoint(conv), conv.location:
            simplify = self._facts.over(self._facts.sizes(result)).simplify
            view = make_view(gemm, sir.shape_of(result), [simplify(each) for each in place])
        view.set_type(result.type)  # the same sizes, in the spelling that the readers know
        result.replace_all_uses_with(view)
        conv.erase()

    def _filters(self) -> Any:
        """[t.., (t, f), c]"""
        rank, access = self._rank, accesses(self._conv)[1]
        column = Expr.dim(rank - 1)
        taps = [*map(Expr.dim, range(rank - 1)), column // self._f]
        # Pixel o of the result sees pixel o // t through the tap that the zeros in between and the
        # padding of t - 1 leave it: the last one first.
        dims = {0: _ZERO, 1: column % self._f, 2: Expr.dim(rank)}
        dims |= {3 + i: self._taps[i] - 1 - tap for i, tap in enumerate(taps)}
        sizes = (*self._taps[:-1], self._sizes[-1], self._c)
        simplify = self._facts.over(sizes).simplify
        exprs = [simplify(each.substitute(dims=dims)) for each in access.exprs]
        with ir.InsertionPoint(self._conv), self._conv.location:
            return make_view(access.value, sizes, exprs)

    def _multiply(self, filters: Any) -> Any:
        """[n, p, t, .., p, (t, f)]"""
        conv, rank = self._conv, self._rank
        access, space = accesses(conv)[0], (*self._sizes, self._c)
        k = len(space) - 1
        read = {0: Expr.dim(0), 1: _ZERO, 2 + rank: Expr.dim(k)}
        read |= {2 + i: Expr.dim(1 + 2 * i) for i in range(rank)}
        simplify = self._facts.over(space).simplify
        maps = [
            [simplify(each.substitute(dims=read)) for each in access.exprs],
            [*(Expr.dim(2 + 2 * i) for i in range(rank - 1)), Expr.dim(k - 1), Expr.dim(k)],
        ]
        attributes = {
            "space": sir.shape_attr(space),
            "maps": sir.maps_attr([sir.make_map(len(space), exprs) for exprs in maps]),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1, 0], conv.context),
        }
        if "accumulate" in conv.attributes:
            attributes["accumulate"] = conv.attributes["accumulate"]
        element = conv.results[0].type.element_type
        with ir.InsertionPoint(conv), conv.location:
            gemm = ir.Operation.create(
                "shapejit.gemm",
                results=[sir.tensor_type(self._sizes, element)],
                operands=[access.value, filters],
                attributes=attributes,
                regions=1,
            )
        inherit_rounding(gemm, conv)
        return gemm.results[0]
