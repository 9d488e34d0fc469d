# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-multiply-integers: products and convolutions of integers on a GPU.

Why: kernels of products multiply bfloat16, float16 or float32. Factors of 8 bits are numbers of
bfloat16, too, and sums of their products are exact in float32 up to 2^24, in whatever order they
are made. So where factors are known to be small, the product is one of bfloat16, and exact.

Before::

    %a = shapejit.loop .. { arith.extsi %v : i8 to i32 }              // %b likewise
    %y = shapejit.gemm over [s0, 64, 2048] lhs(%a ..) rhs(%b ..) -> tensor<?x64xi32>

After::

    %c = shapejit.loop .. { arith.sitofp, arith.truncf .. to bf16 }   // of %a; %d likewise of %b
    %p = shapejit.gemm over [2, s0, 64, 1024] lhs(%c ..) rhs(%d ..)
        {accumulate = f32} -> tensor<2x?x64xf32>
    %y = shapejit.loop over [s0, 64, 2] .. outs(add ..) { arith.fptosi }

Sums of more products than that are cut into pieces, which are added as integers: of a gemm along k,
of a convolution along its channels, where pieces are groups. A factor is small if it is of 8 bits,
or if it was widened from that. What is left (factors of unknown size, a k without a divisor that
suits) is a sum of products on CUDA cores: right, but slow.

The pass runs before anything is fused, so conversions move into what computes the factors, and what
follows the product moves into its epilogue.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.pass_host import Pass, register_pass
from shapejit.passes.analysis.accesses import accesses, space_of
from shapejit.passes.analysis.pieces import insert, map_text, space_text, type_text
from shapejit.passes.analysis.symbol_facts import SymbolFacts
from shapejit.passes.unfold_convolutions import unfold
from shapejit.symbolic import Expr, invert_map
from shapejit.windows import Window

_EXACT = 2**24
"""Integers up to here are numbers of float32."""

#: Pieces of a sum that would be smaller are not worth a product.
_LEAST_PIECE = 32
_PANEL = 64


@register_pass("shapejit-multiply-integers", dialects=("arith", "tensor"))
@dataclass(frozen=True)
class MultiplyIntegers(Pass):
    """Make products and convolutions of integers what kernels of a GPU compute."""

    def run(self, module: Any) -> None:
        facts = SymbolFacts.of(module)
        for function in sir.functions(module):
            for op in sir.operations(sir.body(function)):
                if op.name == "shapejit.conv" and _is_plain(op):
                    _convolution(op, facts)
                elif op.name == "shapejit.gemm" and _is_plain(op):
                    _product(op)


def _is_plain(op: Any) -> bool:
    """Whether a contraction is one of integers, into which nothing is fused."""
    values = [*list(op.operands)[:2], op.results[0]]
    integers = all(isinstance(value.type.element_type, ir.IntegerType) for value in values)
    return integers and len(op.operands) == 2 and not len(op.regions[0].blocks)


def _product(op: Any) -> None:
    depth, most = space_of(op)[-1].constant, _most_products(op)
    if (piece := _piece(depth, most)) is None:
        _sum(op)
    else:
        _exact_product(op, piece)


def _convolution(op: Any, facts: SymbolFacts) -> None:
    rank = len(Window.of(op).strides)
    channels, *taps = (size.constant for size in space_of(op)[3 + rank :])
    most = _most_products(op) // math.prod(tap or _EXACT for tap in taps)
    if (piece := _piece(channels, most)) is not None:
        _exact_convolution(op, piece, facts)
    elif (made := unfold(op, facts)) is not None:
        _sum(made)


# ---------------------------------------------------------------------------
# What is exact
# ---------------------------------------------------------------------------


def _most_products(op: Any) -> int:
    """Of how many products a sum is exact in float32; 0 if a factor may be large."""
    bounds = [_bound(value) for value in list(op.operands)[:2]]
    return 0 if None in bounds else _EXACT // math.prod(bound for bound in bounds if bound)


def _bound(value: Any) -> int | None:
    """The largest absolute value of a tensor's elements, if it is one of 8 bits."""
    # uint8 has the same type. A result of 8 bits is the same for either, modulo 256.
    if value.type.element_type.width <= 8:
        return 128
    op = sir.defining_op(value)
    if op is None:
        return None
    if op.name == "shapejit.view":
        return _bound(op.operands[0])
    if op.name != "shapejit.loop" or len(op.operands) != 1:
        return None
    block = sir.body(op)
    *others, end = sir.operations(block)
    if not others and end.operands[0] == block.arguments[0]:
        return _bound(op.operands[0])  # a copy
    if len(others) != 1 or others[0].operands[0] != block.arguments[0]:
        return None
    width = op.operands[0].type.element_type.width
    if width > 8 or end.operands[0] != others[0].results[0]:
        return None
    return {"arith.extsi": 128, "arith.extui": 255}.get(others[0].name)


