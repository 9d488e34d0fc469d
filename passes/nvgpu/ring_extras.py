# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""An extra of the size of the result that the producer brings, through the stages of the ring.

Why: a tile of a residual takes microseconds from device memory, and consumers that load it when
their sums are there wait all that time. There is no room for it beside the sums, neither in
registers nor in shared memory. But behind the last stage of a tile's K the ring has stages that the
next tile would wait in; a part of these has the residual instead::

    producer                                    each consumer
      load the stages of K                        multiply them
        meanwhile fetch the tile to the cache
      load boxes into the next slots              for each chunk
                                                    wait for its slot, if it is the slot's first
                                                    load its box
                                                    once all are stored, release the slot

A box is what a consumer's chunk (see `stores.Chunk`) is in the memory of the result: lines of 64
elements, swizzled. A slot holds those of some chunks, of all consumers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shapejit.passes.nvgpu import ptx
from shapejit.passes.nvgpu.builder import (
    Branches,
    Num,
    Value,
    add,
    and_,
    compare,
    mul,
    shl,
    shr,
    xor,
)
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.extras import Directions
from shapejit.passes.nvgpu.function import KernelFunction, Threads
from shapejit.passes.nvgpu.operands import StagedOperand
from shapejit.passes.nvgpu.problem import Access, GemmProblem, Matrix, is_half
from shapejit.passes.nvgpu.ring import Ring, Slot
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.stores import Chunk, StagedStore, chunks_of
from shapejit.passes.nvgpu.target import TILE_ALIGNMENT
from shapejit.passes.nvgpu.tma import Descriptor
from shapejit.passes.nvgpu.wgmma import ROWS
from shapejit.symbolic.expr import ONE, ZERO

_LINE_BYTES = 128
_LINE = _LINE_BYTES // 2  # elements
_STRIP_BYTES = 8 * _LINE_BYTES
_QUAD = 4  # matrices that a warp loads at once


@dataclass(frozen=True)
class _Room:
    """Where in a stage the boxes of a chunk are: those of the consumers follow each other.

    Attributes:
        operand: whose part of the stage it is.
        first: bytes from its start.
    """

    operand: StagedOperand
    first: int

    def offset(self, stage: Value) -> Num:
        """In shared memory."""
        return add(self.operand.stage(stage), self.first)


@dataclass(frozen=True)
class _Tiles:
    """How tiles are cut.

    Attributes:
        rows, columns: of a CTA's tile.
        blocks: of 64 rows, of a consumer.
        consumers: of a CTA.
        turned: whether rows of tiles are columns of the result.
        chunks: of a consumer.
    """

    rows: int
    columns: int
    blocks: int
    consumers: int
    turned: bool
    chunks: tuple[Chunk, ...]

    @staticmethod
    def of(rows: int, columns: int, consumers: int, store: StagedStore) -> _Tiles:
        """Those of a schedule, in the chunks of its store."""
        blocks = rows // (ROWS * consumers)
        chunks = tuple(chunks_of(blocks, columns, store.groups))
        return _Tiles(rows, columns, blocks, consumers, store.turned, chunks)

    @property
    def lines(self) -> int:
        """Of a box: rows of the result."""
        return 8 * len(self.chunks[0].groups) if self.turned else ROWS

    @property
    def box_bytes(self) -> int:
        return self.lines * _LINE_BYTES

    def start(self, chunk: Chunk, consumer: int) -> tuple[int, int]:
        """Row and column of the tile where a consumer's chunk starts."""
        row = ROWS * (consumer * self.blocks + chunk.block)
        return row, 8 * chunk.groups.start


