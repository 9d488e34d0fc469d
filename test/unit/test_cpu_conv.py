# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Convolutions on the CPU against float64 torch, at random batches and image sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from shapejit.codegen import HostTarget
from unit.cpu_convs import Layer
from unit.cpu_kernels import assert_close, examples

PANEL = HostTarget.host().panel
BATCH = st.sampled_from([0, 1, 2, 3])
SIDE = st.one_of(st.sampled_from([1, 2, 3]), st.integers(1, 15))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def check(layer: Layer, batch: int, image: Sequence[int]) -> None:
    """Compares one call, unless torch itself would refuse the image."""
    assume(layer.is_legal(image))
    operands = layer.operands(batch, image)
    wide = [operand.double() for operand in operands]
    terms = float(torch.tensor(layer.taps).prod() * layer.inside) ** 0.5
    own = layer.reference(operands) if layer.element in ("f16", "bf16") else None
    assert_close(layer.run(operands), layer.reference(wide), own, terms=terms)


# Windows ------------------------------------------------------------------------------------------

WINDOWS = {
    "plain": Layer((3, 3)),
    "same": Layer((3, 3), padding=((1, 1), (1, 1)), panel=PANEL, epilogue=True),
    "asymmetric": Layer((3, 2), padding=((2, 0), (0, 3))),
    "cropped": Layer((2, 3), padding=((-1, 0), (1, -2))),
    "over_kernel": Layer((2, 1), strides=(3, 4), padding=((1, 1), (0, 0)), panel=PANEL),
    "strided": Layer((3, 3), strides=(2, 3), padding=((1, 1), (2, 2)), panel=PANEL, epilogue=True),
    "dilated": Layer((3, 3), dilations=(2, 1), padding=((2, 2), (1, 1)), panel=PANEL),
    "dilated_columns": Layer((2, 3), dilations=(1, 3), padding=((0, 0), (3, 3))),
    "padding_over_kernel": Layer((2, 2), padding=((5, 4), (3, 6)), strides=(2, 1)),
    "one_tap": Layer((1, 1), strides=(2, 2), inside=20, outside=33, panel=PANEL, epilogue=True),
    "one_pixel_out": Layer((1, 1), padding=((1, 0), (0, 1)), panel=PANEL),
    "line": Layer((5,), padding=((2, 2),), strides=(2,), panel=PANEL, epilogue=True),
    "cube": Layer((2, 3, 2), padding=((1, 1), (0, 1), (1, 0)), strides=(1, 2, 1), panel=PANEL),
    "transposed": Layer((3, 3), spreads=(2, 3), padding=((2, 3), (1, 0)), panel=PANEL),
    "transposed_line": Layer((4,), spreads=(3,), padding=((-2, 1),), dilations=(2,)),
    "transposed_strided": Layer((3, 2), spreads=(2, 2), strides=(3, 1), padding=((2, 2), (1, 1))),
}


@pytest.mark.parametrize("name", WINDOWS)
@examples(10)
@given(batch=BATCH, image=st.tuples(SIDE, SIDE, SIDE))
def test_windows(name: str, batch: int, image: tuple[int, ...]) -> None:
    layer = WINDOWS[name]
    check(layer, batch, image[: layer.rank])


