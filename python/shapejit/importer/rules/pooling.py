# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Pooling over windows of one to three spatial dims, of fixed sizes or adaptive.

A small window is taken apart into its taps: one pointwise loop that fuses with what follows. A
larger one is pooled dim by dim, as sums and maxima of rows of sums and maxima. What is still
too large, or of a size that varies, is a reduction.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch

from shapejit.importer import dtypes
from shapejit.importer.builder import Kind, Write
from shapejit.importer.context import Context, UnsupportedCaseError
from shapejit.importer.registry import rule
from shapejit.importer.rules.images import (
    Pixels,
    Place,
    all_of,
    channels_first,
    guarded,
    image_loop,
    limited,
    with_batch,
)
from shapejit.importer.rules.reductions import (
    mean_of_images,
    reduce_tensor,
    with_unit_dims,
)
from shapejit.importer.rules.views import as_expr
from shapejit.importer.scalar_ops import Scalar
from shapejit.importer.values import Tensor
from shapejit.symbolic import Expr, Ranges, product

_MOST_TAPS: Final = 32
"""Taps of a window that one body reads."""


class Windows(Protocol):
    """The windows of one spatial dim.

    Attributes:
        size: pixels of the input.
        out: windows.
        taps: pixels of a window, at most.
    """

    @property
    def size(self) -> Expr: ...
    @property
    def out(self) -> Expr: ...
    @property
    def taps(self) -> Expr: ...

    def place(self, ctx: Context, out: Expr, tap: Expr, ranges: Ranges) -> Place:
        """The pixel of a tap, and whether it belongs to the window."""


@dataclass(frozen=True)
class Strided:
    """Windows of one size at equal distances; see `Windows`.

    Attributes:
        low, high: pixels of padding.
    """

    size: Expr
    out: Expr
    taps: Expr
    stride: int
    dilation: int
    low: int
    high: int

    def place(self, ctx: Context, out: Expr, tap: Expr, ranges: Ranges) -> Place:
        index = out * self.stride + tap * self.dilation - self.low
        return guarded(ctx, index, self.size, ranges)

    @property
    def is_padded(self) -> bool:
        return self.low > 0 or self.high > 0


