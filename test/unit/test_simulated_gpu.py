# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The simulated GPU that kernels are tested on: it computes, and it finds faults."""

from __future__ import annotations

import mlir.ir as ir
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference.hopper.launch import kernel_function, simulate
from reference.hopper.memory import (
    GlobalMemory,
    SharedMemory,
    SimulationError,
    TiledMap,
    swizzled,
)
from reference.hopper.scalars import round_bf16, widen_bf16
from reference.hopper.tensor_cores import Operand
from shapejit import ir as sir
from shapejit.gpu.interface import Grid, KernelInterface, Parameter, Pointer, TensorMap
from unit.cpu_kernels import examples

WORKGROUP = "#gpu.address_space<workgroup>"
BARRIERS = f"!nvgpu.mbarrier.group<memorySpace = {WORKGROUP}>"
MAP = (
    "!nvgpu.tensormap.descriptor<tensor = memref<8x64xbf16, 3>, swizzle = swizzle_128b, "
    "l2promo = l2promo_256b, oob = zero, interleave = none>"
)


def run(
    body: str,
    *,
    arguments: str = "%in: !llvm.ptr<1>, %out: !llvm.ptr<1>",
    parameters: tuple[Parameter, ...] = (Pointer(0), Pointer(1)),
    inputs: torch.Tensor | None = None,
    result: torch.Tensor | None = None,
    threads: int = 32,
    cluster: int = 1,
    block: bool = False,
    seed: int = 0,
) -> torch.Tensor:
    """Runs one cluster of a kernel with a given body."""
    interface = KernelInterface(
        entry="k",
        threads=threads,
        shared_bytes=4096,
        cluster=cluster,
        grid=Grid((), 0),
        values=("8", "64"),
        parameters=parameters,
        block=block,
        block_bytes=256,
    )
    inputs = torch.arange(32, dtype=torch.float32) if inputs is None else inputs
    result = torch.empty(32) if result is None else result
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(f"""
            gpu.module @k {{
              llvm.func @k({arguments}) attributes {{nvvm.kernel}} {{
                %thread = nvvm.read.ptx.sreg.tid.x : i32
                %c0 = arith.constant 0 : index
                %c1 = arith.constant 1 : index
                %zero = arith.constant 0 : i32
                %first = arith.cmpi eq, %thread, %zero : i32
                %ticks = arith.constant 10000 : index
                %even = arith.constant false
                {body}
                llvm.return
              }}
            }}""")
        [gpu_module] = sir.operations(module.body)
        return simulate(kernel_function(gpu_module), interface, [inputs], result, [], seed=seed)


ADDRESSES = """
    %at = llvm.getelementptr %in[%thread] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
    %to = llvm.getelementptr %out[%thread] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
"""


def test_lanes_loops_and_conditions() -> None:
    got = run(f"""{ADDRESSES}
        %x = llvm.load %at : !llvm.ptr<1> -> f32
        %one = arith.constant 1 : i32
        %three = arith.constant 3 : i32
        %bit = arith.andi %thread, %one : i32
        %odd = arith.cmpi eq, %bit, %one : i32
        %chosen = scf.if %odd -> f32 {{
          %n = arith.negf %x : f32
          scf.yield %n : f32
        }} else {{
          scf.yield %x : f32
        }}
        %rounds = arith.remui %thread, %three : i32
        %sum = scf.for %i = %zero to %rounds step %one iter_args(%s = %chosen) -> f32 : i32 {{
          %t = arith.addf %s, %chosen : f32
          scf.yield %t : f32
        }}
        llvm.store %sum, %to : f32, !llvm.ptr<1>""")
    expected = [(i % 3 + 1) * (-i if i % 2 else i) for i in range(32)]
    assert got.tolist() == expected


def test_inline_assembly() -> None:
    got = run(
        f"""{ADDRESSES}
        %x = llvm.inline_asm "mov.b32 $0, 0; @$2 ld.global.nc.b32 $0, [$1];", "=r,l,b" %at, %first
            : (!llvm.ptr<1>, i1) -> i32
        %f = arith.bitcast %x : i32 to f32
        llvm.store %f, %to : f32, !llvm.ptr<1>""",
        inputs=torch.full((32,), 5.0),
    )
    assert got.tolist() == [5.0] + [0.0] * 31


