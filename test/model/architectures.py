# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Small models of the architectures that matter, with what it takes to call them at any size."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

# Model configurations are built here; nothing is looked up on a hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

VOCABULARY = 1000
Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Architecture:
    """A model over (batch, tokens).

    Attributes:
        build: makes the module, in eval mode, with random weights.
        inputs: makes its inputs for a batch and a number of tokens.
        max_batch, max_tokens: range ends of the two dims; both start at 1.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[int, int], Inputs]
    max_batch: int = 64
    max_tokens: int = 512

    @functools.cached_property
    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return self.build().eval()

    def dynamic_shapes(self, arguments: int) -> Any:
        batch = Dim("batch", min=1, max=self.max_batch)
        tokens = Dim("tokens", min=1, max=self.max_tokens)
        return tuple({0: batch, 1: tokens} for _ in range(arguments))


class SelfAttention(nn.Module):
    """`nn.MultiheadAttention` of a sequence with itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return result


class PaddedEncoder(nn.Module):
    """Token and position embeddings, `nn.TransformerEncoder` under a padding mask, a head."""

    def __init__(self, width: int = 128, max_tokens: int = 512) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, activation="gelu", batch_first=True, dropout=0.1
        )
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(max_tokens, width)
        self.norm = nn.LayerNorm(width)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor, padding: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.norm(self.tokens(ids) + self.positions(positions)[None])
        result: Tensor = self.head(self.encoder(x, src_key_padding_mask=padding))
        return result


class Bert(nn.Module):
    """Hugging Face's BERT without a head."""

    def __init__(self, attention: str) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        self.bert = BertModel(
            BertConfig(
                vocab_size=VOCABULARY,
                hidden_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=512,
                attn_implementation=attention,
            )
        )

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        result: Tensor = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        return result


class Llama(nn.Module):
    """Hugging Face's Llama with grouped-query attention, called with ids only."""

    def __init__(self, attention: str) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        self.llama = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                intermediate_size=352,
                max_position_embeddings=512,
                attn_implementation=attention,
                use_cache=False,
            )
        )

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.llama(input_ids=ids, use_cache=False).logits
        return result


def _ids(batch: int, tokens: int) -> Tensor:
    return torch.randint(0, VOCABULARY, (batch, tokens))


def _keep(batch: int, tokens: int) -> Tensor:
    """1 for real tokens: every row has at least one, rows differ in length."""
    lengths = torch.randint(1, tokens + 1, (batch, 1))
    return (torch.arange(tokens)[None] < lengths).long()


ARCHITECTURES: dict[str, Architecture] = {
    "self_attention": Architecture(SelfAttention, lambda b, t: (torch.randn(b, t, 64),)),
    "padded_encoder": Architecture(
        PaddedEncoder, lambda b, t: (_ids(b, t), _keep(b, t) == 0), max_batch=32
    ),
    "bert": Architecture(lambda: Bert("sdpa"), lambda b, t: (_ids(b, t), _keep(b, t))),
    "bert_eager": Architecture(lambda: Bert("eager"), lambda b, t: (_ids(b, t), _keep(b, t))),
    "llama": Architecture(lambda: Llama("sdpa"), lambda b, t: (_ids(b, t),), max_batch=16),
    "llama_eager": Architecture(lambda: Llama("eager"), lambda b, t: (_ids(b, t),), max_batch=16),
}
