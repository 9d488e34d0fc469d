# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Images resized: nearest, linear and cubic interpolation in one to three spatial dims.

Where a pixel of the result lies on the input is worked out in floats, as torch does, so that the
same pixels are chosen. Whole factors of nearest interpolation are index maps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from shapejit.importer import dtypes
from shapejit.importer.context import Context, UnsupportedCaseError
from shapejit.importer.registry import rule
from shapejit.importer.rules.images import (
    IndexValue,
    Pixels,
    image_loop,
    limited,
)
from shapejit.importer.rules.views import as_expr, identity
from shapejit.importer.scalar_ops import Scalar
from shapejit.importer.sizes import UnknownSizeError, scaled_size
from shapejit.importer.values import Tensor
from shapejit.symbolic import Expr, Ranges

_CUBIC: Final = -0.75
"""torch's parameter of cubic convolution."""

# Factors for which floor(i * (1 / k)) is i // k in float32 and in float64, for i up to 2^20.
_WHOLE_FACTORS: Final = frozenset(range(1, 41))


@dataclass(frozen=True)
class Axis:
    """One spatial dim of a resize.

    Attributes:
        size, out: pixels of the input and of the result.
        factor: out over in as the caller said it; None if he gave the size.
        aligned: whether the corners' centres coincide.
    """

    size: Expr
    out: Expr
    factor: float | None
    aligned: bool = False

    def step(self, ctx: Context, dtype: torch.dtype) -> Scalar:
        """Pixels of the input for one of the result, in a body."""
        ops = ctx.ops
        if self.aligned:
            return self._aligned_step(ctx, dtype)
        if self.factor is not None:
            return ops.const(1 / self.factor, dtype)
        if (ratio := self._ratio) is not None:
            return ops.const(ratio, dtype)
        size, out = (ops.from_index(ops.index_expr(e), dtype) for e in (self.size, self.out))
        return ops.div(size, out)

    def _aligned_step(self, ctx: Context, dtype: torch.dtype) -> Scalar:
        ops, between = ctx.ops, self.out - 1
        zero = ops.const(0, dtype)
        if (count := between.constant) is not None and count <= 0:
            return zero
        size, gaps = (ops.from_index(ops.index_expr(e), dtype) for e in (self.size - 1, between))
        step = ops.div(size, gaps)
        if between.constant is not None:
            return step
        return ops.select(ops.compare("gt", gaps, zero), step, zero)

    @property
    def _ratio(self) -> float | None:
        """in / out, if that is one number at every size."""
        if (size := self.size.constant) is not None and (out := self.out.constant):
            return size / out
        for whole, divisor, dividend in ((True, self.size, self.out), (False, self.out, self.size)):
            quotient = None if divisor == 0 else dividend.exact_div(divisor)
            if quotient is not None and quotient.constant:
                return 1 / quotient.constant if whole else float(quotient.constant)
        return None

    @property
    def nearest_index(self) -> Callable[[Expr], Expr] | None:
        """The pixel that nearest interpolation takes as an index expression, if it is one."""
        if self.size == self.out and self.factor in (None, 1):
            return lambda index: index
        step = self._ratio if self.factor is None else 1 / self.factor
        if step is None or self.size == 0:
            return None
        if step >= 1 and step == int(step):
            return lambda index: index * int(step)
        grow = round(1 / step)
        if 1 / grow == step and grow in _WHOLE_FACTORS and self.size * grow == self.out:
            return lambda index: index // grow
        return None


def _axes(
    ctx: Context, x: Tensor, sizes: Any, factors: Sequence[float | None], *, aligned: bool = False
) -> list[Axis]:
    """The spatial dims of an image [n, c, p..].

    Args:
        sizes: of the result; None if `factors` give them.
    """
    found = []
    for number, size in enumerate(x.shape[2:]):
        factor = factors[number] if factors else None
        if sizes is not None:
            out = as_expr(sizes[number])
        else:
            assert factor is not None
            out = _scaled(ctx, size, factor)
        found.append(Axis(size, out, factor or None, aligned))
    return found


def _scaled(ctx: Context, size: Expr, factor: float) -> Expr:
    try:
        return scaled_size(ctx.builder.symbols, size, factor)
    except UnknownSizeError as error:
        name = ctx.builder.symbols.describe(size)
        raise UnsupportedCaseError(
            f"by {factor} of {name}: give it a smaller range, or the result a size"
        ) from error


def _resized(
    ctx: Context,
    x: Tensor,
    axes: Sequence[Axis],
    taps: Callable[[Context, Axis, int], list[tuple[IndexValue, Scalar | None]]],
) -> Tensor:
    """The image whose pixels are sums of those of `x`.

    Args:
        taps: for a dim and its number in the loop, the pixels that count and their weights.
    """
    inner = dtypes.compute_dtype(x.dtype)

    def body(pixels: Pixels, _: Ranges) -> Scalar:
        found = [taps(ctx, axis, 1 + number) for number, axis in enumerate(axes)]
        return _weighted(ctx, pixels, found, [], inner)

    return image_loop(ctx, x, [axis.out for axis in axes], body, x.dtype)


