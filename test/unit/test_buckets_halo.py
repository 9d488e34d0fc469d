# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The cost of convolutions in tiles with a halo: how many tiles there are, who is a candidate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapejit.passes.buckets.bindings import Bindings
from shapejit.passes.buckets.device import H200
from shapejit.passes.buckets.halo import HaloTraits, ImageShapes
from shapejit.passes.buckets.model import CostModel, fitting
from shapejit.passes.buckets.problem import GemmSizes, GemmTraits
from shapejit.passes.buckets.samples import Samples
from shapejit.passes.nvgpu.conv.halo_window import HaloTile, HaloWindow, pixel_tiles
from shapejit.passes.nvgpu.schedule import (
    ALL_CANDIDATES,
    CANDIDATES,
    HALO_CANDIDATES,
    GemmSchedule,
    candidates_for,
)
from shapejit.symbolic import Expr
from unit.cpu_kernels import examples

WINDOW = HaloWindow((3, 3), (1, 1), 64)
SIZES = st.integers(1, 300)


def _shape(images: int, height: int, width: int) -> ImageShapes:
    """That of one result only."""
    every = (images * height * width, height, width)
    return ImageShapes(*(np.array([float(each)]) for each in every))


def _traits(shapes: ImageShapes, window: HaloWindow = WINDOW, filters: int = 64) -> GemmTraits:
    share = 1 / window.count
    return GemmTraits(lhs_share=share, halo=HaloTraits(window, filters, False, shapes))


@given(images=st.integers(1, 20), height=SIZES, width=SIZES, lines=st.integers(1, 32))
def test_tiles_of_one_shape(images: int, height: int, width: int, lines: int) -> None:
    pixels = images * height * width
    [covered] = _shape(images, height, width).covered(lines, np.array([float(pixels)]))
    tiles = images * -(-height // lines) * -(-width // 8)
    assert covered * pixels == pytest.approx(tiles * 8 * lines)


@given(seed=st.integers(0, 1000), lines=st.integers(1, 32), pixels=st.integers(1, 10**6))
@examples(30)
def test_means_of_many_shapes(seed: int, lines: int, pixels: int) -> None:
    """They lie between those of the shapes that there are, whatever is asked."""
    rng = np.random.default_rng(seed)
    height, width = rng.integers(1, 200, 50), rng.integers(1, 200, 50)
    order = np.argsort(height * width)
    shapes = ImageShapes(*(each[order].astype(float) for each in (height * width, height, width)))
    each = np.ceil(height / lines) * lines / height * np.ceil(width / 8) * 8 / width
    [covered] = shapes.covered(lines, np.array([float(pixels)]))
    assert each.min() - 1e-9 <= covered <= each.max() + 1e-9


def test_shapes_of_a_program() -> None:
    """All images that launches can bind, empty ones left out."""
    height = Expr.symbol(0)
    launches = ({0: Expr.symbol(3)}, {0: Expr.symbol(3) * 2})
    bindings = Bindings(launches, None, {})  # type: ignore[arg-type]
    samples = Samples({3: np.array([0, 1, 5])}, complete=True)
    shapes = ImageShapes.of((height * 4, height, Expr.const(4)), bindings, samples)
    assert shapes.pixels.tolist() == [4, 8, 20, 40]
    assert shapes.heights.tolist() == [1, 2, 5, 10]
    assert shapes.widths.tolist() == [4] * 4
    unknown = ImageShapes.of((height * 4, height, height), replace(bindings, launches=()), samples)
    assert len(unknown.pixels)


def test_candidates() -> None:
    """Only convolutions whose taps share pixels have those with a halo."""
    traits = _traits(_shape(1, 56, 56))
    assert set(HALO_CANDIDATES) < set(candidates_for(traits, ALL_CANDIDATES))
    assert not set(HALO_CANDIDATES) & set(candidates_for(GemmTraits(), ALL_CANDIDATES))
    assert not set(HALO_CANDIDATES) & set(candidates_for(GemmTraits(4, 4), ALL_CANDIDATES))


def test_what_fits() -> None:
    """Resident filters are those of one tile; large windows leave no room for pixels."""
    few, many = (_traits(_shape(1, 56, 56), filters=filters) for filters in (64, 72))
    assert fitting(H200, HALO_CANDIDATES, few) == HALO_CANDIDATES
    assert not any(each.resident for each in fitting(H200, HALO_CANDIDATES, many))
    wide = _traits(_shape(1, 56, 56), HaloWindow((31, 31), (1, 1), 64))
    assert not fitting(H200, HALO_CANDIDATES, wide)


@pytest.mark.parametrize("schedule", HALO_CANDIDATES, ids=str)
def test_tiles_in_shared_memory(schedule: GemmSchedule) -> None:
    """They begin where the swizzle pattern does, and consumers find theirs in the same places."""
    tile = HaloTile.of(schedule, WINDOW)
    assert tile.pitch % 1024 == 0
    assert tile.bytes <= tile.pitch < tile.bytes + 1024
    count = pixel_tiles(schedule, WINDOW, 227 * 1024 - 1024 - 8192 * schedule.consumers)
    assert count >= 2
    assert not schedule.resident or count % schedule.consumers == 0


@pytest.mark.parametrize(
    ("images", "height", "width", "channels", "filters", "expected"),
    [
        (16, 224, 224, 64, 64, "resident"),
        (16, 56, 56, 64, 64, "resident"),
        (4, 64, 64, 320, 320, "128x128"),
    ],
)  # fmt: skip
def test_what_is_chosen(
    images: int, height: int, width: int, channels: int, filters: int, expected: str
) -> None:
    """Layers at which such kernels were 1.2 to 1.5 times as fast as those in im2col mode."""
    window = replace(WINDOW, channels=channels)
    traits = _traits(_shape(images, height, width), window, filters)
    schedules = fitting(H200, candidates_for(traits, (*CANDIDATES, *HALO_CANDIDATES)), traits)
    sizes = GemmSizes(images * height * width, filters, 9 * channels, 1, traits)
    [times] = CostModel(H200, schedules, traits).times(sizes)
    best = next(s for s in (schedules[i] for i in np.argsort(times)) if s.family == "halo")
    assert expected in str(best)


def test_a_resident_kernel_loads_its_filters_once() -> None:
    """So it is slower on a tile or two, and faster on many."""
    pair = [GemmSchedule.parse(f"halo_64x112x64_s9_{end}") for end in ("w1", "w2_resident")]
    ratios = []
    for images in (1, 64):
        traits = _traits(_shape(images, 56, 56))
        [times] = CostModel(H200, pair, traits).times(
            GemmSizes(images * 56 * 56, 64, 576, 1, traits)
        )
        ratios.append(times[1] / times[0])
    assert ratios[0] > 1 > ratios[1]
