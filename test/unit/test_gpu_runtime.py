# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Driver, devices, modules and launches from Python, on a fake driver."""

from __future__ import annotations

import ctypes
import gc
import struct
import threading
from collections.abc import Iterator
from ctypes import c_int32, c_int64, c_void_p
from dataclasses import replace
from pathlib import Path

import mlir.ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapejit.codegen import HostTarget, JitLibrary, compile_object
from shapejit.gpu import memory
from shapejit.gpu.driver import Driver, driver
from shapejit.gpu.errors import (
    CudaError,
    DriverCallError,
    KernelInterfaceError,
    LaunchError,
    NoDriverError,
    error_for,
)
from shapejit.gpu.interface import Grid, KernelInterface, Pointer, Size, TensorMap, Workspace
from shapejit.gpu.launch import Kernel
from shapejit.gpu.module import Module
from shapejit.knobs import knobs
from unit.fake_cuda import Fake

IMAGE = b"fake\ngemm 168 1024 384 128 8 128 4 8 8\nblock 168 1024 384 8\n"

GEMM = KernelInterface(
    entry="gemm",
    threads=384,
    shared_bytes=200 << 10,
    cluster=2,
    grid=Grid(tiles=((0, 128), (1, 256)), ctas_per_sm=1),
    values=("s0", "4096", "s1", "2 * s1"),
    parameters=(
        TensorMap(operand=0, element="bf16", dims=(2, 0), strides=(3,), box=(64, 128)),
        Pointer(operand=1, offset=256),
        TensorMap(2, "f16", dims=(1, 0), strides=(1,), box=(32, 64), swizzle=64, offset=128),
        Size(value=0, offset=264),
        Size(value=2, bytes=8, offset=272),
        Workspace(bytes_per_cta=20480, zeroed=1024, offset=280),
    ),
    programmatic=True,
)
BLOCK = replace(GEMM, entry="block", block=True, block_bytes=512)
OPERANDS = (0x10000, 0x20001, 0x30000)


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fake]:
    fake = Fake(tmp_path_factory.mktemp("fake"))
    yield fake
    gc.collect()
    assert fake.runtime.modules() == 0
    fake.check()


@pytest.fixture
def kernel(fake: Fake) -> Kernel:
    return Kernel(GEMM, Module(IMAGE, fake.driver.device(0)))


def values(m: int, k: int) -> tuple[int, ...]:
    return (m, 4096, k, 2 * k)


def unpack_map(data: bytes) -> dict[str, object]:
    """A tensor map as the fake driver encodes it."""
    address, element, rank, swizzle, promotion = struct.unpack_from("<Q4B", data)
    dims = struct.unpack_from("<5Q", data, 16)
    pitches = struct.unpack_from("<4Q", data, 56)
    box = struct.unpack_from("<5H", data, 88)
    return {
        "address": address,
        "element": element,
        "dims": dims[:rank],
        "pitches": pitches[: rank - 1],
        "box": box[:rank],
        "swizzle": swizzle,
        "promotion": promotion,
    }


def test_without_a_driver() -> None:
    path = "/nowhere/libcuda.so.1"
    driver.cache_clear()
    try:
        with (
            knobs.scope(libcuda=path),
            pytest.raises(NoDriverError, match=r"/nowhere/libcuda\.so\.1.*SHAPEJIT_LIBCUDA"),
        ):
            driver()
    finally:
        driver.cache_clear()


def test_statuses() -> None:
    kinds = [type(error_for(status, "text")) for status in (1, 2, 3, 4)]
    assert kinds == [NoDriverError, DriverCallError, KernelInterfaceError, LaunchError]
    assert all(issubclass(kind, CudaError) and kind.status for kind in kinds)
    with pytest.raises(ValueError, match="no status"):
        error_for(5, "text")


def test_driver_and_devices(fake: Fake) -> None:
    assert fake.driver.version == (13, 0)
    first, second = fake.driver.devices()
    assert (first.number, second.number, second.name) == (0, 1, "Fake 1")
    assert (first.arch, first.multiprocessors, first.memory_bytes) == ("sm_90a", 132, 80 << 30)
    assert first.shared_bytes_per_block == 227 << 10 < first.shared_bytes_per_multiprocessor
    assert first.cache_bytes == 50 << 20
    assert replace(first, compute_capability=(8, 6)).arch == "sm_86"
    with pytest.raises(NoDriverError, match="no CUDA device 2"):
        fake.driver.device(2)
    with pytest.raises(NoDriverError, match="cannot be exchanged"):
        Driver("other", fake.runtime)


