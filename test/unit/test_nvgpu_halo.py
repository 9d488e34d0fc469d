# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Convolutions in tiles with a halo, on a simulated GPU against float64, and their code."""

from __future__ import annotations

from dataclasses import replace

import mlir.ir as ir
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference import sass
from reference.hopper.launch import kernel_function, simulate
from reference.hopper.memory import SimulationError
from shapejit import ir as sir
from shapejit.gpu.interface import TensorMap
from shapejit.passes.nvgpu.conv.lowering import lower
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.schedule import HALO_CANDIDATES, GemmSchedule
from shapejit.passes.nvgpu.target import HOPPER
from unit.cpu_convs import Layer
from unit.cpu_kernels import access, examples, tensor
from unit.ptx_samples import needs_ptxas
from unit.simulated_convs import check, lowered

# Small tiles and short rings, so that few elements make many tiles and laps.
PLAIN_TILES = "halo_64x16x64_s3_w1"
ODD_TILES = "halo_64x24x64_s2_w1"
TWO_CONSUMERS = "halo_128x32x64_s4_w2"
TWO_BLOCKS = "halo_128x24x64_s2_w1"
SHALLOW = "halo_64x16x32_s3_w1"
RESIDENT = "halo_64x16x64_s9_w2_resident"
THREE_RESIDENT = "halo_64x8x32_s9_w3_resident"
SCHEDULES = [
    PLAIN_TILES, ODD_TILES, TWO_CONSUMERS, TWO_BLOCKS, SHALLOW, RESIDENT, THREE_RESIDENT,
]  # fmt: skip

PLAIN = Layer(
    (3, 3), inside=16, outside=24, padding=((1, 1), (1, 1)), element="bf16", panel=1, epilogue=True
)

WINDOWS = {
    "no padding": Layer((3, 2), inside=8, outside=8, element="bf16", panel=1),
    "5 x 5": replace(PLAIN, taps=(5, 5), padding=((2, 2), (2, 2))),
    "3 x 1": replace(PLAIN, taps=(3, 1), padding=((1, 1), (0, 0))),
    "1 x 7": replace(PLAIN, taps=(1, 7), padding=((0, 0), (3, 3))),
    "dilation": replace(PLAIN, dilations=(2, 3), padding=((2, 2), (3, 3))),
    "padding on one side": replace(PLAIN, padding=((2, 0), (0, 1))),
    "cropping": replace(PLAIN, padding=((-1, 0), (1, -1))),
    "blocks of channels": replace(PLAIN, inside=136, taps=(2, 2), padding=((0, 1), (1, 0))),
    "groups": replace(PLAIN, inside=64, outside=8, groups=2, taps=(2, 2)),
    "channels first": replace(PLAIN, last=(True, False)),
    "a row of the result no multiple of 16 bytes": replace(PLAIN, outside=13),
    "f16": replace(PLAIN, element="f16"),
}

IMAGES = st.tuples(st.integers(0, 7), st.integers(0, 11))


