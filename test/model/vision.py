# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Vision and audio models whose images, or sounds, have any size; narrow, but with all parts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.export import Dim

Inputs = tuple[Tensor, ...]


# ResNet -------------------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        outside = 4 * width
        self.reduce = _normed(nn.Conv2d(inside, width, 1, bias=False))
        self.middle = _normed(nn.Conv2d(width, width, 3, stride, 1, bias=False))
        self.expand = _normed(nn.Conv2d(width, outside, 1, bias=False))
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = _normed(nn.Conv2d(inside, outside, 1, stride, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.middle(F.relu(self.reduce(x))))
        return F.relu(self.expand(y) + self.shortcut(x))


def _normed(layer: nn.Conv2d) -> nn.Sequential:
    return nn.Sequential(layer, nn.BatchNorm2d(layer.out_channels))


class ResNet(nn.Module):
    """Stem, max pool, four stages of bottlenecks, global mean, classifier."""

    def __init__(self, width: int, layers: Sequence[int], classes: int) -> None:
        super().__init__()
        self.stem = _normed(nn.Conv2d(3, width, 7, 2, 3, bias=False))
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks: list[nn.Module] = []
        inside = width
        for stage, count in enumerate(layers):
            for number in range(count):
                stride = 2 if stage and not number else 1
                blocks.append(Bottleneck(inside, width << stage, stride))
                inside = 4 * width << stage
        self.blocks = nn.Sequential(*blocks)
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.classify = nn.Linear(inside, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(self.pool(F.relu(self.stem(x))))
        result: Tensor = self.classify(torch.flatten(self.mean(y), 1))
        return result


def resnet50(width: int = 64, classes: int = 1000) -> ResNet:
    """ResNet-50; 64 is its real width."""
    return ResNet(width, (3, 4, 6, 3), classes)


# UNet ---------------------------------------------------------------------------------------------


class _Double(nn.Sequential):
    """Two 3x3 convolutions, the first with a group norm, the second with a batch norm."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__(
            nn.Conv2d(inside, outside, 3, padding=1),
            nn.GroupNorm(4, outside),
            nn.SiLU(),
            nn.Conv2d(outside, outside, 3, padding=1),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
        )


class UNet(nn.Module):
    """Three levels, joined by skip connections; its sizes need not be multiples of anything."""

    def __init__(self, width: int, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.top, self.middle = _Double(3, width), _Double(width, 2 * width)
        self.bottom = _Double(2 * width, 4 * width)
        self.up_middle, self.up_top = _Double(6 * width, 2 * width), _Double(3 * width, width)
        self.grow = nn.ConvTranspose2d(width, width, 2, 2)
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        top = self.top(x)
        middle = self.middle(F.max_pool2d(top, 2))
        bottom = self.bottom(F.max_pool2d(middle, 2))
        y = self.up_middle(torch.cat([self._resized(bottom, middle), middle], 1))
        y = self.up_top(torch.cat([self._resized(y, top), top], 1))
        return torch.sigmoid(self.out(self.grow(y)))

    def _resized(self, x: Tensor, like: Tensor) -> Tensor:
        aligned = None if self.mode == "nearest" else False
        return F.interpolate(x, size=like.shape[-2:], mode=self.mode, align_corners=aligned)


# Transformers -------------------------------------------------------------------------------------


class _Layer(nn.Module):
    """Self attention, maybe cross attention, and two linear layers, each after a norm."""

    def __init__(
        self, width: int, heads: int, *, causal: bool = False, cross: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3 if cross else 2)])
        self.own = nn.ModuleList([nn.Linear(width, width) for _ in range(4)])
        self.other = nn.ModuleList([nn.Linear(width, width) for _ in range(4 if cross else 0)])
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def _mixed(self, parts: nn.ModuleList, x: Tensor, source: Tensor, *, causal: bool) -> Tensor:
        query, key, value, out = parts
        q, k, v = (
            part(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part, y in ((query, x), (key, source), (value, source))
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        result: Tensor = out(mixed.transpose(1, 2).flatten(2))
        return result

    def forward(self, x: Tensor, source: Tensor | None = None) -> Tensor:
        y = self.norms[0](x)
        x = x + self._mixed(self.own, y, y, causal=self.causal)
        if source is not None:
            x = x + self._mixed(self.other, self.norms[2](x), source, causal=False)
        result: Tensor = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return result


class ViT(nn.Module):
    """Patches of 16 pixels, positions interpolated to the image, a class token."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, width, 14, 14) * 0.02)
        self.layers = nn.Sequential(*(_Layer(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patches(x)
        y = y + F.interpolate(self.positions, size=y.shape[-2:], mode="bicubic")
        tokens = y.flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(tokens.shape[0], -1, -1), tokens], 1)
        result: Tensor = self.head(self.norm(self.layers(tokens))[:, 0])
        return result


class Whisper(nn.Module):
    """An encoder of spectrograms behind two convolutions, a decoder that attends to it."""

    def __init__(self, bands: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(bands, width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.register_buffer("times", torch.randn(1500, width) * 0.02)
        self.encoder = nn.ModuleList([_Layer(width, heads) for _ in range(layers)])
        self.encoder_norm = nn.LayerNorm(width)
        self.words = nn.Embedding(100, width)
        self.places = nn.Parameter(torch.randn(448, width) * 0.02)
        self.decoder = nn.ModuleList(
            [_Layer(width, heads, causal=True, cross=True) for _ in range(layers)]
        )
        self.decoder_norm = nn.LayerNorm(width)

    def forward(self, sound: Tensor, ids: Tensor) -> Tensor:
        x = F.gelu(self.second(F.gelu(self.first(sound)))).transpose(1, 2)
        x = x + self.times[: x.shape[1]]
        for layer in self.encoder:
            x = layer(x)
        x = self.encoder_norm(x)
        y = self.words(ids) + self.places[: ids.shape[1]]
        for layer in self.decoder:
            y = layer(y, x)
        return self.decoder_norm(y) @ self.words.weight.T


# Small nets ---------------------------------------------------------------------------------------


class _Inverted(nn.Module):
    """A depthwise layer between 1x1 ones, with a gate by channel."""

    def __init__(self, inside: int, width: int, outside: int, stride: int, activation: Any) -> None:
        super().__init__()
        self.expand = _normed(nn.Conv2d(inside, width, 1, bias=False))
        self.depthwise = _normed(nn.Conv2d(width, width, 5, stride, 2, groups=width, bias=False))
        self.squeeze, self.excite = nn.Conv2d(width, 8, 1), nn.Conv2d(8, width, 1)
        self.project = _normed(nn.Conv2d(width, outside, 1, bias=False))
        self.activation, self.plain = activation, stride == 1 and inside == outside

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.depthwise(self.activation(self.expand(x))))
        gate = self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1))))
        y = self.project(y * F.hardsigmoid(gate))
        return x + y if self.plain else y