def test_launch(fake: Fake, kernel: Kernel) -> None:
    kernel.launch(OPERANDS, values(300, 512))
    launch = fake.last
    assert (launch.entry, launch.parameters, launch.shared_bytes) == (b"gemm", 6, 200 << 10)
    assert (list(launch.grid), list(launch.block)) == ([96, 1, 1], [384, 1, 1])
    assert (launch.cluster, launch.programmatic, launch.stream) == (2, 1, None)
    assert unpack_map(launch.parameter(0, 128)) == {
        "address": 0x10000,
        "element": 9,
        "dims": (512, 300),
        "pitches": (2048,),
        "box": (64, 128),
        "swizzle": 3,
        "promotion": 3,
    }
    assert unpack_map(launch.parameter(2, 128)) == {
        "address": 0x30000,
        "element": 6,
        "dims": (4096, 300),
        "pitches": (8192,),
        "box": (32, 64),
        "swizzle": 2,
        "promotion": 3,
    }
    assert launch.parameter(1, 8) == (0x20001).to_bytes(8, "little")
    assert launch.parameter(3, 4) == (300).to_bytes(4, "little")
    assert launch.parameter(4, 8) == (512).to_bytes(8, "little")
    kernel.launch(OPERANDS, values(300, 512), workspace=0x40000)
    assert fake.last.parameter(5, 8) == (0x40000).to_bytes(8, "little")


def test_what_a_kernel_tells(kernel: Kernel) -> None:
    assert (kernel.registers, kernel.local_bytes, kernel.operand_count) == (168, 0, 3)
    assert kernel.resident_ctas == 132
    assert kernel.workspace_bytes == 132 * 20480 + 1024
    scratch = Workspace(bytes_per_cta=20480, zeroed=1024, offset=280, least_ctas=200)
    large = replace(GEMM, parameters=(*GEMM.parameters[:-1], scratch))
    assert KernelInterface.from_json(large.to_json()) == large
    assert Kernel(large, kernel.module).workspace_bytes == 200 * 20480 + 1024
    assert kernel.handle


@settings(max_examples=200, deadline=None)
@given(m=st.integers(0, 2**31 - 1), tile=st.integers(1, 512), ctas_per_sm=st.integers(0, 2))
def test_grid(fake: Fake, m: int, tile: int, ctas_per_sm: int) -> None:
    interface = KernelInterface(
        entry="gemm",
        threads=128,
        shared_bytes=64 << 10,
        cluster=1,
        grid=Grid(((0, tile), (1, 4096)), ctas_per_sm),
        values=GEMM.values,
        parameters=GEMM.parameters,
    )
    kernel = Kernel(interface, Module(IMAGE, fake.driver.device(0)))
    before = fake.launches
    kernel.launch(OPERANDS, values(m, 8), workspace=0x40000)
    units = (m + tile - 1) // tile
    if units == 0:
        assert fake.launches == before
    else:
        assert fake.last.grid[0] == (min(units, 132 * ctas_per_sm) if ctas_per_sm else units)


def test_bad_calls(fake: Fake, kernel: Kernel) -> None:
    before = fake.launches
    with pytest.raises(LaunchError, match="takes 3 operands, not 2"):
        kernel.launch(OPERANDS[:2], values(300, 512))
    with pytest.raises(LaunchError, match=r"takes 4 values \(s0, 4096, s1, 2 \* s1\), not 3"):
        kernel.launch(OPERANDS, (300, 4096, 512))
    for bad in (2**63, "300", None):
        with pytest.raises(LaunchError, match="integers of 64 bits"):
            kernel.launch(OPERANDS, (bad, 4096, 512, 1024))  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match="addresses"):
        kernel.launch((-1, 0, 0), values(300, 512))
    with pytest.raises(LaunchError, match=r"s0 = 4294967296 does not fit its 4 bytes.*gemm"):
        kernel.launch(OPERANDS, values(2**32, 512))
    with pytest.raises(LaunchError, match=r"2 \* s1 = 514 elements of 2 bytes.*\(operand 0\)"):
        kernel.launch(OPERANDS, values(300, 257))
    with pytest.raises(LaunchError, match="from a block"):
        Kernel(BLOCK, kernel.module).launch(OPERANDS, values(300, 512))
    assert fake.launches == before


def test_driver_failure(fake: Fake, kernel: Kernel) -> None:
    fake.controls.fakeFail(b"cuLaunchKernelEx", 700, 0)
    with pytest.raises(DriverCallError, match=r"ILLEGAL_ADDRESS.*kernel gemm, 96 CTAs.*s0 = 300"):
        kernel.launch(OPERANDS, values(300, 512))
    kernel.launch(OPERANDS, values(300, 512))


