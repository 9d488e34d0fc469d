# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Convolutions on a GPU: right at all sizes, in all families and forms, and repeatable; models."""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mlir")

from torch import Tensor, nn  # noqa: E402

import shapejit  # noqa: E402
from gpu.loop_kernels import DeviceKernel  # noqa: E402
from shapejit.gpu.device import Device  # noqa: E402
from shapejit.passes.nvgpu.conv.patch import SCHEDULE as PATCH_SCHEDULE  # noqa: E402
from shapejit.passes.nvgpu.schedule import (  # noqa: E402
    HALO_CANDIDATES,
    TF32_HALO_CANDIDATES,
    GemmSchedule,
)
from unit import test_nvgpu_conv as simulated  # noqa: E402
from unit import test_nvgpu_conv_tf32 as simulated_tf32  # noqa: E402
from unit import test_nvgpu_halo as simulated_halo  # noqa: E402
from unit import test_nvgpu_patch as simulated_patch  # noqa: E402
from unit.cpu_convs import Layer  # noqa: E402
from unit.simulated_convs import ERRORS, LoweredConv, arguments  # noqa: E402
from unit.test_nvgpu_depthwise_choice import schedules_of  # noqa: E402

ALIGNED = (
    "persistent_128x256x64_s4_w2",
    "persistent_128x128x64_s6_w2_turns",
    "persistent_64x192x64_s6_w1_k2",
    "swapped_256x112x64_s4_w2",
    "swapped_128x176x64_s5_w2_turns",
    "small_m_64x16x64_s16_w1",
    "small_m_64x32x64_s7_w1_k4",
    "small_m_64x64x64_s12_w1_r2",
    "small_m_128x80x64_s6_w2_k2",
)
HALO = tuple(map(str, HALO_CANDIDATES))
HALO_OF_ANY = tuple(str(each) for each in HALO_CANDIDATES if not each.resident)
GATHERED = ("unaligned_64x16x64_s3_w1", "unaligned_64x64x64_s3_w1")
PATCHES = (str(PATCH_SCHEDULE), "patch_64x56x16_s2_w1")
TF32 = (
    "persistent_128x256x32_s4_w2_tf32",
    "swapped_256x112x32_s4_w2_tf32",
    "small_m_64x32x32_s7_w1_k4_tf32",
)
HALO_TF32 = tuple(map(str, TF32_HALO_CANDIDATES))
# Of factors with 11 bits, as part of the result, by the mean square.
TF32_ERROR = 4e-4
IMAGES = ((1, 1, 1), (1, 7, 7), (3, 14, 13), (2, 45, 77), (16, 56, 56))


@functools.cache
def built(layer: Layer, schedule: str, device: Device, block: bool) -> DeviceKernel:
    lowered: Any = LoweredConv(layer, schedule, block, ahead=block)
    return DeviceKernel(lowered, device)


def check(layer: Layer, schedule: str, device: Device, batch: int, *image: int) -> None:
    """Both forms against float64; three times the same bits."""
    torch.manual_seed(batch + sum(image))
    operands = layer.operands(batch, image)
    operands[1] /= max(layer.inside * len(layer.taps), 1) ** 0.5 * 3
    expected = layer.reference([each.cuda().double() for each in operands])
    inputs = [each.cuda() for each in arguments(layer, operands)]
    half_ulp, sums = ERRORS[layer.element]
    for block in (False, True):
        kernel = built(layer, schedule, device, block)
        [first] = kernel(inputs, batch, *image)
        for _ in range(2):
            [again] = kernel(inputs, batch, *image)
            torch.testing.assert_close(first, again, rtol=0, atol=0)
        got = torch.movedim(first, -1, 1) if layer.last[1] else first
        assert got.shape == expected.shape
        if got.numel():
            allowed = half_ulp * expected.abs() + sums * expected.abs().max()
            worst = ((got.double() - expected).abs() - allowed).max().item()
            assert worst <= 0, f"{schedule} {block=}: {worst} too far off at {batch} x {image}"


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("schedule", ALIGNED)
def test_families(device: Device, schedule: str, image: tuple[int, int, int]) -> None:
    check(replace(simulated.PLAIN, inside=72, outside=136), schedule, device, *image)