@pytest.mark.parametrize("beyond", [128, -4])
def test_global_accesses_are_checked(beyond: int) -> None:
    with pytest.raises(SimulationError, match="out of bounds"):
        run(f"""
            %far = llvm.getelementptr %in[{beyond // 4}] : (!llvm.ptr<1>) -> !llvm.ptr<1>, f32
            %x = llvm.load %far : !llvm.ptr<1> -> f32""")


BARRIER = f"""
    %bar = nvgpu.mbarrier.create -> {BARRIERS}
    scf.if %first {{ nvgpu.mbarrier.init %bar[%c0], %c1 : {BARRIERS} }}
    gpu.barrier
"""


def test_a_deadlock_is_told() -> None:
    with pytest.raises(SimulationError, match=r"deadlock(.|\n)*warp 0: mbarrier 0x0, parity 0"):
        run(f"{BARRIER} nvgpu.mbarrier.try_wait.parity %bar[%c0], %even, %ticks : {BARRIERS}")


def test_too_many_arrivals_are_told() -> None:
    with pytest.raises(SimulationError, match="32 arrivals at a barrier that waits for 1"):
        run(f"{BARRIER} %t = nvgpu.mbarrier.arrive %bar[%c0] : {BARRIERS} -> !nvgpu.mbarrier.token")


# A box from global to shared memory and back.
COPY = f"""
    %memory = gpu.dynamic_shared_memory : memref<?xi8, {WORKGROUP}>
    %from = builtin.unrealized_conversion_cast %in : !llvm.ptr to {MAP}
    %into = builtin.unrealized_conversion_cast %out : !llvm.ptr to {MAP}
    %tile = memref.view %memory[%c0][] : memref<?xi8, {WORKGROUP}> to memref<8x64xbf16, {WORKGROUP}>
    %bytes = arith.constant 1024 : index
    ACQUIRE
    {BARRIER}
    scf.if %first {{
      nvgpu.mbarrier.arrive.expect_tx %bar[%c0], %bytes : {BARRIERS}
      nvgpu.tma.async.load %from[%c0, %c0], %bar[%c0] to %tile
          : {MAP}, {BARRIERS} -> memref<8x64xbf16, {WORKGROUP}>
      WAIT
      nvgpu.tma.async.store %tile to %into[%c0, %c0]
          : memref<8x64xbf16, {WORKGROUP}> -> {MAP}
      nvvm.cp.async.bulk.commit.group
      nvvm.cp.async.bulk.wait_group 0
    }}
"""
WAIT = f"nvgpu.mbarrier.try_wait.parity %bar[%c0], %even, %ticks : {BARRIERS}"


def copy(wait: str = WAIT, acquire: str = "", *, block: bool = False, seed: int = 0) -> bool:
    """Whether the kernel copies right."""
    data = torch.randn(8, 64).to(torch.bfloat16)
    records = tuple(TensorMap(i, "bf16", (1, 0), (1,), (64, 8), offset=128 * i) for i in range(2))
    arguments, body = "%in: !llvm.ptr, %out: !llvm.ptr", COPY
    if block:
        arguments = "%in: !llvm.ptr"
        body = (
            """
            %base = llvm.ptrtoint %in : !llvm.ptr to i64
            %next = arith.constant 128 : i64
            %place = arith.addi %base, %next : i64
            %out = llvm.inttoptr %place : i64 to !llvm.ptr
        """
            + COPY
        )
    body = body.replace("WAIT", wait).replace("ACQUIRE", acquire)
    got = run(
        body,
        arguments=arguments,
        parameters=records,
        inputs=data,
        result=torch.empty_like(data),
        block=block,
        seed=seed,
    )
    return torch.equal(got, data)


def test_tensor_maps_copy() -> None:
    assert all(copy(seed=seed) for seed in range(5))


