# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Convolutions on a simulated GPU against float64, and their code."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference import sass
from reference.hopper.memory import SimulationError
from shapejit.gpu.interface import Im2colMap
from shapejit.passes.nvgpu.errors import LoweringError
from unit.cpu_convs import Layer
from unit.cpu_kernels import examples
from unit.ptx_samples import needs_ptxas
from unit.simulated_convs import check, lowered

# Small tiles and short rings, so that few elements make many tiles and laps.
WHOLE = "persistent_64x64x64_s2_w1"
SWAPPED = "swapped_64x16x64_s3_w1"
SMALL = "small_m_64x16x64_s3_w1"
SPLIT = "small_m_64x16x64_s3_w1_k2"
STREAM = "persistent_64x64x64_s2_w1_stream"
HANDED_OVER = "swapped_64x16x64_s3_w1_k2"  # K shared through scratch memory
GATHERED = "unaligned_64x32x64_s3_w1"
SCHEDULES = [WHOLE, SWAPPED, SMALL, SPLIT, STREAM, HANDED_OVER]

PLAIN = Layer(
    (3, 3), inside=16, outside=24, padding=((1, 1), (1, 1)), element="bf16", panel=1, epilogue=True
)

WINDOWS = {
    "no padding": Layer((3, 2), inside=8, outside=8, element="bf16", panel=1),
    "stride": replace(PLAIN, strides=(2, 3)),
    "dilation": replace(PLAIN, dilations=(2, 3), padding=((2, 2), (3, 3))),
    "padding on one side": replace(PLAIN, padding=((2, 0), (0, 1)), strides=(2, 1)),
    "cropping": replace(PLAIN, padding=((-1, 0), (1, -1))),
    "1 x 1 with a stride": Layer(
        (1, 1), inside=72, outside=8, strides=(2, 2), element="bf16", panel=1
    ),
    "one dim": Layer((5,), inside=8, outside=16, padding=((2, 2),), element="bf16", panel=1),
    "three dims": Layer((2, 3, 3), inside=8, outside=8, strides=(1, 2, 1), element="bf16", panel=1),
    "blocks of channels": replace(PLAIN, inside=136),
    "groups": replace(PLAIN, inside=64, outside=8, groups=3),
    "images as batches": replace(PLAIN, last=(True, False)),
    "f16": replace(PLAIN, element="f16"),
}

IMAGES = st.tuples(st.integers(0, 9), st.integers(0, 13), st.integers(1, 6))