@pytest.mark.parametrize("schedule", ALIGNED[::3])
@pytest.mark.parametrize("name", simulated.WINDOWS)
def test_windows(device: Device, name: str, schedule: str) -> None:
    layer = simulated.WINDOWS[name]
    image = (20, 11, 9)[: layer.rank]
    check(layer, schedule, device, 2, *image)


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("schedule", HALO)
def test_halo(device: Device, schedule: str, image: tuple[int, int, int]) -> None:
    layer = replace(simulated.PLAIN, inside=72, outside=136)
    if schedule.endswith("resident"):
        depth = GemmSchedule.parse(schedule).depth
        layer = replace(layer, inside=depth, outside=56)
    check(layer, schedule, device, *image)


@pytest.mark.parametrize("schedule", HALO_OF_ANY[:2] + HALO_OF_ANY[-2:])
@pytest.mark.parametrize("name", simulated_halo.WINDOWS)
def test_windows_with_a_halo(device: Device, name: str, schedule: str) -> None:
    for image in ((20, 11), (33, 61)):
        check(simulated_halo.WINDOWS[name], schedule, device, 2, *image)


@pytest.mark.parametrize("schedule", PATCHES)
@pytest.mark.parametrize("name", simulated_patch.LAYERS)
def test_few_channels(device: Device, name: str, schedule: str) -> None:
    for batch, *image in ((0, 9, 9), (1, 7, 9), (3, 33, 61), (8, 112, 95)):
        check(simulated_patch.LAYERS[name], schedule, device, batch, *image)


@pytest.mark.parametrize("name", simulated_tf32.LAYERS)
@pytest.mark.parametrize("schedule", TF32)
def test_tf32(device: Device, schedule: str, name: str) -> None:
    check_tf32(simulated_tf32.LAYERS[name], schedule, device)


@pytest.mark.parametrize("schedule", HALO_TF32)
def test_tf32_with_a_halo(device: Device, schedule: str) -> None:
    """Of layers of one block of channels, and of several where filters do not stay."""
    depth = GemmSchedule.parse(schedule).depth
    channels = (depth,) if "resident" in schedule else (depth, 3 * depth - 4)
    for inside in channels:
        layer = replace(simulated_tf32.PLAIN, inside=inside, outside=56)
        check_tf32(layer, schedule, device)


def check_tf32(layer: Layer, schedule: str, device: Device) -> None:
    """No more than 1.2 times as far from float64 as cuDNN with tf32, by the mean square."""
    for batch, *image in ((2, 9, 11), (3, 33, 61)):
        torch.manual_seed(batch)
        operands = [each.cuda() for each in layer.operands(batch, image[: layer.rank])]
        expected = layer.reference([each.double() for each in operands])
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
            own = layer.reference(operands)
        inputs = [each.contiguous() for each in arguments(layer, operands)]
        for block in (False, True):
            kernel = built(layer, schedule, device, block)
            [result] = kernel(inputs, batch, *image[: layer.rank])
            got = torch.movedim(result, -1, 1) if layer.last[1] else result
            errors = [((each.double() - expected) ** 2).mean().sqrt() for each in (got, own)]
            # cuDNN computes some layers in IEEE arithmetic.
            allowed = max(1.2 * errors[1], TF32_ERROR * (expected**2).mean().sqrt())
            assert errors[0] <= allowed, f"{layer}, {schedule} {block=}: {errors}"


@pytest.mark.parametrize("schedule", GATHERED)
@pytest.mark.parametrize("name", simulated.GATHERS)
def test_gathered(device: Device, name: str, schedule: str) -> None:
    layer = simulated.GATHERS[name]
    for batch in (0, 3):
        check(layer, schedule, device, batch, *(20, 11, 9)[: layer.rank])


@pytest.mark.parametrize("name", simulated.DEPTHWISE)
def test_depthwise(device: Device, name: str) -> None:
    layer, schedule = simulated.DEPTHWISE[name]
    for batch in (0, 1, 5):
        check(layer, schedule, device, batch, *(33, 17, 9)[: layer.rank])


