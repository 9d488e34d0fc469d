# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A whole sentence encoder on a simulated GPU: products, attention, norms and pooling."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import Tensor
from torch.export import Dim

from shapejit.demo.encoder import SentenceEncoder
from shapejit.program import Program
from unit.simulated_programs import Simulated, simulated

WORDS = 50


@functools.cache
def encoder() -> tuple[Program, Simulated, SentenceEncoder]:
    """One layer of MiniLM, narrow, with two heads of its head size."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=80,
        initializer_range=0.4,
    )
    config._attn_implementation = "sdpa"
    model = SentenceEncoder(BertModel(config)).to(torch.bfloat16).eval()
    batch, length = Dim("batch", min=1, max=4), Dim("tokens", min=1, max=80)
    shapes = ({0: batch, 1: length}, {0: batch, 1: length})
    return *simulated(model, texts(2, 7), shapes, max_regions=2), model


def texts(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Random ids, and masks of texts of several lengths, the last of which is whole."""
    generator = torch.Generator().manual_seed(100 * batch + length)
    ids = torch.randint(0, WORDS, (batch, length), generator=generator)
    lengths = torch.randint(1, length + 1, (batch, 1), generator=generator)
    lengths[-1] = length
    return ids, (torch.arange(length) < lengths).long()


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (3, 1), (1, 20), (2, 33), (2, 70)])
def test_an_encoder(batch: int, length: int) -> None:
    program, execution, model = encoder()
    assert program.artefacts.gpu is not None
    assert program.artefacts.gpu.graph is not None
    ids, mask = texts(batch, length)
    with torch.no_grad():
        got, theirs = program(ids, mask), model(ids, mask)
        exact = copy.deepcopy(model).double()(ids, mask)
    assert got.dtype is torch.bfloat16
    ours, torchs = ((each.double() - exact).norm().item() for each in (got, theirs))
    assert ours <= 1.2 * max(torchs, 2.0**-9 * exact.norm().item())
    assert len(execution.launched) == len(program.artefacts.gpu.graph.launches) == 10
