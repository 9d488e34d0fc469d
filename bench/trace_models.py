# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The workloads by name, and those of texts.

Every process that measures builds its own copy, so weights and inputs are drawn on the CPU from
fixed seeds: all systems, and the exact results that they are compared with, see the same numbers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn import functional
from trace_images import IMAGE_WORKLOADS
from trace_workload import Axis, Inputs, Request, Workload, seeded, trace

from shapejit.demo.encoder import WEIGHTS_PACKAGE, SentenceEncoder, load_encoder

# ---------------------------------------------------------------------------
# Modules
# ---------------------------------------------------------------------------


class HiddenStates(nn.Module):
    """BERT's hidden states, with or without a mask."""

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden: Tensor = self.transformer(input_ids=ids, attention_mask=mask).last_hidden_state
        return hidden


def _bert(**sizes: int) -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(**sizes, attn_implementation="sdpa")
    transformer: nn.Module = BertModel(config, add_pooling_layer=False)
    return transformer.eval()


MINILM = {
    "vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
    "intermediate_size": 1536, "max_position_embeddings": 512,
}  # fmt: skip
TINY = {
    "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 128, "max_position_embeddings": 64,
}  # fmt: skip


def real_weights() -> bool:
    """Whether MiniLM's own weights are installed; without them the weights are random."""
    return find_spec(WEIGHTS_PACKAGE) is not None


def _minilm() -> nn.Module:
    return load_encoder() if real_weights() else SentenceEncoder(_bert(**MINILM))


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        # In float32, but for the float64 of the exact results.
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (wide * scale).to(x.dtype) * self.weight


class LlamaBlock(nn.Module):
    """A block of Llama's form, without rotary embeddings."""

    def __init__(self, width: int = 2048, heads: int = 16, inner: int = 5632) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        y = self.norm2(x)
        result: Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return result


def _llama() -> nn.Module:
    return nn.Sequential(*(LlamaBlock() for _ in range(12)))


# ---------------------------------------------------------------------------
# Inputs and requests
# ---------------------------------------------------------------------------


def _ids(vocabulary: int) -> Callable[[Request, torch.dtype], Inputs]:
    def draw(request: Request, dtype: torch.dtype) -> Inputs:
        return (torch.randint(0, vocabulary, request, generator=seeded(request)),)

    return draw


def _ids_and_mask(vocabulary: int) -> Callable[[Request, torch.dtype], Inputs]:
    def draw(request: Request, dtype: torch.dtype) -> Inputs:
        """Texts of different lengths, one of them as long as the request."""
        batch, tokens = request
        generator = seeded(request)
        lengths = torch.randint(1, tokens + 1, (batch, 1), generator=generator)
        lengths[0] = tokens
        ids = torch.randint(0, vocabulary, (batch, tokens), generator=generator)
        return ids, (torch.arange(tokens)[None] < lengths).long()

    return draw


def _embeddings(request: Request, dtype: torch.dtype) -> Inputs:
    return (torch.randn(*request, 2048, generator=seeded(request)).to(dtype),)


def _texts(batches: Axis, tokens: Axis, mean: float, deviation: float) -> Callable[..., Request]:
    def draw(rng: random.Random) -> Request:
        length = round(math.exp(rng.gauss(mean, deviation)))
        batch = rng.randint(batches.low, batches.high)
        return batch, min(max(length, tokens.low), tokens.high)

    return draw


# ---------------------------------------------------------------------------
# Workloads
# ---------------------------------------------------------------------------

_BOTH = {0: 0, 1: 1}


def _minilm_workload() -> Workload:
    axes = (Axis("batch", 1, 32), Axis("tokens", 1, 256))
    return Workload(
        "minilm", axes, _minilm, _ids_and_mask(MINILM["vocab_size"]), (_BOTH, _BOTH), "mask",
        _texts(*axes, 3.1, 0.7), trace("minilm"),
    )  # fmt: skip


def _bert_workload() -> Workload:
    axes = (Axis("batch", 1, 16), Axis("tokens", 1, 512))
    return Workload(
        "bert", axes, lambda: HiddenStates(_bert()), _ids(30000), (_BOTH,), "mask",
        _texts(*axes, 4.4, 0.8), trace("bert"),
    )  # fmt: skip


def _llama_workload() -> Workload:
    axes = (Axis("batch", 1, 4), Axis("tokens", 1, 2048))
    return Workload(
        "llama", axes, _llama, _embeddings, (_BOTH,), "causal", _texts(*axes, 5.2, 1.1),
        trace("llama"),
    )  # fmt: skip


def _tiny_workload() -> Workload:
    """A small encoder over a short trace: to try the benchmark itself, on a CPU too."""
    axes = (Axis("batch", 1, 4), Axis("tokens", 1, 64))
    requests: tuple[Request, ...] = ((2, 13), (1, 22), (4, 5), (2, 13), (1, 3), (4, 64), (3, 17))
    return Workload(
        "tiny", axes, lambda: SentenceEncoder(_bert(**TINY)), _ids_and_mask(TINY["vocab_size"]),
        (_BOTH, _BOTH), "mask", _texts(*axes, 2.5, 0.7), requests,
    )  # fmt: skip


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "minilm": _minilm_workload,
    "bert": _bert_workload,
    "llama": _llama_workload,
    **IMAGE_WORKLOADS,
    "tiny": _tiny_workload,
}

DTYPES: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
}
