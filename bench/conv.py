# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Convolutions on a GPU: kernels as chosen for their sizes, against cuDNN.

Sets of layers, bfloat16, channels last:

- ``known``: layers of ResNet-50, VGG-16, a UNet, and of odd sizes, 1, 4 and 16 images: 81 cells;
- ``others``: layers of VGG-16, of text detection and recognition, and of a diffusion model's
  decoder, that nothing was fitted on: 40 cells;
- ``depthwise``: layers of MobileNets, 1 and 16 images, of the largest 64, which come from memory.

The peer is cuDNN through torch, with benchmarks (it tries its algorithms) and without. What it
picks with benchmarks differs from run to run, so a comparison takes the lower time of three runs::

    for i in 1 2 3; do python bench/conv.py --output conv-$i.json; done
    python bench/conv.py --lower conv-1.json conv-2.json conv-3.json

``--halo`` times every schedule of the family halo beside the chosen ones, where it suits a layer;
``--nearest 12`` the twelve that the cost model puts first, of depthwise layers all that it knows.
From such runs ``python -m shapejit.passes.buckets.fit_conv`` and ``.fit_depthwise`` fit it. A layer
of one tap that sees every pixel is a matrix product, as in programs. ``--element f32`` measures
factors that are rounded to tf32 (of depthwise layers, as they are), ``f16`` those.

Results are checked against float64 before they are timed. Calls are captured into CUDA graphs and
replayed in a shuffled order, in bursts and sustained, as in ``gemm.py``; figures are the best
peer's median time over ours. Writes ``bench/results/conv-<GPU>.json``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import mlir.ir as ir
import torch
from kernel_cells import Cell, Expected
from kernel_ranking import ranking
from kernel_runs import Record, parser_of, run, summary
from torch import Tensor
from torch.nn import functional

from shapejit import ir as sir
from shapejit.passes.nvgpu.conv.depthwise_choice import candidates
from shapejit.passes.nvgpu.conv.problem import conv_problem
from shapejit.passes.nvgpu.schedule import HALO_CANDIDATES
from unit.cpu_convs import Layer, kernel_text
from unit.cpu_kernels import access, tensor

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
#: By how much of itself, and of the largest element, an element may be off. tf32 has 11 bits, of
#: each factor.
ERRORS = {"bf16": (2.0**-8, 2.0**-14), "f16": (2.0**-11, 2.0**-14), "f32": (0.0, 2.0**-9)}

#: Height, width, channels, filters, taps along a side, stride, padding.
Shape = tuple[int, int, int, int, int, int, int]

KNOWN: dict[str, Shape] = {
    "resnet 64@56": (56, 56, 64, 64, 3, 1, 1),
    "resnet 128@28": (28, 28, 128, 128, 3, 1, 1),
    "resnet 256@14": (14, 14, 256, 256, 3, 1, 1),
    "resnet 512@7": (7, 7, 512, 512, 3, 1, 1),
    "resnet 128@56/2": (56, 56, 128, 128, 3, 2, 1),
    "resnet 256@28/2": (28, 28, 256, 256, 3, 2, 1),
    "resnet 512@14/2": (14, 14, 512, 512, 3, 2, 1),
    "1x1 64 to 256@56": (56, 56, 64, 256, 1, 1, 0),
    "1x1 256 to 64@56": (56, 56, 256, 64, 1, 1, 0),
    "1x1 128 to 512@28": (28, 28, 128, 512, 1, 1, 0),
    "1x1 512 to 128@28": (28, 28, 512, 128, 1, 1, 0),
    "1x1 256 to 1024@14": (14, 14, 256, 1024, 1, 1, 0),
    "1x1 1024 to 256@14": (14, 14, 1024, 256, 1, 1, 0),
    "1x1 512 to 2048@7": (7, 7, 512, 2048, 1, 1, 0),
    "1x1 2048 to 512@7": (7, 7, 2048, 512, 1, 1, 0),
    "vgg 64@224": (224, 224, 64, 64, 3, 1, 1),
    "vgg 128@112": (112, 112, 128, 128, 3, 1, 1),
    "vgg 256@56": (56, 56, 256, 256, 3, 1, 1),
    "vgg 512@28": (28, 28, 512, 512, 3, 1, 1),
    "vgg 512@14": (14, 14, 512, 512, 3, 1, 1),
    "unet 128@256": (256, 256, 128, 128, 3, 1, 1),
    "unet 320@64": (64, 64, 320, 320, 3, 1, 1),
    "unet 512@64": (64, 64, 512, 512, 3, 1, 1),
    "odd 64@45x77": (45, 77, 64, 64, 3, 1, 1),
    "odd 128@45x77": (45, 77, 128, 128, 3, 1, 1),
    "odd 256@113x61": (113, 61, 256, 256, 3, 1, 1),
    "stem 3 to 64@224/2": (224, 224, 3, 64, 7, 2, 3),
}
IMAGES = (1, 4, 16)

