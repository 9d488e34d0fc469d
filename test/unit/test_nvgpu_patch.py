# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Convolutions over few channels, on a simulated GPU against float64, and their code."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference import sass
from reference.hopper.memory import SimulationError
from shapejit.gpu.interface import Im2colMap, TensorMap
from shapejit.passes.nvgpu.conv.halo_window import WIDTH
from shapejit.passes.nvgpu.conv.patch import SCHEDULE
from shapejit.passes.nvgpu.conv.patch_window import Patch, PatchWindow
from shapejit.passes.nvgpu.errors import LoweringError
from unit.cpu_convs import Layer
from unit.cpu_kernels import examples
from unit.ptx_samples import needs_ptxas
from unit.simulated_convs import check, lowered

# A small tile, so that few pixels make many; with an odd number of rows.
SMALL = "patch_64x24x16_s2_w1"

#: The first layer of ResNets; two pixels a unit, of which the last one of a row is a tail.
STEM = Layer(
    (7, 7),
    inside=3,
    outside=16,
    padding=((3, 3), (3, 3)),
    strides=(2, 2),
    element="bf16",
    panel=1,
    epilogue=True,
)

LAYERS = {
    "7 x 7 by 2": STEM,
    "3 x 3": replace(STEM, taps=(3, 3), strides=(1, 1), padding=((1, 1), (1, 1))),
    "3 x 3 by 2": replace(STEM, taps=(3, 3), padding=((1, 1), (1, 1))),
    "4 x 4 by 4": replace(STEM, taps=(4, 4), strides=(4, 4), padding=()),
    "5 x 5 by 3": replace(STEM, taps=(5, 5), strides=(3, 3), padding=((2, 1), (0, 2))),
    "5 x 5 by 2, six channels": replace(STEM, taps=(5, 5), inside=6, padding=()),
    "5 x 3 by 4, tails": replace(STEM, taps=(5, 3), strides=(1, 4), padding=()),
    "dilation": replace(
        STEM, taps=(3, 3), strides=(1, 2), dilations=(2, 3), padding=((2, 2), (-1, 3))
    ),
    "1 x 1": replace(STEM, taps=(1, 1), strides=(1, 1), padding=()),
    "one channel": replace(STEM, inside=1, taps=(2, 2), padding=()),
    "two channels": replace(STEM, inside=2, taps=(2, 4), padding=()),
    "four channels": replace(STEM, inside=4, taps=(3, 3), strides=(1, 1), padding=()),
    "eight channels, f16": replace(STEM, inside=8, taps=(3, 3), padding=(), element="f16"),
    "blocks of filters": replace(STEM, taps=(2, 2), outside=136, padding=()),
    "an odd number of filters": replace(STEM, taps=(3, 3), outside=13),
    "channels first": replace(STEM, taps=(3, 3), last=(False, False), panel=None),
}

IMAGES = st.tuples(st.integers(1, 9), st.integers(1, 19))


def _fits(layer: Layer, image: tuple[int, ...]) -> tuple[int, ...]:
    """An image on which the window has a place, or none because it is empty."""
    return image if layer.is_legal(image) else tuple(max(size, 7) for size in image)


@pytest.mark.parametrize("name", LAYERS)
@given(batch=st.integers(0, 2), image=IMAGES, block=st.booleans(), seed=st.integers(0, 1000))
@examples(2)
def test_any_sizes(name: str, batch: int, image: tuple[int, ...], block: bool, seed: int) -> None:
    layer = LAYERS[name]
    check(layer, SMALL, batch, _fits(layer, image), block=block, seed=seed)


@pytest.mark.parametrize("name", ["7 x 7 by 2", "3 x 3", "blocks of filters"])
def test_several_tiles_a_cta(name: str) -> None:
    check(LAYERS[name], SMALL, 2, (9, 19), multiprocessors=1)


def test_images_smaller_than_the_window() -> None:
    """Only padding surrounds a single pixel; or the window has no place at all."""
    check(STEM, SMALL, 3, (1, 1))
    valid = LAYERS["four channels"]
    for block in (False, True):
        assert check(valid, SMALL, 3, (2, 5), block=block).numel() == 0


@pytest.mark.parametrize("batch", [0, 2])
def test_a_kernel_that_starts_early(batch: int) -> None:
    check(STEM, SMALL, batch, (9, 21), block=True, ahead=True)


@pytest.mark.parametrize("name", ["7 x 7 by 2", "3 x 3 by 2", "5 x 3 by 4, tails", "four channels"])
@pytest.mark.parametrize("poison", [torch.inf, torch.nan])
def test_what_is_outside_of_a_window_is_not_seen(name: str, poison: float) -> None:
    """An element spoils the results whose windows it is in, and no others."""
    layer = replace(LAYERS[name], epilogue=False)
    torch.manual_seed(0)
    operands = layer.operands(1, (15, 37))
    operands[0][0, 1, 7, 18] = poison
    got = lowered(layer, SMALL).run(operands)
    expected = layer.reference([each.double() for each in operands])
    assert torch.equal(got.isfinite(), expected.isfinite())
    assert not got.isfinite().all()


