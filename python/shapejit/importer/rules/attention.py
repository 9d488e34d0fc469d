# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Scaled dot product attention.

A mask that is known to be a comparison of positions becomes the op's causal offset, with no mask
tensor; grouped heads and broadcast batches become maps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from shapejit.importer.builder import Read
from shapejit.importer.context import Context, UnsupportedCaseError
from shapejit.importer.registry import rule
from shapejit.importer.values import Tensor, substitute, terms_of
from shapejit.symbolic import Expr, product

_ONE = Expr.const(1)


@rule("aten.scaled_dot_product_attention")
def _attention(
    ctx: Context,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: Any,
    grouped: bool = False,
) -> Tensor:
    if dropout != 0:
        raise UnsupportedCaseError(f"with dropout_p = {dropout}")
    batch = _batch_shape(ctx, q, k, v, grouped)
    q4, k4, v4 = (_four_dims(ctx, x, batch) for x in (q, k, v))
    b, h, m, d = q4.shape
    n, dv = k4.shape[2], v4.shape[3]
    b = ctx.builder.broadcast((b,), (k4.shape[0],), (v4.shape[0],))[0]
    h = h if grouped else ctx.builder.broadcast((h,), (k4.shape[1],), (v4.shape[1],))[0]
    factor = _scale(scale, d)
    reads = [
        Read(q4, _indices(q4, b, h)),
        Read(k4, _indices(k4, b, h)),
        Read(v4, _indices(v4, b, h)),
    ]
    causal = Expr.const(0) if is_causal else None
    if mask is not None:
        mask4 = _four_dims(ctx, mask, batch)
        offset, mask4_rest = _split_mask(ctx, mask4, (b, h, m, n))
        if offset is not None:
            causal = offset
        if mask4_rest is not None:
            reads.append(
                Read(mask4_rest, ctx.builder.broadcast_read(mask4_rest, (b, h, m, n)).indices)
            )
    result = ctx.builder.attention((b, h, m, n, d, dv), reads, factor, causal)
    return ctx.builder.reshape(result, (*batch, q.shape[-2], v.shape[-1]))


def _batch_shape(ctx: Context, q: Tensor, k: Tensor, v: Tensor, grouped: bool) -> tuple[Expr, ...]:
    """The result's dims before the last two."""
    if grouped:
        return q.shape[:-2]
    return ctx.builder.broadcast(*(x.shape[:-2] for x in (q, k, v)))


def _four_dims(ctx: Context, x: Tensor, batch: Sequence[Expr]) -> Tensor:
    """`x` as [b, h, rows, columns]. More than two batch dims are merged, so they are expanded."""
    if len(batch) <= 2:
        missing = [_ONE] * (4 - x.rank)
        return ctx.builder.reshape(x, [*missing, *x.shape])
    whole = ctx.builder.expand(x, [*batch[:-1], *_own_heads(x, batch), *x.shape[-2:]])
    merged = [product(batch[:-1]), *whole.shape[-3:]]
    return ctx.builder.reshape(whole, merged)


def _own_heads(x: Tensor, batch: Sequence[Expr]) -> tuple[Expr]:
    """The dim of heads, which may differ from the result's (grouped heads)."""
    return (x.shape[-3] if x.rank > 2 and x.shape[-3] != 1 else batch[-1],)


def _indices(x: Tensor, b: Expr, h: Expr) -> tuple[Expr, ...]:
    """Reads [b, h, rows, columns]; batch dims of size one repeat, grouped heads are shared."""
    head = Expr.dim(1)
    if x.shape[1] != h:
        group = h.exact_div(x.shape[1])
        if group is None:
            raise UnsupportedCaseError(f"with {h} query heads and {x.shape[1]} key heads")
        head = Expr.const(0) if x.shape[1] == 1 else head // group
    first = Expr.dim(0) if x.shape[0] == b else Expr.const(0)
    return (first, head, Expr.dim(2), Expr.dim(3))


def _scale(scale: Any, depth: Expr) -> float:
    if scale is not None:
        if not isinstance(scale, (int, float)):
            raise UnsupportedCaseError("with a scale that depends on sizes")
        return float(scale)
    size = depth.constant
    if size is None:
        raise UnsupportedCaseError("with a dynamic head size and no scale")
    return 1 / math.sqrt(size) if size else 1.0


def _split_mask(
    ctx: Context, mask: Tensor, space: tuple[Expr, ...]
) -> tuple[Expr | None, Tensor | None]:
    """A mask as a causal offset and the mask that is left, each None if there is none.

    With offset o, key n is visible to query m when n <= m + o: the term ``d2 - d3 + o`` >= 0.
    """
    if mask.content is None or mask.dtype is not torch.bool:
        return None, mask
    indices = ctx.builder.broadcast_read(mask, space).indices
    whole = ctx.builder.known(space, torch.bool, substitute(mask.content, indices))
    terms = terms_of(whole.content)
    if terms is None:
        return None, mask
    offset: Expr | None = None
    rest: list[Expr] = []
    for term in terms:
        candidate = term - Expr.dim(2) + Expr.dim(3)
        if offset is None and not candidate.dims():
            offset = candidate
        else:
            rest.append(term)
    if offset is None:
        return None, mask
    return offset, ctx.builder.predicate(space, rest) if rest else None
