# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Semantic search over the corpus: nearest texts by the cosine of their embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shapejit.demo.batches import MAX_BATCH, MAX_TOKENS
from shapejit.demo.encoder import tokenize
from shapejit.demo.measure import Embed

if TYPE_CHECKING:
    from tokenizers import Tokenizer

QUERIES = (
    "how do people without a shared language manage to talk?",
    "my bread did not rise, what went wrong?",
    "planets around other stars",
    "saving money for retirement",
    "which animal opened the lid of its tank?",
)


class SearchIndex:
    """Embeddings of the corpus, float32 ``[texts, 384]`` on the CPU, and the call that made them.

    Args:
        embed: ids and mask on `device` to embeddings there.
    """

    def __init__(
        self,
        embed: Embed,
        tokenizer: Tokenizer,
        corpus: list[str],
        device: torch.device = torch.device("cpu"),  # noqa: B008 - immutable
    ) -> None:
        self._embed = embed
        self._device = device
        self._tokenizer = tokenizer
        self._corpus = corpus
        self.vectors = self._embed_texts(corpus)

    def search(self, query: str, count: int) -> list[tuple[float, str]]:
        """Returns the ``count`` best texts with their cosines, best first."""
        scores = self.vectors @ self._embed_texts([query])[0]
        best = torch.topk(scores, count)
        pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        return [(score, self._corpus[index]) for score, index in pairs]

    def _embed_texts(self, texts: list[str]) -> Tensor:
        """Embeds texts of similar length together, so that little padding is computed."""
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        vectors: list[Tensor | None] = [None] * len(texts)
        for start in range(0, len(order), MAX_BATCH):
            chosen = order[start : start + MAX_BATCH]
            ids, mask = tokenize(self._tokenizer, [texts[i] for i in chosen], MAX_TOKENS)
            embedded = self._embed(ids.to(self._device), mask.to(self._device))
            for i, vector in zip(chosen, embedded.float().cpu(), strict=True):
                vectors[i] = vector
        return torch.stack([vector for vector in vectors if vector is not None])