def test_maps() -> None:
    """Only the result has one; there is none of a result that TMA cannot store."""

    def maps(name: str) -> list[TensorMap | Im2colMap]:
        parameters = lowered(LAYERS[name], SMALL).interface.parameters
        return [each for each in parameters if isinstance(each, TensorMap | Im2colMap)]

    [result] = maps("7 x 7 by 2")
    assert (result.operand, result.box) == (4, (64, 8, 1, 1))
    assert not maps("an odd number of filters")


def test_maps_in_memory_are_acquired(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel in block form without the fence is wrong."""
    from shapejit.passes.nvgpu.tma import Descriptor

    monkeypatch.setattr(Descriptor, "acquire", lambda self: None)
    layer = replace(STEM, outside=32)  # not lowered before
    with pytest.raises(SimulationError, match="without the acquire fence"):
        check(layer, SMALL, 1, (4, 4), block=True)
    lowered.cache_clear()


# Places -------------------------------------------------------------------------------------------

_PAIRS = st.tuples(st.integers(1, 7), st.integers(1, 7))


@given(
    taps=_PAIRS,
    strides=st.tuples(st.integers(1, 4), st.integers(1, 6)),
    dilations=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    channels=st.integers(1, 8),
    lines=st.integers(1, 5),
)
def test_places(
    taps: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    channels: int,
    lines: int,
) -> None:
    """Each chunk of K of each pixel is a unit with the pixels that its taps see."""
    window = PatchWindow(taps, strides, dilations, channels)
    patch = Patch(window, lines)
    pixels = window.pixels
    assert channels <= window.room
    held: dict[int, tuple[int, tuple[int | None, ...]]] = {}
    for row in range(patch.height):
        start = row * patch.pitch
        for unit in range(patch.width):
            position, plane = divmod(unit, window.planes)
            seen = tuple(unit * pixels + each for each in range(pixels))
            held[start + plane * patch.plane + position] = (row, seen)
            if window.has_tail:
                held.setdefault(start + patch.tail + position, (row, (seen[0], None)))
            if window.has_tail and plane == window.offset(window.columns - 1) % window.planes:
                held[start + patch.tail + position] = (row, (seen[0], None))
    assert max(held) < patch.height * patch.pitch
    assert len(patch.places) == window.chunks
    pairs = zip(patch.places[::2], patch.places[1::2], strict=True)
    assert all(second > first for first, second in pairs)
    for line in range(lines):
        for pixel in range(WIDTH):
            start = line * patch.line_bytes // 16 + pixel
            for number, place in enumerate(patch.places):
                row, within = divmod(number, window.columns)
                if row == taps[0]:
                    zero = place % patch.pitch
                    assert patch.has_zeros
                    assert patch.zeros <= zero
                    assert zero + pixel < patch.pitch
                    continue
                column = window.order[within] * pixels
                expected = tuple(
                    pixel * strides[1] + each * dilations[1] if each < taps[1] else None
                    for each in range(column, column + pixels)
                )
                got = held[start + place]
                assert got == (line * strides[0] + row * dilations[0], expected)


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "schedule", "message"),
    [
        (replace(STEM, inside=9), SMALL, "has 9 channels.*family unaligned"),
        (replace(STEM, groups=2), SMALL, "2 groups"),
        (replace(STEM, spreads=(2, 1)), SMALL, "zeros between pixels"),
        (Layer((3,), inside=3, element="bf16", panel=1), SMALL, "has 1 spatial dims"),
        (replace(STEM, taps=(17, 17)), SMALL, "17 x 17 taps"),
        (replace(STEM, outside=640), SMALL, "for 640 filters and its patches"),
        (STEM, "patch_64x24x16_s3_w1", "those of few channels are"),
        (STEM, "patch_64x256x16_s2_w1", "of up to 192 columns"),
    ],
)
def test_what_is_refused(layer: Layer, schedule: str, message: str) -> None:
    with pytest.raises(LoweringError, match=message):
        lowered(layer, schedule)


# Code ---------------------------------------------------------------------------------------------


@needs_ptxas
@sass.needs_nvdisasm
@pytest.mark.parametrize("name", ["7 x 7 by 2", "4 x 4 by 4", "four channels"])
def test_machine_code(name: str) -> None:
    layer = replace(LAYERS[name], outside=512 if name == "four channels" else 64)
    made = lowered(layer, str(SCHEDULE), block=True, ahead=True).assemble()
    assert not made.warnings
    [function] = sass.disassemble(made.data).values()
    assert not function.local_memory
    assert not function.read_never_written
    window = PatchWindow(
        (layer.taps[0], layer.taps[1]),
        (layer.strides[0], layer.strides[1]),
        (1, 1),
        layer.inside,
    )
    assert function.count("HGMMA") == window.chunks // 2
    # A kernel that starts early reads what is written while it runs: that is not constant.
    loads = function.select("LDG")
    assert loads
    assert not any("CONSTANT" in each.opcode for each in loads)
