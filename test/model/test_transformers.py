# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Transformers as Hugging Face has them: one compile, PyTorch's results at every size; and no more
kernels for free sizes than for fixed ones."""

from __future__ import annotations

import functools
import random
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import shapejit
from shapejit.importer import import_model

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import kernel_counts  # noqa: E402
from transformers_models import TRANSFORMERS  # noqa: E402

#: Those that other tests do not compile.
COMPILED = ("mistral", "vit", "whisper decoder")


@functools.cache
def compiled(name: str) -> tuple[shapejit.Program, nn.Module]:
    transformer = TRANSFORMERS[name]
    model, args = transformer.model(), transformer.inputs(3, 17)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its export
        shapes = transformer.dynamic_shapes()
        return shapejit.compile(model, args, dynamic_shapes=shapes), model


def sizes(name: str) -> list[tuple[int, int]]:
    """Ends of the ranges, and sizes between them."""
    batch, length = TRANSFORMERS[name].greatest
    generator = random.Random(name)
    drawn = [(generator.randint(1, batch), generator.randint(1, length)) for _ in range(8)]
    return [(1, 1), (1, length), (batch, 1), (batch, length), *drawn]


@torch.no_grad()
@pytest.mark.parametrize("name", COMPILED)
def test_results_at_any_size(name: str) -> None:
    program, model = compiled(name)
    double = TRANSFORMERS[name].model().double()
    for size in sizes(name):
        args = TRANSFORMERS[name].inputs(*size)
        got, theirs = program(*args), model(*args)
        exact = double(*(a.double() if a.is_floating_point() else a for a in args))
        scale = exact.abs().max()
        ours, torchs = ((each.double() - exact).abs().max() / scale for each in (got, theirs))
        assert ours <= max(1e-5, 2 * torchs), size
    assert program.stats().compiles == 1


def test_causal_masks_are_recognised() -> None:
    """A mask of positions becomes the causal offset; of a window only the other end is a mask."""
    for name, masks in (("gpt2", 0), ("mistral", 2)):
        transformer = TRANSFORMERS[name]
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text = str(
                import_model(
                    transformer.model(),
                    transformer.inputs(3, 17),
                    dynamic_shapes=transformer.dynamic_shapes(),
                ).module
            )
        assert text.count("shapejit.attention over") == text.count("causal =") == 2, name
        assert text.count("mask(") == masks, name


def test_free_sizes_take_no_more_kernels_than_fixed_ones() -> None:
    record = kernel_counts.count(TRANSFORMERS["llama"], beside=False)
    assert record["free"] <= record["fixed"], record
