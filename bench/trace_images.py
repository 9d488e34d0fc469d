# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Workloads of images: ResNet-50, a UNet, and a video whose resolution changes."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from trace_workload import Axis, Inputs, Request, Workload, seeded, trace

sys.path.insert(0, str(Path(__file__).parents[1] / "test"))

from model.vision import UNet

NEW_SIZES = 100
"""Sizes that no trace has, whose first calls are measured."""

_NOISE = 2**22
_UNET_WIDTH = 16
_FLOOR_SHAPES = 24


def _resnet() -> nn.Module:
    import torchvision  # type: ignore[import-not-found]

    model: nn.Module = torchvision.models.resnet50(weights=None)
    return model


def _unet() -> nn.Module:
    return UNet(_UNET_WIDTH, "nearest")


@functools.cache
def _noise(dtype: torch.dtype) -> Tensor:
    return torch.randn(_NOISE, generator=torch.Generator().manual_seed(0)).to(dtype)


def _images(request: Request, dtype: torch.dtype) -> Inputs:
    """Normally distributed; of large images the values repeat, which takes less time to draw.

    Args:
        request: batch, height and width; one image if the batch is left out.
    """
    *batch, height, width = request
    shape = (*(batch or [1]), 3, height, width)
    count = torch.Size(shape).numel()
    start = int(torch.randint(0, _NOISE, (1,), generator=seeded(request)))
    whole = _noise(dtype).roll(-start).repeat(-(-count // _NOISE))
    return (whole[:count].reshape(shape),)


def _sides(batches: tuple[int, ...], side: Axis) -> Callable[[random.Random], Request]:
    def draw(rng: random.Random) -> Request:
        low, high = side.low // side.divisor, side.high // side.divisor
        sides = (rng.randint(low, high) * side.divisor for _ in range(2))
        return rng.choice(batches), *sides

    return draw


def _resnet_workload(name: str, divisor: int) -> Workload:
    axes = (Axis("batch", 1, 8), *(Axis(n, 160, 640, divisor) for n in ("height", "width")))
    return Workload(
        name, axes, _resnet, _images, ({0: 0, 2: 1, 3: 2},), None, _sides((1, 2, 4, 8), axes[1]),
        trace(name), channels_last=True, new_sizes=NEW_SIZES, floor_shapes=_FLOOR_SHAPES,
    )  # fmt: skip


def _unet_workload() -> Workload:
    axes = (Axis("batch", 1, 4), Axis("height", 64, 1024), Axis("width", 64, 1024))
    return Workload(
        "unet", axes, _unet, _images, ({0: 0, 2: 1, 3: 2},), None, _sides((1, 2, 4), axes[1]),
        trace("unet"), channels_last=True, new_sizes=NEW_SIZES, floor_shapes=_FLOOR_SHAPES,
    )  # fmt: skip


def _video_workload() -> Workload:
    """Frame by frame, as resolutions from 240p to 2160p follow each other in adaptive streaming."""
    axes = (Axis("height", 240, 2160), Axis("width", 426, 3840))

    def draw(rng: random.Random) -> Request:
        height = rng.randint(120, 1080) * 2
        return height, min(max(round(height * 16 / 9), axes[1].low), axes[1].high)

    return Workload(
        "video", axes, _unet, _images, ({2: 0, 3: 1},), None, draw, trace("video"),
        channels_last=True, memory_of_largest=True,
    )  # fmt: skip


IMAGE_WORKLOADS: dict[str, Callable[[], Workload]] = {
    "resnet": lambda: _resnet_workload("resnet", 32),
    "resnet_odd": lambda: _resnet_workload("resnet_odd", 1),
    "unet": _unet_workload,
    "video": _video_workload,
}
