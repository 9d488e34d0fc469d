# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A convolution as two transforms and a batch of products between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.passes.analysis.accesses import Access, accesses, space_of
from shapejit.passes.analysis.pieces import BodyText, insert, map_text, space_text, type_text
from shapejit.passes.analysis.precision import inherit_rounding
from shapejit.passes.analysis.symbol_facts import SymbolFacts
from shapejit.passes.canonical.spaces import make_view
from shapejit.passes.canonical.unit_dims import drop_unit_dims
from shapejit.passes.winograd.matrices import TAPS, Algorithm, Matrix, slots
from shapejit.symbolic import Expr, invert_map
from shapejit.windows import Window


@dataclass(frozen=True)
class Convolution:
    """A convolution that Winograd's algorithm computes.

    Attributes:
        op: ``shapejit.conv``.
        batch, groups, rows, columns, filters, channels: sizes; rows and columns are of the result,
            filters and channels of a group.
        image: rows and columns of the input.
        padding: zeros before the first row and column; below 0, what is cut off there.
    """

    op: Any
    batch: Expr
    groups: Expr
    rows: Expr
    columns: Expr
    filters: Expr
    channels: Expr
    image: tuple[Expr, Expr]
    padding: tuple[int, int]

    @staticmethod
    def of(op: Any) -> Convolution | None:
        """A ``shapejit.conv`` of two dims, 3x3 taps, stride 1, before anything is fused into it."""
        space, window = space_of(op), Window.of(op)
        if len(window.strides) != 2 or len(op.regions[0].blocks):
            return None
        n, g, p, q, f, c, *taps = space
        factors = {*window.strides, *window.dilations, *window.lhs_dilations}
        if factors != {1} or any(tap != TAPS for tap in taps):
            return None
        low = (window.padding[0][0], window.padding[1][0])
        height, width = sir.attr_sizes(op.attributes["image"])
        return Convolution(op, n, g, p, q, f, c, (height, width), low)

    @property
    def element(self) -> str:
        """Element type of the image and the filters; "" if they differ."""
        types = {str(value.type.element_type) for value in list(self.op.operands)[:2]}
        return types.pop() if len(types) == 1 else ""


