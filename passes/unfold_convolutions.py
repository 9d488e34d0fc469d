# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-unfold-convolutions: convolutions of float32 as products of gathered pixels.

Why: convolution kernels of GPUs multiply on tensor cores, and of float32 only what TMA can read.
The rest that Winograd's algorithm does not compute (other channels, computed filters) is written as
what it is: each output pixel is a row of the channels that its taps see, times the filters. The
rows take ``taps`` times the memory of the result's pixels.

Before::

    %y = shapejit.conv over [s0, 1, p, q, 64, 3, 7, 7] image [s1, s2] stride [2, 2] ..
        input(%x ..) weight(%w ..) -> ..

After::

    %r = shapejit.loop over [s0, p, q, 3, 7, 7]                // a pixel, or 0; %x by extract
    %z = shapejit.gemm over [s0 * p * q, 64, 147] lhs(%r ..) rhs(%w ..)
    %y = shapejit.view %z ..

Channels and taps are one dim of the product in the order in which torch keeps filters. Filters in
another order, such as those of transposed convolutions, are copied first.

The pass runs before anything is fused. Convolutions of other types stay as they are, and so do
depthwise ones, which have kernels of their own (`passes/nvgpu/conv/depthwise.py`), and those whose
factors TMA can read in im2col mode: tensor cores multiply them rounded to tf32, where that is
allowed (`shapejit-round-factors`), or as sums of two of tf32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.pass_host import Pass, register_pass
from shapejit.passes.analysis.accesses import accesses, space_of
from shapejit.passes.analysis.pieces import BodyText, insert, map_text, space_text, type_text
from shapejit.passes.analysis.precision import inherit_rounding
from shapejit.passes.analysis.symbol_facts import SymbolFacts
from shapejit.passes.canonical.spaces import make_view
from shapejit.passes.canonical.unit_dims import drop_unit_dims
from shapejit.passes.nvgpu.conv.mapped import has_maps, is_depthwise
from shapejit.symbolic import Expr, Ranges, invert_map, linearize, product
from shapejit.windows import Window


@register_pass("shapejit-unfold-convolutions", dialects=("arith", "tensor"))
@dataclass(frozen=True)
class UnfoldConvolutions(Pass):
    """Make products of convolutions of float32."""

    def run(self, module: Any) -> None:
        facts = SymbolFacts.of(module)
        divisors = {symbol.id: symbol.divisor for symbol in sir.symbols(module)}
        for function in sir.functions(module):
            for op in sir.operations(sir.body(function)):
                if op.name != "shapejit.conv" or not _is_plain(op):
                    continue
                if is_depthwise(op) or has_maps(op, function, divisors):
                    continue
                unfold(op, facts)


def unfold(op: Any, facts: SymbolFacts) -> Any:
    """Replaces a convolution, into which nothing is fused, by a product of gathered pixels.

    Returns:
        The gemm; None, if the layout of the convolution's result rules that out.
    """
    return _Unfolding(op).replace(facts)


def _is_plain(op: Any) -> bool:
    """Whether a convolution is one that this pass is for."""
    factors = [value.type.element_type for value in (*list(op.operands)[:2], op.results[0])]
    return all(isinstance(each, ir.F32Type) for each in factors) and not len(op.regions[0].blocks)


