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
    TF32_HALO_CANDIDATES,
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
    [covered] = _shape(images, height, width).covered(lines)
    tiles = images * -(-height // lines) * -(-width // 8)
    assert covered * pixels == pytest.approx(tiles * 8 * lines)


@given(seed=st.integers(0, 1000), pixels=st.integers(1, 10**6))
@examples(30)
def test_means_of_many_shapes(seed: int, pixels: int) -> None:
    """Times that grow with the pixels as they should are what they are; others lie between those
    of images that are about as large, and neighbours of the largest count for the largest."""
    rng = np.random.default_rng(seed)
    sizes = np.sort(rng.integers(1, 10**6, 50)).astype(float)
    shapes = ImageShapes(sizes, sizes, np.ones(50))
    constant = np.full((50, 1), 1.5)
    at = np.array([float(pixels)])
    assert shapes.means(constant, at) == pytest.approx(1.5)
    noisy = np.exp(rng.normal(size=(50, 2))) * 1e-3
    [means] = shapes.means(noisy, at)
    assert (noisy.min(axis=0) <= means).all() and (means <= noisy.max(axis=0)).all()
    # Far beyond what a launch takes, times are proportional to the pixels.
    [large] = shapes.means(1e6 * sizes[:, np.newaxis], at)
    assert large == pytest.approx(1e6 * pixels, rel=1e-3)


def test_time_at_the_shape_itself() -> None:
    """Of one shape, or of all that have a number of pixels, the mean is over just these."""
    few = ImageShapes(*(np.array(each) for each in ([4.0] * 20 + [9.0], [2.0] * 21, [2.0] * 21)))
    times = np.array([[1.0]] * 10 + [[4.0]] * 10 + [[50.0]])
    assert few.means(times, np.array([4.0])) == pytest.approx(2.0)


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
    rounded = replace(traits, element_bytes=4, result_bytes=4)
    assert set(TF32_HALO_CANDIDATES) < set(
        candidates_for(rounded, ALL_CANDIDATES, maps=True, rounds=True)
    )
    assert not any(s.tf32 for s in candidates_for(rounded, ALL_CANDIDATES))
    plain = candidates_for(GemmTraits(4, 4), ALL_CANDIDATES, maps=True, rounds=True)
    assert plain and not set(TF32_HALO_CANDIDATES) & set(plain)


@pytest.mark.parametrize(
    ("half", "tf32"), [*zip(HALO_CANDIDATES, TF32_HALO_CANDIDATES, strict=True)], ids=str
)
def test_tf32_is_like_16_bits_with_as_many_bytes(half: GemmSchedule, tf32: GemmSchedule) -> None:
    """Of half as many channels; only results are larger."""
    times = []
    for schedule, width, channels in ((half, 2, half.depth), (tf32, 4, tf32.depth)):
        window = replace(WINDOW, channels=channels)
        halo = HaloTraits(window, 64, False, _shape(1, 56, 56))
        traits = GemmTraits(
            element_bytes=width, result_bytes=2, lhs_share=1 / 9, halo=halo, conv=True
        )
        sizes = GemmSizes(56 * 56, 64, 9 * 128 // width, 1, traits)
        times.append(CostModel(H200, [schedule], traits).parts(sizes))
    assert times[0].tensor_cores == pytest.approx(times[1].tensor_cores)
    assert times[0].time == pytest.approx(times[1].time)


def test_what_fits() -> None:
    """Resident filters are those of one tile; large windows leave no room for pixels."""
    few, many = (_traits(_shape(1, 56, 56), filters=filters) for filters in (64, 72))
    assert fitting(H200, HALO_CANDIDATES, few) == tuple(s for s in HALO_CANDIDATES if s.depth == 64)
    assert not any(each.resident for each in fitting(H200, HALO_CANDIDATES, many))
    wide = _traits(_shape(1, 56, 56), HaloWindow((31, 31), (1, 1), 64))
    assert not fitting(H200, HALO_CANDIDATES, wide)


@pytest.mark.parametrize(
    ("channels", "share"), [(8, 1 / 2), (32, 1 / 2), (40, None), (64, None), (96, 3 / 4)]
)
def test_half_a_block_of_channels(channels: int, share: float | None) -> None:
    """Stages of 32 channels are for those that would be filled up by 32 or more, and multiply
    nothing for those that there are not."""
    window = replace(WINDOW, channels=channels)
    traits = _traits(_shape(1, 56, 56), window, filters=128)
    pair = [GemmSchedule.parse(f"halo_64x112x{end}") for end in ("64_s9_w1", "32_s12_w1")]
    found = fitting(H200, pair, traits)
    assert found == tuple(pair if share else pair[:1])
    sizes = GemmSizes(56 * 56, 128, 9 * -(-channels // 64) * 64, 1, traits)
    [work] = CostModel(H200, found, traits).parts(sizes).tensor_cores
    assert share is None or work[1] / work[0] == pytest.approx(share)


@pytest.mark.parametrize("schedule", HALO_CANDIDATES, ids=str)
def test_tiles_in_shared_memory(schedule: GemmSchedule) -> None:
    """They begin where the swizzle pattern does, and consumers find theirs in the same places."""
    window = replace(WINDOW, channels=schedule.depth)
    tile = HaloTile.of(schedule, window)
    assert tile.pitch % 1024 == 0
    assert tile.bytes <= tile.pitch < tile.bytes + 1024
    count = pixel_tiles(schedule, window, 227 * 1024 - 1024 - 8192 * schedule.consumers)
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
