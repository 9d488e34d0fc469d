# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""CTAs, clusters and warps of the simulated GPU, and the order in which they run.

A warp is a coroutine that yields what it waits for. Bulk copies and products of the tensor cores
are done later than they are issued. The scheduler picks at random, from a seed, so that a missing
wait or fence has a run in which it shows; nothing that can go on is a deadlock, which raises.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from reference.hopper.memory import (
    WINDOW,
    Addresses,
    Bytes,
    GlobalMemory,
    MBarrier,
    SharedMemory,
    SimulationError,
    TiledMap,
)
from reference.hopper.tensor_cores import Matrix, Operand, fragment


@dataclass(frozen=True)
class Wait:
    """What a warp waits for."""

    ready: Callable[[], bool]
    text: str


Steps: TypeAlias = Generator[Wait, None, None]
Step: TypeAlias = Callable[[Matrix], Matrix]

#: A warp that only lets others run.
RESCHEDULE = Wait(lambda: True, "nothing")


@dataclass
class NamedBarrier:
    """bar.sync: threads that have arrived and generations completed."""

    arrived: int = 0
    generation: int = 0

    def arrive(self, lanes: int, count: int) -> int:
        """The generation that the arrival belongs to."""
        mine = self.generation
        self.arrived += lanes
        if self.arrived > count:
            raise SimulationError(f"{self.arrived} threads at a barrier of {count}")
        if self.arrived == count:
            self.arrived, self.generation = 0, mine + 1
        return mine


@dataclass
class Cluster:
    """CTAs that reach each other's shared memory."""

    index: int
    ctas: list[Cta] = field(default_factory=list)
    arrived: int = 0
    generation: int = 0

    @property
    def lanes(self) -> int:
        return sum(warp.lanes for cta in self.ctas for warp in cta.warps if not warp.done)

    @property
    def done(self) -> bool:
        return all(warp.done for cta in self.ctas for warp in cta.warps)

    def arrive(self, lanes: int) -> int:
        mine = self.generation
        self.arrived += lanes
        self.settle()
        return mine

    def settle(self) -> None:
        """Completes the barrier when all threads that are left have arrived."""
        if self.arrived and self.arrived >= self.lanes:
            self.arrived, self.generation = 0, self.generation + 1


@dataclass
class Cta:
    """A CTA: its shared memory, named barriers and warps."""

    machine: Machine
    cluster: Cluster
    rank: int
    index: int
    shared: SharedMemory = field(default_factory=SharedMemory)
    barriers: dict[int, NamedBarrier] = field(default_factory=dict)
    warps: list[Warp] = field(default_factory=list)

    @property
    def window(self) -> int:
        """Where its shared memory starts among the shared addresses of the cluster."""
        return self.rank * WINDOW


class Product:
    """An accumulator in registers, [16, n], that the tensor cores may still be working on.

    Args:
        before: what it is computed from; None for registers without a value.
        step: computes the accumulator from the one before.
        columns: n.
    """

    def __init__(self, before: Product | None, step: Step | None, columns: int) -> None:
        self._before, self._step, self.columns = before, step, columns
        self._value = np.full((16, columns), np.nan, np.float32) if step is None else None

    @staticmethod
    def of(value: Matrix) -> Product:
        """An accumulator with a value."""
        made = Product(None, None, value.shape[1])
        made._value = value
        return made

    def resolve(self) -> Matrix:
        """Does the work that is left."""
        if self._value is None:
            assert self._before is not None and self._step is not None
            self._value = self._step(self._before.resolve())
            self._before = self._step = None
        return self._value

    def registers(self) -> list[Matrix]:
        if self._value is None:
            raise SimulationError("an accumulator is read before wgmma.wait_group")
        return fragment(self._value)


@dataclass
class LineCopies:
    """cp.async copies of a warp: those of the open group, and closed groups, oldest first.

    A copy is a list of the action that is left to do, empty once it is done.
    """

    open: list[list[Callable[[], None]]] = field(default_factory=list)
    closed: list[list[list[Callable[[], None]]]] = field(default_factory=list)


def _finish(copy: list[Callable[[], None]]) -> None:
    if copy:
        copy.pop()()


@dataclass
class BulkGroups:
    """cp.async.bulk groups of one thread: the copies of the open group, and counts of closed."""

    open: list[list[bool]] = field(default_factory=list)
    closed: list[list[list[bool]]] = field(default_factory=list)

    def pending(self) -> int:
        """Groups that are not complete, from the oldest such one on."""
        while self.closed and all(done[0] for done in self.closed[0]):
            self.closed.pop(0)
        return len(self.closed)


