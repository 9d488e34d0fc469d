# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""ResNet-50 on images of every size: one compile, a table and a picture of latency over size.

    pip install 'shapejit[demo]'
    python examples/images.py                                # synthetic images
    python examples/images.py photos --weights resnet50.pth  # a folder; torchvision's weights

Images keep their sizes; nothing is scaled or cropped, except that what is too large is halved.
Without a file of weights the network has random ones, so its classes mean nothing.
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

import shapejit

LEAST, MOST = 32, 1024
SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".webp"}
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Bottleneck(nn.Module):
    """A block, its parts named as in torchvision."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        outside = 4 * width
        self.conv1 = nn.Conv2d(inside, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outside, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outside)
        self.downsample: nn.Module | None = None
        if stride != 1 or inside != outside:
            shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        y = functional.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return functional.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet50(nn.Module):
    """ResNet-50 (He et al., 2015) with its strides in 3x3 layers: [n, 3, h, w] to [n, 1000]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inside = 64
        for number, (width, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
            blocks = nn.Sequential()
            for block in range(count):
                blocks.append(Bottleneck(inside, width, 2 if number and not block else 1))
                inside = 4 * width
            setattr(self, f"layer{number + 1}", blocks)
        self.fc = nn.Linear(inside, 1000)

    def forward(self, x: Tensor) -> Tensor:
        y = self.maxpool(functional.relu(self.bn1(self.conv1(x))))
        y = self.layer4(self.layer3(self.layer2(self.layer1(y))))
        result: Tensor = self.fc(functional.adaptive_avg_pool2d(y, 1).flatten(1))
        return result


def load_model(weights: Path | None) -> nn.Module:
    torch.manual_seed(0)
    model = ResNet50()
    if weights is not None:
        model.load_state_dict(torch.load(weights, weights_only=True))
    return model.eval().requires_grad_(False)


# Images -------------------------------------------------------------------------------------------


def images_of(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """The images of a folder with their names, as [3, h, w] normalized as in training."""
    import numpy as np
    from PIL import Image

    for path in sorted(folder.iterdir()):
        if path.suffix.lower() not in SUFFIXES:
            continue
        with Image.open(path) as file:
            image = file.convert("RGB")
        while max(image.size) > MOST:
            image = image.reduce(2)
        if min(image.size) >= LEAST:
            pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
            yield path.name, normalized(pixels)


def synthetic_images(count: int) -> Iterator[tuple[str, Tensor]]:
    """Noise of random sizes, the same every time."""
    sizes = random.Random(0)
    torch.manual_seed(0)
    for number in range(count):
        height, width = (round(2 ** sizes.uniform(5.5, 9.5)) for _ in range(2))
        yield f"synthetic-{number}", normalized(torch.rand(3, height, width))


def normalized(pixels: Tensor) -> Tensor:
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (MEAN, DEVIATION))
    return (pixels - mean) / deviation


# Measuring ----------------------------------------------------------------------------------------


def milliseconds(call: Callable[[Tensor], Tensor], x: Tensor) -> float:
    start = time.perf_counter()
    call(x)
    if x.is_cuda:
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def plot(rows: list[tuple[float, float, float]], path: Path) -> None:
    """Latency over megapixels, each axis logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pixels, ours, eager = zip(*sorted(rows), strict=True)
    figure, axes = pyplot.subplots(figsize=(6.4, 4))
    axes.loglog(pixels, eager, "o", markersize=4, color="#868e96", label="eager PyTorch")
    axes.loglog(pixels, ours, "o", markersize=4, color="#0b7285", label="shapejit")
    axes.set(xlabel="megapixels", ylabel="ms an image", title="ResNet-50, every image of its size")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    axes.grid(alpha=0.25, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(f"wrote {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help="of images; synthetic ones if omitted")
    parser.add_argument("--weights", type=Path, help="a state dict of torchvision's ResNet-50")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--count", type=int, default=24, help="of synthetic images")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each image")
    parser.add_argument("--output", type=Path, default=Path("images.png"), help="the picture")
    args = parser.parse_args()

    images = list(images_of(args.folder) if args.folder else synthetic_images(args.count))
    if not images:
        parser.error(f"{args.folder} holds no images of at least {LEAST} pixels each way")
    model = load_model(args.weights).to(args.device)
    if args.device == "cuda":
        model = model.to(torch.bfloat16)
    kind = next(model.parameters()).dtype
    batch = [(name, x[None].to(args.device, kind)) for name, x in images]
    start = time.perf_counter()
    height, width = (Dim(name, min=LEAST, max=MOST) for name in ("height", "width"))
    example = torch.randn(1, 3, 224, 256, device=args.device, dtype=kind)
    program = shapejit.compile(model, (example,), dynamic_shapes=({2: height, 3: width},))
    print(f"compiled once in {time.perf_counter() - start:.1f} s\n")
    print(f"{'image':<24}{'size':>12}{'first ms':>10}{'ms':>9}{'eager ms':>10}  class")

    # Eager PyTorch is faster with channels last.
    eager_model = copy.deepcopy(model).to(memory_format=torch.channels_last)
    rows, firsts = [], []
    with torch.inference_mode():
        for name, x in batch:
            last = x.contiguous(memory_format=torch.channels_last)
            first = milliseconds(program, x)
            times = {"ours": [], "eager": []}  # type: dict[str, list[float]]
            for _ in range(args.rounds):
                times["ours"].append(milliseconds(program, x))
                times["eager"].append(milliseconds(eager_model, last))
            ours, eager = (statistics.median(times[key]) for key in ("ours", "eager"))
            best = int(program(x).argmax())
            size = f"{x.shape[3]}x{x.shape[2]}"
            print(f"{name:<24}{size:>12}{first:>10.2f}{ours:>9.2f}{eager:>10.2f}  {best}")
            rows.append((x.shape[2] * x.shape[3] / 1e6, ours, eager))
            firsts.append(first / ours)
    stats = program.stats()
    sizes = len({tuple(x.shape) for _, x in batch})
    ratio = statistics.geometric_mean([ours / eager for _, ours, eager in rows])
    print(f"\n{stats.calls} calls at {sizes} sizes, {stats.compiles} compile")
    print(f"time over eager PyTorch's, geometric mean: {ratio:.2f}")
    print(f"first call of a size over later ones, median: {statistics.median(firsts):.2f}")
    plot(rows, args.output)


if __name__ == "__main__":
    main()