def test_a_missing_wait_shows_in_some_order() -> None:
    def works(seed: int) -> bool:
        try:
            return copy(wait="", seed=seed)
        except SimulationError:  # the copy came when its CTA was gone
            return False

    assert not all(map(works, range(20)))


def test_maps_in_memory_must_be_acquired() -> None:
    acquire = "".join(
        f"nvvm.fence.proxy.acquire #nvvm.mem_scope<sys> %{name}, %size\n" for name in ("in", "out")
    )
    acquire = "%size = arith.constant 128 : i32\n" + acquire
    assert copy(acquire=acquire, block=True)
    with pytest.raises(SimulationError, match="without the acquire fence"):
        copy(block=True)


STORE = f"""
    %memory = gpu.dynamic_shared_memory : memref<?xi8, {WORKGROUP}>
    %index = memref.extract_aligned_pointer_as_index %memory : memref<?xi8, {WORKGROUP}> -> index
    %base = arith.index_cast %index : index to i32
    %four = arith.constant 4 : i32
    %sixteen = arith.constant 16 : i32
    %step = arith.muli %thread, %four : i32
    %own = arith.addi %base, %step : i32
    %place = llvm.inttoptr %own : i32 to !llvm.ptr<3>
    %value = arith.uitofp %thread : i32 to f32
    llvm.store %value, %place : f32, !llvm.ptr<3>
"""
FENCE = "nvvm.fence.proxy {kind = #nvvm.proxy_kind<async.shared>, space = #nvvm.shared_space<cta>}"


STAY = "nvvm.cluster.arrive nvvm.cluster.wait"


def send(fence: str = FENCE, end: str = STAY) -> torch.Tensor:
    """Rank 0 sends 128 bytes to rank 1, which writes them to global memory."""
    return run(
        f"""{STORE} {BARRIER}
        {fence}
        nvvm.cluster.arrive
        nvvm.cluster.wait
        %rank = nvvm.read.ptx.sreg.cluster.ctarank : i32
        %other = arith.constant 1 : i32
        %sender = arith.cmpi eq, %rank, %zero : i32
        %one_sends = arith.andi %sender, %first : i1
        %size = arith.constant 128 : i32
        %far = arith.constant 1024 : i32
        %words = builtin.unrealized_conversion_cast %bar : {BARRIERS} to memref<1xi64, 3>
        %bi = memref.extract_aligned_pointer_as_index %words : memref<1xi64, 3> -> index
        %bw = arith.index_cast %bi : index to i32
        %bp = llvm.inttoptr %bw : i32 to !llvm.ptr<3>
        scf.if %one_sends {{
          %target = arith.addi %base, %far : i32
          %tp = llvm.inttoptr %target : i32 to !llvm.ptr<3>
          %sp = llvm.inttoptr %base : i32 to !llvm.ptr<3>
          %there = nvvm.mapa %tp, %other : !llvm.ptr<3> -> !llvm.ptr<7>
          %bthere = nvvm.mapa %bp, %other : !llvm.ptr<3> -> !llvm.ptr<7>
          %bi64 = llvm.ptrtoint %bthere : !llvm.ptr<7> to i64
          %b3 = llvm.inttoptr %bi64 : i64 to !llvm.ptr<3>
          nvvm.cp.async.bulk.shared.cluster.shared.cta %there, %sp, %b3, %size : <7>, <3>
        }}
        %receiver = arith.cmpi eq, %rank, %other : i32
        scf.if %receiver {{
          {RECEIVE}
        }}
        {end}
        """,
        cluster=2,
        seed=1,
    )


RECEIVE = f"""
    %bytes = arith.constant 128 : index
    scf.if %first {{ nvgpu.mbarrier.arrive.expect_tx %bar[%c0], %bytes : {BARRIERS} }}
    {WAIT}
    %came = arith.addi %own, %far : i32
    %cp = llvm.inttoptr %came : i32 to !llvm.ptr<3>
    %x = llvm.load %cp : !llvm.ptr<3> -> f32
    %to = llvm.getelementptr %out[%thread] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
    llvm.store %x, %to : f32, !llvm.ptr<1>
"""