@pytest.mark.parametrize(
    ("interface", "text"),
    [
        (replace(GEMM, entry="other"), "kernel other: its machine code has no such function"),
        (replace(GEMM, threads=1025), "the number of threads is 1025"),
        (replace(GEMM, parameters=GEMM.parameters[:5]), "more than the 5 parameters"),
        (replace(GEMM, parameters=(TensorMap(0, "f8", (0,), (), (16,)),)), "no elements 'f8'"),
        (replace(GEMM, parameters=(TensorMap(0, "f16", (0, 1), (), (8, 8)),)), "0 strides"),
        (replace(GEMM, parameters=(TensorMap(0, "f16", (0,) * 6, (0,) * 5, (8,) * 6),)), "6 dims"),
        (replace(GEMM, parameters=(TensorMap(0, "f16", (), (), ()),)), "1 to 5 dims, not 0"),
        (replace(BLOCK, block_bytes=256), "cannot lie at offset 256"),
    ],
)
def test_bad_interfaces(fake: Fake, interface: KernelInterface, text: str) -> None:
    module = Module(IMAGE, fake.driver.device(0))
    with pytest.raises(KernelInterfaceError, match=text):
        Kernel(interface, module)


def test_bad_image(fake: Fake) -> None:
    with pytest.raises(DriverCallError, match="another compute capability"):
        Module(b"no image", fake.driver.device(0))


def test_block(fake: Fake, kernel: Kernel) -> None:
    block = Kernel(BLOCK, kernel.module)
    buffer = (ctypes.c_ubyte * (512 + 64))()
    start = -ctypes.addressof(buffer) % 64
    address = ctypes.addressof(buffer) + start
    block.fill_block(OPERANDS, values(300, 512), address, 0x40000)
    entry = bytes(buffer[start : start + 512])
    assert unpack_map(entry[:128])["dims"] == (512, 300)
    assert unpack_map(entry[128:256])["address"] == 0x30000
    assert struct.unpack_from("<QixxxxqQ", entry, 256) == (0x20001, 300, 512, 0x40000)
    assert not any(entry[288:])
    block.launch_block(0x50000)
    assert (fake.last.entry, fake.last.grid[0]) == (b"block", 132)
    assert fake.last.parameter(0, 8) == (0x50000).to_bytes(8, "little")
    with pytest.raises(LaunchError, match="a workspace of 2704384 bytes"):
        block.fill_block(OPERANDS, values(300, 512), address, None)
    with pytest.raises(LaunchError, match="by value"):
        kernel.launch_block(0x50000)


def test_workspaces(fake: Fake, kernel: Kernel) -> None:
    device = kernel.module.device
    memory.release_workspaces(device)
    kernel.reserve()
    use = memory.workspaces(device)
    assert (use.buffers, use.graph_bytes) == (1, 0)
    assert use.bytes >= kernel.workspace_bytes
    kernel.launch(OPERANDS, values(100_000, 512))
    assert memory.workspaces(device) == use
    memory.limit_workspaces(fake.runtime, 1 << 20)
    try:
        memory.release_workspaces(device)
        with pytest.raises(LaunchError, match="above the limit of 1048576 bytes"):
            kernel.reserve()
    finally:
        memory.limit_workspaces(fake.runtime, 1 << 30)
    assert memory.workspaces(device).buffers == 0
    for bad in (-1, 1 << 63):
        with pytest.raises(ValueError, match="must be within"):
            memory.limit_workspaces(fake.runtime, bad)


def test_modules_go_when_nothing_refers_to_them(fake: Fake) -> None:
    gc.collect()
    before = fake.runtime.modules()
    module = Module(IMAGE, fake.driver.device(1))
    kernel = Kernel(GEMM, module)
    assert module.image_bytes == len(IMAGE)
    del module
    gc.collect()
    assert fake.modules == before + 1
    stream = fake.controls.fakeStreamCreate(1)
    fake.controls.fakeBeginCapture(stream, 0)
    kernel.launch(OPERANDS, values(300, 512), stream)
    graph = fake.controls.fakeEndCapture(stream)
    assert graph
    assert fake.last.graph == graph
    del kernel
    gc.collect()
    assert fake.modules == before + 1
    fake.controls.fakeGraphDestroy(graph)
    assert fake.runtime.modules() == fake.modules == before
    assert memory.workspaces(fake.driver.device(1)).buffers == 0


