# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""CTAs of a cluster that share K: partial sums travel through distributed shared memory.

Why: with few rows of the result there are fewer tiles than multiprocessors, and a tile's weights
come faster through several of them. Each CTA sums its part of K; then the tile is cut along its
columns into as many parts as there are *owners*, and every CTA sends each owner its sums of that
part. An owner adds what came to its own sums in the order of the ranks, so results do not depend on
who was first, and has the epilogue of its part.

Sums go from registers straight into the owner's receive buffer, by stores that report their bytes
to its *received* barrier: nothing is staged, so that shared memory stays for the ring. A rank sends
to the ranks after it first, lest all of them send to the same one. When an owner has read all parts
it arrives on the senders' *free* barriers: then its buffer may be written for the next tile. A CTA
leaves after the last of these arrivals, hence never while a peer still writes to its shared
memory::

    every CTA                                   owner
      wait free (tile before)                     expect (split - 1) parts
      sums of others' parts -> their owners
                                                  wait received; add; arrive on peers' free
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith, llvm, nvgpu, nvvm

from shapejit.passes.nvgpu import ptx
from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    compare,
    constant,
    f32,
    i32,
    index,
    integer,
    mul,
    pointer,
    select,
    sub,
    udiv,
    umin,
    urem,
    value,
    when,
    xor,
)
from shapejit.passes.nvgpu.ring import (
    Ring,
    Slot,
    await_phase,
    barrier_address,
    barrier_pointer,
    barriers,
)
from shapejit.passes.nvgpu.shared import SharedMemory

#: Columns of a group of a fragment, of which a thread has four sums.
GROUP = 8
_GROUP_SUMS = 4
_GROUP_BYTES = 4 * _GROUP_SUMS


def announce_start() -> None:
    """Tells the cluster that this thread's CTA is running, with its barriers initialised.

    Relaxed, since the fence after the initialisation orders it and nothing else is published.
    """
    nvvm.cluster_arrive_relaxed()


def await_starts() -> None:
    """Waits until all CTAs of the cluster are running."""
    nvvm.cluster_wait()


@dataclass(frozen=True)
class ClusterPlace:
    """Where a CTA is in a cluster of ``split * shared`` CTAs.

    Attributes:
        split, shared: CTAs that share K; CTAs that multicast an operand's tiles to each other.
        part: which part of K it has, below `split`.
        member: its number among those with the same part, below `shared`.
    """

    split: int
    shared: int
    part: Num
    member: Num

    @staticmethod
    def of(rank: Num, split: int, shared: int) -> ClusterPlace:
        """The place of a rank; those that multicast to each other are neighbours."""
        return ClusterPlace(split, shared, udiv(rank, shared), urem(rank, shared))

    @property
    def leader(self) -> Num:
        """Rank of the first CTA with the same part of K."""
        return mul(self.part, self.shared)

    @property
    def multicast_mask(self) -> Value | None:
        """Ranks with the same part of K, i16; None if there is no other."""
        if self.shared == 1:
            return None
        mask = value((1 << self.shared) - 1)
        return arith.trunci(integer(16), arith.shli(mask, value(self.leader)))

    def rank_of(self, part: Num) -> Num:
        """The rank that has another part of K and the same tile."""
        return add(mul(part, self.shared), self.member)


