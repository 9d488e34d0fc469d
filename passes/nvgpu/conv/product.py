# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A convolution as the product of matrices whose left side is never stored: implicit GEMM.

A row of the product is an output pixel of an image, a column a filter. What is summed over are the
channels and the taps, in stages of the ring: blocks of channels, and within a block tap after tap,
so that the pixels of a tile stay in the second-level cache while all taps read them. So K is
counted as ``taps * ceil(channels / depth) * depth``: a stage has one tap, and TMA fills a block of
which not all channels exist with zeros, of the image and of the filters.

The image is read by TMA in im2col mode, see `Im2colMap`: rows are places of the window, which
wrap over rows of pixels and images as the map says. All that is left of a convolution are two
kinds of matrices; whatever computes products of these (rings, clusters, splits) computes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mlir import ir

from shapejit import ir as sir
from shapejit.gpu.interface import Im2colMap, TensorMap
from shapejit.passes.nvgpu.builder import Num, add, compare, mul, select, sub, udiv
from shapejit.passes.nvgpu.conv.problem import ConvProblem
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.problem import Access, GemmProblem, Matrix, check_box, map_element
from shapejit.passes.nvgpu.target import MAP_ALIGNMENT
from shapejit.symbolic import Expr, Ranges, delinearize, product
from shapejit.symbolic.expr import ONE, ZERO

# By the number of spatial dims: what corners of a window's places, and offsets of taps, lie within.
_CORNERS = {1: (-(1 << 15), (1 << 15) - 1), 2: (-128, 127), 3: (-16, 15)}
_OFFSETS = {1: (1 << 16) - 1, 2: 255, 3: 31}
_MOST_STEP = 8  # from place to place

