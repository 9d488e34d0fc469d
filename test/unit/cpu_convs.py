# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Convolutions as kernels for the CPU, and what torch makes of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from unit.cpu_kernels import DTYPES, CpuKernel, access, tensor

_CONVOLUTIONS: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@dataclass(frozen=True)
class Layer:
    """A convolution whose batch and image sizes are symbols.

    Attributes:
        taps: of the kernel, one a spatial dim.
        inside, outside: channels of a group.
        groups: number of groups.
        strides, dilations, padding, spreads: of the window; `spreads` is ``lhs_dilation``. An empty
            list is the default.
        last: whether channels are last in the input, and in the result.
        element: type of all tensors.
        epilogue: adds a bias and a residual, then takes the positive part.
        panel: width of the panels in which the weight is stored; None if it is torch's.
        taps_first: whether the weight of a depthwise one is stored as [t.., f], as programs for
            GPUs have it.
        vector_bytes: of the kernel; None for the host's.
    """

    taps: tuple[int, ...]
    inside: int = 4
    outside: int = 8
    groups: int = 1
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    padding: tuple[tuple[int, int], ...] = ()
    spreads: tuple[int, ...] = ()
    last: tuple[bool, bool] = (True, True)
    element: str = "f32"
    epilogue: bool = False
    panel: int | None = None
    taps_first: bool = False
    vector_bytes: int | None = None

    @property
    def rank(self) -> int:
        return len(self.taps)

    @property
    def is_merged(self) -> bool:
        """Whether the weight is packed over the channels of all groups."""
        narrow = self.panel is not None and self.panel % (2 * self.outside) == 0
        return self.inside == self.outside and (self.outside == 1 or (self.groups > 1 and narrow))

    def window(self) -> list[tuple[int, int, int, int, int, int]]:
        """(taps, stride, dilation, low, high, spread) of each spatial dim."""
        ones = (1,) * self.rank
        rows = zip(
            self.taps,
            self.strides or ones,
            self.dilations or ones,
            self.padding or ((0, 0),) * self.rank,
            self.spreads or ones,
            strict=True,
        )
        return [(t, s, d, low, high, spread) for t, s, d, (low, high), spread in rows]

    def pixels(self, image: Sequence[int]) -> list[int]:
        """Output pixels; negative where the image is too small."""
        return [
            ((size - 1) * spread + low + high - (taps - 1) * dilation) // stride + 1
            for size, (taps, stride, dilation, low, high, spread) in zip(
                image, self.window(), strict=True
            )
        ]

    def is_legal(self, image: Sequence[int]) -> bool:
        return min(image) > 0 and min(self.pixels(image)) >= 0

    def operands(self, batch: int, image: Sequence[int]) -> list[Tensor]:
        """Random input [n, c, p..], weight [f, c, t..], and bias and residual if there are some."""
        dtype, channels = DTYPES[self.element], self.groups * self.outside
        shapes = [
            (batch, self.groups * self.inside, *image),
            (channels, self.inside, *self.taps),
        ]
        if self.epilogue:
            shapes += [(channels,), (batch, channels, *self.pixels(image))]
        return [torch.randn(shape).to(dtype) for shape in shapes]

    def reference(self, operands: Sequence[Tensor]) -> Tensor:
        """[n, f, o..] by torch, in the dtype of the operands."""
        x, weight, *others = operands
        for dim, (_, _, _, low, high, spread) in enumerate(self.window()):
            x = _spread(x, 2 + dim, spread)
            pads = [0] * (2 * self.rank)
            place = 2 * (self.rank - 1 - dim)  # torch counts from the last dim
            pads[place : place + 2] = [low, high]
            x = F.pad(x, pads)
        strides = [row[1] for row in self.window()]
        dilations = [row[2] for row in self.window()]
        if (
            min(x.shape[2 + dim] - (t - 1) * d for dim, (t, _, d, *_) in enumerate(self.window()))
            < 1
        ):
            pixels = self.pixels(operands[0].shape[2:])
            return x.new_empty((x.shape[0], weight.shape[0], *pixels))
        convolve = _CONVOLUTIONS[self.rank]
        y: Tensor = convolve(x, weight, None, strides, 0, dilations, self.groups)
        if not others:
            return y
        bias, residual = others
        return torch.relu(y + bias.view(-1, *[1] * self.rank) + residual)

    def run(self, operands: Sequence[Tensor]) -> Tensor:
        """[n, f, o..] by the kernel."""
        x, weight, *others = operands
        inputs = [_to_layout(x, self.last[0])]
        if self.panel is None:
            inputs.append(weight)
        elif self.is_merged:
            inputs.append(pack_merged(weight, self.panel))
        else:
            inputs.append(pack_filter(weight, self.groups, self.panel))
        if others:
            inputs += [others[0], _to_layout(others[1], self.last[1])]
        [y] = compiled(self)(inputs, x.shape[0], *x.shape[2:])
        return torch.movedim(y, -1, 1) if self.last[1] else y


