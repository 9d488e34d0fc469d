# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which shapes the demo runs, and batches of real text that have them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from shapejit.demo.encoder import tokenize

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

MIN_BATCH, MAX_BATCH = 1, 32
MIN_TOKENS, MAX_TOKENS = 3, 256


@dataclass(frozen=True, order=True)
class Shape:
    """The two sizes that vary: texts in a batch, tokens in the longest of them."""

    tokens: int
    batch: int

    def __str__(self) -> str:
        return f"{self.batch} x {self.tokens}"


@dataclass(frozen=True)
class Batch:
    """Token ids and mask of one shape, each int64 ``[batch, tokens]``, and what they encode."""

    shape: Shape
    texts: tuple[int, ...]
    ids: Tensor
    mask: Tensor


def draw_shapes(count: int, seed: int) -> list[Shape]:
    """Draws ``count`` distinct shapes, the four corners of the range among them, in random order.

    Small sizes are likelier than large ones, as in real traffic: the weight of a shape is
    ``1 / (batch * tokens)``.
    """
    rng = random.Random(seed)
    corners = [Shape(t, b) for t, b in product((MIN_TOKENS, MAX_TOKENS), (MIN_BATCH, MAX_BATCH))]
    others = [
        shape
        for t, b in product(range(MIN_TOKENS, MAX_TOKENS + 1), range(MIN_BATCH, MAX_BATCH + 1))
        if (shape := Shape(t, b)) not in corners
    ]
    # The largest keys u ** (1 / weight) are a weighted sample without replacement.
    others.sort(key=lambda shape: -(rng.random() ** (shape.batch * shape.tokens)))
    shapes = corners[:count] + others[: max(count - len(corners), 0)]
    rng.shuffle(shapes)
    return shapes


class BatchMaker:
    """Makes batches out of the corpus."""

    def __init__(self, tokenizer: Tokenizer, corpus: list[str], seed: int) -> None:
        self._tokenizer = tokenizer
        self._corpus = corpus
        self._lengths = [len(encoding.ids) for encoding in tokenizer.encode_batch(corpus)]
        self._rng = random.Random(seed)

    def make(self, shape: Shape) -> Batch:
        """Draws texts, cut to ``shape.tokens``, at least one of which has that many tokens."""
        long_enough = [i for i, length in enumerate(self._lengths) if length >= shape.tokens]
        longest = self._rng.choice(long_enough)
        others = [i for i in range(len(self._corpus)) if i != longest]
        chosen = [longest, *self._rng.sample(others, shape.batch - 1)]
        self._rng.shuffle(chosen)
        texts = [self._corpus[i] for i in chosen]
        ids, mask = tokenize(self._tokenizer, texts, shape.tokens)
        return Batch(shape, tuple(chosen), ids, mask)
