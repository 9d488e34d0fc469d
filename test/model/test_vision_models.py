# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Vision and audio models: one compile, PyTorch's results at every batch and image size."""

from __future__ import annotations

import copy
import functools
import random
import warnings

import pytest
import torch
from torch import nn

import shapejit
from model.vision import VISION_MODELS

_MOST_PIXELS = 1 << 14
"""Of a call: range ends come one size at a time."""


@functools.cache
def compiled(name: str) -> shapejit.Program:
    """The program of a model, compiled once."""
    model = VISION_MODELS[name]
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its export
        return shapejit.compile(
            model.model,
            model.example(),
            dynamic_shapes=model.dynamic_shapes(),
        )


@functools.cache
def in_float64(name: str) -> nn.Module:
    return copy.deepcopy(VISION_MODELS[name].model).double()


def sizes(name: str) -> list[tuple[int, ...]]:
    """The least sizes, range ends one size at a time, and random ones."""
    ranges = list(VISION_MODELS[name].ranges.values())
    least = tuple(low for low, _ in ranges)
    found = [least]
    for number, (_, high) in enumerate(ranges):
        found.append((*least[:number], high, *least[number + 1 :]))
    draw = random.Random(name)
    for _ in range(3):
        rest = _MOST_PIXELS
        drawn = []
        for low, high in ranges:
            drawn.append(draw.randint(low, max(low, min(high, rest // 8))))
            rest //= drawn[-1]
        found.append(tuple(drawn))
    return found


@pytest.mark.parametrize("name", VISION_MODELS)
def test_compiled(name: str) -> None:
    """The law of numerics: within 1e-5 of float64, or twice as far as torch's own float32."""
    program, model = compiled(name), VISION_MODELS[name]
    for each in sizes(name):
        torch.manual_seed(sum(each))
        inputs = model.inputs(*each)
        with torch.no_grad():
            got, own = program(*inputs), model.model(*inputs)
            doubles = (x.double() if x.is_floating_point() else x for x in inputs)
            want = in_float64(name)(*doubles)
        assert got.shape == want.shape, each
        scale = want.abs().max()
        error, theirs = ((y.double() - want).abs().max() / scale for y in (got, own))
        assert error <= max(1e-5, 2 * theirs), (each, error, theirs)
    assert program.stats().compiles == 1
