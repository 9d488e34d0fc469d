# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The family ``patch`` of convolutions: images of few channels, such as the three of a picture.

Why: a product over single taps has 3 of 64 channels in a stage, and to gather its left side loads
every pixel as many times as taps see it. Here a warpgroup loads the patch of the image that all
windows of a tile see, once, and leaves it in shared memory so that windows overlap there
(`patch_window`). Filters stay in shared memory::

    all filters -> shared memory
    patch of the first tile -> registers
    for each tile of this CTA:
        registers -> patch; fence; barrier
        start the products with the first 64 filters
        patch of the next tile -> registers
        epilogue; the same for all further filters

Filters are on wgmma's m side, and groups of its columns rows of pixels, as for tiles with a halo.
A CTA is one warpgroup, several share a multiprocessor: the epilogue of one runs beside the products
of another. Images may have any layout and strides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from mlir.dialects import gpu

from shapejit.gpu.interface import KernelInterface
from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    compare,
    constant,
    loop,
    mul,
    xor,
)
from shapejit.passes.nvgpu.conv.halo_window import WIDTH
from shapejit.passes.nvgpu.conv.line_output import PixelEpilogue, make_store
from shapejit.passes.nvgpu.conv.lines import LineProduct, LineTiles, line_fields
from shapejit.passes.nvgpu.conv.patch_operands import Chunks, FilterFill, PatchFill, clear_zeros
from shapejit.passes.nvgpu.conv.patch_window import (
    FILTERS,
    PATCHES,
    UNIT,
    Patch,
    PatchWindow,
    filter_blocks,
    operand_bytes,
)
from shapejit.passes.nvgpu.conv.problem import ConvProblem
from shapejit.passes.nvgpu.epilogue import directions_of
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.extras import TileOrigin
from shapejit.passes.nvgpu.function import KernelFunction, Threads, Units, elected_thread
from shapejit.passes.nvgpu.occupancy import ctas_that_fit
from shapejit.passes.nvgpu.request import GemmRequest
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.stores import publish_to_tma, store_bytes
from shapejit.passes.nvgpu.target import HOPPER, STATIC_SHARED_BYTES, WARPGROUP
from shapejit.passes.nvgpu.wgmma import DEPTH, Multiplier, await_groups, multiply_stage
from shapejit.symbolic import Expr
from shapejit.symbolic.expr import ONE

Loader: TypeAlias = Callable[[], list[Value]]

_WAY_OUT = "Use a schedule of the family unaligned"

# In which results wait for their store.
_STAGING_BYTES = store_bytes(turned=True)
# CTAs of a multiprocessor: more would leave too few registers for sums and patches on their way.
_MOST_CTAS = 3
# Products of a tile that are written out one after the other.
_MOST_STEPS = 64
_MOST_SUMS = 96

#: The schedule of all such kernels.
SCHEDULE = GemmSchedule.parse(f"patch_{FILTERS}x128x{DEPTH}_s{PATCHES}_w1")


@dataclass(frozen=True, kw_only=True)
class PatchProduct(LineProduct):
    """A convolution over few channels.

    Attributes:
        window: how it moves.
        filters: how many there are.
    """

    window: PatchWindow
    filters: int

    @staticmethod
    def of(conv: ConvProblem, depth: int) -> PatchProduct:
        """The product.

        Raises:
            LoweringError: it is none of few channels.
        """
        window = patch_window(conv)
        filters = conv.filters.constant
        if not filters:
            raise LoweringError(
                f"has {conv.filters} filters; that all stay in shared memory wants a constant "
                f"number. {_WAY_OUT}"
            )
        k = Expr.const(window.chunks * UNIT)
        return PatchProduct(**line_fields(conv, k), depth=depth, window=window, filters=filters)


