# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""From the tensors of a product to its kind, and to the numbers that its kernel is called with.

Only sizes, strides, element types and addresses are looked at. Batch dims that every operand walks
through in one go become one, and join m where no weight moves along them: a linear layer on
[batch, tokens, features] is one tall product. Dims of size 1 go, since their strides say nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shapejit.ops.gemm_spec import GemmKind, OperandKind, span_symbols, symbol_values

#: Bytes that TMA wants addresses and strides to be multiples of.
_ALIGNMENT = 16
_BYTES = {"bf16": 2, "f16": 2, "f32": 4}
#: Batch dims that a tensor map has room for, beside the two of a matrix.
_MAX_MAP_BATCH = 3


@dataclass(frozen=True)
class Strided:
    """A tensor: element type, address, and a stride in elements for every dim of the space that it
    is read over; 0 where it is broadcast."""

    element: str
    address: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class GemmLayout:
    """A product as its kernel sees it.

    Attributes:
        kind: which kernel.
        m, n, k, batch: sizes, of all batch dims together.
        symbols: values of the kernel's symbols.
        row_symbol: the symbol that is m.
        row_symbols: the symbols that depend on m: it, and how far operands reach.
    """

    kind: GemmKind
    m: int
    n: int
    k: int
    batch: int
    symbols: tuple[int, ...]
    row_symbol: int
    row_symbols: frozenset[int]


@dataclass(frozen=True)
class Product:
    """The operands of ``residual + activation(a @ b + bias) * (a @ gate)``.

    Attributes:
        batch: sizes of the result's batch dims.
        m, n, k: sizes.
        lhs: over (batch.., m, k).
        weights: over (batch.., k, n); the second one is the gate.
        bias, residual: over (batch.., m, n).
        activation: its name.
        result: element type of the contiguous result.
        result_address: of the result.
        tf32: whether factors of float32 may be rounded to tf32.
    """

    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    lhs: Strided
    weights: tuple[Strided, ...]
    bias: Strided | None
    residual: Strided | None
    activation: str | None
    result: str
    result_address: int
    tf32: bool = False


def gemm_layout(product: Product) -> GemmLayout:
    """The kind of a product and its numbers."""
    rows = _collapsed(product)
    *batch, m = rows.sizes
    sizes = (*batch, m, product.n, product.k)
    n, k = len(sizes) - 2, len(sizes) - 1
    lhs = [*rows.strides[0], 0, product.lhs.strides[-1]]
    weights = [
        [*outer, weight.strides[-1], weight.strides[-2]]
        for weight, outer in zip(product.weights, rows.strides[1:], strict=False)
    ]
    factors = [(product.lhs, lhs, (k, n - 1))]
    factors += [(w, s, (k, n)) for w, s in zip(product.weights, weights, strict=True)]
    found = [_factor(tensor, sizes, strides, tile) for tensor, strides, tile in factors]
    result_aligned = product.result_address % _ALIGNMENT == 0
    aligned = result_aligned and len(batch) <= _MAX_MAP_BATCH and all(f.aligned for f in found)
    width = _BYTES[product.result]
    remainder = product.n % (_ALIGNMENT // width) if aligned and width == 2 else 0
    given = [e for e in (product.bias, product.residual) if e is not None]
    moved = rows.strides[1 + len(weights) :]
    extras = [
        _extra(
            extra,
            sizes[:-1],
            [*outer, extra.strides[-1]],
            even_rows=aligned and not remainder,
            has_rows=extra is product.residual,
        )
        for extra, outer in zip(given, moved, strict=True)
    ]
    kinds = iter(extra for extra, _ in extras)
    kind = GemmKind(
        batch_dims=len(batch),
        lhs=found[0].kind,
        weights=tuple(f.kind for f in found[1:]),
        bias=next(kinds) if product.bias is not None else None,
        activation=product.activation,
        residual=next(kinds) if product.residual is not None else None,
        result=product.result,
        row_remainder=remainder,
        aligned=aligned,
        tf32=product.tf32,
    )
    operands = [(_span(sizes, f.strides), f.strides) for f in found]
    operands += [(_span(sizes, strides), strides) for _, strides in extras]
    total = 1
    for size in batch:
        total *= size
    symbols = symbol_values(kind, sizes, operands)
    row = len(batch)
    return GemmLayout(
        kind, m, product.n, product.k, total, tuple(symbols),
        row_symbol=row, row_symbols=frozenset({row, *span_symbols(kind)}),
    )  # fmt: skip


# Batch dims ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    """The dims before n: sizes, and the strides along them of lhs, weights and extras."""

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]


