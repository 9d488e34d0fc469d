# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rules of operators on images: pooling, resizing, padding, moves of pixels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from torch import Tensor, nn
from torch.export import Dim

from reference.importing import Imported, Table, quick, sizes
from shapejit.errors import ShapeJitError
from shapejit.importer import import_model

Functions = Mapping[str, Callable[[Tensor], Any]]

# x is [n, 4, h, w]; "line" and "deep" see it as [n, 4, h * w] and [n, 4, h, w, 1].


def _line(x: Tensor) -> Tensor:
    return x.flatten(2)


POOLS: Functions = {
    "max": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max_strides": lambda x: F.max_pool2d(x, (2, 3), (1, 2), (1, 0)),
    "max_dilated": lambda x: F.max_pool2d(x, 2, 2, 1, dilation=3),
    "max_same": lambda x: F.max_pool2d(x, 5, 1, 2),
    "max_large": lambda x: F.max_pool2d(x, 9, 1, 4),
    "max_larger": lambda x: F.max_pool2d(x, (3, 35), (2, 3), (1, 17)),
    "max_ints": lambda x: F.max_pool2d((x * 9).to(torch.int32), 3, 2, 1),
    "max_line": lambda x: F.max_pool1d(_line(x), 3, 2, 1),
    "max_deep": lambda x: F.max_pool3d(x.unsqueeze(-1), (3, 2, 1), (2, 1, 1), (1, 0, 0)),
    "max_indices": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "max_no_batch": lambda x: F.max_pool2d(x[0], 3, 2, 1),
    "avg": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "avg_uncounted": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "avg_large": lambda x: F.avg_pool2d(x, 7, 3, 3, count_include_pad=False),
    "avg_divisor": lambda x: F.avg_pool2d(x, (2, 3), divisor_override=5),
    "avg_line": lambda x: F.avg_pool1d(_line(x), 3, 1, 1),
    "avg_deep": lambda x: F.avg_pool3d(x.unsqueeze(-1), (2, 3, 1)),
    "whole_avg": lambda x: F.adaptive_avg_pool2d(x, 1),
    "whole_max": lambda x: F.adaptive_max_pool2d(x, 1),
    "rows_avg": lambda x: F.adaptive_avg_pool2d(x, (None, 1)),
    "adaptive_avg": lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
    "adaptive_max": lambda x: F.adaptive_max_pool2d(x, (5, 2), return_indices=True),
    "adaptive_line": lambda x: F.adaptive_avg_pool1d(_line(x), 7),
    "adaptive_no_batch": lambda x: F.adaptive_avg_pool2d(x[0], 2),
    "adaptive_channels": lambda x: F.adaptive_avg_pool2d(x.transpose(1, 2), (2, 3)),
    "power": lambda x: F.lp_pool2d(x, 2, 3),
}
CEIL_POOLS: Functions = {
    "max": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
    "max_padded": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "max_short": lambda x: F.max_pool2d(x, 2, 3, 1, ceil_mode=True),
    "avg": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "avg_uncounted": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
}
RESIZES: Functions = {
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "nearest_3": lambda x: F.interpolate(x, scale_factor=(3, 1)),
    "nearest_odd": lambda x: F.interpolate(x, scale_factor=1.5),
    "nearest_size": lambda x: F.interpolate(x, size=(11, 4)),
    "nearest_sizes": lambda x: F.interpolate(x, size=(x.shape[2] + 3, 2 * x.shape[3])),
    "nearest_line": lambda x: F.interpolate(_line(x), scale_factor=2),
    "nearest_deep": lambda x: F.interpolate(x.unsqueeze(2), scale_factor=2),
    "exact": lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact"),
    "exact_odd": lambda x: F.interpolate(x, size=(7, 9), mode="nearest-exact"),
    "linear": lambda x: F.interpolate(_line(x), scale_factor=2, mode="linear"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear_odd": lambda x: F.interpolate(x, scale_factor=(1.3, 2.5), mode="bilinear"),
    "bilinear_again": lambda x: F.interpolate(
        x, scale_factor=1.7, mode="bilinear", recompute_scale_factor=True
    ),
    "bilinear_size": lambda x: F.interpolate(x, size=(4, 20), mode="bilinear"),
    "bilinear_rows": lambda x: F.interpolate(x, size=(x.shape[2], 5), mode="bilinear"),
    "bilinear_corners": lambda x: F.interpolate(
        x, scale_factor=2, mode="bilinear", align_corners=True
    ),
    "bilinear_one": lambda x: F.interpolate(x, size=(1, 6), mode="bilinear", align_corners=True),
    "trilinear": lambda x: F.interpolate(x.unsqueeze(2), scale_factor=2, mode="trilinear"),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "bicubic_size": lambda x: F.interpolate(x, size=(5, 13), mode="bicubic"),
    "bicubic_corners": lambda x: F.interpolate(
        x, size=(x.shape[2] * 2 + 1, 3), mode="bicubic", align_corners=True
    ),
    "area": lambda x: F.interpolate(x, size=(3, 4), mode="area"),
    "upsample": nn.Upsample(scale_factor=2, mode="bilinear"),
}
PADS: Functions = {
    "constant": lambda x: F.pad(x, (1, 2, 3, 0), value=0.5),
    "channels": lambda x: F.pad(x, (0, 0, 0, 0, 1, 3)),
    "cut": lambda x: F.pad(x, (-1, 2, 0, -2), value=-1.0),
    "only_cut": lambda x: F.pad(x, (-1, -1, -2, 0)),
    "by_size": lambda x: F.pad(x, (0, x.shape[2], 1, 0)),
    "none": lambda x: F.pad(x, (0, 0)),
    "reflect": lambda x: F.pad(x, (1, 3, 2, 1), mode="reflect"),
    "reflect_line": lambda x: F.pad(_line(x), (2, 2), mode="reflect"),
    "replicate": lambda x: F.pad(x, (5, 1, 0, 9), mode="replicate"),
    "circular": lambda x: F.pad(x, (1, 2, 3, 0), mode="circular"),
    "circular_cut": lambda x: F.pad(x, (-1, 2, 2, -2), mode="circular"),
    "reflect_layer": nn.ReflectionPad2d(2),
    "replicate_layer": nn.ReplicationPad2d((1, 0, 2, 3)),
    "zero_layer": nn.ZeroPad2d(1),
    "conv_reflect": lambda x: F.conv2d(F.pad(x, (2, 2, 1, 1), mode="reflect"), x[:1, :, :3, :3]),
}
MOVES: Functions = {
    "shuffle": lambda x: F.pixel_shuffle(x, 2),
    "unshuffle": lambda x: F.pixel_unshuffle(F.pixel_shuffle(torch.cat([x, x], 1), 2), 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "windows": lambda x: F.unfold(x, (2, 3), padding=1, stride=(1, 2), dilation=(2, 1)),
    "roll": lambda x: x.roll((1, -2), (2, 3)),
    "stack": lambda x: torch.stack([x, x * 2], 2),
    "joined": lambda x: torch.cat([x, x[:, :1], x * 2], 1),
    "parts": lambda x: torch.split(x, [1, 3], 1),
    "chunks": lambda x: x.chunk(2, 1),
    "response": lambda x: F.local_response_norm(x, 3),
    "threshold": lambda x: F.threshold(x, 0.1, 2.0),
    "random_leaky": F.rrelu,
}


def table(functions: Functions, low: int) -> Imported:
    dims = {0: Dim("n", min=0, max=8), **{i: Dim("hw"[i - 2], min=low, max=40) for i in (2, 3)}}
    return Imported(Table(functions), [torch.randn(3, 4, 7, 9)], {"inputs": (dims,)})


@pytest.fixture(scope="module")
def pools() -> Imported:
    return table(POOLS, 6)


@quick
@given(n=sizes(1, 4), h=sizes(6, 24), w=sizes(6, 24))
def test_pools(pools: Imported, n: int, h: int, w: int) -> None:
    pools.check(torch.randn(n, 4, h, w))


def test_pools_of_small_images() -> None:
    """Images of one pixel and empty batches, where the padding makes that legal."""
    names = ("max", "max_same", "avg", "avg_uncounted", "whole_avg", "adaptive_avg")
    found = table({name: POOLS[name] for name in names}, 1)
    for n, h, w in ((1, 1, 1), (2, 1, 8), (1, 40, 2)):
        found.check(torch.randn(n, 4, h, w))


def test_pools_pass_nan_on(pools: Imported) -> None:
    x = torch.randn(6, 4, 8, 9)
    x[:, :, 3, 4] = torch.nan
    x[:, :, 7, 8] = -torch.inf
    names = [name for name in POOLS if "ints" not in name and "indices" not in name]
    pools_of_floats = table({n: POOLS[n] for n in names if n != "adaptive_max"}, 6)
    pools_of_floats.check(x)


def test_the_place_of_a_nan_is_the_last_one() -> None:
    """As in torch, where every NaN takes the place of what was found before it."""
    names = ("max_indices", "adaptive_max")
    found = table({name: POOLS[name] for name in names}, 6)
    x = torch.randn(2, 4, 8, 9)
    found.check(torch.where(x > 0.5, torch.nan, x))


AVERAGES: Functions = {
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "upsample_bilinear2d": lambda x: F.interpolate(x, size=(5, 4), mode="bilinear"),
    "upsample_bicubic2d": lambda x: F.interpolate(x, size=(5, 4), mode="bicubic"),
}


@pytest.mark.parametrize("name", AVERAGES)
def test_averages_of_integers_are_refused(name: str) -> None:
    """Their weights would be whole numbers, which are all zero."""
    dtype = torch.int64 if "pool" in name else torch.uint8
    with pytest.raises(ShapeJitError, match=rf"{name}.* of integers: cast them to float32"):
        import_model(Table({name: AVERAGES[name]}), (torch.ones(1, 1, 4, 6, dtype=dtype),))


@pytest.mark.parametrize("name", CEIL_POOLS)
def test_windows_that_hang_over(name: str) -> None:
    x = torch.randn(1, 2, 7, 8)
    for h, w in ((7, 8), (8, 9), (9, 10), (5, 4)):
        x = torch.randn(1, 2, h, w)
        Imported.table({name: CEIL_POOLS[name]}, [x], [{}]).check(x)


@pytest.fixture(scope="module")
def resizes() -> Imported:
    return table(RESIZES, 2)


@quick
@given(n=sizes(1, 4), h=sizes(2, 20), w=sizes(2, 20))
def test_resizes(resizes: Imported, n: int, h: int, w: int) -> None:
    resizes.check(torch.randn(n, 4, h, w))


def test_resizes_of_small_images() -> None:
    names = ("nearest", "nearest_sizes", "bilinear", "bilinear_corners", "bicubic")
    found = table({name: RESIZES[name] for name in names}, 1)
    for n, h, w in ((1, 1, 1), (2, 1, 8), (1, 40, 2)):
        found.check(torch.randn(n, 4, h, w))


def test_whole_factors_are_index_maps() -> None:
    """Nearest interpolation by a whole factor copies nothing by itself."""
    model = nn.Upsample(scale_factor=2)
    text = str(import_model(model, (torch.randn(1, 3, 5, 5),)).module)
    assert "shapejit.view" in text
    assert "tensor.extract" not in text


@pytest.fixture(scope="module")
def pads() -> Imported:
    return table(PADS, 4)


@quick
@given(n=sizes(1, 4), h=sizes(4, 20), w=sizes(4, 20))
def test_pads(pads: Imported, n: int, h: int, w: int) -> None:
    pads.check(torch.randn(n, 4, h, w))


@pytest.fixture(scope="module")
def moves() -> Imported:
    return table(MOVES, 3)


@quick
@given(n=sizes(1, 4), h=sizes(3, 20), w=sizes(3, 20))
def test_moves(moves: Imported, n: int, h: int, w: int) -> None:
    moves.check(torch.randn(n, 4, h, w))


def test_a_factor_without_bounds_is_refused() -> None:
    """A size times 1.7 is no quotient of integers at every size that there is."""

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.interpolate(x, scale_factor=1.7, mode="bilinear")

    height = torch.export.Dim("height", min=2)
    with pytest.raises(ShapeJitError, match="height"):
        import_model(Model(), (torch.randn(1, 3, 9, 9),), dynamic_shapes=({2: height},))