class RingExtra:
    """An extra on its way through the ring, see the module; made by `find`.

    Args:
        function: the kernel.
        memory: its shared memory.
        problem: whose extra it is.
        directions: of the tiles.
        ring: of the stages.
        tiles: how they are cut.
        number: of the extra.
        matrix: what TMA reads of it.
        rooms: in a stage.

    Attributes:
        number: of the extra.
    """

    def __init__(
        self,
        function: KernelFunction,
        memory: SharedMemory,
        problem: GemmProblem,
        directions: Directions,
        ring: Ring,
        tiles: _Tiles,
        number: int,
        matrix: Matrix,
        rooms: Sequence[_Room],
    ) -> None:
        self.number, self.ring, self.tiles = number, ring, tiles
        self._function, self.memory, self._problem = function, memory, problem
        self._directions, self._matrix = directions, matrix
        slots = -(-len(tiles.chunks) // len(rooms))
        # Evenly, so that the first slots are free early.
        self._each = -(-len(tiles.chunks) // slots)
        self._rooms = rooms[: self._each]
        record = matrix.record(function, (_LINE, tiles.lines), _LINE_BYTES)
        self._descriptor = Descriptor.make(function, record, matrix.access.element)

    @staticmethod
    def find(
        function: KernelFunction,
        memory: SharedMemory,
        problem: GemmProblem,
        directions: Directions,
        ring: Ring,
        operands: Sequence[StagedOperand],
        tile: tuple[int, int, int],
        store: StagedStore,
    ) -> RingExtra | None:
        """The first extra that can come this way, if there is one.

        Args:
            operands: in the stages.
            tile: rows, columns and consumers of a CTA's tile.
            store: takes the results.
        """
        tiles = _Tiles.of(*tile, store)
        box = tiles.box_bytes * tiles.consumers
        rooms = [
            _Room(operand, first)
            for operand in operands
            if operand.layout.bytes % TILE_ALIGNMENT
            == 0  # else swizzles differ from stage to stage
            for first in range(0, operand.layout.bytes - box + 1, box)
        ]
        if not rooms:
            return None
        for number, extra in enumerate(problem.extras):
            matrix = _matrix(problem, directions, extra)
            if matrix is not None:
                return RingExtra(
                    function, memory, problem, directions, ring, tiles, number, matrix, rooms
                )
        return None

    def slot_of(self, chunk: Chunk) -> int:
        """The number of a chunk's slot behind the stages of K."""
        return chunk.number // self._each

    def room_of(self, chunk: Chunk) -> _Room:
        """Where it is there."""
        return self._rooms[chunk.number % self._each]

    def is_first(self, chunk: Chunk) -> bool:
        """Whether a chunk is the first one of its slot."""
        return chunk.number % self._each == 0

    def is_last(self, chunk: Chunk) -> bool:
        """Whether a chunk is the last one of its slot."""
        return (chunk.number + 1) % self._each == 0 or chunk.number + 1 == len(self.tiles.chunks)

    # The producer ---------------------------------------------------------------------------------

    def prefetch(self) -> None:
        """Starts to fetch the tensor map, by one thread; only a hint."""
        self._descriptor.prefetch()

    def acquire(self) -> None:
        """Makes the loads of this thread see the tensor map as it is."""
        self._descriptor.acquire()

    def fetch(self, place: Mapping[int, Num]) -> None:
        """Starts to bring a tile to the second-level cache.

        Args:
            place: index of the tile's first element along every dim of the result.
        """
        for _, _, start in self._boxes(self.tiles.chunks, place):
            self._descriptor.fetch(self._coordinates(start))

    def load(self, slot: Slot, place: Mapping[int, Num]) -> Slot:
        """Loads a tile into the slots that follow its stages, as they get empty.

        Args:
            place: as for `fetch`.

        Returns:
            The place in the ring after it.
        """
        chunks, each = self.tiles.chunks, self._each
        for first in range(0, len(chunks), each):
            here = chunks[first : first + each]
            self.ring.acquire(slot, len(here) * self.tiles.consumers * self.tiles.box_bytes)
            for chunk, consumer, start in self._boxes(here, place):
                offset = add(
                    self.room_of(chunk).offset(slot.stage), consumer * self.tiles.box_bytes
                )
                self._load_box(slot, offset, start)
            slot = self.ring.advance(slot)
        return slot

    def _boxes(
        self, chunks: Sequence[Chunk], place: Mapping[int, Num]
    ) -> Iterator[tuple[Chunk, int, dict[int, Num]]]:
        """Of every consumer's chunks, the consumer and where the box starts."""
        rows, columns = self._directions.rows, self._directions.columns
        for chunk in chunks:
            for consumer in range(self.tiles.consumers):
                row, column = self.tiles.start(chunk, consumer)
                start = {rows: add(place[rows], row), columns: add(place[columns], column)}
                yield chunk, consumer, {**place, **start}

    def _coordinates(self, start: Mapping[int, Num]) -> list[Num]:
        return self._matrix.coordinates(self._function, [start[dim] for dim in self._matrix.dims])

    def _load_box(self, slot: Slot, offset: Num, start: Mapping[int, Num]) -> None:
        """Starts the load of a box, if there is something in it: TMA takes time for zeros."""

        def load() -> None:
            self._descriptor.load(self.memory, offset, self.ring, slot, self._coordinates(start))

        inside = self._inside(start)
        if inside is None:
            load()
            return
        exists = Branches(inside)
        with exists.then():
            load()
        with exists.otherwise():
            self.ring.forgo(slot, self.tiles.box_bytes)

    def _inside(self, start: Mapping[int, Num]) -> Value | None:
        """Whether a box has elements of the result; None if all boxes have."""
        directions, tiles = self._directions, self.tiles
        sides = (
            (directions.rows, directions.row_size, tiles.rows),
            (directions.columns, directions.column_size, tiles.columns),
        )
        found: Value | None = None
        for dim, size, length in sides:
            if size.constant is not None and size.constant % length == 0:
                continue
            here = compare("ult", start[dim], self._function.size(size))
            found = here if found is None else and_(found, here)
        return found

    # The consumers --------------------------------------------------------------------------------

    def tile(self, slot: Slot, threads: Threads) -> ArrivingTile:
        """What a consumer reads of a tile.

        Args:
            slot: after the stages of the tile's K.
        """
        return ArrivingTile(self, slot, threads)


def _matrix(problem: GemmProblem, directions: Directions, extra: Access) -> Matrix | None:
    """An extra as TMA reads it; None if it may not, or need not: it is smaller than the result."""
    if not (is_half(extra.element) and is_half(problem.element) and extra.is_linear):
        return None
    strides = [extra.stride(dim) or ZERO for dim in range(problem.k)]
    if strides[problem.n] != ONE or strides[problem.m] == ZERO:
        return None
    if not all(map(directions.suits_maps, strides[: problem.n])):
        return None
    try:
        return Matrix.of(problem, extra, (problem.n, problem.m))
    except LoweringError:
        return None


@dataclass
class ArrivingTile:
    """The part of a tile of an extra that a consumer reads, chunk after chunk; see `RingExtra`.

    Attributes:
        extra: which one.
        slot: of the chunk that is read next.
        threads: where the thread is.
    """

    extra: RingExtra
    slot: Slot
    threads: Threads
    _words: dict[tuple[int, int], list[Value]] = field(default_factory=dict)
    _read_slots: list[Slot] = field(default_factory=list)

    @property
    def number(self) -> int:
        """Of the extra."""
        return self.extra.number

    def is_first(self, chunk: Chunk) -> bool:
        """Whether a chunk has to be awaited."""
        return self.extra.is_first(chunk)

    def read(self, chunk: Chunk) -> None:
        """Loads a chunk to registers; of all chunks, in their order."""
        extra, ring = self.extra, self.extra.ring
        if extra.is_first(chunk):
            ring.await_full(self.slot)
        address = add(extra.memory.base, extra.room_of(chunk).offset(self.slot.stage))
        self._words = self._load(add(address, self._lane_offset()), chunk)
        if extra.is_last(chunk):
            self._read_slots.append(self.slot)
            self.slot = ring.advance(self.slot)

    def release(self) -> None:
        """Releases the slots that were read; behind a barrier of the consumer's threads, before
        which they had a fence: TMA will write where they have read."""
        for slot in self._read_slots:
            self.extra.ring.release(slot.stage, self.threads.lane)
        self._read_slots.clear()

    def pairs(self, block: int, group: int) -> list[Value]:
        """See `extras.Arriving`."""
        return self._words[block, group]

    def _lane_offset(self) -> Value:
        """Where a lane's line is in a chunk's boxes; computed where it is used, since registers
        are scarce while sums are added up. See `StagedStore` for the matrices."""
        tiles, warp = self.extra.tiles, and_(self.threads.warp, 3)
        lane = ptx.unknown(self.threads.lane)
        in_matrix = and_(lane, 7)
        second, further = and_(shr(lane, 3), 1), shr(lane, 4)
        if tiles.turned:
            line = add(mul(further, 8), in_matrix)
            part = add(mul(warp, 2), second)
        else:
            line = add(mul(warp, 16), add(mul(second, 8), in_matrix))
            part = further
        place = add(mul(line, _LINE_BYTES), shl(xor(part, in_matrix), 4))
        return add(place, mul(self.threads.warpgroup, tiles.box_bytes))

    def _load(self, address: Value, chunk: Chunk) -> dict[tuple[int, int], list[Value]]:
        """The words of a chunk, by block and group: of two row halves."""
        turned, words = self.extra.tiles.turned, {}
        for first in range(0, len(chunk.groups), _QUAD // 2):
            groups = chunk.groups[first : first + _QUAD // 2]
            if turned:
                here, offset = address, first * _STRIP_BYTES
            else:
                here, offset = xor(address, first // 2 << 5), 0
            found = ptx.load_matrices(here, offset, 2 * len(groups), transposed=turned)
            for number, group in enumerate(groups):
                words[chunk.block, group] = found[2 * number : 2 * number + 2]
        return words