def patch_window(conv: ConvProblem) -> PatchWindow:
    """The window of a convolution.

    Raises:
        LoweringError: it is none of few channels.
    """
    window, channels = conv.window, conv.channels.constant
    taps = [size.constant for size in conv.taps]
    if conv.rank != 2 or conv.groups != ONE or any(each != 1 for each in window.lhs_dilations):
        raise LoweringError(
            f"has {conv.rank} spatial dims, {conv.groups} groups and zeros between pixels "
            f"{window.lhs_dilations}; patches have two dims, one group, no zeros. {_WAY_OUT}"
        )
    if not channels or channels > UNIT:
        raise LoweringError(
            f"has {conv.channels} channels; pixels of patches have 1 to {UNIT}. {_WAY_OUT}"
        )
    if None in taps or 0 in taps:
        raise LoweringError(
            f"has a window of {' x '.join(map(str, conv.taps))} taps; patches want constants. "
            f"{_WAY_OUT}"
        )
    for access in (conv.input, conv.weight):
        if not access.is_linear:
            raise LoweringError(
                f"reads argument {access.operand} at {access.offset}, which has no fixed strides; "
                "copy it to a tensor that has"
            )
    rows, columns = (each or 0 for each in taps)
    (down, along), (height, width) = window.strides, window.dilations
    made = PatchWindow((rows, columns), (down, along), (height, width), channels)
    if made.chunks > 2 * _MOST_STEPS:
        raise LoweringError(
            f"has a window of {rows} x {columns} taps; patches have up to "
            f"{2 * _MOST_STEPS * made.pixels}. {_WAY_OUT}"
        )
    return made


def patch_product(conv: ConvProblem) -> PatchProduct:
    """A convolution over few channels, as `SCHEDULE` computes it.

    Raises:
        LoweringError: it is none, or there is no room for its filters.
    """
    product = PatchProduct.of(conv, DEPTH)
    _check_room(product, SCHEDULE)
    return product


def _check_room(product: PatchProduct, schedule: GemmSchedule) -> None:
    needed = operand_bytes(Patch.of(schedule, product.window), product.filters)
    free = HOPPER.shared_bytes - STATIC_SHARED_BYTES - _STAGING_BYTES
    if needed > free:
        raise LoweringError(
            f"needs {needed} bytes of shared memory for {product.filters} filters and its patches, "
            f"a CTA has {free}. {_WAY_OUT}"
        )


def emit(request: GemmRequest) -> KernelInterface:
    """Emits a kernel of the family patch.

    Raises:
        LoweringError: the schedule does not suit the problem.
    """
    return _Kernel(request).emit()