def rewrite(conv: Convolution, algorithm: Algorithm, facts: SymbolFacts) -> bool:
    """Replaces a convolution; whether its result's layout allows that."""
    op = conv.op
    result = op.results[0]
    sizes = (conv.batch, conv.groups, conv.rows, conv.columns, conv.filters)
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
        algorithm: by which it is computed.

    Attributes:
        ops: loops and products that were put in its place.
    """

    def __init__(self, conv: Convolution, algorithm: Algorithm) -> None:
        self._conv, self._algorithm = conv, algorithm
        self._input, self._weight, _ = accesses(conv.op)
        tile = algorithm.tile
        self._tiles = tuple((size + (tile - 1)) // tile for size in (conv.rows, conv.columns))
        self._points = Expr.const(algorithm.points)
        self._result_element = str(conv.op.results[0].type.element_type)
        self.ops: list[Any] = []

    @property
    def _all_tiles(self) -> Expr:
        """Of all images: rows of the products."""
        return self._conv.batch * self._tiles[0] * self._tiles[1]

    def emit(self) -> Any:
        """Puts the ops in front of the convolution.

        Returns:
            The result over (n, g, rows, columns, filters).
        """
        pixels, filters = self._transform_image(), self._transform_filters()
        return self._transform_back(self._multiply(pixels, filters))

    def _transform_image(self) -> Any:
        """B^T d B of every tile: [point, group, tile of all images, channel]."""
        conv, points = self._conv, self._points
        space = (points, points, conv.groups, conv.batch, *self._tiles, conv.channels)
        body = BodyText()
        row, column, group, image, down, across, channel = map(body.dim, range(7))
        sides = []
        for dim, (point, tile) in enumerate(((row, down), (column, across))):
            start = body.mul(tile, body.constant(self._algorithm.tile))
            start = body.add(start, body.constant(-conv.padding[dim]))
            sides.append(self._summands(body, self._algorithm.inputs, point, start, dim))
        access = self._input
        total = ""
        for place_y, inside_y, factor_y in sides[0]:
            line = ""
            for place_x, inside_x, factor_x in sides[1]:
                dims = {0: image, 1: group, 2: place_y, 3: place_x, 4: channel}
                pixel = self._pixel(body, access, dims)
                inside = body.binary("andi", inside_y, inside_x, "i1")
                pixel = body.select(inside, pixel, body.number(0), "f32")
                line = _added(body, line, body.binary("mulf", pixel, factor_x, "f32"))
            total = _added(body, total, body.binary("mulf", line, factor_y, "f32"))
        made = self._loop(space, [], body, total, conv.element, {"image": access.value})
        rows, (height, width) = Expr.dim(2), self._tiles
        places = (*self._point(), Expr.dim(1), *_tile_of(rows, height, width), Expr.dim(3))
        sizes = (points * points, conv.groups, self._all_tiles, conv.channels)
        return self._view(made, sizes, places)

    def _summands(
        self, body: BodyText, matrix: Matrix, point: str, start: str, dim: int
    ) -> list[tuple[str, str, str]]:
        """Of one row of the image transform: pixel, whether it is on the image, factor."""
        size = body.size(self._conv.image[dim])
        found = []
        for slot in slots(matrix):
            step = body.one_of(point, [body.constant(i) for i in slot.places], "index")
            factor = body.one_of(point, [body.number(float(i)) for i in slot.factors], "f32")
            place = body.add(start, step)
            # As unsigned numbers, places before the first one are beyond the last one.
            inside = body.compare("ult", place, size)
            place = body.select(inside, place, body.constant(0), "index")
            found.append((place, inside, factor))
        return found

    def _pixel(self, body: BodyText, access: Access, dims: dict[int, str]) -> str:
        """An element of the image as f32."""
        text = body.with_dims(dims)
        places = ", ".join(expr.build(text) for expr in access.exprs)
        pixel = body.value(f"tensor.extract %image[{places}] : {access.value.type}")
        return _widened(body, pixel, self._conv.element)

    def _transform_filters(self) -> Any:
        """G g G^T of every filter: [point, group, filter, channel]."""
        conv, points = self._conv, self._points
        space = (points, points, conv.groups, conv.filters, conv.channels)
        body = BodyText()
        factors = [
            [
                body.one_of(
                    body.dim(dim),
                    [body.number(float(row[tap])) for row in self._algorithm.filters],
                    "f32",
                )
                for tap in range(TAPS)
            ]
            for dim in range(2)
        ]
        reads: list[list[Expr]] = []
        total = ""
        shift = {0: Expr.dim(2), 1: Expr.dim(3), 2: Expr.dim(4)}
        for y in range(TAPS):
            line = ""
            for x in range(TAPS):
                dims = shift | {3: Expr.const(y), 4: Expr.const(x)}
                exprs = [expr.substitute(dims=dims) for expr in self._weight.exprs]
                value = _widened(body, f"%v{len(reads)}", conv.element)
                reads.append(exprs)
                line = _added(body, line, body.binary("mulf", value, factors[1][x], "f32"))
            total = _added(body, total, body.binary("mulf", line, factors[0][y], "f32"))
        values = {"filters": self._weight.value}
        made = self._loop(space, reads, body, total, conv.element, values)
        sizes = (points * points, conv.groups, conv.filters, conv.channels)
        return self._view(made, sizes, (*self._point(), *map(Expr.dim, range(1, 4))))

    def _multiply(self, pixels: Any, filters: Any) -> Any:
        """[point, group, tile, filter]"""
        conv = self._conv
        space = (
            self._points * self._points,
            conv.groups,
            self._all_tiles,
            conv.filters,
            conv.channels,
        )
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
        """A^T m A of every tile: (n, g, rows, columns, filters)."""
        conv = self._conv
        space = (conv.batch, conv.groups, conv.rows, conv.columns, conv.filters)
        body = BodyText()
        image, group, row, column, channel = map(body.dim, range(5))
        size = body.constant(self._algorithm.tile)
        height, width = map(body.size, self._tiles)
        place = body.add(body.mul(image, height), body.floordiv(row, size))
        place = body.add(body.mul(place, width), body.floordiv(column, size))
        sides = [
            [
                (
                    body.one_of(output, [body.constant(i) for i in slot.places], "index"),
                    body.one_of(output, [body.number(float(i)) for i in slot.factors], "f32"),
                )
                for slot in slots(self._algorithm.outputs)
            ]
            for output in (body.mod(row, size), body.mod(column, size))
        ]
        points = body.constant(self._algorithm.points)
        total = ""
        for point_y, factor_y in sides[0]:
            line = ""
            for point_x, factor_x in sides[1]:
                point = body.add(body.mul(point_y, points), point_x)
                product = body.value(
                    f"tensor.extract %products[{point}, {group}, {place}, {channel}] : "
                    f"{products.type}"
                )
                line = _added(body, line, body.binary("mulf", product, factor_x, "f32"))
            total = _added(body, total, body.binary("mulf", line, factor_y, "f32"))
        return self._loop(space, [], body, total, self._result_element, {"products": products})

    # Ops ------------------------------------------------------------------------------------------

    def _point(self) -> tuple[Expr, Expr]:
        """The points along both dims from the number of both."""
        return Expr.dim(0) // self._points, Expr.dim(0) % self._points

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


def _tile_of(number: Expr, height: Expr, width: Expr) -> tuple[Expr, Expr, Expr]:
    """Image, row and column of a tile by its number."""
    return number // (height * width), number // width % height, number % width


def _added(body: BodyText, total: str, summand: str) -> str:
    return body.binary("addf", total, summand, "f32") if total else summand


def _widened(body: BodyText, value: str, element: str) -> str:
    return value if element == "f32" else body.value(f"arith.extf {value} : {element} to f32")


def _narrowed(body: BodyText, value: str, element: str) -> str:
    return value if element == "f32" else body.value(f"arith.truncf {value} : f32 to {element}")
