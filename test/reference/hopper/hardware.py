# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""nvgpu, nvvm, gpu and memref ops of the simulated GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from mlir import ir

from reference.hopper import ptx
from reference.hopper.machine import Product, Steps, Wait, Warp
from reference.hopper.memory import WINDOW, MBarrier, SimulationError, TiledMap
from reference.hopper.scalars import Compute, Maker
from reference.hopper.tensor_cores import Operand

OPS: dict[str, Maker] = {}
BLOCKING: dict[str, Callable[[Any], Callable[..., Steps]]] = {}

#: Where dynamic shared memory starts; barriers lie below.
DYNAMIC_BASE = 1024


@dataclass(frozen=True)
class MemRef:
    """A piece of shared memory, by its shared address."""

    address: Any


def _op(*names: str) -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        OPS.update(dict.fromkeys(names, maker))
        return maker

    return register


def _blocking(*names: str) -> Callable[[Any], Any]:
    def register(maker: Any) -> Any:
        BLOCKING.update(dict.fromkeys(names, maker))
        return maker

    return register


def _ignored(op: Any) -> Compute:
    return lambda warp, *operands: None


for _name in (
    "nvvm.setmaxregister",
    "nvvm.fence.mbarrier.init",
    "nvvm.wgmma.fence.aligned",
    "nvvm.griddepcontrol",
    "nvgpu.tma.prefetch.descriptor",
    "nvvm.prefetch",
    "nvvm.fence.sc.cluster",
):
    OPS[_name] = _ignored

# Registers and lanes ------------------------------------------------------------------------------


def _special(name: str, read: Callable[[Warp], Any]) -> None:
    OPS[f"nvvm.read.ptx.sreg.{name}"] = lambda op: lambda warp: read(warp)


