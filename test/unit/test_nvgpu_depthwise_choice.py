# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which schedules depthwise convolutions get, and their machine code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import mlir.ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference import sass
from shapejit import ir as sir
from shapejit.passes.buckets.device import H200
from shapejit.passes.nvgpu.conv.depthwise_choice import candidates, choose, stake
from shapejit.passes.nvgpu.conv.depthwise_model import DepthwiseModel
from shapejit.passes.nvgpu.conv.depthwise_schedule import DepthwiseSchedule, lanes_of
from shapejit.passes.nvgpu.conv.problem import conv_problem
from shapejit.passes.nvgpu.families import STAKE
from unit.cpu_convs import Layer, kernel_text
from unit.cpu_kernels import examples
from unit.ptx_samples import needs_ptxas
from unit.simulated_convs import lowered

MOBILE = Layer(
    (3, 3), inside=1, outside=1, groups=96, padding=((1, 1), (1, 1)), element="bf16",
    taps_first=True, epilogue=True,
)  # fmt: skip

LAYERS = {
    "3 x 3": MOBILE,
    "a stride": replace(MOBILE, strides=(2, 2)),
    "5 x 5": replace(MOBILE, taps=(5, 5), padding=((2, 2), (2, 2)), groups=120),
    "7 x 7": replace(MOBILE, taps=(7, 7), padding=((3, 3), (3, 3))),
    "odd channels": replace(MOBILE, groups=37),
    "one dim": replace(MOBILE, taps=(9,), padding=((4, 4),)),
    "float32": replace(MOBILE, element="f32"),
}


@contextmanager
def kernel_of(layer: Layer) -> Iterator[Any]:
    """The kernel of a layer."""
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(kernel_text(layer))
        yield sir.kernels(module)["k"]


def schedules_of(layer: Layer) -> list[str]:
    """The schedules that are considered for a layer."""
    with kernel_of(layer) as kernel:
        return list(map(str, candidates(conv_problem(kernel))))


@pytest.mark.parametrize("name", LAYERS)
@given(images=st.integers(1, 64), side=st.integers(1, 300), seed=st.integers(0, 99))
@examples(6)
def test_every_size_has_one_variant(name: str, images: int, side: int, seed: int) -> None:
    layer = LAYERS[name]
    bounds = {0: (1, images)} | dict.fromkeys(range(1, 1 + layer.rank), (1, side))
    with kernel_of(layer) as kernel:
        axes, buckets = choose(kernel, bounds, H200)
        allowed = set(map(str, candidates(conv_problem(kernel))))
    assert {variant for _, _, variant, _ in buckets} <= allowed
    if axes:
        at = axes[0].evaluate([1 + seed % images, *[1 + seed % side] * layer.rank])
        ends = [-1, *(upper[0] for _, upper, *_ in buckets)]
        assert [lower[0] for lower, *_ in buckets] == [end + 1 for end in ends[:-1]]
        assert ends[-1] is None
        assert at >= 0
    else:
        assert len(buckets) == 1


def test_tiles_grow_with_the_pixels() -> None:
    with kernel_of(MOBILE) as kernel:
        [_], buckets = choose(kernel, {0: (1, 16), 1: (1, 128), 2: (1, 128)}, H200)
    tiles = [DepthwiseSchedule.parse(variant) for _, _, variant, _ in buckets]
    sizes = [tile.channels * tile.pixels for tile in tiles]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    assert tiles[-1].pixels >= 8


def test_more_is_at_stake_for_more_pixels() -> None:
    sizes = {0: (1, 64), 1: (1, 512), 2: (1, 512)}
    with kernel_of(MOBILE) as kernel:
        axes, buckets = choose(kernel, sizes, H200)
        stakes = [stake(kernel, sizes, H200, axes, bucket) for bucket in buckets]
        [whole] = [stake(kernel, sizes, H200, [], ((), (), buckets[0][2], ""))]
    assert stakes == sorted(stakes)
    assert stakes[0] == STAKE < stakes[-1]
    assert whole > STAKE


@given(images=st.integers(1, 64), side=st.integers(1, 200))
@examples(10)
def test_more_pixels_take_no_less(images: int, side: int) -> None:
    with kernel_of(MOBILE) as kernel:
        conv = conv_problem(kernel)
        for schedule in candidates(conv):
            model = DepthwiseModel.of(conv, schedule)
            time = model.time(images, (side, side), H200)
            assert 0 < time <= model.time(images + 1, (side, side), H200)
            assert time <= model.time(images, (side + 1, side), H200)


def test_neighbouring_threads_share_lines_of_channels() -> None:
    """Lines of 128 bytes are 16 lanes; where pixels start within lines, all of a pixel."""
    wanted = {32: 8, 96: 24, 144: 36, 192: 16, 960: 16, 120: 30, 148: 37, 8: 2}
    for groups, lanes in wanted.items():
        with kernel_of(replace(MOBILE, groups=groups)) as kernel:
            assert lanes_of(conv_problem(kernel), 4) == lanes
    with kernel_of(replace(MOBILE, groups=96, element="f32")) as kernel:
        assert lanes_of(conv_problem(kernel), 4) == 8


@given(chunks=st.integers(1, 400), channels=st.sampled_from([1, 2, 4, 8]))
def test_lanes_divide_channels(chunks: int, channels: int) -> None:
    with kernel_of(replace(MOBILE, groups=chunks * channels)) as kernel:
        lanes = lanes_of(conv_problem(kernel), channels)
    assert chunks % lanes == 0
    assert lanes == chunks or 32 <= lanes * channels * 2 <= 1024


@needs_ptxas
@sass.needs_nvdisasm
@pytest.mark.parametrize("name", LAYERS)
def test_machine_code(name: str) -> None:
    """No spills, and no address or condition for each tap."""
    layer = LAYERS[name]
    with kernel_of(layer) as kernel:
        schedules = candidates(conv_problem(kernel))
    for schedule in schedules[-2:]:
        made = lowered(layer, str(schedule), block=True, ahead=True).assemble()
        [function] = sass.disassemble(made.data).values()
        assert not function.local_memory, schedule
        # A half is copied by PRMT, which leaves the other half of a register as it is.
        assert schedule.channels == 1 or not function.read_never_written, schedule
    if schedules[-1].rows * schedules[-1].channels >= 8:
        assert 4 * function.count("FFMA") > len(function.instructions)
