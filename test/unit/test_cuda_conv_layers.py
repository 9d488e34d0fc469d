# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Single convolutions of each type and arithmetic, compiled for a GPU and run on a simulated one.

Some see more zeros around an image than their window reaches, as transposed convolutions with
little padding do, so that their results have pixels of which none sees the image. Others are
depthwise.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from unit.ptx_samples import needs_ptxas
from unit.simulated_programs import simulated

pytestmark = needs_ptxas

LAYERS: dict[str, nn.Module] = {
    "line": nn.ConvTranspose1d(3, 5, 3),
    "spread line": nn.ConvTranspose1d(4, 3, 5, stride=2, padding=1, output_padding=1),
    "plane": nn.ConvTranspose2d(32, 32, 3),
    "groups": nn.ConvTranspose2d(6, 4, (3, 2), dilation=(1, 2), groups=2),
    "cropped": nn.ConvTranspose2d(4, 8, 3, padding=(3, 0)),
    "one tap": nn.Conv2d(4, 3, 1, padding=(2, 0), bias=False),
    "few taps": nn.Conv2d(8, 3, (2, 3), stride=(1, 2), padding=(4, 5)),
    "cube": nn.ConvTranspose3d(2, 3, (2, 1, 3), stride=(1, 2, 1)),
}

#: By name the type, the precision, and what an element may differ by, as part of the sum of its
#: products' absolute values: by factors, or a result, that were rounded, and by sums in float32.
KINDS = {
    "bf16": (torch.bfloat16, "auto", 2.0**-8),
    "tf32": (torch.float32, "tf32", 2.0**-10 + 2.0**-15),
    "ieee": (torch.float32, "ieee", 2.0**-15),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, "ieee") for name in LAYERS]
    + [(name, "tf32") for name in ("line", "plane", "one tap")]
    + [(name, "bf16") for name in ("line", "plane", "groups")],
)
def test_more_zeros_than_the_window_reaches(name: str, kind: str) -> None:
    check(LAYERS[name], kind, least=8 if name == "cropped" else 1)


DEPTHWISE: dict[str, nn.Module] = {
    "plane": nn.Conv2d(8, 8, 3, padding=1, groups=8),
    "line": nn.Conv1d(3, 3, 4, padding=3, groups=3, bias=False),
    "cube": nn.Conv3d(2, 2, (2, 1, 3), padding=1, groups=2),
    "strides": nn.Conv2d(12, 12, 5, stride=(2, 1), padding=2, dilation=(1, 2), groups=12),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [("plane", "tf32"), *((name, kind) for name in DEPTHWISE for kind in ("ieee", "bf16"))],
)
def test_depthwise(name: str, kind: str) -> None:
    """By kernels of their own, which store a result with its channels first, too."""
    names = check(DEPTHWISE[name], kind, least=5 if name == "strides" else 3)
    assert any("depthwise" in each for each in names)
    assert not any("simt" in each or "unaligned" in each for each in names)


def test_depthwise_transposed() -> None:
    """Zeros between pixels: as any other layer."""
    names = check(nn.ConvTranspose2d(6, 6, 3, stride=2, padding=1, groups=6), "ieee", least=2)
    assert any("simt" in each for each in names)


def check(module: nn.Module, kind: str, *, least: int) -> Sequence[str]:
    """Compares a layer with float64 at some sizes.

    Args:
        module: the layer; it gets new parameters.
        kind: of `KINDS`.
        least: side of an image.

    Returns:
        The names of the variants of its kernels.
    """
    torch.manual_seed(0)
    dtype, precision, share = KINDS[kind]
    layer: Any = copy.deepcopy(module)
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
        parameter.normal_()
    layer = layer.eval().to(dtype)
    rank = layer.weight.dim() - 2
    sides = {2 + i: Dim(f"d{i}", min=least, max=9) for i in range(rank)}
    example = torch.randn(2, layer.in_channels, *([9, 8, 8][:rank])).to(dtype)
    program, _ = simulated(
        layer,
        (example,),
        ({0: Dim("n", min=0, max=2), **sides},),
        max_regions=2,
        float32_precision=precision,
    )
    exact = copy.deepcopy(layer).double()
    magnitudes = copy.deepcopy(exact)
    for parameter in magnitudes.parameters():
        parameter.abs_()
    for sizes in ((1, *[least] * rank), (2, *[least + i for i in range(rank)]), (0, *[8] * rank)):
        x = torch.randn(sizes[0], layer.in_channels, *sizes[1:]).to(dtype)
        got, expected = program(x), exact(x.double())
        assert got.shape == expected.shape
        allowed = share * magnitudes(x.double().abs())
        assert ((got.double() - expected).abs() <= allowed).all(), sizes
    assert program.artefacts.gpu is not None
    return [variant.name for variant in program.artefacts.gpu.variants]
