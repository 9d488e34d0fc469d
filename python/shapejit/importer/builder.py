# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Builds ops of our dialect for the rules.

Types, maps and shapes are cached, and ops are made through `Operation.create`: a model has
thousands of them. Everything is built at the current insertion point and location.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from mlir import ir

from shapejit.importer.scalar_ops import Scalar, ScalarOps, Types
from shapejit.importer.sizes import SymbolTable
from shapejit.importer.values import (
    Shape,
    Splat,
    Tensor,
    conjunction,
    simplified,
    substitute,
)
from shapejit.ir import make_map, shape_attr
from shapejit.ir import tensor_type as make_tensor_type
from shapejit.symbolic import Expr, Ranges, product, reshape_map
from shapejit.windows import Window

Kind = Literal["none", "add", "mul", "max", "min", "and", "or"]
Indices = Sequence[Expr]
Body = Callable[..., Sequence[Scalar]]


@dataclass(frozen=True)
class Read:
    """An operand of a loop and, for each of its dims, the index it is read at."""

    tensor: Tensor
    indices: tuple[Expr, ...]


@dataclass(frozen=True)
class Write:
    """A result of a loop: its dtype, and over which loop dims it is kept; the rest is reduced."""

    dtype: torch.dtype
    dims: tuple[int, ...]
    kind: Kind = "none"


class SizeMismatchError(ValueError):
    """Two sizes that an operator needs to be equal are not."""


