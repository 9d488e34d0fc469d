# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rules of matrix products and of attention."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given

from reference.importing import Imported, quick, sizes

# x is [a, b, 6], w [8, 6], v [6], z [a, 6, b].
CONTRACTIONS = {
    "addmm": lambda x, w, v, z: torch.addmm(w[:, 0], x[0], w.t()),
    "addmm_scaled": lambda x, w, v, z: torch.addmm(x[0] @ w.t(), x[0], w.t(), beta=0.5, alpha=2),
    "addmm_no_base": lambda x, w, v, z: torch.addmm(w[:, 0], x[0], w.t(), beta=0),
    "baddbmm": lambda x, w, v, z: torch.baddbmm(x @ z, x, z, alpha=0.5),
    "bmm": lambda x, w, v, z: torch.bmm(x, z),
    "dot": lambda x, w, v, z: torch.dot(v, v),
    "einsum_bhd": lambda x, w, v, z: torch.einsum("abk,nk->abn", x, w),
    "einsum_batch": lambda x, w, v, z: torch.einsum("abk,akc->abc", x, z),
    "einsum_diagonal": lambda x, w, v, z: torch.einsum("abk,abk->ab", x, x),
    "einsum_outer": lambda x, w, v, z: torch.einsum("abk,n->abkn", x, v),
    "einsum_sum": lambda x, w, v, z: torch.einsum("abk->k", x),
    "linear": lambda x, w, v, z: F.linear(x, w),
    "linear_bias": lambda x, w, v, z: F.linear(x, w, w[:, 1]),
    "linear_row": lambda x, w, v, z: F.linear(v, w, w[:, 1]),
    "linear_transposed": lambda x, w, v, z: F.linear(z.transpose(1, 2), w),
    "matmul_1_1": lambda x, w, v, z: v @ v,
    "matmul_1_2": lambda x, w, v, z: v @ w.t(),
    "matmul_1_3": lambda x, w, v, z: v @ z,
    "matmul_2_1": lambda x, w, v, z: w @ v,
    "matmul_2_3": lambda x, w, v, z: w @ z,
    "matmul_3_1": lambda x, w, v, z: x @ v,
    "matmul_3_2": lambda x, w, v, z: x @ w.t(),
    "matmul_3_3": lambda x, w, v, z: x @ z,
    "matmul_4_3": lambda x, w, v, z: x.unsqueeze(0) @ z,
    "matmul_4_4": lambda x, w, v, z: (
        x.view(x.shape[0], x.shape[1], 2, 3).transpose(1, 2) @ z.view(x.shape[0], 2, 3, -1)
    ),
    "matmul_broadcast": lambda x, w, v, z: x.unsqueeze(1) @ z.unsqueeze(0),
    "matmul_outer": lambda x, w, v, z: x[..., :1] @ x[:, :1, :],
    "mv": lambda x, w, v, z: torch.mv(w, v),
    "outer": lambda x, w, v, z: torch.outer(v, w[:, 0]),
    "tensordot": lambda x, w, v, z: torch.tensordot(x, w, dims=([2], [1])),
}


@pytest.fixture(scope="module")
def contractions() -> Imported:
    examples = [torch.randn(4, 5, 6), torch.randn(8, 6), torch.randn(6), torch.randn(4, 6, 5)]
    dims = [{0: "a", 1: "b"}, {}, {}, {0: "a", 2: "b"}]
    return Imported.table(CONTRACTIONS, examples, dims, low=1, high=9)


@quick
@given(a=sizes(1, 9), b=sizes(1, 9))
def test_contractions(contractions: Imported, a: int, b: int) -> None:
    contractions.check(
        torch.randn(a, b, 6), torch.randn(8, 6), torch.randn(6), torch.randn(a, 6, b)
    )


def test_empty_contractions() -> None:
    functions = {
        "rows": lambda x, w: x @ w,
        "linear": lambda x, w: F.linear(x, w.t(), w[0]),
        "contracted": lambda x, w: x.t() @ x,
    }
    examples = [torch.randn(4, 6), torch.randn(6, 6)]
    imported = Imported.table(functions, examples, [{0: "a"}, {}], low=0, high=9)
    for size in (0, 1, 9):
        imported.check(torch.randn(size, 6), torch.randn(6, 6))


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: object) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, **options)  # type: ignore[arg-type]