_special("tid.x", lambda warp: warp.thread)
_special("laneid", lambda warp: np.arange(32, dtype=np.uint32))
_special("ctaid.x", lambda warp: np.uint32(warp.cta.index))
_special("nctaid.x", lambda warp: np.uint32(warp.cta.machine.grid))
_special("ntid.x", lambda warp: np.uint32(32 * len(warp.cta.warps)))
_special("cluster.ctarank", lambda warp: np.uint32(warp.cta.rank))
_special("cluster.nctarank", lambda warp: np.uint32(len(warp.cta.cluster.ctas)))
_special("clusterid.x", lambda warp: np.uint32(warp.cta.cluster.index))
_special(
    "nclusterid.x",
    lambda warp: np.uint32(warp.cta.machine.grid // len(warp.cta.cluster.ctas)),
)


@_op("nvvm.elect.sync")
def _elect(op: Any) -> Compute:
    def elect(warp: Warp, *_: Any) -> Any:
        return np.arange(32) == np.flatnonzero(warp.mask)[0]

    return elect


@_op("nvvm.shfl.sync")
def _shuffle(op: Any) -> Compute:
    kind = str(op.attributes["kind"])

    def shuffle(warp: Warp, _: Any, value: Any, offset: Any, clamp: Any) -> Any:
        lanes = np.broadcast_to(value, 32)
        source = np.arange(32)
        step = np.broadcast_to(offset, 32).astype(np.int64)
        if "idx" in kind:
            source = step & 31
        elif "bfly" in kind:
            source = source ^ step
        elif "up" in kind:
            source = np.where(source >= step, source - step, source)
        else:
            raise NotImplementedError(f"shuffle {kind}")
        if not warp.mask.all():
            raise SimulationError("a shuffle with lanes that do not take part")
        return lanes[source]

    return shuffle


# Barriers -----------------------------------------------------------------------------------------


@_op("nvvm.bar.warp.sync")
def _warp_barrier(op: Any) -> Compute:
    def wait(warp: Warp, _: Any) -> None:
        if not warp.mask.all():
            raise SimulationError("a barrier of a warp with lanes that do not take part")

    return wait


@_blocking("gpu.barrier")
def _cta_barrier(op: Any) -> Callable[..., Steps]:
    return lambda warp: warp.barrier(0, 32 * len(warp.cta.warps))


@_blocking("nvvm.barrier")
def _named_barrier(op: Any) -> Callable[..., Steps]:
    def wait(warp: Warp, *operands: Any) -> Steps:
        number = warp.one(operands[0]) if operands else 0
        count = warp.one(operands[1]) if len(operands) > 1 else 32 * len(warp.cta.warps)
        return warp.barrier(number, count)

    return wait


@_op("nvvm.barrier.arrive")
def _named_arrive(op: Any) -> Compute:
    def arrive(warp: Warp, *operands: Any) -> None:
        warp.barrier_arrive(warp.one(operands[0]), warp.one(operands[1]))

    return arrive


@_op("nvvm.cluster.arrive", "nvvm.cluster.arrive.relaxed")
def _cluster_arrive(op: Any) -> Compute:
    return lambda warp: warp.cluster_arrive()


@_blocking("nvvm.cluster.wait")
def _cluster_wait(op: Any) -> Callable[..., Steps]:
    return lambda warp: warp.cluster_wait()


def _barrier_address(warp: Warp, group: MemRef, index: Any) -> int:
    return int(group.address) + 8 * warp.one(index)


@_op("nvgpu.mbarrier.create")
def _create(op: Any) -> Compute:
    match = re.search(r"num_barriers = (\d+)", str(op.results[0].type))
    count = int(match[1]) if match else 1
    key = op.results[0]

    def create(warp: Warp) -> MemRef:
        # The same place in every CTA: static memory is laid out by the compiler.
        places = warp.cta.machine.static
        if key not in places:
            places[key] = sum(size for _, size in places.values()), 8 * count
        offset, _ = places[key]
        if offset + 8 * count > DYNAMIC_BASE:
            raise NotImplementedError("more static shared memory than 1 KiB")
        return MemRef(warp.cta.window + offset)

    return create


@_op("llvm.mlir.addressof")
def _address_of_global(op: Any) -> Compute:
    name = ir.FlatSymbolRefAttr(op.attributes["global_name"]).value
    module = op.operation.parent
    while module.name != "gpu.module":
        module = module.parent
    size = next(
        int(re.search(r"array<(\d+) x i8>", str(other))[1])  # type: ignore[index]
        for other in module.regions[0].blocks[0].operations
        if other.operation.name == "llvm.mlir.global"
        and ir.StringAttr(other.attributes["sym_name"]).value == name
    )

    def address(warp: Warp) -> Any:
        places = warp.cta.machine.static
        if name not in places:
            start = -(-sum(size for _, size in places.values()) // 8) * 8
            places[name] = start, size
        offset, _ = places[name]
        if offset + size > DYNAMIC_BASE:
            raise NotImplementedError("more static shared memory than 1 KiB")
        return np.uint64(warp.cta.window + offset)

    return address


@_op("nvgpu.mbarrier.init")
def _init(op: Any) -> Compute:
    def init(warp: Warp, group: MemRef, count: Any, index: Any, *_: Any) -> None:
        address = _barrier_address(warp, group, index) % WINDOW
        warp.cta.shared.barriers[address] = MBarrier(warp.one(count))

    return init


@_op("nvgpu.mbarrier.arrive")
def _arrive(op: Any) -> Compute:
    def arrive(warp: Warp, group: MemRef, index: Any) -> None:
        address = _barrier_address(warp, group, index) % WINDOW
        warp.cta.shared.barrier(address).arrive(warp.active)

    return arrive


@_op("nvgpu.mbarrier.arrive.expect_tx")
def _expect(op: Any) -> Compute:
    def expect(warp: Warp, group: MemRef, size: Any, index: Any, *_: Any) -> None:
        address = _barrier_address(warp, group, index) % WINDOW
        warp.cta.shared.barrier(address).arrive(warp.active, warp.one(size) * warp.active)

    return expect


@_blocking("nvgpu.mbarrier.try_wait.parity")
def _try_wait(op: Any) -> Callable[..., Steps]:
    def wait(warp: Warp, group: MemRef, parity: Any, _: Any, index: Any) -> Steps:
        address = _barrier_address(warp, group, index) % WINDOW
        barrier, phase = warp.cta.shared.barrier(address), warp.one(parity)
        yield Wait(lambda: barrier.passed(phase), f"mbarrier {address:#x}, parity {phase}")

    return wait


@_op("nvvm.mbarrier.arrive")
def _arrive_at(op: Any) -> Compute:
    def arrive(warp: Warp, address: Any, *_: Any) -> Any:
        for one in warp.lane_values(address):
            warp.barrier_at(int(one)).arrive()
        return np.uint64(0) if op_has_result else None

    op_has_result = bool(len(op.results))
    return arrive


@_op("nvvm.mapa", "nvvm.mapa.shared.cluster")
def _map_address(op: Any) -> Compute:
    def mapa(warp: Warp, address: Any, rank: Any) -> Any:
        inside = np.asarray(address).astype(np.uint64) % np.uint64(WINDOW)
        return inside + np.asarray(rank).astype(np.uint64) * np.uint64(WINDOW)

    return mapa


@_op("nvvm.fence.proxy")
def _fence_proxy(op: Any) -> Compute:
    def fence(warp: Warp) -> None:
        for cta in warp.cta.cluster.ctas:
            cta.shared.fence(warp.identity)

    return fence


@_op("nvvm.fence.proxy.acquire")
def _fence_acquire(op: Any) -> Compute:
    def fence(warp: Warp, address: Any, *_: Any) -> None:
        warp.acquired.add(warp.one(address))

    return fence


# Shared memory ------------------------------------------------------------------------------------


@_op("gpu.dynamic_shared_memory")
def _dynamic(op: Any) -> Compute:
    return lambda warp: MemRef(warp.cta.window + DYNAMIC_BASE)


@_op("memref.view")
def _view(op: Any) -> Compute:
    return lambda warp, source, offset: MemRef(source.address + np.asarray(offset, np.int64))


@_op("memref.extract_aligned_pointer_as_index")
def _address_of(op: Any) -> Compute:
    return lambda warp, source: np.asarray(source.address).astype(np.uint64)


@_op("builtin.unrealized_conversion_cast")
def _cast(op: Any) -> Compute:
    text = str(op.results[0].type)
    to_pointer = text.startswith("!llvm.ptr") or text == "i64"

    def cast(warp: Warp, value: Any) -> Any:
        if "tensormap" in text:
            return _descriptor(warp, value)
        if to_pointer and isinstance(value, MemRef):
            return np.asarray(value.address).astype(np.uint64)
        return value

    return cast


@dataclass(frozen=True)
class _Descriptor:
    """A tensor map by its address, which is looked up when it is used."""

    address: int

    def resolve(self, warp: Warp) -> TiledMap:
        machine = warp.cta.machine
        if self.address not in machine.tensor_maps:
            raise SimulationError(f"no tensor map at {self.address:#x}")
        if machine.acquire_needed and self.address not in warp.acquired:
            raise SimulationError("a tensor map in memory is used without the acquire fence")
        return machine.tensor_maps[self.address]


def _descriptor(warp: Warp, value: Any) -> _Descriptor:
    return _Descriptor(int(np.asarray(value).flat[0]))


def _corner(warp: Warp, coordinates: Any) -> list[int]:
    # Coordinates are 32-bit and signed.
    return [(warp.one(each) + (1 << 31)) % (1 << 32) - (1 << 31) for each in coordinates]


@_op("nvgpu.tma.async.load")
def _tensor_load(op: Any) -> Compute:
    sizes = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))

    def load(warp: Warp, *operands: Any) -> None:
        parts, start = [], 0
        for size in sizes:
            parts.append(operands[start : start + size])
            start += size
        [target], [group], [tensor], coordinates, [index], *rest = parts
        mask = warp.one(rest[0][0]) if rest and rest[0] else None
        if len(rest) > 1 and rest[1] and not warp.one(rest[1][0]):
            return
        warp.tensor_load(
            tensor.resolve(warp),
            _corner(warp, coordinates),
            warp.one(target.address),
            _barrier_address(warp, group, index),
            mask,
        )

    return load


