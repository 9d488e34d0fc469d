# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Generation with caches of Hugging Face's: one program, the text of eager PyTorch."""

from __future__ import annotations

import copy
import functools
import importlib.util
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import shapejit
from shapejit.program import Program

EXAMPLE = Path(__file__).parents[2] / "examples" / "generate.py"
CACHE = 48


@functools.cache
def example() -> Any:
    """The module of the example."""
    spec = importlib.util.spec_from_file_location("generate", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )


@functools.cache
def static() -> tuple[Program, Any, Any]:
    """A program, the model that it was compiled from, and another one like it."""
    torch.manual_seed(0)
    eager = example().CachedLlama(config(), CACHE, torch.float32).eval()
    model = copy.deepcopy(eager)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return example().compile_model(model, CACHE), model, eager


def test_a_static_cache() -> None:
    """Prompts of any length and the tokens after them, through one program."""
    program, model, eager = static()
    for length in (1, 2, 13, 40):
        prompt = torch.randint(0, 256, (1, length))
        model.forget()
        eager.forget()
        count = min(12, CACHE - length + 1)
        ours, _ = example().generate(program, prompt, count)
        theirs, _ = example().generate(eager, prompt, count)
        assert torch.equal(ours, theirs)
        torch.testing.assert_close(model.keys1, eager.keys1, rtol=1e-4, atol=1e-5)
        assert int(model.length0) == length + count - 1
    assert program.stats().compiles == 1


def test_a_static_cache_is_updated_in_place() -> None:
    """Working memory is what new tokens need: there is no copy of the cache."""
    program, model, _ = static()
    updates = [k for k in program.artefacts.kernels if k.kind == "scatter"]
    assert sum(len(kernel.launches) for kernel in updates) <= 3 * 2
    spaces = [kernel.sizes for kernel in updates]
    assert all(CACHE not in [size.constant for size in sizes] for sizes in spaces)
    explained = program.explain(torch.zeros(1, 1, dtype=torch.int64))
    assert explained.arena_bytes < model.keys0.nbytes


def test_a_static_cache_is_read_as_far_as_it_is_filled() -> None:
    """Its mask is a number of keys in memory: no kernel compares keys with positions."""
    program, _, _ = static()
    fused = [name for kernel in program.artefacts.kernels for name in kernel.fuses]
    assert "scaled_dot_product_attention" in fused
    assert "le" not in fused


class WithDynamicCache(nn.Module):
    """Takes the keys and values of past tokens and gives those of all."""

    def __init__(self) -> None:
        super().__init__()
        self.model = LlamaForCausalLM(config())

    def forward(self, ids: Tensor, past: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        pairs = [(past[i], past[i + 1]) for i in range(0, len(past), 2)]
        cache = DynamicCache(pairs)
        found = self.model(input_ids=ids, past_key_values=cache, use_cache=True)
        kept = [each for layer in cache.layers for each in (layer.keys, layer.values)]
        return found.logits, kept


@torch.no_grad()
def test_a_dynamic_cache() -> None:
    """A loop of growing length: past tokens and new ones are free dims of one program."""
    torch.manual_seed(0)
    model = WithDynamicCache().eval()
    new, past = Dim("new", min=1, max=32), Dim("past", min=0, max=64)
    example_past = [torch.zeros(1, 2, 5, 16) for _ in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = shapejit.compile(
            model,
            (torch.zeros(1, 3, dtype=torch.int64), example_past),
            dynamic_shapes=({1: new}, [{2: past}] * 4),
        )
    ours = theirs = [torch.zeros(1, 2, 0, 16) for _ in range(4)]
    ids = torch.randint(0, 256, (1, 9))
    for _ in range(5):
        logits, ours = program(ids, ours)
        expected, theirs = model(ids, theirs)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        ids = logits[:, -1:].argmax(-1)
    assert ours[0].shape[2] == 13


class Prefix(nn.Module):
    """Attention over the first rows of a cache, as many as there are tokens so far."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 2, CACHE, 16))
        self.register_buffer("values", torch.zeros(1, 2, CACHE, 16))

    def forward(self, x: Tensor, so_far: Tensor) -> Tensor:
        count, total = x.shape[2], so_far.shape[0]
        self.keys[:, :, total - count : total] = x[:, ::2] + 1
        self.values[:, :, total - count : total] = x[:, ::2] * 2
        keys, values = self.keys[:, :, :total], self.values[:, :, :total]
        seen = torch.arange(total)[None] <= torch.arange(count)[:, None] + (total - count)
        found: Tensor = nn.functional.scaled_dot_product_attention(
            x, keys, values, seen, enable_gqa=True
        )
        return found


@torch.no_grad()
def test_the_prefix_of_a_cache_is_read_where_it_lies() -> None:
    eager = Prefix().eval()
    model = copy.deepcopy(eager)
    new = Dim("new", min=1, max=16)
    program = shapejit.compile(
        model,
        (torch.zeros(1, 4, 3, 16), torch.zeros(7)),
        dynamic_shapes=({2: new}, {0: Dim("total", min=1, max=CACHE)}),
    )
    assert sorted(kernel.kind for kernel in program.artefacts.kernels) == [
        "attention",
        "scatter",
        "scatter",
    ]
    total = 0
    for count in (5, 1, 1, 16, 2):
        total += count
        x = torch.randn(1, 4, count, 16)
        torch.testing.assert_close(program(x, torch.zeros(total)), eager(x, torch.zeros(total)))
    torch.testing.assert_close(model.keys, eager.keys)