@dataclass(frozen=True)
class Parts:
    """How the groups of 8 columns of a tile are divided among owners, in parts of one size.

    The last part may overlap the one before it: both owners then compute the same bits and store
    them twice.

    Attributes:
        groups: of the tile.
        each: groups of a part.
        owners: CTAs that own a part: the first ones.
    """

    groups: int
    each: int
    owners: int

    @staticmethod
    def of(columns: int, split: int) -> Parts:
        """A part for every CTA, if there are enough groups."""
        groups = columns // GROUP
        each = -(-groups // split)
        return Parts(groups, each, -(-groups // each))

    def first(self, owner: int) -> int:
        """The first group of an owner's part."""
        return min(owner * self.each, self.groups - self.each)

    def bytes(self, products: int, threads: int) -> int:
        """Of the sums of a part."""
        return self.each * products * threads * _GROUP_BYTES


class PeerRing(Ring):
    """A ring whose stages other CTAs of the cluster write into and release."""

    def drain(self, slot: Slot) -> None:
        """By the producer, after its last load: waits until all consumers have read all stages.

        Then no peer can write into this CTA's stages or arrive on its barriers any more.

        Args:
            slot: where the producer's walk has come to.
        """
        for _ in range(self.stages):
            await_phase(self._empty, slot.phase, slot.stage)
            slot = self.advance(slot)


class Exchange:
    """The exchange of partial sums, in the consumers of every CTA.

    Args:
        memory: shared memory of the kernel.
        place: of the CTA in its cluster.
        columns: of a tile.
        products: sums of each element: 1, or 2 for a gated pair.
        threads: consumer threads of a CTA.
        thread: number of this one, i32.
        barrier: number of a named barrier that nobody else uses.
    """

    def __init__(
        self,
        memory: SharedMemory,
        place: ClusterPlace,
        columns: int,
        products: int,
        threads: int,
        thread: Value,
        barrier: int,
    ) -> None:
        self._memory, self._place, self._products = memory, place, products
        self._threads, self._thread, self._barrier = threads, thread, barrier
        self.parts = Parts.of(columns, place.split)
        self._bytes = self.parts.bytes(products, threads)
        self._buffer = memory.allocate((place.split - 1) * self._bytes)
        self._received, self._free = barriers(1), barriers(1)

    @staticmethod
    def bytes_of(columns: int, split: int, products: int, threads: int) -> int:
        """Shared memory that an exchange takes."""
        return (split - 1) * Parts.of(columns, split).bytes(products, threads)

    @property
    def is_owner(self) -> Value | None:
        """Whether this CTA owns a part; None if all do."""
        if self.parts.owners == self._place.split:
            return None
        return compare("ult", self._place.part, self.parts.owners)

    @property
    def columns(self) -> int:
        """Columns of a part."""
        return GROUP * self.parts.each

    @property
    def first_column(self) -> Num:
        """The first column of this CTA's part, within the tile."""
        parts = self.parts
        return umin(mul(self._place.part, self.columns), GROUP * (parts.groups - parts.each))

    def initialize(self) -> None:
        """Sets the barriers up, by one thread; the fence of `Ring.initialize` must follow."""
        nvgpu.mbarrier_init(self._received, index(1), index(0))
        nvgpu.mbarrier_init(self._free, index(self.parts.owners), index(0))

    # Sending --------------------------------------------------------------------------------------

    def send(self, sums: Sequence[Sequence[Value]], phase: Value) -> None:
        """Sends others' parts, by all consumer threads.

        Args:
            sums: registers of every product.
            phase: of the tile: 0, 1, 0, .. (i1).
        """
        self._await_free(phase)
        with when(compare("eq", self._thread, 0)):
            self._expect()
        split = self._place.split
        for part in range(split):
            with when(compare("eq", self._place.part, part)):
                for step in range(1, split):
                    owner = (part + step) % split
                    if owner < self.parts.owners:
                        self._send_part(part, owner, sums)

    def _await_free(self, phase: Value) -> None:
        """Waits until all owners have read what they got for the tile before."""
        await_phase(self._free, xor(phase, constant(1, integer(1))), 0)

    def _expect(self) -> None:
        """Announces the parts that come to an owner."""
        count = index((self._place.split - 1) * self._bytes)
        if self.is_owner is None:
            nvgpu.mbarrier_arrive_expect_tx(self._received, count, index(0))
            return
        with when(self.is_owner):
            nvgpu.mbarrier_arrive_expect_tx(self._received, count, index(0))

    def _send_part(self, part: int, owner: int, sums: Sequence[Sequence[Value]]) -> None:
        """Sends what a part of K adds to an owner's columns."""
        rank = value(self._place.rank_of(owner))
        start = self._buffer + _slot(part, owner) * self._bytes
        target = ptx.peer_address(add(self._memory.base, add(start, self._place_of(0))), rank)
        barrier = ptx.peer_address(barrier_address(self._received, 1, 0), rank)
        for number, quad in enumerate(self._quads(sums, owner)):
            ptx.store_to_peer(target, number * self._threads * _GROUP_BYTES, quad, barrier)

    def _quads(self, sums: Sequence[Sequence[Value]], owner: int) -> list[Sequence[Value]]:
        """The sums of a part, four at a time."""
        first = self.parts.first(owner)
        return [
            registers[_GROUP_SUMS * group : _GROUP_SUMS * (group + 1)]
            for registers in sums
            for group in range(first, first + self.parts.each)
        ]

    def _place_of(self, number: int) -> Value:
        """Where this thread's four sums are: those of all threads are neighbours."""
        return add(mul(self._thread, _GROUP_BYTES), number * self._threads * _GROUP_BYTES)

    def _synchronize(self) -> None:
        nvvm.BarrierOp(None, barrierId=value(self._barrier), numberOfThreads=value(self._threads))

    # Receiving ------------------------------------------------------------------------------------

    def receive(self, sums: Sequence[Sequence[Value]], phase: Value) -> list[list[Value]]:
        """The whole sums of this CTA's part, by all consumer threads of an owner.

        Args:
            sums: registers of every product, of the whole tile.
            phase: as for `send`.
        """
        ptx.await_peers(barrier_address(self._received, 1, 0), arith.extui(i32(), phase))
        own = self._own(sums)
        totals = [self._total(number, quad) for number, quad in enumerate(own)]
        self._synchronize()
        with when(compare("eq", self._thread, 0)):
            self._release()
        each = self.parts.each
        return [
            [total for quad in totals[product * each : (product + 1) * each] for total in quad]
            for product in range(self._products)
        ]

    def _own(self, sums: Sequence[Sequence[Value]]) -> list[Sequence[Value]]:
        """This CTA's own sums of its part."""
        own = self._quads(sums, 0)
        for owner in range(1, self.parts.owners):
            chosen = compare("eq", self._place.part, owner)
            own = [
                [select(chosen, *pair) for pair in zip(theirs, mine, strict=True)]
                for theirs, mine in zip(self._quads(sums, owner), own, strict=True)
            ]
        return own

    def _total(self, number: int, own: Sequence[Value]) -> list[Value]:
        """Four sums over all parts of K, in their order."""
        part, split = self._place.part, self._place.split
        total: list[Value] = []
        for other in range(split):
            # The slot of the own part is not read for its value; any one will do.
            slot = umin(_slot(other, part), split - 2)
            start = add(self._buffer, mul(slot, self._bytes))
            came = self._read(add(start, self._place_of(number)))
            mine = compare("eq", part, other)
            terms = [select(mine, *pair) for pair in zip(own, came, strict=True)]
            if not total:
                total = terms
            else:
                total = [arith.addf(*pair) for pair in zip(total, terms, strict=True)]
        return total

    def _read(self, offset: Num) -> list[Value]:
        type_ = ir.VectorType.get([_GROUP_SUMS], f32())
        vector = llvm.LoadOp(type_, self._memory.pointer(offset), alignment=_GROUP_BYTES).result
        return [
            llvm.ExtractElementOp(vector, constant(number)).result for number in range(_GROUP_SUMS)
        ]

    def _release(self) -> None:
        """Tells all senders, this CTA too, that their parts were read, by one thread."""
        local = barrier_pointer(self._free, 1, 0)
        for other in range(self._place.split):
            rank = value(self._place.rank_of(other))
            nvvm.MBarrierArriveOp(None, nvvm.mapa(pointer(7), local, rank))

    def finish(self, phase: Value) -> None:
        """Waits until no peer can touch this CTA's shared memory any more.

        Args:
            phase: what the tile after the last one would have.
        """
        self._await_free(phase)


def _slot(number: Num, own: Num) -> Num:
    """The place of a rank's part among those of all ranks but the own one."""
    if isinstance(number, int) and isinstance(own, int):
        return number - (number > own)
    return sub(number, arith.extui(i32(), compare("ugt", number, own)))
