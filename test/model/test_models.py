# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Whole models: one compile, PyTorch's results at every size."""

from __future__ import annotations

import copy
import functools
import warnings

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import shapejit
from model.architectures import ARCHITECTURES

#: Most work a drawn example may be: range ends come one dim at a time.
MAX_TOTAL_TOKENS = 1024

model_settings = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@functools.cache
def compiled(name: str) -> shapejit.Program:
    """The program of an architecture, compiled once with every check on."""
    architecture = ARCHITECTURES[name]
    torch.manual_seed(1)
    inputs = architecture.inputs(3, 17)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its export
        return shapejit.compile(
            architecture.model,
            inputs,
            dynamic_shapes=architecture.dynamic_shapes(len(inputs)),
            verify_each=True,
        )


@functools.cache
def in_float64(name: str) -> nn.Module:
    return copy.deepcopy(ARCHITECTURES[name].model).double()


def relative_error(result: Tensor, reference: Tensor) -> float:
    """``max|y - r| / max|r|``"""
    difference = (result.double() - reference).abs().max()
    return float(difference / reference.abs().max())


def check(name: str, batch: int, tokens: int) -> None:
    """The law of all numerics tests: 1e-5, or twice what torch's own f32 is off."""
    torch.manual_seed(batch * 1000 + tokens)
    inputs = ARCHITECTURES[name].inputs(batch, tokens)
    with torch.no_grad():
        result = compiled(name)(*inputs)
        ours = ARCHITECTURES[name].model(*inputs)
        reference = in_float64(name)(*(x.double() if x.is_floating_point() else x for x in inputs))
    assert result.shape == ours.shape
    assert result.dtype == ours.dtype
    error = relative_error(result, reference)
    assert error <= max(1e-5, 2 * relative_error(ours, reference)), (batch, tokens, error)


@pytest.mark.parametrize("name", ARCHITECTURES)
@model_settings
@given(data=st.data())
def test_random_sizes(name: str, data: st.DataObject) -> None:
    architecture = ARCHITECTURES[name]
    batch = data.draw(st.integers(1, architecture.max_batch), "batch")
    most = min(architecture.max_tokens, max(1, MAX_TOTAL_TOKENS // batch))
    tokens = data.draw(st.integers(1, most), "tokens")
    check(name, batch, tokens)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_range_ends(name: str) -> None:
    architecture = ARCHITECTURES[name]
    check(name, 1, 1)
    check(name, 1, architecture.max_tokens)
    check(name, architecture.max_batch, 1)
    check(name, architecture.max_batch, MAX_TOTAL_TOKENS // architecture.max_batch)


@pytest.mark.parametrize(("batch", "tokens"), [(1, 5), (2, 5), (3, 17), (7, 1)])
def test_self_attention_where_a_reshape_is_ambiguous(batch: int, tokens: int) -> None:
    """Sizes at which a reshape with two dynamic dims goes wrong if one is taken to be 1."""
    check("self_attention", batch, tokens)


def test_every_shape_came_from_one_compile() -> None:
    for name in ARCHITECTURES:
        check(name, 2, 7)
        stats = compiled(name).stats()
        assert stats.compiles == 1
        assert stats.calls >= 1