def test_from_several_threads(fake: Fake, kernel: Kernel) -> None:
    failures: list[BaseException] = []

    def call(seed: int) -> None:
        try:
            stream = fake.controls.fakeStreamCreate(0)
            for i in range(200):
                kernel.launch(OPERANDS, values(1 + i, 512), stream)
                with pytest.raises(LaunchError, match=f"s0 = -{seed * 1000 + i} is negative"):
                    kernel.launch(OPERANDS, values(-(seed * 1000 + i), 512), stream)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_launch_from_compiled_code(fake: Fake, kernel: Kernel) -> None:
    """A host program calls the native functions by their names."""
    text = """
    llvm.func @shapejitRtCudaLaunch(!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> i32
    llvm.func @run(%kernel: !llvm.ptr, %operands: !llvm.ptr, %values: !llvm.ptr,
                   %stream: i64) -> i32 {
      %own = llvm.mlir.zero : !llvm.ptr
      %status = llvm.call @shapejitRtCudaLaunch(%kernel, %operands, %values, %own, %stream)
        : (!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> i32
      llvm.return %status : i32
    }"""
    with ir.Context(), ir.Location.unknown():
        code = compile_object(ir.Module.parse(text), HostTarget.host())
    with JitLibrary([code], symbols=fake.runtime.symbols()) as library:
        run = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p, c_int64)(
            library.lookup("run")
        )
        operands = (c_void_p * 3)(*OPERANDS)
        before = fake.launches
        assert run(kernel.handle, operands, (c_int64 * 4)(*values(300, 512)), 0) == 0
        assert (fake.launches, fake.last.grid[0]) == (before + 1, 96)
        assert run(kernel.handle, operands, (c_int64 * 4)(*values(-1, 512)), 0) == 4
    with pytest.raises(LaunchError, match="s0 = -1 is negative"):
        fake.runtime.check(4)


_SIZES = st.one_of(st.sampled_from([0, 1, 2, 2**32, 2**32 + 1, -1]), st.integers(1, 10_000))
_STRIDES = st.one_of(
    st.sampled_from([0, 8, 7, 2**39 - 8, 2**39, -8]), st.integers(0, 2**36).map(lambda n: 8 * n)
)


@settings(max_examples=300, deadline=None)
@given(
    dims=st.lists(st.tuples(_SIZES, _STRIDES), min_size=1, max_size=5),
    address=st.sampled_from([0, 8, 16, 1 << 40]),
)
def test_tensor_maps(fake: Fake, dims: list[tuple[int, int]], address: int) -> None:
    """What is encoded, and what is refused, by the rules of cuTensorMapEncodeTiled."""
    rank = len(dims)
    sizes, strides = [size for size, _ in dims], [stride for _, stride in dims[1:]]
    interface = KernelInterface(
        entry="map",
        threads=32,
        shared_bytes=0,
        cluster=1,
        grid=Grid(((0, 1),), 0),
        values=("1", *(f"d{i}" for i in range(rank)), *(f"t{i}" for i in range(1, rank))),
        parameters=(
            TensorMap(
                operand=0,
                element="bf16",
                dims=tuple(range(1, rank + 1)),
                strides=tuple(range(rank + 1, 2 * rank)),
                box=(64,) * rank,
            ),
        ),
    )
    kernel = Kernel(interface, Module(b"fake\nmap 32 0 1024 128\n", fake.driver.device(0)))
    empty = 0 in sizes
    bad = any(not 0 <= size <= 2**32 for size in sizes)
    if not empty:
        bad |= address in (0, 8)
        pairs = [stride for size, stride in dims[1:] if size != 1]
        bad |= any(not 0 <= stride < 2**39 or stride % 8 for stride in pairs)
    if bad:
        with pytest.raises(LaunchError, match=r"kernel map.*1 = 1, d0 = "):
            kernel.launch((address,), (1, *sizes, *strides))
        return
    kernel.launch((address,), (1, *sizes, *strides))
    made = unpack_map(fake.last.parameter(0, 128))
    if empty:
        assert made["dims"] == (1,) * rank
        assert made["address"] != address
        return
    assert (made["address"], made["dims"]) == (address, tuple(sizes))
    pitches = made["pitches"]
    assert isinstance(pitches, tuple)
    for pitch, (size, stride) in zip(pitches, dims[1:], strict=True):
        usable = 0 <= stride < 2**39 and stride % 8 == 0
        assert pitch == (2 * stride if usable or size != 1 else 16)


def test_interface_of_the_record(fake: Fake) -> None:
    """What a pass writes and the cache keeps is what is launched."""
    read = KernelInterface.from_json(GEMM.to_json())
    kernel = Kernel(read, Module(IMAGE, fake.driver.device(0)))
    kernel.launch(OPERANDS, values(300, 512))
    assert fake.last.grid[0] == 96


def test_where_the_driver_was_found(fake: Fake) -> None:
    """By its name the system finds a file, which may have a longer one."""
    assert fake.driver.location == Path(fake.driver.path)
    found = Driver(fake.driver.path, fake.runtime)
    found.path = "libcuda"
    assert found.location == Path(fake.driver.path)
    found.path = "libnothing.so"
    assert found.location is None
