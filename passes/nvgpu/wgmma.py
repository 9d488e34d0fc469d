# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Warpgroup matrix multiplication: operand tiles in shared memory, descriptors, fragments.

``wgmma.m64nNk16`` multiplies 64 rows by N columns over 16 elements of K, both operands in shared
memory, sums in the registers of 128 threads. Of f32, which it rounds to tf32, it takes 8: 32 bytes
in any case. Shared memory holds an operand tile as TMA writes it:

- *K-major* (elements along K are neighbours): one line of ``depth`` elements for every row, lines
  one after the other, swizzled with the line's length (128 bytes, or 64 at half the depth);
- *MN-major* (elements along the rows or columns are neighbours, of 16 bits only): panels of 64
  rows; in a panel one line of 128 bytes for every element of K.

The sides are called *rows* (64 at a time, wgmma's M) and *columns* (its N): which of them are rows
of the result is the schedule's choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mlir import ir
from mlir.dialects import llvm, nvvm

from shapejit.passes.nvgpu.builder import (
    Num,
    Type,
    Value,
    add,
    and_,
    f32,
    make,
    mul,
    or_,
    shr,
    struct_of,
    udiv,
)
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.ptx import half_name, join_words

#: Rows of one wgmma, and of a panel.
ROWS = 64
#: Elements of K that one wgmma multiplies, of 16 bits.
DEPTH = 16
#: Bytes of an element: bf16 or f16.
ELEMENT_BYTES = 2

_DEPTH_BYTES = DEPTH * ELEMENT_BYTES
_LINE_BYTES = 128
_LINES = 8  # of a swizzle pattern
# Shared addresses of a cluster carry the rank in the bits above; a descriptor holds these.
_ADDRESS_MASK = 0x3FFFF
_SWIZZLE_MODES = {128: 1, 64: 2}


class OperandLayout(Protocol):
    """How an operand's tiles lie in shared memory."""

    @property
    def k_major(self) -> bool:
        """Whether elements along K are neighbours."""

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""

    @property
    def steps(self) -> int:
        """Products of a tile, one after the other along K."""

    @property
    def bytes(self) -> int:
        """Size of a tile."""

    def descriptor(self, low_word: Value, k: int = 0) -> Value:
        """The descriptor, i64, of the ``k``-th product of a tile.

        Args:
            low_word: lower half of the tile's descriptor.
        """


@dataclass(frozen=True)
class TileLayout:
    """One operand's tile in a stage of the ring.

    Attributes:
        extent: rows or columns of the tile.
        depth: elements of K: 64 or 128 bytes of them.
        k_major: which elements are neighbours.
        element_bytes: 2, or 4 for tf32.
    """

    extent: int
    depth: int
    k_major: bool
    element_bytes: int = ELEMENT_BYTES

    def __post_init__(self) -> None:
        if self.depth * self.element_bytes not in _SWIZZLE_MODES:
            lengths = " or ".join(str(each // self.element_bytes) for each in (64, 128))
            raise LoweringError(f"has a depth of {self.depth}; tiles are {lengths} deep")
        if self.element_bytes != ELEMENT_BYTES and not self.k_major:
            raise LoweringError(
                "has factors of f32 with neighbours not along K, which wgmma does not take; use a "
                "schedule of the family simt"
            )

    @property
    def steps(self) -> int:
        """Products of a stage, one after the other along K."""
        return self.depth * self.element_bytes // _DEPTH_BYTES

    @property
    def panels(self) -> int:
        """Panels of 64 rows or columns, the last one maybe not used in full."""
        return -(-self.extent // ROWS)

    @property
    def panel_bytes(self) -> int:
        """From the start of 64 rows or columns to the next, in either layout."""
        return ROWS * self.depth * self.element_bytes

    @property
    def bytes(self) -> int:
        """Size of the tile."""
        if self.k_major:
            return self.extent * self.depth * self.element_bytes
        return self.panels * self.panel_bytes

    @property
    def swizzle(self) -> int:
        """Bytes of a line, and of the swizzle pattern."""
        return self.depth * self.element_bytes if self.k_major else _LINE_BYTES

    @property
    def step(self) -> int:
        """Bytes from what one wgmma multiplies to the next."""
        return _DEPTH_BYTES if self.k_major else DEPTH * _LINE_BYTES

    @property
    def high_word(self) -> int:
        """Upper half of a descriptor: from eight lines to the next, and the swizzle's mode."""
        return self._group_bytes >> 4 | _SWIZZLE_MODES[self.swizzle] << 30

    @property
    def _group_bytes(self) -> int:
        """From eight lines to the next."""
        return _LINES * self.swizzle

    @property
    def _leading(self) -> int:
        """Bits 16 to 29 of a descriptor: from panel to panel, for MN-major tiles only."""
        return 1 if self.k_major else self.panel_bytes >> 4

    def low_word(self, address: Value) -> Value:
        """Lower half of the descriptor of what starts at a shared address, i32.

        Offsets, in units of 16 bytes, may be added to it: addresses fit into its 14 bits.
        """
        return or_(address_word(address), self._leading << 16)

    def descriptor(self, low_word: Value, k: int = 0) -> Value:
        """The descriptor, i64, of the ``k``-th product of a stage."""
        return join_words(add(low_word, k * self.step >> 4), signed(self.high_word))


def address_word(address: Value) -> Value:
    """A shared address as a descriptor holds it, in units of 16 bytes, i32."""
    return shr(and_(address, _ADDRESS_MASK), 4)


def signed(word: int) -> int:
    """The i32 with these 32 bits."""
    return word - (1 << 32) if word >= 1 << 31 else word


def stage_step(bytes_: int, stage: Value) -> Num:
    """What a stage's number adds to a descriptor's lower half."""
    return mul(stage, bytes_ >> 4)


# Fragments ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fragment:
    """Where a thread's sums are in a 64 x N block.

    Register ``4 * j + 2 * i + c`` holds row ``row + 8 * i`` and column ``8 * j + column + c``.

    Attributes:
        row: ``16 * (warp mod 4) + lane / 4``, i32.
        column: ``2 * (lane mod 4)``, i32.
    """

    row: Value
    column: Value

    @staticmethod
    def of(warp: Value, lane: Value) -> Fragment:
        """The fragment of a thread."""
        row = add(mul(and_(warp, 3), 16), udiv(lane, 4))
        return Fragment(row, mul(and_(lane, 3), 2))


@dataclass(frozen=True)
class Multiplier:
    """Emits wgmmas of one shape.

    Attributes:
        columns: N, a multiple of 8 from 8 to 256.
        rows_layout, columns_layout: of the operands' tiles.
        element: bf16, f16, or f32 for tf32.
    """

    columns: int
    rows_layout: OperandLayout
    columns_layout: OperandLayout
    element: Type

    def __post_init__(self) -> None:
        if self.columns % 8 or not 8 <= self.columns <= 256:
            raise LoweringError(
                f"has {self.columns} columns in a tile; wgmma takes multiples of 8 up to 256"
            )

    @property
    def registers(self) -> int:
        """Sums that a thread holds of 64 rows."""
        return self.columns // 2

    @property
    def type(self) -> Type:
        """Of the sums of 64 rows: a struct of f32."""
        return struct_of(f32(), self.registers)

    def undefined(self) -> Value:
        """Sums that the first multiplication of a tile overwrites."""
        return llvm.mlir_undef(self.type)

    def sums(self, accumulator: Value) -> list[Value]:
        """The registers of an accumulator."""
        sums = []
        for i in range(self.registers):
            place = {"position": ir.DenseI64ArrayAttr.get([i])}
            sums.append(make("llvm.extractvalue", f32(), (accumulator,), place))
        return sums

    def multiply(
        self, accumulator: Value, rows: Value, columns: Value, k: int, *, fresh: bool
    ) -> Value:
        """Starts one product of a stage.

        Args:
            accumulator: the sums so far.
            rows, columns: lower halves of the stage's descriptors.
            k: its number.
            fresh: whether the sums start at 0, whatever the accumulator holds.
        """

        def attribute(text: str) -> ir.Attribute:
            return ir.Attribute.parse(f"#nvvm.{text}")

        is_float = isinstance(self.element, ir.F32Type)
        kind = attribute(f"wgmma_type<{'tf32' if is_float else half_name(self.element)}>")
        depth = _DEPTH_BYTES // self.rows_layout.element_bytes
        # PTX's imm-trans-a is 1 for a column-major A, imm-trans-b for a row-major B.
        layouts = (
            "row" if self.rows_layout.k_major else "col",
            "col" if self.columns_layout.k_major else "row",
        )
        return nvvm.WgmmaMmaAsyncOp(
            self.type,
            accumulator,
            self.rows_layout.descriptor(rows, k),
            self.columns_layout.descriptor(columns, k),
            attribute(f"shape<m = {ROWS}, n = {self.columns}, k = {depth}>"),
            kind,
            kind,
            attribute("wgmma_type<f32>"),
            attribute(f"wgmma_scale_out<{'zero' if fresh else 'one'}>"),
            attribute("wgmma_scale_in<one>"),
            attribute("wgmma_scale_in<one>"),
            *(attribute(f"mma_layout<{layout}>") for layout in layouts),
        ).results[0]


def multiply_stage(
    products: Sequence[tuple[Multiplier, Value, Value]],
    accumulators: Sequence[Value],
    *,
    fresh: bool,
) -> list[Value]:
    """Starts all products of a stage, and closes them as one group.

    Args:
        products: of every accumulator: the shape and the lower halves of the descriptors.
        accumulators: the sums so far.
        fresh: whether the sums start at 0.
    """
    sums = list(accumulators)
    nvvm.wgmma_fence_aligned()
    for k in range(products[0][0].rows_layout.steps):
        sums = [
            multiplier.multiply(total, rows, columns, k, fresh=fresh and k == 0)
            for (multiplier, rows, columns), total in zip(products, sums, strict=True)
        ]
    nvvm.wgmma_commit_group_sync_aligned()
    return sums


def await_groups(pending: int) -> None:
    """Waits until at most so many groups of products are in flight."""
    nvvm.wgmma_wait_group_sync_aligned(pending)
