# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels for a GPU, as formed from whole models: the same meaning, and no launch too many."""

from __future__ import annotations

import functools
import itertools
import re
import warnings
from collections import Counter
from typing import Any

import mlir.ir as ir
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from model.architectures import ARCHITECTURES, Architecture
from reference.interpreter import Interpreter
from shapejit import ir as sir
from shapejit import passes
from shapejit.cpu_features import host_target
from shapejit.hoisting import take_bind_module
from shapejit.importer import import_model
from shapejit.pipeline import Stage, gpu_stages, run_stage

passes.register_all()

# The passes up to there work on tensors; what follows needs kernels for every operator.
_LAST = "widen-kernels"


class SentenceEncoder(nn.Module):
    """BERT, and the mean of its rows under the mask, of length one."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        self.bert = BertModel(
            BertConfig(
                vocab_size=100,
                hidden_size=64,
                num_hidden_layers=layers,
                num_attention_heads=2,
                intermediate_size=128,
            ),
            add_pooling_layer=False,
        )

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        rows = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        if mask is None:
            result: Tensor = rows
            return result
        weights = mask[..., None].to(rows.dtype)
        return F.normalize((rows * weights).sum(1) / weights.sum(1))


def ids(batch: int, tokens: int) -> Tensor:
    return torch.randint(0, 100, (batch, tokens))


def mask(batch: int, tokens: int) -> Tensor:
    """At least one token of each row is kept."""
    kept = torch.randint(0, 2, (batch, tokens))
    kept[:, 0] = 1
    return kept


class GatedBlock(nn.Module):
    """RMS norms, causal attention over a joint projection, a gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64))
        self.qkv = nn.Linear(64, 192, bias=False)
        self.out = nn.Linear(64, 64, bias=False)
        self.gate, self.up = nn.Linear(64, 96, bias=False), nn.Linear(64, 96, bias=False)
        self.down = nn.Linear(96, 64, bias=False)

    def norm(self, x: Tensor) -> Tensor:
        v = x.float()
        scale = torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (v * scale).to(x.dtype) * self.weight

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        heads = self.qkv(self.norm(x)).view(batch, tokens, 3, 2, 32).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, 64))
        y = self.norm(x)
        result: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return result


MODELS = {
    **ARCHITECTURES,
    "sentence_encoder": Architecture(
        lambda: SentenceEncoder(2), lambda b, t: (ids(b, t), mask(b, t)), max_tokens=64
    ),
    "without_mask": Architecture(
        lambda: SentenceEncoder(2), lambda b, t: (ids(b, t),), max_tokens=64
    ),
    "gated": Architecture(
        lambda: nn.Sequential(GatedBlock(), GatedBlock()), lambda b, t: (torch.randn(b, t, 64),)
    ),
}


def stages() -> list[Stage]:
    """The stages of a GPU that form kernels."""
    found = list(itertools.takewhile(lambda stage: stage.name != _LAST, gpu_stages(16)))
    return [*found, next(stage for stage in gpu_stages(16) if stage.name == _LAST)]


def imported(name: str) -> Any:
    """The module of a model in bfloat16, and its weights."""
    architecture, dtype = MODELS[name], torch.bfloat16
    inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in architecture.inputs(3, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its export
        shapes = architecture.dynamic_shapes(len(inputs))
        found = import_model(architecture.build().eval().to(dtype), inputs, dynamic_shapes=shapes)
    with found.module.context:
        found.module.operation.attributes["shapejit.target"] = ir.StringAttr.get("cuda:sm_90a:h200")
    return found


@functools.cache
def launches(name: str) -> Counter[str]:
    """How many kernels of each kind a model launches."""
    module = imported(name).module
    for stage in stages():
        run_stage(module, stage, host_target("host"), verify=True)
    names = (
        ir.FlatSymbolRefAttr(op.attributes["kernel"]).value
        for op in sir.walk(module.operation)
        if op.name == "shapejit.launch"
    )
    return Counter(re.sub(r"\d+", "", kernel) for kernel in names)


@pytest.mark.parametrize("name", MODELS)
def test_stages_keep_the_meaning(name: str) -> None:
    """The interpreter, which rounds nothing, gives the same before and after every stage."""
    torch.manual_seed(0)
    found = imported(name)
    weights = [
        (w.double() if w.is_floating_point() else w).detach().numpy() for w in found.weight_tensors
    ]
    sizes = [(1, 1), (2, 7), (3, 4)]
    inputs = [[x.numpy() for x in MODELS[name].inputs(*size)] for size in sizes]
    before = [Interpreter(found.module).run([*x, *weights]) for x in inputs]
    for stage in stages():
        run_stage(found.module, stage, host_target("host"), verify=True)
        if (part := take_bind_module(found.module)) is not None:
            weights += Interpreter(part.module).run([weights[number] for number in part.weights])
        interpreter = Interpreter(found.module)
        for x, wanted in zip(inputs, before, strict=True):
            for got, want in zip(interpreter.run([*x, *weights]), wanted, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9, err_msg=stage.name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Embedding with its norm and the mask; a layer is q, k, v in one, attention, out, norm,
        # two products, norm (of the last one, statistics); mean; its norm with the count.
        ("sentence_encoder", {"rows": 1 + 2 * 2 + 2, "gemm": 2 * 4, "attention": 2}),
        ("bert", {"rows": 1 + 2 * 2, "gemm": 2 * 4, "attention": 2}),
        ("padded_encoder", {"rows": 1 + 2 * 2, "gemm": 2 * 4 + 1, "attention": 2}),
        # A mask of ones is none.
        ("without_mask", {"rows": 1 + 2 * 2, "gemm": 2 * 4, "attention": 2}),
        # The gate and what it gates are one product.
        ("gated", {"rows": 2 * 2, "gemm": 2 * 4, "attention": 2}),
        # Beside them: the rotation of q and k, the head; tables of sine and cosine are hoisted.
        ("llama", {"rows": 1 + 2 * 2, "gemm": 2 * 4 + 1, "attention": 2, "pointwise": 2}),
    ],
)
def test_launches(name: str, expected: dict[str, int]) -> None:
    assert launches(name) == Counter(expected)