@_op("nvvm.cp.async.bulk.tensor.prefetch")
def _tensor_fetch(op: Any) -> Compute:
    def fetch(warp: Warp, tensor: Any, *coordinates: Any) -> None:
        _descriptor(warp, tensor).resolve(warp)  # all that can be seen of it

    return fetch


@_op("nvgpu.tma.async.store")
def _tensor_store(op: Any) -> Compute:
    sizes = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))

    def store(warp: Warp, source: MemRef, tensor: Any, *rest: Any) -> None:
        coordinates = rest[: sizes[2]]
        if len(rest) > sizes[2] and not warp.one(rest[-1]):
            return
        warp.tensor_store(
            tensor.resolve(warp), _corner(warp, coordinates), warp.one(source.address)
        )

    return store


@_op("nvvm.cp.async.bulk.shared.cluster.shared.cta")
def _shared_copy(op: Any) -> Compute:
    def copy(warp: Warp, target: Any, source: Any, barrier: Any, size: Any) -> None:
        warp.shared_copy(*map(warp.one, (target, source, barrier, size)))

    return copy


@_op("nvvm.cp.async.bulk.commit.group")
def _commit_bulk(op: Any) -> Compute:
    return lambda warp: warp.commit_bulk()


@_blocking("nvvm.cp.async.bulk.wait_group")
def _wait_bulk(op: Any) -> Callable[..., Steps]:
    count = ir.IntegerAttr(op.attributes["group"]).value
    return lambda warp: warp.wait_bulk(count)


