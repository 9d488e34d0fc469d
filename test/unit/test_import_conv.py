# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rules of convolutions."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from torch import Tensor, nn

from reference.importing import Imported, quick, sizes
from shapejit.errors import ShapeJitError
from shapejit.importer import import_model

# x is [n, 4, h, w]; "deep" and "line" see it as [n, 4, h, w, 1] and [n, 4, h * w].


def _line(x: Tensor) -> Tensor:
    return x.flatten(2)


CONVOLUTIONS = {
    "plain": lambda x, w, b: F.conv2d(x, w),
    "bias": lambda x, w, b: F.conv2d(x, w, b, padding=1),
    "strides": lambda x, w, b: F.conv2d(x, w, b, stride=(2, 3), padding=(1, 2)),
    "stride_over_kernel": lambda x, w, b: F.conv2d(x, w[:, :, :2, :1], stride=4),
    "dilation": lambda x, w, b: F.conv2d(x, w, dilation=(2, 1), padding=(2, 0)),
    "kernel_over_image": lambda x, w, b: F.conv2d(x, w, dilation=4, padding=8, stride=3),
    "groups": lambda x, w, b: F.conv2d(x, w[:, :2], b, padding=1, groups=2),
    "depthwise": lambda x, w, b: F.conv2d(x, w[:4, :1], padding=1, groups=4),
    "depthwise_multiplied": lambda x, w, b: F.conv2d(x, w[:, :1], padding=1, groups=4),
    "pointwise": lambda x, w, b: F.conv2d(x, w[:, :, :1, :1], b),
    "same": lambda x, w, b: F.conv2d(x, w[:, :, :2], b, padding="same"),
    "same_dilated": lambda x, w, b: F.conv2d(x, w[:, :, :2], padding="same", dilation=(3, 2)),
    "valid": lambda x, w, b: F.conv2d(x, w, padding="valid", stride=2),
    "no_batch": lambda x, w, b: F.conv2d(x[0], w, b, padding=1),
    "convolution": lambda x, w, b: torch.convolution(
        x, w, b, [2, 2], [1, 1], [1, 1], False, [0, 0], 1
    ),
    "line": lambda x, w, b: F.conv1d(_line(x), w[:, :, 0], b, stride=2, padding=2),
    "deep": lambda x, w, b: F.conv3d(x.unsqueeze(-1), w.unsqueeze(-1), b, padding=(1, 0, 1)),
    "transposed": lambda x, w, b: F.conv_transpose2d(x, w[:4]),
    "transposed_strides": lambda x, w, b: F.conv_transpose2d(
        x, w[:4], b[:4], stride=(2, 3), padding=1, output_padding=(1, 2)
    ),
    "transposed_groups": lambda x, w, b: F.conv_transpose2d(
        x, w[:4, :2], stride=2, groups=2, dilation=2
    ),
    "transposed_cropped": lambda x, w, b: F.conv_transpose2d(
        x, w[:4, :, :2, :2], stride=3, padding=2
    ),
    "transposed_line": lambda x, w, b: F.conv_transpose1d(_line(x), w[:4, :, 0], stride=2),
    "transposed_deep": lambda x, w, b: F.conv_transpose3d(
        x.unsqueeze(-1), w[:4].unsqueeze(-1), stride=(2, 1, 3)
    ),
    "transposed_convolution": lambda x, w, b: torch.convolution(
        x, w[:4], None, [2, 2], [1, 1], [1, 1], True, [1, 0], 1
    ),
}


@pytest.fixture(scope="module")
def convolutions() -> Imported:
    examples = [torch.randn(4, 4, 7, 9), torch.randn(8, 4, 3, 3), torch.randn(8)]
    return Imported.table(
        CONVOLUTIONS, examples, [{0: "n", 2: "h", 3: "w"}, {}, {}], low=3, high=16
    )


@quick
@given(n=sizes(3, 5), h=sizes(3, 16), w=sizes(3, 16))
def test_convolutions(convolutions: Imported, n: int, h: int, w: int) -> None:
    convolutions.check(torch.randn(n, 4, h, w), torch.randn(8, 4, 3, 3), torch.randn(8))


def test_small_sizes() -> None:
    """Batches of 0 and images of one pixel, where the padding makes that legal."""
    functions = {
        name: CONVOLUTIONS[name]
        for name in ("bias", "strides", "groups", "depthwise", "pointwise", "same", "transposed")
    }
    examples = [torch.randn(2, 4, 7, 9), torch.randn(8, 4, 3, 3), torch.randn(8)]
    dims = [{0: "n", 2: "h", 3: "w"}, {}, {}]
    imported = Imported.table(functions, examples, dims, low=0, high=16)
    for n, h, w in ((0, 4, 5), (1, 1, 1), (0, 1, 1), (3, 1, 16)):
        imported.check(torch.randn(n, 4, h, w), torch.randn(8, 4, 3, 3), torch.randn(8))


def test_image_under_kernel_is_refused() -> None:
    """torch refuses an image smaller than the kernel, so the range must exclude it."""
    model = nn.Conv2d(4, 8, 5).eval()
    height = torch.export.Dim("height", min=2, max=64)
    with pytest.raises(ShapeJitError, match="height"):
        import_model(model, (torch.randn(2, 4, 9, 9),), dynamic_shapes=({2: height},))


def test_results_are_channels_last() -> None:
    """One layout from the first convolution on: the second one reads what the first one wrote."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3)).eval()
    text = str(import_model(model, (torch.randn(1, 3, 9, 9),)).module)
    assert len(re.findall(r"shapejit\.conv", text)) == 2
    assert "tensor<1x7x7x8xf32" in text
    assert "tensor<1x5x5x16xf32" in text


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_modes(mode: str) -> None:
    model = nn.Conv2d(4, 8, 3, padding=(2, 1), padding_mode=mode)
    dims = {2: torch.export.Dim("h", min=3, max=16), 3: torch.export.Dim("w", min=3, max=16)}
    imported = Imported(model, (torch.randn(1, 4, 9, 7),), (dims,))
    for h, w in ((3, 3), (9, 7), (16, 4)):
        imported.check(torch.randn(1, 4, h, w))
