# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Convolutions of float32 on tensor cores, which round factors to tf32: on a simulated GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

from reference import sass
from shapejit.gpu.interface import Im2colMap, TensorMap
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.schedule import TF32_HALO_CANDIDATES, GemmSchedule
from unit.cpu_convs import Layer
from unit.cpu_kernels import examples
from unit.ptx_samples import needs_ptxas
from unit.simulated_convs import lowered
from unit.test_nvgpu_tf32 import rounded

WHOLE = "persistent_64x64x32_s2_w1_tf32"
SCHEDULES = [WHOLE, "swapped_64x16x32_s3_w1_tf32", "small_m_64x16x32_s3_w1_k2_tf32"]

PLAIN = Layer(
    (3, 3), inside=12, outside=24, padding=((1, 1), (1, 1)), element="f32", panel=1, epilogue=True
)

LAYERS = {
    "3 x 3": PLAIN,
    "stride and dilation": replace(PLAIN, strides=(2, 1), dilations=(1, 2)),
    "blocks of channels": replace(PLAIN, inside=36, taps=(2, 2)),
    "groups": replace(PLAIN, inside=32, outside=8, groups=2, taps=(1, 2)),
    "channels first": replace(PLAIN, last=(True, False)),
    "one dim": Layer((5,), inside=4, outside=16, padding=((2, 2),), element="f32", panel=1),
}


def _check(layer: Layer, schedule: str, batch: int, image: tuple[int, ...], block: bool) -> None:
    """Factors are rounded to the nearest, and nothing else is."""
    torch.manual_seed(batch + sum(image))
    operands = layer.operands(batch, image)
    got = lowered(layer, schedule, block, block).run(operands).double()
    x, weight, *others = operands
    expected = layer.reference([each.double() for each in (rounded(x), rounded(weight), *others)])
    assert got.shape == expected.shape
    if expected.numel():
        assert (got - expected).abs().max() <= 2.0**-20 * expected.abs().max()


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(batch=st.integers(0, 2), image=st.tuples(st.integers(1, 6), st.integers(1, 9)))
@examples(2)
def test_any_sizes(schedule: str, batch: int, image: tuple[int, ...]) -> None:
    _check(PLAIN, schedule, batch, image, True)


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    layer = LAYERS[name]
    _check(layer, WHOLE, 2, (5, 7)[: layer.rank], False)


HALO = ["halo_64x16x32_s3_w1_tf32", "halo_64x8x16_s9_w2_resident_tf32"]


@pytest.mark.parametrize("schedule", HALO)
@given(batch=st.integers(0, 2), image=st.tuples(st.integers(1, 6), st.integers(1, 17)))
@examples(2)
def test_tiles_with_a_halo(schedule: str, batch: int, image: tuple[int, ...]) -> None:
    _check(PLAIN, schedule, batch, image, True)


@pytest.mark.parametrize("name", ["blocks of channels", "groups", "channels first"])
def test_layers_with_a_halo(name: str) -> None:
    _check(LAYERS[name], HALO[0], 2, (5, 9), False)


def test_maps_round() -> None:
    """Those of both factors; sums and what the epilogue adds are float32."""
    for schedule in (WHOLE, *HALO):
        parameters = lowered(PLAIN, schedule).interface.parameters
        maps = [each for each in parameters if isinstance(each, TensorMap | Im2colMap)]
        assert {each.operand for each in maps} == {0, 1}
        assert all(each.element == "tf32" for each in maps)


@pytest.mark.parametrize(
    ("layer", "schedule", "message"),
    [
        (PLAIN, "persistent_64x64x64_s2_w1", "convolutions of f32 have those .* with tf32"),
        (PLAIN, "simt_64x64x32_s4_w1", "convolutions of f32 have those .* with tf32"),
        (PLAIN, "patch_64x128x16_s2_w1", "convolutions of f32 have those .* with tf32"),
        (PLAIN, "halo_64x16x32_s3_w1_tf32x3", "a halo have factors of one part"),
        (replace(PLAIN, element="bf16", inside=16), WHOLE, "convolutions of bf16"),
        (replace(PLAIN, inside=6), WHOLE, "TMA needs multiples of 4"),
        (replace(PLAIN, inside=12, groups=2), WHOLE, "in groups of 12 channels"),
    ],
)
def test_what_is_refused(layer: Layer, schedule: str, message: str) -> None:
    with pytest.raises(LoweringError, match=message):
        lowered(layer, schedule)


@needs_ptxas
@sass.needs_nvdisasm
@pytest.mark.parametrize(
    "schedule",
    ["swapped_128x128x32_s6_w2_tf32", "small_m_64x64x32_s12_w1_r2_tf32", *TF32_HALO_CANDIDATES],
    ids=str,
)
def test_machine_code(schedule: object) -> None:
    layer = replace(PLAIN, inside=64, outside=128)
    if isinstance(schedule, GemmSchedule):
        outside = 64 if schedule.resident else 128
        layer = replace(layer, inside=schedule.depth, outside=outside)
    made = lowered(layer, str(schedule), True, True).assemble()
    assert not made.warnings
    [function] = sass.disassemble(made.data).values()
    assert not function.local_memory
    assert not function.read_never_written
    assert all("TF32" in each.opcode for each in function.select("HGMMA"))


# Models -------------------------------------------------------------------------------------------


class Network(nn.Module):
    """Channels that maps read and three that they do not, a norm, a residual, narrow groups."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.down = nn.Conv2d(8, 12, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(12)
        self.three = nn.Conv2d(12, 16, 3, padding=1)
        self.grouped = nn.Conv2d(16, 6, 3, padding=1, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.down(torch.relu(self.stem(x)))))
        return self.grouped(torch.relu(self.three(x)))


@needs_ptxas
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_a_model(precision: str) -> None:
    """Its error is that of rounded factors, or of none."""
    from unit.simulated_programs import simulated

    torch.manual_seed(0)
    model = Network().eval()
    with torch.no_grad():
        model.norm.running_mean.normal_()
        model.norm.running_var.uniform_(0.5, 2)
    n, h, w = (Dim(name, min=1, max=high) for name, high in (("n", 2), ("h", 5), ("w", 6)))
    shapes: Any = ({0: n, 2: h, 3: w},)
    program, execution = simulated(
        model, (torch.randn(2, 3, 5, 4),), shapes, float32_precision=precision, winograd="off"
    )
    gpu = execution._artefacts.gpu
    assert gpu is not None
    convs = [each.name for each in gpu.variants if each.name.startswith("conv")]
    assert convs and all(
        each.endswith("tf32" if precision == "tf32" else "tf32x3") for each in convs
    )
    x = torch.randn(1, 3, 4, 6)
    double = Network().eval().double()
    double.load_state_dict(model.state_dict())
    with torch.no_grad():
        got, exact = program(x), double(x.double())
    error = ((got - exact).norm() / exact.norm()).item()
    assert error < (2e-3 if precision == "tf32" else 2e-6)
