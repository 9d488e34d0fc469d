# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""From a `shapejit.kernel` with one attention to the problem that the emitter solves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.passes.nvgpu.builder import Type
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.problem import Access, OperandReader, is_half
from shapejit.symbolic import Expr, map_exprs

# Dims of all accesses: batch, head, query m (or key n), and the last one.
BATCH, HEAD, ROW, COLUMN = range(4)

#: Head sizes that tiles are made for; others are padded in shared memory.
HEAD_SIZES = (32, 64, 128, 256)


@dataclass(frozen=True)
class AttentionProblem:
    """``result[b, h, m] = softmax over n of (scale * q[b, h, m] . k[b, h, n] + mask) * v[b, h, n]``

    Attributes:
        space: sizes: batch, heads, queries, keys, head size, value size; the last two constant.
        q: over (b, h, m, d).
        k: over (b, h, n, d).
        v: over (b, h, n, dv).
        result: over (b, h, m, dv).
        scale: factor of the scores.
        mask: over (b, h, m, n), or None: bools that are true where a query may look, or numbers
            to add to the scaled scores.
        causal: offset o over the kernel's symbols: query m sees key n when n <= m + o; None: all.
        from_end: whether to o is added how many more keys than queries a batch and head has.
        lengths: over (b, h), or None: how many of the keys there are, an integer.
        is_initialized: whether keys and values beyond the lengths may be read.
        starts: over (b), or None: where the queries and the keys of a batch start among those of
            all batches, integers. Then the rows of q, result, k and v are those of all batches, and
            sizes of the space are the most that a batch has.
    """

    space: tuple[Expr, ...]
    q: Access
    k: Access
    v: Access
    result: Access
    scale: float
    mask: Access | None = None
    causal: Expr | None = None
    from_end: bool = False
    lengths: Access | None = None
    is_initialized: bool = False
    starts: tuple[Access, Access] | None = None

    @property
    def has_spans(self) -> bool:
        """Whether batches differ in how many queries or keys they have."""
        return self.lengths is not None or self.starts is not None

    @property
    def has_one_length(self) -> bool:
        """Whether all batches and heads have the same length of keys, that of a cache."""
        return self.lengths is not None and not self.lengths.offset.dims()

    @property
    def element(self) -> Type:
        """Of the operands and the result: bf16 or f16."""
        return self.q.element

    @property
    def head(self) -> int:
        """Elements of a query and a key."""
        return _constant(self.space[4])

    @property
    def value(self) -> int:
        """Elements of a value."""
        return _constant(self.space[5])

    @property
    def adds_mask(self) -> bool:
        """Whether the mask is one of numbers."""
        return self.mask is not None and not is_bool(self.mask.element)

    @property
    def masks_keys(self) -> bool:
        """Whether the mask is one of bools that is the same for all queries."""
        mask = self.mask
        return (
            mask is not None
            and is_bool(mask.element)
            and ROW not in mask.offset.dims()
            and (COLUMN not in mask.offset.dims() or mask.stride(COLUMN) is not None)
        )


def is_bool(element: Type) -> bool:
    """Whether a mask says which keys are seen, rather than what is added."""
    return isinstance(element, ir.IntegerType)


def _constant(size: Expr) -> int:
    assert size.constant is not None
    return size.constant


def is_attention(kernel: Any) -> bool:
    """Whether a ``shapejit.kernel`` holds an attention."""
    return any(op.name == "shapejit.attention" for op in sir.operations(sir.body(kernel)))


def attention_problem(kernel: Any) -> AttentionProblem:
    """The problem of a kernel.

    Args:
        kernel: ``shapejit.kernel``.

    Raises:
        LoweringError: it holds other ops, or an attention that no schedule computes.
    """
    body = sir.body(kernel)
    *ops, terminator = (op for op in sir.operations(body) if op.name != "arith.constant")
    for op in ops:
        if op.name not in ("shapejit.attention", "shapejit.view"):
            raise LoweringError(
                f"holds '{op.name}' beside an attention; other ops go into kernels of their own"
            )
    found = [op for op in ops if op.name == "shapejit.attention"]
    if len(found) != 1 or list(terminator.operands) != list(found[0].results):
        raise LoweringError("does not yield exactly the result of one attention")
    [attention] = found
    space = sir.attr_sizes(attention.attributes["space"])
    _check_types(attention)
    _check_head_sizes(space)
    return _read(kernel, attention, space)


def _read(kernel: Any, attention: Any, space: tuple[Expr, ...]) -> AttentionProblem:
    batch, heads, queries, keys, head, value = space
    reader = OperandReader(kernel)
    maps = [map_exprs(each) for each in sir.op_maps(attention)]
    spaces = [
        (batch, heads, queries, head),
        (batch, heads, keys, head),
        (batch, heads, keys, value),
    ]
    operands = list(attention.operands)
    q, k, v = (
        reader.read(operand, indices, each)
        for operand, indices, each in zip(operands[:3], maps[:3], spaces, strict=True)
    )
    others = dict(zip(_others(attention), zip(operands[3:], maps[3:-1], strict=True), strict=True))

    def other(name: str, space: tuple[Expr, ...]) -> Access | None:
        return reader.read(*others[name], space) if name in others else None

    starts = tuple(other(name, (batch + 1,)) for name in ("query_starts", "key_starts"))
    [result] = attention.results
    number = len(sir.body(kernel).arguments)
    is_causal = "causal" in attention.attributes
    return AttentionProblem(
        space=space,
        q=q,
        k=k,
        v=v,
        result=reader.access(number, result, maps[-1], (batch, heads, queries, value)),
        scale=ir.FloatAttr(attention.attributes["scale"]).value,
        mask=other("mask", (batch, heads, queries, keys)),
        causal=map_exprs(attention.attributes["causal"].value)[0] if is_causal else None,
        from_end="from_end" in attention.attributes,
        lengths=other("lengths", (batch, heads)),
        is_initialized="is_initialized" in attention.attributes,
        starts=(starts[0], starts[1]) if starts[0] and starts[1] else None,
    )


def _others(attention: Any) -> list[str]:
    """What the operands after v are."""
    names = ["lengths"] if "has_lengths" in attention.attributes else []
    names += ["query_starts", "key_starts"] if "is_ragged" in attention.attributes else []
    has_mask = len(attention.operands) - 3 > len(names)
    return ["mask", *names] if has_mask else names


def _check_types(attention: Any) -> None:
    factors = [value.type.element_type for value in list(attention.operands)[:3]]
    [result] = attention.results
    types = [*factors, result.type.element_type]
    if not is_half(types[0]) or any(type_ != types[0] for type_ in types):
        found = ", ".join(map(str, types))
        raise LoweringError(
            f"has queries, keys, values and result of {found}; attention on a GPU takes bf16 or "
            "f16, the same for all"
        )
    others = zip(_others(attention), list(attention.operands)[3:], strict=True)
    for mask in (value.type.element_type for name, value in others if name == "mask"):
        if str(mask) not in ("i1", "f32", "f16", "bf16"):
            raise LoweringError(f"has a mask of {mask}; masks are of i1, f32, f16 or bf16")


def _check_head_sizes(space: tuple[Expr, ...]) -> None:
    most = HEAD_SIZES[-1]
    for size in space[4:]:
        if size.constant is None or not 1 <= size.constant <= most:
            raise LoweringError(
                f"has a head size of {size}; attention on a GPU takes constants from 1 to {most}"
            )