def _piece(size: int | None, most: int) -> int | None:
    """The greatest divisor of a size that is at most so large; a multiple of 64 if there is one."""
    if size is None or most < 1:
        return None
    if size <= most:
        return size
    divisors = [each for each in range(_LEAST_PIECE, most + 1) if size % each == 0]
    return max(divisors, key=lambda each: (each % _PANEL == 0, each), default=None)


# ---------------------------------------------------------------------------
# Products of bfloat16
# ---------------------------------------------------------------------------


def _exact_product(op: Any, piece: int) -> None:
    """A gemm in pieces along k, which are a batch dim in front; none if there is but one."""
    space = space_of(op)
    rank, depth = len(space), space[-1].constant or 0
    count = depth // piece if piece else 1
    shift = 0 if count == 1 else 1
    dims = {i: Expr.dim(i + shift) for i in range(rank)}
    if shift:
        dims[rank - 1] = Expr.dim(0) * piece + Expr.dim(rank)
    pieces = [Expr.const(count)] if shift else []
    divided = [*pieces, *space[:-1], Expr.const(piece)]
    operands = []
    values = {}
    for name, access in zip(("lhs", "rhs"), accesses(op), strict=True):
        values[name] = _in_bfloat16(op, access.value)
        exprs = [each.substitute(dims=dims) for each in access.exprs]
        operands.append(f"{name}(%{name} at {map_text(len(divided), exprs)} : {values[name].type})")
    text = f"""
      %made = shapejit.gemm over {space_text(divided)} {" ".join(operands)}
          {{accumulate = f32}} -> {type_text(divided[:-1], "f32")}"""
    [made] = insert(op, values, text, ["made"])
    # The result has a dim less than the space, so the one after its own numbers the pieces.
    read = [Expr.dim(rank - 1), *map(Expr.dim, range(rank - 1))] if shift else None
    _replace(op, made, read, count)


def _exact_convolution(op: Any, piece: int, facts: SymbolFacts) -> None:
    """A conv in pieces along the channels of a group, each of which is a group; none if there is
    but one."""
    space, window = space_of(op), Window.of(op)
    rank = len(window.strides)
    count = (space[3 + rank].constant or 0) // piece if piece else 1
    cut = _Cut(3 + rank, space[1], count, piece)
    n, _, *others = space
    divided = [n, cut.pieces, *others]
    divided[3 + rank] = Expr.const(piece)
    image, weight, written = accesses(op)
    result, sizes, read = list(written.exprs), sir.shape_of(op.results[0]), None
    if count > 1:
        back = invert_map(
            written.exprs, facts.sizes(written.value), space[: 3 + rank], facts.symbol_ranges
        )
        if back is None:
            return
        # With channels last: [n, o.., piece of a group, f].
        result = [*map(Expr.dim, (0, *range(2, 2 + rank))), Expr.dim(1), Expr.dim(2 + rank)]
        sizes = (n, *others[:rank], cut.pieces, others[rank])
        here = back[1] * count + Expr.dim(len(written.exprs))
        read = [back[0], *back[2 : 2 + rank], here, back[2 + rank]]
    # Where the dims of the former maps are: over (n, g, p.., c), (g, f, c, t..).
    image_at = [each.substitute(dims=cut.dims(1, 2 + rank)) for each in image.exprs]
    weight_at = [each.substitute(dims=cut.dims(0, 2)) for each in weight.exprs]
    filters = weight.value
    if count > 1 and space[1] != 1:
        # No fixed step leads from the last piece of a group to the first one of the next.
        filters = _reordered(op, filters, divided[1:2] + divided[2 + rank :], weight_at)
        weight_at = list(map(Expr.dim, range(3 + rank)))
    values = {"image": _in_bfloat16(op, image.value), "filters": _in_bfloat16(op, filters)}
    maps = [map_text(3 + rank, exprs) for exprs in (image_at, weight_at, result)]
    kept = sir.attributes(op)
    given = ", ".join(
        f"{name} = {kept[name]}"
        for name in ("strides", "dilations", "padding", "lhs_dilations")
        if name in kept
    )
    image_sizes = space_text(sir.attr_sizes(op.attributes["image"]))
    text = f"""
      %made = "shapejit.conv"(%image, %filters) <{{
          space = {sir.shape_attr(tuple(divided))}, image = #shapejit.shape<{image_sizes}>,
          maps = [{", ".join(maps)}], {given}, accumulate = f32}}> ({{}})
          : ({values["image"].type}, {values["filters"].type}) -> {type_text(sizes, "f32")}"""
    [made] = insert(op, values, text, ["made"])
    _replace(op, made, read, count)


@dataclass(frozen=True)
class _Cut:
    """How dims of a conv are told by those of one whose groups are pieces of groups.

    Attributes:
        rank: of the maps.
        groups: of the conv.
        count: pieces of a group.
        size: channels of a piece.
    """

    rank: int
    groups: Expr
    count: int
    size: int

    @property
    def pieces(self) -> Expr:
        """Of all groups."""
        return self.groups * self.count

    def dims(self, group: int, channel: int) -> dict[int, Expr]:
        """The former dims.

        Args:
            group, channel: the dims that are these in a map.
        """
        dims = {i: Expr.dim(i) for i in range(self.rank)}
        if self.count > 1:
            one = self.groups == 1
            piece = Expr.dim(group) if one else Expr.dim(group) % self.count
            dims[group] = Expr.const(0) if one else Expr.dim(group) // self.count
            dims[channel] = piece * self.size + Expr.dim(channel)
        return dims