@_op("nvvm.stmatrix")
def _store_matrix(op: Any) -> Compute:
    transposed = "col" in str(op.attributes["layout"])

    def store(warp: Warp, address: Any, *sources: Any) -> None:
        lane = np.arange(32)
        rows = np.broadcast_to(address, 32)
        for number, source in enumerate(sources):
            halves = np.ascontiguousarray(np.broadcast_to(source, 32)).view(np.uint16)
            matrix = np.zeros((8, 8), np.uint16)
            for one in (0, 1):
                at = (lane // 4, lane % 4 * 2 + one)
                matrix[at[::-1] if transposed else at] = halves.reshape(32, 2)[:, one]
            shared, offsets = warp.shared_of(rows)
            data = matrix.view(np.uint8).reshape(8, 16)
            shared.store(offsets[8 * number : 8 * number + 8], data, warp.identity)

    return store


# Tensor cores -------------------------------------------------------------------------------------


@_op("nvvm.wgmma.mma_async")
def _multiply(op: Any) -> Compute:
    text = str(op)
    n = int(re.search(r"n = (\d+)", text)[1])  # type: ignore[index]
    sides = re.findall(r"[AB]\[<(\w+)>, <(\w+)>, <(\w+)>\]", text)
    fresh = re.search(r"D\[<f32>, <(\w+)>", text)[1] == "zero"  # type: ignore[index]
    (a_type, a_sign, a_layout), (b_type, b_sign, b_layout) = sides
    if (a_sign, b_sign) != ("one", "one"):
        raise NotImplementedError("wgmma that negates an operand")

    def multiply(warp: Warp, accumulator: Any, *descriptors: Any) -> Product:
        lhs = Operand(warp.one(descriptors[0]), a_layout == "row", a_type)
        rhs = Operand(warp.one(descriptors[1]), b_layout == "col", b_type)
        return warp.multiply(accumulator, lhs, rhs, n, fresh)

    return multiply


@_op("nvvm.wgmma.commit.group.sync.aligned")
def _commit_products(op: Any) -> Compute:
    return lambda warp: warp.commit_products()


@_op("nvvm.wgmma.wait.group.sync.aligned")
def _wait_products(op: Any) -> Compute:
    count = ir.IntegerAttr(op.attributes["group"]).value
    return lambda warp: warp.wait_products(count)


# Inline assembly ----------------------------------------------------------------------------------


@_blocking("llvm.inline_asm")
def _assembly(op: Any) -> Callable[..., Steps]:
    text = ir.StringAttr(op.attributes["asm_string"]).value
    constraints = ir.StringAttr(op.attributes["constraints"]).value.split(",")
    outputs = sum(constraint.startswith("=") for constraint in constraints)
    program = ptx.parse(text)
    is_struct = outputs > 1

    def run(warp: Warp, *operands: Any) -> Steps:
        made = yield from ptx.run(program, warp, outputs, operands, constraints)
        return made if is_struct else made[0] if made else None

    return run
