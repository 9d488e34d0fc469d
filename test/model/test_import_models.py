# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Imports of whole models: the IR's meaning in float64, before any pass."""

from __future__ import annotations

import functools

import pytest
import torch

import shapejit.ir as sir
from model.architectures import ARCHITECTURES
from reference.importing import Imported


@functools.cache
def imported(name: str) -> Imported:
    architecture = ARCHITECTURES[name]
    inputs = architecture.inputs(3, 17)
    return Imported(architecture.model, inputs, architecture.dynamic_shapes(len(inputs)))


def operations(name: str) -> list[str]:
    """Names of the operations between tensors."""
    (function,) = sir.functions(imported(name).imported.module)
    return [op.name for op in sir.operations(sir.body(function))]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_meaning(name: str) -> None:
    for batch, tokens in [(1, 1), (2, 7), (3, 12)]:
        torch.manual_seed(tokens)
        imported(name).check(*ARCHITECTURES[name].inputs(batch, tokens))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_users_dims_are_kept(name: str) -> None:
    symbols = sir.symbols(imported(name).imported.module)
    assert [(s.name, s.min) for s in symbols] == [("batch", 1), ("tokens", 1)]
    assert symbols[0].max == ARCHITECTURES[name].max_batch


def test_heavy_operators_stay_whole() -> None:
    names = operations("bert")
    assert names.count("shapejit.gemm") == 12
    assert names.count("shapejit.attention") == 2


def test_the_mask_of_llama_is_a_causal_offset() -> None:
    """The code that makes packed masks of positions folds away."""
    text = str(imported("llama").imported.module)
    assert text.count("causal = ") == 2
    assert "mask(" not in text
    assert text.count("tensor.extract") == 1  # the embedding's
