# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Operand tiles of any layout, from global memory through registers into swizzled shared memory.

Why: a tensor map wants strides and addresses that are multiples of 16 bytes and one dim without
gaps. Rows of odd length, slices and permuted tensors have neither, so here threads load the
elements themselves, and leave a tile in shared memory just as TMA would, for wgmma to read.

A tile consists of lines of 64 elements (128 bytes) along the operand's *fast* dim, the one whose
elements are neighbours: K, or the rows. Sixteen threads share a line, each has a *chunk* of four
elements of it; a thread's chunks are equally far apart. How a chunk is loaded is decided while the
kernel runs, once a tile, from what the tile's address, its stride and its length are multiples of:
at once, as two words of four bytes, or element by element. What lies outside of the operand is 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith, llvm

from shapejit.passes.nvgpu import ptx
from shapejit.passes.nvgpu.builder import (
    Branches,
    Num,
    Value,
    add,
    and_,
    compare,
    i32,
    integer,
    mul,
    or_,
    shl,
    shr,
    struct_of,
    sub,
    udiv,
    urem,
    value,
    wide,
    xor,
)
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.wgmma import ELEMENT_BYTES, TileLayout

#: Elements of a line, and of a stage along K.
LINE = 64
#: Elements of a chunk.
CHUNK = 4

_LINE_BYTES = LINE * ELEMENT_BYTES
_LINE_CHUNKS = LINE // CHUNK
_CHUNK_BYTES = CHUNK * ELEMENT_BYTES
_WORDS = CHUNK // 2
_PATTERN = 8  # lines after which the swizzle repeats


@dataclass(frozen=True)
class Source:
    """An operand in global memory, of one batch index.

    Attributes:
        address: of its first element, in bytes, i64.
        rows: its rows: M or N of the problem, i32.
        depth: K of the problem, i32.
        row_stride: elements from a row to the next, i64; a Python int if it is known.
        depth_stride: the same along K.
    """

    address: Value
    rows: Num
    depth: Num
    row_stride: Num
    depth_stride: Num


