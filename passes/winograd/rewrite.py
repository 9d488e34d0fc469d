# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A convolution as two transforms and a batch of products between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

from mlir import ir

from shapejit import ir as sir
from shapejit.passes.analysis.accesses import accesses, space_of
from shapejit.passes.analysis.pieces import BodyText, insert, map_text, space_text, type_text
from shapejit.passes.analysis.precision import inherit_rounding
from shapejit.passes.analysis.symbol_facts import SymbolFacts
from shapejit.passes.canonical.spaces import make_view
from shapejit.passes.canonical.unit_dims import drop_unit_dims
from shapejit.passes.winograd.matrices import ONE_TAP, TAPS, Algorithm, Matrix, slots
from shapejit.symbolic import Expr, invert_map, product
from shapejit.windows import Window

_MOST_DIMS = 2  # of three, neither errors nor costs are known

_T = TypeVar("_T")


@dataclass(frozen=True)
class Convolution:
    """A convolution that Winograd's algorithm computes.

    Attributes:
        op: ``shapejit.conv``.
        batch, groups, filters, channels: sizes; filters and channels are of a group.
        pixels: spatial sizes of the result.
        image: spatial sizes of the input.
        taps: of the filters, along each spatial dim: three, or one.
        padding: zeros before the first pixel along each; below 0, what is cut off there.
    """

    op: Any
    batch: Expr
    groups: Expr
    pixels: tuple[Expr, ...]
    filters: Expr
    channels: Expr
    image: tuple[Expr, ...]
    taps: tuple[int, ...]
    padding: tuple[int, ...]

    @staticmethod
    def of(op: Any) -> Convolution | None:
        """A ``shapejit.conv`` of one or two dims, stride 1, before anything is fused into it.

        Its filters have three taps along one dim or both, and one along the other.
        """
        space, window = space_of(op), Window.of(op)
        rank = len(window.strides)
        if rank > _MOST_DIMS or len(op.regions[0].blocks):
            return None
        (n, g), pixels, (f, c, *sizes) = space[:2], space[2 : 2 + rank], space[2 + rank :]
        taps = tuple(size.constant or 0 for size in sizes)
        factors = {*window.strides, *window.dilations, *window.lhs_dilations}
        if factors != {1} or TAPS not in taps or not {*taps} <= {1, TAPS}:
            return None
        image = sir.attr_sizes(op.attributes["image"])
        low = tuple(low for low, _ in window.padding)
        return Convolution(op, n, g, tuple(pixels), f, c, tuple(image), taps, low)

    @property
    def dims(self) -> int:
        """Spatial dims that are transformed."""
        return self.taps.count(TAPS)

    @property
    def element(self) -> str:
        """Element type of the image and the filters; "" if they differ."""
        types = {str(value.type.element_type) for value in list(self.op.operands)[:2]}
        return types.pop() if len(types) == 1 else ""


def rewrite(conv: Convolution, algorithm: Algorithm, facts: SymbolFacts) -> bool:
    """Replaces a convolution; whether its result's layout allows that."""
    op = conv.op
    result = op.results[0]
    sizes = (conv.batch, conv.groups, *conv.pixels, conv.filters)
    written = accesses(op)[2]
    back = invert_map(written.exprs, facts.sizes(written.value), sizes, facts.symbol_ranges)
    if back is None:
        return False
    with op.context:
        made = _Rewrite(conv, algorithm)
        whole = made.emit()
        with ir.InsertionPoint(op), op.location:
            view = make_view(whole, sir.shape_of(result), back)
        view.set_type(result.type)  # the same sizes, in the spelling that the readers know
        result.replace_all_uses_with(view)
        op.erase()
        for each in made.ops:
            drop_unit_dims(each)
    return True