class _Unfolding:
    """The ops that replace one convolution."""

    def __init__(self, op: Any) -> None:
        self._op, self._window = op, Window.of(op)
        self._image = sir.attr_sizes(op.attributes["image"])
        space, rank = space_of(op), len(self._image)
        self._rank = rank
        self._n, self._g = space[:2]
        self._pixels = space[2 : 2 + rank]
        self._f, self._c, *self._taps = space[2 + rank :]
        self._input, self._weight, self._written = accesses(op)
        self._element = str(op.results[0].type.element_type)

    def replace(self, facts: SymbolFacts) -> Any:
        """Replaces the convolution by a gemm; None if its result's layout does not allow that."""
        op, result = self._op, self._op.results[0]
        sizes = (self._n, self._g, *self._pixels, self._f)
        back = invert_map(
            self._written.exprs, facts.sizes(self._written.value), sizes, facts.symbol_ranges
        )
        if back is None:
            return None
        with op.context:
            rows = self._gather()
            made = self._multiply(rows)
            made_ops = [sir.defining_op(rows), sir.defining_op(made)]
            # (n, g, o.., f) of what is over (g, n * o.., f).
            row = Expr.const(0)
            for dim, size in enumerate((self._n, *self._pixels)):
                row = row * size + Expr.dim(0 if dim == 0 else dim + 1)
            place = (Expr.dim(1), row, Expr.dim(2 + self._rank))
            exprs = [each.substitute(dims=dict(enumerate(back))) for each in place]
            with ir.InsertionPoint(op), op.location:
                view = make_view(made, sir.shape_of(result), exprs)
            view.set_type(result.type)  # the same sizes, in the spelling that the readers know
            result.replace_all_uses_with(view)
            op.erase()
            for each in made_ops:
                drop_unit_dims(each)
        return made_ops[1]

    def _gather(self) -> Any:
        """The pixels that every output pixel sees: (g, n, o.., c, t..)."""
        rank = self._rank
        space = (self._g, self._n, *self._pixels, self._c, *self._taps)
        body = BodyText()
        dims = {0: body.dim(1), 1: body.dim(0), 2 + rank: body.dim(2 + rank)}
        seen = ""
        for dim in range(rank):
            place, inside = self._place(body, dim)
            dims[2 + dim] = place
            seen = body.binary("andi", seen, inside, "i1") if seen else inside
        access = self._input
        indices = body.with_dims(dims)
        places = ", ".join(expr.build(indices) for expr in access.exprs)
        pixel = body.value(f"tensor.extract %image[{places}] : {access.value.type}")
        element = self._element
        pixel = body.select(seen, pixel, body.zero(element), element)
        lines = "\n".join(body.lines)
        identity = map_text(len(space), map(Expr.dim, range(len(space))))
        text = f"""
          %rows = shapejit.loop over {space_text(space)}
              outs({identity} : {type_text(space, element)}) {{
              {lines}
              shapejit.yield {pixel} : {element}
            }}"""
        [rows] = insert(self._op, {"image": access.value}, text, ["rows"])
        return rows

    def _place(self, body: BodyText, dim: int) -> tuple[str, str]:
        """The pixel that a tap of an output pixel sees along a dim, and whether there is one.

        It is pixel 0 where there is none, also of an image without pixels, of which reads give 0.
        """
        window = self._window
        output, tap = body.dim(2 + dim), body.dim(3 + self._rank + dim)
        place = body.mul(output, body.constant(window.strides[dim]))
        place = body.add(place, body.mul(tap, body.constant(window.dilations[dim])))
        place = body.add(place, body.constant(-window.padding[dim][0]))
        size, zero = body.size(self._image[dim]), body.constant(0)
        spread = window.lhs_dilations[dim]
        inside = ""
        if spread != 1:
            steps = body.constant(spread)
            size = body.mul(size, steps)
            from_first = body.select(body.compare("sge", place, zero), place, zero, "index")
            inside = body.compare("eq", body.mod(from_first, steps), zero)
        # As unsigned numbers, places before the first one are beyond the last one.
        within = body.compare("ult", place, size)
        inside = body.binary("andi", inside, within, "i1") if inside else within
        place = body.select(inside, place, zero, "index")
        if spread != 1:
            place = body.floordiv(place, body.constant(spread))
        return place, inside

    def _multiply(self, rows: Any) -> Any:
        """(g, n * o.., f)"""
        depth = product((self._c, *self._taps))
        pixels = product((self._n, *self._pixels))
        group, row, column, k = map(Expr.dim, range(4))
        places = [group, *_digits(row, (self._n, *self._pixels)), *self._depths(Expr.dim(2))]
        with ir.InsertionPoint(self._op), self._op.location:
            lhs = make_view(rows, (self._g, pixels, depth), places)
        space = (self._g, pixels, self._f, depth)
        weight, exprs = self._weight.value, list(self._weight.exprs)
        digits = dict(enumerate([group, column, *self._depths(k)]))
        if not self._has_stride([each.substitute(dims=digits) for each in exprs], space):
            weight = self._copied_filters()
            exprs = [Expr.dim(number) for number in range(3 + self._rank)]
        exprs = [each.substitute(dims=digits) for each in exprs]
        body = f"""
          %made = shapejit.gemm over {space_text(space)}
              lhs(%rows at {map_text(4, [group, row, k])} : {lhs.type})
              rhs(%filters at {map_text(4, exprs)} : {weight.type})
              -> {type_text(space[:3], self._element)}"""
        [made] = insert(self._op, {"rows": lhs, "filters": weight}, body, ["made"])
        inherit_rounding(sir.defining_op(made), self._op)
        return made

    def _depths(self, k: Expr) -> list[Expr]:
        """Channel and taps from an index along K."""
        return _digits(k, (self._c, *self._taps))

    def _has_stride(self, exprs: Sequence[Expr], space: Sequence[Expr]) -> bool:
        """Whether filters are a fixed number of elements apart along K."""
        ranges = Ranges(None, list(space))
        sizes = sir.shape_of(self._weight.value)
        offset = ranges.simplify(linearize([ranges.simplify(each) for each in exprs], sizes))
        stride = offset.stride(len(space) - 1)
        return stride is not None and not stride.dims()

    def _copied_filters(self) -> Any:
        """The filters over (g, f, c, t..)."""
        space = (self._g, self._f, self._c, *self._taps)
        weight = self._weight
        read = map_text(len(space), weight.exprs)
        identity = map_text(len(space), map(Expr.dim, range(len(space))))
        text = f"""
          %copied = shapejit.loop over {space_text(space)}
              ins(%filters at {read} : {weight.value.type})
              outs({identity} : {type_text(space, self._element)}) {{
            ^bb0(%v: {self._element}):
              shapejit.yield %v : {self._element}
            }}"""
        [copied] = insert(self._op, {"filters": weight.value}, text, ["copied"])
        return copied


def _digits(number: Expr, sizes: Sequence[Expr]) -> list[Expr]:
    """Indices along dims from one over all of them, the last dim moving fastest."""
    found: list[Expr] = []
    for size in reversed(sizes[1:]):
        found.insert(0, number % size)
        number = number // size
    return [number, *found]