class Builder:
    """Makes ops in one context; see the module's docstring."""

    def __init__(self, context: ir.Context, symbols: SymbolTable) -> None:
        self.context = context
        self.symbols = symbols
        self.types = Types(context)
        self.ops = ScalarOps(self.types)
        self._tensor_types: dict[tuple[Shape, torch.dtype], Any] = {}
        self._maps: dict[tuple[int, tuple[Expr, ...]], Any] = {}
        self._shapes: dict[Shape, Any] = {}
        self._ranges: dict[tuple[int, Shape], Ranges] = {}
        self._kinds: dict[Kind, Any] = {}

    # Types and attributes -------------------------------------------------------------------------

    def tensor_type(self, shape: Shape, dtype: torch.dtype) -> Any:
        """The tensor type with this symbolic shape."""
        key = (shape, dtype)
        found = self._tensor_types.get(key)
        if found is None:
            found = self._tensor_types[key] = make_tensor_type(shape, self.types[dtype])
        return found

    def map_attr(self, rank: int, indices: Sequence[Expr]) -> Any:
        """The map of `rank` dims to `indices`, as an attribute."""
        key = (rank, tuple(indices))
        found = self._maps.get(key)
        if found is None:
            found = self._maps[key] = ir.AffineMapAttr.get(make_map(rank, indices))
        return found

    def space_attr(self, space: Shape) -> Any:
        """An iteration space as an attribute."""
        found = self._shapes.get(space)
        if found is None:
            found = self._shapes[space] = shape_attr(space, self.context)
        return found

    def ranges(self, shape: Shape) -> Ranges:
        """Reasoning about indices within `shape`, under the user's ranges."""
        key = (len(self.symbols.symbols), shape)
        found = self._ranges.get(key)
        if found is None:
            known = {s.id: (s.min, s.max) for s in self.symbols.symbols}
            found = self._ranges[key] = Ranges(known, shape)
        return found

    def shapes(self) -> list[Shape]:
        """The shapes of all tensors that were built."""
        return list(dict.fromkeys(shape for shape, _ in self._tensor_types))

    # Sizes ----------------------------------------------------------------------------------------

    def same_size(self, lhs: Expr, rhs: Expr) -> bool:
        """Whether two sizes are equal, as torch sees them."""
        return lhs == rhs or self.symbols.traced(lhs) == self.symbols.traced(rhs)

    def broadcast(self, *shapes: Shape) -> Shape:
        """The common shape of operands, aligned at the last dim."""
        rank = max(map(len, shapes))
        sizes: list[Expr] = []
        for dim in range(rank):
            found = [s[dim - rank + len(s)] for s in shapes if dim - rank + len(s) >= 0]
            wide = [size for size in found if size != 1]
            if any(not self.same_size(wide[0], size) for size in wide[1:]):
                shown = ", ".join(f"[{', '.join(map(str, shape))}]" for shape in shapes)
                raise SizeMismatchError(f"the shapes {shown} do not broadcast")
            sizes.append(wide[0] if wide else Expr.const(1))
        return tuple(sizes)

    # Known contents -------------------------------------------------------------------------------

    def known(self, shape: Sequence[Expr], dtype: torch.dtype, content: Any) -> Tensor:
        """A tensor of known contents; nothing is built."""
        shape = tuple(shape)
        return Tensor(shape, dtype, content=simplified(content, self.ranges(shape)))

    def splat(self, shape: Sequence[Expr], dtype: torch.dtype, value: Any) -> Tensor:
        """A tensor of one value, converted to `dtype` as torch does."""
        if dtype.is_floating_point:
            value = float(value)
        else:
            value = bool(value) if dtype is torch.bool else int(value)
        return Tensor(shape, dtype, content=Splat(value))

    def predicate(self, shape: Sequence[Expr], terms: Sequence[Expr]) -> Tensor:
        """The bool tensor that is true where all terms are >= 0."""
        shape = tuple(shape)
        return Tensor(shape, torch.bool, content=conjunction(terms, self.ranges(shape)))

    def value(self, tensor: Tensor) -> Any:
        """The SSA value of a tensor; contents that are only known are built now."""
        if tensor.value is None:
            content = tensor.content
            assert content is not None
            write = Write(tensor.dtype, tuple(range(tensor.rank)))
            built = self.loop(
                tensor.shape, [], lambda: [self.ops.content(content, tensor.dtype)], [write]
            )
            tensor.value = built[0].value
        return tensor.value

    # Views ----------------------------------------------------------------------------------------

    def view(self, x: Tensor, shape: Sequence[Expr], indices: Indices) -> Tensor:
        """The tensor of `shape` whose element is that of `x` at `indices`."""
        shape = tuple(shape)
        if shape == x.shape and all(index.dim_index == i for i, index in enumerate(indices)):
            return x
        if x.content is not None:
            return self.known(shape, x.dtype, substitute(x.content, indices))
        result = ir.Operation.create(
            "shapejit.view",
            results=[self.tensor_type(shape, x.dtype)],
            operands=[x.value],
            attributes={"map": self.map_attr(len(shape), indices)},
        ).result
        return Tensor(shape, x.dtype, result)

    def reshape(self, x: Tensor, shape: Sequence[Expr]) -> Tensor:
        """The elements of `x` in row-major order in another shape."""
        shape = tuple(shape)
        try:
            indices = reshape_map(x.shape, shape)
        except ValueError as error:
            if product(map(self.symbols.traced, x.shape)) != product(
                map(self.symbols.traced, shape)
            ):
                raise SizeMismatchError(str(error)) from error
            return self._reshape_traced(x, shape)
        return self.view(x, shape, indices)

    def _reshape_traced(self, x: Tensor, shape: Shape) -> Tensor:
        """A reshape whose sizes agree only as torch sees them, above the least sizes.

        Where a derived symbol (a clamped size) meets torch's unclamped spelling of it, the clamped
        one is put in torch's place.
        """
        spelled = {self.symbols.traced(size): size for size in x.shape}
        respelled = tuple(spelled.get(self.symbols.traced(size), size) for size in shape)
        whole = product(x.shape)
        if product(respelled) != whole:
            respelled = self._with_rest(respelled, whole)
        return self.view(x, respelled, reshape_map(x.shape, respelled))

    def _with_rest(self, shape: Shape, whole: Expr) -> Shape:
        """`shape` with one size, a product with a clamped one say, from what the others leave."""
        for dim, size in enumerate(shape):
            rest = whole.exact_div(product((*shape[:dim], *shape[dim + 1 :])))
            if rest is not None and self.same_size(rest, size):
                return (*shape[:dim], rest, *shape[dim + 1 :])
        return shape

    def expand(self, x: Tensor, shape: Sequence[Expr]) -> Tensor:
        """`x` broadcast to `shape`."""
        shape = tuple(shape)
        return self.view(x, shape, self.broadcast_read(x, shape).indices)

    # Loops ----------------------------------------------------------------------------------------

    def broadcast_read(self, x: Tensor, space: Shape) -> Read:
        """Reads `x` aligned at the last dim of `space`, its dims of size one repeated."""
        shift = len(space) - x.rank
        return Read(
            x,
            tuple(
                Expr.const(0) if size == 1 and space[shift + i] != 1 else Expr.dim(shift + i)
                for i, size in enumerate(x.shape)
            ),
        )

    def loop(
        self,
        space: Sequence[Expr],
        reads: Sequence[Read],
        body: Body,
        writes: Sequence[Write],
    ) -> list[Tensor]:
        """A `shapejit.loop`.

        Args:
            space: sizes of the iteration space.
            reads: operands; those of known contents are computed in the body.
            body: gets a scalar for each read, in order, and gives one for each write.
            writes: results. One that is kept over all loop dims combines nothing.
        """
        space = tuple(space)
        rank = len(space)
        kinds = [write.kind if len(write.dims) < rank else "none" for write in writes]
        inputs = [read for read in reads if read.tensor.content is None]
        shapes = [tuple(space[dim] for dim in write.dims) for write in writes]
        maps = [self.map_attr(rank, read.indices) for read in inputs]
        maps += [self.map_attr(rank, [Expr.dim(d) for d in write.dims]) for write in writes]
        operation = ir.Operation.create(
            "shapejit.loop",
            results=[
                self.tensor_type(shape, write.dtype)
                for shape, write in zip(shapes, writes, strict=True)
            ],
            operands=[read.tensor.value for read in inputs],
            attributes={
                "space": self.space_attr(space),
                "maps": ir.ArrayAttr.get(maps),
                "kinds": ir.ArrayAttr.get(list(map(self._kind_attr, kinds))),
            },
            regions=1,
        )
        block = operation.regions[0].blocks.append(
            *(self.types[read.tensor.dtype] for read in inputs)
        )
        with ir.InsertionPoint(block):
            arguments = iter(block.arguments)
            scalars = [self._operand(read, space, arguments) for read in reads]
            self._yield(body(*scalars), writes)
        return [
            Tensor(shape, write.dtype, result)
            for shape, write, result in zip(shapes, writes, operation.results, strict=True)
        ]

    def _operand(self, read: Read, space: Shape, arguments: Any) -> Scalar:
        tensor = read.tensor
        if tensor.content is None:
            return Scalar(next(arguments), tensor.dtype)
        content = simplified(substitute(tensor.content, read.indices), self.ranges(space))
        return self.ops.content(content, tensor.dtype)

    def _yield(self, values: Sequence[Scalar], writes: Sequence[Write]) -> None:
        converted = [
            self.ops.cast(value, write.dtype).value
            for value, write in zip(values, writes, strict=True)
        ]
        ir.Operation.create("shapejit.yield", operands=converted)

    def _kind_attr(self, kind: Kind) -> Any:
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = ir.StringAttr.get(kind, self.context)
        return found

    def pointwise(
        self,
        body: Callable[..., Scalar],
        operands: Sequence[Tensor],
        dtype: torch.dtype,
        shape: Shape | None = None,
    ) -> Tensor:
        """One result of `dtype` from operands that broadcast; `body` gets and gives a scalar."""
        space = self.broadcast(*(x.shape for x in operands)) if shape is None else tuple(shape)
        reads = [self.broadcast_read(x, space) for x in operands]
        write = Write(dtype, tuple(range(len(space))))
        return self.loop(space, reads, lambda *scalars: [body(*scalars)], [write])[0]

    def extract(self, table: Tensor, indices: Sequence[Any]) -> Scalar:
        """In a body: the element of `table` (built already) at index values."""
        assert table.value is not None
        value = self.ops.op("tensor.extract", self.types[table.dtype], [table.value, *indices])
        return Scalar(value, table.dtype)

    # Rows -----------------------------------------------------------------------------------------

    def scan(self, x: Tensor, kind: str, *, indexed: bool = False) -> list[Tensor]:
        """A `shapejit.scan` along the last dim: values and, if `indexed`, places.

        Args:
            x: of rank 1 at least.
            kind: ``add``, ``mul``, ``max``, ``min`` or ``logaddexp``.
            indexed: only of ``max`` and ``min``.
        """
        attributes = {"kind": ir.StringAttr.get(kind, self.context)}
        dtypes = [x.dtype, torch.int64] if indexed else [x.dtype]
        return self._row_op("shapejit.scan", x, x.shape, dtypes, attributes)

    def sort(self, x: Tensor, count: Expr, *, descending: bool) -> list[Tensor]:
        """A `shapejit.sort` along the last dim: values and places.

        Args:
            x: of rank 1 at least.
            count: how many elements of each sorted row are wanted.
            descending: whether the greatest come first.
        """
        attributes = {"descending": ir.UnitAttr.get(self.context)} if descending else {}
        shape = (*x.shape[:-1], count)
        return self._row_op("shapejit.sort", x, shape, [x.dtype, torch.int64], attributes)

    def _row_op(
        self,
        name: str,
        x: Tensor,
        shape: Shape,
        dtypes: Sequence[torch.dtype],
        attributes: dict[str, Any],
    ) -> list[Tensor]:
        identity = [Expr.dim(dim) for dim in range(x.rank)]
        operation = ir.Operation.create(
            name,
            results=[self.tensor_type(shape, dtype) for dtype in dtypes],
            operands=[self.value(x)],
            attributes={
                "space": self.space_attr(x.shape),
                "maps": ir.ArrayAttr.get([self.map_attr(x.rank, identity)]),
                **attributes,
            },
        )
        pairs = zip(dtypes, operation.results, strict=True)
        return [Tensor(shape, dtype, result) for dtype, result in pairs]

    # Heavy ops ------------------------------------------------------------------------------------

    def gemm(self, space: Sequence[Expr], lhs: Read, rhs: Read, dtype: torch.dtype) -> Tensor:
        """The contraction of two operands over the last dim of `space`; both hold `dtype`."""
        space = tuple(space)
        rank = len(space)
        operands = [self.value(read.tensor) for read in (lhs, rhs)]
        maps = [self.map_attr(rank, read.indices) for read in (lhs, rhs)]
        segments = ir.DenseI32ArrayAttr.get([1, 1, 0], self.context)
        result = ir.Operation.create(
            "shapejit.gemm",
            results=[self.tensor_type(space[:-1], dtype)],
            operands=operands,
            attributes={
                "space": self.space_attr(space),
                "maps": ir.ArrayAttr.get(maps),
                "operandSegmentSizes": segments,
            },
            regions=1,
        ).result
        return Tensor(space[:-1], dtype, result)

    def conv(
        self, space: Sequence[Expr], image: Sequence[Expr], x: Read, weight: Read, window: Window
    ) -> Tensor:
        """The convolution over [n, g, o.., f, c, t..]; result [n, o.., g * f].

        Args:
            space: sizes of the iteration space.
            image: the spatial sizes of the input.
            x: read over (n, g, p.., c), p a pixel of the image.
            weight: read over (g, f, c, t..); holds the dtype of `x`.
            window: stride, padding and so on.
        """
        space, spatial = tuple(space), len(image)
        dtype = x.tensor.dtype
        outside = space[2 + spatial]
        shape = (space[0], *space[2 : 2 + spatial], space[1] * outside)
        pixels = [Expr.dim(2 + i) for i in range(spatial)]
        written = [Expr.dim(0), *pixels, Expr.dim(1) * outside + Expr.dim(2 + spatial)]
        rank = 3 + spatial
        maps = [self.map_attr(rank, indices) for indices in (x.indices, weight.indices, written)]
        result = ir.Operation.create(
            "shapejit.conv",
            results=[self.tensor_type(shape, dtype)],
            operands=[self.value(x.tensor), self.value(weight.tensor)],
            attributes={
                "space": self.space_attr(space),
                "image": self.space_attr(tuple(image)),
                "maps": ir.ArrayAttr.get(maps),
                **window.attributes(self.context),
            },
            regions=1,
        ).result
        return Tensor(shape, dtype, result)

    def attention(
        self,
        space: Sequence[Expr],
        reads: Sequence[Read],
        scale: float,
        causal: Expr | None,
    ) -> Tensor:
        """Attention over [b, h, m, n, d, dv] of q, k, v and maybe a mask; result [b, h, m, dv]."""
        space = tuple(space)
        dtype = reads[0].tensor.dtype
        shape = (*space[:3], space[5])
        operands = [self.value(read.tensor) for read in reads]
        identity = [Expr.dim(i) for i in range(4)]
        maps = [self.map_attr(4, indices) for indices in (*(r.indices for r in reads), identity)]
        attributes = {
            "space": self.space_attr(space),
            "maps": ir.ArrayAttr.get(maps),
            "scale": ir.FloatAttr.get_f64(scale),
        }
        if causal is not None:
            attributes["causal"] = self.map_attr(0, [causal])
        result = ir.Operation.create(
            "shapejit.attention",
            results=[self.tensor_type(shape, dtype)],
            operands=operands,
            attributes=attributes,
        ).result
        return Tensor(shape, dtype, result)