def _spread(x: Tensor, dim: int, step: int) -> Tensor:
    """`x` with ``step - 1`` zeros between neighbours of a dim."""
    if step == 1 or x.shape[dim] == 0:
        return x
    shape = list(x.shape)
    shape[dim] = (shape[dim] - 1) * step + 1
    wide = x.new_zeros(shape)
    wide[(slice(None),) * dim + (slice(None, None, step),)] = x
    return wide


def _to_layout(x: Tensor, last: bool) -> Tensor:
    return torch.movedim(x, 1, -1).contiguous() if last else x.contiguous()


def pack_filter(weight: Tensor, groups: int, panel: int) -> Tensor:
    """[g * f, c, t..] as [g, ceil(f / panel), t.., c, panel], zeros past the end."""
    outside, inside, *taps = weight.shape
    rows = weight.reshape(groups, outside // groups, inside, -1).movedim(2, 3)
    panels = -(-(outside // groups) // panel)
    padded = weight.new_zeros(groups, panels * panel, rows.shape[2], inside)
    padded[:, : outside // groups] = rows
    packed = padded.view(groups, panels, panel, rows.shape[2], inside).movedim(2, -1)
    return packed.reshape(groups, panels, *taps, inside, panel).contiguous()


def pack_merged(weight: Tensor, panel: int) -> Tensor:
    """[g * f, c, t..] as [ceil(g * f / panel), t.., c, panel], padded; no c if it is 1."""
    channels, inside, *taps = weight.shape
    panels = -(-channels // panel)
    padded = weight.new_zeros(panels * panel, inside, *taps)
    padded[:channels] = weight
    packed = padded.view(panels, panel, inside, *taps).movedim(2, -1).movedim(1, -1)
    return (packed.squeeze(-2) if inside == 1 else packed).contiguous()


@functools.cache
def compiled(layer: Layer) -> CpuKernel:
    """The kernel of a layer: symbols are the batch, then the image's sizes."""
    return CpuKernel(kernel_text(layer), vector_bytes=layer.vector_bytes)


def kernel_text(layer: Layer) -> str:
    """A module with the kernel ``@k``."""
    rank, element = layer.rank, layer.element
    image = [f"s{1 + dim}" for dim in range(rank)]
    pixels = [_pixels(size, *row) for size, row in zip(image, layer.window(), strict=True)]
    channels_in, channels_out = layer.groups * layer.inside, layer.groups * layer.outside
    x = tensor(element, *_laid_out("s0", channels_in, image, layer.last[0]))
    y = tensor(element, *_laid_out("s0", channels_out, pixels, layer.last[1]))
    dims = [f"d{2 + dim}" for dim in range(rank)]
    inner = f"d{2 + rank}"
    read = _laid_out("d0", f"d1 * {layer.inside} + {inner}", dims, layer.last[0])
    written = _laid_out("d0", f"d1 * {layer.outside} + {inner}", dims, layer.last[1])
    w, weight_read = _weight(layer)
    bias = tensor(element, channels_out)
    out = access(3 + rank, ", ".join(map(str, written)))
    extras, arguments = "", ""
    if layer.epilogue:
        arguments = f", %b: {bias}, %r: {y}"
        at = access(3 + rank, f"d1 * {layer.outside} + {inner}")
        extras = f"extras(%b at {at} : {bias}, %r at {out} : {y}) {_epilogue(element)}"
    space = ["s0", layer.groups, *pixels, layer.outside, layer.inside, *layer.taps]
    return f"""
      shapejit.kernel @k symbols {1 + rank} (%x: {x}, %w: {w}{arguments}) {{
        %0 = shapejit.conv over [{", ".join(map(str, space))}] {_window(layer, image)}
            input(%x at {access(3 + rank, ", ".join(map(str, read)))} : {x})
            weight(%w at {access(3 + rank, weight_read)} : {w})
            {extras} -> {out} : {y}
        shapejit.yield %0 : {y}
      }}"""


def _laid_out(batch: Any, channels: Any, spatial: Sequence[Any], last: bool) -> list[Any]:
    return [batch, *spatial, channels] if last else [batch, channels, *spatial]


def _pixels(
    size: str, taps: int, stride: int, dilation: int, low: int, high: int, spread: int
) -> str:
    offset = low + high - (taps - 1) * dilation - spread
    return f"({size} * {spread} + {offset}) floordiv {stride} + 1"


def _window(layer: Layer, image: Sequence[str]) -> str:
    rows = layer.window()
    pads = ", ".join(f"({low}, {high})" for _, _, _, low, high, _ in rows)
    return (
        f"image [{', '.join(image)}] stride {[row[1] for row in rows]} "
        f"dilation {[row[2] for row in rows]} lhs_dilation {[row[5] for row in rows]} "
        f"padding [{pads}]"
    )


def _weight(layer: Layer) -> tuple[str, str]:
    """Type and map of the weight."""
    taps = [f"d{3 + dim}" for dim in range(layer.rank)]
    if layer.taps_first:
        return tensor(layer.element, *layer.taps, layer.groups), ", ".join([*taps, "d0"])
    if layer.panel is None:
        type_ = tensor(layer.element, layer.groups * layer.outside, layer.inside, *layer.taps)
        return type_, ", ".join([f"d0 * {layer.outside} + d1", "d2", *taps])
    if layer.is_merged:
        channel = f"(d0 * {layer.outside} + d1)"
        channels, inner = -(-layer.groups * layer.outside // layer.panel), layer.inside
        shape = [channels, *layer.taps, *([inner] if inner > 1 else []), layer.panel]
        indices = [f"{channel} floordiv {layer.panel}", *taps, *(["d2"] if inner > 1 else [])]
        return tensor(layer.element, *shape), ", ".join([*indices, f"{channel} mod {layer.panel}"])
    panels = -(-layer.outside // layer.panel)
    shape = [layer.groups, panels, *layer.taps, layer.inside, layer.panel]
    indices = ["d0", f"d1 floordiv {layer.panel}", *taps, "d2", f"d1 mod {layer.panel}"]
    return tensor(layer.element, *shape), ", ".join(indices)


def _epilogue(element: str) -> str:
    """max(acc + bias + residual, 0) in f32, for halves; else in the element's type."""
    half = element in ("f16", "bf16")
    inner = "f32" if half else element

    def widened(name: str) -> str:
        return f"%{name}_ = arith.extf %{name} : {element} to f32\n" if half else ""

    end = "_" if half else ""
    narrowed = f"%5 = arith.truncf %4 : f32 to {element}\n" if half else ""
    return f"""epilogue {{
    ^bb0(%acc: {inner}, %bias: {element}, %residual: {element}):
      {widened("bias")}{widened("residual")}
      %zero = arith.constant 0.0 : {inner}
      %2 = arith.addf %acc, %bias{end} : {inner}
      %3 = arith.addf %2, %residual{end} : {inner}
      %4 = arith.maximumf %3, %zero : {inner}
      {narrowed}shapejit.yield %{"5" if half else "4"} : {element}
    }}"""