class Warp:
    """32 threads with one program counter a branch.

    Attributes:
        values: of SSA values, by slot; a numpy scalar when all lanes agree.
        mask: lanes that execute.
    """

    def __init__(self, cta: Cta, number: int, slots: int) -> None:
        self.cta = cta
        self.number = number
        self.values: list[Any] = [None] * slots
        self.mask = np.ones(32, bool)
        self.full = True
        self.done = False
        self.lanes = 32
        self.thread = np.arange(32, dtype=np.uint32) + np.uint32(32 * number)
        self.bulk: dict[int, BulkGroups] = {}
        self.copies = LineCopies()
        self.cluster_generation: int | None = None
        self.products: list[Product] = []
        self.product_groups: list[list[Product]] = []
        self.acquired: set[int] = set()
        self.steps: Steps = iter(())  # type: ignore[assignment]

    @property
    def identity(self) -> int:
        """A number from 1, unique in the grid."""
        return self.cta.index * 32 + self.number + 1

    @property
    def active(self) -> int:
        return int(self.mask.sum())

    def lane_values(self, value: Any) -> Any:
        """The value in every lane that executes."""
        return np.broadcast_to(value, 32)[self.mask]

    def one(self, value: Any) -> int:
        """A value that all executing lanes agree on."""
        lanes = np.broadcast_to(value, 32)[self.mask]
        if not (lanes == lanes[0]).all():
            raise SimulationError(f"lanes disagree where the hardware takes one value: {lanes}")
        return int(lanes[0])

    # Memory ---------------------------------------------------------------------------------------

    def _owner(self, address: int) -> Cta:
        rank = address // WINDOW
        if rank >= len(self.cta.cluster.ctas):
            raise SimulationError(f"shared address {address:#x} of no CTA of the cluster")
        return self.cta.cluster.ctas[rank]

    def shared_of(self, addresses: Any) -> tuple[SharedMemory, Addresses]:
        """The shared memory that the lanes' addresses lie in, and the offsets."""
        lanes = self.lane_values(addresses).astype(np.uint64)
        owner = self._owner(int(lanes[0]))
        if not (lanes // WINDOW == owner.rank).all():
            raise NotImplementedError("one instruction that reaches into several CTAs")
        return owner.shared, lanes % np.uint64(WINDOW)

    def load(self, space: str, addresses: Any, width: int) -> Bytes:
        """[32, width] bytes; lanes that do not execute get zeros."""
        result = np.zeros((32, width), np.uint8)
        if space == "shared":
            shared, offsets = self.shared_of(addresses)
            result[self.mask] = shared.load(offsets, width)
        else:
            lanes = self.lane_values(addresses).astype(np.uint64)
            result[self.mask] = self.cta.machine.memory.load(lanes, width)
        return result

    def store(self, space: str, addresses: Any, data: Bytes) -> None:
        """Stores [32, width] bytes from the lanes that execute."""
        if space == "shared":
            shared, offsets = self.shared_of(addresses)
            shared.store(offsets, data[self.mask], self.identity)
        else:
            lanes = self.lane_values(addresses).astype(np.uint64)
            self.cta.machine.memory.store(lanes, data[self.mask])

    def store_to_peer(self, addresses: Any, data: Bytes, barrier: int) -> None:
        """st.async: the lanes' bytes are stored some time, and count on a barrier beside them."""
        shared, offsets = self.shared_of(addresses)
        if self._owner(barrier).shared is not shared:
            raise SimulationError("an asynchronous store with a barrier elsewhere")
        shared.announce(offsets, data.shape[-1])
        stored = data[self.mask]

        def arrive() -> None:
            shared.arrive(offsets, stored, self.identity)
            shared.barrier(barrier % WINDOW).complete(stored.size)

        self.cta.machine.later(arrive)

    def barrier_at(self, address: int) -> MBarrier:
        """The mbarrier at a shared address of the cluster."""
        return self._owner(address).shared.barrier(address % WINDOW)

    # Barriers -------------------------------------------------------------------------------------

    def barrier(self, number: int, count: int) -> Steps:
        """bar.sync"""
        barrier = self.cta.barriers.setdefault(number, NamedBarrier())
        mine = barrier.arrive(self.active, count)
        yield Wait(lambda: barrier.generation > mine, f"barrier {number} of {count}")

    def barrier_arrive(self, number: int, count: int) -> None:
        """bar.arrive"""
        self.cta.barriers.setdefault(number, NamedBarrier()).arrive(self.active, count)

    def cluster_arrive(self) -> None:
        if self.cluster_generation is not None:
            raise SimulationError("a second cluster arrive before the wait")
        self.cluster_generation = self.cta.cluster.arrive(self.active)

    def cluster_wait(self) -> Steps:
        mine = self.cluster_generation
        if mine is None:
            raise SimulationError("a cluster wait without an arrive")
        yield Wait(lambda: self.cta.cluster.generation > mine, "the cluster's barrier")
        self.cluster_generation = None

    # Bulk copies ----------------------------------------------------------------------------------

    def _groups(self) -> BulkGroups:
        lane = int(np.flatnonzero(self.mask)[0])
        return self.bulk.setdefault(lane, BulkGroups())

    def _require_one_lane(self, what: str) -> None:
        if self.active != 1:
            raise SimulationError(f"{what} by {self.active} lanes; one is meant to")

    def tensor_load(
        self, tensor: TiledMap, corner: list[int], target: int, barrier: int, ctas: int | None
    ) -> None:
        """cp.async.bulk.tensor to shared memory, to all CTAs in the bit mask if there is one."""
        self._require_one_lane("a tensor load")
        own, base = self._owner(target), target % WINDOW
        targets = [own]
        if ctas is not None:
            targets = [cta for cta in self.cta.cluster.ctas if ctas >> cta.rank & 1]
        if own is not self.cta or self._owner(barrier) is not self.cta:
            raise SimulationError("a tensor load addressed to another CTA")

        def copy() -> None:
            addresses, data = tensor.load(self.cta.machine.memory, corner, base)
            for cta in targets:
                cta.shared.async_store(addresses, data)
                cta.shared.barrier(barrier % WINDOW).complete(tensor.box_bytes)

        self.cta.machine.later(copy)

    def tensor_store(self, tensor: TiledMap, corner: list[int], source: int) -> None:
        """cp.async.bulk.tensor from shared memory."""
        self._require_one_lane("a tensor store")
        done = [False]

        def copy() -> None:
            tensor.store(self.cta.machine.memory, corner, source % WINDOW, self.cta.shared)
            done[0] = True

        self._groups().open.append(done)
        self.cta.machine.later(copy)

    def shared_copy(self, target: int, source: int, barrier: int, size: int) -> None:
        """cp.async.bulk between the shared memories of a cluster."""
        self._require_one_lane("a bulk copy")
        owner = self._owner(target)
        if self._owner(barrier) is not owner or target % 16 or source % 16 or size % 16:
            raise SimulationError("a bulk copy that is misaligned or has a barrier elsewhere")

        def copy() -> None:
            steps = np.arange(size, dtype=np.uint64)
            data = self.cta.shared.async_load(source % WINDOW + steps)
            owner.shared.async_store(target % WINDOW + steps, data[..., None].reshape(-1, 1))
            owner.shared.barrier(barrier % WINDOW).complete(size)

        self.cta.machine.later(copy)

    def global_copy(self, target: int, source: int, size: int, barrier: int) -> None:
        """cp.async.bulk from global memory to this CTA's shared memory."""
        self._require_one_lane("a bulk copy")
        if self._owner(target) is not self.cta or self._owner(barrier) is not self.cta:
            raise SimulationError("a bulk copy addressed to another CTA")
        if not size or target % 16 or source % 16 or size % 16:
            raise SimulationError("a bulk copy of no bytes, or one that is misaligned")
        first, steps = np.uint64(source), np.arange(size, dtype=np.uint64)

        def copy() -> None:
            data = self.cta.machine.memory.load(first + steps, 1)
            self.cta.shared.async_store(target % WINDOW + steps, data.reshape(-1, 1))
            self.cta.shared.barrier(barrier % WINDOW).complete(size)

        self.cta.machine.later(copy)

    def commit_bulk(self) -> None:
        groups = self._groups()
        groups.closed.append(groups.open)
        groups.open = []

    def wait_bulk(self, count: int) -> Steps:
        groups = self._groups()
        yield Wait(lambda: groups.pending() <= count, f"all but {count} groups of bulk copies")

    # Copies of lines ------------------------------------------------------------------------------

    def copy_line(self, target: Any, source: Any, width: int, sizes: Any) -> None:
        """cp.async: copies each lane's bytes to shared memory and fills up with zeros."""
        shared, offsets = self.shared_of(target)
        mask, identity = self.mask, self.identity
        addresses = self.lane_values(source).astype(np.uint64)
        counts = self.lane_values(sizes).astype(np.int64)
        if (counts > width).any() or (addresses[counts > 0] % width).any():
            raise SimulationError("cp.async that is misaligned or reads more than it copies")

        def copy() -> None:
            data = np.zeros((int(mask.sum()), width), np.uint8)
            for size in set(counts[counts > 0].tolist()):
                lanes = counts == size
                steps = addresses[lanes, None] + np.arange(size, dtype=np.uint64)
                data[lanes, :size] = self.cta.machine.memory.load(steps, 1)[..., 0]
            shared.store(offsets, data, identity)

        pending = [copy]
        self.copies.open.append(pending)
        self.cta.machine.later(lambda: _finish(pending))

    def commit_copies(self) -> None:
        self.copies.closed.append(self.copies.open)
        self.copies.open = []

    def wait_copies(self, count: int) -> None:
        while len(self.copies.closed) > count:
            for copy in self.copies.closed.pop(0):
                _finish(copy)

    # Tensor cores ---------------------------------------------------------------------------------

    def multiply(self, accumulator: Any, a: Any, b: Operand, n: int, fresh: bool) -> Product:
        """wgmma: this warp's 16 rows; `a` is an operand in shared memory or reads as one."""
        if not self.mask.all():
            raise SimulationError("wgmma with lanes that do not take part")
        base = accumulator if isinstance(accumulator, Product) else Product(None, None, n)
        shared, row = self.cta.shared, self.number % 4 * 16

        def step(total: Matrix) -> Matrix:
            lhs, rhs = a.read(shared, row, 16), b.read(shared, 0, n)
            # In float64, as the tensor cores do not round between the products of a step.
            product = lhs.astype(np.float64) @ rhs.astype(np.float64).T
            start = 0.0 if fresh else total.astype(np.float64)
            return (start + product).astype(np.float32)

        new = Product(base, step, n)
        self.products.append(new)
        return new

    def commit_products(self) -> None:
        group, self.products = self.products, []
        self.product_groups.append(group)
        if self.cta.machine.random.random() < 0.5:
            self.cta.machine.later(lambda: _resolve(group))

    def wait_products(self, count: int) -> None:
        if self.products:
            raise SimulationError("wgmma.wait_group with products that were not committed")
        while len(self.product_groups) > count:
            _resolve(self.product_groups.pop(0))


def _resolve(products: list[Product]) -> None:
    for product in products:
        product.resolve()


class Machine:
    """A GPU that runs one grid.

    Args:
        memory: its global memory.
        seed: of the order in which warps and copies make progress.
    """

    def __init__(self, memory: GlobalMemory, seed: int = 0) -> None:
        self.memory = memory
        self.tensor_maps: dict[int, TiledMap] = {}
        self.acquire_needed = False
        self.grid = 0
        self.places: int | None = None
        self.static: dict[Any, tuple[int, int]] = {}
        self.random = random.Random(seed)
        self._pending: list[Callable[[], None]] = []

    def later(self, action: Callable[[], None]) -> None:
        """Something that the hardware does at some time from now on."""
        self._pending.append(action)

    def run(self, grid: int, cluster: int, start: Callable[[Cta, int], Warp], warps: int) -> None:
        """Runs a grid.

        Clusters start in the order of their numbers; if there are fewer `places` than clusters, one
        starts when another one has ended.

        Args:
            grid: CTAs.
            cluster: CTAs of a cluster.
            start: makes the warp of this number in a CTA.
            warps: of a CTA.

        Raises:
            SimulationError: the kernel is wrong.
        """
        assert grid % cluster == 0
        self.grid = grid
        running: list[tuple[Warp, Steps]] = []
        waits: list[Wait] = []
        places = self.places or grid // cluster

        def start_cluster(number: int) -> None:
            group = Cluster(number)
            group.ctas = [Cta(self, group, r, number * cluster + r) for r in range(cluster)]
            for cta in group.ctas:
                cta.warps = [start(cta, number) for number in range(warps)]
                running.extend((warp, warp.steps) for warp in cta.warps)
                waits.extend([RESCHEDULE] * warps)

        started = min(places, grid // cluster)
        for first in range(started):
            start_cluster(first)
        while running or self._pending:
            if self._pending and self.random.random() < 0.3:
                self._complete_one()
                continue
            ready = [number for number, wait in enumerate(waits) if wait.ready()]
            if not ready:
                if not self._pending:
                    raise SimulationError(_deadlock(running, waits))
                self._complete_one()
                continue
            number = self.random.choice(ready)
            warp, steps = running[number]
            try:
                waits[number] = next(steps)
            except StopIteration:
                _exit(warp)
                del running[number], waits[number]
                if warp.cta.cluster.done and started < grid // cluster:
                    start_cluster(started)
                    started += 1

    def _complete_one(self) -> None:
        # Copies of one thread to one barrier keep no order either.
        self._pending.pop(self.random.randrange(len(self._pending)))()


def _exit(warp: Warp) -> None:
    warp.done = True
    warp.cta.cluster.settle()
    if all(other.done for other in warp.cta.warps):
        warp.cta.shared.alive = False


def _deadlock(running: list[tuple[Warp, Steps]], waits: list[Wait]) -> str:
    lines = [
        f"  CTA {warp.cta.index} warp {warp.number}: {wait.text}"
        for (warp, _), wait in zip(running, waits, strict=True)
    ]
    return "deadlock; all wait:\n" + "\n".join(lines[:40])
