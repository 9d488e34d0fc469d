# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Convolutions that are products of matrices, and the layout of the images of the others.

A convolution with one tap that sees every pixel is a product: its rows are the pixels of all
images, its columns the output channels. As a gemm it shares kernels with linear layers, its rows
collapse, and no pixel is tested for being on the image.

The others read images whose channels are last. Where they are not, an image is copied first, by a
view that stays: every pixel is read once for each tap and for each block of output channels, so one
transposed copy costs less than reading strided channels that often.
"""

from __future__ import annotations

from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.passes.analysis.accesses import accesses, set_access, space_of
from shapejit.passes.analysis.precision import inherit_rounding
from shapejit.passes.analysis.symbol_facts import SymbolFacts
from shapejit.passes.canonical.spaces import make_view
from shapejit.passes.fold_views import channels_are_last
from shapejit.symbolic import Expr, invert_map
from shapejit.windows import Window

_ZERO = Expr.const(0)


def read_channels_last(conv: Any, facts: SymbolFacts) -> None:
    """Makes a ``shapejit.conv`` read its input through a view [n, p.., g * c]."""
    access = accesses(conv)[0]
    if channels_are_last(access, facts):
        return
    n, g, *image, c = access.space
    last = Expr.dim(1 + len(image))
    dims = {0: Expr.dim(0), 1: last // c, 2 + len(image): last % c}
    dims |= {2 + i: Expr.dim(1 + i) for i in range(len(image))}
    sizes = (n, *image, g * c)
    simplify = facts.over(sizes).simplify
    exprs = [simplify(e.substitute(dims=dims)) for e in access.exprs]
    with ir.InsertionPoint(conv), conv.location:
        view = make_view(access.value, sizes, exprs)
    pixels = [Expr.dim(2 + i) for i in range(len(image))]
    group = _ZERO if g == 1 else Expr.dim(1)
    set_access(conv, access, view, [Expr.dim(0), *pixels, group * c + Expr.dim(2 + len(image))])


def conv_to_gemm(conv: Any, facts: SymbolFacts) -> bool:
    """Replaces a ``shapejit.conv`` by a gemm if it is one: one tap, one group, no stride or pad.

    The gemm is over [n, o.., f, c]; the convolution's result becomes a view of the gemm's. One with
    an epilogue is left as it is: this runs before anything is fused.
    """
    space, window = space_of(conv), Window.of(conv)
    rank = len(window.strides)
    taps = space[4 + rank :]
    if not window.is_trivial or space[1] != 1 or any(size != 1 for size in taps):
        return False
    if len(conv.regions[0].blocks):
        return False
    lhs, weight, written = accesses(conv)
    n, pixels, (f, c) = space[0], space[2 : 2 + rank], space[2 + rank : 4 + rank]
    sizes, product_space = (n, *pixels, f), (n, *pixels, f, c)
    # Where the dims of the convolution's maps are in the gemm's space.
    row = {0: Expr.dim(0), 1: _ZERO} | {2 + i: Expr.dim(1 + i) for i in range(rank)}
    column, channel = Expr.dim(1 + rank), Expr.dim(2 + rank)
    tap = dict.fromkeys(range(3, 3 + rank), _ZERO)
    back = invert_map(
        [e.substitute(dims=row | {2 + rank: column}) for e in written.exprs],
        facts.sizes(written.value),
        sizes,
        facts.symbol_ranges,
    )
    if back is None:
        return False
    simplify = facts.over(product_space).simplify
    maps = [
        [simplify(e.substitute(dims=row | {2 + rank: channel})) for e in lhs.exprs],
        [
            simplify(e.substitute(dims={0: _ZERO, 1: column, 2: channel} | tap))
            for e in weight.exprs
        ],
    ]
    attributes = {
        "space": sir.shape_attr(product_space),
        "maps": sir.maps_attr([sir.make_map(len(product_space), exprs) for exprs in maps]),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1, 0]),
    }
    if "accumulate" in conv.attributes:
        attributes["accumulate"] = conv.attributes["accumulate"]
    result = conv.results[0]
    with ir.InsertionPoint(conv), conv.location:
        gemm = ir.Operation.create(
            "shapejit.gemm",
            results=[sir.tensor_type(sizes, result.type.element_type)],
            operands=[lhs.value, weight.value],
            attributes=attributes,
            regions=1,
        )
        inherit_rounding(gemm, conv)
        view = make_view(gemm.results[0], sir.shape_of(result), back)
    view.set_type(result.type)  # the same sizes, in the spelling that the readers know
    result.replace_all_uses_with(view)
    conv.erase()
    return True