def _collapsed(product: Product) -> _Rows:
    """The batch dims and m, as few as possible; m is the last one."""
    batch = len(product.batch)
    columns = [product.lhs.strides[: batch + 1]]
    columns += [(*weight.strides[:batch], 0) for weight in product.weights]
    columns += [e.strides[: batch + 1] for e in (product.bias, product.residual) if e is not None]
    dims = list(zip((*product.batch, product.m), zip(*columns, strict=True), strict=True))
    kept = [(size, strides) for size, strides in dims[:-1] if size != 1]
    # An m of 1 gives way to the batch dims before it.
    if product.m != 1 or not kept or any(kept[-1][1][1 : 1 + len(product.weights)]):
        kept.append(dims[-1])
    merged = [kept[-1]]
    for size, strides in reversed(kept[:-1]):
        inner, steps = merged[0]
        if all(outer == inner * step for outer, step in zip(strides, steps, strict=True)):
            merged[0] = (size * inner, steps)
        else:
            merged.insert(0, (size, strides))
    # What was merged into m must be free of the weights.
    sizes = tuple(size for size, _ in merged)
    return _Rows(sizes, tuple(zip(*(strides for _, strides in merged), strict=True)))


# Operands -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Factor:
    kind: OperandKind
    strides: tuple[int, ...]
    aligned: bool


def _factor(
    tensor: Strided, sizes: Sequence[int], strides: Sequence[int], tile: tuple[int, int]
) -> _Factor:
    """A factor, with the dim of its tiles that is contiguous chosen so that TMA can read it."""
    multiple = _ALIGNMENT // _BYTES[tensor.element]
    best: _Factor | None = None
    for unit, other in (tile, tile[::-1]):
        if strides[unit] != 1 and sizes[unit] > 1:
            continue
        found = list(strides)
        found[unit] = 1
        if sizes[other] <= 1 or not sizes[unit]:
            found[other] = -(-max(sizes[unit], 1) // multiple) * multiple  # never taken
        batch = found[: len(sizes) - 3]
        aligned = (
            tensor.address % _ALIGNMENT == 0
            and found[other] != 0
            and all(stride % multiple == 0 for stride in (found[other], *batch))
        )
        kind = OperandKind(tensor.element, _moves(found, tile), unit)
        if best is None or (aligned and not best.aligned):
            best = _Factor(kind, tuple(found), aligned)
    if best is not None:
        return best
    return _Factor(OperandKind(tensor.element, _moves(strides, ()), -1), tuple(strides), False)


def _moves(strides: Sequence[int], tile: Sequence[int]) -> tuple[bool, ...]:
    return tuple(stride != 0 or dim in tile for dim, stride in enumerate(strides))


def _extra(
    tensor: Strided,
    sizes: Sequence[int],
    strides: Sequence[int],
    *,
    even_rows: bool,
    has_rows: bool,
) -> tuple[OperandKind, tuple[int, ...]]:
    """An operand of the epilogue and its strides.

    Args:
        even_rows: whether n is a multiple of 16 bytes of the result, hence of two elements.
        has_rows: whether it is likely to have a row for each of the product's. With one row it is
            then of the kind that it is with more.
    """
    m, n = len(sizes) - 2, len(sizes) - 1
    found = [stride if size > 1 else 0 for stride, size in zip(strides, sizes, strict=True)]
    if has_rows and sizes[m] == 1 and strides[m]:
        found[m] = sizes[n]  # never taken
    pairs = tensor.address % (2 * _BYTES[tensor.element]) == 0
    unit = n if found[n] == 1 and pairs else -1
    # Kernels take what is dense to be at an address that tensor maps have.
    in_maps = even_rows and tensor.address % _ALIGNMENT == 0
    dense = unit == n and in_maps and found[m] == sizes[n]
    rest = [s for dim, s in enumerate(found) if dim != unit and not (dense and dim == m)]
    even = pairs and all(stride % 2 == 0 for stride in rest)
    moves = tuple(stride != 0 for stride in found)
    return OperandKind(tensor.element, moves, unit, dense, even), tuple(found)


def _span(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first one that is read to the last one."""
    pairs = list(zip(sizes, strides, strict=False))
    if any(size == 0 for size, stride in pairs if stride):
        return 0
    return 1 + sum((size - 1) * stride for size, stride in pairs)