@pytest.mark.parametrize("last", [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("name", ["same", "strided", "dilated_columns", "transposed", "cube"])
@examples(6)
@given(batch=BATCH, image=st.tuples(SIDE, SIDE, SIDE))
def test_layouts(name: str, last: tuple[bool, bool], batch: int, image: tuple[int, ...]) -> None:
    layer = dataclasses.replace(WINDOWS[name], last=last)
    check(layer, batch, image[: layer.rank])


# Sizes of channels --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inside", "outside"), [(1, 1), (1, 40), (3, 64), (130, 5), (16, 16), (33, 100)]
)
@examples(6)
@given(batch=BATCH, image=st.tuples(SIDE, SIDE))
def test_channels(inside: int, outside: int, batch: int, image: tuple[int, int]) -> None:
    """One block of the contraction, several, ones that end inside of a run of taps."""
    layer = WINDOWS["same"]
    check(dataclasses.replace(layer, inside=inside, outside=outside), batch, image)


@pytest.mark.parametrize("panel", [None, PANEL // 2, PANEL])
@pytest.mark.parametrize(("groups", "inside", "outside"), [(2, 4, 8), (3, 5, 1), (4, 1, 2)])
@examples(6)
@given(batch=BATCH, image=st.tuples(SIDE, SIDE))
def test_groups(
    groups: int,
    inside: int,
    outside: int,
    panel: int | None,
    batch: int,
    image: tuple[int, int],
) -> None:
    layer = Layer(
        (3, 3), inside, outside, groups, padding=((1, 1), (1, 1)), panel=panel, epilogue=True
    )
    check(layer, batch, image)


DEPTHWISE = {
    "same": Layer((3, 3), padding=((1, 1), (1, 1)), epilogue=True),
    "strided": Layer((3, 5), strides=(2, 3), padding=((1, 0), (2, 1)), epilogue=True),
    "dilated": Layer((3, 3), dilations=(3, 2), padding=((3, 2), (2, 3))),
    "cropped": Layer((2, 2), padding=((-1, 2), (1, -1))),
    "line": Layer((4,), padding=((1, 2),)),
    "long_line": Layer((13,), padding=((6, 6),), strides=(2,)),
    "cube": Layer((2, 3, 2), padding=((1, 0), (1, 1), (0, 1))),
    "transposed": Layer((3, 3), spreads=(2, 1), padding=((1, 1), (1, 1))),
}


@pytest.mark.parametrize("channels", [1, 19, 300])
@pytest.mark.parametrize("name", DEPTHWISE)
@examples(5)
@given(batch=BATCH, image=st.tuples(SIDE, SIDE, SIDE))
def test_depthwise(name: str, channels: int, batch: int, image: tuple[int, ...]) -> None:
    """Channels in whole vectors or not, columns that see the edge or not."""
    layer = dataclasses.replace(
        DEPTHWISE[name], inside=1, outside=1, groups=channels, panel=PANEL // 2
    )
    check(layer, batch, image[: layer.rank])


@pytest.mark.parametrize(("groups", "width"), [(9, 2), (70, 4), (33, 8)])
@pytest.mark.parametrize("name", ["same", "strided", "long_line", "cube", "transposed"])
@examples(4)
@given(batch=BATCH, image=st.tuples(SIDE, SIDE, SIDE))
def test_narrow_groups(
    name: str, groups: int, width: int, batch: int, image: tuple[int, ...]
) -> None:
    """Vectors that hold some groups of as many input as output channels."""
    layer = dataclasses.replace(
        DEPTHWISE[name], inside=width, outside=width, groups=groups, panel=PANEL // 2
    )
    check(layer, batch, image[: layer.rank])


@pytest.mark.parametrize(
    "change",
    [
        {"last": (True, False)},
        {"last": (False, True)},
        {"panel": None},
        {"panel": PANEL},
        {"element": "f64"},
        {"element": "bf16"},
        {"vector_bytes": 16},
        {"vector_bytes": 32},
    ],
    ids=str,
)
@examples(5)
@given(batch=BATCH, image=st.tuples(SIDE, SIDE))
def test_depthwise_variants(change: dict[str, Any], batch: int, image: tuple[int, int]) -> None:
    layer = dataclasses.replace(
        DEPTHWISE["strided"], inside=1, outside=1, groups=19, panel=PANEL // 2
    )
    check(dataclasses.replace(layer, **change), batch, image)


def test_depthwise_edges_read_nothing_beyond() -> None:
    """Zeros around the image, not what lies next to it in memory."""
    layer = dataclasses.replace(
        DEPTHWISE["same"], inside=1, outside=1, groups=19, panel=PANEL // 2, epilogue=False
    )
    x, weight = layer.operands(3, (5, 21))
    x[1] = torch.nan
    y, reference = layer.run([x, weight]), layer.reference([x, weight])
    torch.testing.assert_close(y, reference, equal_nan=True, rtol=1e-4, atol=1e-4)


@examples(4)
@given(batch=st.integers(1, 3))
def test_large_image(batch: int) -> None:
    """Many blocks of rows, which start and end within lines and images."""
    check(WINDOWS["same"], batch, (37, 45))
    check(WINDOWS["strided"], batch, (37, 45))


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    """Any convolution of few channels; mostly one that `is_legal` for images of 7 pixels."""
    rank = draw(st.integers(1, 3))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank)))

    depthwise = draw(st.booleans())
    return Layer(
        taps=each(1, 4),
        inside=1 if depthwise else draw(st.sampled_from([1, 2, 7, 16])),
        outside=1 if depthwise else draw(st.sampled_from([1, 3, 16, 35])),
        groups=draw(st.sampled_from([1, 2, 21])),
        strides=each(1, 5),
        dilations=each(1, 3),
        padding=tuple(zip(each(-1, 5), each(-1, 5), strict=True)),
        spreads=draw(st.sampled_from([(1,) * rank, each(1, 3)])),
        last=(draw(st.booleans()), draw(st.booleans())),
        epilogue=draw(st.booleans()),
        panel=draw(st.sampled_from([None, PANEL // 2, PANEL])),
    )


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # each step of shrinking compiles
)
@given(layer=layers(), batch=BATCH, image=st.tuples(SIDE, SIDE, SIDE))
def test_any_layer(layer: Layer, batch: int, image: tuple[int, ...]) -> None:
    check(layer, batch, image[: layer.rank])


# Types --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("element", ["f64", "f16", "bf16"])
@examples(6)
@given(batch=BATCH, image=st.tuples(SIDE, SIDE))
def test_types(element: str, last: bool, batch: int, image: tuple[int, int]) -> None:
    layer = Layer(
        (3, 3), padding=((1, 1), (1, 1)), element=element, last=(last, last), epilogue=True
    )
    check(layer, batch, image)


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("name", ["same", "transposed"])
@examples(6)
@given(batch=BATCH, image=st.tuples(SIDE, SIDE))
def test_vector_widths(name: str, vector_bytes: int, batch: int, image: tuple[int, int]) -> None:
    """Also vectors that the CPU lacks, which LLVM splits."""
    check(dataclasses.replace(WINDOWS[name], vector_bytes=vector_bytes), batch, image)


def test_infinity_and_nan_stay_where_they_are_seen() -> None:
    layer = dataclasses.replace(WINDOWS["same"], epilogue=False)
    x, weight = layer.operands(1, (6, 7))
    x[0, 1, 0, 0], x[0, 2, 5, 6] = torch.nan, torch.inf
    y, reference = layer.run([x, weight]), layer.reference([x, weight])
    torch.testing.assert_close(y, reference, equal_nan=True, rtol=1e-4, atol=1e-4)