def test_distributed_shared_memory() -> None:
    assert send().tolist() == list(range(32))


def test_a_missing_fence_is_told() -> None:
    with pytest.raises(SimulationError, match="written without a fence"):
        send(fence="")


def test_a_cta_must_not_leave_while_its_memory_is_in_use() -> None:
    with pytest.raises(SimulationError, match="of a CTA that has exited"):
        send(end="")


STORE_TO_PEER = (
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
    "[$0+1024], {$1,$1,$1,$1}, [$2];"
)
AWAIT_PEERS = (
    "{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 "
    "p, [$0], $1, 100; @!p bra AGAIN; }"
)


def send_registers(wait: str = AWAIT_PEERS, barrier: str = "%bthere", seed: int = 0) -> list[float]:
    """Each thread of rank 0 sends four times its number to rank 1, which writes one of them."""
    waits = f'llvm.inline_asm has_side_effects "{wait}", "r,r" %bw, %zero : (i32, i32) -> ()'
    return run(
        f"""{STORE} {BARRIER}
        nvvm.cluster.arrive
        nvvm.cluster.wait
        %rank = nvvm.read.ptx.sreg.cluster.ctarank : i32
        %other = arith.constant 1 : i32
        %sender = arith.cmpi eq, %rank, %zero : i32
        %words = builtin.unrealized_conversion_cast %bar : {BARRIERS} to memref<1xi64, 3>
        %bi = memref.extract_aligned_pointer_as_index %words : memref<1xi64, 3> -> index
        %bw = arith.index_cast %bi : index to i32
        %line = arith.muli %thread, %sixteen : i32
        %mine = arith.addi %base, %line : i32
        scf.if %sender {{
          %there = llvm.inline_asm "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r" %mine, %other
              : (i32, i32) -> i32
          %bthere = llvm.inline_asm "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r" %bw, %other
              : (i32, i32) -> i32
          llvm.inline_asm has_side_effects "{STORE_TO_PEER}", "r,f,r" %there, %value, {barrier}
              : (i32, f32, i32) -> ()
        }}
        %receiver = arith.cmpi eq, %rank, %other : i32
        scf.if %receiver {{
          %bytes = arith.constant 512 : index
          scf.if %first {{ nvgpu.mbarrier.arrive.expect_tx %bar[%c0], %bytes : {BARRIERS} }}
          {waits if wait else ""}
          %far = arith.constant 1036 : i32
          %came = arith.addi %mine, %far : i32
          %cp = llvm.inttoptr %came : i32 to !llvm.ptr<3>
          %x = llvm.load %cp : !llvm.ptr<3> -> f32
          %to = llvm.getelementptr %out[%thread] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
          llvm.store %x, %to : f32, !llvm.ptr<1>
        }}
        {STAY}
        """,
        cluster=2,
        seed=seed,
    ).tolist()


def test_registers_are_stored_in_other_ctas() -> None:
    assert all(send_registers(seed=seed) == list(range(32)) for seed in range(5))


def test_stores_in_other_ctas_must_be_awaited() -> None:
    found = set()
    for seed in range(20):
        try:
            send_registers(wait="", seed=seed)
        except SimulationError as error:
            found.add(str(error))
    assert any("a store by another CTA may happen at any time" in text for text in found)


def test_stores_report_to_a_barrier_beside_them() -> None:
    with pytest.raises(SimulationError, match="with a barrier elsewhere"):
        send_registers(barrier="%bw")


# Tensor cores -------------------------------------------------------------------------------------