class _Rewrite:
    """The ops that replace one convolution.

    Args:
        conv: the convolution.
        algorithm: by which it is computed, along dims of three taps. Others are passed through.

    Attributes:
        ops: loops and products that were put in its place.
    """

    def __init__(self, conv: Convolution, algorithm: Algorithm) -> None:
        self._conv = conv
        self._sides = [algorithm if taps == TAPS else ONE_TAP for taps in conv.taps]
        self._input, self._weight, _ = accesses(conv.op)
        self._tiles = tuple(
            (size + (side.tile - 1)) // side.tile
            for size, side in zip(conv.pixels, self._sides, strict=True)
        )
        self._points = tuple(Expr.const(side.points) for side in self._sides)
        self._result_element = str(conv.op.results[0].type.element_type)
        self.ops: list[Any] = []

    @property
    def _all_tiles(self) -> Expr:
        """Of all images: rows of the products."""
        return product((self._conv.batch, *self._tiles))

    def emit(self) -> Any:
        """Puts the ops in front of the convolution.

        Returns:
            The result over (n, g, pixels.., filters).
        """
        pixels, filters = self._transform_image(), self._transform_filters()
        return self._transform_back(self._multiply(pixels, filters))

    def _transform_image(self) -> Any:
        """B^T d B of every tile: [point, group, tile of all images, channel]."""
        conv, rank = self._conv, len(self._sides)
        space = (*self._points, conv.groups, conv.batch, *self._tiles, conv.channels)
        body = BodyText()
        *places, channel = map(body.dim, range(len(space)))
        points, (group, image), tiles = places[:rank], places[rank : rank + 2], places[rank + 2 :]
        summands = [
            self._pixels(body, dim, point, tile)
            for dim, (point, tile) in enumerate(zip(points, tiles, strict=True))
        ]
        access = self._input

        def pixel(seen: Sequence[tuple[str, str]]) -> str:
            """An element of the image as f32, 0 beside it."""
            dims = {0: image, 1: group, 2 + rank: channel}
            text = body.with_dims(dims | {2 + dim: place for dim, (place, _) in enumerate(seen)})
            indices = ", ".join(expr.build(text) for expr in access.exprs)
            value = body.value(f"tensor.extract %image[{indices}] : {access.value.type}")
            value = _widened(body, value, conv.element)
            inside = reduce(lambda a, b: body.binary("andi", a, b, "i1"), [on for _, on in seen])
            return body.select(inside, value, body.number(0), "f32")

        total = _combined(body, summands, pixel)
        made = self._loop(space, [], body, total, conv.element, {"image": access.value})
        tile = _digits(Expr.dim(2), (conv.batch, *self._tiles))
        sizes = (product(self._points), conv.groups, self._all_tiles, conv.channels)
        return self._view(made, sizes, (*self._point(), Expr.dim(1), *tile, Expr.dim(3)))

    def _pixels(
        self, body: BodyText, dim: int, point: str, tile: str
    ) -> list[tuple[tuple[str, str], str]]:
        """Of one row of the image transform: pixel, whether it is on the image; factor."""
        side, size = self._sides[dim], body.size(self._conv.image[dim])
        start = body.mul(tile, body.constant(side.tile))
        start = body.add(start, body.constant(-self._conv.padding[dim]))
        found = []
        for step, factor in _summands(body, side.inputs, point):
            place = body.add(start, step)
            # As unsigned numbers, places before the first one are beyond the last one.
            inside = body.compare("ult", place, size)
            place = body.select(inside, place, body.constant(0), "index")
            found.append(((place, inside), factor))
        return found

    def _transform_filters(self) -> Any:
        """G g G^T of every filter: [point, group, filter, channel]."""
        conv, rank = self._conv, len(self._sides)
        space = (*self._points, conv.groups, conv.filters, conv.channels)
        body = BodyText()
        summands = []
        for dim, side in enumerate(self._sides):
            columns = list(zip(*side.filters, strict=True))
            numbers = [[body.number(float(value)) for value in column] for column in columns]
            point = body.dim(dim)
            factors = [body.one_of(point, column, "f32") for column in numbers]
            summands.append(list(enumerate(factors)))
        reads: list[list[Expr]] = []

        def value(taps: Sequence[int]) -> str:
            places = (*(Expr.dim(rank + i) for i in range(3)), *map(Expr.const, taps))
            dims = dict(enumerate(places))
            reads.append([expr.substitute(dims=dims) for expr in self._weight.exprs])
            return _widened(body, f"%v{len(reads) - 1}", conv.element)

        total = _combined(body, summands, value)
        made = self._loop(space, reads, body, total, conv.element, {"filters": self._weight.value})
        sizes = (product(self._points), conv.groups, conv.filters, conv.channels)
        return self._view(made, sizes, (*self._point(), *map(Expr.dim, range(1, 4))))

    def _multiply(self, pixels: Any, filters: Any) -> Any:
        """[point, group, tile, filter]"""
        conv = self._conv
        space = (product(self._points), conv.groups, self._all_tiles, conv.filters, conv.channels)
        point, group, row, column, k = map(Expr.dim, range(5))
        lhs, rhs = map_text(5, [point, group, row, k]), map_text(5, [point, group, column, k])
        body = f"""
          %made = shapejit.gemm over {space_text(space)}
              lhs(%pixels at {lhs} : {pixels.type}) rhs(%filters at {rhs} : {filters.type})
              {{accumulate = f32}} -> {type_text(space[:4], "f32")}"""
        made = self._insert({"pixels": pixels, "filters": filters}, body)
        inherit_rounding(sir.defining_op(made), conv.op)
        return made

    def _transform_back(self, products: Any) -> Any:
        """A^T m A of every tile: (n, g, pixels.., filters)."""
        conv = self._conv
        space = (conv.batch, conv.groups, *conv.pixels, conv.filters)
        body = BodyText()
        place, group, *pixels, channel = map(body.dim, range(len(space)))
        summands = []
        for side, pixel, tiles in zip(self._sides, pixels, self._tiles, strict=True):
            tile = body.constant(side.tile)
            place = body.add(body.mul(place, body.size(tiles)), body.floordiv(pixel, tile))
            summands.append(_summands(body, side.outputs, body.mod(pixel, tile)))

        def value(points: Sequence[str]) -> str:
            number, *rest = points
            for point, side in zip(rest, self._sides[1:], strict=True):
                number = body.add(body.mul(number, body.constant(side.points)), point)
            return body.value(
                f"tensor.extract %products[{number}, {group}, {place}, {channel}] : {products.type}"
            )

        total = _combined(body, summands, value)
        return self._loop(space, [], body, total, self._result_element, {"products": products})

    # Ops ------------------------------------------------------------------------------------------

    def _point(self) -> list[Expr]:
        """The points along each dim from the number of all."""
        return _digits(Expr.dim(0), self._points)

    def _view(self, value: Any, sizes: Sequence[Expr], exprs: Sequence[Expr]) -> Any:
        with ir.InsertionPoint(self._conv.op), self._conv.op.location:
            return make_view(value, sizes, exprs)

    def _loop(
        self,
        space: Sequence[Expr],
        reads: Sequence[Sequence[Expr]],
        body: BodyText,
        result: str,
        element: str,
        values: dict[str, Any],
    ) -> Any:
        """A pointwise loop; its reads are of the one value that there is then."""
        [(name, value)] = values.items()
        rank = len(space)
        ins = ", ".join(f"%{name} at {map_text(rank, exprs)} : {value.type}" for exprs in reads)
        given = str(value.type.element_type)
        arguments = ", ".join(f"%v{i}: {given}" for i in range(len(reads)))
        result = _narrowed(body, result, element)
        lines = "\n".join(body.lines)
        text = f"""
          %made = shapejit.loop over {space_text(space)} {f"ins({ins})" if ins else ""}
              outs({map_text(rank, map(Expr.dim, range(rank)))} : {type_text(space, element)}) {{
            {f"^bb0({arguments}):" if reads else ""}
              {lines}
              shapejit.yield {result} : {element}
            }}"""
        return self._insert(values, text)

    def _insert(self, values: dict[str, Any], text: str) -> Any:
        """Puts one op in front of the convolution; gives its result."""
        [made] = insert(self._conv.op, values, text, ["made"])
        self.ops.append(sir.defining_op(made))
        return made


