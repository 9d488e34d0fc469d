# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Ops that only move elements: every one is an index map, but joining tensors (`cat`) is a loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shapejit.importer.builder import Read, Write
from shapejit.importer.context import Context, UnsupportedCaseError, dim_index, dim_list
from shapejit.importer.registry import rule
from shapejit.importer.scalar_ops import Scalar
from shapejit.importer.values import Affine, Shape, Splat, Tensor, affine_of
from shapejit.symbolic import Expr, product

_MAX_INDEX = 2**62
"""Ends of slices from here on mean "to the end"."""

_MOST_JOINED = 64
"""Parts that one loop joins: it tells them apart one by one, and each is a parameter."""


def as_expr(size: Any) -> Expr:
    """A size operand as an expression."""
    return size if isinstance(size, Expr) else Expr.const(size)


def identity(rank: int) -> list[Expr]:
    """``[d0, .., dn]``."""
    return [Expr.dim(i) for i in range(rank)]


def with_size(shape: Sequence[Expr], dim: int, size: Expr) -> list[Expr]:
    """`shape` with another size of one dim."""
    return [*shape[:dim], size, *shape[dim + 1 :]]


# Reshapes -----------------------------------------------------------------------------------------


@rule("aten.view", "aten._unsafe_view", "aten.reshape", "aten._reshape_alias", "aten._reshape_copy")
def _view(ctx: Context, x: Tensor, sizes: Sequence[Any], *_: Any) -> Tensor:
    return ctx.builder.reshape(x, _resolved(x, sizes))