#: With the number of images in front.
OTHERS: tuple[tuple[int, Shape], ...] = (
    *((8, shape) for shape in (
        (224, 224, 3, 64, 3, 1, 1), (224, 224, 64, 64, 3, 1, 1), (112, 112, 64, 128, 3, 1, 1),
        (112, 112, 128, 128, 3, 1, 1), (56, 56, 128, 256, 3, 1, 1), (56, 56, 256, 256, 3, 1, 1),
        (28, 28, 256, 512, 3, 1, 1), (28, 28, 512, 512, 3, 1, 1), (14, 14, 512, 512, 3, 1, 1),
    )),
    *((1, shape) for shape in (
        (736, 960, 3, 32, 3, 2, 1), (368, 480, 32, 32, 3, 1, 1), (368, 480, 32, 64, 3, 1, 1),
        (184, 240, 64, 64, 3, 1, 1), (184, 240, 64, 128, 3, 2, 1), (92, 120, 128, 128, 3, 1, 1),
        (92, 120, 128, 256, 3, 2, 1), (46, 60, 256, 256, 3, 1, 1), (46, 60, 256, 512, 3, 2, 1),
        (23, 30, 512, 512, 3, 1, 1), (184, 240, 256, 64, 3, 1, 1), (92, 120, 256, 64, 3, 1, 1),
        (46, 60, 256, 64, 3, 1, 1), (23, 30, 256, 64, 3, 1, 1),
    )),
    *((6, shape) for shape in (
        (48, 320, 3, 32, 3, 2, 1), (24, 160, 32, 64, 3, 1, 1), (24, 160, 64, 128, 3, 1, 1),
        (12, 160, 128, 128, 3, 1, 1), (12, 80, 128, 256, 3, 1, 1), (6, 80, 256, 256, 3, 1, 1),
        (6, 80, 256, 512, 3, 1, 1),
    )),
    *((1, shape) for shape in (
        (64, 64, 4, 512, 3, 1, 1), (64, 64, 512, 512, 3, 1, 1), (128, 128, 512, 512, 3, 1, 1),
        (256, 256, 512, 512, 3, 1, 1), (256, 256, 512, 256, 3, 1, 1), (256, 256, 256, 256, 3, 1, 1),
        (512, 512, 256, 256, 3, 1, 1), (512, 512, 256, 128, 3, 1, 1), (512, 512, 128, 128, 3, 1, 1),
        (512, 512, 128, 3, 3, 1, 1),
    )),
)  # fmt: skip

#: Height and width, channels, taps, stride, padding.
DEPTHWISE = (
    (112, 32, 3, 1, 1), (112, 96, 3, 2, 1), (56, 144, 3, 1, 1), (28, 192, 3, 1, 1),
    (14, 384, 3, 1, 1), (14, 576, 3, 2, 1), (7, 960, 3, 1, 1), (28, 120, 5, 1, 2),
    (14, 672, 5, 1, 2),
)  # fmt: skip


def cudnn(benchmark: bool, cell: ConvCell) -> Callable[..., Tensor]:
    """The convolution by torch."""
    layer = cell.layer

    def call(x: Tensor, weight: Tensor) -> Tensor:
        image = x.permute(0, 3, 1, 2)
        filters = cell.filters(weight)
        with torch.backends.cudnn.flags(enabled=True, benchmark=benchmark, allow_tf32=True):
            return functional.conv2d(
                image, filters, None, layer.strides, layer.padding[0][0], 1, layer.groups
            )

    return call


