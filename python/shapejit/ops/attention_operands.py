# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The operands of `shapejit.ops.attention`: what fits together, and how they lie in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from shapejit.ops.attention_spec import MOST_HEAD, STRIDE_MULTIPLE, AttentionKind
from shapejit.ops.tensors import ELEMENTS, HALVES, Rules

RULES = Rules("attention", alternative="torch.nn.functional.scaled_dot_product_attention")

_INTEGERS = {torch.int32: "i32", torch.int64: "i64"}
_MASKS = {torch.bool: "i1", **ELEMENTS}
_MAX_SIZE = (1 << 31) - 1
_ALIGNMENT = 16


class Operands(NamedTuple):
    """The arguments of a call, as tensors; see `shapejit.ops.attention`."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    key_lengths: Tensor | None
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    max_seqlen_q: int | None
    max_seqlen_k: int | None
    causal: bool
    causal_offset: int | None
    scale: float | None

    @property
    def is_ragged(self) -> bool:
        """Whether batches lie one after the other."""
        return self.cu_seqlens_q is not None

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """Name and tensor of those that are there, in the order of the kernel's arguments."""
        for name, value in zip(self._fields, self, strict=True):
            if isinstance(value, Tensor):
                yield name, value


class Sizes(NamedTuple):
    """The sizes of a call; of a ragged one the most queries and keys of a batch."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head: int
    value: int


# Checks -------------------------------------------------------------------------------------------


def check(operands: Operands) -> None:
    """Checks devices, dtypes and arguments that are no tensors.

    Raises:
        ShapeJitError: one breaks a rule.
    """
    q = operands.q
    RULES.check_device("q", q)
    for name, tensor in operands.named():
        RULES.check_tensor(name, tensor, "q", q)
    halves = "torch.bfloat16 or torch.float16"
    if q.dtype not in HALVES:
        raise RULES.dtype("q", q.dtype, f"queries are {halves}", "Convert q, k and v")
    for name, tensor in (("k", operands.k), ("v", operands.v)):
        if tensor.dtype != q.dtype:
            rule = f'"q" is {q.dtype}'
            raise RULES.dtype(name, tensor.dtype, rule, "Convert one of them to the other's")
    if operands.mask is not None and operands.mask.dtype not in _MASKS:
        rule = f"masks are torch.bool, {halves} or torch.float32"
        raise RULES.dtype("mask", operands.mask.dtype, rule, "Convert it to one of these")
    for name in ("key_lengths", "cu_seqlens_q", "cu_seqlens_k"):
        tensor = getattr(operands, name)
        if tensor is not None and tensor.dtype not in _INTEGERS:
            rule = "lengths are torch.int32 or torch.int64"
            raise RULES.dtype(name, tensor.dtype, rule, "Convert it to one of these")
    _check_numbers(operands)


def _check_numbers(operands: Operands) -> None:
    if operands.scale is not None and not math.isfinite(operands.scale):
        rule = "it must be a finite number"
        raise RULES.argument("scale", repr(operands.scale), rule, "Pass one, or None")
    offset = operands.causal_offset
    if offset is not None and not operands.causal:
        raise RULES.argument(
            "causal_offset", str(offset), "only a causal limit has an offset", "Pass causal=True"
        )
    if offset is not None and abs(offset) > _MAX_SIZE:
        rule = f"it must be between -{_MAX_SIZE} and {_MAX_SIZE}"
        raise RULES.argument("causal_offset", str(offset), rule, "Pass such a number, or None")


def sizes_of(operands: Operands) -> Sizes:
    """The sizes of a call.

    Raises:
        ShapeJitError: shapes do not fit together, or arguments contradict each other.
    """
    if (operands.cu_seqlens_q is None) != (operands.cu_seqlens_k is None):
        name = "cu_seqlens_k" if operands.cu_seqlens_k is None else "cu_seqlens_q"
        rule = "a ragged call needs cu_seqlens_q and cu_seqlens_k"
        raise RULES.argument(name, "None", rule, "Pass both, or neither")
    rank, what = (
        (3, "[total, heads, size]") if operands.is_ragged else (4, "[batch, heads, .., size]")
    )
    for name, tensor in (("q", operands.q), ("k", operands.k), ("v", operands.v)):
        if tensor.dim() != rank:
            raise RULES.shape(name, tensor, f"it must be {what}", "Give it these dims")
    sizes = _ragged_sizes(operands) if operands.is_ragged else _dense_sizes(operands)
    _check_sizes(operands, sizes)
    if operands.key_lengths is not None and operands.key_lengths.shape != (sizes.batch,):
        rule = f"it must have a length for each of {sizes.batch} batches"
        raise RULES.shape("key_lengths", operands.key_lengths, rule, f"Pass [{sizes.batch}]")
    if operands.mask is not None:
        _check_mask(operands, operands.mask, sizes)
    return sizes


def _dense_sizes(operands: Operands) -> Sizes:
    batch, heads, queries, head = operands.q.shape
    kv_heads, keys = operands.k.shape[1:3]
    for name, tensor in (("k", operands.k), ("v", operands.v)):
        if tuple(tensor.shape[:3]) != (batch, kv_heads, keys):
            rule = f'its first sizes must be those of "q" and "k", [{batch}, {kv_heads}, {keys}]'
            raise RULES.shape(name, tensor, rule, "Give k and v equal batches, heads and keys")
    return Sizes(batch, heads, kv_heads, queries, keys, head, operands.v.shape[3])


def _ragged_sizes(operands: Operands) -> Sizes:
    starts_q, starts_k = operands.cu_seqlens_q, operands.cu_seqlens_k
    assert starts_q is not None and starts_k is not None
    if operands.mask is not None:
        rule = "batches of a ragged call have no common shape that a mask could have"
        raise RULES.argument("mask", "a tensor", rule, "Pass key_lengths, or pad the batches")
    for name, tensor in (("cu_seqlens_q", starts_q), ("cu_seqlens_k", starts_k)):
        if tensor.dim() != 1 or not len(tensor) or len(tensor) != len(starts_q):
            rule = (
                "both have the shape [batch + 1]: where each batch starts, and where the last ends"
            )
            raise RULES.shape(name, tensor, rule, "Pass cumulative lengths that begin with 0")
    if starts_k.dtype != starts_q.dtype:
        rule = f'"cu_seqlens_q" is {starts_q.dtype}'
        raise RULES.dtype("cu_seqlens_k", starts_k.dtype, rule, "Convert one to the other's")
    total, heads, head = operands.q.shape
    keys, kv_heads, _ = operands.k.shape
    if tuple(operands.v.shape[:2]) != (keys, kv_heads):
        rule = f'its first sizes must be those of "k", [{keys}, {kv_heads}]'
        raise RULES.shape("v", operands.v, rule, "Give k and v equal totals and heads")
    most_q = _most("max_seqlen_q", operands.max_seqlen_q, total)
    most_k = _most("max_seqlen_k", operands.max_seqlen_k, keys)
    batch = len(starts_q) - 1
    return Sizes(batch, heads, kv_heads, most_q, most_k, head, operands.v.shape[2])


def _most(name: str, given: int | None, total: int) -> int:
    """The most that a batch has; all, if nothing is said of it."""
    if given is None:
        return total
    if given < 0:
        raise RULES.argument(name, str(given), "a batch has 0 or more", "Pass the longest, or None")
    return min(given, total)


def _check_sizes(operands: Operands, sizes: Sizes) -> None:
    if operands.k.shape[-1] != sizes.head:
        rule = f'its last size must be that of "q", {sizes.head}'
        raise RULES.shape("k", operands.k, rule, f"Pass keys of {sizes.head} elements")
    for name, tensor in (("q", operands.q), ("v", operands.v)):
        if not 1 <= tensor.shape[-1] <= MOST_HEAD:
            rule = f"its last size must be from 1 to {MOST_HEAD}"
            raise RULES.shape(name, tensor, rule, "Split the heads")
    if sizes.heads and (not sizes.kv_heads or sizes.heads % sizes.kv_heads):
        rule = f'its {sizes.heads} heads must be a multiple of the {sizes.kv_heads} of "k"'
        raise RULES.shape("q", operands.q, rule, "Let as many heads of q share each head of k")
    if max(sizes) > _MAX_SIZE:
        rule = f"sizes are at most {_MAX_SIZE}, not {max(sizes)}"
        raise RULES.shape("q", operands.q, rule, "Split the call")


def _check_mask(operands: Operands, mask: Tensor, sizes: Sizes) -> None:
    shape = (sizes.batch, sizes.heads, sizes.queries, sizes.keys)
    padded = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    if len(padded) != 4 or any(a not in (1, b) for a, b in zip(padded, shape, strict=True)):
        rule = f"it must broadcast to [batch, heads, queries, keys], {list(shape)}"
        raise RULES.shape("mask", mask, rule, "Its sizes must be these or 1, counted from the last")


# Results ------------------------------------------------------------------------------------------


def result_shape(operands: Operands) -> tuple[int, ...]:
    """The shape of the result: that of q, with the size of a value."""
    return (*operands.q.shape[:-1], operands.v.shape[-1])


def check_out(out: Tensor, operands: Operands, shape: tuple[int, ...]) -> None:
    """Checks what is to receive the result, except where it lies.

    Raises:
        ShapeJitError: it does not fit.
    """
    RULES.check_out(out)
    if tuple(out.shape) != shape:
        rule = f"the result has the shape {list(shape)}"
        raise RULES.shape("out", out, rule, f"Pass a tensor of shape {list(shape)}")
    if out.dtype != operands.q.dtype:
        raise RULES.dtype("out", out.dtype, f"the result is {operands.q.dtype}", "Convert it after")
    RULES.check_tensor("out", out, "q", operands.q)
    if any(s == 0 and size > 1 for s, size in zip(out.stride(), out.shape, strict=True)):
        rule = "each element of the result needs a place of its own"
        raise RULES.out(f"a tensor of strides {out.stride()}", rule)


# Layout -------------------------------------------------------------------------------------------


def layout(operands: Operands, sizes: Sizes, result: Tensor) -> tuple[AttentionKind, list[int]]:
    """The kind of a call, and the values of its kernel's symbols.

    Args:
        operands: checked ones.
        sizes: of the call.
        result: what receives the result.
    """
    rows = [operands.q, operands.k, operands.v, result]
    strides = [_strides(each, operands.is_ragged) for each in rows]
    dense = [each[3] == 1 for each in strides]
    outer = [stride for each in strides for stride in each[:3]]
    aligned = all(dense) and all(each.data_ptr() % _ALIGNMENT == 0 for each in rows)
    aligned = aligned and all(stride % STRIDE_MULTIPLE == 0 for stride in outer)
    aligned = aligned and not any(map(_is_expanded, rows))
    mask, others = None, list[list[int]]()
    if operands.mask is not None:
        shape = (sizes.batch, sizes.heads, sizes.queries, sizes.keys)
        moves = operands.mask.expand(shape).stride()
        a, b, c, d = (stride != 0 and size > 1 for stride, size in zip(moves, shape, strict=True))
        mask = (_MASKS[operands.mask.dtype], (a, b, c, d))
        others.append(list(moves))
    integers = (operands.key_lengths, operands.cu_seqlens_q, operands.cu_seqlens_k)
    others += [[each.stride(0)] for each in integers if each is not None]
    ragged, lengths = operands.cu_seqlens_q, operands.key_lengths
    kind = AttentionKind(
        element=ELEMENTS[operands.q.dtype],
        head=sizes.head,
        value=sizes.value,
        group=sizes.heads // sizes.kv_heads,
        scale=sizes.head**-0.5 if operands.scale is None else float(operands.scale),
        causal=_causal(operands),
        mask=mask,
        lengths=None if lengths is None else _INTEGERS[lengths.dtype],
        starts=None if ragged is None else _INTEGERS[ragged.dtype],
        dense=(dense[0], dense[1], dense[2], dense[3]),
        aligned=aligned,
    )
    span = max(_span(tensor) for tensor in (*rows, *(each for _, each in operands.named())))
    numbers = (sizes.batch, sizes.kv_heads, sizes.queries, sizes.keys, span)
    return kind, kind.symbols(numbers, operands.causal_offset or 0, [*strides, *others])


def _causal(operands: Operands) -> str | None:
    if not operands.causal:
        return None
    return "end" if operands.causal_offset is None else "start"


def _strides(tensor: Tensor, is_ragged: bool) -> list[int]:
    """Along batch, head, row and column, of which that of a dim of one element does not matter."""
    found = [
        stride if size != 1 else (1 if dim == tensor.dim() - 1 else STRIDE_MULTIPLE)
        for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True))
    ]
    if is_ragged:
        row, head, column = found
        return [0, head, row, column]
    return found


def _is_expanded(tensor: Tensor) -> bool:
    """Whether some elements of a tensor are one in memory."""
    return any(s == 0 and size > 1 for s, size in zip(tensor.stride(), tensor.shape, strict=True))


def _span(tensor: Tensor) -> int:
    """Elements from the first one to the last one."""
    return 1 + sum((size - 1) * s for size, s in zip(tensor.shape, tensor.stride(), strict=True))
