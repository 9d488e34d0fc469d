# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rules of reductions, softmax, normalization layers and scans."""

from __future__ import annotations

import math
import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st

from reference.importing import Imported, quick, sizes
from reference.interpreter import Interpreter
from shapejit.importer import import_model

# x is [a, b, 6] of floats, n is [a, b] of int64.
REDUCTIONS = {
    "all": lambda x, n: (x > -1).all(-1),
    "all_whole": lambda x, n: (x > -9).all(),
    "amax": lambda x, n: x.amax((0, 2)),
    "amin": lambda x, n: x.amin(-1, keepdim=True),
    "aminmax": lambda x, n: torch.aminmax(x, dim=1)[1],
    "any": lambda x, n: (x > 1).any(1, keepdim=True),
    "any_whole": lambda x, n: (x > 2).any(),
    "any_int": lambda x, n: n.any(0),
    "argmax": lambda x, n: x.argmax(-1),
    "argmax_keep": lambda x, n: x.argmax(1, keepdim=True),
    "argmax_whole": lambda x, n: x.argmax(),
    "argmin": lambda x, n: x.argmin(0),
    "argmax_ties": lambda x, n: (n % 3).argmax(-1),
    "count_nonzero": lambda x, n: torch.count_nonzero(n, dim=1),
    "logsumexp": lambda x, n: torch.logsumexp(x, 1),
    "max": lambda x, n: x.max(),
    "max_bool": lambda x, n: (n > 0).amax(-1),
    "max_dim": lambda x, n: tuple(x.max(1)),
    "max_int": lambda x, n: n.amax(),
    "max_u8": lambda x, n: (n * 77).to(torch.uint8).amax(1),
    "mean": lambda x, n: x.mean(-1),
    "mean_dynamic": lambda x, n: x.mean((0, 1)),
    "mean_whole": lambda x, n: x.mean(),
    "min": lambda x, n: n.min(),
    "min_dim": lambda x, n: tuple(x.min(-1, keepdim=True)),
    "nansum": lambda x, n: torch.nansum(torch.where(x > 1, math.nan, x), 1),
    "norm": lambda x, n: torch.linalg.vector_norm(x, dim=-1),
    "norm_1": lambda x, n: torch.linalg.vector_norm(x, 1, dim=(0, 2)),
    "norm_3": lambda x, n: torch.linalg.vector_norm(x, 3, dim=1, keepdim=True),
    "norm_inf": lambda x, n: torch.linalg.vector_norm(x, math.inf, dim=1),
    "normalize": lambda x, n: F.normalize(x, dim=-1),
    "prod": lambda x, n: x.prod(-1),
    "std": lambda x, n: x.std(-1),
    "sum": lambda x, n: x.sum(),
    "sum_bool": lambda x, n: (x > 0).sum(-1),
    "sum_dims": lambda x, n: x.sum((0, 2), keepdim=True),
    "sum_dtype": lambda x, n: n.sum(0, dtype=torch.float32),
    "sum_int": lambda x, n: n.to(torch.int32).sum(1),
    "var": lambda x, n: x.var(-1),
    "var_biased": lambda x, n: x.var((0, 1), unbiased=False, keepdim=True),
    "var_mean": lambda x, n: tuple(torch.var_mean(x, 2)),
}

NORMS = {
    "cosine_similarity": lambda x, w, c: F.cosine_similarity(x, x * 2 + 1, dim=-1),
    "cumprod": lambda x, w, c: x.cumprod(1),
    "cumsum": lambda x, w, c: x.cumsum(1),
    "cumsum_int": lambda x, w, c: (x > 0).cumsum(-1),
    "group_norm": lambda x, w, c: F.group_norm(x.movedim(-1, 1), 3, w, w * 2),
    "instance_norm": lambda x, w, c: F.instance_norm(torch.cat([x, x + 1], 1).movedim(-1, 1)),
    "layer_norm": lambda x, w, c: F.layer_norm(x, (6,), w, w + 1),
    "layer_norm_plain": lambda x, w, c: F.layer_norm(x, (6,)),
    "layer_norm_dynamic": lambda x, w, c: F.layer_norm(x.transpose(1, 2), (x.shape[1],)),
    "log_softmax": lambda x, w, c: F.log_softmax(x, 1),
    "masked_softmax": lambda x, w, c: x.masked_fill(x > 0.3, -math.inf).softmax(-1).nan_to_num(7.0),
    "rms_norm": lambda x, w, c: F.rms_norm(x, (6,), w, 1e-6),
    "softmax": lambda x, w, c: x.softmax(-1),
    "softmax_dynamic": lambda x, w, c: x.softmax(0),
    "softmin": lambda x, w, c: F.softmin(x, dim=1),
    "batch_norm": lambda x, w, c: F.batch_norm(x.movedim(-1, 1), w * 0.1, w.abs() + 1, w, c),
}