def _digits(number: Expr, sizes: Sequence[Expr]) -> list[Expr]:
    """Indices along dims from one over all of them, the last dim moving fastest."""
    found: list[Expr] = []
    for size in reversed(sizes[1:]):
        found.insert(0, number % size)
        number = number // size
    return [number, *found]


def _summands(body: BodyText, matrix: Matrix, row: str) -> list[tuple[str, str]]:
    """Of a row of a transform that is known when the code runs: places and factors."""
    return [
        (
            body.one_of(row, [body.constant(place) for place in slot.places], "index"),
            body.one_of(row, [body.number(float(factor)) for factor in slot.factors], "f32"),
        )
        for slot in slots(matrix)
    ]


def _combined(
    body: BodyText,
    summands: Sequence[Sequence[tuple[_T, str]]],
    value: Callable[[Sequence[_T]], str],
    chosen: tuple[_T, ...] = (),
) -> str:
    """A sum along every dim, the last one innermost.

    Args:
        body: where its lines go.
        summands: of each dim, with their factors.
        value: the value at one summand a dim.
        chosen: the summands of the dims ahead of these.
    """
    if not summands:
        return value(chosen)
    total = ""
    for each, factor in summands[0]:
        inner = _combined(body, summands[1:], value, (*chosen, each))
        total = _added(body, total, body.binary("mulf", inner, factor, "f32"))
    return total


def _added(body: BodyText, total: str, summand: str) -> str:
    return body.binary("addf", total, summand, "f32") if total else summand


def _widened(body: BodyText, value: str, element: str) -> str:
    return value if element == "f32" else body.value(f"arith.extf {value} : {element} to f32")


def _narrowed(body: BodyText, value: str, element: str) -> str:
    return value if element == "f32" else body.value(f"arith.truncf {value} : f32 to {element}")
