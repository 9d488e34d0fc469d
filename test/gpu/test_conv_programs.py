# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random convolutions as programs on a GPU, by whatever kernels are chosen, against cuDNN."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_mlir")

from torch import Tensor, nn  # noqa: E402
from torch.export import Dim  # noqa: E402

import shapejit  # noqa: E402
from shapejit.gpu.device import Device  # noqa: E402

#: By name the type, the precision, and the least error that counts, as part of what a sum of such
#: products is like: that of rounding alone, since cuDNN computes some layers in a finer arithmetic
#: than it may, and results of a few elements may be exact by luck.
KINDS = {
    "bf16": (torch.bfloat16, "auto", 2.0**-9),
    "f16": (torch.float16, "auto", 2.0**-12),
    "tf32": (torch.float32, "tf32", 4e-4),
    "ieee": (torch.float32, "ieee", 1e-6),
}
PARTS, IN_A_PART = 6, 10
MOST = 40

_LAYERS: dict[tuple[int, bool], Callable[..., nn.Module]] = {
    (1, False): nn.Conv1d, (2, False): nn.Conv2d, (3, False): nn.Conv3d,
    (1, True): nn.ConvTranspose1d, (2, True): nn.ConvTranspose2d, (3, True): nn.ConvTranspose3d,
}  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A layer, its channels, and the least sides of an image that have a result."""

    layer: nn.Module
    channels: int
    least: tuple[int, ...]

    def images(self, rng: random.Random) -> Iterator[tuple[int, ...]]:
        """Batches and sides: the smallest, none, and two at random."""
        yield (1, *self.least)
        yield (0, *(side + 3 for side in self.least))
        most = (MOST, MOST, 12)[len(self.least) - 1]
        for batch in (rng.randint(1, 3), 4):
            yield (batch, *(rng.randint(side, max(side, most)) for side in self.least))


def drawn(rng: random.Random) -> Drawn:
    """A layer at random: mostly of two dims, with windows that may be larger than images."""
    rank = rng.choice((1, 2, 2, 2, 2, 3))
    transposed = rng.random() < 0.15
    taps = [rng.choice((1, 2, 3, 3, 5)) for _ in range(rank)]
    strides = [rng.choice((1, 1, 2)) for _ in range(rank)]
    dilations = [rng.choice((1, 1, 2)) for _ in range(rank)]
    reach = [d * (t - 1) + 1 for d, t in zip(dilations, taps, strict=True)]
    padding = [rng.randint(0, each // 2) for each in reach]
    groups = rng.choice((1, 1, 1, 1, 2, 4))
    inside = groups * rng.choice((1, 3, 8, 20, 64))
    outside = groups * rng.choice((1, 8, 24, 64, 100))
    layer = _LAYERS[rank, transposed](
        inside, outside, taps, strides, padding, dilation=dilations, groups=groups,
        bias=rng.random() < 0.5,
    )  # fmt: skip
    if transposed:
        # (side - 1) * stride + reach - 2 * padding pixels, of which there has to be one.
        least = [1 if r > 2 * p else 2 for r, p in zip(reach, padding, strict=True)]
    else:
        least = [max(1, r - 2 * p) for r, p in zip(reach, padding, strict=True)]
    return Drawn(layer, inside, tuple(least))


def shapes_of(each: Drawn) -> Any:
    """All dims but the channels are free."""
    sides = {2 + i: Dim(f"d{i}", min=side, max=MOST + 8) for i, side in enumerate(each.least)}
    return ({0: Dim("n", min=0, max=4), **sides},)


def check(each: Drawn, kind: str, place: str, rng: random.Random) -> None:
    """No more than 1.2 times as far from float64 as PyTorch, by the mean square."""
    dtype, precision, least_error = KINDS[kind]
    model = each.layer.eval().requires_grad_(False).to(place, dtype)
    exact = copy.deepcopy(model).double()
    # Of squares: the variance of sums of such products.
    squares = copy.deepcopy(exact)
    for parameter in squares.parameters():
        parameter.square_()
    example = torch.randn(2, each.channels, *(side + 4 + i for i, side in enumerate(each.least)))
    program = shapejit.compile(
        model, (example.to(place, dtype),), dynamic_shapes=shapes_of(each),
        float32_precision=precision, max_regions=4,
    )  # fmt: skip
    for batch, *sides in each.images(rng):
        x = torch.randn(batch, each.channels, *sides, device=place).to(dtype)
        expected: Tensor = exact(x.double())
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=precision == "tf32"):
            own = model(x)
        got, again = program(x), program(x)
        assert got.shape == expected.shape
        assert torch.equal(got, again), f"{model} at {(batch, *sides)} differs from itself"
        if got.numel():
            ours, torchs = (((y.double() - expected) ** 2).mean().sqrt() for y in (got, own))
            usual = squares(x.double() ** 2).mean().sqrt()
            allowed = max(1.2 * torchs, least_error * usual)
            assert ours <= allowed, f"{model} at {(batch, *sides)}: {ours} against {torchs}"


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", KINDS)
def test_random_layers(device: Device, kind: str, part: int) -> None:
    """Sixty of each kind: images smaller than the window, of side 1, and empty batches."""
    rng = random.Random(f"{kind} {part}")
    torch.manual_seed(part)
    with torch.no_grad():
        for _ in range(IN_A_PART):
            check(drawn(rng), kind, "cuda", rng)