def multiply(wait: str) -> torch.Tensor:
    """A product of zeros in shared memory with itself."""
    struct = f"!llvm.struct<({', '.join(['f32'] * 4)})>"
    # Each thread clears 16 bytes of the 2 KiB that the descriptor reaches.
    clear = STORE.replace("arith.muli %thread, %four", "arith.muli %thread, %sixteen").replace(
        "arith.uitofp %thread : i32 to f32", "arith.constant dense<0.0> : vector<4xf32>"
    )
    clear = clear.replace("%value, %place : f32", "%value, %place : vector<4xf32>")
    return run(
        f"""{clear}
        {FENCE}
        gpu.barrier
        %c14 = arith.constant 262143 : i32
        %c4 = arith.constant 4 : i32
        %low = arith.andi %base, %c14 : i32
        %start = arith.shrui %low, %c4 : i32
        %high = arith.constant 1073741888 : i32
        %d = llvm.inline_asm "mov.b64 $0, {{$1, $2}};", "=l,r,r" %start, %high : (i32, i32) -> i64
        %u = llvm.mlir.undef : {struct}
        nvvm.wgmma.fence.aligned
        %p = nvvm.wgmma.mma_async %d, %d, %u, <m = 64, n = 8, k = 16>, D[<f32>, <zero>],
            A[<bf16>, <one>, <row>], B[<bf16>, <one>, <col>] : {struct} -> {struct}
        nvvm.wgmma.commit.group.sync.aligned
        {wait}
        %x = llvm.extractvalue %p[0] : {struct}
        %c128 = arith.constant 32 : i32
        %small = arith.cmpi ult, %thread, %c128 : i32
        scf.if %small {{
          %to = llvm.getelementptr %out[%thread] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
          llvm.store %x, %to : f32, !llvm.ptr<1>
        }}""",
        threads=128,
    )


def test_products_must_be_awaited() -> None:
    assert multiply("nvvm.wgmma.wait.group.sync.aligned 0").tolist() == [0.0] * 32
    with pytest.raises(SimulationError, match=r"read before wgmma\.wait_group"):
        for _ in range(10):
            multiply("")


@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
@examples(50)
def test_rounding_to_bf16(values: list[float]) -> None:
    given_ = torch.tensor(values, dtype=torch.float32)
    got = torch.from_numpy(widen_bf16(round_bf16(given_.numpy())))
    assert torch.equal(got.nan_to_num(7), given_.to(torch.bfloat16).float().nan_to_num(7))


@pytest.mark.parametrize("k_major", [True, False])
def test_descriptors_read_what_tensor_maps_write(k_major: bool) -> None:
    """A tile of 64 by 64 as TMA swizzles it, read back 16 elements of K at a time."""
    memory, shared = GlobalMemory(), SharedMemory()
    data = np.arange(64 * 64, dtype=np.uint16)
    address = memory.allocate(data.nbytes)
    memory.write(address, data.view(np.uint8))
    tensor = TiledMap(address, 2, (64, 64), (2, 128), (64, 64), 128)
    shared.async_store(*tensor.load(memory, (0, 0), 1024))
    matrix = data.reshape(64, 64) if k_major else data.reshape(64, 64).T
    for step in range(4):
        start = (1024 + step * (32 if k_major else 2048)) >> 4
        descriptor = start | 512 << 16 | 64 << 32 | 1 << 62
        got = Operand(descriptor, k_major, "bf16").read(shared, 0, 64)
        expected = widen_bf16(np.ascontiguousarray(matrix[:, 16 * step : 16 * step + 16]))
        np.testing.assert_array_equal(got, expected)


def test_swizzle_is_its_own_inverse() -> None:
    addresses = np.arange(4096, dtype=np.uint64)
    for swizzle in (32, 64, 128):
        once = swizzled(addresses, swizzle)
        assert (once != addresses).any()
        np.testing.assert_array_equal(swizzled(once, swizzle), addresses)


@pytest.mark.parametrize(
    "changes",
    [
        {"address": 0x7F0000000008},
        {"strides": (2, 130)},
        {"box": (64, 257)},
        {"box": (128, 8)},
        {"dims": (0, 8)},
    ],
)
def test_maps_that_the_driver_refuses(changes: dict[str, object]) -> None:
    record = {
        "address": 0x7F0000000000,
        "element_bytes": 2,
        "dims": (64, 8),
        "strides": (2, 128),
        "box": (64, 8),
        "swizzle": 128,
    }
    TiledMap(**record)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="TiledMap"):
        TiledMap(**{**record, **changes})  # type: ignore[arg-type]
