# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention whose batches differ in how many queries or keys they have, for a simulated GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unit.cpu_kernels import DTYPES, access, tensor
from unit.simulated_attention import Attention

_INTEGERS = {"i32": torch.int32, "i64": torch.int64}


@dataclass(frozen=True)
class SpanAttention(Attention):
    """Attention over [s0, heads, s1, s2, d, dv] in which batch b has fewer queries and keys.

    With lengths q, k, v and result are as for `Attention`. Ragged ones are [total, heads * size],
    with s3 queries and s4 keys of all batches.

    Attributes:
        lengths: element type of the lengths, if there are any.
        starts: element type of the starts, if ragged.
        from_end: whether the causal offset counts from the end.
        shared: whether all batches have one length, that of a cache.
        initialized: whether keys beyond the lengths may be read.
    """

    lengths: str | None = None
    starts: str | None = None
    from_end: bool = False
    shared: bool = False
    initialized: bool = False

    def spans(self, b: int, m: int, n: int) -> tuple[list[int], list[int]]:
        """How many queries and keys each batch has: some none, the first one most."""
        queries, keys = [m] * b, [n - 13 * i % (n + 1) for i in range(b)]
        if self.shared or not (self.lengths or self.starts):
            keys = [n * 2 // 3 if self.shared else n] * b
        if self.starts:
            queries = [0 if i == 2 else m - 7 * i % (m + 1) for i in range(b)]
            keys = [0 if i == 1 else each for i, each in enumerate(keys)]
        return queries, keys

    def given(self, b: int, m: int, n: int) -> list[int]:
        """The lengths: more than there are count as all, less than none as none."""
        _, keys = self.spans(b, m, n)
        return [each + 3 if each == n else each or -2 for each in keys]

    def symbols(self, b: int, m: int, n: int) -> list[int]:
        queries, keys = self.spans(b, m, n)
        return [b, m, n, sum(queries), sum(keys)]

    def _operand(self, name: str, length: str, heads: int, size: int) -> tuple[str, str, str]:
        if not self.starts:
            return super()._operand(name, length, heads, size)
        share = f"(d1 floordiv {self.heads // heads})" if heads != self.heads else "d1"
        total = "s3" if length == "s1" else "s4"
        type_ = tensor(self.element, total, heads * size)
        return name, access(4, f"d2, {share} * {size} + d3"), type_

    @property
    def text(self) -> str:
        text = (
            super()
            .text.replace("symbols 3", "symbols 5")
            .replace("[s0, s1, s2] ->", "[s0, s1, s2, s3, s4] ->")
        )
        extra, uses = [], ""
        if self.lengths:
            type_ = tensor(self.lengths) if self.shared else tensor(self.lengths, "s0")
            extra.append(f"%lengths: {type_}")
            uses += f" lengths(%lengths at {access(2, '' if self.shared else 'd0')} : {type_})"
        if self.starts:
            type_ = tensor(self.starts, "s0 + 1")
            extra += [f"%qs: {type_}", f"%ks: {type_}"]
            at = f"{access(1, 'd0')} : {type_}"
            uses += f" starts(%qs at {at}, %ks at {at})"
        if self.from_end:
            text = text.replace(": f64, causal", ": f64, from_end, causal")
        more = "".join(f", {each}" for each in extra)
        text = text.replace(") {\n              %0", f"{more}) {{\n              %0")
        known = "is_initialized, " if self.initialized else ""
        return text.replace(" {scale", f"{uses} {{{known}scale")

    def inputs(self, b: int, m: int, n: int) -> list[Tensor]:
        queries, keys = self.spans(b, m, n)
        if not self.starts:
            made = super().inputs(b, m, n)
        else:
            shapes = (
                (sum(queries), self.heads * self.d),
                (sum(keys), self.groups * self.d),
                (sum(keys), self.groups * self.value),
            )
            made = [torch.randn(shape).to(DTYPES[self.element]) for shape in shapes]
        if self.lengths:
            counts = self.given(max(b, 1), m, n)
            given = counts[0] if self.shared else counts[:b]
            made.append(torch.tensor(given, dtype=_INTEGERS[self.lengths]))
        if self.starts:
            for counts in (queries, keys):
                starts = torch.tensor([0, *counts]).cumsum(0)
                made.append(starts.to(_INTEGERS[self.starts]))
        return made

    def result(self, b: int, m: int) -> Tensor:
        if not self.starts:
            return super().result(b, m)
        queries, _ = self.spans(b, m, 0)
        return torch.empty(sum(queries), self.heads * self.value, dtype=DTYPES[self.element])

    def reference(self, inputs: Sequence[Tensor], b: int, m: int, n: int) -> Tensor:
        queries, keys = self.spans(b, m, n)
        results, first_query, first_key = [], 0, 0
        for i, (own, seen) in enumerate(zip(queries, keys, strict=True)):
            if self.starts:
                q = inputs[0][first_query : first_query + own]
                k, v = (each[first_key : first_key + seen] for each in inputs[1:3])
            else:
                q, k, v = inputs[0][i], inputs[1][i, :seen], inputs[2][i, :seen]
            end = self.given(b, m, n)[i] if self.lengths else len(k)
            hidden = ~inputs[3][i, ..., :seen] if self.mask else None
            results.append(self._one(q.double(), k.double(), v.double(), end, hidden))
            first_query, first_key = first_query + own, first_key + seen
        if not self.starts:
            empty = inputs[0].new_empty(0, m, self.heads * self.value, dtype=torch.float64)
            return torch.stack(results) if results else empty
        empty = inputs[0].new_empty(0, self.heads * self.value, dtype=torch.float64)
        return torch.cat(results) if results else empty

    def _one(
        self, q: Tensor, k: Tensor, v: Tensor, end: int, hidden: Tensor | None = None
    ) -> Tensor:
        """[m, heads * dv] of one batch, in float64.

        Args:
            q, k, v: of the batch.
            end: what a causal limit counts from.
            hidden: scores that a mask of bools hides, if there is one.
        """
        m, n, share = len(q), len(k), self.heads // self.groups
        q, k, v = (
            each.unflatten(-1, (heads, size)).transpose(0, 1)
            for each, heads, size in (
                (q, self.heads, self.d),
                (k, self.groups, self.d),
                (v, self.groups, self.value),
            )
        )
        scores = q @ k.repeat_interleave(share, 0).transpose(1, 2) * self.factor
        if hidden is not None:
            scores = scores.masked_fill(hidden, -math.inf)
        if self.causal is not None:
            query, key = (torch.arange(each, device=q.device) for each in (m, n))
            offset = int(self.causal) + (end - m if self.from_end else 0)
            seen = key <= query[:, None] + offset
            scores = scores.masked_fill(~seen, -math.inf)
        weights = torch.softmax(scores, -1)
        weights = weights.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)
        return (weights @ v.repeat_interleave(share, 0)).transpose(0, 1).flatten(1)