# Of a dim of size 1: it is never used, but has to be one that there can be.
_ANY_STRIDE = Expr.const(MAP_ALIGNMENT // 2)

_WAY_OUT = "Use a schedule of the family unaligned"

#: Of the channels in a stage, whatever their type.
DEPTH_BYTES = 128


@dataclass(frozen=True, kw_only=True)
class ConvProduct(GemmProblem):
    """A convolution as a product.

    Attributes:
        conv: the convolution.
        depth: elements of K in a stage.
        grouped: whether the first batch dim counts groups.
        by_image: whether the last batch dim counts images; else the rows do.
    """

    conv: ConvProblem
    depth: int
    grouped: bool
    by_image: bool

    @staticmethod
    def of(conv: ConvProblem, depth: int) -> ConvProduct:
        """The product over [g.., n.., pixels, filters, taps and channels].

        Raises:
            LoweringError: the result has no fixed strides.
        """
        for by_image in (False, True):
            made = _product(conv, depth, by_image=by_image)
            if made.result.is_linear:
                return made
        raise LoweringError(
            f"writes its result at {conv.result.offset}, which has no fixed strides between pixels"
        )

    def lhs_matrix(self) -> Matrix:
        return PixelMatrix.of_product(self)

    def weight_matrix(self, number: int) -> Matrix:
        return FilterMatrix.of_product(self)


def _product(conv: ConvProblem, depth: int, *, by_image: bool) -> ConvProduct:
    grouped = conv.groups != ONE
    batch = [conv.groups] * grouped + [conv.images] * by_image
    rows = list(conv.pixels) if by_image else [conv.images, *conv.pixels]
    k = product(conv.taps) * conv.channels.ceildiv(depth) * depth
    space = (*batch, product(rows), conv.filters, k)
    m = len(batch)
    places = delinearize(Expr.dim(m), rows)
    image = Expr.dim(m - 1) if by_image else places[0]
    pixels = places if by_image else places[1:]
    group = Expr.dim(0) if grouped else ZERO
    dims = dict(enumerate([image, group, *pixels, Expr.dim(m + 1)]))
    ranges = Ranges(None, list(space[:-1]))

    def restated(access: Access) -> Access:
        offset = ranges.simplify(access.offset.substitute(dims=dims))
        return Access(access.operand, access.element, offset)

    return ConvProduct(
        space=space,
        lhs=conv.input,
        weights=(conv.weight,),
        extras=tuple(map(restated, conv.extras)),
        result=restated(conv.result),
        epilogue=conv.epilogue,
        conv=conv,
        depth=depth,
        grouped=grouped,
        by_image=by_image,
    )


# Matrices -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ConvMatrix(Matrix):
    """A side of the product. Its strides are those between elements of the tensor.

    Attributes:
        product: it is a side of.
    """

    product: ConvProduct

    def group(self, place: Sequence[Num]) -> Num:
        """The group, of indices along `dims`."""
        return place[self.dims.index(0)] if self.product.grouped else 0

    def block_and_tap(self, function: KernelFunction, k: Num) -> tuple[Num, Num]:
        """The first channel of a stage, in its group, and the number of its tap."""
        stage = udiv(k, self.product.depth)
        count: Num = 1
        for size in self.product.conv.taps:
            count = mul(count, function.size(size))
        block = udiv(stage, count)
        return mul(block, self.product.depth), sub(stage, mul(block, count))

    def _taps(self, function: KernelFunction, tap: Num) -> list[Num]:
        """A tap's place along each spatial dim of the window, the slowest moving one first."""
        taps: list[Num] = []
        for size in reversed(self.product.conv.taps[1:]):
            length = function.size(size)
            rest = udiv(tap, length)
            taps.append(sub(tap, mul(rest, length)))
            tap = rest
        return [tap, *reversed(taps)]


@dataclass(frozen=True, kw_only=True)
class PixelMatrix(ConvMatrix):
    """The image: rows are places of the window, elements along K the channels of a tap's pixel."""

    @staticmethod
    def of_product(product: ConvProduct) -> PixelMatrix:
        """The matrix.

        Raises:
            LoweringError: TMA cannot read the image in im2col mode.
        """
        conv = product.conv
        used = image_strides(product)
        _check_window(conv, f"reads argument {conv.input.operand}")
        dims = (product.k, product.m, *reversed(range(product.m)))
        sizes = tuple(product.space[dim] for dim in dims)
        return PixelMatrix(conv.input, dims, sizes, (ONE, *used), product=product)

    @property
    def has_parts(self) -> bool:
        return False  # each map of an image is encoded for every call

    def record(self, function: KernelFunction, box: Sequence[int], swizzle: int) -> Im2colMap:
        conv, window, number = self.product.conv, self.product.conv.window, function.value_number
        order = list(reversed(range(conv.rank)))
        sizes, strides = image_dims(conv)
        pixels, taps = [window.padding[i] for i in order], [conv.taps[i] for i in order]
        reaches = [
            (_number(size) - 1) * window.dilations[i] for size, i in zip(taps, order, strict=True)
        ]
        return Im2colMap(
            operand=self.access.operand,
            element=map_element(self.access.element, rounds=self.rounds),
            dims=tuple(map(number, sizes)),
            strides=tuple(map(number, strides)),
            channels=box[0],
            pixels=box[1],
            lower=tuple(-low for low, _ in pixels),
            upper=tuple(high - reach for (_, high), reach in zip(pixels, reaches, strict=True)),
            steps=tuple(window.strides[i] for i in order),
            swizzle=swizzle,
            promotion=self.promotion,
        )

    def coordinates(self, function: KernelFunction, place: Sequence[Num]) -> list[Num]:
        """Channel, place of the window, image; then how far the tap is from the first one."""
        window = self.product.conv.window
        channel, tap = self.block_and_tap(function, place[0])
        channel = add(channel, function.size(self.access.start))
        if self.product.grouped:
            channel = self._in_group(function, channel, place)
        image, pixels = self._pixel(function, place)
        places = [
            sub(mul(pixel, stride), low)
            for pixel, stride, (low, _) in zip(pixels, window.strides, window.padding, strict=True)
        ]
        offsets = [
            mul(index, dilation)
            for index, dilation in zip(self._taps(function, tap), window.dilations, strict=True)
        ]
        return [channel, *reversed(places), image, *reversed(offsets)]

    def _in_group(self, function: KernelFunction, channel: Num, place: Sequence[Num]) -> Num:
        """A channel of a group as one of the image; beyond all of them where K has ended, since
        the next group's could be infinite, and zeros of the filters make NaN of that."""
        conv, size = self.product.conv, function.size
        inside = add(channel, mul(self.group(place), size(conv.channels)))
        ended = compare("uge", place[0], size(self.product.space[self.product.k]))
        return select(ended, size(conv.groups * conv.channels + self.access.start), inside)

    def _pixel(self, function: KernelFunction, place: Sequence[Num]) -> tuple[Num, list[Num]]:
        """The image and the output pixel of a row."""
        conv = self.product.conv
        row = place[1]
        sizes = [function.size(size) for size in conv.pixels]
        with _behind(row):
            pixels: list[Num] = []
            for size in reversed(sizes[1:]):
                rest = udiv(row, size)
                pixels.append(sub(row, mul(rest, size)))
                row = rest
            if self.product.by_image:
                return place[2], [row, *reversed(pixels)]
            image = udiv(row, sizes[0])
            pixels.append(sub(row, mul(image, sizes[0])))
            return image, list(reversed(pixels))


@contextmanager
def _behind(number: Num) -> Iterator[None]:
    """Emits right behind what computes a number: divisions are done once a tile, not in each
    stage, from which LLVM does not move them."""
    if isinstance(number, int):
        yield
        return
    owner = number.owner
    if isinstance(owner, ir.Block):
        point = ir.InsertionPoint.at_block_begin(owner)
    else:
        point = ir.InsertionPoint.after(owner)
    with point:
        yield


@dataclass(frozen=True, kw_only=True)
class FilterMatrix(ConvMatrix):
    """The filters: K is the channels of a tap."""

    @staticmethod
    def of_product(product: ConvProduct) -> FilterMatrix:
        """The matrix.

        Raises:
            LoweringError: TMA cannot read the filters.
        """
        conv = product.conv
        name = f"reads argument {conv.weight.operand}"
        group, filter_, channel, *taps = (conv.weight.stride(dim) for dim in range(3 + conv.rank))
        if None in (group, filter_, channel, *taps):
            raise LoweringError(f"{name} at {conv.weight.offset}, which has no fixed strides")
        if conv.channels != ONE and channel != ONE:
            raise LoweringError(
                f"{name} with a stride of {channel} between channels; pack it first. {_WAY_OUT}"
            )
        if conv.weight.start != ZERO:
            raise LoweringError(f"{name} from element {conv.weight.start} on. {_WAY_OUT}")
        filter_ = filter_ or ZERO
        if product.grouped and (group or ZERO) != filter_ * conv.filters:
            raise LoweringError(f"{name}, whose groups do not follow each other. {_WAY_OUT}")
        strides = [filter_, *(stride or ZERO for stride in reversed(taps))]
        dims = (product.k, product.n, *reversed(range(product.m)))
        sizes = (conv.channels, conv.groups * conv.filters, *reversed(conv.taps))
        strides = [
            _ANY_STRIDE if size == ONE else _checked_stride(name, stride, conv.weight)
            for size, stride in zip(sizes[1:], strides, strict=True)
        ]
        return FilterMatrix(conv.weight, dims, sizes, (ONE, *strides), product=product)

    def coordinates(self, function: KernelFunction, place: Sequence[Num]) -> list[Num]:
        """Channel, filter, tap."""
        channel, tap = self.block_and_tap(function, place[0])
        filter_ = place[1]
        if self.product.grouped:
            filters = function.size(self.product.conv.filters)
            filter_ = add(filter_, mul(self.group(place), filters))
        return [channel, filter_, *reversed(self._taps(function, tap))]

    def record(self, function: KernelFunction, box: Sequence[int], swizzle: int) -> TensorMap:
        check_box(box)
        number = function.value_number
        return TensorMap(
            operand=self.access.operand,
            element=map_element(self.access.element, rounds=self.rounds),
            dims=tuple(map(number, self.sizes)),
            strides=tuple(map(number, self.strides[1:])),
            box=(*box, *[1] * (len(self.sizes) - 2)),
            swizzle=swizzle,
            promotion=self.promotion,
        )


# Rules --------------------------------------------------------------------------------------------


def image_strides(product: ConvProduct) -> list[Expr]:
    """The strides of images and of the spatial dims that a map of the image has.

    Raises:
        LoweringError: no map reads the image.
    """
    conv, window = product.conv, product.conv.window
    name = f"reads argument {conv.input.operand}"
    last = 2 + conv.rank
    strides = [conv.input.stride(dim) for dim in range(last + 1)]
    if any(stride is None for stride in strides):
        raise LoweringError(f"{name} at {conv.input.offset}, which has no fixed strides")
    if conv.channels != ONE and strides[last] != ONE:
        raise LoweringError(f"{name} with a stride of {strides[last]} between channels. {_WAY_OUT}")
    if product.grouped:
        _check_groups(product, name, strides[1] or ZERO)
    if any(spread != 1 for spread in window.lhs_dilations):
        raise LoweringError(f"{name} with zeros between pixels. {_WAY_OUT}")
    _check_start(conv, name)
    return [
        _checked_stride(name, strides[dim] or ZERO, conv.input)
        for dim, size in ((0, conv.images), *enumerate(conv.image, 2))
        if size != ONE
    ]


def image_dims(conv: ConvProblem) -> tuple[list[Expr], list[Expr]]:
    """Sizes of an image's map, from the channels on, and strides of all dims but these."""
    access, order = conv.input, list(reversed(range(conv.rank)))
    sizes = [conv.image[dim] for dim in order] + [conv.images]
    strides = [access.stride(dim) or ZERO for dim in (*(2 + dim for dim in order), 0)]
    return (
        [conv.groups * conv.channels + access.start, *sizes],
        [
            _ANY_STRIDE if size == ONE else stride
            for size, stride in zip(sizes, strides, strict=True)
        ],
    )


def _number(size: Expr) -> int:
    assert size.constant is not None, "checked"
    return size.constant


def _check_groups(product: ConvProduct, name: str, stride: Expr) -> None:
    """Blocks of channels must not reach into the next group: zeros times an infinity are NaN."""
    channels = product.conv.channels
    if channels.constant is None or channels.constant % product.depth:
        raise LoweringError(
            f"{name} in groups of {channels} channels; for tensor maps these are multiples "
            f"of {product.depth}. {_WAY_OUT}"
        )
    if stride != channels:
        raise LoweringError(f"{name} with groups {stride} elements apart. {_WAY_OUT}")


def _check_window(conv: ConvProblem, name: str) -> None:
    """Whether a map can say where the window goes."""
    low, high = _CORNERS[conv.rank]
    for taps, stride, dilation, (before, behind) in zip(
        conv.taps, conv.window.strides, conv.window.dilations, conv.window.padding, strict=True
    ):
        if taps.constant is None:
            raise LoweringError(f"{name} through a window of {taps} taps; TMA needs a constant")
        reach = (taps.constant - 1) * dilation
        corners = (-before, behind - reach)
        if (
            not all(low <= corner <= high for corner in corners)
            or reach > _OFFSETS[conv.rank]
            or stride > _MOST_STEP
        ):
            raise LoweringError(
                f"{name} through {taps} taps {dilation} apart, with a stride of {stride} and "
                f"padding ({before}, {behind}), which is beyond what TMA takes. {_WAY_OUT}"
            )


def _check_start(conv: ConvProblem, name: str) -> None:
    """A start may be a number of channels, which are then left out."""
    start = conv.input.start.constant
    if start is None or start < 0:
        raise LoweringError(f"{name} from element {conv.input.start} on. {_WAY_OUT}")
    pixel = (conv.input.stride(1 + conv.rank) or ZERO).constant
    channels = (conv.groups * conv.channels).constant
    if start and (pixel is None or channels is None or start + channels > pixel):
        raise LoweringError(f"{name} from element {start} on. {_WAY_OUT}")


def _checked_stride(name: str, stride: Expr, access: Access) -> Expr:
    """A stride, if it may suit TMA."""
    if stride == ZERO:
        raise LoweringError(f"{name} with a stride of 0; TMA cannot broadcast. {_WAY_OUT}")
    multiple = MAP_ALIGNMENT // sir.element_bytes(access.element)
    if (known := stride.constant) is not None and known % multiple:
        raise LoweringError(
            f"{name} with a stride of {known} elements; TMA needs multiples of {multiple}. "
            f"{_WAY_OUT}"
        )
    return stride