@dataclass(frozen=True)
class Adaptive:
    """Windows that cover the input evenly: [floor(o n / m), ceil((o + 1) n / m)) of m."""

    size: Expr
    out: Expr

    @property
    def taps(self) -> Expr:
        size, out = self.size.constant, self.out.constant
        if size is None or not out:
            return (self.size - 1) // self.out + 2
        ends = ((-(-(o + 1) * size // out), o * size // out) for o in range(out))
        return Expr.const(max((end - start for end, start in ends), default=0))

    def place(self, ctx: Context, out: Expr, tap: Expr, ranges: Ranges) -> Place:
        ops = ctx.ops
        index = ops.index_expr((out * self.size) // self.out + tap)
        end = ops.index_expr(((out + 1) * self.size).ceildiv(self.out))
        inside = ops.compare_indices("lt", index, end)
        return Place(limited(ctx, index, self.size), inside)

    def length(self, ctx: Context, out: Expr) -> Scalar:
        """Pixels of a window, as int64."""
        end, start = ((out + 1) * self.size).ceildiv(self.out), (out * self.size) // self.out
        return ctx.ops.from_index(ctx.ops.index_expr(end - start), torch.int64)


# Reductions of windows ----------------------------------------------------------------------------


def _identity(ctx: Context, kind: Kind, dtype: torch.dtype) -> Scalar:
    if kind == "add":
        return ctx.ops.const(0, dtype)
    least = -math.inf if dtypes.is_float(dtype) else torch.iinfo(dtype).min
    return ctx.ops.const(least, dtype)


def _combine(ctx: Context, kind: Kind, lhs: Scalar, rhs: Scalar) -> Scalar:
    return ctx.ops.add(lhs, rhs) if kind == "add" else ctx.ops.maximum(lhs, rhs)


def _tap(
    ctx: Context, pixels: Pixels, places: Sequence[Place], kind: Kind, dtype: torch.dtype
) -> Scalar:
    """What one tap of a window contributes."""
    element = ctx.ops.cast(pixels.at([place.index for place in places]), dtype)
    inside = all_of(ctx, [place.inside for place in places])
    if inside is None:
        return element
    return ctx.ops.select(inside, element, _identity(ctx, kind, dtype))


def _is_repeated(kind: Kind, windows: Windows) -> bool:
    """Whether a pixel off the image may be read as the nearest on it: it is one of the window's."""
    return kind == "max" and isinstance(windows, Strided) and windows.dilation == 1


def _place(ctx: Context, kind: Kind, w: Windows, out: Expr, tap: Expr, ranges: Ranges) -> Place:
    place = w.place(ctx, out, tap, ranges)
    return Place(place.index) if _is_repeated(kind, w) else place


def _unrolled(
    ctx: Context, x: Tensor, windows: Sequence[Windows], kind: Kind, dtype: torch.dtype
) -> Tensor:
    """All taps in one body."""

    def body(pixels: Pixels, ranges: Ranges) -> Scalar:
        rows = [
            [
                _place(ctx, kind, w, Expr.dim(1 + dim), Expr.const(tap), ranges)
                for tap in range(w.taps.constant or 0)
            ]
            for dim, w in enumerate(windows)
        ]
        values = [_tap(ctx, pixels, places, kind, dtype) for places in itertools.product(*rows)]
        result = values[0]
        for value in values[1:]:
            result = _combine(ctx, kind, result, value)
        return result

    return image_loop(ctx, x, [w.out for w in windows], body, dtype)


def _reduced(
    ctx: Context, x: Tensor, windows: Sequence[Windows], kind: Kind, dtype: torch.dtype
) -> Tensor:
    """A reduction over the taps: a loop over [n, o.., t.., c]."""
    count = len(windows)
    space = (x.shape[0], *(w.out for w in windows), *(w.taps for w in windows), x.shape[1])
    pixels, ranges = Pixels(ctx, x, len(space)), ctx.builder.ranges(space)

    def body() -> list[Scalar]:
        places = [
            _place(ctx, kind, w, Expr.dim(1 + i), Expr.dim(1 + count + i), ranges)
            for i, w in enumerate(windows)
        ]
        return [_tap(ctx, pixels, places, kind, dtype)]

    write = Write(dtype, (*range(1 + count), len(space) - 1), kind)
    return channels_first(ctx, ctx.builder.loop(space, [], body, [write])[0])


def pooled(
    ctx: Context, x: Tensor, windows: Sequence[Windows], kind: Kind, dtype: torch.dtype
) -> Tensor:
    """The sum or maximum of every window of `x`, [n, c, p..], in `dtype`."""
    taps = product(w.taps for w in windows).constant
    if taps is not None and 0 < taps <= _MOST_TAPS:
        return _unrolled(ctx, x, windows, kind, dtype)
    if len(windows) == 1 or not all(isinstance(w, Strided) for w in windows):
        return _reduced(ctx, x, windows, kind, dtype)
    for number, window in enumerate(windows):
        alone = [window if i == number else _untouched(x.shape[2 + i]) for i in range(len(windows))]
        taps = window.taps.constant
        pool = _unrolled if taps is not None and taps <= _MOST_TAPS else _reduced
        x = pool(ctx, x, alone, kind, dtype)
    return x


def _maxima(ctx: Context, x: Tensor, windows: Sequence[Windows]) -> Tensor:
    """The greatest element of every window, in the dtype of `x`."""
    # The loop's max compares with sign.
    dtype = torch.int32 if dtypes.is_unsigned(x.dtype) else x.dtype
    if not _is_whole(windows):
        return ctx.cast(pooled(ctx, x, windows, "max", dtype), x.dtype)
    spatial = list(range(2, x.rank))
    best = ctx.cast(reduce_tensor(ctx, x, spatial, "max", dtype), x.dtype)
    return with_unit_dims(ctx, best, x.rank, spatial)


def _is_whole(windows: Sequence[Windows]) -> bool:
    """Whether each window is all of the image."""
    return all(w.out == 1 and (isinstance(w, Adaptive) or w.taps == w.size) for w in windows)


def _untouched(size: Expr) -> Strided:
    """Windows of one pixel."""
    return Strided(size, size, Expr.const(1), 1, 1, 0, 0)


def _positions(ctx: Context, x: Tensor, best: Tensor, windows: Sequence[Windows]) -> Tensor:
    """Where in its plane the first maximum of each window lies, int64 [n, c, o..].

    It is the last NaN, if there is one. Of a NaN the loop takes -1 less its place, so that the last
    one is the least.
    """
    count, ops = len(windows), ctx.ops
    space = (x.shape[0], *(w.out for w in windows), *(w.taps for w in windows), x.shape[1])
    pixels, ranges = Pixels(ctx, x, len(space)), ctx.builder.ranges(space)
    ctx.builder.value(best)

    def body() -> list[Scalar]:
        places = [
            w.place(ctx, Expr.dim(1 + i), Expr.dim(1 + count + i), ranges)
            for i, w in enumerate(windows)
        ]
        channel = ops.loop_index(len(space) - 1)
        outs = [ops.loop_index(1 + i) for i in range(count)]
        wanted = ctx.builder.extract(best, [ops.loop_index(0), channel, *outs])
        found = pixels.at([place.index for place in places])
        same = ops.compare("eq", found, wanted)
        flat = ops.index_const(0)
        for place, w in zip(places, windows, strict=True):
            scaled = ops.index_op("arith.muli", flat, ops.index_expr(w.size))
            flat = ops.index_op("arith.addi", scaled, place.index)
        position = ops.from_index(flat, torch.int64)
        if dtypes.is_float(found.dtype):
            nan = ops.is_nan(found)
            same = ops.logical_or(same, nan)
            position = ops.select(nan, mirrored(position), position)
        here = all_of(ctx, [same, *(place.inside for place in places)])
        assert here is not None
        absent = ops.const(torch.iinfo(torch.int64).max, torch.int64)
        return [ops.select(here, position, absent)]

    def mirrored(position: Scalar) -> Scalar:
        return ops.sub(ops.const(-1, torch.int64), position)

    write = Write(torch.int64, (*range(1 + count), len(space) - 1), "min")
    found = channels_first(ctx, ctx.builder.loop(space, [], body, [write])[0])
    if not dtypes.is_float(x.dtype):
        return found
    return ctx.builder.pointwise(lambda p: ops.maximum(p, mirrored(p)), [found], torch.int64)


# Windows of a fixed size --------------------------------------------------------------------------


def _strided(
    ctx: Context,
    x: Tensor,
    kernel: Sequence[Any],
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    ceil_mode: bool,
) -> list[Strided]:
    """The windows of an image [n, c, p..]."""
    spatial = x.rank - 2
    lists = [
        _entries(values, spatial) for values in (kernel, stride or kernel, padding, dilation or [1])
    ]
    found = []
    for size, taps, step, pad, spread in zip(x.shape[2:], *lists, strict=True):
        out = _out_size(ctx, size, taps, step, pad, spread, ceil_mode)
        found.append(Strided(size, out, Expr.const(taps), step, spread, pad, pad))
    return found


def _entries(values: Sequence[Any], spatial: int) -> list[int]:
    """One entry a spatial dim; torch lets one stand for all."""
    found = list(values) * spatial if len(values) == 1 else list(values)
    if not all(isinstance(value, int) for value in found):
        raise UnsupportedCaseError(f"with a window that depends on sizes: {found}")
    return found


def _out_size(
    ctx: Context, size: Expr, taps: int, stride: int, pad: int, dilation: int, ceil_mode: bool
) -> Expr:
    """Windows of a dim. With `ceil_mode` the last one may hang over, but starts on the image or in
    the padding before it."""
    symbols = ctx.builder.symbols
    room = size + 2 * pad - dilation * (taps - 1) - 1
    if not ceil_mode:
        return symbols.maximum(room // stride + 1, Expr.const(0))
    out = symbols.minimum(room.ceildiv(stride) + 1, (size + pad).ceildiv(stride))
    return symbols.maximum(out, Expr.const(0))


@rule("aten.max_pool1d", "aten.max_pool2d", "aten.max_pool3d")
def _max_pool(
    ctx: Context,
    x: Tensor,
    kernel: Sequence[Any],
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    ceil_mode: bool,
) -> Tensor:
    spatial = int(ctx.op[-2])
    image, unbatched = with_batch(ctx, x, spatial)
    windows = _strided(ctx, image, kernel, stride, padding, dilation, ceil_mode)
    return unbatched(_maxima(ctx, image, windows))


@rule(
    "aten.max_pool1d_with_indices",
    "aten.max_pool2d_with_indices",
    "aten.max_pool3d_with_indices",
)
def _max_pool_with_indices(
    ctx: Context,
    x: Tensor,
    kernel: Sequence[Any],
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    ceil_mode: bool,
) -> list[Tensor]:
    """Maxima and their places; of several NaN in a window the last."""
    spatial = int(ctx.op.removesuffix("_with_indices")[-2])
    image, unbatched = with_batch(ctx, x, spatial)
    windows = _strided(ctx, image, kernel, stride, padding, dilation, ceil_mode)
    best = _maxima(ctx, image, windows)
    return [unbatched(best), unbatched(_positions(ctx, image, best, windows))]


@rule("aten.avg_pool1d", "aten.avg_pool2d", "aten.avg_pool3d")
def _avg_pool(
    ctx: Context,
    x: Tensor,
    kernel: Sequence[Any],
    stride: Sequence[Any],
    padding: Sequence[Any],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None = None,
) -> Tensor:
    _check_averages(x)
    spatial = int(ctx.op[-2])
    image, unbatched = with_batch(ctx, x, spatial)
    windows = _strided(ctx, image, kernel, stride, padding, [1], ceil_mode)
    total = pooled(ctx, image, windows, "add", dtypes.compute_dtype(x.dtype))
    counted = [] if divisor is not None else _varying(windows, ceil_mode, count_include_pad)
    fixed = product(w.taps for i, w in enumerate(windows) if i not in counted).constant
    factor, ops = 1 / (divisor or fixed or 1), ctx.ops

    def body(s: Scalar) -> Scalar:
        s = ops.mul(s, ops.const(factor, s.dtype))
        for dim in counted:
            count = _count(ctx, windows[dim], Expr.dim(2 + dim), include=count_include_pad)
            s = ops.div(s, ops.cast(count, s.dtype))
        return s

    return unbatched(ctx.builder.pointwise(body, [total], x.dtype))


def _check_averages(x: Tensor) -> None:
    if not dtypes.is_float(x.dtype):
        raise UnsupportedCaseError("of integers: cast them to float32")


def _varying(windows: Sequence[Strided], ceil_mode: bool, include: bool) -> list[int]:
    """The dims in which windows do not all count the same number of pixels."""
    return [dim for dim, w in enumerate(windows) if ceil_mode or (w.is_padded and not include)]


def _count(ctx: Context, window: Strided, out: Expr, *, include: bool) -> Scalar:
    """Pixels of a window that count, padding included or not, as int64."""
    ops, taps = ctx.ops, window.taps.constant or 0
    start = ops.index_expr(out * window.stride - window.low)
    after = ops.index_expr(out * window.stride - window.low + taps)
    limit = window.size + window.high if include else window.size
    end = ops.index_op("arith.minsi", after, ops.index_expr(limit))
    if not include:
        start = ops.index_op("arith.maxsi", start, ops.index_const(0))
    return ops.from_index(ops.index_op("arith.subi", end, start), torch.int64)


# Adaptive windows ---------------------------------------------------------------------------------


def _adaptive(x: Tensor, sizes: Sequence[Any]) -> list[Windows]:
    """The windows of an image [n, c, p..]; equal ones where the sizes divide."""
    wanted = [
        size if out is None else as_expr(out) for size, out in zip(x.shape[2:], sizes, strict=True)
    ]
    found: list[Windows] = []
    for size, out in zip(x.shape[2:], wanted, strict=True):
        taps = None if out == 0 else size.exact_div(out)
        equal = None if taps is None else taps.constant
        found.append(
            Strided(size, out, Expr.const(equal), equal, 1, 0, 0) if equal else Adaptive(size, out)
        )
    return found


@rule("aten.adaptive_avg_pool1d", "aten.adaptive_avg_pool2d", "aten.adaptive_avg_pool3d")
def _adaptive_avg_pool(ctx: Context, x: Tensor, sizes: Sequence[Any]) -> Tensor:
    _check_averages(x)
    image, unbatched = with_batch(ctx, x, len(sizes))
    windows, inner = _adaptive(image, sizes), dtypes.compute_dtype(x.dtype)
    if _is_whole(windows):
        spatial = list(range(2, image.rank))
        average = mean_of_images(ctx, image, spatial, inner)
        whole = with_unit_dims(ctx, ctx.cast(average, x.dtype), image.rank, spatial)
        return unbatched(whole)
    total, ops = pooled(ctx, image, windows, "add", inner), ctx.ops

    def body(s: Scalar) -> Scalar:
        count: Scalar | None = None
        for dim, w in enumerate(windows):
            if isinstance(w, Adaptive):
                length = w.length(ctx, Expr.dim(2 + dim))
            else:
                length = ops.from_index(ops.index_expr(w.taps), torch.int64)
            count = length if count is None else ops.mul(count, length)
        assert count is not None
        return ops.div(s, ops.cast(count, s.dtype))

    return unbatched(ctx.builder.pointwise(body, [total], x.dtype))


@rule("aten.adaptive_max_pool1d", "aten.adaptive_max_pool2d", "aten.adaptive_max_pool3d")
def _adaptive_max_pool(ctx: Context, x: Tensor, sizes: Sequence[Any]) -> list[Tensor]:
    """Maxima and their places; of several NaN in a window the last."""
    image, unbatched = with_batch(ctx, x, len(sizes))
    windows = _adaptive(image, sizes)
    best = _maxima(ctx, image, windows)
    return [unbatched(best), unbatched(_positions(ctx, image, best, windows))]
