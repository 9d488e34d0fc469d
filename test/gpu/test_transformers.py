# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Transformers as Hugging Face has them, in bfloat16 on a GPU: as right as PyTorch at any size, and
the same bits again whatever sizes came between."""

from __future__ import annotations

import copy
import random
import sys
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_mlir")
pytest.importorskip("transformers")

from torch import Tensor  # noqa: E402

import shapejit  # noqa: E402
from gpu.products import relative_error  # noqa: E402
from shapejit.gpu.device import Device  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from transformers_models import TRANSFORMERS, Transformer  # noqa: E402

#: Sizes between the ends of the ranges.
DRAWN = 46


def sizes(transformer: Transformer, name: str) -> list[tuple[int, int]]:
    """Ends of the ranges, and sizes between them."""
    batch, length = transformer.greatest
    generator = random.Random(name)
    drawn = [(generator.randint(1, batch), generator.randint(1, length)) for _ in range(DRAWN)]
    return [(1, 1), (1, length), (batch, 1), (batch, length), *drawn]


def on_gpu(args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(
        each.to("cuda", torch.bfloat16) if each.is_floating_point() else each.cuda()
        for each in args
    )


@torch.no_grad()
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_results_at_any_size(device: Device, name: str) -> None:
    transformer = TRANSFORMERS[name]
    model = transformer.model().to("cuda", torch.bfloat16)
    exact = copy.deepcopy(model).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its export
        shapes = transformer.dynamic_shapes()
        args = on_gpu(transformer.inputs(3, 17))
        program = shapejit.compile(model, args, dynamic_shapes=shapes, target="cuda")
    calls, wrong = [], []
    ours = theirs = 0.0
    torch.manual_seed(0)
    for size in sizes(transformer, name):
        args = on_gpu(transformer.inputs(*size))
        expected = exact(*(each.double() if each.is_floating_point() else each for each in args))
        result = program(*args)
        errors = [relative_error(each, expected) for each in (result, model(*args))]
        ours, theirs = ours + errors[0] ** 2, theirs + errors[1] ** 2
        # A single call of few numbers may be right by luck where the other one is not.
        if not errors[0] <= 1.5 * errors[1] + 2.0**-9:
            wrong.append((size, *errors))
        calls.append((args, result))
    assert not wrong
    assert ours**0.5 <= 1.2 * theirs**0.5, (ours**0.5, theirs**0.5)
    rng = random.Random(0)
    for args, result in rng.choices(calls, k=200):
        assert torch.equal(program(*args), result)
    assert program.stats().compiles == 1