class _Kernel:
    def __init__(self, request: GemmRequest) -> None:
        assert isinstance(request.problem, PatchProduct)
        self._request, self._problem = request, request.problem
        self._schedule = schedule = request.schedule
        self._check()
        self._patch = Patch.of(schedule, self._problem.window)
        self._blocks = filter_blocks(self._problem.filters)
        self._directions = directions_of(request.problem, swapped=True, mapped=False)
        shared = operand_bytes(self._patch, self._problem.filters) + _STAGING_BYTES
        self._ctas = min(ctas_that_fit(request.architecture, shared), _MOST_CTAS)
        self._function = KernelFunction(
            request.name,
            request.architecture,
            threads=WARPGROUP,
            block=request.block,
            ctas_per_sm=self._ctas,
            programmatic=request.programmatic,
        )

    def _check(self) -> None:
        schedule = self._schedule
        plain = GemmSchedule("patch", FILTERS, schedule.columns, DEPTH, PATCHES, 1)
        if schedule != plain or schedule.columns // 2 > _MOST_SUMS:
            raise LoweringError(
                f"has the schedule {schedule}; those of few channels are {SCHEDULE} and others of "
                f"up to {2 * _MOST_SUMS} columns"
            )
        _check_room(self._problem, schedule)

    # The kernel -----------------------------------------------------------------------------------

    def emit(self) -> KernelInterface:
        function, schedule, problem = self._function, self._schedule, self._problem
        with function.body():
            self._memory = memory = SharedMemory(self._request.architecture)
            self._threads = threads = Threads.read()
            self._units = Units.read(1)
            self._make_operands()
            lines = schedule.columns // WIDTH
            self._store = make_store(
                function, memory, problem, self._directions, threads, consumers=1, lines=lines
            )
            self._epilogue = PixelEpilogue(
                function, problem, self._directions, threads, self._store
            )
            with elected_thread(threads, 0):
                self._store.prefetch()
            function.launch_dependents()
            lengths = (lines, WIDTH, self._blocks * FILTERS)
            self._tiles = LineTiles.of(function, problem, lengths)
            self._fill_shared()
            self._store.begin()
            self._compute()
            self._store.finish()
            grid = self._tiles.grid(function, self._ctas)
        return function.interface(grid, memory.bytes)

    def _make_operands(self) -> None:
        problem, window = self._problem, self._problem.window
        self._filters = Chunks.of_filters(window)
        self._patches = Chunks.of_patch(self._patch)
        self._multiplier = Multiplier(
            self._schedule.columns, self._filters, self._patches, problem.element
        )
        self._filters_at = self._memory.allocate(self._blocks * self._filters.bytes)
        self._patches_at = self._memory.allocate(PATCHES * self._patches.bytes)

    def _fill_shared(self) -> None:
        """What stays: filters, and the zeros beside patches. The barrier comes with a patch."""
        function, problem, thread = self._function, self._problem, self._threads.thread
        if not self._request.constant_weights:
            function.await_predecessors()
        fill = FilterFill(function, problem, problem.window, problem.filters, self._blocks)
        fill.emit(self._memory, self._filters_at, thread, WARPGROUP)
        clear_zeros(self._memory, self._patch, self._patches_at, thread, WARPGROUP)
        if self._request.constant_weights:
            function.await_predecessors()

    def _compute(self) -> None:
        """Tile after tile."""
        units, count = self._units, self._tiles.count
        fill = PatchFill(
            self._function, self._problem, self._patch, self._threads.thread, WARPGROUP
        )

        def load(tile: Num) -> list[Value]:
            return fill.load(self._tiles.indices(tile), compare("ult", tile, count))

        init = [constant(0), *load(units.unit)]
        with loop(units.unit, count, units.units, init) as each:
            stage, *words = each.carried
            patch = add(mul(stage, self._patches.bytes), self._patches_at)
            # The products that read this patch before ended ahead of the last tile's barrier.
            fill.store(words, self._memory, patch)
            publish_to_tma()
            gpu.barrier()
            words = self._tile(each.index, patch, lambda: load(add(each.index, units.units)))
            each.next = [xor(stage, 1), *words]

    def _tile(self, tile: Value, patch: Num, load: Loader) -> list[Value]:
        """Computes a tile; returns what `load` does, which is on its way meanwhile."""
        indices = self._tiles.indices(tile)
        if self._blocks == 1:
            return self._block(indices, patch, 0, load)
        words = load()
        with loop(0, self._blocks) as each:
            self._block(indices, patch, each.index, list)
        return words

    def _block(self, indices: dict[int, Num], patch: Num, block: Num, load: Loader) -> list[Value]:
        """The same for one block of filters."""
        problem, memory = self._problem, self._memory
        filters = add(mul(block, self._filters.bytes), self._filters_at)
        rows = Chunks.low_word(add(memory.base, filters))
        columns = Chunks.low_word(add(memory.base, patch))
        undefined = [self._multiplier.undefined()]
        sums = multiply_stage([(self._multiplier, rows, columns)], undefined, fresh=True)
        words = load()
        batch = tuple(indices[dim] for dim in range(problem.m))
        first = add(indices[problem.n], mul(block, FILTERS))
        origin = TileOrigin(batch, first, indices[problem.m])
        tile = self._epilogue.tile(origin, 1, self._schedule.columns)
        tile.prefetch()
        await_groups(0)
        tile.emit([[self._multiplier.sums(each) for each in sums]])
        return words