@dataclass(frozen=True)
class ConvCell(Cell):
    """A layer at one size.

    Its sizes are images, height and width, which are the kernel's symbols, and, to tell layers
    apart, channels and filters.

    Attributes:
        layer: the layer; its filters are packed as in programs.
        nearest: how many schedules to measure beside the chosen one.
    """

    layer: Layer
    nearest: int = 0

    def text(self) -> str:
        whole = is_product(self.layer)
        text = product_text(self.layer) if whole else kernel_text(self.layer)
        if self.layer.element != "f32":
            return text
        before, arrow, result = text.rpartition(" -> tensor<" if whole else " -> affine_map<")
        return f"{before} {{shapejit.factors = tf32}}{arrow}{result}"

    def more(self) -> list[str]:
        if not self.nearest:
            return []
        if self.layer.groups > 1:
            return depthwise_variants(self.text())
        ranked = ranking(self.text(), self.sizes[:3])
        return [str(schedule) for schedule, _ in ranked[: self.nearest]]

    def operands(self) -> list[Tensor]:
        layer, (n, *image) = self.layer, self.sizes[:3]
        dtype = DTYPES[layer.element]
        inside, outside = layer.groups * layer.inside, layer.groups * layer.outside
        x = torch.randn(n, *image, inside, device="cuda").to(dtype)
        scale = (layer.inside * layer.taps[0] * layer.taps[1]) ** -0.5
        if layer.taps_first:
            weight = torch.randn(*layer.taps, outside, device="cuda") * scale
        else:
            shape = (layer.groups, layer.outside, *layer.taps, layer.inside, 1)
            weight = torch.randn(shape, device="cuda") * scale
        result = torch.empty(n, *layer.pixels(image), outside, device="cuda", dtype=dtype)
        weight = weight.to(dtype)
        if layer.taps_first:  # a copy that is no part of torch's time
            weight.as_torch = weight.permute(2, 0, 1).unsqueeze(1).contiguous()
        return [x, weight, result]

    def filters(self, weight: Tensor) -> Tensor:
        """Filters as torch takes them, [k, c, r, s]: depthwise ones in memory of their own."""
        if self.layer.taps_first:
            return weight.as_torch
        return weight.flatten(0, 1).squeeze(-1).permute(0, 3, 1, 2)

    def expected(self, operands: Sequence[Tensor]) -> list[Expected]:
        x, weight, _ = operands
        first = x[:1].permute(0, 3, 1, 2).double()
        layer = self.layer
        value = functional.conv2d(
            first, self.filters(weight).double(), None, layer.strides, layer.padding[0][0], 1,
            layer.groups,
        ).permute(0, 2, 3, 1)  # fmt: skip
        own, floor = ERRORS[layer.element]
        return [Expected(slice(0, 1), value, own * value.abs() + floor * value.abs().max())]

    def peers(self) -> dict[str, Callable[..., Tensor]]:
        return {"cudnn, benchmarks": cudnn(True, self), "cudnn": cudnn(False, self)}

    def as_ours(self, result: Tensor, like: Tensor) -> Tensor:
        return result.permute(0, 2, 3, 1)

    def flops(self) -> float:
        layer, (n, *image) = self.layer, self.sizes[:3]
        height, width = layer.pixels(image)
        taps = layer.taps[0] * layer.taps[1]
        return 2.0 * n * height * width * layer.groups * layer.outside * layer.inside * taps


def is_product(layer: Layer) -> bool:
    """Whether programs have a matrix product for a layer."""
    return layer.taps == (1, 1) and layer.strides == (1, 1) and layer.groups == 1


def product_text(layer: Layer) -> str:
    """The kernel of such a layer, over [pixels of all images, filters, channels]."""
    pixels, (k, c) = "s0 * s1 * s2", (layer.outside, layer.inside)
    x, w, y = (tensor(layer.element, *sizes) for sizes in ((pixels, c), (k, c), (pixels, k)))
    return f"""
      shapejit.kernel @k symbols 3 (%x: {x}, %w: {w}) {{
        %0 = shapejit.gemm over [{pixels}, {k}, {c}]
            lhs(%x at {access(3, "d0, d2")} : {x}) rhs(%w at {access(3, "d1, d2")} : {w}) -> {y}
        shapejit.yield %0 : {y}
      }}"""


