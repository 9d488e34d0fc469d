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


@dataclass(frozen=True)
class Kind:
    """A type and an arithmetic.

    Attributes:
        dtype, precision: of the layer; of float32.
        usual: the error of rounding, by the mean square, as part of what a sum of such products is
            like. cuDNN computes some layers in a finer arithmetic than it may, and results of a
            few elements may be exact by luck, so it counts where PyTorch's own error is smaller.
        most: the error that no element exceeds, as part of the sum of its products' absolute
            values: of factors and a result that were rounded, and of sums in float32 in any order,
            which tensor cores cut off after 2^-23. Of Winograd's algorithm, whose sums are over
            pixels beside the window, there is no such limit: None.
    """

    dtype: torch.dtype
    precision: str
    usual: float
    most: float | None


# Factors of tf32 have 11 bits. Rounded to the nearest, they are off by 2^-11 at most each; in sums
# of random products that is 3e-4 by the mean square.
KINDS = {
    "bf16": Kind(torch.bfloat16, "auto", 2.0**-9, 2.0**-8),
    "f16": Kind(torch.float16, "auto", 2.0**-12, 2.0**-10),
    "tf32": Kind(torch.float32, "tf32", 4e-4, 2.0**-10 + 2.0**-13),
    "ieee": Kind(torch.float32, "ieee", 1e-6, None),
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


def with_parameters(model: nn.Module, function: Callable[[Tensor], Tensor]) -> nn.Module:
    """A copy with other parameters."""
    made = copy.deepcopy(model)
    for parameter in made.parameters():
        parameter.copy_(function(parameter))
    return made


def check(each: Drawn, kind: Kind, place: str, rng: random.Random) -> None:
    """No more than 1.2 times as far from float64 as PyTorch, by the mean square, and no element
    farther than its arithmetic may be."""
    dtype, precision = kind.dtype, kind.precision
    model = each.layer.eval().requires_grad_(False).to(place, dtype)
    exact = copy.deepcopy(model).double()
    # The variance of sums of such products, and what none of them exceeds.
    squares = with_parameters(exact, torch.square)
    magnitudes = with_parameters(exact, torch.abs)
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
            sums = squares(x.double() ** 2).mean().sqrt()
            # Of a few results the mean may be that of unlikely ones: three times its deviation.
            usual = kind.usual * sums * (1 + 3 * got.numel() ** -0.5)
            allowed = max(1.2 * torchs, usual)
            assert ours <= allowed, f"{model} at {(batch, *sides)}: {ours} against {torchs}"
            if kind.most is not None:
                # Results near 0 are multiples of the least number of their type.
                least = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
                most = kind.most * magnitudes(x.double().abs()) + least
                worst = (got.double() - expected).abs() - most
                assert (worst <= 0).all(), f"{model} at {(batch, *sides)}: {worst.max()} too far"


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", KINDS)
def test_random_layers(device: Device, kind: str, part: int) -> None:
    """Sixty of each kind: images smaller than the window, of side 1, and empty batches."""
    rng = random.Random(f"{kind} {part}")
    torch.manual_seed(part)
    with torch.no_grad():
        for _ in range(IN_A_PART):
            check(drawn(rng), KINDS[kind], "cuda", rng)