def _fits(layer: Layer, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """An image of the layer's rank on which the window has a place, or none because it is empty."""
    image = tuple(max(size, 1) for size in sizes[: layer.rank])
    return image if layer.is_legal(image) else tuple(max(size, 7) for size in image)


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(batch=st.integers(0, 4), sizes=IMAGES, block=st.booleans(), seed=st.integers(0, 1000))
@examples(3)
def test_any_sizes(
    schedule: str, batch: int, sizes: tuple[int, ...], block: bool, seed: int
) -> None:
    check(PLAIN, schedule, batch, _fits(PLAIN, sizes), block=block, seed=seed)


@pytest.mark.parametrize("name", WINDOWS)
@given(batch=st.integers(1, 3), sizes=IMAGES)
@examples(2)
def test_windows(name: str, batch: int, sizes: tuple[int, ...]) -> None:
    layer = WINDOWS[name]
    check(layer, WHOLE, batch, _fits(layer, sizes))


def test_images_smaller_than_the_window() -> None:
    """Only padding surrounds a single pixel; or the window has no place at all."""
    check(PLAIN, WHOLE, 3, (1, 1))
    valid = WINDOWS["no padding"]
    assert valid.pixels((2, 5)) == [0, 4]
    for block in (False, True):
        assert check(valid, WHOLE, 3, (2, 5), block=block).numel() == 0


def test_a_kernel_that_starts_early() -> None:
    check(PLAIN, SMALL, 2, (5, 7), block=True, ahead=True)


def test_tiles_shared_along_taps_and_channels() -> None:
    check(replace(PLAIN, inside=200), STREAM, 1, (6, 12), multiprocessors=7)


@pytest.mark.parametrize("schedule", [WHOLE, SPLIT])
def test_an_infinity_stays_in_its_group(schedule: str) -> None:
    """Also where a part of K is nothing but zeros."""
    import torch

    layer = replace(PLAIN, inside=64, groups=2, epilogue=False, taps=(1, 1), padding=())
    operands = layer.operands(1, (3, 3))
    operands[0][:, 64:] = torch.inf
    got = lowered(layer, schedule).run(operands)
    assert got[:, : layer.outside].isfinite().all()
    assert not got[:, layer.outside :].isfinite().any()


def test_the_map_says_where_the_window_goes() -> None:
    [map_] = (
        each
        for each in lowered(WINDOWS["padding on one side"], WHOLE).interface.parameters
        if isinstance(each, Im2colMap) and each.pixels == 64
    )
    # From the fastest moving dim on: width, then height.
    assert (map_.lower, map_.upper, map_.steps) == ((0, -2), (-1, -2), (1, 2))
    assert (map_.channels, map_.swizzle) == (64, 128)


def test_maps_in_memory_are_acquired(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel in block form without the fence is wrong."""
    from shapejit.passes.nvgpu.tma import Descriptor

    monkeypatch.setattr(Descriptor, "acquire", lambda self: None)
    layer = replace(PLAIN, outside=32)  # not lowered before
    with pytest.raises(SimulationError, match="without the acquire fence"):
        check(layer, WHOLE, 1, (4, 4), block=True)
    lowered.cache_clear()


# Without tensor maps ------------------------------------------------------------------------------

GATHERS = {
    "whole chunks": replace(PLAIN, inside=20),
    "three channels": Layer(
        (7, 7),
        inside=3,
        outside=16,
        padding=((3, 3), (3, 3)),
        strides=(2, 2),
        element="bf16",
        panel=1,
        epilogue=True,
    ),
    "pairs of channels in groups": Layer(
        (3, 3),
        inside=6,
        outside=3,
        groups=2,
        padding=((1, 0), (-1, 1)),
        dilations=(2, 1),
        element="bf16",
        panel=1,
    ),
    "transposed": Layer(
        (4, 3), inside=6, outside=5, spreads=(2, 3), padding=((2, 1), (2, 2)), element="bf16"
    ),
    "channels first": replace(PLAIN, last=(False, False), panel=None),
    "one dim": Layer((3,), inside=12, outside=8, element="f16", panel=1),
    "three dims": Layer(
        (3, 2, 3), inside=2, outside=8, padding=((1, 1), (0, 0), (1, 1)), element="bf16", panel=1
    ),
    "depthwise": Layer(
        (3, 3), inside=1, outside=1, groups=5, padding=((1, 1), (1, 1)), element="bf16"
    ),
}


@pytest.mark.parametrize("name", GATHERS)
@given(batch=st.integers(0, 3), sizes=IMAGES, block=st.booleans(), seed=st.integers(0, 1000))
@examples(2)
def test_gathered(name: str, batch: int, sizes: tuple[int, ...], block: bool, seed: int) -> None:
    layer = GATHERS[name]
    check(layer, GATHERED, batch, _fits(layer, sizes), block=block, seed=seed)


def test_two_gathering_consumers() -> None:
    check(GATHERS["whole chunks"], "unaligned_128x32x64_s3_w2", 2, (9, 11))


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (replace(PLAIN, inside=20), "stride of 20 elements; TMA needs multiples of 8"),
        (replace(PLAIN, panel=None), "between channels; pack it first"),
        (replace(PLAIN, inside=72, groups=2), "in groups of 72 channels"),
        (replace(PLAIN, spreads=(2, 1)), "with zeros between pixels"),
        (replace(PLAIN, padding=((200, 0), (0, 0))), "beyond what TMA takes"),
        (replace(PLAIN, strides=(9, 1)), "beyond what TMA takes"),
        (replace(PLAIN, last=(False, True)), "between channels"),
    ],
)
def test_what_tma_does_not_read(layer: Layer, message: str) -> None:
    with pytest.raises(LoweringError, match=f"{message}.*family unaligned"):
        lowered(layer, WHOLE)
    lowered(layer, GATHERED)


def test_unknown_schedules() -> None:
    with pytest.raises(LoweringError, match="a variant without a schedule: 'fast'"):
        lowered(PLAIN, "fast")


# Code ---------------------------------------------------------------------------------------------

CODE = [
    "persistent_128x256x64_s4_w2",
    "swapped_256x112x64_s4_w2",
    "small_m_64x32x64_s7_w1_k4",
    "unaligned_64x64x64_s3_w1",
]


@needs_ptxas
@sass.needs_nvdisasm
@pytest.mark.parametrize("schedule", CODE)
def test_machine_code(schedule: str) -> None:
    layer = replace(PLAIN, inside=64, outside=128)
    if schedule.startswith("unaligned"):
        layer = replace(GATHERS["three channels"], outside=128)
    made = lowered(layer, schedule, block=True, ahead=True).assemble()
    assert not made.warnings
    [function] = sass.disassemble(made.data).values()
    assert not function.local_memory
    assert not function.read_never_written


# Depthwise ----------------------------------------------------------------------------------------

ALONE = Layer((3, 3), inside=1, outside=1, groups=16, padding=((1, 1), (1, 1)), element="bf16")

#: A layer and a schedule each.
DEPTHWISE = {
    "single channels": (replace(ALONE, groups=5, epilogue=True), "depthwise_v1_2x3"),
    "a tile": (replace(ALONE, taps_first=True, epilogue=True), "depthwise_v4_4x4"),
    "blocks of channels": (replace(ALONE, groups=96, taps_first=True), "depthwise_v2_2x2"),
    "torch's filters": (replace(ALONE, groups=24), "depthwise_v8_1x2"),
    "one pixel": (replace(ALONE, taps_first=True, epilogue=True), "depthwise_v8_1x1"),
    "strides and dilations": (
        replace(
            ALONE, taps=(3, 5), strides=(2, 2), dilations=(1, 2), padding=((1, 1), (2, 1)),
            epilogue=True,
        ),
        "depthwise_v4_2x4",
    ),
    "5 x 5": (
        replace(
            ALONE, taps=(5, 5), padding=((2, 2), (2, 2)), groups=20, taps_first=True, element="f16"
        ),
        "depthwise_v2_2x4",
    ),
    "rows of taps": (
        replace(ALONE, taps=(7, 7), padding=((3, 3), (3, 3)), taps_first=True), "depthwise_v8_1x4"
    ),
    "rows of torch's taps": (replace(ALONE, taps=(7, 7), groups=4), "depthwise_v4_1x2"),
    "cropping": (replace(ALONE, padding=((-1, 0), (1, -1)), taps_first=True), "depthwise_v4_2x2"),
    "one dim": (
        Layer((3,), inside=1, outside=1, groups=12, padding=((1, 1),), element="f16"),
        "depthwise_v4_1x2",
    ),
    "three dims": (
        Layer(
            (2, 3, 3), inside=1, outside=1, groups=6, padding=((1, 0), (1, 1), (0, 1)),
            element="bf16", taps_first=True, epilogue=True,
        ),
        "depthwise_v2_2x2",
    ),
    "float32": (
        replace(ALONE, element="f32", taps_first=True, groups=24, epilogue=True), "depthwise_v4_4x4"
    ),
    "float32 with a stride": (
        replace(ALONE, element="f32", taps=(5, 3), strides=(2, 1), groups=10, epilogue=True),
        "depthwise_v2_2x2",
    ),
    "rows of float32": (
        replace(ALONE, element="f32", taps=(7, 7), padding=((3, 3), (0, 5)), taps_first=True),
        "depthwise_v4_1x4",
    ),
    "line of float32": (
        Layer((4,), inside=1, outside=1, groups=3, padding=((1, 2),)), "depthwise_v1_1x2"
    ),
    "channels first": (replace(ALONE, groups=6, last=(False, False)), "depthwise_v1_2x2"),
    "a result with channels first": (
        replace(ALONE, taps_first=True, last=(True, False), epilogue=True), "depthwise_v4_2x2"
    ),
    "float32 with channels first behind": (
        replace(ALONE, element="f32", last=(True, False)), "depthwise_v4_1x2"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEPTHWISE)
@given(batch=st.integers(0, 3), sizes=IMAGES, block=st.booleans())
@examples(4)
def test_depthwise(name: str, batch: int, sizes: tuple[int, ...], block: bool) -> None:
    layer, schedule = DEPTHWISE[name]
    check(layer, schedule, batch, _fits(layer, sizes), block=block, ahead=block)


def test_what_is_no_depthwise_convolution() -> None:
    with pytest.raises(LoweringError, match="is no depthwise convolution"):
        lowered(PLAIN, "depthwise_v8_1x4")
    with pytest.raises(LoweringError, match="8 of them are not known to lie side by side"):
        lowered(DEPTHWISE["one dim"][0], "depthwise_v8_1x4")
    with pytest.raises(LoweringError, match="names no depthwise schedule"):
        lowered(ALONE, "depthwise_v3_1x4")
    with pytest.raises(LoweringError, match="7 x 7 taps of 8 channels, which a thread does not"):
        lowered(DEPTHWISE["rows of taps"][0], "depthwise_v8_2x4")


@needs_ptxas
@sass.needs_nvdisasm
def test_machine_code_of_depthwise_layers() -> None:
    layer, schedule = DEPTHWISE["a tile"]
    made = lowered(layer, schedule, block=True, ahead=True).assemble()
    [function] = sass.disassemble(made.data).values()
    assert not function.local_memory
    assert not function.read_never_written
    # A kernel that starts early reads what is written while it runs: that is not constant.
    loads = function.select("LDG")
    assert loads
    assert not any("CONSTANT" in each.opcode for each in loads)
