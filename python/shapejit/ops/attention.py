# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention of any sizes on NVIDIA GPUs."""

from __future__ import annotations

import functools
import threading
from typing import Any, TypeAlias

from torch import Tensor

from shapejit.allocation import allocator, contiguous
from shapejit.gpu.driver import driver
from shapejit.ops.attention_kernels import KindKernels
from shapejit.ops.attention_operands import (
    RULES,
    Operands,
    check,
    check_out,
    layout,
    result_shape,
    sizes_of,
)
from shapejit.ops.attention_spec import AttentionKind
from shapejit.ops.kernels import begin_build, code_memory
from shapejit.ops.tensors import current_stream, reach


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    causal_offset: int | None = None,
    scale: float | None = None,
    mask: Any = None,
    key_lengths: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    out: Tensor | None = None,
    deterministic: bool = False,
) -> Tensor:
    """``softmax(scale * q @ k.mT + mask) @ v`` in one kernel. ::

        y = shapejit.ops.attention(q, cache_k[:, :, :length], cache_v[:, :, :length], causal=True)
        y = shapejit.ops.attention(q, k, v, cu_seqlens_q=starts, cu_seqlens_k=starts)

    A variant of a kernel serves all sizes of a kind of calls (element type, head sizes, heads that
    share keys, scale, mask); which variant is best depends on the sizes: one of few queries divides
    the keys among all multiprocessors. One that is not built yet is built in the background, while
    calls use another; `compile_attention` builds all ahead of time.

    Scores, their maxima and all sums are float32; weights are rounded to the dtype of `v` before
    they are multiplied, and the result is rounded once. A query that sees no key gives 0.

    Args:
        q: [batch, heads, queries, size], or [total queries, heads, size] of a ragged call; float16
            or bfloat16, on a CUDA device, of any strides; sizes of a head up to 256.
        k: [batch, kv heads, keys, size] or [total keys, kv heads, size], like `q`; heads of `q` are
            a multiple of its heads, and neighbours share one.
        v: like `k`; its last size may be another one.
        causal: whether query m sees key n only if ``n <= m + causal_offset``.
        causal_offset: by default as many as there are more keys than queries, in each batch: the
            last query sees all keys, as in decode with a cache. 0 is `is_causal` of
            `torch.nn.functional.scaled_dot_product_attention`.
        scale: of the scores; ``size ** -0.5`` by default.
        mask: broadcast to [batch, heads, queries, keys]: bools, true where a query may look, or
            float32, float16 or bfloat16 numbers that are added to scaled scores.
        key_lengths: [batch], int32 or int64: how many of a batch's keys there are; others are not
            read.
        cu_seqlens_q: [batch + 1], int32 or int64, on the device: a ragged call, in which the
            queries of batch b are those from ``cu_seqlens_q[b]`` to ``cu_seqlens_q[b + 1]``, as in
            `torch.nn.attention.varlen.varlen_attn`. The values are not checked.
        cu_seqlens_k: the same of the keys.
        max_seqlen_q, max_seqlen_k: the most queries and keys of a batch, if known: without it there
            may be as many as in all batches, and kernels look for work that is not there. Queries
            beyond it have no result.
        out: receives the result, of any strides; no memory of an input.
        deterministic: wait for the chosen variant, so that equal calls give equal bits from the
            first one on.

        Tensors of other libraries are taken through DLPack.

    Returns:
        The shape of `q` with the last size of `v`, contiguous; it is `out`, if that is given.

    Raises:
        ShapeJitError: shapes, dtypes, devices or arguments do not fit together.
        CudaError: the device refuses the launch.
    """
    operands = Operands(
        *_tensors(q, k, v),
        *_optional(mask, key_lengths, cu_seqlens_q, cu_seqlens_k),
        max_seqlen_q,
        max_seqlen_k,
        causal,
        causal_offset,
        scale,
    )
    check(operands)
    sizes = sizes_of(operands)
    result = _result(operands, out)
    if not result.numel():
        return result
    if not operands.k.numel():  # no key at all, of which there would be no tensor map
        return result.zero_()
    kind, symbols = layout(operands, sizes, result)
    number = operands.q.device.index or 0
    addresses = [tensor.data_ptr() for _, tensor in operands.named()]
    addresses.append(result.data_ptr())
    stream = current_stream(number)
    _kind_kernels(kind, number).launch(addresses, symbols, stream, final=deterministic)
    return result


def compile_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    causal_offset: int | None = None,
    scale: float | None = None,
    mask: Any = None,
    key_lengths: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
) -> list[str]:
    """Builds and loads every variant that calls of `attention` like this one need, whatever batch,
    queries and keys are.

    Args:
        q, k, v, causal, causal_offset, scale, mask, key_lengths, cu_seqlens_q, cu_seqlens_k: as for
            `attention`.

    Returns:
        The variants' schedules by name.

    Raises:
        ShapeJitError: as for `attention`.
        Exception: what the build of a kernel raised.
    """
    operands = Operands(
        *_tensors(q, k, v),
        *_optional(mask, key_lengths, cu_seqlens_q, cu_seqlens_k),
        None,
        None,
        causal,
        causal_offset,
        scale,
    )
    check(operands)
    sizes = sizes_of(operands)
    kind, _ = layout(operands, sizes, _result(operands, None))
    return _kind_kernels(kind, operands.q.device.index or 0).build_all()


def _tensors(q: Any, k: Any, v: Any) -> tuple[Tensor, Tensor, Tensor]:
    return RULES.tensor("q", q), RULES.tensor("k", k), RULES.tensor("v", v)


_Maybe: TypeAlias = "Tensor | None"


def _optional(
    mask: Any, key_lengths: Any, cu_seqlens_q: Any, cu_seqlens_k: Any
) -> tuple[_Maybe, _Maybe, _Maybe, _Maybe]:
    return (
        RULES.optional("mask", mask),
        RULES.optional("key_lengths", key_lengths),
        RULES.optional("cu_seqlens_q", cu_seqlens_q),
        RULES.optional("cu_seqlens_k", cu_seqlens_k),
    )


def _result(operands: Operands, out: Tensor | None) -> Tensor:
    """What receives the result."""
    shape = result_shape(operands)
    if out is None:
        return _allocate(operands.q.device)(shape, contiguous(shape), operands.q.dtype)
    check_out(out, operands, shape)
    start, (length, _) = out.data_ptr(), reach(out, free_rows=False)
    for _, tensor in operands.named():
        address, (taken, _) = tensor.data_ptr(), reach(tensor, free_rows=False)
        if address < start + length and start < address + taken:
            raise RULES.shared_memory()
    return out


_allocate = functools.lru_cache(maxsize=64)(allocator)


def _kind_kernels(kind: AttentionKind, device_number: int) -> KindKernels:
    with _kinds_lock:  # so that threads that come first share the kernels
        return _make_kind_kernels(kind, device_number)


@functools.lru_cache(maxsize=1024)
def _make_kind_kernels(kind: AttentionKind, device_number: int) -> KindKernels:
    device = driver().device(device_number)
    return KindKernels(kind, device, code_memory(device_number), begin_build)


_kinds_lock = threading.Lock()