class TileShare(ABC):
    """Which chunks of a tile a thread has, and how they get into shared memory.

    Args:
        layout: of the tile in shared memory.
        thread: number of this thread, i32.
        threads: of the CTA, all of which take part.

    Raises:
        LoweringError: the tile does not divide among the threads.
    """

    def __init__(self, layout: TileLayout, thread: Value, threads: int) -> None:
        lines = layout.bytes // _LINE_BYTES
        self._lines = threads // _LINE_CHUNKS  # that the CTA moves at once
        if layout.depth != LINE or lines % self._lines:
            raise LoweringError(
                f"has a tile of {layout.extent} x {layout.depth} for {threads} threads; the "
                f"unaligned family has tiles {LINE} deep, of a multiple of {self._lines} rows and "
                "columns"
            )
        self._layout = layout
        self._rounds = lines // self._lines
        #: Of this thread's first chunk: its line, and its first element along the line.
        self.line = udiv(thread, _LINE_CHUNKS)
        self.place = mul(urem(thread, _LINE_CHUNKS), CHUNK)

    @property
    def words(self) -> int:
        """i32 values that a thread holds of a tile."""
        return self._rounds * _WORDS

    @property
    def steps(self) -> list[tuple[int, int]]:
        """From this thread's first chunk to each: lines, and elements along the lines."""
        steps = [number * self._lines for number in range(self._rounds)]
        if self._layout.k_major:
            return [(step, 0) for step in steps]
        # Panels of 64 rows; in each a line for every element of K.
        return [(step % LINE, step // LINE * LINE) for step in steps]

    @abstractmethod
    def load(self, row: Num, k: Num) -> list[Value]:
        """Starts to load the tile whose first row and element of K are given; see `words`."""

    def store(self, words: Sequence[Value], memory: SharedMemory, offset: Num) -> None:
        """Puts a loaded tile at an offset of shared memory, a multiple of 1024.

        Chunks of 16 bytes are exchanged within a line by the line's number modulo 8, which is the
        same for all lines of a thread.
        """
        place = mul(self.place, ELEMENT_BYTES)
        swizzled = xor(place, shl(urem(self.line, _PATTERN), 4))
        start = add(add(mul(self.line, _LINE_BYTES), swizzled), offset)
        pair = ir.VectorType.get([_WORDS], i32())
        for number in range(self._rounds):
            vector = llvm.mlir_undef(pair)
            for lane, word in enumerate(words[number * _WORDS : (number + 1) * _WORDS]):
                vector = llvm.insertelement(vector, word, value(lane))
            llvm.StoreOp(vector, memory.pointer(add(start, number * self._lines * _LINE_BYTES)))


class TileGather(TileShare):
    """How the threads of a CTA move the tiles of one operand.

    Args:
        source: the operand.
        layout, thread, threads: see `TileShare`.

    Raises:
        LoweringError: the tile does not divide among the threads.
    """

    def __init__(self, source: Source, layout: TileLayout, thread: Value, threads: int) -> None:
        super().__init__(layout, thread, threads)
        self._source = source

    def load(self, row: Num, k: Num) -> list[Value]:
        source = self._source
        row_bytes = mul(mul(wide(row), source.row_stride), ELEMENT_BYTES)
        k_bytes = mul(mul(wide(k), source.depth_stride), ELEMENT_BYTES)
        address = add(add(source.address, row_bytes), k_bytes)
        if self._layout.k_major:
            fast, slow = (
                (source.depth_stride, source.depth, k),
                (source.row_stride, source.rows, row),
            )
        else:
            fast, slow = (
                (source.row_stride, source.rows, row),
                (source.depth_stride, source.depth, k),
            )
        lines = _Lines(self, address, fast, slow)
        if fast[0] != 1:
            return lines.load(1)
        return self._load_widest(lines)

    def _load_widest(self, lines: _Lines) -> list[Value]:
        """The tile, in the widest words that its place in memory allows."""
        types = [i32()] * self.words
        whole = Branches(lines.multiple_of(CHUNK), types)
        with whole.then() as results:
            results += lines.load(CHUNK)
        with whole.otherwise() as results:
            pairs = Branches(lines.multiple_of(2), types)
            with pairs.then() as inner:
                inner += lines.load(2)
            with pairs.otherwise() as inner:
                inner += lines.load(1)
            results += pairs.results
        return whole.results


class _Lines:
    """This thread's chunks of one tile in global memory.

    Addresses and bounds are those of the first chunk plus multiples of what all threads share: that
    costs few registers.

    Args:
        gather: how the tile is shared.
        address: of its first element, in bytes, i64, the same for all threads.
        fast, slow: of the dim along the lines and of the other one: stride in elements (i64), size
            and the tile's start (i32).
    """

    def __init__(
        self,
        gather: TileGather,
        address: Value,
        fast: tuple[Num, Num, Num],
        slow: tuple[Num, Num, Num],
    ) -> None:
        self._gather, self._tile = gather, address
        fast_stride, self._fast_size, fast_start = fast
        self._slow_stride, slow_size, slow_start = slow
        self._fast_bytes = mul(fast_stride, ELEMENT_BYTES)
        self._slow_bytes = mul(self._slow_stride, ELEMENT_BYTES)
        along = mul(wide(gather.place), self._fast_bytes)
        across = mul(wide(gather.line), self._slow_bytes)
        self._address = add(address, add(along, across))
        # Elements and lines that are left from the first chunk on; negative outside.
        self._length = sub(sub(self._fast_size, fast_start), gather.place)
        self._count = sub(sub(slow_size, slow_start), gather.line)

    def multiple_of(self, elements: int) -> Value:
        """Whether all words of so many elements are aligned and wholly inside or outside."""
        bits = or_(shr(self._tile, 1), self._slow_stride)
        bits = or_(bits, wide(self._fast_size))
        return compare("eq", and_(bits, elements - 1), 0)

    def load(self, width: int) -> list[Value]:
        """All chunks in words of ``width`` elements, as pairs."""
        words: list[Value] = []
        for lines, elements in self._gather.steps:
            exists = compare("slt", lines, self._count)
            parts: list[Value] = []
            for element in range(elements, elements + CHUNK, width):
                inside = arith.andi(exists, compare("slt", element, self._length))
                offset = add(mul(self._slow_bytes, lines), mul(self._fast_bytes, element))
                parts += load_elements(inside, add(self._address, offset), width)
            words += parts if width > 1 else join_pairs(parts)
        return words


# Instructions -------------------------------------------------------------------------------------


def load_elements(condition: Value, address: Value, elements: int) -> list[Value]:
    """Elements of global memory, or zeros: one i16, or pairs as i32.

    Not by ``ld.global.nc``: a kernel that starts early runs while what it will read is written.
    """
    if elements == 1:
        text = "mov.b16 $0, 0; @$2 ld.global.b16 $0, [$1];"
        return [ptx.assembly(integer(16), text, "=&h,l,b", [address, condition], pure=False)]
    if elements == 2:
        text = "mov.b32 $0, 0; @$2 ld.global.b32 $0, [$1];"
        return [ptx.assembly(i32(), text, "=&r,l,b", [address, condition], pure=False)]
    text = "mov.b32 $0, 0; mov.b32 $1, 0; @$3 ld.global.v2.b32 {$0, $1}, [$2];"
    words = ptx.assembly(struct_of(i32(), 2), text, "=&r,=&r,l,b", [address, condition], pure=False)
    return [llvm.extractvalue(i32(), words, [number]) for number in range(2)]


def join_pairs(elements: Sequence[Value]) -> list[Value]:
    """Elements joined two by two, the first one in the lower half."""
    text, constraints = "mov.b32 $0, {$1, $2};", "=r,h,h"
    return [
        ptx.assembly(i32(), text, constraints, elements[first : first + 2], pure=True)
        for first in range(0, len(elements), 2)
    ]