def _fits(layer: Layer, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """An image on which the window has a place, or none because it is empty."""
    image = tuple(max(size, 1) for size in sizes)
    return image if layer.is_legal(image) else tuple(max(size, 7) for size in image)


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(batch=st.integers(0, 2), sizes=IMAGES, block=st.booleans(), seed=st.integers(0, 1000))
@examples(2)
def test_any_sizes(
    schedule: str, batch: int, sizes: tuple[int, ...], block: bool, seed: int
) -> None:
    check(PLAIN, schedule, batch, _fits(PLAIN, sizes), block=block, seed=seed)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_several_tiles_a_cta(schedule: str) -> None:
    check(PLAIN, schedule, 2, (5, 11), multiprocessors=3)


@pytest.mark.parametrize("name", WINDOWS)
@given(batch=st.integers(1, 2), sizes=IMAGES)
@examples(1)
def test_windows(name: str, batch: int, sizes: tuple[int, ...]) -> None:
    layer = WINDOWS[name]
    check(layer, ODD_TILES, batch, _fits(layer, sizes))


def test_filters_of_several_blocks_of_channels_stay() -> None:
    layer = replace(PLAIN, inside=72, taps=(3, 1), padding=((1, 1), (0, 0)))
    check(layer, RESIDENT, 1, (5, 17), multiprocessors=1)


@pytest.mark.parametrize("schedule", [TWO_CONSUMERS, RESIDENT])
def test_images_smaller_than_the_window(schedule: str) -> None:
    """Only padding surrounds a single pixel; or the window has no place at all."""
    check(PLAIN, schedule, 3, (1, 1))
    valid = WINDOWS["no padding"]
    assert valid.pixels((2, 5)) == [0, 4]
    for block in (False, True):
        assert check(valid, schedule, 3, (2, 5), block=block).numel() == 0


@pytest.mark.parametrize("schedule", [TWO_CONSUMERS, RESIDENT])
@pytest.mark.parametrize("batch", [0, 1])
def test_a_kernel_that_starts_early(schedule: str, batch: int) -> None:
    """Filters come before the kernel ahead has ended."""
    check(PLAIN, schedule, batch, (5, 11), block=True, ahead=True)


def test_an_infinity_stays_in_its_group() -> None:
    layer = replace(PLAIN, inside=64, groups=2, epilogue=False, taps=(1, 2), padding=())
    operands = layer.operands(1, (3, 3))
    operands[0][:, 64:] = torch.inf
    got = lowered(layer, PLAIN_TILES).run(operands)
    assert got[:, : layer.outside].isfinite().all()
    assert not got[:, layer.outside :].isfinite().any()


def test_maps_in_memory_are_acquired(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel in block form without the fence is wrong."""
    from shapejit.passes.nvgpu.tma import Descriptor

    monkeypatch.setattr(Descriptor, "acquire", lambda self: None)
    layer = replace(PLAIN, outside=32)  # not lowered before
    with pytest.raises(SimulationError, match="without the acquire fence"):
        check(layer, PLAIN_TILES, 1, (4, 4), block=True)
    lowered.cache_clear()


def test_the_maps() -> None:
    """Pixels come with a halo, and go in boxes of rows that no tile below shares."""
    filters, _, pixels, result = (
        each
        for each in lowered(WINDOWS["5 x 5"], ODD_TILES).interface.parameters
        if isinstance(each, TensorMap)
    )
    assert filters.box == (64, 64, 1, 1)
    assert pixels.box == (64, 8 + 4, 3 + 4, 1)
    assert result.box == (64, 8, 1, 1)
    [result] = (
        each
        for each in lowered(PLAIN, "halo_64x48x64_s3_w1").interface.parameters
        if isinstance(each, TensorMap) and each.operand == 4
    )
    assert result.box == (64, 8, 2, 1)


# Extras -------------------------------------------------------------------------------------------

# What is added to the result [n, p, q, 16], by the index along each dim that it has.
EXTRAS = {
    "one for all": "",
    "by filter": "f",
    "by pixel": "pq",
    "by row of pixels": "p",
    "by row of pixels and filter": "pf",
    "by column of pixels": "q",
    "by image": "n",
    "channels last": "npqf",
    "channels first": "nfpq",
}
_SIZES = {"n": "s0", "p": "s1", "q": "s2", "f": 16}
_DIMS = {"n": "d0", "p": "d2", "q": "d3", "f": "d4"}


@pytest.mark.parametrize("name", EXTRAS)
def test_extras(name: str) -> None:
    layout = EXTRAS[name]
    element = "bf16" if len(layout) % 2 == 0 else "f32"
    n, p, q = 2, 3, 10
    extra = tensor(element, *(_SIZES[each] for each in layout))
    x, w = tensor("bf16", "s0", "s1", "s2", 16), tensor("bf16", 16, 3, 3, 16)
    wide = "%e" if element == "f32" else "%e32"
    text = f"""
      shapejit.kernel @k symbols 3 (%x: {x}, %w: {w}, %r: {extra}) {{
        %0 = shapejit.conv over [s0, 1, s1, s2, 16, 16, 3, 3] image [s1, s2]
            padding [(1, 1), (1, 1)]
            input(%x at {access(5, "d0, d2, d3, d4")} : {x})
            weight(%w at {access(5, "d1, d3, d4, d2")} : {w})
            extras(%r at {access(5, ", ".join(_DIMS[each] for each in layout))} : {extra})
            epilogue {{
              ^bb0(%a: f32, %e: {element}):
                {"" if element == "f32" else f"%e32 = arith.extf %e : {element} to f32"}
                %s = arith.addf %a, {wide} : f32
                %o = arith.truncf %s : f32 to bf16
                shapejit.yield %o : bf16
            }} -> {access(5, "d0, d2, d3, d4")} : {x}
        shapejit.yield %0 : {x}
      }}"""
    torch.manual_seed(0)
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[element]
    sizes = {"n": n, "p": p, "q": q, "f": 16}
    image = torch.randn(n, p, q, 16).bfloat16()
    filters = (torch.randn(16, 3, 3, 16) / 12).bfloat16()
    added = torch.randn([sizes[each] for each in layout]).to(dtype)
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        interface = lower(sir.kernels(module)["k"], PLAIN_TILES, HOPPER)
        [made] = (op for op in sir.operations(module.body) if op.name == "gpu.module")
        result = torch.empty(n, p, q, 16, dtype=torch.bfloat16)
        got = simulate(
            kernel_function(made), interface, [image, filters, added], result, [n, p, q],
            multiprocessors=3, seed=1,
        )  # fmt: skip
    places = ["npqf".index(each) for each in layout]
    shape = [1] * 4
    for place, letter in zip(places, layout, strict=True):
        shape[place] = sizes[letter]
    spread = added.double().permute(sorted(range(len(places)), key=places.__getitem__))
    product = torch.nn.functional.conv2d(
        image.double().movedim(-1, 1), filters.double().movedim(-1, 1), padding=1
    )
    expected = product.movedim(1, -1) + spread.reshape(shape)
    torch.testing.assert_close(got.double(), expected, rtol=2.0**-8, atol=2.0**-9)


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "schedule", "message"),
    [
        (replace(PLAIN, strides=(2, 1)), PLAIN_TILES, "by \\(2, 1\\) pixels.*another family"),
        (replace(PLAIN, taps=(1, 1), padding=()), PLAIN_TILES, "1 x 1 taps.*another family"),
        (Layer((3,), inside=8, element="bf16", panel=1), PLAIN_TILES, "1 spatial dims"),
        (replace(PLAIN, spreads=(2, 1)), PLAIN_TILES, "with zeros between pixels"),
        (replace(PLAIN, inside=20), PLAIN_TILES, "stride of 20 elements"),
        (replace(PLAIN, inside=72, groups=2), PLAIN_TILES, "in groups of 72 channels"),
        (replace(PLAIN, dilations=(40, 40)), PLAIN_TILES, "no room for tiles of pixels"),
        (
            replace(PLAIN, taps=(1, 2), dilations=(1, 260), padding=()),
            "halo_64x8x32_s2_w1",
            "268 long; TMA loads up to 256",
        ),
        (PLAIN, "halo_512x8x32_s2_w2", "512 long; TMA loads"),
        (replace(PLAIN, outside=72), RESIDENT, "72 filters of 16 channels.*keeps 64 of 9"),
        (replace(PLAIN, inside=72), RESIDENT, "keeps 64 of 9 taps"),
        (PLAIN, "halo_64x16x64_s3_w2", "tiles of 64 filters for 2 consumers"),
        (PLAIN, "halo_64x16x64_s3_w4", "4 consumers"),
        (PLAIN, "halo_64x16x64_s1_w1", "needs 2 stages"),
        (PLAIN, "halo_128x16x64_s3_w2_turns", "are not shared"),
        (PLAIN, "halo_256x256x64_s3_w2", "256 registers for the sums"),
        (PLAIN, "simt_64x64x32_s4_w1", "convolutions of bf16 have those of the families"),
    ],
)
def test_what_is_refused(layer: Layer, schedule: str, message: str) -> None:
    with pytest.raises(LoweringError, match=message):
        lowered(layer, schedule)


# Code ---------------------------------------------------------------------------------------------


@needs_ptxas
@sass.needs_nvdisasm
@pytest.mark.parametrize("schedule", HALO_CANDIDATES, ids=str)
def test_machine_code(schedule: GemmSchedule) -> None:
    """Neither spills nor registers that are read and never written, with warnings that fail."""
    outside = 64 if schedule.resident else 128
    layer = replace(PLAIN, inside=schedule.depth, outside=outside)
    made = lowered(layer, str(schedule), block=True, ahead=True).assemble()
    assert not made.warnings
    [function] = sass.disassemble(made.data).values()
    assert not function.local_memory
    assert not function.read_never_written
    assert function.count("HGMMA")