def _reordered(op: Any, value: Any, sizes: Sequence[Expr], read: Sequence[Expr]) -> Any:
    """A loop that copies a tensor.

    Args:
        sizes: of the copy.
        read: where each of its elements is.
    """
    same = map_text(len(sizes), map(Expr.dim, range(len(sizes))))
    element = value.type.element_type
    text = f"""
      %made = shapejit.loop over {space_text(sizes)}
          ins(%x at {map_text(len(sizes), read)} : {value.type})
          outs({same} : {type_text(sizes, str(element))}) {{
        ^bb0(%v: {element}):
          shapejit.yield %v : {element}
      }}"""
    [made] = insert(op, {"x": value}, text, ["made"])
    return made


def _in_bfloat16(op: Any, value: Any) -> Any:
    """A loop that converts a tensor of small integers."""
    sizes, element = sir.shape_of(value), value.type.element_type
    same = map_text(len(sizes), map(Expr.dim, range(len(sizes))))
    text = f"""
      %made = shapejit.loop over {space_text(sizes)} ins(%x at {same} : {value.type})
          outs({same} : {type_text(sizes, "bf16")}) {{
        ^bb0(%v: {element}):
          %f = arith.sitofp %v : {element} to f32
          %b = arith.truncf %f : f32 to bf16
          shapejit.yield %b : bf16
      }}"""
    [made] = insert(op, {"x": value}, text, ["made"])
    return made


def _replace(op: Any, made: Any, read: Sequence[Expr] | None, count: int) -> None:
    """Puts integers in the place of a contraction, from sums in float32 in pieces.

    Args:
        read: where the sum of a piece is, over the result's dims and one that numbers the pieces;
            None if sums are where the result's elements are, and there are no pieces.
        count: pieces of a sum.
    """
    result = op.results[0]
    sizes, element = sir.shape_of(result), result.type.element_type
    rank = len(sizes)
    narrow = element.width < 32
    # Sums of pieces wrap around as those of the result's type do, or do not at all.
    sum_type = "i32" if narrow else str(element)
    cast = f"%s = arith.extsi %i : i32 to {sum_type}" if element.width > 32 else ""
    last = "%s" if cast else "%i"
    space = [*sizes, *[Expr.const(count)] * (count > 1)]
    if read is None:
        read = list(map(Expr.dim, range(rank)))
    kept = map_text(len(space), map(Expr.dim, range(rank)))
    text = f"""
      %sum = shapejit.loop over {space_text(space)}
          ins(%x at {map_text(len(space), read)} : {made.type})
          outs({"add " if count > 1 else ""}{kept} : {type_text(sizes, sum_type)}) {{
        ^bb0(%v: f32):
          %i = arith.fptosi %v : f32 to i32
          {cast}
          shapejit.yield {last} : {sum_type}
      }}"""
    [total] = insert(op, {"x": made}, text, ["sum"])
    if narrow:
        total = _narrowed(op, total, element)
    total.set_type(result.type)  # the same sizes, in the spelling that the readers know
    result.replace_all_uses_with(total)
    op.erase()


def _narrowed(op: Any, value: Any, element: Any) -> Any:
    sizes = sir.shape_of(value)
    same = map_text(len(sizes), map(Expr.dim, range(len(sizes))))
    text = f"""
      %made = shapejit.loop over {space_text(sizes)} ins(%x at {same} : {value.type})
          outs({same} : {type_text(sizes, str(element))}) {{
        ^bb0(%v: i32):
          %n = arith.trunci %v : i32 to {element}
          shapejit.yield %n : {element}
      }}"""
    [made] = insert(op, {"x": value}, text, ["made"])
    return made


# ---------------------------------------------------------------------------
# Sums on CUDA cores
# ---------------------------------------------------------------------------


def _sum(op: Any) -> None:
    """Makes a reduction of a gemm."""
    space = space_of(op)
    lhs, rhs = accesses(op)
    result = op.results[0]
    element = result.type.element_type
    kept = map_text(len(space), map(Expr.dim, range(len(space) - 1)))
    reads = ", ".join(
        f"%{name} at {map_text(len(space), access.exprs)} : {access.value.type}"
        for name, access in (("lhs", lhs), ("rhs", rhs))
    )
    text = f"""
      %sum = shapejit.loop over {space_text(space)} ins({reads})
          outs(add {kept} : {result.type}) {{
        ^bb0(%a: {element}, %b: {element}):
          %p = arith.muli %a, %b : {element}
          shapejit.yield %p : {element}
      }}"""
    [total] = insert(op, {"lhs": lhs.value, "rhs": rhs.value}, text, ["sum"])
    result.replace_all_uses_with(total)
    op.erase()