class Mobile(nn.Module):
    """Inverted bottlenecks with squeeze and excitation, of MobileNet and EfficientNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _normed(nn.Conv2d(3, 16, 3, 2, 1, bias=False))
        self.blocks = nn.Sequential(
            _Inverted(16, 32, 16, 1, F.hardswish),
            _Inverted(16, 48, 24, 2, F.hardswish),
            _Inverted(24, 72, 24, 1, F.silu),
        )
        self.classify = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(F.hardswish(self.stem(x)))
        result: Tensor = self.classify(y.mean((2, 3)))
        return result


class Detector(nn.Module):
    """A pyramid of features with spatial pooling, and a head that decodes boxes on a grid."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            [nn.Conv2d(a, b, 3, 2, 1) for a, b in ((3, 16), (16, 32), (32, 64))]
        )
        self.pooled = nn.Conv2d(4 * 64, 64, 1)
        self.lateral = nn.Conv2d(64 + 32, 32, 3, padding=1)
        self.heads = nn.ModuleList([nn.Conv2d(c, 5 + classes, 1) for c in (64, 32)])

    def forward(self, x: Tensor) -> Tensor:
        features = []
        for layer in self.down:
            x = F.silu(layer(x))
            features.append(x)
        pools = [x]
        for _ in range(3):
            pools.append(F.max_pool2d(pools[-1], 5, 1, 2))
        low = F.silu(self.pooled(torch.cat(pools, 1)))
        up = F.interpolate(low, size=features[1].shape[-2:], mode="nearest")
        high = F.silu(self.lateral(torch.cat([up, features[1]], 1)))
        boxes = [self._decoded(head(y)) for head, y in zip(self.heads, (low, high), strict=True)]
        return torch.cat(boxes, 1)

    def _decoded(self, y: Tensor) -> Tensor:
        """Centres relative to the image, sizes, and scores: [n, h * w, 5 + classes]."""
        height, width = y.shape[-2:]
        rows = torch.arange(height, dtype=y.dtype)[:, None].expand(height, width)
        columns = torch.arange(width, dtype=y.dtype)[None].expand(height, width)
        centre = y[:, :2].sigmoid() + torch.stack([columns, rows])
        size = torch.tensor([1.0 / 8, 1.0 / 8], dtype=y.dtype)[:, None, None]
        found = torch.cat([centre * size, y[:, 2:4].exp(), y[:, 4:].sigmoid()], 1)
        return found.flatten(2).transpose(1, 2)