def depthwise_variants(text: str) -> list[str]:
    """All schedules that are considered for a depthwise layer."""
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)  # lives as long as its kernels are looked at
        return list(map(str, candidates(conv_problem(sir.kernels(module)["k"]))))


def bounds_of(*sizes: int) -> tuple[tuple[int, int], ...]:
    """Ranges that a program might have: up to the next power of two."""
    return tuple((1, 1 << max(each - 1, 0).bit_length()) for each in sizes)


def cell_of(group: str, kind: str, n: int, shape: Shape) -> ConvCell:
    height, width, inside, outside, taps, stride, pad = shape
    layer = Layer(
        (taps, taps), inside=inside, outside=outside, strides=(stride, stride),
        padding=((pad, pad), (pad, pad)), element="bf16", panel=1,
    )  # fmt: skip
    sizes = (n, height, width, inside, outside)
    return ConvCell(group, kind, sizes, bounds_of(n, height, width), layer)


def depthwise_cell(n: int, size: int, channels: int, taps: int, stride: int, pad: int) -> ConvCell:
    layer = Layer(
        (taps, taps), inside=1, outside=1, groups=channels, strides=(stride, stride),
        padding=((pad, pad), (pad, pad)), element="bf16", taps_first=True,
    )  # fmt: skip
    kind = f"depthwise {taps}x{taps}{f'/{stride}' if stride > 1 else ''}"
    sizes = (n, size, size, channels, channels)
    return ConvCell("depthwise", kind, sizes, bounds_of(n, size, size), layer)


def kind_of(shape: Shape) -> str:
    """What cells of a kind have in common."""
    _, _, inside, _, taps, stride, _ = shape
    few = ", few channels" if inside % 8 else ""
    return f"{taps}x{taps}{f'/{stride}' if stride > 1 else ''}{few}"


def all_cells() -> list[ConvCell]:
    """The cells of all sets."""
    found = [cell_of("known", kind_of(s), n, s) for s in KNOWN.values() for n in IMAGES]
    found += [cell_of("others", kind_of(s), n, s) for n, s in OTHERS]
    found += [depthwise_cell(n, *each) for each in DEPTHWISE for n in (1, 16)]
    return found + [depthwise_cell(64, *each) for each in DEPTHWISE[:3]]


def of_element(cell: ConvCell, element: str) -> ConvCell | None:
    """A cell with operands of another type; None if no kernel here computes it."""
    if element == "bf16":
        return cell
    if element == "f32" and cell.layer.groups == 1 and cell.layer.inside % 4:
        return None
    return replace(cell, kind=f"{cell.kind}, {element}", layer=replace(cell.layer, element=element))


def lower(paths: Sequence[Path]) -> None:
    """Prints the summary of runs, with the lower time of each provider in each cell."""
    best: dict[tuple[object, ...], Record] = {}
    for path in paths:
        for record in json.loads(path.read_text())["records"]:
            key = (record["group"], record["kind"], tuple(record["sizes"]), record["provider"])
            kept = best.setdefault(key, record)
            for name, value in record.items():
                if name.endswith("_us"):
                    kept[name] = min(kept[name], value)
    for title, row in summary(list(best.values())).items():
        print(f"{title:72} geomean {row['geomean']:6.3f}  worst {row['worst']:6.3f}")


def main() -> None:
    parser = parser_of(__doc__, ("known", "others", "depthwise"))
    parser.add_argument("--halo", action="store_true", help="measure all schedules with a halo too")
    parser.add_argument(
        "--nearest", type=int, default=0, help="measure so many that the cost model puts first"
    )
    parser.add_argument("--element", choices=DTYPES, default="bf16", help="type of the operands")
    parser.add_argument("--lower", type=Path, nargs="*", help="the lower times of these results")
    arguments = parser.parse_args()
    if arguments.lower:
        lower(arguments.lower)
        return
    if arguments.halo:
        arguments.variants += map(str, HALO_CANDIDATES)
    typed = (of_element(cell, arguments.element) for cell in all_cells())
    cells = [replace(cell, nearest=arguments.nearest) for cell in typed if cell is not None]
    run("conv" if arguments.element == "bf16" else f"conv-{arguments.element}", cells, arguments)


if __name__ == "__main__":
    main()
