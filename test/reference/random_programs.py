# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Random programs of the shapejit dialect, for tests of passes that must not change a meaning.

A program is a function over a few tensors whose shapes come from one small family, so that random
choices often fit together: rows in three dims and in two, row scalars, heads, vectors, weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

WIDTH = 6
"""Features of a row; two heads of three."""

Shape = tuple[str, ...]

ROWS: Shape = ("s0", "s1", "6")
FLAT: Shape = ("s0 * s1", "6")
HEADS: Shape = ("s0", "2", "s1", "3")
SWAPPED: Shape = ("s1", "s0", "6")
ROW_SCALARS: Shape = ("s0", "s1")
GRID: Shape = ("s0", "1", "s1", "s1")
VECTOR: Shape = ("6",)
WEIGHT: Shape = ("6", "6")

# Reshapes, transposes and broadcasts: (source, result) to the source's indices.
_VIEWS: dict[tuple[Shape, Shape], str] = {
    (ROWS, FLAT): "d0 floordiv s1, d0 mod s1, d1",
    (FLAT, ROWS): "d0 * s1 + d1, d2",
    (ROWS, HEADS): "d0, d2, d1 * 3 + d3",
    (FLAT, HEADS): "d0 * s1 + d2, d1 * 3 + d3",
    (HEADS, ROWS): "d0, d2 floordiv 3, d1, d2 mod 3",
    (HEADS, FLAT): "d0 floordiv s1, d1 floordiv 3, d0 mod s1, d1 mod 3",
    (ROWS, SWAPPED): "d1, d0, d2",
    (SWAPPED, ROWS): "d1, d0, d2",
    (ROW_SCALARS, GRID): "d0, d3",
    (ROW_SCALARS, ROWS): "d0, d1",
    (VECTOR, ROWS): "d2",
    (VECTOR, FLAT): "d1",
    (VECTOR, VECTOR): "5 - d0",
    (FLAT, FLAT): "d0, 5 - d1",
}

_UNARY: dict[str, list[str]] = {
    "negate": ["%r = arith.negf %a : f32"],
    "exp": ["%r = math.exp %a : f32"],
    "tanh": ["%r = math.tanh %a : f32"],
    "scale": ["%c = arith.constant 0.375 : f32", "%r = arith.mulf %a, %c : f32"],
    "root": [
        "%s = arith.mulf %a, %a : f32",
        "%c = arith.constant 1.0 : f32",
        "%t = arith.addf %s, %c : f32",
        "%r = math.rsqrt %t : f32",
    ],
}
_BINARY = ("arith.addf", "arith.subf", "arith.mulf", "arith.maximumf")


def tensor(shape: Shape, element: str = "f32") -> str:
    """The type of this shape."""
    static = "x".join("?" if "s" in size else size for size in shape)
    return f"tensor<{static}x{element}, #shapejit.shape<[{', '.join(shape)}]>>"


def access(rank: int, indices: str) -> str:
    """An index map of `rank` dims that may use both symbols."""
    return f"affine_map<({', '.join(f'd{i}' for i in range(rank))})[s0, s1] -> ({indices})>"


def identity(rank: int) -> str:
    """The identity map."""
    dims = ", ".join(f"d{i}" for i in range(rank))
    return f"affine_map<({dims}) -> ({dims})>"


@dataclass(frozen=True)
class Value:
    """A tensor of the program."""

    name: str
    shape: Shape
    element: str = "f32"

    @property
    def type(self) -> str:
        return tensor(self.shape, self.element)