# Table --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VisionModel:
    """A model with what it takes to call it at any size.

    Attributes:
        build: makes it, in eval mode, with random weights.
        inputs: makes its inputs from sizes: batch first, then those of `ranges`.
        ranges: ends of the ranges of the sizes by name.
        dims: for each input, which of the sizes each dynamic dim is; sizes of images may be
            multiples.
        sizes: of the example, at which no intermediate tensor has a dim of size one.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[..., Inputs]
    ranges: Mapping[str, tuple[int, int]]
    dims: Callable[[Mapping[str, Any]], Any]
    sizes: tuple[int, ...]

    @functools.cached_property
    def model(self) -> nn.Module:
        torch.manual_seed(0)
        model = self.build().eval()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.normal_(std=0.2)
                module.running_var.uniform_(0.5, 2)
        return model.requires_grad_(False)

    def dynamic_shapes(self) -> Any:
        """As for `torch.export`."""
        return self.dims({n: Dim(n, min=low, max=high) for n, (low, high) in self.ranges.items()})

    def example(self) -> Inputs:
        """The inputs to export with."""
        return self.inputs(*self.sizes)


def _image_model(build: Callable[[], nn.Module], low: int, step: int = 1) -> VisionModel:
    return VisionModel(
        build,
        lambda n, h, w: (torch.randn(n, 3, step * h, step * w),),
        {"batch": (1, 16), "height": (low, 256 // step), "width": (low, 256 // step)},
        lambda d: ({0: d["batch"], 2: step * d["height"], 3: step * d["width"]},),
        (3, 80, 100) if step == 1 else (3, 3, 5),
    )


VISION_MODELS: dict[str, VisionModel] = {
    "detector": _image_model(Detector, 1),
    "mobile": _image_model(Mobile, 1),
    "resnet": _image_model(lambda: resnet50(8, 10), 64),
    "unet": _image_model(lambda: UNet(8, "nearest"), 4),
    "vit": _image_model(lambda: ViT(48, 3, 2), 1, step=16),
    "whisper": VisionModel(
        lambda: Whisper(16, 64, 2, 2),
        lambda n, t, m: (torch.randn(n, 16, t), torch.randint(0, 100, (n, m))),
        {"batch": (1, 16), "frames": (1, 3000), "tokens": (1, 448)},
        lambda d: ({0: d["batch"], 2: d["frames"]}, {0: d["batch"], 1: d["tokens"]}),
        (3, 41, 7),
    ),
}