def _resolved(x: Tensor, sizes: Sequence[Any]) -> list[Expr]:
    """Sizes with a -1 worked out."""
    if -1 not in [size for size in sizes if isinstance(size, int)]:
        return [as_expr(size) for size in sizes]
    place = next(i for i, size in enumerate(sizes) if isinstance(size, int) and size == -1)
    rest = product(as_expr(size) for i, size in enumerate(sizes) if i != place)
    return with_size([as_expr(size) for size in sizes], place, product(x.shape) // rest)


@rule("aten.flatten.using_ints")
def _flatten(ctx: Context, x: Tensor, start: int, end: int) -> Tensor:
    if x.rank == 0:
        return ctx.builder.reshape(x, [Expr.const(1)])
    first, last = dim_index(start, x.rank), dim_index(end, x.rank)
    merged = product(x.shape[first : last + 1])
    return ctx.builder.reshape(x, [*x.shape[:first], merged, *x.shape[last + 1 :]])


@rule("aten.unflatten.int")
def _unflatten(ctx: Context, x: Tensor, dim: int, sizes: Sequence[Any]) -> Tensor:
    axis = dim_index(dim, x.rank)
    part = Tensor((x.shape[axis],), x.dtype)
    return ctx.builder.reshape(x, [*x.shape[:axis], *_resolved(part, sizes), *x.shape[axis + 1 :]])


@rule("aten.unsqueeze")
def _unsqueeze(ctx: Context, x: Tensor, dim: int) -> Tensor:
    axis = dim_index(dim, x.rank + 1)
    shape = [*x.shape[:axis], Expr.const(1), *x.shape[axis:]]
    kept = [i for i in range(x.rank + 1) if i != axis]
    return ctx.builder.view(x, shape, [Expr.dim(i) for i in kept])


@rule("aten.squeeze", "aten.squeeze.dim", "aten.squeeze.dims")
def _squeeze(ctx: Context, x: Tensor, dims: Any = None) -> Tensor:
    if dims == []:
        return x
    dropped = [i for i in dim_list(dims, x.rank) if x.shape[i] == 1]
    kept = [i for i in range(x.rank) if i not in dropped]
    indices = [Expr.dim(kept.index(i)) if i in kept else Expr.const(0) for i in range(x.rank)]
    return ctx.builder.view(x, [x.shape[i] for i in kept], indices)


# Permutations -------------------------------------------------------------------------------------


@rule("aten.permute")
def _permute(ctx: Context, x: Tensor, dims: Sequence[int]) -> Tensor:
    return ctx.permuted(x, [dim_index(dim, x.rank) for dim in dims])


@rule("aten.transpose.int", "aten.swapaxes", "aten.swapdims")
def _transpose(ctx: Context, x: Tensor, first: int, second: int) -> Tensor:
    dims = list(range(x.rank))
    if dims:
        i, j = dim_index(first, x.rank), dim_index(second, x.rank)
        dims[i], dims[j] = dims[j], dims[i]
    return ctx.permuted(x, dims)


@rule("aten.t", "aten.numpy_T", "aten.mT")
def _matrix_transpose(ctx: Context, x: Tensor) -> Tensor:
    dims = list(range(x.rank))
    if ctx.op == "aten.numpy_T":
        dims.reverse()
    elif x.rank >= 2:
        dims[-2:] = [dims[-1], dims[-2]]
    return ctx.permuted(x, dims)


@rule("aten.movedim.int", "aten.movedim.intlist")
def _movedim(ctx: Context, x: Tensor, source: Any, destination: Any) -> Tensor:
    sources = [dim_index(d, x.rank) for d in ([source] if isinstance(source, int) else source)]
    targets = [
        dim_index(d, x.rank)
        for d in ([destination] if isinstance(destination, int) else destination)
    ]
    rest = iter(i for i in range(x.rank) if i not in sources)
    placed = dict(zip(targets, sources, strict=True))
    return ctx.permuted(x, [placed[i] if i in placed else next(rest) for i in range(x.rank)])


# Repetition ---------------------------------------------------------------------------------------


@rule("aten.expand")
def _expand(ctx: Context, x: Tensor, sizes: Sequence[Any], *_: Any) -> Tensor:
    shift = len(sizes) - x.rank
    shape = [
        x.shape[i - shift] if isinstance(size, int) and size == -1 else as_expr(size)
        for i, size in enumerate(sizes)
    ]
    # Where torch spells a size of x in another way, x's own spelling is kept.
    shape = [
        x.shape[i - shift]
        if i >= shift
        and x.shape[i - shift] != 1
        and ctx.builder.same_size(x.shape[i - shift], size)
        else size
        for i, size in enumerate(shape)
    ]
    return ctx.builder.expand(x, shape)


@rule("aten.expand_as")
def _expand_as(ctx: Context, x: Tensor, other: Tensor) -> Tensor:
    return _expand(ctx, x, list(other.shape))


@rule("aten.broadcast_to")
def _broadcast_to(ctx: Context, x: Tensor, sizes: Sequence[Any]) -> Tensor:
    return _expand(ctx, x, sizes)


@rule("aten.broadcast_tensors")
def _broadcast_tensors(ctx: Context, tensors: Sequence[Tensor]) -> list[Tensor]:
    shape = ctx.builder.broadcast(*(t.shape for t in tensors))
    return [ctx.builder.expand(t, shape) for t in tensors]


@rule("aten.repeat", "aten.tile")
def _repeat(ctx: Context, x: Tensor, repeats: Sequence[Any]) -> Tensor:
    repeats = [1] * (x.rank - len(repeats)) + list(repeats)
    shift = len(repeats) - x.rank
    sizes = [as_expr(r) if i < shift else x.shape[i - shift] * r for i, r in enumerate(repeats)]
    indices = []
    for i, size in enumerate(x.shape):
        index = Expr.dim(shift + i)
        whole = repeats[shift + i] == 1 or size == 0
        indices.append(index if whole else index % size)
    if any(size == 0 for size in x.shape):
        return ctx.builder.splat(sizes, x.dtype, 0)  # an empty tensor has no element to read
    return ctx.builder.view(x, sizes, indices)


@rule("aten.repeat_interleave.self_int")
def _repeat_interleave(ctx: Context, x: Tensor, repeats: Any, dim: Any, _: Any) -> Tensor:
    if dim is None:
        x, dim = ctx.builder.reshape(x, [product(x.shape)]), 0
    axis = dim_index(dim, x.rank)
    indices = identity(x.rank)
    indices[axis] = indices[axis] // repeats
    return ctx.builder.view(x, with_size(x.shape, axis, x.shape[axis] * repeats), indices)


# Slices -------------------------------------------------------------------------------------------


def slice_extent(ctx: Context, size: Expr, start: Any, end: Any) -> tuple[Expr, Expr]:
    """A slice's first index and its length before striding, which is 0 where it is empty.

    The first index of an empty slice may lie past the end.
    """
    symbols = ctx.builder.symbols

    def from_start(value: Any) -> tuple[Expr, bool]:
        """A bound counted from the start, and whether it was counted from the end."""
        index = as_expr(value)
        negative = symbols.traced_ranges.is_nonnegative(-1 - index)
        return (size + index if negative else index), negative

    first, wrapped = from_start(0 if start is None else start)
    if wrapped:
        first = symbols.maximum(first, Expr.const(0))
    if end is None or (isinstance(end, int) and end >= _MAX_INDEX):
        last = size
    else:
        last, wrapped = from_start(end)
        last = last if wrapped else symbols.minimum(last, size)
    return first, symbols.maximum(last - first, Expr.const(0))


@rule("aten.slice.Tensor")
def _slice(ctx: Context, x: Tensor, dim: int, start: Any, end: Any, step: int) -> Tensor:
    axis = dim_index(dim, x.rank)
    first, length = slice_extent(ctx, x.shape[axis], start, end)
    indices = identity(x.rank)
    indices[axis] = indices[axis] * step + first
    return ctx.builder.view(x, with_size(x.shape, axis, length.ceildiv(step)), indices)


@rule("aten.narrow")
def _narrow(ctx: Context, x: Tensor, dim: int, start: Any, length: Any) -> Tensor:
    axis = dim_index(dim, x.rank)
    first = x.shape[axis] + start if isinstance(start, int) and start < 0 else as_expr(start)
    size = as_expr(length)
    ctx.builder.symbols.require(first, size, x.shape[axis] - first - size)
    indices = identity(x.rank)
    indices[axis] = indices[axis] + first
    return ctx.builder.view(x, with_size(x.shape, axis, size), indices)


def select(ctx: Context, x: Tensor, axis: int, index: Any) -> Tensor:
    """`x` at one index of a dim, which goes away."""
    position = x.shape[axis] + index if isinstance(index, int) and index < 0 else as_expr(index)
    indices = [Expr.dim(i if i < axis else i - 1) for i in range(x.rank)]
    indices[axis] = position
    return ctx.builder.view(x, [*x.shape[:axis], *x.shape[axis + 1 :]], indices)


@rule("aten.select.int")
def _select(ctx: Context, x: Tensor, dim: int, index: Any) -> Tensor:
    return select(ctx, x, dim_index(dim, x.rank), index)


@rule("aten.unbind.int")
def _unbind(ctx: Context, x: Tensor, dim: int) -> list[Tensor]:
    axis = dim_index(dim, x.rank)
    count = x.shape[axis].constant
    if count is None:
        raise UnsupportedCaseError("over a dynamic dim")
    return [select(ctx, x, axis, i) for i in range(count)]


def _parts(ctx: Context, x: Tensor, axis: int, sizes: Sequence[Expr]) -> list[Tensor]:
    """Consecutive slices of the given sizes, which are checked to lie within `x`."""
    found, start = [], Expr.const(0)
    ctx.builder.symbols.require(*sizes, x.shape[axis] - sum(sizes, start))
    for size in sizes:
        indices = identity(x.rank)
        indices[axis] = indices[axis] + start
        found.append(ctx.builder.view(x, with_size(x.shape, axis, size), indices))
        start += size
    return found


@rule("aten.split_with_sizes", "aten.split.sizes")
def _split_with_sizes(ctx: Context, x: Tensor, sizes: Sequence[Any], dim: int) -> list[Tensor]:
    return _parts(ctx, x, dim_index(dim, x.rank), [as_expr(size) for size in sizes])


@rule("aten.split.Tensor")
def _split(ctx: Context, x: Tensor, size: Any, dim: int) -> list[Tensor]:
    axis = dim_index(dim, x.rank)
    return _parts(ctx, x, axis, _even_sizes(ctx, x.shape[axis], as_expr(size)))


def _even_sizes(ctx: Context, total: Expr, size: Expr) -> list[Expr]:
    """Sizes of equal parts, the last one what is left. Their number must be known."""
    count = ctx.builder.symbols.constant(total.ceildiv(size))
    if count is None:
        raise UnsupportedCaseError("into a number of parts that varies")
    count = max(count, 1)
    return [*[size] * (count - 1), total - size * (count - 1)]


@rule("aten.chunk")
def _chunk(ctx: Context, x: Tensor, chunks: int, dim: int) -> list[Tensor]:
    axis = dim_index(dim, x.rank)
    size = x.shape[axis].ceildiv(chunks)
    return _parts(ctx, x, axis, _even_sizes(ctx, x.shape[axis], size))


@rule("aten.unfold")
def _unfold(ctx: Context, x: Tensor, dim: int, size: int, step: int) -> Tensor:
    axis = dim_index(dim, x.rank)
    windows = (x.shape[axis] - size) // step + 1
    indices = identity(x.rank)
    indices[axis] = indices[axis] * step + Expr.dim(x.rank)
    shape = [*with_size(x.shape, axis, windows), Expr.const(size)]
    return ctx.builder.view(x, shape, indices)


@rule("aten.diagonal")
def _diagonal(ctx: Context, x: Tensor, offset: int, dim1: int, dim2: int) -> Tensor:
    first, second = dim_index(dim1, x.rank), dim_index(dim2, x.rank)
    rows = x.shape[first] + min(offset, 0)
    columns = x.shape[second] - max(offset, 0)
    symbols = ctx.builder.symbols
    length = symbols.maximum(symbols.minimum(rows, columns), Expr.const(0))
    kept = [i for i in range(x.rank) if i not in (first, second)]
    indices = [Expr.const(0)] * x.rank
    for position, dim in enumerate(kept):
        indices[dim] = Expr.dim(position)
    indices[first] = Expr.dim(len(kept)) - min(offset, 0)
    indices[second] = Expr.dim(len(kept)) + max(offset, 0)
    return ctx.builder.view(x, [*(x.shape[i] for i in kept), length], indices)


# Reordering ---------------------------------------------------------------------------------------


@rule("aten.flip")
def _flip(ctx: Context, x: Tensor, dims: Sequence[int]) -> Tensor:
    indices = identity(x.rank)
    for axis in dim_list(list(dims), x.rank) if dims else []:
        indices[axis] = x.shape[axis] - 1 - indices[axis]
    return ctx.builder.view(x, x.shape, indices)


@rule("aten.roll")
def _roll(ctx: Context, x: Tensor, shifts: Any, dims: Any) -> Tensor:
    shifts = [shifts] if isinstance(shifts, (int, Expr)) else shifts
    if not dims:
        flat = ctx.builder.reshape(x, [product(x.shape)])
        return ctx.builder.reshape(_roll(ctx, flat, shifts, [0]), x.shape)
    dims = [dims] if isinstance(dims, int) else dims
    indices = identity(x.rank)
    for shift, dim in zip(shifts, dims, strict=True):
        axis = dim_index(dim, x.rank)
        if x.shape[axis] == 0:
            return x
        if x.shape[axis] != 1:
            indices[axis] = (indices[axis] - shift) % x.shape[axis]
    return ctx.builder.view(x, x.shape, indices)


# Joining ------------------------------------------------------------------------------------------


@rule("aten.cat", "aten.concat", "aten.concatenate")
def _cat(ctx: Context, tensors: Sequence[Tensor], dim: int) -> Tensor:
    # A 1-d tensor of no elements joins anything, by an old rule of torch's.
    rank = max(t.rank for t in tensors)
    parts = [ctx.cast(t, ctx.dtype) for t in tensors if t.rank == rank]
    parts = [t for t in parts if t.shape[dim_index(dim, rank)] != 0] or parts[:1]
    return join(ctx, parts, dim_index(dim, rank))


@rule("aten.stack")
def _stack(ctx: Context, tensors: Sequence[Tensor], dim: int) -> Tensor:
    axis = dim_index(dim, tensors[0].rank + 1)
    return join(ctx, [_unsqueeze(ctx, ctx.cast(t, ctx.dtype), axis) for t in tensors], axis)


def join(ctx: Context, parts: Sequence[Tensor], axis: int) -> Tensor:
    """The parts one after the other along a dim."""
    if len(parts) == 1:
        return parts[0]
    starts = [Expr.const(0)]
    for part in parts:
        starts.append(starts[-1] + part.shape[axis])
    shape = tuple(with_size(parts[0].shape, axis, starts[-1]))
    known = _joined_formula(ctx, parts, starts, shape, axis)
    if known is not None:
        return known
    if len(parts) > _MOST_JOINED:
        groups = range(0, len(parts), _MOST_JOINED)
        return join(ctx, [join(ctx, parts[n : n + _MOST_JOINED], axis) for n in groups], axis)
    return _joined_loop(ctx, parts, starts, shape, axis)


def _joined_formula(
    ctx: Context, parts: Sequence[Tensor], starts: Sequence[Expr], shape: Shape, axis: int
) -> Tensor | None:
    """One formula that all parts agree with, each on its own stretch of the dim."""
    if all(part.content == parts[0].content and isinstance(part.content, Splat) for part in parts):
        return Tensor(shape, parts[0].dtype, content=parts[0].content)
    formulas = []
    for part, start in zip(parts, starts, strict=False):
        formula = affine_of(part.content)
        if formula is None or part.dtype.is_floating_point:
            return None
        formulas.append(formula.substitute(dims={axis: Expr.dim(axis) - start}))
    for candidate in formulas:
        if all(
            candidate == formula
            or (part.shape[axis] == 1 and _at(candidate, axis, start) == _at(formula, axis, start))
            for formula, part, start in zip(formulas, parts, starts, strict=False)
        ):
            return ctx.builder.known(shape, parts[0].dtype, Affine(candidate))
    return None


def _at(formula: Expr, axis: int, index: Expr) -> Expr:
    return formula.substitute(dims={axis: index})


def _joined_loop(
    ctx: Context, parts: Sequence[Tensor], starts: Sequence[Expr], shape: Shape, axis: int
) -> Tensor:
    """A loop that picks the part by its index."""
    rank = len(shape)
    size = parts[0].shape[axis].constant
    if size is not None and all(part.shape[axis] == size for part in parts):
        # Parts of one static size are all read at every index, at `index mod size`.
        indices = with_size(identity(rank), axis, Expr.dim(axis) % size)
        if all(part is parts[0] for part in parts):
            return ctx.builder.view(parts[0], shape, indices)
        reads = [Read(part, tuple(indices)) for part in parts]
    else:
        reads = []
        for part in parts:
            ctx.builder.value(part)

    def body(*scalars: Scalar) -> list[Scalar]:
        ops = ctx.ops
        position = ops.loop_index(axis)
        elements = scalars or [
            _clamped_element(ctx, part, start, axis, rank)
            for part, start in zip(parts, starts, strict=False)
        ]
        result = elements[-1]
        for number in range(len(parts) - 2, -1, -1):
            inside = ops.compare_indices("lt", position, ops.index_expr(starts[number + 1]))
            result = ops.select(inside, elements[number], result)
        return [result]

    write = Write(parts[0].dtype, tuple(range(rank)))
    return ctx.builder.loop(shape, reads, body, [write])[0]


def _clamped_element(ctx: Context, part: Tensor, start: Expr, axis: int, rank: int) -> Scalar:
    """The part's element at the loop's index less `start`, or its nearest one.

    An empty part is read at index 0, so the memory of an empty tensor must hold one element; what
    is there is never used.
    """
    ops = ctx.ops
    indices = [ops.loop_index(dim) for dim in range(rank)]
    last = ops.index_expr(part.shape[axis] - 1)
    place = ops.index_op("arith.minsi", ops.index_expr(Expr.dim(axis) - start), last)
    indices[axis] = ops.index_op("arith.maxsi", place, ops.index_const(0))
    return ctx.builder.extract(part, indices)


# Writes into a part -------------------------------------------------------------------------------


@rule("aten.slice_scatter")
def _slice_scatter(
    ctx: Context, x: Tensor, source: Tensor, dim: int, start: Any, end: Any, step: int
) -> Tensor:
    axis = dim_index(dim, x.rank)
    if step != 1:
        raise UnsupportedCaseError(f"with step {step}")
    first, length = slice_extent(ctx, x.shape[axis], start, end)
    first = ctx.builder.symbols.minimum(first, x.shape[axis])
    last = first + length
    after = with_size(x.shape, axis, x.shape[axis] - last)
    tail = identity(x.rank)
    tail[axis] = tail[axis] + last
    parts = [
        ctx.builder.view(x, with_size(x.shape, axis, first), identity(x.rank)),
        ctx.builder.expand(source, with_size(x.shape, axis, length)),
        ctx.builder.view(x, after, tail),
    ]
    kept = [part for part in parts if part.shape[axis] != 0]
    return join(ctx, kept, axis) if kept else x


@rule("aten.select_scatter")
def _select_scatter(ctx: Context, x: Tensor, source: Tensor, dim: int, index: Any) -> Tensor:
    axis = dim_index(dim, x.rank)
    position = x.shape[axis] + index if isinstance(index, int) and index < 0 else as_expr(index)
    dims = [i for i in range(x.rank) if i != axis]
    source_read = Read(source, tuple(Expr.dim(i) for i in dims))
    builder, ops = ctx.builder, ctx.ops

    def body(old: Scalar, new: Scalar) -> list[Scalar]:
        here = ops.compare_indices("eq", ops.loop_index(axis), ops.index_expr(position))
        return [ops.select(here, ops.cast(new, x.dtype), old)]

    reads = [Read(x, tuple(identity(x.rank))), source_read]
    return builder.loop(x.shape, reads, body, [Write(x.dtype, tuple(range(x.rank)))])[0]
