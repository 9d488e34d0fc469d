# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tensor maps in im2col mode, as launches on a fake driver encode them."""

from __future__ import annotations

import gc
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from shapejit.gpu.errors import KernelInterfaceError, LaunchError
from shapejit.gpu.interface import Grid, Im2colMap, KernelInterface
from shapejit.gpu.launch import Kernel
from shapejit.gpu.module import Module
from unit.fake_cuda import Fake

IMAGE = b"fake\nconv 168 1024 384 128\n"

# Channels, width, height, images; then the strides of all but the channels.
VALUES = ("64", "s2", "s1", "s0", "64 * s2", "64 * s1 * s2")
MAP = Im2colMap(
    operand=0,
    element="bf16",
    dims=(0, 1, 2, 3),
    strides=(0, 4, 5),
    channels=64,
    pixels=128,
    lower=(-1, -2),
    upper=(-1, -4),
    steps=(1, 2),
)
CONV = KernelInterface(
    entry="conv",
    threads=384,
    shared_bytes=0,
    cluster=1,
    grid=Grid(tiles=((3, 1),), ctas_per_sm=1),
    values=VALUES,
    parameters=(MAP,),
)


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fake]:
    fake = Fake(tmp_path_factory.mktemp("fake"))
    yield fake
    gc.collect()
    assert fake.runtime.modules() == 0
    fake.check()


def _kernel(fake: Fake, map_: Im2colMap = MAP) -> Kernel:
    return Kernel(replace(CONV, parameters=(map_,)), Module(IMAGE, fake.driver.device(0)))


def _values(images: int, height: int, width: int) -> list[int]:
    return [64, width, height, images, 64 * width, 64 * height * width]


def _launched(fake: Fake, kernel: Kernel, address: int, values: Sequence[int]) -> dict[str, Any]:
    """The map of a launch, as the fake driver encodes it."""
    kernel.launch((address,), values)
    data = fake.controls.fakeLaunchAt(fake.launches - 1)[0].parameter(0, 128)
    rank = data[9]
    numbers = struct.unpack_from("<3B3x3h3h", data, 98)
    return {
        "address": struct.unpack_from("<Q", data)[0],
        "dims": struct.unpack_from("<5Q", data, 16)[:rank],
        "pitches": struct.unpack_from("<4Q", data, 56)[: rank - 1],
        "channels, pixels": struct.unpack_from("<2H", data, 88),
        "steps": numbers[: rank - 2],
        "lower": numbers[3 : 1 + rank],
        "upper": numbers[6 : 4 + rank],
    }


def test_what_a_launch_encodes(fake: Fake) -> None:
    assert _launched(fake, _kernel(fake), 0x10000, _values(3, 20, 30)) == {
        "address": 0x10000,
        "dims": (64, 30, 20, 3),
        "pitches": (128, 128 * 30, 128 * 600),
        "channels, pixels": (64, 128),
        "steps": (1, 2),
        "lower": (-1, -2),
        "upper": (-1, -4),
    }


@pytest.mark.parametrize("sizes", [(2, 0, 30), (2, 2, 30), (2, 1, 5)])
def test_images_in_which_a_window_has_no_place(fake: Fake, sizes: tuple[int, int, int]) -> None:
    """They are empty, or of one pixel less than the window wants: -2 .. 2 - 1 - 4 has none."""
    kernel = _kernel(fake, replace(MAP, lower=(0, 0)))
    made = _launched(fake, kernel, 0x10000, _values(*sizes))
    assert made["dims"] == (1, 1, 1, 1)
    assert (made["lower"], made["upper"], made["steps"]) == ((0, 0), (0, 0), (1, 1))
    assert made["address"] not in (0, 0x10000)


def test_the_smallest_image_that_a_window_fits(fake: Fake) -> None:
    kernel = _kernel(fake, replace(MAP, lower=(0, 0)))
    assert _launched(fake, kernel, 0x10000, _values(1, 5, 2))["dims"] == (64, 2, 5, 1)


def test_addresses_and_strides(fake: Fake) -> None:
    kernel = _kernel(fake)
    with pytest.raises(LaunchError, match="multiple of 16 bytes"):
        kernel.launch((0x10008,), _values(3, 20, 30))
    odd = _values(3, 20, 30)
    odd[4] = 1921
    with pytest.raises(LaunchError, match=r"64 \* s2 = 1921 elements of 2 bytes"):
        kernel.launch((0x10000,), odd)


@pytest.mark.parametrize(
    ("map_", "text"),
    [
        (replace(MAP, lower=(-129, 0)), "a corner of a window's places is out of range, not -129"),
        (replace(MAP, upper=(0, 128)), "a corner of a window's places is out of range, not 128"),
        (replace(MAP, steps=(1, 9)), "places of a window are 1 to 8 pixels apart, not 9"),
        (replace(MAP, pixels=1025), "1 to 1024 pixels, not 1025"),
        (replace(MAP, channels=0), "1 to 256 channels, not 0"),
        (replace(MAP, channels=128), "must fit the swizzle's bytes, not 256"),
        (replace(MAP, element="f8"), "no elements 'f8'"),
        (replace(MAP, dims=(0, 1), strides=(0,)), "has 3 to 5 dims"),
        (replace(MAP, steps=(1,)), "2, 2, 1 corners and steps"),
        (replace(MAP, dims=(0, 1, 2, 9)), "refers to value 9 of 6"),
    ],
)
def test_bad_maps(fake: Fake, map_: Im2colMap, text: str) -> None:
    with pytest.raises(KernelInterfaceError, match=text):
        _kernel(fake, map_)


def test_the_record_survives_json() -> None:
    assert KernelInterface.from_json(CONV.to_json()) == CONV


def test_other_lengths_of_loads() -> None:
    assert MAP.box == (64, 128)
    assert MAP.with_box((64, 32)) == replace(MAP, pixels=32)