@pytest.mark.parametrize("element", ["bf16", "f16", "f32"])
def test_random_depthwise_layers(device: Device, element: str) -> None:
    """No more than 1.2 times as far from float64 as cuDNN, by the mean square."""
    rng = random.Random(element)
    for _ in range(8):
        taps = rng.choice([1, 3, 5, 7])
        layer = Layer(
            (taps, taps),
            inside=1,
            outside=1,
            groups=rng.choice([2, 12, 32, 37, 136]),
            strides=(rng.choice([1, 2]),) * 2,
            padding=((rng.randrange(taps),) * 2,) * 2,
            element=element,
            taps_first=rng.choice([False, True]),
        )
        image = (rng.randint(taps, 40), rng.randint(taps, 40))
        operands = [each.cuda() for each in layer.operands(rng.randint(1, 5), image)]
        expected = layer.reference([each.double() for each in operands])
        own = ((layer.reference(operands).double() - expected) ** 2).mean().sqrt()
        inputs = [each.contiguous() for each in arguments(layer, operands)]
        for schedule in rng.sample(schedules_of(layer), 3):
            kernel = built(layer, schedule, device, True)
            [result] = kernel(inputs, operands[0].shape[0], *image)
            got = torch.movedim(result, -1, 1).double()
            error = ((got - expected) ** 2).mean().sqrt()
            assert error <= 1.2 * own + 1e-6, f"{layer}, {schedule} at {image}: {error}, {own}"


@pytest.mark.parametrize("element", ["bf16", "f16"])
def test_random_layers(device: Device, element: str) -> None:
    """No more than 1.2 times as far from float64 as cuDNN, by the mean square."""
    rng = random.Random(element)
    for _ in range(60):
        taps = rng.choice([1, 2, 3, 5])
        layer = Layer(
            (taps, taps),
            inside=rng.choice([3, 8, 20, 64, 136]),
            outside=rng.choice([8, 24, 64, 200]),
            strides=(rng.choice([1, 2]),) * 2,
            padding=((rng.randrange(taps),) * 2,) * 2,
            element=element,
            panel=1,
        )
        image = (rng.randint(1, 40), rng.randint(1, 40))
        if not layer.is_legal(image) or min(layer.pixels(image)) < 1:
            continue
        schedules = ALIGNED if layer.inside % 8 == 0 else GATHERED
        if layer.inside <= 8:
            schedules += PATCHES
        if layer.inside % 8 == 0 and layer.strides == (1, 1) and taps > 1:
            schedules += HALO_OF_ANY
        schedule = rng.choice(schedules)
        operands = [each.cuda() for each in layer.operands(rng.randint(1, 5), image)]
        expected = layer.reference([each.double() for each in operands])
        own = layer.reference(operands)
        inputs = [each.contiguous() for each in arguments(layer, operands)]
        [result] = built(layer, schedule, device, True)(inputs, operands[0].shape[0], *image)
        got = torch.movedim(result, -1, 1)
        errors = [((each.double() - expected) ** 2).mean().sqrt() for each in (got, own)]
        assert errors[0] <= 1.2 * errors[1] + 1e-6, f"{layer} at {image}: {errors}"


# Models -------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A residual block with a strided way past it."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(outside)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1)
        self.past = nn.Conv2d(inside, outside, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.first(x)))
        return torch.relu(self.second(y) + self.past(x))


def network() -> nn.Module:
    torch.manual_seed(0)
    blocks = [Block(64, 64, 1), Block(64, 128, 2), Block(128, 256, 2)]
    return nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), *blocks)


def test_a_model_at_alternating_sizes(device: Device) -> None:
    """Under constant graphs: 200 calls, each as the first of its size."""
    model = network().eval().cuda().to(torch.bfloat16)
    double = network().eval().cuda().double()
    n, h, w = (torch.export.Dim(name, min=1, max=high) for name, high in
               (("n", 4), ("h", 256), ("w", 256)))  # fmt: skip
    with torch.no_grad():
        program = shapejit.compile(
            model,
            (torch.randn(2, 3, 64, 96, device="cuda", dtype=torch.bfloat16),),
            dynamic_shapes=({0: n, 2: h, 3: w},),
            target="cuda",
        )
        rng = random.Random(0)
        sizes = [(rng.randint(1, 4), rng.randint(16, 256), rng.randint(16, 256)) for _ in range(20)]
        inputs = {
            size: torch.randn(size[0], 3, *size[1:], device="cuda", dtype=torch.bfloat16)
            for size in sizes
        }
        firsts: dict[Any, Tensor] = {}
        for number in range(200):
            size = rng.choice(sizes)
            got = program(inputs[size])
            if size not in firsts:
                expected = double(inputs[size].double())
                own, ours = (
                    ((each.double() - expected) ** 2).mean().sqrt()
                    for each in (model(inputs[size]), got)
                )
                assert ours <= 1.2 * own + 1e-4, f"call {number} at {size}: {ours} against {own}"
                firsts[size] = got.clone()
            torch.testing.assert_close(got, firsts[size], rtol=0, atol=0)