def _weighted(
    ctx: Context,
    pixels: Pixels,
    taps: Sequence[Sequence[tuple[IndexValue, Scalar | None]]],
    chosen: list[IndexValue],
    inner: torch.dtype,
) -> Scalar:
    """The sum over the taps of the dims that are left, the last one innermost."""
    if len(chosen) == len(taps):
        return ctx.ops.cast(pixels.at(chosen), inner)
    total: Scalar | None = None
    for index, weight in taps[len(chosen)]:
        value = _weighted(ctx, pixels, taps, [*chosen, index], inner)
        if weight is not None:
            value = ctx.ops.mul(value, ctx.ops.cast(weight, inner))
        total = value if total is None else ctx.ops.add(total, value)
    assert total is not None
    return total


def _place_type(x: Tensor) -> torch.dtype:
    """The dtype in which torch works out places."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def _floor(ctx: Context, place: Scalar) -> IndexValue:
    """The whole part of a place that is not negative, or of one that is at least -2."""
    return ctx.ops.to_index(ctx.ops.cast(ctx.ops.math("math.floor", place), torch.int64))


# Nearest ------------------------------------------------------------------------------------------


def _nearest(ctx: Context, x: Tensor, axes: Sequence[Axis], *, exact: bool) -> Tensor:
    """Nearest interpolation; `exact` takes centres of pixels where torch's older one does not."""
    dtype, ops = _place_type(x), ctx.ops
    indices = [axis.nearest_index for axis in axes]
    if not exact and all(index is not None for index in indices):
        return _nearest_view(ctx, x, axes)

    def taps(ctx: Context, axis: Axis, dim: int) -> list[tuple[IndexValue, Scalar | None]]:
        place = ops.from_index(ops.loop_index(dim), dtype)
        if exact:
            place = ops.add(place, ops.const(0.5, dtype))
        index = _floor(ctx, ops.mul(place, axis.step(ctx, dtype)))
        return [(limited(ctx, index, axis.size), None)]

    return _resized(ctx, x, axes, taps)


def _nearest_view(ctx: Context, x: Tensor, axes: Sequence[Axis]) -> Tensor:
    indices = identity(x.rank)
    for number, axis in enumerate(axes):
        index = axis.nearest_index
        assert index is not None
        indices[2 + number] = index(indices[2 + number])
    return ctx.builder.view(x, [*x.shape[:2], *(axis.out for axis in axes)], indices)


@rule("aten.upsample_nearest1d.vec", "aten.upsample_nearest2d.vec", "aten.upsample_nearest3d.vec")
def _upsample_nearest(ctx: Context, x: Tensor, sizes: Any, factors: Any) -> Tensor:
    return _nearest(ctx, x, _axes(ctx, x, sizes, factors or ()), exact=False)


@rule("aten.upsample_nearest1d", "aten.upsample_nearest2d", "aten.upsample_nearest3d")
def _upsample_nearest_sizes(ctx: Context, x: Tensor, sizes: Any, *factors: Any) -> Tensor:
    return _nearest(ctx, x, _axes(ctx, x, sizes, factors), exact=False)


@rule(
    "aten._upsample_nearest_exact1d.vec",
    "aten._upsample_nearest_exact2d.vec",
    "aten._upsample_nearest_exact3d.vec",
)
def _upsample_exact(ctx: Context, x: Tensor, sizes: Any, factors: Any) -> Tensor:
    return _nearest(ctx, x, _axes(ctx, x, sizes, factors or ()), exact=True)


@rule(
    "aten._upsample_nearest_exact1d",
    "aten._upsample_nearest_exact2d",
    "aten._upsample_nearest_exact3d",
)
def _upsample_exact_sizes(ctx: Context, x: Tensor, sizes: Any, *factors: Any) -> Tensor:
    return _nearest(ctx, x, _axes(ctx, x, sizes, factors), exact=True)


# Linear and cubic ---------------------------------------------------------------------------------


def _source(ctx: Context, axis: Axis, dim: int, dtype: torch.dtype) -> Scalar:
    """Where the centre of a pixel of the result lies on the input."""
    ops = ctx.ops
    index, step = ops.from_index(ops.loop_index(dim), dtype), axis.step(ctx, dtype)
    if axis.aligned:
        return ops.mul(step, index)
    half = ops.const(0.5, dtype)
    return ops.sub(ops.mul(step, ops.add(index, half)), half)