@pytest.fixture(scope="module")
def reductions() -> Imported:
    examples = [torch.randn(4, 5, 6), torch.arange(20).reshape(4, 5)]
    return Imported.table(REDUCTIONS, examples, [{0: "a", 1: "b"}] * 2, low=1, high=9)


@quick
@given(a=sizes(1, 9), b=sizes(1, 9), nan=st.booleans())
def test_reductions(reductions: Imported, a: int, b: int, nan: bool) -> None:
    x = torch.randn(a, b, 6)
    if nan:
        x[torch.rand(a, b, 6) < 0.1] = math.nan
    reductions.check(x, torch.randint(-9, 9, (a, b)))


def test_empty_reductions_give_the_identity() -> None:
    functions = {
        "sum": lambda x: x.sum(0),
        "prod": lambda x: x.prod(0),
        "mean": lambda x: x.mean(0),
        "any": lambda x: (x > 0).any(0),
        "all": lambda x: (x > 0).all(0),
        "softmax": lambda x: x.softmax(-1),
        "logsumexp": lambda x: x.logsumexp(0),
        "sum_all": lambda x: x.sum(),
        "layer_norm": lambda x: F.layer_norm(x, (3,)),
    }
    imported = Imported.table(functions, [torch.randn(4, 3)], [{0: "a"}], low=0, high=9)
    imported.check(torch.randn(0, 3))
    imported.check(torch.randn(1, 3))


@pytest.fixture(scope="module")
def norms() -> Imported:
    examples = [torch.randn(4, 5, 6), torch.randn(6), torch.randn(6)]
    return Imported.table(NORMS, examples, [{0: "a", 1: "b"}, {}, {}], low=1, high=9)


@quick
@given(a=sizes(1, 9), b=sizes(1, 9))
def test_norms(norms: Imported, a: int, b: int) -> None:
    norms.check(torch.randn(a, b, 6), torch.randn(6), torch.randn(6))


NORM = torch.ops.aten._native_batch_norm_legit_no_training.default


class BatchNorm(torch.nn.Module):
    def forward(self, x: torch.Tensor, mean: torch.Tensor, spread: torch.Tensor) -> Any:
        return NORM(x, None, None, mean, spread, 0.1, 1e-5)


@pytest.mark.parametrize("saves", [False, True], ids=["cpu", "gpu"])
def test_batch_norm_returns_what_torch_does_on_the_device(saves: bool) -> None:
    """On a CPU, where this test runs, the saved statistics are empty; on a GPU they are there."""
    x, mean, spread = torch.randn(4, 3), torch.randn(3), torch.rand(3)
    program = torch.export.export(BatchNorm(), (x, mean, spread))
    for node in program.graph.nodes:
        if saves and node.target is NORM:
            normal, *empty = node.meta["val"]
            node.meta["val"] = (normal, *(each.new_empty(3) for each in empty))
        if saves and node.target is operator.getitem and node.args[1] > 0:
            node.meta["val"] = node.meta["val"].new_empty(3)
    imported = import_model(program)
    got = Interpreter(imported.module).run([t.double().numpy() for t in (x, mean, spread)])
    normal, *saved = (torch.tensor(result) for result in got)
    scale = 1 / (spread.double() + 1e-5).sqrt()
    torch.testing.assert_close(normal, (x.double() - mean.double()) * scale, atol=1e-6, rtol=1e-6)
    for statistic, expected in zip(saved, (mean.double(), scale), strict=True):
        expected = expected if saves else expected[:0]
        torch.testing.assert_close(statistic.double(), expected, atol=1e-6, rtol=1e-6)