def _causal(rows: int, columns: int) -> torch.Tensor:
    return torch.arange(columns)[None, :] <= torch.arange(rows)[:, None]


# q is [b, 4, m, 8], k [b, 4, n, 8], v [b, 4, n, 6], g [b, 2, n, 8], keep [b, n] of bools.
ATTENTION = {
    "plain": lambda q, k, v, g, keep: _sdpa(q, k, v),
    "scale": lambda q, k, v, g, keep: _sdpa(q, k, v, scale=0.3),
    "causal": lambda q, k, v, g, keep: _sdpa(q, q, q, is_causal=True),
    "causal_mask": lambda q, k, v, g, keep: _sdpa(
        q, q, q, attn_mask=_causal(q.shape[2], q.shape[2])[None, None]
    ),
    "causal_shifted": lambda q, k, v, g, keep: _sdpa(
        q, k, v, attn_mask=torch.arange(k.shape[2])[None] <= torch.arange(q.shape[2])[:, None] + 1
    ),
    "tril": lambda q, k, v, g, keep: _sdpa(
        q, q, q, attn_mask=torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
    ),
    "window": lambda q, k, v, g, keep: _sdpa(
        q,
        q,
        q,
        attn_mask=_causal(q.shape[2], q.shape[2])
        & (torch.arange(q.shape[2])[None] > torch.arange(q.shape[2])[:, None] - 3),
    ),
    "key_mask": lambda q, k, v, g, keep: _sdpa(q, k, v, attn_mask=keep[:, None, None, :]),
    "float_mask": lambda q, k, v, g, keep: _sdpa(
        q, k, v, attn_mask=torch.where(keep, 0.25, -1.5)[:, None, None, :].to(q.dtype)
    ),
    "grouped": lambda q, k, v, g, keep: _sdpa(q, g, g, enable_gqa=True),
    "grouped_repeat": lambda q, k, v, g, keep: _sdpa(
        q,
        g[:, :, None].expand(-1, -1, 2, -1, -1).reshape(g.shape[0], 4, g.shape[2], 8),
        g.repeat_interleave(2, dim=1),
    ),
    "broadcast_batch": lambda q, k, v, g, keep: _sdpa(q, k[:1], v[:1]),
    "broadcast_heads": lambda q, k, v, g, keep: _sdpa(q, k[:, :1], v[:, :1]),
    "three_dims": lambda q, k, v, g, keep: _sdpa(q[:, 0], k[:, 0], v[:, 0]),
    "two_dims": lambda q, k, v, g, keep: _sdpa(q[0, 0], k[0, 0], v[0, 0]),
    "five_dims": lambda q, k, v, g, keep: _sdpa(
        q.unflatten(1, (2, 2)), k.unflatten(1, (2, 2)), v.unflatten(1, (2, 2))
    ),
}


@pytest.fixture(scope="module")
def attention() -> Imported:
    q, k, v = torch.randn(3, 4, 5, 8), torch.randn(3, 4, 7, 8), torch.randn(3, 4, 7, 6)
    examples = [q, k, v, torch.randn(3, 2, 7, 8), torch.ones(3, 7, dtype=torch.bool)]
    dims = [
        {0: "b", 2: "m"},
        {0: "b", 2: "n"},
        {0: "b", 2: "n"},
        {0: "b", 2: "n"},
        {0: "b", 1: "n"},
    ]
    return Imported.table(ATTENTION, examples, dims, low=1, high=9)


@quick
@given(b=sizes(1, 5), m=sizes(1, 9), n=sizes(1, 9))
def test_attention(attention: Imported, b: int, m: int, n: int) -> None:
    keep = torch.rand(b, n) > 0.4
    attention.check(
        torch.randn(b, 4, m, 8),
        torch.randn(b, 4, n, 8),
        torch.randn(b, 4, n, 6),
        torch.randn(b, 2, n, 8),
        keep,
    )


def test_causal_masks_are_recognised() -> None:
    functions = {name: ATTENTION[name] for name in ("causal", "causal_mask", "tril")}
    examples = [torch.randn(3, 4, 5, 8)] * 4 + [torch.ones(3, 5, dtype=torch.bool)]
    imported = Imported.table(functions, examples, [{0: "b", 2: "m"}] * 4 + [{0: "b", 1: "m"}])
    text = str(imported.imported.module)
    assert text.count("causal = ") == 3
    assert "mask(" not in text and "shapejit.loop" not in text