def _check_mixes(x: Tensor) -> None:
    """Refuses integers, of which torch takes uint8, with weights in fixed-point numbers."""
    if not dtypes.is_float(x.dtype):
        raise UnsupportedCaseError("of integers: cast them to float32")


def _linear(ctx: Context, x: Tensor, axes: Sequence[Axis]) -> Tensor:
    _check_mixes(x)
    dtype = _place_type(x)

    def taps(ctx: Context, axis: Axis, dim: int) -> list[tuple[IndexValue, Scalar | None]]:
        ops = ctx.ops
        if axis.size == axis.out and axis.factor in (None, 1):
            return [(ops.loop_index(dim), None)]
        place = ops.maximum(_source(ctx, axis, dim, dtype), ops.const(0, dtype))
        if axis.factor is not None:  # torch copies where a factor changes no size
            same = ops.compare_indices("eq", ops.index_expr(axis.size), ops.index_expr(axis.out))
            place = ops.select(same, ops.from_index(ops.loop_index(dim), dtype), place)
        first = limited(ctx, _floor(ctx, place), axis.size)
        second = limited(ctx, ops.index_op("arith.addi", first, ops.index_const(1)), axis.size)
        far = ops.sub(place, ops.from_index(first, dtype))
        one = ops.const(1, dtype)
        far = ops.minimum(ops.maximum(far, ops.const(0, dtype)), one)
        return [(first, ops.sub(one, far)), (second, far)]

    return _resized(ctx, x, axes, taps)


@rule("aten.upsample_linear1d.vec", "aten.upsample_bilinear2d.vec", "aten.upsample_trilinear3d.vec")
def _upsample_linear(ctx: Context, x: Tensor, sizes: Any, aligned: bool, factors: Any) -> Tensor:
    return _linear(ctx, x, _axes(ctx, x, sizes, factors or (), aligned=aligned))


@rule("aten.upsample_linear1d", "aten.upsample_bilinear2d", "aten.upsample_trilinear3d")
def _upsample_linear_sizes(
    ctx: Context, x: Tensor, sizes: Any, aligned: bool, *factors: Any
) -> Tensor:
    return _linear(ctx, x, _axes(ctx, x, sizes, factors, aligned=aligned))


def _cubic(ctx: Context, x: Tensor, axes: Sequence[Axis]) -> Tensor:
    _check_mixes(x)
    dtype = _place_type(x)

    def taps(ctx: Context, axis: Axis, dim: int) -> list[tuple[IndexValue, Scalar | None]]:
        ops = ctx.ops
        place = _source(ctx, axis, dim, dtype)
        whole = ops.math("math.floor", place)
        first, rest = _floor(ctx, place), ops.sub(place, whole)
        found: list[tuple[IndexValue, Scalar | None]] = []
        for offset, weight in zip(range(-1, 3), _cubic_weights(ctx, rest), strict=True):
            index = ops.index_op("arith.addi", first, ops.index_const(offset))
            found.append((limited(ctx, index, axis.size), weight))
        return found

    return _resized(ctx, x, axes, taps)


def _cubic_weights(ctx: Context, rest: Scalar) -> list[Scalar]:
    """Weights of the pixels 1 before, at, 1 and 2 after the whole part (Keys, 1981)."""
    ops = ctx.ops

    def const(value: float) -> Scalar:
        return ops.const(value, rest.dtype)

    def near(t: Scalar) -> Scalar:
        """((a + 2) t - (a + 3)) t^2 + 1, for distances up to 1."""
        slope = ops.sub(ops.mul(const(_CUBIC + 2), t), const(_CUBIC + 3))
        return ops.add(ops.mul(ops.mul(slope, t), t), const(1))

    def far(t: Scalar) -> Scalar:
        """((a t - 5a) t + 8a) t - 4a, for distances from 1 to 2."""
        inner = ops.sub(ops.mul(const(_CUBIC), t), const(5 * _CUBIC))
        inner = ops.add(ops.mul(inner, t), const(8 * _CUBIC))
        return ops.sub(ops.mul(inner, t), const(4 * _CUBIC))

    other = ops.sub(const(1), rest)
    return [far(ops.add(rest, const(1))), near(rest), near(other), far(ops.add(other, const(1)))]


@rule("aten.upsample_bicubic2d.vec")
def _upsample_cubic(ctx: Context, x: Tensor, sizes: Any, aligned: bool, factors: Any) -> Tensor:
    return _cubic(ctx, x, _axes(ctx, x, sizes, factors or (), aligned=aligned))


@rule("aten.upsample_bicubic2d")
def _upsample_cubic_sizes(
    ctx: Context, x: Tensor, sizes: Any, aligned: bool, *factors: Any
) -> Tensor:
    return _cubic(ctx, x, _axes(ctx, x, sizes, factors, aligned=aligned))