class ProgramBuilder:
    """Text of a program, op by op."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._lines: list[str] = []
        shapes = [ROWS, ROWS, FLAT, ROW_SCALARS, VECTOR, WEIGHT, WEIGHT]
        self.inputs = [Value(f"%x{i}", shape) for i, shape in enumerate(shapes)]
        self.values = list(self.inputs)

    # Choices --------------------------------------------------------------------------------------

    def pick(self, *shapes: Shape) -> Value:
        """A float tensor of one of the shapes, a late one more often than an early one."""
        found = [v for v in self.values if v.shape in shapes and v.element == "f32"]
        age = self._draw(st.sampled_from([0, 0, 0, 0, 1, 1, 2, 3, 5, 8]))
        return found[-1 - min(age, len(found) - 1)]

    def choose(self, options: tuple[str, ...]) -> str:
        return self._draw(st.sampled_from(options))

    # Operations -----------------------------------------------------------------------------------

    def add(self, shape: Shape, text: str, element: str = "f32") -> Value:
        """An op with one result, given the text after its ``=``."""
        value = Value(f"%v{len(self._lines)}", shape, element)
        self._lines.append(f"{value.name} = {text}")
        self.values.append(value)
        return value

    def loop(
        self,
        space: Shape,
        reads: list[tuple[Value, str]],
        body: list[str],
        result: str = "%r",
        kind: str = "",
        out: tuple[int, ...] | None = None,
        element: str = "f32",
    ) -> Value:
        """A loop whose body names its arguments %a, %b, .. and yields `result`."""
        rank = len(space)
        dims = tuple(range(rank)) if out is None else out
        ins = ", ".join(f"{v.name} at {access(rank, at)} : {v.type}" for v, at in reads)
        arguments = ", ".join(
            f"%{n}: {v.element}" for n, (v, _) in zip("abcd", reads, strict=False)
        )
        out_map = f"affine_map<({', '.join(f'd{i}' for i in range(rank))}) -> "
        out_map += f"({', '.join(f'd{i}' for i in dims)})>"
        shape = tuple(space[i] for i in dims)
        inputs = f"ins({ins}) " if reads else ""
        return self.add(
            shape,
            f"shapejit.loop over [{', '.join(space)}] {inputs}"
            f"outs({kind} {out_map} : {tensor(shape, element)}) {{\n"
            f"^bb0({arguments}):\n"
            + "\n".join(body)
            + f"\nshapejit.yield {result} : {element}\n}}",
            element,
        )

    def unary(self) -> None:
        x = self.pick(ROWS, FLAT, HEADS, SWAPPED, ROW_SCALARS, VECTOR)
        indices = ", ".join(f"d{i}" for i in range(len(x.shape)))
        self.loop(x.shape, [(x, indices)], _UNARY[self.choose(tuple(_UNARY))])

    def binary(self) -> None:
        x = self.pick(ROWS, FLAT, SWAPPED)
        rank = len(x.shape)
        others = {x.shape: ", ".join(f"d{i}" for i in range(rank)), VECTOR: f"d{rank - 1}"}
        if x.shape == ROWS:
            others[ROW_SCALARS] = "d0, d1"
        y = self.pick(*others)
        reads = [(x, others[x.shape]), (y, others[y.shape])]
        if self._draw(st.booleans()):
            reads.reverse()
        self.loop(x.shape, reads, [f"%r = {self.choose(_BINARY)} %a, %b : f32"])

    def view(self) -> None:
        source, result = self._draw(st.sampled_from(sorted(_VIEWS)))
        if not any(v.shape == source and v.element == "f32" for v in self.values):
            return
        x = self.pick(source)
        read = access(len(result), _VIEWS[source, result])
        self.add(result, f"shapejit.view {x.name} at {read} : {x.type} -> {tensor(result)}")

    def reduce(self) -> None:
        x = self.pick(ROWS, FLAT, HEADS)
        rank = len(x.shape)
        kind = self.choose(("add", "max"))
        columns = self._draw(st.integers(0, 5)) == 0
        kept = tuple(range(1, rank) if columns else range(rank - 1))
        indices = ", ".join(f"d{i}" for i in range(rank))
        self.loop(x.shape, [(x, indices)], ["%r = arith.negf %a : f32"], kind=kind, out=kept)

    def normalize(self) -> None:
        """A row minus its mean, or over its sum, in three or two dims."""
        x = self.pick(ROWS, FLAT)
        rank = len(x.shape)
        full = ", ".join(f"d{i}" for i in range(rank))
        rows = ", ".join(f"d{i}" for i in range(rank - 1))
        total = self.loop(
            x.shape, [(x, full)], ["%r = math.exp %a : f32"], kind="add", out=tuple(range(rank - 1))
        )
        scalar = self.loop(x.shape[:-1], [(total, rows)], _UNARY[self.choose(tuple(_UNARY))])
        self.loop(x.shape, [(x, full), (scalar, rows)], ["%r = arith.mulf %a, %b : f32"])

    def gemm(self) -> None:
        x, w = self.pick(ROWS, FLAT), self.pick(WEIGHT)
        k, n = len(x.shape), len(x.shape) - 1
        lhs = ", ".join([*(f"d{i}" for i in range(n)), f"d{k}"])
        rhs = f"d{n}, d{k}" if self._draw(st.booleans()) else f"d{k}, d{n}"
        self.add(
            x.shape,
            f"shapejit.gemm over [{', '.join(x.shape)}, 6] "
            f"lhs({x.name} at {access(k + 1, lhs)} : {x.type}) "
            f"rhs({w.name} at {access(k + 1, rhs)} : {w.type}) -> {x.type}",
        )

    def gated(self) -> None:
        """Two products of one tensor that meet in a loop."""
        x = self.pick(FLAT)
        weights = [self.pick(WEIGHT), self.pick(WEIGHT)]
        products = [
            self.add(
                FLAT,
                "shapejit.gemm over [s0 * s1, 6, 6] "
                f"lhs({x.name} at {access(3, 'd0, d2')} : {x.type}) "
                f"rhs({w.name} at {access(3, 'd1, d2')} : {w.type}) -> {x.type}",
            )
            for w in weights
        ]
        reads = [(product, "d0, d1") for product in products]
        self.loop(FLAT, reads, ["%e = math.tanh %a : f32", "%r = arith.mulf %e, %b : f32"])

    def projections(self) -> None:
        """Two or three products of one tensor, of which an attention or a loop reads slices."""
        x = self.pick(FLAT)
        rhs = self.choose(("d1, d2", "d2, d1"))
        q, *others = (
            self.add(
                FLAT,
                "shapejit.gemm over [s0 * s1, 6, 6] "
                f"lhs({x.name} at {access(3, 'd0, d2')} : {x.type}) "
                f"rhs({w.name} at {access(3, rhs)} : {w.type}) -> {x.type}",
            )
            for w in [*self._draw(st.permutations(self.inputs[-2:])), self.pick(WEIGHT)]
        )
        k, v = others if self._draw(st.booleans()) else (others[0], q)
        if self._draw(st.booleans()):
            self.loop(FLAT, [(q, "d0, d1"), (k, "d0, 5 - d1")], ["%r = arith.mulf %a, %b : f32"])
            return
        heads = access(4, "d0 * s1 + d2, d1 * 3 + d3")
        self.add(
            FLAT,
            "shapejit.attention over [s0, 2, s1, s1, 3, 3] "
            f"q({q.name} at {heads} : {q.type}) k({k.name} at {heads} : {k.type}) "
            f"v({v.name} at {heads} : {v.type}) {{scale = 0.5 : f64}} -> {heads} : {tensor(FLAT)}",
        )

    def two_results(self) -> None:
        """A loop of two results, one of them transposed."""
        x = self.pick(ROWS)
        name = f"%v{len(self._lines)}"
        body = "%r = math.exp %a : f32\n%t = arith.negf %a : f32\nshapejit.yield %r, %t : f32, f32"
        self._lines.append(
            f"{name}:2 = shapejit.loop over [s0, s1, 6] ins({x.name} at {identity(3)} : {x.type}) "
            f"outs({identity(3)} : {x.type}, "
            f"affine_map<(d0, d1, d2) -> (d1, d0, d2)> : {tensor(SWAPPED)}) {{\n"
            f"^bb0(%a: f32):\n{body}\n}}"
        )
        self.values += [Value(f"{name}#0", ROWS), Value(f"{name}#1", SWAPPED)]

    def outer_scalars(self) -> None:
        """A loop that reads a constant and a size of the function."""
        x = self.pick(ROWS, FLAT)
        indices = ", ".join(f"d{i}" for i in range(len(x.shape)))
        number = len(self._lines)
        self._lines.append(
            f"%c{number} = arith.constant 0.25 : f32\n"
            f"%n{number} = shapejit.size affine_map<()[s0, s1] -> (s0 * s1)>"
        )
        body = [
            f"%s = arith.mulf %a, %c{number} : f32",
            f"%i = arith.index_cast %n{number} : index to i32",
            "%f = arith.sitofp %i : i32 to f32",
            "%r = arith.addf %s, %f : f32",
        ]
        self.loop(x.shape, [(x, indices)], body)

    def positions(self) -> None:
        """Values that depend on loop indices, some in ways that ranges decide."""
        x = self.pick(ROWS)
        body = [
            "%i = shapejit.index 1",
            "%zero = arith.constant 0 : index",
            "%sure = arith.cmpi sge, %i, %zero : index",
            "%j = shapejit.index 2",
            "%three = arith.constant 3 : index",
            "%some = arith.cmpi slt, %j, %three : index",
            "%both = arith.andi %sure, %some : i1",
            "%n = arith.negf %a : f32",
            "%r = arith.select %both, %a, %n : f32",
        ]
        self.loop(ROWS, [(x, "d0, d1, d2")], body)

    def arange(self) -> None:
        body = [
            "%i = shapejit.index 1",
            "%j = arith.index_cast %i : index to i32",
            "%r = arith.sitofp %j : i32 to f32",
        ]
        self.loop(ROW_SCALARS, [], body)

    def gather(self) -> None:
        """A read at an affine index, or at one that depends on data."""
        x, table = self.pick(FLAT, ROWS), self.pick(VECTOR)
        last = len(x.shape) - 1
        full = ", ".join(f"d{i}" for i in range(len(x.shape)))
        index = [
            f"%i = shapejit.index {last}",
            "%five = arith.constant 5 : index",
            "%at = arith.subi %five, %i : index",
        ]
        if self._draw(st.booleans()):
            index = [
                "%zero = arith.constant 0.0 : f32",
                "%is = arith.cmpf ogt, %a, %zero : f32",
                "%low = arith.constant 1 : index",
                "%high = arith.constant 4 : index",
                "%at = arith.select %is, %low, %high : index",
            ]
        read = f"%t = tensor.extract {table.name}[%at] : {table.type}"
        self.loop(x.shape, [(x, full)], [*index, read, "%r = arith.addf %a, %t : f32"])

    def attention(self) -> None:
        """Attention with a padding mask that a loop over all pairs of rows makes."""
        q, k, v = (self.pick(ROWS) for _ in range(3))
        mask = self.loop(
            GRID,
            [(self.pick(ROW_SCALARS), "d0, d3")],
            [
                "%c = arith.constant 0.0 : f32",
                "%keep = arith.cmpf oge, %a, %c : f32",
                "%i = shapejit.index 2",
                "%zero = arith.constant 0 : index",
                "%sure = arith.cmpi sge, %i, %zero : index",
                "%r = arith.andi %keep, %sure : i1",
            ],
            element="i1",
        )
        heads = access(4, "d0, d2, d1 * 3 + d3")
        self.add(
            ROWS,
            "shapejit.attention over [s0, 2, s1, s1, 3, 3] "
            f"q({q.name} at {heads} : {q.type}) k({k.name} at {heads} : {k.type}) "
            f"v({v.name} at {heads} : {v.type}) "
            f"mask({mask.name} at {access(4, 'd0, 0, d2, d3')} : {mask.type}) "
            f"{{scale = 0.5 : f64}} -> {heads} : {tensor(ROWS)}",
        )

    def conv(self) -> None:
        """A convolution along the rows that keeps their number: dense, in groups or depthwise."""
        x, w = self.pick(ROWS, SWAPPED), self.pick(WEIGHT)
        groups, inside, taps, pads = self._draw(
            st.sampled_from(
                [(1, 6, 1, (0, 0)), (2, 3, 2, (1, 0)), (2, 3, 2, (-1, 2)), (6, 1, 6, (3, 2))]
            )
        )
        outside, shape = 6 // groups, self._draw(st.sampled_from([ROWS, SWAPPED]))
        tap = self.choose(("d3", f"{taps - 1} - d3"))
        pixel = {ROWS: "d0, d2", SWAPPED: "d2, d0"}
        self.add(
            shape,
            f"shapejit.conv over [s0, {groups}, s1, {outside}, {inside}, {taps}] image [s1] "
            f"padding [{pads}] "
            f"input({x.name} at {access(4, f'{pixel[x.shape]}, d1 * {inside} + d3')} : {x.type}) "
            f"weight({w.name} at {access(4, f'd0 * {outside} + d1, d2 * {taps} + {tap}')} : "
            f"{w.type}) -> {access(4, f'{pixel[shape]}, d1 * {outside} + d3')} : {tensor(shape)}",
        )

    # The program ----------------------------------------------------------------------------------

    def text(self) -> str:
        """The module; returns up to three values, which may be arguments or occur twice."""
        late = self.values[max(len(self.values) - 6, 0) :]
        picked = self._draw(st.lists(st.sampled_from(late), min_size=1, max_size=2))
        if self._draw(st.integers(0, 7)) == 0:
            picked.append(self._draw(st.sampled_from([self.inputs[0], picked[0]])))
        names = ", ".join(v.name for v in picked)
        types = ", ".join(v.type for v in picked)
        arguments = ", ".join(
            f'{v.name}: {v.type} {{shapejit.kind = "{"weight" if v.shape == WEIGHT else "input"}"}}'
            for v in self.inputs
        )
        return (
            "module {\n"
            "shapejit.symbol @batch {id = 0, min = 0, max = 64}\n"
            "shapejit.symbol @rows {id = 1, min = 0, max = 512}\n"
            f"func.func @main({arguments}) -> ({types}) {{\n"
            + "\n".join(self._lines)
            + f"\nreturn {names} : {types}\n}}\n}}\n"
        )


_STEPS: list[Callable[[ProgramBuilder], None]] = [
    ProgramBuilder.unary,
    ProgramBuilder.unary,
    ProgramBuilder.binary,
    ProgramBuilder.binary,
    ProgramBuilder.binary,
    ProgramBuilder.view,
    ProgramBuilder.view,
    ProgramBuilder.gemm,
    ProgramBuilder.gemm,
    ProgramBuilder.reduce,
    ProgramBuilder.normalize,
    ProgramBuilder.gated,
    ProgramBuilder.two_results,
    ProgramBuilder.outer_scalars,
    ProgramBuilder.positions,
    ProgramBuilder.arange,
    ProgramBuilder.gather,
    ProgramBuilder.attention,
    ProgramBuilder.conv,
    ProgramBuilder.conv,
]


@st.composite
def programs(draw: st.DrawFn, projections: bool = False) -> str:
    """Text of a module; the sizes of the arguments are `input_shapes`.

    Args:
        projections: whether there are several products of one tensor among its operations.
    """
    builder = ProgramBuilder(draw)
    for _ in range(draw(st.integers(1, 6 if projections else 14))):
        draw(st.sampled_from(_STEPS))(builder)
    if projections:
        builder.projections()
        for _ in range(draw(st.integers(0, 6))):
            draw(st.sampled_from(_STEPS))(builder)
    return builder.text()


def input_shapes(batch: int, rows: int) -> list[tuple[int, ...]]:
    """Sizes of the arguments of every program for values of its two symbols."""
    full = (batch, rows, WIDTH)
    flat = (batch * rows, WIDTH)
    return [full, full, flat, (batch, rows), (WIDTH,), (WIDTH, WIDTH), (WIDTH, WIDTH)]
